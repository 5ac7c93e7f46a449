"""Who may take part: tokens of an enrolment authority, who knows the people, and neither shuffles nor trains.

A crowd hides somebody only if it is of people. Whoever may enrol devices at will surrounds a user with devices of their
own, and reads the user's release off what is left (a Sybil's, or n - 1, attack). So the shuffler's operator, who
registers devices with the SuperLink, does not say who counts: the shuffler takes rows of users whom a token names, and
of no others, and the smallest batch is of these.

A token is a line of JSON: {"node": "<node id>", "users": {"<user>": records, ...}, "signature": "<128 hex digits>"}.
It vouches that these users live on that node and may have releases of so many records each in a stage. It holds for one
deployment: an authority has a key for each.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mechanisms.messages.signature import SIGNATURE_BYTES, sign, verified
from simulations.errors import UserError

_PURPOSE = "enrolment"
#: The most records that enrolment may grant a user.
_MOST = 2**20
_LIKE = '{"<node id>": {"<user>": records, ...}}'
_KEYS = {"node", "users", "signature"}


@dataclass(frozen=True, eq=False)
class Enrolled:
    """Who lives on a node. users: (n,) int64, each once, rising. records: (n,) int64, of how many records user i may
    have releases in a stage."""

    users: NDArray[np.int64]
    records: NDArray[np.int64]


Enrolment = Mapping[int, Enrolled]


def read_table(path: Path) -> dict[str, dict[str, int]]:
    """Who lives where, as an authority writes it down: of each node's id its users, and of each how many records they
    may have. Raises UserError."""
    try:
        table = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_once)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        table = None
    if isinstance(table, dict) and any(isinstance(users, list) for users in table.values()):
        raise UserError(f"{path}: does not say how many records each user may have, as in {_LIKE}")
    if not isinstance(table, dict) or not all(_is_node(k) and _are_users(v) for k, v in table.items()):
        raise UserError(f"{path}: is no table {_LIKE} of whole numbers, each node and each user once")
    _check_people(path, {int(node): _enrolled(users) for node, users in table.items()})
    return table


def tokens(table: Mapping[str, Mapping[str, int]], private: bytes) -> str:
    """The tokens of a table, a line for each node, signed by the authority's key."""
    signed = {node: sign(private, _PURPOSE, _said(node, users)).hex() for node, users in table.items()}
    return "".join(
        json.dumps({"node": node, "users": users, "signature": signed[node]}) + "\n" for node, users in table.items()
    )


def read_tokens(path: Path, authority: bytes) -> dict[int, Enrolled]:
    """Who is vouched for by the authority of that public key, by the node's id. Raises UserError where a line is no
    token, or not signed by it, and where a node or a user is there twice."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UserError(f"--users {path}: cannot be read: {error.strerror}") from None
    except ValueError:
        raise UserError(f"--users {path}: is no text; `sottovoce deploy enrol` makes it") from None
    enrolled: dict[int, Enrolled] = {}
    for number, line in enumerate(lines, start=1):
        place = f"--users {path}, line {number}"
        node, users, signature = _token(line, place)
        if not verified(authority, _PURPOSE, _said(node, users), signature):
            raise UserError(f"{place}: is not signed by the enrolment authority whose key this is")
        if int(node) in enrolled:
            raise UserError(f"{place}: node {node} is there twice")
        enrolled[int(node)] = _enrolled(users)
    _check_people(path, enrolled)
    return enrolled


def _token(line: str, place: str) -> tuple[str, dict[str, int], bytes]:
    try:
        token = json.loads(line, object_pairs_hook=_once)
        signature = bytes.fromhex(token["signature"]) if set(token) == _KEYS else b""
    except (ValueError, RecursionError, TypeError, KeyError):
        token, signature = {}, b""
    if len(signature) != SIGNATURE_BYTES or not (_is_node(token["node"]) and _are_users(token["users"])):
        raise UserError(f"{place}: is no token of enrolment; `sottovoce deploy enrol` makes them")
    return token["node"], token["users"], signature


def _said(node: str, users: Mapping[str, int]) -> bytes:
    """What is signed: one way to write it, whatever the order of the users."""
    people = sorted((int(user), records) for user, records in users.items())
    return json.dumps([int(node), people], separators=(",", ":")).encode()


def _check_people(path: Path, enrolled: Enrolment) -> None:
    everybody = np.concatenate([*(there.users for there in enrolled.values()), np.zeros(0, np.int64)])
    if not len(everybody):
        raise UserError(f"{path}: has no users")
    people, times = np.unique(everybody, return_counts=True)
    if (times > 1).any():
        raise UserError(f"{path}: user {people[times > 1][0]} is there twice; each lives on one node")


def _enrolled(users: Mapping[str, int]) -> Enrolled:
    pairs = np.array(sorted((int(user), records) for user, records in users.items()), np.int64).reshape(-1, 2)
    return Enrolled(pairs[:, 0].copy(), pairs[:, 1].copy())


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A table whose keys are there once each."""
    table = dict(pairs)
    if len(table) < len(pairs):
        raise ValueError("a key is there twice")
    return table


def _is_node(key: Any) -> bool:
    return isinstance(key, str) and _is_number(key) and 0 < int(key) < 2**64


def _are_users(users: Any) -> bool:
    return isinstance(users, dict) and all(
        _is_number(user) and int(user) < 2**63 and type(records) is int and 0 < records <= _MOST
        for user, records in users.items()
    )


def _is_number(key: str) -> bool:
    return key.isascii() and key.isdecimal() and len(key) <= 20
