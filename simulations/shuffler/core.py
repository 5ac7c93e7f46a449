"""Rules of the shuffler: the rows of a stage that count, and the users that a batch needs.

The shuffler of a simulation (`shuffle`) and the deployed one (`rounds` and `store`) both apply these functions, and
have no other rules. They differ in where they hold rows, and in the generator that permutes them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

#: Reasons for dropped users and rows. A user is late whose rows arrive once the stage is closed.
LATE = "late"
TOO_MANY = "more records than the user is enrolled with"


@dataclass(frozen=True, eq=False)
class Admitted:
    """Rows that a stage takes, and the numbers of the others, which come to nothing.

    Attributes:
        rows: Positions of the rows that are taken, in the order of users and records: the order of arrival is lost.
        users: Number of users who had no row in the stage.
        again: Number of rows of a record that has a row already.
        refused: Number of rows above their user's number of records.
        late: Number of users who are late.
    """

    rows: NDArray[np.intp]
    users: int
    again: int
    refused: int
    late: int


def admit(
    users: NDArray[np.int64],
    records: NDArray[np.int64],
    *,
    held: NDArray[np.int64] | None = None,
    most: NDArray[np.int64] | None = None,
    late: NDArray[np.bool_] | None = None,
) -> Admitted:
    """Return the rows that a stage takes: one for each user and record, the first that arrives in time.

    A late row is dropped before any other fault is looked for. Late users stay charged, because their releases have
    left.

    Args:
        users: (n,), the user of each row, in the order of arrival.
        records: (n,), the record of each row.
        held: (k, 2), users and records that have a row in the stage, of the users in `users`; none repeats.
        most: (n,), number of records of which the user of each row may have rows in the stage; None sets no limit.
        late: (n,), rows that arrive once the stage is closed; None if none does.
    """
    gone = 0 if late is None else len(np.unique(users[late]))
    held_count = 0 if held is None else len(held)
    if held is not None and held_count:  # as if they arrived first
        users, records = np.append(held[:, 0], users), np.append(held[:, 1], records)
    order = np.lexsort((records, users))  # stable: of one record's rows, the first to arrive comes first
    if late is not None:
        order = order[~np.append(np.zeros(held_count, bool), late)[order]]
    first_of_user, first = np.ones(len(order), bool), np.ones(len(order), bool)
    first_of_user[1:] = np.diff(users[order]) != 0
    first[1:] = first_of_user[1:] | (np.diff(records[order]) != 0)
    arrived = order >= held_count
    mask, refused = first & arrived, 0
    if most is not None:
        number = np.cumsum(first_of_user) - 1
        new = np.cumsum(mask)
        new = new - (new - mask)[first_of_user][number]  # for each user, from 1
        before = np.bincount(number[~arrived], minlength=len(order))[number]
        beyond = mask & (before + new > np.append(np.zeros(held_count, np.int64), most)[order])
        refused = int(beyond[first][np.cumsum(first) - 1].sum())
        mask &= ~beyond
    rows = order[mask]
    again = int(arrived.sum()) - len(rows) - refused
    row_users = users[rows]
    people = int(np.count_nonzero(np.diff(row_users))) + (len(row_users) > 0)
    if held_count:
        people = len(np.setdiff1d(row_users, users[:held_count]))
        rows -= held_count
    return Admitted(rows, people, again, refused, gone)


def shortfall(users: int, minimum_users: int) -> str | None:
    """Return the reason for discarding a batch of so many distinct users; None if it may leave.

    A discarded batch is lost for good. Its users stay charged, because their releases have left.
    """
    if not users:
        return "no release arrived"
    if users < minimum_users:
        return f"{users} users are fewer than the {minimum_users} a batch must have"
    return None
