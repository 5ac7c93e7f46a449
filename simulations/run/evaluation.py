"""Count predictions that agree with the true labels. No other module does so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulations.errors import UserError
from simulations.experiment.result import SPLITS, ArmResult
from simulations.experiment.sections import Data
from simulations.output.atomic import whole
from simulations.run.accuracy import Counts, score
from simulations.run.measures import MEASURES, Guesses, measured, measures_of
from simulations.run.prepare import Held
from simulations.shuffler.shuffle import Origin

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]

_HEADINGS = ("text", "class", "sentences", "right on device", "answers", "right")


#: Counts of right predictions by split, of `SPLITS`.
Answers = Mapping[str, Counts]


class Predicted(NamedTuple):
    """Predictions of a model for n test sentences.

    Attributes:
        classes: Predicted classes (n,).
        sentences: Test sentence of each, (n,), -1 for a record that was not requested.
        scores: Scores (n, K); None of a deployed model, which has no measures beside accuracy.
        users: Users who asked, (n,); None if each sentence is asked by its holder.
    """

    classes: IntArray
    sentences: IntArray
    scores: FloatArray | None = None
    users: IntArray | None = None


class Trained(NamedTuple):
    """Arm that has run.

    Attributes:
        result: Line of the results, before scoring.
        model: Model (`server.protocols.protocol.Model`); None if too little was delivered to train one.
        predictions: Predictions by split, of `SPLITS`; None without any.
    """

    result: ArmResult
    model: Any
    predictions: Mapping[str, Predicted | None]


def requested(held: Held, origin: Origin) -> IntArray:
    """Return the test sentence of each row of a shuffled batch, (n,); -1 for a record that was not requested."""
    rows = held.test_holders.rows_of(origin)
    sentences: IntArray = np.where(rows >= 0, held.test_rows[rows], -1)
    return sentences


def predicted(scores: FloatArray, sentences: IntArray, users: IntArray | None = None) -> Predicted:
    """Return the predictions of a model with these scores, (n, K), for test sentences (n,)."""
    return Predicted(scores.argmax(axis=1), sentences, scores, users)


def evaluate(trained: Trained, data: Data, held: Held, *, seed: int) -> tuple[ArmResult, Answers]:
    """Return an arm's result with accuracies and all measures of its model's scores, and the counts."""
    result, answers = with_accuracies(trained.result, held, trained.predictions)
    names, measures = measures_of(data, held), {}
    for split, predictions in trained.predictions.items():
        wanted = [name for name in names if split == "on_device" or not MEASURES[name].on_device]
        measures[split] = measured(wanted, _guesses(data, seed, held, predictions))
    return replace(result, measures=measures), answers


def with_accuracies(
    result: ArmResult, held: Held, predictions: Mapping[str, Predicted | None]
) -> tuple[ArmResult, Answers]:
    """Return the result with its accuracies and how often each class is predicted, and the counts."""
    answers = {split: _counts(held, predictions[split]) for split in SPLITS}
    guessed = {split: _frequencies(held, predictions[split]) for split in SPLITS}
    return replace(result.scored(*(score(answers[split]) for split in SPLITS)), guessed=guessed), answers


def _frequencies(held: Held, predicted: Predicted | None) -> list[int]:
    """Return how often each class is predicted; nothing without a prediction."""
    if predicted is None or not len(predicted.classes):
        return []
    counts: list[int] = np.bincount(predicted.classes, minlength=len(held.test.classes)).tolist()
    return counts


def _counts(held: Held, predicted: Predicted | None) -> Counts:
    """Count predictions by distinct test text, without those of records that were not requested."""
    none = np.zeros(0, np.int64)
    classes, sentences = (none, none) if predicted is None else predicted[:2]
    classes, sentences = classes[sentences >= 0], sentences[sentences >= 0]
    texts, right = held.test_texts[sentences], classes == held.test.labels[sentences]
    size = int(held.test_texts.max(initial=-1)) + 1
    return Counts(np.bincount(texts, minlength=size), np.bincount(texts[right], minlength=size))


def _guesses(data: Data, seed: int, held: Held, predicted: Predicted | None) -> Guesses | None:
    if predicted is None or predicted.scores is None:
        return None
    mask = predicted.sentences >= 0
    sentences = predicted.sentences[mask]
    if held.owners is not None:
        users = held.owners[sentences]
    elif predicted.users is not None:
        users = predicted.users[mask]
    else:
        holder = np.full(len(held.test), -1)
        holder[held.test_rows[::-1]] = held.test_holders.users[::-1]  # the first of several
        users = holder[sentences]
    groups = held.groups(data.group)
    return Guesses(
        predicted.scores[mask],
        held.test.labels[sentences],
        held.test_texts[sentences],
        users,
        held.test.classes,
        data.numbers,
        seed,
        None if groups is None else groups[sentences],
        held.owners is not None,
    )


def write_answers(path: Path, held: Held, answers: Answers) -> None:
    """Write a line of tab-separated values for each distinct test text, completely or not at all.

    Columns are the index, from 0, of the first test sentence with this text, its class, the number of sentences with
    it, the number of right ones on the device, the number of sanitized ones that were answered, and the number of right
    ones of these. The texts themselves belong to users and are not written.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    first = np.unique(held.test_texts, return_index=True)[1]
    names = [" ".join(held.test.classes[label].split()) for label in held.test.labels[first]]
    columns = [column for split in reversed(SPLITS) for column in (answers[split].guesses, answers[split].right)]
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
    return {"sanitized": Counts(*columns[2:]), "on_device": Counts(*columns[:2])}
