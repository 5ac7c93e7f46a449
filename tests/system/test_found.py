"""What fuzzing led by coverage has found (`tests/system/test_guided.py`), each with its one line now."""

from __future__ import annotations

import hashlib
import json
import shutil
import tracemalloc
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest

from client.device import fleet
from client.device.bundle import MANIFEST, SIGNATURE, Keys, Parts, open_bundle, write_bundle
from client.device.signed_request import read_request, write_request
from client.models import encoder as encoders
from client.node import load_node, write_node
from client.policy import Policy
from simulations.errors import UserError
from sottovoce.deployment import certificates
from sottovoce.deployment import shuffler_client as client
from sottovoce.deployment.shuffler_client import Shuffler
from tests.support.message_parsers import POLICY, SIGNER, small
from tests.support.party_parsers import saying

DEEP = "[" * 100_000


def test_a_node_file_that_is_too_deep(tmp_path: Path) -> None:
    write_node(tmp_path, policy=Policy(total=9.0))
    (tmp_path / "node.json").write_text(DEEP)
    with pytest.raises(ValueError, match=r"cannot be read as JSON$"):
        load_node(tmp_path)


@pytest.mark.parametrize("key", ["total", "delta", "embedding", "window"])
def test_a_policy_with_a_number_that_no_float_can_be(key: str) -> None:
    with pytest.raises(ValueError, match=f"^policy: {key} must be"):
        Policy.from_dict({key: 10**400})


def test_a_question_of_few_bytes_takes_little_memory(tmp_path: Path) -> None:
    """It took 128 MB, as the longest may."""
    write_request(tmp_path / "a.question", small())
    tracemalloc.start()
    try:
        read_request(tmp_path / "a.question")
        assert tracemalloc.get_traced_memory()[1] < 2**22
    finally:
        tracemalloc.stop()


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundle")
    (folder / "encoder").mkdir()
    for name in encoders.FILES:
        (folder / "encoder" / name).write_text("not read")
    wanted = small(encoder=encoders.identity(folder / "encoder"))
    keys = Keys(signer=SIGNER)
    return write_bundle(
        folder / "whole",
        wanted,
        POLICY,
        name="n",
        arm="a",
        classes=("a", "b", "c")[: wanted.classes],
        made_by="tests",
        parts=Parts(folder / "encoder"),
        keys=keys,
    ).folder


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("request.json", b"3"),
        ("request.json", DEEP.encode()),
        ("policy.json", DEEP.encode()),
        ("policy.json", None),
        ("policy.json", b'{"total": 1' + b"0" * 400 + b"}"),
        ("m1.npy", b"PK\x03\x04"),
        ("m1.npy", b"\x93NUMPY\x01\x00v\x00{'descr': ("),
        ("m1.npy", b"\x93NUMPY\x01\x00\x10\x00" + b"{" * 16),
        ("x" * 300, b""),
    ],
    ids=[
        "no table",
        "deep request",
        "deep policy",
        "no policy",
        "a huge number",
        "an archive",
        "half a head",
        "braces",
        "long name",
    ],
)
def test_a_publisher_s_file_that_its_reader_does_not_survive(
    bundle: Path, tmp_path: Path, name: str, content: bytes | None
) -> None:
    """Every hash is right: another kind of exception than ValueError came out."""
    copy = Path(shutil.copytree(bundle, tmp_path / "copy"))
    manifest = json.loads((copy / MANIFEST).read_text()) | {"publisher": None}
    if content is None:
        (copy / name).unlink()
        del manifest["files"][name]
    else:
        manifest["files"][name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        if len(name) < 256:
            (copy / name).write_bytes(content)
    (copy / MANIFEST).write_text(json.dumps(manifest))
    (copy / SIGNATURE).unlink()
    with pytest.raises(ValueError, match=r"^bundle: [^\n]+$"):
        open_bundle(copy)


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    certificates.make_authority(tmp_path / "ca")
    certificates.issue(tmp_path / "ca", tmp_path / "pair", "training-server", client=True)
    return tmp_path


def line_of(keys: Path, *answers: httpx.Response) -> fleet.Fleet:
    """A connection to a SuperLink that gives these answers, one after another."""
    certificates.node_keys(keys / "node")
    (key,) = [p for p in (keys / "node").iterdir() if p.suffix != ".pub"]
    line, left = fleet.Fleet("a:1", keys / "ca" / "ca.pem", key), list(answers)
    line._client._client = httpx.Client(transport=httpx.MockTransport(lambda request: left.pop(0)))
    return line


def test_an_error_of_a_superlink_that_is_too_deep(keys: Path) -> None:
    with pytest.raises(fleet.Unusable, match="HTTP status 500"):
        line_of(keys, httpx.Response(500, text=DEEP)).receive()


def test_a_superlink_that_says_the_last_second_of_the_calendar(keys: Path) -> None:
    """No time is behind it, so that nothing could be signed any more, whatever the SuperLink said from then on."""
    refused = httpx.Response(401, headers={"date": "Fri, 31 Dec 9999 23:59:59 GMT"})
    line = line_of(keys, refused, httpx.Response(200))
    with pytest.raises(fleet.Rejected):
        line.receive()
    assert line.receive() is None


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (202, '{"users": "many"}'),
        (202, '{"users": [1]}'),
        (202, DEEP[:60_000]),
        (200, DEEP[:60_000] + "\n"),
        (200, '{"rows": Infinity, "row_bytes": 4}\n'),
        (200, '{"rows": 0, "row_bytes": 4, "batch": "", "users": Infinity}\n'),
    ],
    ids=["users that are a word", "users that are a list", "deep", "a deep head", "endless rows", "endless users"],
)
def test_a_shuffler_that_says_what_it_may_not(
    keys: Path, monkeypatch: pytest.MonkeyPatch, status: int, said: str
) -> None:
    def patiently(call: Callable[[], Any]) -> Any:
        return b"" if next(steps) == 0 else call()  # the stage was opened

    steps = count()
    monkeypatch.setattr(client, "LOOK", 0.0)
    data = f"HTTP/1.1 {status} OK\r\nContent-Length: {len(said)}\r\n\r\n{said}".encode()
    pair = keys / "pair"
    with Shuffler(
        "a:1", root_certificates=keys / "ca" / "ca.pem", certificate=pair / "cert.pem", key=pair / "cert.key"
    ) as shuffler:
        shuffler._client = httpx.Client(base_url="https://a:1", transport=saying(data))
        shuffler._patiently = patiently  # type: ignore[method-assign]
        with pytest.raises(UserError, match=r"is no shuffler of this version; is it the right port\?$"):
            shuffler.batch("train", b"", row_bytes=4, timeout=1.0)
