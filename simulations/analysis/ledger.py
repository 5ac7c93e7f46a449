"""Ladder of a client's ledger: the losses that were charged."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from client.device.statement import account_of
from client.node import NODE, load_node
from client.policy import Policy
from client.store.ledger import Ledger, LedgerError, LedgerRow
from mechanisms.accounting.ladder import Rung, ledger_rung
from mechanisms.accounting.privacy_filter import THEOREM
from mechanisms.channels import CHANNELS
from simulations.errors import UserError

_NOTE = "from the ledger: worst cases of all releases, added; a ledger keeps theorems, not loss distributions"


def of_ledger(path: Path, *, user: int | None = None, delta: float) -> dict[str, Any]:
    """Return the rungs of one user's ledger, and the user's account in the privacy filter of the policy beside it.

    The keys are "user", "users", "releases", "delta", "ladder", "account", "policy" and "theorem". A release about all
    of the user's records counts in every rung. For the rest, the record rung and each channel's are those of the record
    that costs most there. The rung of a channel that has releases counts those of all channels with its neighbours: a
    text and its embedding both tell of the text. The node.json beside the ledger holds the policy, which may declare
    exposures of texts public. Without it, "account" and "policy" are None and nothing is declared.

    Args:
        path: The ledger.
        user: The user; None for the user who has spent most.
        delta: δ of each release that needs one.

    Raises:
        UserError: The ledger is missing, cannot be read, or does not have the user.
    """
    if path.is_dir():
        raise UserError(f"--ledger {path}: is a folder; name the ledger in it, as {path / 'ledger.sqlite'}")
    if not path.is_file():  # Ledger would create it
        raise UserError(f"--ledger {path}: there is no such file")
    policy = _policy(path)
    try:
        with Ledger(path, durable=False) as ledger:
            rows = ledger.rows()
            people = np.unique(np.array([row.user for row in rows], np.int64))
            spent = None if policy is None else policy.spent(ledger, people)
    except LedgerError as error:
        raise UserError(f"--ledger {path}: {error}") from error
    public = {} if policy is None else policy.declared
    by_user: dict[int, list[LedgerRow]] = {}
    for row in rows:
        by_user.setdefault(row.user, []).append(row)
    if not rows:
        raise UserError(f"--ledger {path}: holds no release")
    if user is not None and user not in by_user:
        raise UserError(f"--user {user}: the ledger has no release of this user")
    chosen = user if user is not None else max(by_user, key=lambda u: _cost(by_user[u], delta, public))
    mine = by_user[chosen]
    together = [row for row in mine if row.of_all]
    records: dict[int, list[LedgerRow]] = {}
    for row in mine:
        if not row.of_all:
            records.setdefault(row.record, []).append(row)

    def rung(name: str, neighbours: str, rows: list[LedgerRow], note: str) -> Rung:
        guarantees = (row.guarantee for row in rows)
        return ledger_rung(name, guarantees, delta=delta, unit=name, neighbours=neighbours, note=note, public=public)

    def costliest(name: str, neighbours: str, channels: Collection[str]) -> Rung:
        counted = {-1: together} if not records else {}
        for number, charges in records.items():
            counted[number] = [*together, *(row for row in charges if row.channel in channels)]
        record = max(counted, key=lambda number: _cost(counted[number], delta, public))
        note = f"{_NOTE}; record {record}, the costliest" if len(counted[record]) > len(together) else _NOTE
        note += f"; with {len(together)} about all records" if together else ""
        return rung(name, neighbours, counted[record], note)

    rungs = []
    for channel, about in CHANNELS.items():
        released = any(row.channel == channel for row in mine)
        near = {name for name, other in CHANNELS.items() if released and other.neighbours == about.neighbours}
        if about.always or released:
            rungs.append(costliest(channel, about.neighbours, near))
    rungs.append(costliest("record", "any two records", {row.channel for row in mine}))
    all_of_it = (
        f"{_NOTE}; {len(mine)} releases, {len(together)} about all records and the others about {len(records)}, in "
        f"{len({row.stage for row in mine})} stages"
    )
    rungs.append(rung("user", "any two users' data", mine, all_of_it))
    return {
        "user": chosen,
        "users": len(by_user),
        "releases": len(rows),
        "delta": delta,
        "ladder": [rung.to_dict() for rung in rungs],
        "account": None
        if policy is None or spent is None
        else account_of(policy, spent.take(np.flatnonzero(people == chosen))),
        "policy": None if policy is None else policy.to_dict(),
        "theorem": THEOREM,
    }


def _policy(path: Path) -> Policy | None:
    """Return the policy of the node.json beside a ledger; None if there is none."""
    about = path.parent / NODE
    named = re.fullmatch(r"ledger(?:-(.+))?\.sqlite", path.name)
    if named is None or not about.is_file():
        return None
    try:
        return load_node(path.parent).policies.get(named[1] or "")
    except ValueError as error:
        raise UserError(f"--ledger {path}: {error}") from error


def _cost(rows: list[LedgerRow], delta: float, public: Mapping[str, str]) -> tuple[int, float]:
    """Return the sort key of users and records: the number of unprotected releases, then the finite ε."""
    costs = [row.guarantee.worst_case(delta, declared=public) for row in rows]
    return sum(math.isinf(c) for c in costs), sum(c for c in costs if math.isfinite(c))
