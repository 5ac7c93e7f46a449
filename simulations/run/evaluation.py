"""Score predictions against true labels. No other module does so.

Counts are kept by distinct test text, so that errors and differences can be computed later. A text that several users
hold, or that occurs twice in the test part, is one draw from the population of texts, however often it is answered.
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
    """Number of predictions and number of right ones for each of g distinct texts, (g,) each."""

    guesses: IntArray
    right: IntArray


@dataclass(frozen=True, eq=False)
class Answers:
    """Predictions of an arm's model: of sanitized test texts as they arrived, and of clean ones on the device."""

    sanitized: Counts
    device: Counts


@dataclass(frozen=True)
class Difference:
    """Difference of two accuracies, paired by distinct text, and its standard error."""

    difference: float
    error: float


def sanitized(held: Held, guesses: IntArray | None, origin: Origin | None) -> tuple[Counts, int]:
    """Count the predictions (n,) of a shuffled batch of test users, in its order; None if nothing was delivered.

    The second value is the number of rows of records that were not requested, which a hostile client may have made up.
    """
    if guesses is None or origin is None:
        return on_device(held, None), 0
    sentences = asked(held, origin)
    if len(guesses) != len(sentences):
        raise ValueError(f"cannot score {len(guesses)} guesses of {len(sentences)} rows")
    known = sentences >= 0
    return _counts(held, guesses[known], sentences[known]), int((~known).sum())


def asked(held: Held, origin: Origin) -> IntArray:
    """Return the test sentence of each row of a shuffled batch, (n,); -1 for a record that was not requested."""
    people = held.test_holders
    keys = zip(people.users.tolist(), people.records.tolist(), strict=True)
    rows = dict(zip(keys, held.test_rows.tolist(), strict=True))
    whose = zip(origin.users.tolist(), origin.records.tolist(), strict=True)
    return np.array([rows.get(key, -1) for key in whose], dtype=np.int64)


class Scored(NamedTuple):
    """Scores (n, K) of a model for test sentences (n,), -1 for a record that was not requested.

    `users` are the users who asked, (n,); None if each sentence is asked by its holder.
    """

    scores: FloatArray
    sentences: IntArray
    users: IntArray | None = None


def measures(
    data: Data, held: Held, *, seed: int, sanitized: Scored | None, on_device: Scored | None
) -> dict[str, dict[str, Any]]:
    """Return the measures beside accuracy, by split (`simulations.run.measures`). None stands for no model."""
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
    """Return how often each class is predicted, in predictions (n,); nothing if there are none."""
    if guesses is None or not len(guesses):
        return []
    counts: list[int] = np.bincount(guesses, minlength=len(held.test.classes)).tolist()
    return counts


def on_device(held: Held, guesses: IntArray | None, *, repeats: int = 1) -> Counts:
    """Count the predictions of the clean test sentences, (n · repeats,), all sentences one time after another.

    None stands for no model.
    """
    if guesses is None:
        return _counts(held, np.zeros(0, np.int64), np.zeros(0, np.int64))
    return _counts(held, guesses, np.tile(np.arange(len(held.test)), repeats))


def _counts(held: Held, guesses: IntArray, sentences: IntArray) -> Counts:
    texts, right = held.test_texts[sentences], guesses == held.test.labels[sentences]
    size = int(held.test_texts.max(initial=-1)) + 1
    return Counts(np.bincount(texts, minlength=size), np.bincount(texts[right], minlength=size))


def score(counts: Counts) -> Score | None:
    """Return the accuracy with its standard error over texts; None if there are no predictions.

    Predictions of one text are a cluster: their residuals are added before they are squared. The error is NaN for a
    single text. It is that of these texts and four more, two of them right (Agresti and Coull 1998), each predicted as
    often as the others on average. So an accuracy of 1 has an error too. With one prediction for each of g texts it is
    sqrt(p'(1 - p')/(g + 3)), p' = (right + 2)/(g + 4).
    """
    if not counts.guesses.sum():
        return None
    more = np.array([1.0, 1.0, 0.0, 0.0])
    return Score(_accuracy(counts), _error(_residuals(counts, more), counts.guesses > 0))


def difference(one: Counts, other: Counts) -> Difference | None:
    """Return the first accuracy less the second, paired by text; None if either has no prediction.

    The contributions of a text to both are subtracted before they are squared, so a text that is hard for both adds
    nothing. The error is that of these texts and two more, of which each arm alone has one right (Bonett and Price
    2012): arms that agree on every text need not be equal.
    """
    if not one.guesses.sum() or not other.guesses.sum():
        return None
    more = np.array([1.0, 0.0])
    residuals = _residuals(one, more) - _residuals(other, 1 - more)
    return Difference(_accuracy(one) - _accuracy(other), _error(residuals, (one.guesses > 0) | (other.guesses > 0)))


def _accuracy(counts: Counts) -> float:
    return float(counts.right.sum() / counts.guesses.sum())


def _residuals(counts: Counts, more: FloatArray) -> FloatArray:
    """Return the contribution of each text to the deviation of the accuracy, to first order in the counts, (g + k,).

    `more` (k,) is the share of right predictions of each added text.
    """
    often = float(counts.guesses[counts.guesses > 0].mean())
    guesses = np.concatenate([counts.guesses, np.full(len(more), often)])
    right = np.concatenate([counts.right, often * more])
    found: FloatArray = (right - right.sum() / guesses.sum() * guesses) / guesses.sum()
    return found


def _error(residuals: FloatArray, there: NDArray[np.bool_]) -> float:
    """Return the standard error; `there` (g,) tells which texts were predicted. All added texts count."""
    texts = int(there.sum())
    if texts < 2:
        return math.nan
    texts += len(residuals) - len(there)
    return math.sqrt(texts / (texts - 1) * float(np.sum(residuals**2)))


def write_answers(path: Path, held: Held, answers: Answers) -> None:
    """Write a line of tab-separated values for each distinct test text, completely or not at all.

    Columns are the index, from 0, of the first test sentence with this text, its class, the number of sentences with
    it, the number of right ones on the device, the number of sanitized ones that were answered, and the number of right
    ones of these. The texts themselves belong to users and are not written.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    first = np.unique(held.test_texts, return_index=True)[1]
    names = [" ".join(held.test.classes[label].split()) for label in held.test.labels[first]]
    columns = (answers.device.guesses, answers.device.right, answers.sanitized.guesses, answers.sanitized.right)
    with whole(path, private=True) as file:
        file.write(("\t".join(_HEADINGS) + "\n").encode())
        for row in zip(first.tolist(), names, *(column.tolist() for column in columns), strict=True):
            file.write(("\t".join(map(str, row)) + "\n").encode())


def read_answers(path: Path) -> Answers:
    """Return the answers in a file of `write_answers`.

    Raises:
        UserError: The file is something else.
    """
    try:
        headings, *lines = path.read_text(encoding="utf-8").splitlines()
        if headings != "\t".join(_HEADINGS):
            raise ValueError
        rows = [line.split("\t") for line in lines]
        columns = np.array([row[2:] for row in rows], np.int64).reshape(len(rows), 4).T
    except (OSError, ValueError):
        raise UserError(f"{path}: does not hold what an arm answered; run the experiment anew") from None
    return Answers(sanitized=Counts(columns[2], columns[3]), device=Counts(columns[0], columns[1]))
