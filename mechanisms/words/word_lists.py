"""Words in one dimension: lists in which each word is followed by the nearest one that is not yet there.

The order is a public function of the vocabulary and of a seed. Every word is decided exactly (see
`mechanisms.words.nearest`: distances in float64, equals to the lower number), so a client and a server with one
vocabulary have the same lists. Most words are followed by one of their nearest `_NEAR`, which are found for all words
together. If all of them have been used, the remaining words are searched.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from mechanisms.vocabulary import Vocabulary
from mechanisms.words.nearest import Remaining, nearest, neighbours

IntArray = NDArray[np.int64]

#: Neighbours that are looked up before the remaining words are searched.
_NEAR = 64


@lru_cache(maxsize=8)
def word_lists(vocabulary: Vocabulary, lists: int, seed: int) -> tuple[IntArray, IntArray]:
    """Return (lists, V) the words of each list in their order, and (lists, V + 1) the place of each word. Cached.

    The unknown word has the place of the word nearest to the mean.
    """
    size = len(vocabulary)
    near = neighbours(vocabulary, _NEAR)
    order = np.stack([_chain(vocabulary, near, _start(vocabulary, seed, i)) for i in range(lists)])
    place = np.empty((lists, size + 1), dtype=np.int64)
    np.put_along_axis(place, order, np.broadcast_to(np.arange(size), order.shape), axis=1)
    middle = int(nearest(vocabulary.points[-1:].astype(np.float64), vocabulary)[0])
    place[:, -1] = place[:, middle]
    order.flags.writeable = place.flags.writeable = False
    return order, place


def _start(vocabulary: Vocabulary, seed: int, number: int) -> int:
    """Return the start of a list: any word, by a hash, so that it does not depend on a library's generator."""
    drawn = hashlib.sha256(f"{vocabulary.identity} {seed} {number}".encode()).digest()
    return int.from_bytes(drawn[:8], "little") % len(vocabulary)


def _chain(vocabulary: Vocabulary, near: IntArray, start: int) -> IntArray:
    """Return (V,) each word once. `near` (V, k) are neighbours by rising distance, filled up with the word itself."""
    size = len(vocabulary)
    there, remaining = np.ones(size, dtype=bool), Remaining(vocabulary)
    order = np.empty(size, dtype=np.int64)
    word = start
    for at in range(size - 1):
        order[at] = word
        there[word] = False
        remaining.take(word)
        free = there[near[word]]
        step = int(free.argmax())
        word = int(near[word, step]) if free[step] else remaining.nearest(word)
    order[-1] = word
    return order
