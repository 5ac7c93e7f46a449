"""The command that serves a device: addresses, files, servers and certificates that are not what they should be."""

from __future__ import annotations

import pytest

from sottovoce.cli import main as cli
from sottovoce.deployment import certificates
from tests.support.clients import make_node
from tests.support.fake_superlink import Fake

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:pathspec.*")


def command(node, keys, address="127.0.0.1:1", **changes):
    options = {"superlink": address, "root-certificates": keys / "ca.pem", "key": keys / "node.key"}
    options |= {name.replace("_", "-"): value for name, value in changes.items()}
    return ["device", "serve", str(node), *(part for name, v in options.items() for part in (f"--{name}", str(v)))]


def complaint(arguments, capsys):
    assert cli.main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    return line


@pytest.mark.parametrize(
    "address",
    ["", "localhost", "localhost:", "localhost:0", "localhost:65536", "https://x:1", "a b:1", "[::1:5", "x:٣", "::1:5"],
)
def test_a_malformed_address_is_one_line(keys, tmp_path, capsys, address):
    node = make_node(tmp_path / "node", seed=None)
    assert "must be HOST:PORT" in complaint(command(node, keys, address), capsys)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"key": "missing"}, "--key"),
        ({"key": "ca.pem"}, "no elliptic-curve private key"),
        ({"key": "node.pub"}, "no elliptic-curve private key"),
        ({"key": "cert.key"}, "no elliptic-curve private key"),
        ({"key": "ca"}, "cannot be read"),
        ({"root_certificates": "missing"}, "--root-certificates"),
        ({"root_certificates": "node.pub"}, "holds no certificate"),
    ],
)
def test_files_that_are_missing_or_something_else_are_one_line(keys, tmp_path, capsys, changes, says):
    node = make_node(tmp_path / "node", seed=None)
    changes = {name: keys / value for name, value in changes.items()}
    assert says in complaint(command(node, keys, **changes), capsys)


def test_a_folder_that_is_no_devices_is_one_line(keys, tmp_path, capsys):
    assert "node.json" in complaint(command(tmp_path / "missing", keys), capsys)
    assert "node.json" in complaint(command(tmp_path, keys), capsys)
    simulated = make_node(tmp_path / "simulated")
    assert "simulation" in complaint(command(simulated, keys), capsys)
    assert not (tmp_path / "missing").exists()


def test_a_superlink_that_does_not_know_the_key_is_one_line(fake, keys, tmp_path, capsys):
    fake.says["activate-node"] = (412, {}, b'{"code": 2004, "detail": "secret"}')
    node = make_node(tmp_path / "node", seed=None)
    line = complaint(command(node, keys, fake.address), capsys)
    assert "does not accept this node's key" in line and "secret" not in line


def test_another_server_is_one_line(fake, keys, tmp_path, capsys):
    fake.says["activate-node"] = (404, {}, b"secret")
    node = make_node(tmp_path / "node", seed=None)
    line = complaint(command(node, keys, fake.address), capsys)
    assert "is no SuperLink" in line and "secret" not in line


def test_a_certificate_of_another_authority_is_one_line(fake, keys, tmp_path, capsys):
    certificates.make_authority(tmp_path / "ca")
    node = make_node(tmp_path / "node", seed=None)
    line = complaint(command(node, keys, fake.address, root_certificates=tmp_path / "ca" / "ca.pem"), capsys)
    assert "certificate is not good for it" in line
    assert not fake.asked


def test_a_certificate_of_another_host_is_one_line(keys, tmp_path, capsys):
    certificates.issue(keys / "ca", tmp_path / "elsewhere", "superlink", hosts=("elsewhere.example",))
    fake = Fake(tmp_path / "elsewhere")
    try:
        node = make_node(tmp_path / "node", seed=None)
        assert "certificate is not good for it" in complaint(command(node, keys, fake.address), capsys)
    finally:
        fake.close()
    assert not fake.asked


def test_a_plaintext_server_is_one_line(keys, tmp_path, capsys):
    fake = Fake(keys, tls=False)
    try:
        node = make_node(tmp_path / "node", seed=None)
        assert "does not speak TLS" in complaint(command(node, keys, fake.address), capsys)
    finally:
        fake.close()
    assert not fake.asked


# --- certificates ---


def test_keys_are_their_owners_alone(keys):
    found = [path for path in keys.rglob("*") if path.suffix == ".key"]
    assert len(found) == 3
    assert {path.stat().st_mode & 0o777 for path in found} == {0o600}


def test_a_key_is_never_written_over(keys):
    with pytest.raises(FileExistsError):
        certificates.node_keys(keys)
