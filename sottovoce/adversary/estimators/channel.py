"""Distribution of a released word given the word in its place, as far as the server knows it, and of whole texts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mechanisms.arrays import BoolArray, FloatArray, IntArray
from mechanisms.streams import SimulationStreams
from mechanisms.vocabulary import NOTHING
from mechanisms.words.custext import CusText
from mechanisms.words.deniability import has_probabilities
from mechanisms.words.distances import metric_distances
from mechanisms.words.madlib_syntax import MadlibSyntax
from mechanisms.words.tables import Verbatim
from mechanisms.words.text import TextMechanism

#: Finite replacement for the log of probability 0, so that sums over a text stay finite.
LEAST = -690.0
#: Log-probabilities in a block, and the number that divides its words.
_ENTRIES, _ALIGNED = 2**22, 16
#: Words in a block of words that are passed through.
_DIAGONAL = 256
#: Settings where there is no closed distribution: most draws of each word, most multiplications for all draws, and the
#: weight of the assumed distribution in draws.
_DRAWS, _WORK, _WORTH = 200, 5e10, 5.0
#: Factor of the assumed distribution for words of another part of speech, if the mechanism uses tags.
_OTHER_TAG = np.exp(-4.0)


@dataclass(frozen=True, eq=False)
class Channel:
    """Distribution Pr[y | x] of a single token: x in 0..V (V the unknown word), y in 0..V-1.

    For a mechanism with closed probabilities it is exact. MADLIB and related mechanisms have none, so there it is
    *estimated*. The public mechanism draws each word up to 200 times, as far as the work stays bounded. The counts are
    smoothed by exp(-ε·distance), the noise's density at the other word. A guess from an estimate is an attack, but not
    the best one.

    Args:
        text: Text mechanism.
        seed: Seed of the draws.
        words: Number of words that the caller will request; None for all. For fewer words, an estimate may take more
            draws each.

    Raises:
        ValueError: A released word depends on more of the text than the token in its place.
    """

    text: TextMechanism
    seed: int = 0
    words: int | None = None

    def __post_init__(self) -> None:
        word = self.text.word
        if word.reads or getattr(word, "moves", False):
            raise ValueError(f"{word.name}: a released word depends on the whole text, not on the token in its place")

    @property
    def size(self) -> int:
        """Return V."""
        return len(self.text.vocabulary)

    @cached_property
    def exact(self) -> bool:
        """Return True if the distribution is the mechanism's own, not an estimate."""
        return isinstance(self.text.word, Verbatim) or has_probabilities(self.text.word)

    @cached_property
    def draws(self) -> int:
        """Return the number of draws of each word in an estimate."""
        words = self.size if self.words is None else max(1, self.words)
        operations = float(self.size) * words * self.text.vocabulary.vectors.shape[1]
        return 0 if self.exact else int(min(_DRAWS, _WORK / operations))

    def log_probs(self, x: IntArray) -> FloatArray:
        """Return log-probabilities (k, V) of all released words for words (k,) in 0..V.

        A kept word releases itself. An unknown word that releases nothing has a row of -inf.
        """
        word: Any = self.text.word
        if isinstance(word, Verbatim):
            result = self._unchanged(x)
        elif self.exact:
            result = np.array(word.log_probs(x))
        else:
            result = self._estimated(x)
        mask = self.text.kept[x]
        result[mask] = self._unchanged(x[mask])
        return result

    def blocks(self, x: IntArray) -> Iterator[tuple[IntArray, IntArray, FloatArray]]:
        """Yield blocks of inputs, outputs and log-probabilities: all outputs that any of the inputs may give.

        A word that is passed through gives itself alone. A word of a CusText group gives words of its group.
        """
        word: Any = self.text.word
        mask = self.text.kept[x] | self._kept_by(word, x)
        for part in _parts(x[mask & (x < self.size)], _DIAGONAL):
            yield part, part, np.where(np.eye(len(part), dtype=bool), 0.0, -np.inf)
        x = x[~mask]
        if isinstance(word, CusText):
            yield from self._groups(word, x)
            return
        outputs = np.arange(self.size)
        for part in _parts(x, max(_ALIGNED, _ENTRIES // self.size // _ALIGNED * _ALIGNED)):
            yield part, outputs, self.log_probs(part)

    def _groups(self, word: CusText, x: IntArray) -> Iterator[tuple[IntArray, IntArray, FloatArray]]:
        group = word.mapping.group[x]
        order = np.argsort(group, kind="stable")
        edges = np.flatnonzero(np.diff(group[order])) + 1
        for inputs in np.split(x[order], edges) if len(x) else ():
            members = word.mapping.members[word.mapping.group[inputs[0]]]
            outputs = np.sort(members[members != NOTHING])
            pairs = word.log_prob(np.tile(outputs, len(inputs)), np.repeat(inputs, len(outputs)))
            yield inputs, outputs, pairs.reshape(len(inputs), len(outputs))

    @staticmethod
    def _kept_by(word: Any, x: IntArray) -> BoolArray:
        """Return True for each input that the word mechanism itself passes through."""
        if isinstance(word, CusText):
            return word.kept(x)
        return np.full(len(x), isinstance(word, Verbatim))

    def _unchanged(self, x: IntArray) -> FloatArray:
        result = np.full((len(x), self.size), -np.inf)
        rows = np.flatnonzero(x < self.size)
        result[rows, x[rows]] = 0.0
        return result

    def _estimated(self, x: IntArray) -> FloatArray:
        word: Any = self.text.word
        weights = np.exp(-word.epsilon * metric_distances(word, x, np.arange(self.size)))
        if isinstance(word, MadlibSyntax):
            tags = np.append(np.asarray(word.vocabulary.tags, dtype=np.int64), -1)
            weights *= np.where(tags[x][:, None] == tags[None, :-1], 1.0, _OTHER_TAG)
        # if all are too far for a float, all get equal weight
        weights += np.finfo(float).tiny
        weights /= weights.sum(axis=1, keepdims=True)
        if self.draws:
            streams = SimulationStreams(self.seed).rows(x, np.zeros_like(x), stage="attack-estimate", channel="text")
            draws = word.sample(np.repeat(x[:, None], self.draws, axis=1), rng=streams)
            counts = np.zeros_like(weights)
            np.add.at(counts, (np.repeat(np.arange(len(x)), self.draws), draws.ravel()), 1.0)
            weights = (counts + _WORTH * weights) / (self.draws + _WORTH)
        return np.log(weights)


def _parts(x: IntArray, size: int) -> list[IntArray]:
    return [x[at : at + size] for at in range(0, len(x), size)]


# --- whole texts


@dataclass(frozen=True, eq=False)
class Table:
    """Log-probabilities log Pr[y | x] of some inputs and outputs of a channel, each once and in rising order.

    Args:
        channel: Channel of a token.
        inputs: Words (k,), with the unknown one.
        outputs: Words (c,).
        logs: (k + 1, c + 2), float32, at least LEAST. The last row is for a place without a word. The last columns are
            for a place without a released word, and for places behind a drawn end, which say nothing.
    """

    channel: Channel
    inputs: IntArray
    outputs: IntArray
    logs: NDArray[np.float32]

    @classmethod
    def of(cls, channel: Channel, texts: IntArray, released: IntArray) -> Table:
        """Return the table of all words in `texts` and in `released`.

        Args:
            channel: Channel of a token.
            texts: Word numbers of any shape, NOTHING where there is none.
            released: Word numbers of any shape, NOTHING where there is none.
        """
        inputs = np.union1d(texts[texts != NOTHING], [channel.size]).astype(np.int64)
        outputs = np.unique(released[released != NOTHING]).astype(np.int64)
        logs = np.full((len(inputs) + 1, len(outputs) + 2), LEAST, dtype=np.float32)
        mask = np.zeros(len(inputs) + 1, dtype=bool)
        for x, y, item in channel.blocks(inputs):
            rows = np.searchsorted(inputs, x)
            places = np.flatnonzero(np.isin(outputs, y, assume_unique=True))
            logs[np.ix_(rows, places)] = np.maximum(item[:, np.searchsorted(y, outputs[places])], LEAST)
            mask[rows] |= (item > -np.inf).any(axis=1)
        logs[~mask, -2] = 0.0  # an unknown word of which nothing is shown, and no word at all
        logs[:, -1] = 0.0
        return cls(channel, inputs, outputs, logs)

    def of_words(self, texts: IntArray) -> IntArray:
        """Return the rows of words (n, L); a word outside the table gets the row of the unknown one."""
        at = np.searchsorted(self.inputs, texts).clip(max=len(self.inputs) - 1)
        at = np.where(self.inputs[at] == texts, at, np.searchsorted(self.inputs, self.channel.size))
        return np.where(texts == NOTHING, len(self.inputs), at)

    def of_releases(self, released: IntArray) -> IntArray:
        """Return the columns of released words (n, L)."""
        at = np.searchsorted(self.outputs, released).clip(max=max(0, len(self.outputs) - 1))
        columns = np.where(released == NOTHING, len(self.outputs), at)
        if self.channel.text.lengths is None:
            return columns
        for side in self.sides:
            mask = np.arange(side.stop - side.start) >= ends(released[:, side])[:, None]
            columns[:, side] = np.where(mask, len(self.outputs) + 1, columns[:, side])
        return columns

    @property
    def sides(self) -> tuple[slice, ...]:
        """Return the places of each text in a release: a pair has two texts, each with its own end."""
        return self.channel.text.slices

    def likelihood(self, texts: IntArray, released: IntArray) -> FloatArray:
        """Return log Pr[release | text], words and length, (n, C), for releases (n, L) and candidate texts (C, L)."""
        length = sum(self.length(ends(released[:, side]), ends(texts[:, side])) for side in self.sides)
        if self.channel.text.lengths is not None:  # a text is filled up to its drawn end
            texts = np.where(texts == NOTHING, self.channel.size, texts)
        rows, columns = self.of_words(texts), self.of_releases(released)
        result = np.zeros((len(texts), len(released)))
        for i in range(texts.shape[1]):
            result += self.logs[np.ix_(rows[:, i], columns[:, i])]
        return result.T + length

    def length(self, drawn: IntArray, true: IntArray) -> FloatArray:
        """Return log Pr[a release ends at drawn | a text of length true], (n, C).

        It is 0 if lengths are kept, because the places then express them.

        Args:
            drawn: Ends (n,) of releases.
            true: Lengths (C,) of texts.
        """
        law = self.channel.text.lengths
        if law is None:
            return np.zeros((len(drawn), len(true)))
        y, x = np.repeat(drawn, len(true)), np.tile(true, len(drawn))
        return np.maximum(law.log_prob(y, x), LEAST).reshape(len(drawn), len(true))


def ends(texts: IntArray) -> IntArray:
    """Return the end of each text (n, L): the place behind its last word."""
    places = np.arange(1, texts.shape[1] + 1)
    return np.where(texts != NOTHING, places, 0).max(axis=1, initial=0)
