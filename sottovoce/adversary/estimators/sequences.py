"""How likely a released text is for each text that it may have come from: the channel's exact law, place by place."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mechanisms.vocabulary import NOTHING
from sottovoce.adversary.estimators.channel import Channel

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

#: What stands for the log of no probability at all: sums of it over a text stay finite.
LEAST = -690.0


@dataclass(frozen=True, eq=False)
class Table:
    """log Pr[y | x] of some inputs and outputs of a channel, each rising and once.

    inputs: (k,) words, the unknown one among them. outputs: (c,). logs: (k + 1, c + 2), float32, at least LEAST: the
    last row is of no word at all, the last columns of no word being released in a place, and of places behind a drawn
    end, which say nothing.
    """

    channel: Channel
    inputs: IntArray
    outputs: IntArray
    logs: NDArray[np.float32]

    @classmethod
    def of(cls, channel: Channel, texts: IntArray, released: IntArray) -> Table:
        """For whatever words stand in `texts` and in `released`, numbers of any shape, NOTHING where there is none."""
        inputs = np.union1d(texts[texts != NOTHING], [channel.size]).astype(np.int64)
        outputs = np.unique(released[released != NOTHING]).astype(np.int64)
        logs = np.full((len(inputs) + 1, len(outputs) + 2), LEAST, dtype=np.float32)
        shown = np.zeros(len(inputs) + 1, dtype=bool)
        for x, y, found in channel.blocks(inputs):
            rows = np.searchsorted(inputs, x)
            here = np.flatnonzero(np.isin(outputs, y, assume_unique=True))
            logs[np.ix_(rows, here)] = np.maximum(found[:, np.searchsorted(y, outputs[here])], LEAST)
            shown[rows] |= (found > -np.inf).any(axis=1)
        logs[~shown, -2] = 0.0  # an unknown word of which nothing is shown, and no word at all
        logs[:, -1] = 0.0
        return cls(channel, inputs, outputs, logs)

    def of_words(self, texts: IntArray) -> IntArray:
        """The rows of words, (n, L) -> (n, L); of a word that the table has not, that of the unknown one."""
        at = np.searchsorted(self.inputs, texts).clip(max=len(self.inputs) - 1)
        at = np.where(self.inputs[at] == texts, at, np.searchsorted(self.inputs, self.channel.size))
        return np.where(texts == NOTHING, len(self.inputs), at)

    def of_releases(self, released: IntArray) -> IntArray:
        """The columns of released words, (n, L) -> (n, L)."""
        at = np.searchsorted(self.outputs, released).clip(max=max(0, len(self.outputs) - 1))
        columns = np.where(released == NOTHING, len(self.outputs), at)
        if self.channel.text.lengths is None:
            return columns
        for side in self.sides:
            behind = np.arange(side.stop - side.start) >= ends(released[:, side])[:, None]
            columns[:, side] = np.where(behind, len(self.outputs) + 1, columns[:, side])
        return columns

    @property
    def sides(self) -> tuple[slice, ...]:
        """Where each of a release's texts stands: a pair has two, each with an end of its own."""
        return self.channel.text.slices

    def likelihood(self, texts: IntArray, released: IntArray) -> FloatArray:
        """log Pr[release | text] for releases (n, L) and candidate texts (C, L), words and length: (n, C)."""
        length = sum(self.length(ends(released[:, side]), ends(texts[:, side])) for side in self.sides)
        if self.channel.text.lengths is not None:  # a text is filled up to its drawn end
            texts = np.where(texts == NOTHING, self.channel.size, texts)
        rows, columns = self.of_words(texts), self.of_releases(released)
        found = np.zeros((len(texts), len(released)))
        for i in range(texts.shape[1]):
            found += self.logs[np.ix_(rows[:, i], columns[:, i])]
        return found.T + length

    def length(self, drawn: IntArray, true: IntArray) -> FloatArray:
        """log Pr[a release ends at drawn | a text of length true], (n,) and (C,) -> (n, C); where lengths are kept,
        their places say it."""
        law = self.channel.text.lengths
        if law is None:
            return np.zeros((len(drawn), len(true)))
        y, x = np.repeat(drawn, len(true)), np.tile(true, len(drawn))
        found: FloatArray = np.maximum(law.log_prob(y, x), LEAST).reshape(len(drawn), len(true))
        return found


def ends(texts: IntArray) -> IntArray:
    """Where each text (n, L) ends: behind its last word."""
    places = np.arange(1, texts.shape[1] + 1)
    found: IntArray = np.where(texts != NOTHING, places, 0).max(axis=1, initial=0)
    return found
