"""Keys and certificates of a deployment: an authority, TLS certificates, keys of SuperNodes.

They are a prototype's: one authority, no revocation, valid for `DAYS` days. From the moment they exist, only their
owner can read files with keys.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import secrets
from collections.abc import Mapping, Sequence
from inspect import signature
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from client.device.https import MODEL, SHUFFLER, SUPERLINK, host_and_port, uri_of
from mechanisms.messages import signature as signing
from mechanisms.messages.sealed import generate_keys
from simulations.errors import UserError
from sottovoce.deployment.shuffler_service import TRAINING_SERVER

#: Names of the local machine.
LOCAL = ("localhost", "127.0.0.1")
#: Days for which certificates are valid.
DAYS = 30
#: Certificates are valid this much earlier, because clocks of several machines differ.
_SLACK = datetime.timedelta(hours=1)
#: Size of the shared secret by which a task runner identifies itself to a SuperLink.
_SECRET_BYTES = 32


def make_authority(folder: Path) -> None:
    """Write an authority into a folder: its certificate `ca.pem`, and its key `ca.key`, which signs others."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name("Sottovoce deployment")
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    certificate = (
        _certificate(name, name, key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(key_cert_sign=True, crl_sign=True), critical=True)
        .add_extension(identifier, critical=False)
        .sign(key, hashes.SHA256())
    )
    folder.mkdir(parents=True, exist_ok=True)
    _write_key(folder / "ca.key", key)
    (folder / "ca.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


def issue(authority: Path, folder: Path, name: str, *, hosts: Sequence[str] = LOCAL, client: bool = False) -> None:
    """Write a key `cert.key`, its certificate `cert.pem`, and the authority's `ca.pem` into a party's folder.

    Args:
        authority: Folder that `make_authority` wrote.
        folder: Folder for the key and the certificates.
        name: Party: the subject's common name and its role (`client.device.https`).
        hosts: Names and addresses for which a server's certificate is valid.
        client: Whether it is also valid for a client.
    """
    issuer = x509.load_pem_x509_certificate((authority / "ca.pem").read_bytes())
    signer = serialization.load_pem_private_key((authority / "ca.key").read_bytes(), None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    uses = [ExtendedKeyUsageOID.SERVER_AUTH, *([ExtendedKeyUsageOID.CLIENT_AUTH] if client else [])]
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    names = [*map(_host, hosts), x509.UniformResourceIdentifier(uri_of(name))]
    certificate = (
        _certificate(_name(name), issuer.subject, key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(identifier, critical=False)
        .sign(signer, hashes.SHA256())
    )
    folder.mkdir(parents=True, exist_ok=True)
    _write_key(folder / "cert.key", key)
    (folder / "cert.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    (folder / "ca.pem").write_bytes(issuer.public_bytes(serialization.Encoding.PEM))


def node_keys(folder: Path) -> None:
    """Write a SuperNode's keys into a folder: `node.key`, which stays there, and `node.pub`.

    A SuperLink's operator registers the latter. The keys are in OpenSSH's format and P-384, as Flower requires.
    """
    key = ec.generate_private_key(ec.SECP384R1())
    folder.mkdir(parents=True, exist_ok=True)
    _write_key(folder / "node.key", key, serialization.PrivateFormat.OpenSSH)
    (folder / "node.pub").write_bytes(
        key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    )


def write_private(path: Path, data: bytes) -> None:
    """Write a new file that only its owner can read, from the start.

    Raises:
        FileExistsError: The file exists.
    """
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)


def _certificate(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    time = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(time - _SLACK)
        .not_valid_after(time + datetime.timedelta(days=DAYS))
    )


def _usage(**uses: bool) -> x509.KeyUsage:
    return x509.KeyUsage(**(dict.fromkeys(signature(x509.KeyUsage).parameters, False) | uses))


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _write_key(
    path: Path, key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat = serialization.PrivateFormat.PKCS8
) -> None:
    write_private(path, key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))


# --- keys of all parties


#: Parties that serve by a certificate.
SERVERS = (SUPERLINK, SHUFFLER, MODEL)
#: Parties to whom devices seal, each by its own key.
SEALED = (TRAINING_SERVER, SHUFFLER, MODEL)
#: Folder of each party with a certificate, where one place holds all of them, beside "ca", "publisher", "enrolment".
FOLDERS = {SUPERLINK: "superlink", SHUFFLER: "shuffler", MODEL: "predict", TRAINING_SERVER: "server"}


def make_keys(folder: Path, *, nodes: int, hosts: Mapping[str, Sequence[str]]) -> None:
    """Write keys and certificates of all parties of a deployment, each in the party's folder.

    Args:
        folder: Folder of the deployment.
        nodes: Number of devices.
        hosts: Names and addresses of each party's certificate, beside those of the local machine.

    Raises:
        FileExistsError: There are keys already.
    """
    make_authority(folder / "ca")
    for party, place in FOLDERS.items():
        names = (*LOCAL, *hosts.get(party, ()))
        issue(folder / "ca", folder / place, party, hosts=names, client=party == TRAINING_SERVER)
    # a SuperLink shares it with its task runner, here the shuffler
    write_private(folder / FOLDERS[SUPERLINK] / "secret", secrets.token_bytes(_SECRET_BYTES))
    for party in SEALED:
        _pair(folder / FOLDERS[party], "seal", generate_keys())
    for place in ("publisher", "enrolment"):
        _pair(folder / place, "sign", signing.generate_keys())
    for i in range(nodes):
        node_keys(folder / "nodes" / str(i))


def hosts_by_party(given: Sequence[str]) -> dict[str, list[str]]:
    """Return each party's hosts, from PARTY=HOST.

    Raises:
        UserError: An entry is not PARTY=HOST.
    """
    hosts: dict[str, list[str]] = {}
    for item in given:
        party, _, host = item.partition("=")
        try:
            host, _ = host_and_port(f"[{host}]:1" if host.count(":") > 1 and "[" not in host else f"{host}:1", "--host")
        except ValueError:
            party = ""
        if party not in SERVERS:
            raise UserError(f"--host {item}: must be PARTY=HOST, with a party of {', '.join(SERVERS)}")
        hosts.setdefault(party, []).append(host)
    return hosts


def _pair(folder: Path, name: str, keys: tuple[bytes, bytes]) -> None:
    private, public = keys
    folder.mkdir(parents=True, exist_ok=True)
    write_private(folder / f"{name}.key", f"{private.hex()}\n".encode())
    (folder / f"{name}.pub").write_text(f"{public.hex()}\n")
