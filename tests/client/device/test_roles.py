"""A certificate is good for the party that it was signed for, whatever hosts it names."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from flwr.app import RecordDict

from client.device.fleet import Fleet, Lost
from client.device.https import ServerError
from client.device.model import Model
from client.device.roles import MODEL, SHUFFLER, SUPERLINK
from simulations.errors import UserError
from sottovoce.deployment import certificates, shuffler_client, superlink
from sottovoce.deployment.party_keys import SERVERS, make_keys, make_own_keys, sign_request
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


def test_each_party_makes_its_own_keys_and_the_authority_says_who_it_is(tmp_path: Path) -> None:
    """No private key leaves the folder where it was made, and what a request says of its owner is nothing."""
    for party in ("authority", SUPERLINK, MODEL, TRAINING_SERVER, "publisher", "enrolment", "node"):
        make_own_keys(tmp_path / party, party)
    there = {path.parent.name: {p.name for p in path.parent.iterdir()} for path in tmp_path.rglob("*.key")}
    assert there == {
        "authority": {"ca.key", "ca.pem"},
        SUPERLINK: {"cert.key", "cert.csr", "secret"},
        MODEL: {"cert.key", "cert.csr", "seal.key", "seal.pub"},
        TRAINING_SERVER: {"cert.key", "cert.csr", "seal.key", "seal.pub"},
        "publisher": {"sign.key", "sign.pub"},
        "enrolment": {"sign.key", "sign.pub"},
        "node": {"node.key", "node.pub"},
    }
    asked, signed = tmp_path / SUPERLINK / "cert.csr", tmp_path / "signed"
    sign_request(tmp_path / "authority", asked, signed, SUPERLINK, ["localhost", "127.0.0.1"])
    assert {path.name for path in signed.iterdir()} == {"cert.pem", "ca.pem"}
    (signed / "cert.key").write_bytes((tmp_path / SUPERLINK / "cert.key").read_bytes())
    fake = Fake(signed)
    fleet = Fleet(fake.address, signed / "ca.pem", tmp_path / "node" / "node.key")
    fleet.activate(None)
    fleet.close()
    fake.close()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"party": "publisher"}, "needs no certificate"),
        ({"hosts": ()}, "is reached at a host"),
        ({"request": "ca.pem"}, "is no request for a certificate"),
        ({"request": "none"}, "No such file"),
        ({"authority": "server"}, "No such file"),
    ],
)
def test_what_is_not_signed_is_one_line(parties: Path, tmp_path: Path, change: dict[str, str], words: str) -> None:
    (tmp_path / "ca.pem").write_bytes((parties / "ca" / "ca.pem").read_bytes())
    given = {"authority": "ca", "party": SHUFFLER, "hosts": ("a",)} | change
    request = tmp_path / given["request"] if "request" in change else parties / "shuffler" / "cert.csr"
    with pytest.raises(UserError, match=words) as caught:
        sign_request(parties / given["authority"], request, tmp_path / "out", given["party"], given["hosts"])
    assert "\n" not in str(caught.value) and not (tmp_path / "out").exists()


def test_a_request_with_any_byte_changed_is_one_line(parties: Path, tmp_path: Path) -> None:
    """Of the request itself: in its PEM text a bit may be a line's end, which reads as before."""
    asked = x509.load_pem_x509_csr((parties / "shuffler" / "cert.csr").read_bytes()).public_bytes(Encoding.DER)
    for byte in range(len(asked)):
        data = bytearray(asked)
        data[byte] ^= 1 << byte % 8
        ends = (b"-----%s CERTIFICATE REQUEST-----" % word for word in (b"BEGIN", b"END"))
        lines = next(ends), base64.b64encode(data), *ends, b""
        (tmp_path / "damaged").write_bytes(b"\n".join(lines))
        with pytest.raises(UserError, match="is no request for a certificate") as caught:
            sign_request(parties / "ca", tmp_path / "damaged", tmp_path / "out", SHUFFLER, ("a",))
        assert "\n" not in str(caught.value) and not (tmp_path / "out").exists()
