"""An attribute of a text's author or subject, from its sanitized words: naive Bayes through the channel.

Public texts say how often each word stands in texts of a value, Pr[w | a]; the mechanism says what becomes of a word,
Pr[y | w]. So Pr[y | a] = Σ_w Pr[w | a]·Pr[y | w] is known, and the guess is the value of largest posterior probability

    Pr[a]·Π_i Pr[y_i | a].

If words stood independently of each other in texts of one value, no guess would be right more often. Networks that
learn on words' vectors (`server.attacks.attributes`) stand beside it: they read the same releases without that law.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mechanisms.vocabulary import NOTHING
from server.attacks.sequences import Table

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


def through_channel(table: Table, texts: IntArray, values: IntArray, count: int, released: IntArray) -> IntArray:
    """The likeliest of `count` values behind each release (n, L), (n,), by public texts (p, L) of these values (p,), as
    numbers of words. table: of the public texts' words and of what was released."""
    laws = by_value(table, texts, values, count) @ np.exp(table.logs[:-1].astype(np.float64))
    columns = np.where(released == NOTHING, -1, table.of_releases(released))
    return _likeliest(laws, columns, values, count)


def as_written(table: Table, texts: IntArray, values: IntArray, count: int, seen: IntArray) -> IntArray:
    """The same of texts (n, L) whose words are taken for what was written: the attack where there is no noise. Words
    that the table has not are unknown."""
    return _likeliest(
        by_value(table, texts, values, count), np.where(seen == NOTHING, -1, table.of_words(seen)), values, count
    )


def by_value(table: Table, texts: IntArray, values: IntArray, count: int) -> FloatArray:
    """(count, k) Pr[w | a] of the table's words; one in N + t is left for words that texts of the value do not hold, t
    how many different ones they do (Witten and Bell 1991)."""
    rows = table.of_words(texts)
    counts = np.zeros((count, len(table.inputs) + 1))
    np.add.at(counts, (np.repeat(values, texts.shape[1]), rows.ravel()), 1.0)
    counts = counts[:, :-1]  # but for places without a word
    share = (counts.sum(axis=0) + 1.0) / (counts.sum() + counts.shape[1])
    different = np.maximum((counts > 0).sum(axis=1), 1)[:, None]
    found: FloatArray = (counts + different * share) / (counts.sum(axis=1, keepdims=True) + different)
    return found


def vectors(texts: IntArray, table: NDArray[np.float32]) -> NDArray[np.float32]:
    """The mean vector of each text's words, (n, L) numbers and (V, m) vectors -> (n, m); unknown words have none."""
    there = (texts != NOTHING) & (texts < len(table))
    total = np.stack([table[row[known]].sum(axis=0) for row, known in zip(texts, there, strict=True)])
    found: NDArray[np.float32] = total / np.maximum(there.sum(axis=1), 1)[:, None].astype(np.float32)
    return found


def _likeliest(laws: FloatArray, columns: IntArray, values: IntArray, count: int) -> IntArray:
    """laws: (count, c) of what is seen, columns (n, L) of it, -1 where that is nothing."""
    evidence = np.log(np.maximum(laws, 1e-300))[:, columns] * (columns >= 0)
    prior = (np.bincount(values, minlength=count) + 1.0) / (len(values) + count)
    found: IntArray = (evidence.sum(axis=2) + np.log(prior)[:, None]).argmax(axis=0)
    return found
