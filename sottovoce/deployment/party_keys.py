"""Keys of a deployment's parties, made in one place. The authority `ca` signs the certificates.

| party | keys | certificate |
| --- | --- | --- |
| superlink | cert.key; secret, for the shuffler's operator alone | a server's |
| shuffler | cert.key, seal.key, seal.pub | a server's |
| model | cert.key, seal.key, seal.pub | a server's |
| training-server | cert.key, seal.key, seal.pub | a client's |
| publisher | sign.key, sign.pub | none |
| enrolment | sign.key, sign.pub | none |
| node | node.key, node.pub | none: a SuperLink's operator registers it |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from client.device.https import host_and_port
from client.device.roles import MODEL, SHUFFLER, SUPERLINK
from mechanisms.messages import signature
from mechanisms.messages.sealed import generate_keys
from simulations.errors import UserError
from sottovoce.deployment import certificates
from sottovoce.deployment.shuffler_service import TRAINING_SERVER

AUTHORITY, PUBLISHER, ENROLMENT = "authority", "publisher", "enrolment"
#: Parties that serve by a certificate.
SERVERS = (SUPERLINK, SHUFFLER, MODEL)
#: Parties to whom devices seal, each by its own key.
SEALED = (TRAINING_SERVER, SHUFFLER, MODEL)
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


def make_keys(folder: Path, *, nodes: int, hosts: Mapping[str, Sequence[str]]) -> None:
    """Write keys and certificates of all parties of a deployment, each in the party's folder.

    Args:
        folder: Folder of the deployment.
        nodes: Number of devices.
        hosts: Names and addresses of each party's certificate, beside those of the local machine.

    Raises:
        FileExistsError: There are keys already.
    """
    certificates.make_authority(folder / FOLDERS[AUTHORITY])
    for party in (*SERVERS, TRAINING_SERVER):
        names = (*certificates.LOCAL, *hosts.get(party, ()))
        place = folder / FOLDERS[party]
        certificates.issue(folder / FOLDERS[AUTHORITY], place, party, hosts=names, client=party == TRAINING_SERVER)
    certificates.make_secret(folder / FOLDERS[SUPERLINK])
    for party in SEALED:
        _pair(folder / FOLDERS[party], "seal", generate_keys())
    for party in (PUBLISHER, ENROLMENT):
        _pair(folder / FOLDERS[party], "sign", signature.generate_keys())
    for i in range(nodes):
        certificates.node_keys(folder / "nodes" / str(i))


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
    certificates.write_private(folder / f"{name}.key", f"{private.hex()}\n".encode())
    (folder / f"{name}.pub").write_text(f"{public.hex()}\n")
