"""Keys and certificates of a deployment, made on the spot: an authority, TLS certificates, SuperNodes' keys.

They are a prototype's: one authority, no revocation, good for `DAYS` days. Files with keys are only ever readable by
their owner, from the moment they exist.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import secrets
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from client.device.roles import uri_of

#: What a machine calls itself.
LOCAL = ("localhost", "127.0.0.1")
#: How long certificates are good for.
DAYS = 30
#: They begin this much earlier: clocks of several machines differ.
_SLACK = datetime.timedelta(hours=1)
#: A file of this many bytes is what whoever runs a SuperLink's tasks shows it.
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


def request(folder: Path) -> None:
    """Write a new key `cert.key`, which stays in the folder, and `cert.csr`, by which an authority signs its public
    half (PKCS #10). It says nothing else: who its owner is, the authority is told otherwise."""
    key = ec.generate_private_key(ec.SECP256R1())
    folder.mkdir(parents=True, exist_ok=True)
    _write_key(folder / "cert.key", key)
    asked = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(key, hashes.SHA256())
    (folder / "cert.csr").write_bytes(asked.public_bytes(serialization.Encoding.PEM))


def sign(
    authority: Path, request: Path, folder: Path, name: str, *, hosts: Sequence[str] = LOCAL, client: bool = False
) -> None:
    """Write a certificate `cert.pem`, for what `request` has asked, and the authority's `ca.pem`, into a folder.

    name: which party it is, the subject's common name and its role (`client.device.roles`). hosts: the names and
    addresses that it is good for, as a server's; client: whether it may also stand for a client. authority: the folder
    that `make_authority` wrote. Raises ValueError, one line, where a file is not what it should be; OSError.
    """
    try:
        issuer = x509.load_pem_x509_certificate((authority / "ca.pem").read_bytes())
        signer = serialization.load_pem_private_key((authority / "ca.key").read_bytes(), None)
    except (ValueError, TypeError):
        signer = None
    if not isinstance(signer, ec.EllipticCurvePrivateKey):
        raise ValueError(f"{authority}: holds no authority's ca.pem and ca.key")
    try:
        asked = x509.load_pem_x509_csr(request.read_bytes())
        known = asked.is_signature_valid and isinstance(key := asked.public_key(), ec.EllipticCurvePublicKey)
    except (ValueError, x509.InvalidVersion, UnsupportedAlgorithm):
        known = False
    if not known:
        raise ValueError(f"{request}: is no request for a certificate (PEM, PKCS #10) that its own key has signed")
    uses = [ExtendedKeyUsageOID.SERVER_AUTH, *([ExtendedKeyUsageOID.CLIENT_AUTH] if client else [])]
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    names = [*map(_host, hosts), x509.UniformResourceIdentifier(uri_of(name))]
    certificate = (
        _certificate(_name(name), issuer.subject, key)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(identifier, critical=False)
        .sign(signer, hashes.SHA256())
    )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cert.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    (folder / "ca.pem").write_bytes(issuer.public_bytes(serialization.Encoding.PEM))


def issue(
    authority: Path, folder: Path, name: str, *, hosts: Sequence[str] = LOCAL, client: bool = False
) -> None:
    """Both at once, for a party of this machine: its key `cert.key` and its certificate, as `request` and `sign`."""
    request(folder)
    sign(authority, folder / "cert.csr", folder, name, hosts=hosts, client=client)


def node_keys(folder: Path) -> None:
    """Write a SuperNode's keys into a folder: `node.key`, which stays there, and `node.pub`, which a SuperLink's
    operator registers. OpenSSH's format and P-384, as Flower wants them."""
    key = ec.generate_private_key(ec.SECP384R1())
    folder.mkdir(parents=True, exist_ok=True)
    _write_key(folder / "node.key", key, serialization.PrivateFormat.OpenSSH)
    (folder / "node.pub").write_bytes(
        key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    )


def make_secret(folder: Path) -> None:
    """Write `secret`: what a SuperLink and whoever runs its tasks, here the shuffler, share."""
    folder.mkdir(parents=True, exist_ok=True)
    write_private(folder / "secret", secrets.token_bytes(_SECRET_BYTES))


def write_private(path: Path, data: bytes) -> None:
    """Write a new file that only its owner may ever read. Raises FileExistsError where there is one."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)


def _certificate(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SLACK)
        .not_valid_after(now + datetime.timedelta(days=DAYS))
    )


def _usage(**uses: bool) -> x509.KeyUsage:
    known = (
        "digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
        "key_cert_sign", "crl_sign", "encipher_only", "decipher_only",
    )  # fmt: skip
    return x509.KeyUsage(**({use: False for use in known} | uses))


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _write_key(
    path: Path, key: ec.EllipticCurvePrivateKey,
    form: serialization.PrivateFormat = serialization.PrivateFormat.PKCS8,
) -> None:  # fmt: skip
    write_private(path, key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
