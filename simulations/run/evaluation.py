"""Count predictions that agree with the true labels. No other module does so."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulations.errors import UserError
from simulations.experiment.sections import Data
from simulations.output.atomic import whole
from simulations.run.accuracy import Counts
from simulations.run.measures import MEASURES, Guesses, measured, measures_of
from simulations.run.prepare import Held
from simulations.shuffler.shuffle import Origin

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]

_HEADINGS = ("text", "class", "sentences", "right on device", "answers", "right")


@dataclass(frozen=True, eq=False)
class Answers:
    """Predictions of an arm's model: of sanitized test texts as they arrived, and of clean ones on the device."""

    sanitized: Counts
    device: Counts


def sanitized(held: Held, guesses: IntArray | None, origin: Origin | None) -> tuple[Counts, int]:
    """Count the predictions (n,) of a shuffled batch of test users, in its order; None if nothing was delivered.

    The second value is the number of rows of records that were not requested, which a hostile client may have made up.
    """
    if guesses is None or origin is None:
        return on_device(held, None), 0
    sentences = asked(held, origin)
    if len(guesses) != len(sentences):
        raise ValueError(f"cannot score {len(guesses)} guesses of {len(sentences)} rows")
    mask = sentences >= 0
    return _counts(held, guesses[mask], sentences[mask]), int((~mask).sum())


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
    names = measures_of(data, held)
    anywhere = [name for name in names if not MEASURES[name].on_device]
    return {
        split: measured(wanted, None if scored is None else _guesses(data, seed, held, scored))
        for split, scored, wanted in (("sanitized", sanitized, anywhere), ("on_device", on_device, names))
    }


def _guesses(data: Data, seed: int, held: Held, scored: Scored) -> Guesses:
    mask = scored.sentences >= 0
    sentences = scored.sentences[mask]
    if held.owners is not None:
        users = held.owners[sentences]
    elif scored.users is not None:
        users = scored.users[mask]
    else:
        holder = np.full(len(held.test), -1)
        holder[held.test_rows[::-1]] = held.test_holders.users[::-1]  # the first of several
        users = holder[sentences]
    groups = held.groups(data.group)
    return Guesses(
        scored.scores[mask],
        held.test.labels[sentences],
        held.test_texts[sentences],
        users,
        held.test.classes,
        data.numbers,
        seed,
        None if groups is None else groups[sentences],
        held.owners is not None,
    )


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
