"""Enrolment tokens: an authority, which neither shuffles nor trains, vouches for the people who may take part.

A crowd hides a user only if it consists of people. An attacker who can enrol devices at will surrounds a user with
their own devices. The attacker then reads the user's release off the remainder (a Sybil, or n - 1, attack). The
shuffler's operator registers devices with the SuperLink, and so does not decide who counts. The shuffler takes rows
only of users whom a token names. The minimum batch size counts only these users.

A token is a line of JSON: {"node": "<node id>", "key": "<64 hex digits>", "users": {"<user>": records, ...},
"signature": "<128 hex digits>"}. It vouches that these users live on the device of that public key, which is that node,
and that each may have releases of that many records in a stage. It holds for one deployment: an authority has one key
for each deployment.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mechanisms.checks import is_hex
from mechanisms.messages.signature import SIGNATURE_BYTES, sign, verified
from simulations.errors import UserError

_PURPOSE = "enrolment"
#: Maximum number of records that enrolment may grant a user.
_MOST = 2**20
_LIKE = '{"<node id>": {"key": "<its device.pub>", "users": {"<user>": records, ...}}}'
_KEYS = {"node", "key", "users", "signature"}


@dataclass(frozen=True, eq=False)
class Enrolled:
    """Users of a node.

    Args:
        users: User numbers (n,), int64, without repeats, in increasing order.
        records: Records (n,), int64, of which each user may have releases in a stage.
        key: Public key of the device, 32 bytes.
    """

    users: NDArray[np.int64]
    records: NDArray[np.int64]
    key: bytes


Enrolment = Mapping[int, Enrolled]


def read_table(path: Path) -> dict[str, dict[str, Any]]:
    """Return an authority's table: for each node id, its key, its users, and the number of records of each.

    Raises:
        UserError: The file cannot be read as such a table.
    """
    try:
        table = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_once)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        table = None
    if not isinstance(table, dict) or not all(_is_node(k) and _is_device(v) for k, v in table.items()):
        raise UserError(f"{path}: is no table {_LIKE} of whole numbers, each node and each user once")
    _check_people(path, {int(node): _enrolled(entry["key"], entry["users"]) for node, entry in table.items()})
    return table


def tokens(table: Mapping[str, Mapping[str, Any]], private: bytes) -> str:
    """Return the tokens of a table, one line for each node, signed by the authority's key."""
    lines = []
    for node, entry in table.items():
        signed = sign(private, _PURPOSE, _said(node, entry["key"], entry["users"]))
        lines.append({"node": node, "key": entry["key"], "users": entry["users"], "signature": signed.hex()})
    return "".join(json.dumps(line) + "\n" for line in lines)


def read_tokens(path: Path, authority: bytes) -> dict[int, Enrolled]:
    """Return the enrolled users by node id, as signed by the authority of that public key.

    Raises:
        UserError: A line is no token or has another signature, or a node or a user occurs twice.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UserError(f"--users {path}: cannot be read: {error.strerror}") from None
    except ValueError:
        raise UserError(f"--users {path}: is no text; `sottovoce deploy enrol` makes it") from None
    enrolled: dict[int, Enrolled] = {}
    for number, line in enumerate(lines, start=1):
        place = f"--users {path}, line {number}"
        node, key, users, signature = _token(line, place)
        if not verified(authority, _PURPOSE, _said(node, key, users), signature):
            raise UserError(f"{place}: is not signed by the enrolment authority whose key this is")
        if int(node) in enrolled:
            raise UserError(f"{place}: node {node} is there twice")
        enrolled[int(node)] = _enrolled(key, users)
    _check_people(path, enrolled)
    return enrolled


def _token(line: str, place: str) -> tuple[str, str, dict[str, int], bytes]:
    try:
        token = json.loads(line, object_pairs_hook=_once)
        signature = bytes.fromhex(token["signature"]) if set(token) == _KEYS else b""
    except (ValueError, RecursionError, TypeError, KeyError):
        token, signature = {}, b""
    if len(signature) != SIGNATURE_BYTES or not (_is_node(token["node"]) and _is_device(token, least=_KEYS)):
        raise UserError(f"{place}: is no token of enrolment; `sottovoce deploy enrol` makes them")
    return token["node"], token["key"], token["users"], signature


def _said(node: str, key: str, users: Mapping[str, int]) -> bytes:
    """Return the bytes to sign: a canonical form, independent of the order of the users."""
    people = sorted((int(user), records) for user, records in users.items())
    return json.dumps([int(node), key, people], separators=(",", ":")).encode()


def _check_people(path: Path, enrolled: Enrolment) -> None:
    everybody = np.concatenate([*(entry.users for entry in enrolled.values()), np.zeros(0, np.int64)])
    if not len(everybody):
        raise UserError(f"{path}: has no users")
    people, times = np.unique(everybody, return_counts=True)
    if (times > 1).any():
        raise UserError(f"{path}: user {people[times > 1][0]} is there twice; each lives on one node")
    if len({entry.key for entry in enrolled.values()}) < len(enrolled):
        raise UserError(f"{path}: two nodes have one key; each device has its own")


def _enrolled(key: str, users: Mapping[str, int]) -> Enrolled:
    pairs = np.array(sorted((int(user), records) for user, records in users.items()), np.int64).reshape(-1, 2)
    return Enrolled(pairs[:, 0].copy(), pairs[:, 1].copy(), bytes.fromhex(key))


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a table of pairs with unique keys."""
    table = dict(pairs)
    if len(table) < len(pairs):
        raise ValueError("a key is there twice")
    return table


def _is_node(key: Any) -> bool:
    return isinstance(key, str) and _is_number(key) and 0 < int(key) < 2**64


def _is_device(there: Any, least: Set[str] = frozenset({"key", "users"})) -> bool:
    return (
        isinstance(there, dict)
        and set(there) == least
        and is_hex(there["key"])
        and isinstance(there["users"], dict)
        and all(
            _is_number(user) and int(user) < 2**63 and type(records) is int and 0 < records <= _MOST
            for user, records in there["users"].items()
        )
    )


def _is_number(key: str) -> bool:
    return key.isascii() and key.isdecimal() and len(key) <= 20
