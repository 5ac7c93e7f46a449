"""Attributes of texts: their columns, the texts that an adversary may learn from, and the attacked texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mechanisms.catalogue import nearest
from mechanisms.pieces import Text
from simulations.corpora.parts import read_parts
from simulations.errors import UserError
from simulations.experiment.sections import Data
from simulations.run.prepare import Held
from sottovoce.adversary.attacks.scores import guesses_right
from sottovoce.adversary.attacks.target import Result, Skipped, Target
from sottovoce.adversary.estimators import allowed

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

#: Name of the author attribute of the built-in corpus.
AUTHOR = "author"
#: Least number of texts with a known attribute, to learn on and to guess.
LEAST = 30


@dataclass(frozen=True, eq=False)
class Collected:
    """Texts with an attribute.

    Args:
        classes: Values of the attribute.
        auxiliary: Rows (a,) of the public texts whose value is known.
        labels: Their values (a,).
        attacked: Rows (t,) of the attacked texts.
        truth: Their values (t,).
        why: Reason why there is nothing to learn or to guess; "" if there is.
    """

    classes: tuple[str, ...]
    auxiliary: IntArray
    labels: IntArray
    attacked: IntArray
    truth: IntArray
    why: str = ""


def of_corpus(data: Data) -> list[str]:
    """Return the default attributes: for the built-in corpus, those that are not the task."""
    if data.source != "built-in":
        return []
    return [name for name in ("genre", "sentiment") if name != data.task]


def wanted(target: Target) -> list[str]:
    """Return the attributes to guess: the named ones, or else the corpus's.

    Raises:
        Skipped: There is none.
    """
    names = list(target.attributes) or of_corpus(target.data)
    if not names:
        raise Skipped("the corpus names no attribute; name a column with --attribute")
    return names


def column(target: Target, held: Held, name: str) -> Mapping[Text, str]:
    """Return a column's value for each text. A text with several values is left out.

    Args:
        target: Attacked arm.
        held: Data of the run.
        name: Name or number of the column.

    Raises:
        UserError: There is no such column.
    """
    data = target.data
    if data.source == "built-in":
        parts = [target.split().public, held.train, held.test]
        names = [*held.train.extra, AUTHOR]
        if name not in names:
            raise UserError(f"--attribute {name}: the built-in corpus has none of that name; {nearest(name, names)}")
        columns = [(c, c.users if name == AUTHOR else c.extra[name]) for c in parts]
    else:
        try:
            corpora = read_parts(data, label=int(name) if isinstance(data.text, int) and name.isdigit() else name)
        except UserError as error:
            raise UserError(f"--attribute {name}: {error}") from error
        columns = [(c, [c.classes[label] for label in c.labels]) for c in corpora]
    entries: dict[Text, set[str]] = {}
    for corpus, values in columns:
        for text, value in zip(corpus.texts, values or (), strict=True):
            entries.setdefault(text, set()).add(str(value))
    return {text: next(iter(values_of_text)) for text, values_of_text in entries.items() if len(values_of_text) == 1}


def collected(about: Mapping[Text, str], public: Sequence[Text], attacked: Sequence[Text]) -> Collected:
    """Return the texts that an adversary learns from and attacks; only values of public texts count.

    Args:
        about: Value of each text.
        public: Public texts.
        attacked: Attacked texts.
    """
    classes = tuple(sorted({about[text] for text in public if text in about}))
    index = {value: i for i, value in enumerate(classes)}
    auxiliary = np.array([i for i, text in enumerate(public) if text in about], dtype=np.int64)
    rows = np.array([i for i, text in enumerate(attacked) if about.get(text) in index], dtype=np.int64)
    reason = ""
    if min(len(auxiliary), len(rows)) < LEAST:
        reason = (
            f"{LEAST} public texts with a value, and {LEAST} attacked ones of the same values, are needed; there are "
            f"{len(auxiliary)} and {len(rows)}"
        )
    elif len(classes) < 2:
        reason = "public texts have one value only"
    return Collected(
        classes,
        auxiliary,
        np.array([index[about[public[i]]] for i in auxiliary], dtype=np.int64),
        rows,
        np.array([index[about[attacked[i]]] for i in rows], dtype=np.int64),
        reason,
    )


def by_value(guesses: IntArray, collected: Collected) -> dict[str, float]:
    """Return the share of right guesses among texts of each value."""
    truth = collected.truth
    return {
        name: float((guesses[truth == i] == i).mean()) for i, name in enumerate(collected.classes) if (truth == i).any()
    }


def result(
    result_of: Callable[..., Result],
    attribute: str,
    guesses: IntArray,
    truth: IntArray,
    count: int,
    curves: Sequence[FloatArray] | None,
    *,
    note: str = "",
    more: Mapping[str, Any] | None = None,
) -> Result:
    """Return the result of guesses of an attribute of `count` values.

    Args:
        result_of: Function that fills in attack and arm.
        attribute: Name of the attribute.
        guesses: Guesses (t,).
        truth: True values (t,).
        count: Number of values.
        curves: Curves (`allowed.curve`) of one release and of two; None if a release may show everything.
        note: Further note.
        more: Further entries.
    """
    rate = guesses_right(guesses, truth)
    share = np.bincount(truth, minlength=count) / len(truth)
    baseline = float(share.max())
    bound, bound_counts = (1.0, 1.0) if curves is None else (allowed.guess(curve, share) for curve in curves)
    gain = rate.success - baseline
    return result_of(
        attribute=attribute,
        texts=len(truth),
        rate=rate,
        baseline=baseline,
        bound=bound,
        bound_counts=bound_counts,
        note=f"{attribute}, {count} values; gain {gain:+.3f}{note}",
        more={"gain": gain / (1 - baseline) if baseline < 1 else 0.0} | dict(more or {}),
    )
