"""The private keys of a deployment's parties: each makes its own, where it is, and an authority signs what it asks.

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

from client.device.roles import MODEL, SHUFFLER, SUPERLINK
from client.store.durable import replacing
from mechanisms.messages import signature
from mechanisms.messages.sealed import generate_keys, key_id, public_half
from simulations.errors import UserError
from sottovoce.deployment import certificates
from sottovoce.deployment.keys import read_key
from sottovoce.deployment.shuffler_service import TRAINING_SERVER

AUTHORITY, PUBLISHER, ENROLMENT, NODE = "authority", "publisher", "enrolment", "node"
#: Who is served by a certificate, and all who have keys.
SERVERS = (SUPERLINK, SHUFFLER, MODEL)
PARTIES = (AUTHORITY, *SERVERS, TRAINING_SERVER, PUBLISHER, ENROLMENT, NODE)
#: To whom devices seal, each by a key of its own.
SEALED = (TRAINING_SERVER, MODEL)
#: Each party's folder, where one place holds all of them.
FOLDERS = {AUTHORITY: "ca", SUPERLINK: "superlink", SHUFFLER: "shuffler", MODEL: "predict", TRAINING_SERVER: "server",
           PUBLISHER: "publisher", ENROLMENT: "enrolment"}  # fmt: skip


def make_own_keys(folder: Path, party: str) -> None:
    """What one party makes where it is, as the table above has it. Raises FileExistsError where there is some, and
    UserError for another party."""
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
    """Another pair to seal to in seal.key and seal.pub; the one that was there goes on as seal-ID.key and seal-ID.pub.

    Returns the ids of the old and the new. Raises UserError where there is none.
    """
    private = read_key(folder / "seal.key")
    old, new = key_id(public_half(private)), generate_keys()
    kept = [folder / f"seal-{old}.{end}" for end in ("key", "pub")]
    try:
        for path in kept:
            if not path.exists():  # a hard link: at no time is there no key that opens what was sealed so far
                os.link(folder / f"seal.{path.suffix[1:]}", path)
        with replacing(folder / "seal.key", folder / "seal.pub") as drafts:
            for draft, key in zip(drafts, new, strict=True):
                draft.write_text(f"{key.hex()}\n")
    except OSError as error:
        raise UserError(f"{error.filename}: {error.strerror}") from None
    return old, key_id(new[1])


def sign_request(authority: Path, request: Path, folder: Path, party: str, hosts: Sequence[str]) -> None:
    """An authority's part: cert.pem and ca.pem for a party. hosts: the names and addresses it is reached at.

    Raises UserError, in one line, where a file or the party cannot be used.
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
    """Keys and certificates of all parties of a deployment, each in the party's folder.

    hosts: names and addresses that each party's certificate is good for, beside those of this machine to itself.
    Raises FileExistsError where there are some.
    """
    for party, name in FOLDERS.items():
        make_own_keys(folder / name, party)
    for party in (*SERVERS, TRAINING_SERVER):
        place = folder / FOLDERS[party]
        sign_request(folder / "ca", place / "cert.csr", place, party, (*certificates.LOCAL, *hosts.get(party, ())))
    for i in range(nodes):
        make_own_keys(folder / "nodes" / str(i), NODE)


def hosts_by_party(given: Sequence[str]) -> dict[str, list[str]]:
    """Of PARTY=HOST, each party's hosts. Raises UserError."""
    hosts: dict[str, list[str]] = {}
    for one in given:
        party, _, host = one.partition("=")
        if party not in SERVERS or not host:
            raise UserError(f"--host {one}: must be PARTY=HOST, with a party of {', '.join(SERVERS)}")
        hosts.setdefault(party, []).append(host)
    return hosts


def _pair(folder: Path, name: str, keys: tuple[bytes, bytes]) -> None:
    private, public = keys
    certificates.write_private(folder / f"{name}.key", f"{private.hex()}\n".encode())
    (folder / f"{name}.pub").write_text(f"{public.hex()}\n")
