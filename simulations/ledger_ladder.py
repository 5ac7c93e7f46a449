"""The ladder of a client's ledger: what was charged, whatever anybody planned."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from client.ledger import Ledger, LedgerError, LedgerRow
from mechanisms.accounting.ladder import spent
from simulations.errors import UserError

_NOTE = "from the ledger: worst cases of all releases, added; a ledger keeps theorems, not loss distributions"


def of_ledger(path: Path, *, user: int | None = None, delta: float) -> dict[str, Any]:
    """{"user", "users", "releases", "delta", "ladder"}: the rungs of one user, or of the one who has spent most.

    The record and channel rungs are those of the user's costliest record. delta: of each release that needs one.
    Raises UserError where there is no ledger, it cannot be read, or it does not know the user.
    """
    if not path.is_file():  # a Ledger would make a new one
        raise UserError(f"--ledger {path}: there is no such file")
    try:
        with Ledger(path, durable=False) as ledger:
            rows = ledger.rows()
    except LedgerError as error:
        raise UserError(f"--ledger {path}: {error}") from error
    by_user: dict[int, list[LedgerRow]] = {}
    for row in rows:
        by_user.setdefault(row.user, []).append(row)
    if not rows:
        raise UserError(f"--ledger {path}: holds no release")
    if user is not None and user not in by_user:
        raise UserError(f"--user {user}: the ledger has no release of this user")
    chosen = user if user is not None else max(by_user, key=lambda u: _cost(by_user[u], delta))
    mine = by_user[chosen]
    records: dict[int, list[LedgerRow]] = {}
    for row in mine:
        records.setdefault(row.record, []).append(row)
    record = max(records.values(), key=lambda held: _cost(held, delta))
    note = f"{_NOTE}; record {record[0].record}, the costliest"
    rungs = [
        spent(
            channel, (r.guarantee for r in record if r.channel == channel), delta=delta, unit=channel,
            neighbours="any two labels" if channel == "label" else "any two texts", note=note,
        )
        for channel in ("text", "embedding", "label")
    ]  # fmt: skip
    every = (r.guarantee for r in record)
    rungs.append(spent("record", every, delta=delta, unit="record", neighbours="any two records", note=note))
    all_of_it = f"{_NOTE}; {len(mine)} releases of {len(records)} records in {len({r.stage for r in mine})} stages"
    rungs.append(
        spent(
            "user", (r.guarantee for r in mine), delta=delta, unit="user", neighbours="any two users' data",
            note=all_of_it,
        )
    )  # fmt: skip
    return {
        "user": chosen,
        "users": len(by_user),
        "releases": len(rows),
        "delta": delta,
        "ladder": [rung.to_dict() for rung in rungs],
    }


def _cost(rows: list[LedgerRow], delta: float) -> tuple[int, float]:
    """What orders users and records: first how many releases are unprotected, then the finite ε."""
    costs = [row.guarantee.worst_case(delta) for row in rows]
    return sum(math.isinf(c) for c in costs), sum(c for c in costs if math.isfinite(c))
