"""Attacks on released sentence embeddings: inversion to words, and attribute inference.

The adversary (`adversary.estimators`) gets releases of the nodes' ledgers, public texts, the encoder, the maps and the
mechanism. Only `adversary.attacks.scores` compares its guesses with the truth.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mechanisms.arrays import BoolArray, FloatArray, IntArray
from mechanisms.pieces import Text
from mechanisms.stop_words import STOP_WORDS
from simulations.artifacts.text_channel import as_lines
from sottovoce.adversary.attacks import attributes, scores
from sottovoce.adversary.attacks.target import (
    Knowledge,
    Result,
    Skipped,
    Target,
    attacked,
    collect,
    knowledge,
    points_of,
    result_of,
    rows_of,
    texts_of,
)
from sottovoce.adversary.estimators import allowed, inversion, vectors
from sottovoce.adversary.estimators.attributes import by_network
from sottovoce.adversary.estimators.vectors import Pool, Question

log = logging.getLogger(__name__)


#: Description of each attack, by its name on the command line.
ATTACKS = {
    "inversion": "the words of a text from its embedding, by least squares for the presence of each word",
    "inversion-two-step": "the words of a text by a linear map to the mean of its input embeddings and near words",
    "attribute-static": "an attribute of a text by a network of three layers that learnt on embeddings without noise",
    "attribute-adaptive": "an attribute of a text by a network that learnt on embeddings with the mechanism's noise",
    "attribute-chosen": "an attribute of a text by the exact density, under the maps that serve this question best",
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
#: Number of the most frequent pieces of public texts that are used.
_MOST = 2500
#: Draws of noise for each public text that attacks learn on.
_DRAWS = 8
_INVERSIONS = ("inversion", "inversion-two-step")


def entries(target: Target, names: Sequence[str]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the entries of attacks on released embeddings: see `Target`.

    Raises:
        UserError: The arm has released no embeddings, or an attribute does not exist. The message is one line.
    """
    rows = attacked(target, rows_of(target, "embedding"), "embeddings")
    rows = [row for row in rows if row.released.digest == rows[0].released.digest]
    log.info(f"{target.arm.name}: {len(rows):,} released embeddings of stage {rows[0].released.stage}")
    known, texts = knowledge(target, rows[0]), texts_of(target, rows)
    mechanism, stage = known.question.mechanism, rows[0].released.stage
    named = result_of(target, mechanism, stage)
    sides = [
        _Embeddings(
            target=target,
            known=known,
            named=named,
            texts=texts,
            seen=points_of(rows, mechanism),
            public=known.drawn(_DRAWS if hasattr(mechanism, "epsilon") else 1),
            clean=known.points[None],
            curves=allowed.curves(mechanism),
        )
    ]
    if target.unprotected:
        side = _Embeddings(
            target=target,
            known=known,
            named=partial(named, arm=UNPROTECTED, mechanism=None, epsilon=None, worst_case_epsilon=float("inf")),
            texts=texts,
            seen=known.encoder.embed(texts),
            public=known.embeddings[None],
            clean=known.embeddings[None],
            curves=[np.zeros((0, 2))] * 2,
        )
        sides.insert(0, side)
    results: list[dict[str, Any]] = []
    skipped: list[str] = []
    for side in sides:
        # without a mechanism there is no noise to adapt to, and a text has one embedding
        applies, on = (
            (ATTACKS, target.arm.name) if side is sides[-1] else ((*_INVERSIONS, "attribute-static"), UNPROTECTED)
        )
        entries_, reasons = collect((name for name in names if name in applies), side.results, on=on)
        results += entries_
        skipped += reasons
    return results, skipped


@dataclass(frozen=True, eq=False, kw_only=True)
class _Embeddings:
    """Attacked releases of one arm, or embeddings as they would leave a client without any mechanism.

    named fills in results. texts are the truth, for the scores alone. seen are the releases (n, k). public are
    simulated releases of public texts (d, p, k), clean the same without noise (1, p, k). curves are those of one
    release, and of two together: of two users who might be exchanged.
    """

    target: Target
    known: Knowledge
    named: Callable[..., Result]
    texts: list[Text]
    seen: NDArray[Any]
    public: NDArray[Any]
    clean: NDArray[Any]
    curves: list[FloatArray]

    def results(self, name: str) -> list[Result]:
        """Return an attack's results; raise Skipped if it does not apply."""
        if name in _INVERSIONS:
            return [self._inverted(name)]
        return [self._attribute(name, attribute) for attribute in attributes.wanted(self.target)]

    # --- words

    def _inverted(self, name: str) -> Result:
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
        rate, precision, recall = scores.words(guesses, truth, count_beyond)
        frequent = np.tile(inversion.most_frequent(words), (len(truth), 1))
        bound, bound_counts = (allowed.f1(curve, truth.mean(axis=0)) for curve in self.curves)
        return self.named(
            attack=name,
            rate=rate,
            baseline=scores.words(frequent, truth, count_beyond)[0].success,
            texts=len(self.texts),
            tokens=int(truth.sum() + count_beyond.sum()),
            bound=bound,
            bound_counts=bound_counts,
            note=f"precision {precision:.3f}, recall {recall:.3f}",
            more={"dim": self.seen.shape[1], "precision": precision, "recall": recall},
        )

    @cached_property
    def _pieces(self) -> Pieces:
        try:
            return Pieces.of(str(self.known.checkpoint), tuple(as_lines(self.known.texts)))
        except ValueError as error:
            raise Skipped(str(error)) from error

    # --- attributes

    def _attribute(self, name: str, attribute: str) -> Result:
        texts = attributes.collected(self.target, attribute, self.known.texts, self.texts)
        curves, dim, note, count = self.curves, self.seen.shape[1], "", len(texts.classes)
        if name == "attribute-chosen":
            question, guesses = self._chosen(texts)
            curves, dim = allowed.curves(question.mechanism), question.projection.dim
            note = f"; m' = {dim}, drawn anew"
        else:
            embeddings = self.clean if name == "attribute-static" else self.public
            auxiliary, seen = embeddings[:, texts.auxiliary], self.seen[texts.attacked]
            guesses = by_network(auxiliary, texts.labels, seen, classes=count, seed=self.target.seed)
        named = partial(self.named, attack=name)
        return attributes.result(named, attribute, guesses, texts.truth, count, curves, note=note, more={"dim": dim})

    def _chosen(self, texts: attributes.Collected) -> tuple[Question, IntArray]:
        """Return the request that serves this question best, and guesses from simulated releases of its users."""
        seed, count = self.target.seed, len(texts.classes)
        pool = Pool(self.known.embeddings[texts.auxiliary], np.zeros_like(texts.labels), texts.labels)
        embeddings = self.known.encoder.embed([self.texts[row] for row in texts.attacked])
        try:
            question = vectors.for_value(self.known.question, pool, count, seed=seed)
        except ValueError as error:
            raise Skipped(str(error)) from error
        points = vectors.inputs(question, embeddings, np.zeros(len(embeddings), np.int64))
        draws = vectors.drawn(question, points, seed=seed, stage="attack-chosen")
        return question, vectors.guessed(question, draws, pool, count)


# --- the vocabulary of inversion


@dataclass(frozen=True, eq=False)
class Pieces:
    """Word pieces of public texts.

    Args:
        tokenizer: Tokenizer of the encoder.
        numbers: Numbers (U,) of the pieces that texts are assumed to consist of.
        content: Pieces to guess (U,), V in all: no stop words, punctuation, or parts of words.
        public: Guessed pieces (p, V) in each public text.
        table: Input embeddings (U, m).
        lower: Mean input embedding (p, m) over all pieces of each public text.
    """

    tokenizer: Any
    numbers: IntArray
    content: BoolArray
    public: BoolArray
    table: NDArray[np.float32]
    lower: NDArray[np.float32]

    @classmethod
    @lru_cache(maxsize=1)
    def of(cls, checkpoint: str, texts: tuple[str, ...]) -> Pieces:
        """Return the pieces of public texts.

        Raises:
            ValueError: The checkpoint cannot be read, or public texts hold nothing to guess.
        """
        from server.checkpoint import load  # torch
        from server.text_batches import pieces_of

        model, tokenizer = load(checkpoint)
        table = model.get_input_embeddings().weight.detach().numpy()
        rows = pieces_of(tokenizer, texts)
        piece_ids = np.concatenate([np.unique(row) for row in rows]).astype(np.int64)
        distinct, counts = np.unique(piece_ids, return_counts=True)
        numbers = np.sort(distinct[np.argsort(-counts, kind="stable")[:_MOST]])
        content = _content(tokenizer, numbers)
        if not content.any():
            raise ValueError("the public texts hold no content word")
        lower = np.stack([table[row].mean(axis=0) if len(row) else np.zeros_like(table[0]) for row in rows])
        return cls(tokenizer, numbers, content, _held(rows, numbers[content]), table[numbers], lower)

    def truth(self, texts: Sequence[str]) -> tuple[BoolArray, IntArray]:
        """Return the guessed pieces in each text, (n, V), and the number of its other content words, (n,)."""
        from server.text_batches import pieces_of

        rows = pieces_of(self.tokenizer, texts)
        distinct = [np.unique(np.array(row, dtype=np.int64)) for row in rows]
        totals = np.array([int(_content(self.tokenizer, row).sum()) for row in distinct], dtype=np.int64)
        presence = _held(distinct, self.numbers[self.content])
        return presence, totals - presence.sum(axis=1)


def _content(tokenizer: Any, numbers: IntArray) -> BoolArray:
    names = tokenizer.convert_ids_to_tokens(numbers.tolist())
    special = set(tokenizer.all_special_tokens)
    return np.array(
        [name[:1].isalnum() and name not in STOP_WORDS and name not in special for name in names], dtype=bool
    )


def _held(rows: Sequence[Any], numbers: IntArray) -> BoolArray:
    mask = np.zeros((len(rows), len(numbers)), dtype=bool)
    for i, row in enumerate(rows):
        at = np.searchsorted(numbers, row)
        at[at == len(numbers)] = 0
        mask[i, at[numbers[at] == row]] = True
    return mask
