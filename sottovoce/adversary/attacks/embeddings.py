"""Attacks on released sentence embeddings: inversion to words, attribute inference, and linkage.

The adversary (`adversary.estimators`) gets releases of the nodes' ledgers, public texts, the encoder, the maps and the
mechanism. Only `adversary.attacks.scores` compares its guesses with the truth.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from mechanisms.pieces import Text
from simulations.artifacts.text_channel import as_lines
from simulations.experiment import embedding_mechanism
from sottovoce.adversary.attacks import attributes, releases, scores
from sottovoce.adversary.attacks.knowledge import Knowledge, knowledge, prepared, values
from sottovoce.adversary.attacks.target import Result, Skipped, Target, collect
from sottovoce.adversary.attacks.word_pieces import Pieces
from sottovoce.adversary.estimators import allowed, chosen, inversion

log = logging.getLogger(__name__)

FloatArray = NDArray[np.float64]

#: Description of each attack, by its name on the command line.
ATTACKS = {
    "inversion": "the words of a text from its embedding, by least squares for the presence of each word",
    "inversion-two-step": "the same, by a linear map to the mean of the input embeddings and the words nearest to it",
    "attribute-static": "an attribute of a text by a network of three layers that learnt on embeddings without noise",
    "attribute-adaptive": "the same, by a network that learnt on embeddings with the mechanism's noise",
    "attribute-chosen": "the same by the exact density, had the server asked by maps that serve this question best",
}
#: Explanation of their table's columns.
READING = (
    "Inversion: success is F1 of the content words guessed (word pieces of the encoder without stop words and "
    "punctuation), over all texts together; baseline: always the words that are most frequent in public text. "
    "Attributes: success is the share of right guesses; baseline: the most frequent value; chosen: by maps of the "
    "server's choice, to which users' releases are drawn anew under the same ε. The theorem allows: the "
    "largest success of any attack on one release of any mechanism with this worst pair's δ(ε). "
    '"No mechanism" is what the encoder gives at its full width: what a client would send without any of this.'
)
#: Name of embeddings without any mechanism in the table.
UNPROTECTED = "no mechanism, full width"
#: Draws of noise for each public text that attacks learn on.
_DRAWS = 8
_INVERSIONS = ("inversion", "inversion-two-step")


def entries(target: Target, names: Sequence[str]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the entries of attacks on released embeddings: see `Target`.

    Raises:
        UserError: The arm has released no embeddings, or an attribute does not exist. The message is one line.
    """
    rows = releases.of_arm(target, "embedding")
    rows = releases.attacked(target, rows, "embeddings")
    rows = [row for row in rows if row.released.digest == rows[0].released.digest]
    log.info(f"{target.arm.name}: {len(rows):,} released embeddings of stage {rows[0].released.stage}")
    adversary = knowledge(target, rows[0])
    texts = releases.texts_of(target, rows)
    values_of_rows = np.stack([values(row, adversary.mechanism) for row in rows])
    sides = [_Embeddings(target, adversary, rows, texts, values_of_rows)]
    if target.unprotected:
        sides.insert(0, _Unprotected(target, adversary, rows, texts, adversary.encoded(texts)))
    results: list[dict[str, Any]] = []
    skipped: list[str] = []
    for side in sides:
        entries_, reasons = collect((name for name in names if name in side.applies), side.results, on=side.name)
        results += entries_
        skipped += reasons
    return results, skipped


@dataclass(frozen=True, eq=False)
class _Embeddings:
    """Attacked releases `seen` (n, m') of one arm; `texts` are the truth, for the scores alone."""

    target: Target
    known: Knowledge
    rows: list[releases.Row]
    texts: list[Text]
    seen: NDArray[Any]

    applies: ClassVar[tuple[str, ...]] = tuple(ATTACKS)

    @property
    def name(self) -> str:
        return self.target.arm.name

    @property
    def about(self) -> dict[str, Any]:
        theorem = self.known.mechanism.guarantee
        return {
            "mechanism": self.known.mechanism.name,
            "epsilon": getattr(self.known.mechanism, "epsilon", None),
            "worst_case_epsilon": theorem.worst_case(),
        }

    def results(self, name: str) -> list[Result]:
        """Return an attack's results; raise Skipped if it does not apply."""
        result_of = partial(Result, attack=name, arm=self.name, **self.about, stage=self.rows[0].released.stage)
        if name in _INVERSIONS:
            return [self._inverted(name, result_of)]
        return [self._attribute(name, attribute, result_of) for attribute in attributes.wanted(self.target)]

    # --- data that attacks learn on

    @cached_property
    def public(self) -> NDArray[Any]:
        """Return simulated releases of public texts, (d, p, k)."""
        return self.known.drawn(1 if self.about["epsilon"] is None else _DRAWS)

    @cached_property
    def clean(self) -> NDArray[Any]:
        """Return vectors of public texts without noise, (1, p, k)."""
        return self.known.points[None]

    @cached_property
    def curves(self) -> list[FloatArray]:
        """Return the curves of one release, and of two together: of two users who might be exchanged."""
        return allowed.curves(self.known.mechanism)

    # --- words

    def _inverted(self, name: str, result_of: Callable[..., Result]) -> Result:
        pieces, seed = self._pieces, self.target.seed
        words = pieces.public
        if name == "inversion":
            fits = [inversion.regression(self.public, words, penalty) for penalty in inversion.PENALTIES]
        else:
            fits = [
                inversion.two_step(self.public, pieces.lower, pieces.table, pieces.content, penalty, sparsity)
                for penalty in inversion.PENALTIES[::2]
                for sparsity in inversion.SPARSITIES
            ]
        try:
            guesses = inversion.guessed(fits, self.public, words, self.seen, seed=seed)
        except ValueError as error:
            raise Skipped(str(error)) from error
        truth, count_beyond = pieces.truth(as_lines(self.texts))
        result = scores.words(guesses, truth, count_beyond)
        baseline = scores.words(np.tile(inversion.most_frequent(words), (len(truth), 1)), truth, count_beyond)
        bound, bound_counts = (allowed.f1(curve, truth.mean(axis=0)) for curve in self.curves)
        return result_of(
            rate=result.f1,
            baseline=baseline.f1.success,
            texts=len(self.texts),
            tokens=int(truth.sum() + count_beyond.sum()),
            bound=bound,
            bound_counts=bound_counts,
            note=f"precision {result.precision:.3f}, recall {result.recall:.3f}",
            more={
                "dim": self.seen.shape[1],
                "precision": result.precision,
                "recall": result.recall,
                "baseline_precision": baseline.precision,
                "baseline_recall": baseline.recall,
            },
        )

    @cached_property
    def _pieces(self) -> Pieces:
        try:
            return Pieces.of(str(self.known.checkpoint), tuple(as_lines(self.known.texts)))
        except ValueError as error:
            raise Skipped(str(error)) from error

    # --- attributes

    def _attribute(self, name: str, attribute: str, result_of: Callable[..., Result]) -> Result:
        values_by_text = attributes.column(self.target, prepared(self.target.run).held, attribute)
        result = attributes.collected(values_by_text, self.known.texts, self.texts)
        if result.why:
            raise Skipped(f"{attribute}: {result.why}")
        curves, dim, note = self.curves, self.seen.shape[1], ""
        if name == "attribute-chosen":
            question = self._question(result)
            guesses = self._answered(question, result)
            curves, dim = allowed.curves(question.mechanism), question.m1.shape[1]
            note = f"; m' = {dim}, drawn anew"
        else:
            embeddings = self.clean if name == "attribute-static" else self.public
            from sottovoce.adversary.estimators.attributes import (
                guessed,  # scikit-learn: a second, for these attacks alone
            )

            guesses = guessed(
                embeddings[:, result.auxiliary],
                result.labels,
                self.seen[result.attacked],
                classes=len(result.classes),
                seed=self.target.seed,
            )
        details = {"dim": dim, "by_value": attributes.by_value(guesses, result)}
        count = len(result.classes)
        return attributes.result(result_of, attribute, guesses, result.truth, count, curves, note=note, more=details)

    def _question(self, found: attributes.Collected) -> chosen.Question:
        spec = self.target.arm.embedding
        assert spec is not None
        try:
            return chosen.for_value(
                self.known.embeddings[found.auxiliary],
                found.labels,
                len(found.classes),
                lambda dim: embedding_mechanism(spec, dim),
                seed=self.target.seed,
            )
        except ValueError as error:
            raise Skipped(str(error)) from error

    def _answered(self, asked: chosen.Question, found: attributes.Collected) -> NDArray[np.int64]:
        """Return guesses from simulated releases of the users for this request."""
        embeddings = self.known.encoded([self.texts[row] for row in found.attacked])
        draws = asked.drawn(embeddings, seed=self.target.seed, stage="attack-chosen")
        public = self.known.embeddings[found.auxiliary]
        return asked.guessed(draws, public, found.labels, len(found.classes))


@dataclass(frozen=True, eq=False)
class _Unprotected(_Embeddings):
    """Embeddings at the encoder's full width, as they would leave a client without any mechanism."""

    #: There is no noise to adapt to, and a text has one embedding.
    applies: ClassVar[tuple[str, ...]] = (*_INVERSIONS, "attribute-static")

    @property
    def name(self) -> str:
        return UNPROTECTED

    @property
    def about(self) -> dict[str, Any]:
        return {"mechanism": None, "epsilon": None, "worst_case_epsilon": float("inf")}

    @cached_property
    def public(self) -> NDArray[Any]:
        return self.known.embeddings[None]

    @cached_property
    def clean(self) -> NDArray[Any]:
        return self.public

    @cached_property
    def curves(self) -> list[FloatArray]:
        return [np.zeros((0, 2))] * 2
