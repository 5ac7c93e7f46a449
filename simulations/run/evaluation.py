"""The only place where the truth meets what the server guessed.

What is counted is kept by distinct test text, so that errors and differences can be had from it at any later time: a
text that several users ask about, or that stands in the test part twice, is one draw from what texts there are, however
often it is answered.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulations.errors import UserError
from simulations.experiment.result import Score
from simulations.experiment.sections import Data
from simulations.output.atomic import whole
from simulations.run.measures import Guesses, measured, measures_of
from simulations.run.prepare import Held
from simulations.shuffler.shuffle import Origin

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]

_HEADINGS = ("text", "class", "sentences", "right on device", "answers", "right")


@dataclass(frozen=True, eq=False)
class Counts:
    """Of each of g distinct texts, how many guesses there are and how many of them are right, (g,) each."""

    guesses: IntArray
    right: IntArray


@dataclass(frozen=True, eq=False)
class Answers:
    """What an arm's model made of the test texts: of sanitized ones as they arrived, and on the device."""

    sanitized: Counts
    device: Counts


@dataclass(frozen=True)
class Difference:
    """Of two accuracies, paired by distinct text, and its standard error."""

    difference: float
    error: float


def sanitized(held: Held, guesses: IntArray | None, origin: Origin | None) -> tuple[Counts, int]:
    """The guesses (n,) of a shuffled batch of test users against the truth, in its order, and how many rows are of
    records that nobody was asked about, which a hostile client may have made up. None: nothing came."""
    if guesses is None or origin is None:
        return on_device(held, None), 0
    sentences = asked(held, origin)
    if len(guesses) != len(sentences):
        raise ValueError(f"cannot score {len(guesses)} guesses of {len(sentences)} rows")
    known = sentences >= 0
    return _counts(held, guesses[known], sentences[known]), int((~known).sum())


def asked(held: Held, origin: Origin) -> IntArray:
    """The test sentence behind each row of a shuffled batch, (n,), -1 for a record that nobody was asked about."""
    people = held.test_holders
    keys = zip(people.users.tolist(), people.records.tolist(), strict=True)
    rows = dict(zip(keys, held.test_rows.tolist(), strict=True))
    whose = zip(origin.users.tolist(), origin.records.tolist(), strict=True)
    return np.array([rows.get(key, -1) for key in whose], dtype=np.int64)


class Scored(NamedTuple):
    """Scores (n, K) of a model for test sentences (n,), -1 for a record that nobody was asked about.

    users: who asked, (n,); None where each sentence is that of the user who holds it.
    """

    scores: FloatArray
    sentences: IntArray
    users: IntArray | None = None


def measures(
    data: Data, held: Held, *, seed: int, sanitized: Scored | None, on_device: Scored | None
) -> dict[str, dict[str, Any]]:
    """Return what is measured beside accuracy, by split; see `simulations.run.measures`. None: there is no model."""
    names = measures_of(data, held.test)
    found = {"sanitized": sanitized, "on_device": on_device}
    return {
        split: measured(names, None if scored is None else _guesses(data, seed, held, scored))
        for split, scored in found.items()
    }


def _guesses(data: Data, seed: int, held: Held, scored: Scored) -> Guesses:
    known = scored.sentences >= 0
    sentences = scored.sentences[known]
    holder = np.full(len(held.test), -1)
    holder[held.test_rows[::-1]] = held.test_holders.users[::-1]  # the first of several
    users = holder[sentences] if scored.users is None else scored.users[known]
    return Guesses(
        scored.scores[known], held.test.labels[sentences], held.test_texts[sentences], users, held.test.classes,
        data.numbers, seed,
    )  # fmt: skip


def guessed(held: Held, guesses: IntArray | None) -> list[int]:
    """Return how often each class is guessed, of guesses (n,); nothing where there are none."""
    if guesses is None or not len(guesses):
        return []
    counts: list[int] = np.bincount(guesses, minlength=len(held.test.classes)).tolist()
    return counts


def on_device(held: Held, guesses: IntArray | None, *, repeats: int = 1) -> Counts:
    """The guesses of the test sentences as they are, (n · repeats,), all sentences one time after another; None where
    there is no model."""
    if guesses is None:
        return _counts(held, np.zeros(0, np.int64), np.zeros(0, np.int64))
    return _counts(held, guesses, np.tile(np.arange(len(held.test)), repeats))


def _counts(held: Held, guesses: IntArray, sentences: IntArray) -> Counts:
    texts, right = held.test_texts[sentences], guesses == held.test.labels[sentences]
    size = int(held.test_texts.max(initial=-1)) + 1
    return Counts(np.bincount(texts, minlength=size), np.bincount(texts[right], minlength=size))


def score(counts: Counts) -> Score | None:
    """The share of right guesses, with a standard error over the texts that were guessed at all: guesses of one text
    are a cluster, whose residuals are added before they are squared. None where there is no guess; the error is not a
    number where there is one text alone.

    The error is that of these texts and four more, two of them right (Agresti and Coull 1998), each guessed as often as
    the others are on average: nothing is certain because it never failed so far. With one guess for each of g texts it
    is sqrt(p'(1 - p')/(g + 3)), p' = (right + 2)/(g + 4).
    """
    if not counts.guesses.sum():
        return None
    more = np.array([1.0, 1.0, 0.0, 0.0])
    return Score(_accuracy(counts), _error(_residuals(counts, more), counts.guesses > 0))


def difference(one: Counts, other: Counts) -> Difference | None:
    """One's accuracy less the other's. The error pairs by text: what a text adds to the one and to the other is set off
    before it is squared, so that a text that is hard for both adds nothing. None where either has no guess.

    The error is that of these texts and two more, of which each arm alone gets one right (Bonett and Price 2012): arms
    that agree on every text are not known to be equal.
    """
    if not one.guesses.sum() or not other.guesses.sum():
        return None
    more = np.array([1.0, 0.0])
    residuals = _residuals(one, more) - _residuals(other, 1 - more)
    return Difference(_accuracy(one) - _accuracy(other), _error(residuals, (one.guesses > 0) | (other.guesses > 0)))


def _accuracy(counts: Counts) -> float:
    return float(counts.right.sum() / counts.guesses.sum())


def _residuals(counts: Counts, more: FloatArray) -> FloatArray:
    """What each of g texts, and each of the k that are added, adds to the deviation of the accuracy over all of them,
    to first order in the counts, (g + k,). more: (k,) which share of an added text's guesses is right."""
    often = float(counts.guesses[counts.guesses > 0].mean())
    guesses = np.concatenate([counts.guesses, np.full(len(more), often)])
    right = np.concatenate([counts.right, often * more])
    found: FloatArray = (right - right.sum() / guesses.sum() * guesses) / guesses.sum()
    return found


def _error(residuals: FloatArray, there: NDArray[np.bool_]) -> float:
    """there: (g,) which texts were guessed; all that were added count."""
    texts = int(there.sum())
    if texts < 2:
        return math.nan
    texts += len(residuals) - len(there)
    return math.sqrt(texts / (texts - 1) * float(np.sum(residuals**2)))


def write_answers(path: Path, held: Held, answers: Answers) -> None:
    """A line of tab-separated values for each distinct test text, whole or not at all: the first test sentence that has
    it, counted from 0, and its class; how many sentences have it and how many of them the model gets right on the
    device; how many sanitized ones were answered, and how many of these rightly. The texts themselves are users'."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    first = np.unique(held.test_texts, return_index=True)[1]
    names = [" ".join(held.test.classes[label].split()) for label in held.test.labels[first]]
    columns = (answers.device.guesses, answers.device.right, answers.sanitized.guesses, answers.sanitized.right)
    with whole(path, private=True) as file:
        file.write(("\t".join(_HEADINGS) + "\n").encode())
        for row in zip(first.tolist(), names, *(column.tolist() for column in columns), strict=True):
            file.write(("\t".join(map(str, row)) + "\n").encode())


def read_answers(path: Path) -> Answers:
    """What `write_answers` wrote. Raises UserError, in one line, for anything else."""
    try:
        headings, *lines = path.read_text(encoding="utf-8").splitlines()
        if headings != "\t".join(_HEADINGS):
            raise ValueError
        rows = [line.split("\t") for line in lines]
        columns = np.array([row[2:] for row in rows], np.int64).reshape(len(rows), 4).T
    except (OSError, ValueError):
        raise UserError(f"{path}: does not hold what an arm answered; run the experiment anew") from None
    return Answers(sanitized=Counts(columns[2], columns[3]), device=Counts(columns[0], columns[1]))
