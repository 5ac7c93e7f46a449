"""Private keys of a deployment's parties: each party makes its own, and an authority signs its request.

| party | makes | an authority signs |
| --- | --- | --- |
| authority | ca.key, ca.pem | itself |
| superlink | cert.key, cert.csr; secret, for the shuffler's operator alone | a server |
| shuffler | cert.key, cert.csr | a server |
| model | cert.key, cert.csr, seal.key, seal.pub | a server |
| training-server | cert.key, cert.csr, seal.key, seal.pub | a client |
| publisher | sign.key, sign.pub | nothing |
| enrolment | sign.key, sign.pub | nothing |
| node | node.key, node.pub | nothing: a SuperLink's operator registers it |
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from client.device.https import host_and_port
from client.device.roles import MODEL, SHUFFLER, SUPERLINK
from client.store.durable import replacing
from mechanisms.messages import signature
from mechanisms.messages.sealed import generate_keys, key_id, public_half
from simulations.errors import UserError
from sottovoce.deployment import certificates
from sottovoce.deployment.keys import read_key
from sottovoce.deployment.shuffler_service import TRAINING_SERVER

AUTHORITY, PUBLISHER, ENROLMENT, NODE = "authority", "publisher", "enrolment", "node"
#: Parties that serve by a certificate, and all parties with keys.
SERVERS = (SUPERLINK, SHUFFLER, MODEL)
PARTIES = (AUTHORITY, *SERVERS, TRAINING_SERVER, PUBLISHER, ENROLMENT, NODE)
#: Parties to whom devices seal, each by its own key.
SEALED = (TRAINING_SERVER, MODEL)
#: Folder of each party, where one place holds all of them.
FOLDERS = {
    AUTHORITY: "ca",
    SUPERLINK: "superlink",
    SHUFFLER: "shuffler",
    MODEL: "predict",
    TRAINING_SERVER: "server",
    PUBLISHER: "publisher",
    ENROLMENT: "enrolment",
}


def make_own_keys(folder: Path, party: str) -> None:
    """Write one party's own keys, by this module's table.

    Args:
        folder: Folder of the party.
        party: Name of the party.

    Raises:
        FileExistsError: There are keys already.
        UserError: There is no such party.
    """
    if party not in PARTIES:
        raise UserError(f"--party {party}: is none of {', '.join(PARTIES)}")
    folder.mkdir(parents=True, exist_ok=True)
    if party == AUTHORITY:
        certificates.make_authority(folder)
    elif party == NODE:
        certificates.node_keys(folder)
    elif party in (PUBLISHER, ENROLMENT):
        _pair(folder, "sign", signature.generate_keys())
    else:
        certificates.request(folder)
    if party == SUPERLINK:
        certificates.make_secret(folder)
    if party in SEALED:
        _pair(folder, "seal", generate_keys())


def renew_seal(folder: Path) -> tuple[str, str]:
    """Write a new pair of keys for sealing to seal.key and seal.pub.

    The old pair is kept as seal-ID.key and seal-ID.pub.

    Returns:
        The ids of the old and the new key.

    Raises:
        UserError: There is no old pair.
    """
    private = read_key(folder / "seal.key")
    old, new = key_id(public_half(private)), generate_keys()
    kept = [folder / f"seal-{old}.{end}" for end in ("key", "pub")]
    try:
        for path in kept:
            if not path.exists():  # a hard link: a key that opens earlier rows exists at every moment
                os.link(folder / f"seal.{path.suffix[1:]}", path)
        with replacing(folder / "seal.key", folder / "seal.pub") as drafts:
            for draft, key in zip(drafts, new, strict=True):
                draft.write_text(f"{key.hex()}\n")
    except OSError as error:
        raise UserError(f"{error.filename}: {error.strerror}") from None
    return old, key_id(new[1])


def sign_request(authority: Path, request: Path, folder: Path, party: str, hosts: Sequence[str]) -> None:
    """Write cert.pem and ca.pem for a party, as the authority.

    Args:
        authority: Folder of the authority.
        request: File of the party's request.
        folder: Folder for the certificates.
        party: Name of the party.
        hosts: Names and addresses at which the party is reached.

    Raises:
        UserError: A file or the party cannot be used. The message is one line.
    """
    if party not in (*SERVERS, TRAINING_SERVER):
        raise UserError(f"--party {party}: needs no certificate; {', '.join((*SERVERS, TRAINING_SERVER))} do")
    if party != TRAINING_SERVER and not hosts:
        raise UserError(f"--party {party}: is reached at a host; name it (--host)")
    try:
        certificates.sign(authority, request, folder, party, hosts=hosts, client=party == TRAINING_SERVER)
    except OSError as error:
        raise UserError(f"{error.filename}: {error.strerror}") from None
    except ValueError as error:
        raise UserError(str(error)) from None


def make_keys(folder: Path, *, nodes: int, hosts: Mapping[str, Sequence[str]]) -> None:
    """Write keys and certificates of all parties of a deployment, each in the party's folder.

    Args:
        folder: Folder of the deployment.
        nodes: Number of devices.
        hosts: Names and addresses of each party's certificate, beside those of the local machine.

    Raises:
        FileExistsError: There are keys already.
    """
    for party, name in FOLDERS.items():
        make_own_keys(folder / name, party)
    for party in (*SERVERS, TRAINING_SERVER):
        place = folder / FOLDERS[party]
        sign_request(folder / "ca", place / "cert.csr", place, party, (*certificates.LOCAL, *hosts.get(party, ())))
    for i in range(nodes):
        make_own_keys(folder / "nodes" / str(i), NODE)


def hosts_by_party(given: Sequence[str]) -> dict[str, list[str]]:
    """Return each party's hosts, from PARTY=HOST.

    Raises:
        UserError: An entry is not PARTY=HOST.
    """
    hosts: dict[str, list[str]] = {}
    for one in given:
        party, _, host = one.partition("=")
        try:
            host, _ = host_and_port(f"[{host}]:1" if host.count(":") > 1 and "[" not in host else f"{host}:1", "--host")
        except ValueError:
            party = ""
        if party not in SERVERS:
            raise UserError(f"--host {one}: must be PARTY=HOST, with a party of {', '.join(SERVERS)}")
        hosts.setdefault(party, []).append(host)
    return hosts


def _pair(folder: Path, name: str, keys: tuple[bytes, bytes]) -> None:
    private, public = keys
    certificates.write_private(folder / f"{name}.key", f"{private.hex()}\n".encode())
    (folder / f"{name}.pub").write_text(f"{public.hex()}\n")
