"""The training server's line to a shuffler: what it asks, what it takes, and what it refuses."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mechanisms.messages.sealed import batch_identity
from server.protocols.drive import Collected
from simulations.errors import UserError
from simulations.shuffler.rounds import Rounds
from simulations.shuffler.store import Store
from sottovoce.deployment import certificates, shuffler_client
from sottovoce.deployment.processes import free_port
from sottovoce.deployment.shuffler_client import Delivered, Shuffler
from sottovoce.deployment.shuffler_service import TRAINING_SERVER, serving
from sottovoce.deployment.training_server import RemoteShuffler
from tests.support.rounds import ENROLLED, ONE, OPENS, PRIVATE, TWO, Nodes, answer, wanted


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOOK", "AGAIN"):
        monkeypatch.setattr(shuffler_client, name, 0.02)


@pytest.fixture()
def files(tmp_path: Path) -> Path:
    """ca/, shuffler/ and server/ with their keys; ca2/ is another authority."""
    for authority in ("ca", "ca2"):
        certificates.make_authority(tmp_path / authority)
    for party, name in (("shuffler", "shuffler"), ("server", TRAINING_SERVER)):
        certificates.issue(tmp_path / "ca", tmp_path / party, name, client=True)
    (tmp_path / "server" / "seal.key").write_text(PRIVATE.hex())
    return tmp_path


@pytest.fixture()
def nodes() -> Nodes:
    """Both nodes answer a stage "train" of `wanted()`: users 100 to 107."""
    return Nodes({node: answer(wanted(), ENROLLED[node].users, seed=i) for i, node in enumerate((ONE, TWO))})


@contextmanager
def shuffler(files: Path, nodes: Nodes, *, port: int = 0, origins: bool = True) -> Iterator[int]:
    """A shuffler at work, without Flower; its port."""
    place, over = files / "shuffler", threading.Event()
    with Store(place / "store.sqlite", origins=place / "origins" if origins else None) as store:
        rounds = Rounds(store, ENROLLED, nodes.ask, OPENS)
        with serving(
            rounds,
            certificate=place / "cert.pem",
            key=place / "cert.key",
            root_certificates=files / "ca" / "ca.pem",
            on_opened=lambda: None,
            port=port,
        ) as (at, _):
            thread = threading.Thread(target=lambda: work(rounds, over))
            thread.start()
            try:
                yield at
            finally:
                over.set()
                thread.join()


def work(rounds: Rounds, over: threading.Event) -> None:
    while not over.wait(0.01):
        rounds.work()


def line(files: Path, port: int, authority: str = "ca") -> Shuffler:
    return Shuffler(
        f"127.0.0.1:{port}",
        root_certificates=files / authority / "ca.pem",
        certificate=files / "server" / "cert.pem",
        key=files / "server" / "cert.key",
    )


def users(files: Path, shuffler: Any) -> RemoteShuffler:
    return RemoteShuffler(shuffler, seal_keys=[files / "server" / "seal.key"], timeout=20.0)


def collect(who: RemoteShuffler, **changes: Any) -> Collected:
    return who.collect(wanted(**({"arm": "some-arm"} | changes)))


def whose(files: Path, who: RemoteShuffler, stage: str = "train") -> list[int]:
    """The users of a batch's rows, ascending, as whoever runs the study can tell, and the training server cannot."""
    return sorted(np.load(files / "shuffler" / "origins" / f"{stage}.npy")[who.places[stage]][:, 0])


def payload(collected: Collected) -> np.ndarray:
    return np.concatenate([next(iter(r.payload.values())).ravel() for r in collected.batch.releases])


def test_a_stage_gives_its_batch_and_the_same_one_again(files: Path, nodes: Nodes, lines: list[str]) -> None:
    with shuffler(files, nodes) as port, line(files, port) as there:
        server = users(files, there)
        first, again = collect(server), collect(users(files, there))
    assert (first.batch.users, len(first.batch.releases[0]), first.dropped, first.errors) == (8, 8, {}, {})
    assert whose(files, server) == list(range(100, 108))
    assert (payload(first) == payload(again)).all()
    assert len(nodes.asked) == 1 and nodes.asked[0][0].arm == "" and nodes.asked[0][2] == 20.0
    assert all(text.startswith("stage train: ") for text in lines)


def test_without_origins_nobody_knows_whose_rows_are(files: Path, nodes: Nodes) -> None:
    with shuffler(files, nodes, origins=False) as port, line(files, port) as there:
        server = users(files, there)
        assert collect(server).batch.users == 8 and len(server.places["train"]) == 8
    assert not (files / "shuffler" / "origins").exists()


def test_a_batch_of_too_few_users_is_discarded(files: Path, nodes: Nodes) -> None:
    asked = {"stage": "small", "minimum_users": 5}
    nodes.replies = {ONE: answer(wanted(**asked), ENROLLED[ONE].users), TWO: "code 5"}
    with shuffler(files, nodes) as port, line(files, port) as there:
        found = collect(users(files, there), **asked)
    assert found.batch.releases == () and found.batch.users == 0
    assert found.batch.discarded == "4 users are fewer than the 5 a batch must have"
    assert found.errors == {"the node is not there": 1}


def test_rows_that_come_to_nothing_are_taken_off_the_users(files: Path, nodes: Nodes) -> None:
    reply = nodes.replies[ONE]
    rows = reply.rows.copy()
    rows[1, -1] ^= 1
    nodes.replies[ONE] = replace(reply, rows=rows)
    with shuffler(files, nodes) as port, line(files, port) as there:
        server = users(files, there)
        found = collect(server)
    assert found.batch.users == 7 and found.dropped == {"does not open": 1}
    assert whose(files, server) == [100, *range(102, 108)]


def test_a_batch_that_is_replayed_or_exchanged_is_refused(files: Path, nodes: Nodes) -> None:
    with shuffler(files, nodes) as port, line(files, port) as there:
        collect(users(files, there))
    rows = np.concatenate([reply.rows for reply in nodes.replies.values()])

    class Hostile:
        """It delivers the same rows for every stage."""

        def batch(self, *_: Any, **__: Any) -> Delivered:
            return Delivered(batch_identity(rows.tobytes()), rows, 8, 0, {}, {})

    hostile = users(files, Hostile())
    with pytest.raises(ValueError, match="another one was taken for it before"):
        collect(hostile)
    assert collect(hostile, stage="later").dropped == {"does not open": 8}
    with pytest.raises(ValueError, match="it is replayed, and was taken for stage 'later'"):
        collect(hostile, stage="third")


def test_a_shuffler_that_starts_late_is_waited_for(files: Path, nodes: Nodes) -> None:
    port, found = free_port(), []

    def ask() -> None:
        with line(files, port) as there:
            found.append(collect(users(files, there)))

    thread = threading.Thread(target=ask)
    thread.start()
    with shuffler(files, nodes, port=port):
        thread.join()
    assert found[0].batch.users == 8


def test_a_shuffler_that_is_not_there_is_one_line(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shuffler_client, "PATIENCE", 0.05)
    port = free_port()
    with line(files, port) as there, pytest.raises(UserError, match=rf"^--shuffler 127\.0\.0\.1:{port}: cannot be"):
        collect(users(files, there))


def test_a_shuffler_of_another_authority_is_not_spoken_to(files: Path, nodes: Nodes) -> None:
    refused = pytest.raises(UserError, match=r"^--shuffler .*: cannot be reached \(.*certificate")
    with shuffler(files, nodes) as port, line(files, port, authority="ca2") as there, refused:
        collect(users(files, there))
    assert nodes.asked == []


def test_files_that_are_no_certificates_are_one_line(files: Path) -> None:
    (files / "server" / "cert.pem").write_text("none")
    with pytest.raises(UserError, match="are no authority's certificate, and a certificate and its key"):
        line(files, 1)
