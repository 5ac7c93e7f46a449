"""The command that serves a device: addresses, files, servers and certificates that are not what they should be."""

from __future__ import annotations

import pytest

from sottovoce.cli import main as cli
from sottovoce.deployment import certificates
from tests.support.clients import make_node
from tests.support.fake_superlink import Fake

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:pathspec.*")


@pytest.fixture
def node(tmp_path):
    return make_node(tmp_path / "node", seed=None)


def command(node, keys, superlink="127.0.0.1:1", **changes):
    options = {"superlink": superlink, "root-certificates": keys / "ca.pem", "key": keys / "node.key"}
    options |= {name.replace("_", "-"): value for name, value in changes.items()}
    return ["device", "serve", str(node), *(part for name, v in options.items() for part in (f"--{name}", str(v)))]


def complaint(arguments, capsys):
    assert cli.main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    return line


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        *(({"superlink": x}, "HOST:PORT") for x in ("localhost", "x:0", "x:65536", "https://x:1", "[::1:5", "x:٣")),
        ({"key": "ca.pem"}, "no elliptic-curve private key"),
        ({"key": "cert.key"}, "no elliptic-curve private key"),
        ({"key": "ca"}, "cannot be read"),
        ({"root_certificates": "missing"}, "--root-certificates"),
        ({"root_certificates": "node.pub"}, "holds no certificate"),
    ],
)
def test_an_address_or_file_that_is_none_is_one_line(keys, node, capsys, changes, words):
    changes = {name: value if name == "superlink" else keys / value for name, value in changes.items()}
    assert words in complaint(command(node, keys, **changes), capsys)


def test_a_folder_that_is_no_devices_is_one_line(keys, tmp_path, capsys):
    for folder, words in (
        ("missing", "node.json"),
        ("", "node.json"),
        (make_node(tmp_path / "simulated"), "simulation"),
    ):
        assert words in complaint(command(tmp_path / folder, keys), capsys)
    assert not (tmp_path / "missing").exists()


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ((412, {}, b'{"code": 2004, "detail": "secret"}'), "does not accept this node's key"),
        ((404, {}, b"secret"), "is no SuperLink"),
    ],
)
def test_a_server_that_refuses_is_one_line(fake, keys, node, capsys, said, words):
    fake.says["activate-node"] = said
    line = complaint(command(node, keys, fake.address), capsys)
    assert words in line and "secret" not in line


@pytest.mark.parametrize("what", ["another authority", "another host", "no TLS"])
def test_a_server_that_is_another_is_one_line_and_asked_nothing(keys, node, tmp_path, capsys, what):
    certificates.make_authority(tmp_path / "ca")
    certificates.issue(keys / "ca", tmp_path / "elsewhere", "superlink", hosts=("elsewhere.example",))
    trusted = tmp_path / "ca" if what == "another authority" else keys
    fake = Fake(tmp_path / "elsewhere" if what == "another host" else keys, tls=what != "no TLS")
    try:
        line = complaint(command(node, keys, fake.address, root_certificates=trusted / "ca.pem"), capsys)
    finally:
        fake.close()
    assert ("does not speak TLS" if what == "no TLS" else "certificate is not good for it") in line
    assert not fake.asked


# --- certificates ---


def test_keys_are_their_owners_alone(keys):
    found = [path for path in keys.rglob("*") if path.suffix == ".key"]
    assert len(found) == 3
    assert {path.stat().st_mode & 0o777 for path in found} == {0o600}


def test_a_key_is_never_written_over(keys):
    with pytest.raises(FileExistsError):
        certificates.node_keys(keys)
