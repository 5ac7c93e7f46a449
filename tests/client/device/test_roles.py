"""A certificate is good for the party that it was signed for, whatever hosts it names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from flwr.app import RecordDict

from client.device.fleet import Fleet, Lost
from client.device.https import ServerError
from client.device.model import Model
from client.device.roles import MODEL, SHUFFLER, SUPERLINK
from simulations.errors import UserError
from sottovoce.deployment import certificates, shuffler_client, superlink
from sottovoce.deployment.party_keys import SERVERS, make_keys
from sottovoce.deployment.shuffler_client import Shuffler
from sottovoce.deployment.shuffler_service import TRAINING_SERVER
from tests.simulations.shuffler.test_replies import grid_of
from tests.support.fake_superlink import Fake

FOLDER = {SUPERLINK: "superlink", SHUFFLER: "shuffler", MODEL: "predict", TRAINING_SERVER: "server", None: "old"}


@pytest.fixture(scope="module")
def parties(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All of one authority and of one host; and one made before certificates said whose they are."""
    folder = tmp_path_factory.mktemp("parties")
    make_keys(folder, nodes=1, hosts={})
    with pytest.MonkeyPatch.context() as before:
        before.setattr(certificates, "uri_of", lambda name: f"urn:other:{name}")
        certificates.issue(folder / "ca", folder / "old", "superlink")
    return folder


@pytest.fixture(params=[*FOLDER])
def shown(request: pytest.FixtureRequest, parties: Path) -> Iterator[tuple[str | None, Fake]]:
    """Whose certificate is shown, and who shows it."""
    fake = Fake(parties / FOLDER[request.param])
    yield request.param, fake
    fake.close()


def test_whoever_connects_speaks_to_the_party_it_means(
    shown: tuple[str | None, Fake], parties: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device, the shuffler and the operator to a SuperLink, a device to the model, the training server to the
    shuffler: to every other party one line, and not a byte behind the handshake."""
    monkeypatch.setattr(shuffler_client, "PATIENCE", 0.0)
    role, fake = shown
    ca, mine = parties / "ca" / "ca.pem", parties / "server"

    def of_device() -> None:
        Fleet(fake.address, ca, parties / "nodes" / "0" / "node.key").activate(None)

    def of_shuffler() -> None:
        grid = grid_of(fake.address, ca)
        monkeypatch.setattr(grid._retry_invoker, "max_tries", 1)
        list(superlink.ask(grid, RecordDict(), {}, timeout=0))
        list(grid.get_nodes())

    def of_user() -> None:
        with Model(f"https://{fake.address}", ca, role=MODEL) as model:
            model.get("/v1/question", limit=100)

    def of_server() -> None:
        with Shuffler(
            fake.address, root_certificates=ca, certificate=mine / "cert.pem", key=mine / "cert.key"
        ) as there:
            there._patiently(lambda: there._sent("GET", "/", 0))

    for means, call, error in (
        (SUPERLINK, of_device, Lost),
        (SUPERLINK, lambda: superlink.register(fake.address, ca, parties / "nodes" / "0" / "node.pub"), UserError),
        (SUPERLINK, of_shuffler, Exception),
        (MODEL, of_user, ServerError),
        (SHUFFLER, of_server, UserError),
    ):
        if means == role:
            continue
        with pytest.raises(error) as caught:
            call()
        assert "\n" not in str(caught.value)
        if means != SUPERLINK or call is of_device:
            assert f"it is not a {means}'s; have it signed anew as one" in str(caught.value)
    if role not in SERVERS:
        assert not fake.asked
