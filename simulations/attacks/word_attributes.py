"""Attributes of texts guessed from their sanitized words: by the channel's exact law, and by networks without it.

The adversary (`server.attacks`) gets the releases of the nodes' ledgers, public texts of known attributes, the
vocabulary and the mechanism. The truth meets its guesses in `simulations.attacks.scores` alone.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client.models import texts
from client.models.tokens import padded_word_ids
from mechanisms.streams import SimulationStreams
from mechanisms.words.text import TextMechanism
from server.attacks import allowed, text_attributes
from server.attacks.channel import Channel
from server.attacks.sequences import Table
from simulations.attacks import attributes, scores
from simulations.attacks.knowledge import prepared
from simulations.attacks.target import Skipped, Target, each
from simulations.attacks.words import Held, held_of, mechanism_of
from simulations.corpora.corpus import Text
from simulations.progress import Progress

IntArray = NDArray[np.int64]

#: What each attack does, by its name on the command line.
ATTACKS = {
    "attribute-words-static": "an attribute of a sanitized text by a network that learnt on public texts as written",
    "attribute-words-adaptive": "the same, by a network that learnt on public texts, sanitized",
    "attribute-words-exact": "the same, by naive Bayes through the channel's own probabilities",
}
#: How the columns of their table are read.
READING = (
    "Attributes from words: success is the share of right guesses; baseline: the most frequent value. Relative gain is "
    "U/U' - P/P' (Mattern et al. 2022; Meisenbacher et al. 2024), with U the accuracy of the arm's model and P the "
    "success of the attack, U' and P' the same without noise: below 0 the text has lost more use than it hides. The "
    "worst-case ε is between texts that agree in what is exposed."
)
#: Draws of each public text that the adaptive network learns on.
_DRAWS = 4


def entries(
    target: Target, names: Sequence[str], *, progress: Progress = lambda line: None
) -> tuple[list[dict[str, Any]], list[str]]:
    """See Target. UserError, one line, where the arm has released no texts, or an attribute does not exist."""
    text, _ = mechanism_of(target)
    attacked = _Attributes(target, text, held_of(target, text), progress)
    return each(names, attacked.entries, on=target.arm.name)


@dataclass(frozen=True, eq=False)
class _Attributes:
    """One arm's sanitized texts under attack."""

    target: Target
    text: TextMechanism
    held: Held
    progress: Progress

    def entries(self, name: str) -> list[dict[str, Any]]:
        """One attack's lines, one for each attribute. Raises Skipped where it does not apply."""
        if self.text.word.reads:
            raise Skipped("a released word depends on the whole text, not on the token in its place")
        named = list(self.target.attributes) or attributes.of_corpus(self.target.study)
        if not named:
            raise Skipped("the corpus names no attribute; name a column with --attribute")
        return [self._entry(name, attribute) for attribute in named]

    def _entry(self, name: str, attribute: str) -> dict[str, Any]:
        ready = prepared(self.target.run, self.progress)
        about = attributes.column(self.target.study, ready.held, attribute)
        found = attributes.collected(about, self._texts, self.held.texts)
        if found.why:
            raise Skipped(f"{attribute}: {found.why}")
        guesses, plain = self._exact(found) if name.endswith("exact") else self._network(name, found)
        rate, before = scores.guesses_right(guesses, found.truth), scores.guesses_right(plain, found.truth)
        share = np.bincount(found.truth, minlength=len(found.classes)) / len(found.truth)
        gain = rate.success - float(share.max())
        relative = self._relative(rate.success, before.success)
        self.progress(f"{self.target.arm.name}: {name} of {attribute}: {rate.success:.3f} ± {rate.error:.3f}")
        theorem = self.text.guarantee
        one = both = 1.0  # what is exposed may say everything
        if not theorem.exposes:
            one, both = (allowed.guess(allowed.curve(self.text, n), share) for n in (1, 2))
        return {
            "attack": name, "arm": self.target.arm.name, "mechanism": self.text.name,
            "epsilon": getattr(self.text.word, "epsilon", None), "stage": self.held.stage,
            "worst_case_epsilon": theorem.worst_case(declared=theorem.exposes), "texts": len(found.truth),
            **rate.shown, "baseline": float(share.max()), "best": None,
            "bound": one, "bound_counts": both, "expected": None, "tokens": None,
            "attribute": attribute, "gain": gain / (1 - share.max()) if share.max() < 1 else 0.0,
            "without_noise": before.success, "relative_gain": relative,
            "by_value": attributes.by_value(guesses, found),
            "note": f"{attribute}, {len(found.classes)} values; gain {gain:+.3f}; {before.success:.3f} without noise"
            + ("" if relative is None else f"; relative gain {relative:+.3f}"),
        }  # fmt: skip

    # --- what is known

    @cached_property
    def _texts(self) -> list[Text]:
        return list(prepared(self.target.run, self.progress).public.texts)

    @cached_property
    def _public(self) -> IntArray:
        return padded_word_ids(self._texts, self.text)

    @cached_property
    def _table(self) -> Table:
        """Of the words of public texts; which others users wrote, nobody knows before the scores."""
        try:
            channel = Channel(self.text, self.target.study.seed)
        except ValueError as error:
            raise Skipped(str(error)) from error
        return Table.of(channel, self._public, self.held.released)

    # --- guesses, and those from the texts as they were written

    def _exact(self, found: attributes.Collected) -> tuple[IntArray, IntArray]:
        table, public, count = self._table, self._public[found.auxiliary], len(found.classes)
        released, truth = self.held.released[found.attacked], self.held.truth[found.attacked]
        return (
            text_attributes.through_channel(table, public, found.labels, count, released),
            text_attributes.as_written(table, public, found.labels, count, truth),
        )

    def _network(self, name: str, found: attributes.Collected) -> tuple[IntArray, IntArray]:
        from server.attacks.attributes import guessed  # torch: seconds, for these attacks alone

        vectors = self.text.vocabulary.vectors
        seen, truth = (
            text_attributes.vectors(each[found.attacked], vectors) for each in (self.held.released, self.held.truth)
        )
        clean = text_attributes.vectors(self._public[found.auxiliary], vectors)[None]
        classes, seed = len(found.classes), self.target.study.seed
        learnt = clean if name.endswith("static") else np.stack([
            text_attributes.vectors(self._drawn(found.auxiliary, i), vectors) for i in range(_DRAWS)
        ])  # fmt: skip
        plain = guessed(clean, found.labels, truth, classes=classes, seed=seed)
        return guessed(learnt, found.labels, seen, classes=classes, seed=seed), plain

    def _drawn(self, rows: IntArray, number: int) -> IntArray:
        """Public texts as users' come out."""
        drawn = texts.draw(
            self.text, [self._texts[row] for row in rows], rows, np.zeros_like(rows),
            streams=SimulationStreams(self.target.study.seed), stage=f"attack-words-{number}",
        )  # fmt: skip
        return drawn.astype(np.int64)

    def _relative(self, success: float, before: float) -> float | None:
        """The relative gain; None where the run has no reference arm to say what noise costs, or nothing to lose."""
        path = self.target.run / "results.json"
        if not path.is_file() or not before:
            return None
        arms = json.loads(path.read_text(encoding="utf-8"))["arms"]
        mine = [arm["accuracy"] for arm in arms if arm["name"] == self.target.arm.name]
        reference = [arm["accuracy"] for arm in arms if arm["reference"] and arm["accuracy"]]
        if not mine or mine[0] is None or not reference:
            return None
        return float(mine[0] / reference[0] - success / before)
