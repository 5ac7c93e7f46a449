"""Assignment of records to users. The experiment has checked its settings (`simulations.experiment`)."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mechanisms.streams import SimulationStreams
from simulations.corpora.corpus import Corpus

Rows = NDArray[np.int64]

_STREAM = 0x909  # separates these draws from others of the same seed


def assign(
    corpus: Corpus, *, users: int, assignment: str, alpha: float | None = None, seed: int
) -> tuple[Rows, Rows, Rows]:
    """Return rows, users and records, int64 (k,) each: user users[i] holds row rows[i] as their record records[i].

    Users and each user's records count from 0. Each record of a user is charged.

    Args:
        corpus: Texts and labels.
        users: Number of users. If a column has fewer, all of them are returned.
        assignment: "record" gives each user one row, drawn without replacement. "column" draws users of the corpus,
            each with all their rows. "dirichlet" deals out all rows as evenly as possible. Each user's mix of labels is
            drawn from a symmetric Dirichlet(alpha), where a small alpha gives users of one label. Labels that are used
            up are skipped, so the last users' mix is nearer to the remaining rows.
        alpha: Concentration for "dirichlet", finite and above 0.
        seed: Seed.
    """
    rng = np.random.default_rng((seed, _STREAM))
    if assignment == "record":
        rows = rng.permutation(len(corpus))[:users]
        return rows, np.arange(len(rows)), np.zeros(len(rows), np.int64)
    if assignment == "column":
        return _by_column(corpus, users, rng)
    assert assignment == "dirichlet" and alpha is not None
    return _by_label(corpus, users, alpha, rng)


def numbered(names: Sequence[str]) -> tuple[Rows, Rows]:
    """Return users and records, int64 (n,) each, of rows that name their user.

    Users count from 0 by their names, and each user's records by the order of the rows.
    """
    users = np.unique(np.asarray(names), return_inverse=True)[1].astype(np.int64)
    order = np.argsort(users, kind="stable")
    records = np.empty(len(users), np.int64)
    records[order] = _count_up(users[order])
    return users, records


def online(users: int, *, dropout: float, seed: int) -> NDArray[np.bool_]:
    """Return which of the users 0, 1, ... answer, bool (users,). Each is absent with probability `dropout`."""
    return np.random.default_rng((seed, _STREAM, 1)).random(users) >= dropout


def late(users: Rows, *, probability: float, stage: str, seed: int) -> NDArray[np.bool_]:
    """Return which of n distinct users answer after the deadline of a stage, bool (n,), each with this probability.

    It is a function of (seed, stage, user) alone, and depends neither on nodes nor on other users.
    """
    rows = SimulationStreams(seed).rows(users, np.zeros_like(users), stage=stage, channel="late")
    return rows.uniform(len(users), 1)[:, 0] < probability


def _by_column(corpus: Corpus, users: int, rng: np.random.Generator) -> tuple[Rows, Rows, Rows]:
    assert corpus.users is not None
    names, owners = np.unique(np.asarray(corpus.users), return_inverse=True)
    chosen = rng.permutation(len(names))[:users]
    number = np.full(len(names), -1, dtype=np.int64)
    number[chosen] = np.arange(len(chosen))
    holders = number[owners]
    rows = np.flatnonzero(holders >= 0)
    rows = rows[np.argsort(holders[rows], kind="stable")]
    return rows, holders[rows], _count_up(holders[rows])


def _by_label(corpus: Corpus, users: int, alpha: float, rng: np.random.Generator) -> tuple[Rows, Rows, Rows]:
    users = min(users, len(corpus))
    if users == 0:
        return (np.zeros(0, np.int64),) * 3
    order = rng.permutation(len(corpus))
    piles = [order[corpus.labels[order] == label] for label in range(len(corpus.classes))]
    counts = np.array([len(pile) for pile in piles])
    mixes = rng.dirichlet(np.full(len(piles), alpha), size=users)
    dealt: list[Rows] = []
    sizes = np.full(users, len(corpus) // users, dtype=np.int64)
    sizes[: len(corpus) % users] += 1
    for size, mix in zip(sizes, mixes, strict=True):
        while size > 0:
            weights = np.where(counts > 0, mix, 0.0)
            if weights.sum() <= 0:  # no row with a label of this user is left
                weights = counts.astype(np.float64)
            take = np.minimum(rng.multinomial(size, weights / weights.sum()), counts)
            for pile, end, count in zip(piles, counts, take, strict=True):
                dealt.append(pile[end - count : end])
            counts = counts - take
            size -= int(take.sum())
    holders = np.repeat(np.arange(users, dtype=np.int64), sizes)
    return np.concatenate(dealt), holders, _count_up(holders)


def _count_up(held: Rows) -> Rows:
    """Return 0, 1, 2, ... within each run of equal users; `held` is sorted."""
    return np.arange(len(held), dtype=np.int64) - np.searchsorted(held, held, side="left")
