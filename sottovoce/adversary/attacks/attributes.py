"""Attribute inference: columns of attributes, texts to learn from, and attacks on sanitized texts.

Sanitized texts are read by the channel's exact distribution, and by learners without it. The adversary
(`adversary.estimators`) gets the releases of the nodes' ledgers, public texts with known attributes, the vocabulary,
the mechanism, and the masked language model if the mechanism reads one. Only `adversary.attacks.scores` compares its
guesses with the truth.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client.models.tokens import joined, padded_word_ids
from mechanisms.arrays import BoolArray, FloatArray, IntArray
from mechanisms.catalogue import nearest
from mechanisms.pieces import Text
from mechanisms.words.text import TextMechanism
from simulations.artifacts.public import CachedEncoder, encoder_of
from simulations.corpora.parts import read_parts
from simulations.errors import UserError
from sottovoce.adversary.attacks.scores import guesses_right
from sottovoce.adversary.attacks.target import Result, Skipped, Target, collect, result_of
from sottovoce.adversary.attacks.words import Held, channel_of, held_of, mechanism_of, redrawn
from sottovoce.adversary.estimators import allowed
from sottovoce.adversary.estimators import attributes as estimators
from sottovoce.adversary.estimators.channel import Table

log = logging.getLogger(__name__)


#: Description of each attack, by its name on the command line.
ATTACKS = {
    "attribute-words-static": "an attribute of a sanitized text by what learnt on public texts as written",
    "attribute-words-adaptive": "an attribute of a sanitized text by what learnt on public texts, sanitized likewise",
    "attribute-words-exact": "an attribute of a sanitized text by naive Bayes through the channel's own probabilities",
}
#: Explanation of their table's columns.
READING = (
    "Attributes from words: success is the share of right guesses; baseline: the most frequent value. Static and "
    "adaptive read a text by its words and by a sentence encoder, and take what guesses best on "
    "public texts held out, which the adaptive one has rewritten. Relative gain is U/U' - P/P' (Mattern et al. 2022; "
    "Meisenbacher et al. 2024, section 5.2), with U the accuracy of the arm's model and P the success of the attack, "
    "U' and P' the same without noise (U' of the run's reference arm whose texts are as written): below 0 the text has "
    "lost more use than it hides. The worst-case ε is between texts that agree in what is exposed."
)
#: Draws of each public text that an adaptive adversary learns on, and with a language model.
_DRAWS, _DRAWS_READ = 4, 1


#: Name of the author attribute of the built-in corpus.
AUTHOR = "author"
#: Least number of texts with a known attribute, to learn on and to guess.
LEAST = 30


@dataclass(frozen=True, eq=False)
class Collected:
    """Texts with an attribute of some classes.

    `auxiliary` are rows (a,) of the public texts whose value is known, with their values as labels (a,), and `attacked`
    rows (t,) of the attacked texts, with their true values (t,).
    """

    classes: tuple[str, ...]
    auxiliary: IntArray
    labels: IntArray
    attacked: IntArray
    truth: IntArray


def wanted(target: Target, *first: str) -> list[str]:
    """Return the attributes to guess: `first`, then the named ones, or those of the built-in corpus but its task.

    Raises:
        Skipped: There is none.
    """
    data = target.experiment.data
    defaults = [name for name in ("genre", "sentiment") if name != data.task] if data.source == "built-in" else []
    names = list(dict.fromkeys([*first, *(target.attributes or defaults)]))
    if not names:
        raise Skipped("the corpus names no attribute; name a column with --attribute")
    return names


def column(target: Target, name: str) -> Mapping[Text, str]:
    """Return a column's value for each text. A text with several values is left out.

    Raises:
        UserError: There is no such column.
    """
    data = target.experiment.data
    if data.source == "built-in":
        held = target.prepared.held
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


def collected(target: Target, name: str, public: Sequence[Text], attacked: Sequence[Text]) -> Collected:
    """Return the texts that an adversary learns from and attacks; only values of public texts count.

    Raises:
        Skipped: There is nothing to learn or to guess.
    """
    values = column(target, name)
    classes = tuple(sorted({values[text] for text in public if text in values}))
    index = {value: i for i, value in enumerate(classes)}
    auxiliary = np.array([i for i, text in enumerate(public) if text in values], dtype=np.int64)
    rows = np.array([i for i, text in enumerate(attacked) if values.get(text) in index], dtype=np.int64)
    if min(len(auxiliary), len(rows)) < LEAST:
        raise Skipped(
            f"{name}: {LEAST} public texts with a value, and {LEAST} attacked ones of the same values, are needed; "
            f"there are {len(auxiliary)} and {len(rows)}"
        )
    if len(classes) < 2:
        raise Skipped(f"{name}: public texts have one value only")
    labels = np.array([index[values[public[i]]] for i in auxiliary], dtype=np.int64)
    return Collected(classes, auxiliary, labels, rows, np.array([index[values[attacked[i]]] for i in rows], np.int64))


def result(
    named: Callable[..., Result],
    attribute: str,
    guesses: IntArray,
    truth: IntArray,
    count: int,
    curves: Sequence[FloatArray] | None,
    *,
    note: str = "",
    more: Mapping[str, Any] | None = None,
) -> Result:
    """Return the result of guesses (t,) of an attribute of `count` values, with a further note and further entries.

    `named` is `result_of` with the name of the attack. The curves (`allowed.curve`) are of one release and of two; None
    if a release may show everything.
    """
    rate = guesses_right(guesses, truth)
    share = np.bincount(truth, minlength=count) / len(truth)
    baseline = float(share.max())
    bound, bound_counts = (1.0, 1.0) if curves is None else (allowed.guess(curve, share) for curve in curves)
    gain = rate.success - baseline
    return named(
        attribute=attribute,
        texts=len(truth),
        rate=rate,
        baseline=baseline,
        bound=bound,
        bound_counts=bound_counts,
        note=f"{attribute}, {count} values; gain {gain:+.3f}{note}",
        more={"gain": gain / (1 - baseline) if baseline < 1 else 0.0} | dict(more or {}),
    )


# --- sanitized texts


def entries(target: Target, names: Sequence[str]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the entries of attribute inference from texts: see `Target`.

    Raises:
        UserError: The arm has released no texts, or an attribute does not exist. The message is one line.
    """
    text, language_model = mechanism_of(target)
    attack = _Attributes(target, text, held_of(target, text), language_model)
    return collect(
        names,
        lambda name: (attack.result(name, attribute) for attribute in wanted(target)),
        on=target.arm.name,
    )


@dataclass(frozen=True, eq=False)
class _Attributes:
    """Attacked sanitized texts of one arm."""

    target: Target
    text: TextMechanism
    held: Held
    language_model: Path | None

    def result(self, name: str, attribute: str) -> Result:
        """Return an attack's result for an attribute; raise Skipped if it does not apply."""
        values = collected(self.target, attribute, self._texts, self.held.texts)
        view, guesses, baseline = (
            self._exact(values) if name.endswith("exact") else self._learnt(name, attribute, values)
        )
        rate = guesses_right(baseline, values.truth)
        relative = self._relative(guesses == values.truth, baseline == values.truth)
        theorem = self.text.guarantee
        note = f"; {rate.success:.3f} ± {rate.error:.3f} without noise{view and f'; by {view}'}"
        worst = theorem.worst_case(declared=theorem.exposes)
        return result(
            partial(result_of(self.target, self.text.word, self.held.stage), attack=name, worst_case_epsilon=worst),
            attribute,
            guesses,
            values.truth,
            len(values.classes),
            # exposed information may reveal everything
            None if theorem.exposes else allowed.curves(self.text),
            note=note + ("" if relative is None else "; relative gain {:+.3f} ± {:.3f}".format(*relative)),
            more={
                "without_noise": rate.success,
                "without_noise_error": rate.error,
                "relative_gain": None if relative is None else relative[0],
                "relative_gain_error": None if relative is None else relative[1],
                "by": view,
            },
        )

    # --- knowledge of the adversary

    @cached_property
    def _texts(self) -> list[Text]:
        return list(self.target.prepared.public.texts)

    @cached_property
    def _public(self) -> IntArray:
        return padded_word_ids(self._texts, self.text)

    @cached_property
    def _table(self) -> Table:
        """Return the table of public texts' words; nobody knows users' other words before the scores."""
        return Table.of(channel_of(self.target, self.text), self._public, self.held.released)

    @cached_property
    def _drawn(self) -> IntArray:
        """Return d simulated releases of public texts, (d, p, L)."""
        count = _DRAWS_READ if self.text.word.reads else _DRAWS
        if self.text.word.reads:
            log.info(f"{self.target.arm.name}: rewriting {len(self._texts):,} public texts by the language model")
        rows = np.arange(len(self._texts), dtype=np.int64)
        public = self.target, self.text, self._texts, rows, np.zeros_like(rows)
        return np.stack([redrawn(*public, f"attack-words-{i}", self.language_model) for i in range(count)])

    @cached_property
    def _encoder(self) -> CachedEncoder:
        """Return the study's sentence encoder, which is public."""
        return encoder_of(self.target.experiment, self.target.split().public)

    # --- guesses, with those from the texts as written

    def _exact(self, found: Collected) -> tuple[str, IntArray, IntArray]:
        table, public, count = self._table, self._public[found.auxiliary], len(found.classes)
        releases, truth = self.held.released[found.attacked], self.held.truth[found.attacked]
        return (
            "",
            estimators.through_channel(table, public, found.labels, count, releases),
            estimators.as_written(table, public, found.labels, count, truth),
        )

    def _learnt(self, name: str, attribute: str, found: Collected) -> tuple[str, IntArray, IntArray]:
        """Return the name of the best view, its guesses, and the best guesses from the texts as written."""
        classes, seed = len(found.classes), self.target.seed
        public_features = self._read(
            self._public[found.auxiliary][None], [[self._texts[row] for row in found.auxiliary]]
        )
        releases = self.held.released[found.attacked]
        features = self._read(releases[None], [self.text.texts(releases)])
        if name.endswith("static"):
            views = self._views(public_features, public_features, features)
        else:
            draws = self._drawn[:, found.auxiliary]
            features_of_draws = self._read(draws, [self.text.texts(item) for item in draws])
            views = self._views(features_of_draws, features_of_draws, features)
            views += self._views(public_features, features_of_draws, features, " of texts as written")
        view, guesses = estimators.most_promising(views, found.labels, classes=classes, seed=seed)
        if attribute not in self._plain:
            lines = [self.held.texts[row] for row in found.attacked]
            word_ids = padded_word_ids(lines, self.text)
            views = self._views(public_features, public_features, self._read(word_ids[None], [lines]))
            _, self._plain[attribute] = estimators.most_promising(views, found.labels, classes=classes, seed=seed)
        return view, guesses, self._plain[attribute]

    @cached_property
    def _plain(self) -> dict[str, IntArray]:
        """Return the guesses from the texts as written, by attribute."""
        return {}

    def _read(self, ids: IntArray, lines: Sequence[list[Text]]) -> dict[str, NDArray[Any]]:
        """Return the readings (d, p, k) of each view, by its name.

        ids are words (d, p, L); lines are d draws of p texts.
        """
        return {
            "words": ids,
            "sentence encoder": np.stack([self._encoder.embed(list(map(joined, item))) for item in lines]),
        }

    @staticmethod
    def _views(
        learnt: Mapping[str, NDArray[Any]],
        looks_like: Mapping[str, NDArray[Any]],
        seen: Mapping[str, NDArray[Any]],
        of: str = "",
    ) -> list[estimators.View]:
        return [
            estimators.View(
                name + of,
                estimators.by_words if name == "words" else estimators.by_network,
                item,
                seen[name][0],
                looks_like[name],
            )
            for name, item in learnt.items()
        ]

    def _relative(self, right: BoolArray, plain: BoolArray) -> tuple[float, float] | None:
        """Return the relative gain and its standard error; None without a reference arm that shows the cost of noise.

        The reference arm releases its texts as written. RG = U_r/U_o - P_r/P_o (Meisenbacher et al. 2024, section 5.2).
        The error is to first order: that of P_r/P_o pairs by attacked text. U_r and U_o are assumed independent, which
        overstates the error, because they are of the same test texts.
        """
        arms = (
            arm for arm in self.target.experiment.arms if arm.reference and arm.way is None and arm.text is not None
        )
        unchanged = next((arm.name for arm in arms if (arm.text or {})["mechanism"] == "identity"), None)
        results, names = self.target.arm_results(), (self.target.arm.name, unchanged)
        result, reference = (results[name].score("sanitized") if name in results else None for name in names)
        if result is None or reference is None or not reference.accuracy or not plain.any():
            return None
        utility, privacy = result.accuracy / reference.accuracy, float(right.mean() / plain.mean())
        residuals = (right - privacy * plain) / plain.mean()
        errors = [float(residuals.std() / math.sqrt(len(right)))]
        if names[0] != names[1]:
            shares = (result.error or 0.0), utility * (reference.error or 0.0)
            errors += [share / reference.accuracy for share in shares]
        return float(utility - privacy), math.hypot(*errors)
