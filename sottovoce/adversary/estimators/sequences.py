"""Likelihood of a released text for each candidate text, by the channel's exact distribution, place by place."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mechanisms.vocabulary import NOTHING
from sottovoce.adversary.estimators.channel import Channel

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

#: Finite replacement for the log of probability 0, so that sums over a text stay finite.
LEAST = -690.0


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
        result: FloatArray = np.maximum(law.log_prob(y, x), LEAST).reshape(len(drawn), len(true))
        return result


def ends(texts: IntArray) -> IntArray:
    """Return the end of each text (n, L): the place behind its last word."""
    places = np.arange(1, texts.shape[1] + 1)
    result: IntArray = np.where(texts != NOTHING, places, 0).max(axis=1, initial=0)
    return result
