"""Path of every release: recall, price, draw, commit; nothing leaves before its charge is on the ledger.

`Sanitizer` (a node's records) and `Accountant` (another app's answers) release through `release` alone. They say what
is due and how it is drawn. This module decides who can pay, repeats what a ledger holds, and charges the rest:

- A release under a key that is on the ledger is repeated, byte for byte, and never drawn again.
- Everything else is drawn under the ledger's lock and committed with its charge in one transaction. Only then
  `release` returns. A crash before the commit leaves no charge and no release. A crash after it leaves a charge, whose
  bytes are repeated to the next request.
- A failure is an exception, and `constant` turns any into a text of `REFUSALS`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client.policy import Policy, Refused
from client.store.ledger import Charge, Key, Ledger, LedgerError, Recalled
from mechanisms.accounting.privacy_filter import FREE, Account

#: SQLite's primary codes for a place that cannot be written to; an extended code has one in its low byte.
_PLACE = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY)


@dataclass(frozen=True)
class Due(Key):
    """One release that a request asks of each row: its key on the ledger, and its form.

    Attributes:
        dtype: Type of a row's numbers.
        shape: Shape of a row.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...] = ()

    @property
    def stored(self) -> np.dtype[Any]:
        """Return the type of a row's numbers on the ledger."""
        return self.dtype.newbyteorder("<")


#: Releases of rows, (n, *shape), by what was due.
Payloads = dict[Due, NDArray[Any]]
#: Function that draws the releases (k, *shape) of what is due, for the rows at these positions, (k,) and rising, from
#: this step of their streams. It gets all rows' releases of what was due before, zeros where a row is not answered.
Draw = Callable[[Due, NDArray[np.intp], int, Payloads], NDArray[Any]]


def release(
    due: Sequence[Due],
    users: NDArray[np.int64],
    records: NDArray[np.int64],
    *,
    policy: Policy,
    ledger: Ledger,
    draw: Draw,
) -> tuple[NDArray[np.intp], Payloads]:
    """Return the positions of the rows that are answered, rising, and their releases; charged before this returns.

    Users whose budget does not cover their new releases are left out with all their rows. Every row depends on its own
    ledger rows and stream only.

    Args:
        due: What is due of each row, each under another key.
        users: (n,), the user of each row.
        records: (n,), the record of each row. No pair of user and record occurs twice.
        policy: Policy of the client.
        ledger: The ledger.
        draw: Function that draws what the ledger does not hold.

    Raises:
        Refused: There are rows, and none can be answered.
        LedgerError: The ledger cannot be trusted. Nothing leaves. Exceptions of a draw pass through.
    """
    charges: list[Charge] = []
    payloads: Payloads = {}
    with ledger.exclusive():
        recalled = {due_release: ledger.recall(due_release, users, records) for due_release in due}
        paid = _affordable(recalled, users, records, policy, ledger)
        for due_release in due:
            history = recalled.pop(due_release)
            payload = _repeated(due_release, history)
            at = np.flatnonzero(paid & ~history.known)
            if len(at):
                payload[at] = drawn = _drawn(due_release, draw, at, history.earlier, payloads)
                stored = np.ascontiguousarray(drawn, due_release.stored).reshape(len(at), -1).view(np.uint8)
                epsilon = policy.cost(due_release.guarantee).epsilon
                charges.append(Charge(due_release, epsilon, policy.delta, users[at], records[at], stored))
            payloads[due_release] = payload
        ledger.commit(charges)  # the last step to fail
    answered = np.flatnonzero(paid)
    if len(answered) < len(users):
        payloads = {due_release: payload[answered] for due_release, payload in payloads.items()}
    return answered, payloads


def recall(
    due: Sequence[Due], users: NDArray[np.int64], records: NDArray[np.int64], *, policy: Policy, ledger: Ledger
) -> Payloads | None:
    """Return the releases if the ledger holds all of them; None if some are to be drawn, which users can pay for.

    Call it before work that a refused request is not worth. `release` recalls and prices again.

    Raises:
        Refused: There are rows, and no user can pay.
        LedgerError: The ledger cannot be trusted.
    """
    with ledger.exclusive():
        recalled = {due_release: ledger.recall(due_release, users, records) for due_release in due}
        _affordable(recalled, users, records, policy, ledger)
    if not all(history.known.all() for history in recalled.values()):
        return None
    return {due_release: _repeated(due_release, history) for due_release, history in recalled.items()}


def constant(error: BaseException) -> Refused:
    """Return the refusal that leaves in place of an answer that has failed. No text of the error is in it."""
    if isinstance(error, Refused):
        return error
    cause = error.__cause__ if isinstance(error, LedgerError) else None
    full = isinstance(cause, OSError) or getattr(cause, "sqlite_errorcode", 0) % 256 in _PLACE
    return Refused("storage" if full else "failed")  # the place is at fault, as on a full disk, or the content


def _affordable(
    recalled: Mapping[Due, Recalled],
    users: NDArray[np.int64],
    records: NDArray[np.int64],
    policy: Policy,
    ledger: Ledger,
) -> NDArray[np.bool_]:
    """Return a mask of the rows whose users can pay for all new releases.

    Raise Refused if there were rows and none is left.
    """
    people, person = np.unique(users, return_inverse=True)
    bill, spent = Account.empty(len(users)), dict[str, Account]()
    priced = np.zeros(len(users), dtype=bool)
    within = np.ones(len(people), dtype=bool)
    for due_release, history in recalled.items():
        new = ~history.known
        if due_release.channel in policy.unprotected:
            bill = bill.plus(FREE, new)
            continue
        cost = policy.cost(due_release.guarantee)
        bill, priced = bill.plus(cost, new), priced | new
        if due_release.channel not in spent:
            spent[due_release.channel] = policy.spent_on(ledger, due_release.channel, users, records)
        spent[due_release.channel] = spent[due_release.channel].plus(cost, new)
        within[person[new & ~policy.allows(spent[due_release.channel], due_release.channel)]] = False
    users_bill = bill.sum_by(person, len(people))
    account = policy.spent(ledger, people) + users_bill
    counted = (users_bill.releases == 0) | policy.allows_number(account)
    solvent = (np.bincount(person[priced], minlength=len(people)) == 0) | policy.allows(account, "total")
    paid: NDArray[np.bool_] = (within & solvent & counted)[person]
    if len(users) and not paid.any():
        raise Refused("spent")  # of which limit is not told: the total shows how many records a user has
    return paid


def _repeated(one: Due, found: Recalled) -> NDArray[Any]:
    """Return an array for the releases of all rows, with those that the ledger holds."""
    payload = np.zeros((len(found.known), *one.shape), one.dtype)
    if found.known.any():
        if found.payloads.shape[1] != payload.dtype.itemsize * int(np.prod(one.shape)):
            raise LedgerError("ledger: a payload does not have its length")
        payload[found.known] = found.payloads[found.known].view(one.stored).reshape(-1, *one.shape)
    return payload


def _drawn(one: Due, draw: Draw, at: NDArray[np.intp], earlier: NDArray[np.int64], payloads: Payloads) -> NDArray[Any]:
    """Draw the releases of the rows at these positions."""
    drawn = np.empty((len(at), *one.shape), one.dtype)
    # A record that is requested again under another digest draws from its next stream, never from the same one.
    for step in np.unique(earlier[at]).tolist():
        now = earlier[at] == step
        values = draw(one, at[now], step, payloads)
        if values.shape != drawn[now].shape:  # or one draw would be that of several rows
            raise ValueError("charging: a draw does not have its shape")
        drawn[now] = values.astype(one.dtype, casting="same_kind", copy=False)
    return drawn
