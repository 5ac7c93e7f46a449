"""Exact laws of released texts in a small world: all texts of a few words, and all that may be released of them.

A law is an array (texts, outputs). Words that are drawn on their own have a table of probabilities, from which a text's
law is put together (`assembled`). Where more is read than a word, the text's own program is run with every choice that
it can make, by replacing the sampler of choices (`played`): what shares a uniform is then drawn together, as it is.
Noise on vectors is added up over points of the plane, the same ones for all words: ratios keep every bound that holds
at each point, so that no rounding of the integral can break it or hide that it is broken.
"""

import itertools

import numpy as np
import pytest
from scipy.special import gammainc, ndtr

from mechanisms import categorical
from mechanisms.streams import Points
from mechanisms.vocabulary import NOTHING, Vocabulary
from mechanisms.words.distances import metric_distances

#: An ordinary word, a stop word nearly at its place and of another part of speech, a number, and a mark.
SMALL = Vocabulary(
    ("film", "the", "7", "!"),
    np.array([[1.0, 0.0], [1.0008, 0.0], [-1.0, 0.3], [0.0, 1.5]], np.float32),
    np.array([5, 50, 40, 2]),
    np.array([0, 1, 0, 1], np.int8),
)
SIZE = len(SMALL)
#: Mechanisms that add noise to a word's vector in the plane.
NOISY = {"madlib", "madlib-syntax", "mahalanobis"}


def texts(tokens, without=()):
    """Every text of at most so many tokens of the small vocabulary, unknown words among them: (n, tokens)."""
    words = [w for w in range(SIZE + 1) if w not in without]
    rows = [row for n in range(tokens + 1) for row in itertools.product(words, repeat=n)]
    return np.array([[*row, *[NOTHING] * (tokens - len(row))] for row in rows]).reshape(len(rows), tokens)


def losses(law):
    """The largest log-ratio of every two texts, (n, n): inf where one may give what the other cannot."""
    with np.errstate(divide="ignore", invalid="ignore"):
        log = np.log(law)
        found = np.empty((len(law), len(law)))
        for at, row in enumerate(log):
            ratio = row - log
            ratio[:, np.isneginf(row)] = -np.inf
            found[at] = ratio.max(axis=1)
    return found


# --- words on their own


def word_table(word):
    """(V + 1, V) probabilities of each word for each input, up to a factor that all inputs share; None where the
    mechanism reads more than the word."""
    if word.reads:
        return None
    try:
        return np.exp(word.log_probs(np.arange(SIZE + 1)))
    except (AttributeError, NotImplementedError):
        assert word.name in NOISY, f"{word.name}: nobody knows its law; say here how it is found"
        return _over_the_plane(word)


def _over_the_plane(word):
    side = np.linspace(-4.0, 4.0, 41)
    z = np.stack(np.meshgrid(side, side), axis=-1).reshape(-1, 2) + np.array([0.0137, 0.0071])
    root = word.root if getattr(word, "lam", 0.0) else np.eye(2)
    table = np.zeros((SIZE + 1, SIZE))
    for x, point in enumerate(SMALL.points.astype(np.float64)):
        step = np.linalg.solve(root, (z - point).T).T
        far = np.linalg.norm(step, axis=1)
        used = np.stack([gammainc(2, word.epsilon * far), *ndtr(step / far[:, None]).T], axis=1)
        drawn = word.sample(np.full(len(z), x), rng=Given(used))
        table[x] = np.bincount(drawn, weights=np.exp(-word.epsilon * far), minlength=SIZE)
    return table


def assembled(text, x, table):
    """The law of texts x whose words are drawn on their own, by the table of one word. (n, outputs)."""
    there = x != NOTHING
    ends = there.sum(axis=1)
    rows = np.where(text.kept[:, None], np.eye(SIZE + 1, SIZE), table)[np.where(there, x, SIZE)]
    parts = []
    for end in range(text.tokens + 1):
        if text.lengths is None:
            mass = (ends == end).astype(float)
        else:
            mass = np.exp(text.lengths.log_prob(np.full(len(x), end), ends))
        part = mass[:, None]
        for place in range(end):
            part = (part[:, :, None] * rows[:, place, None]).reshape(len(x), -1)
        parts.append(part)
    return np.concatenate(parts, axis=1)


# --- whole texts


def played(text, x, private):
    """The law of texts x by their own program, run with every choice that it can make: (n, (V + 1)^tokens)."""
    program = _Program(text, x, private)
    law = np.zeros((len(x), (SIZE + 1) ** text.tokens))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(categorical, "sample", program.choose)
        program.run([0] * text.uniforms)
        for script in itertools.product(*program.options()):
            program.run(script)
            law[np.arange(len(x)), program.outputs] += program.masses
    np.testing.assert_allclose(law.sum(axis=1), 1.0, rtol=0, atol=1e-9)
    return law


class _Program:
    """A text's program, whose choices are given by a script: one for each uniform of a row. Choices that a row does not
    make are made once, as 0."""

    def __init__(self, text, x, private):
        self.text, self.x, self.private = text, x, private
        self.widths = np.zeros(text.uniforms, dtype=int)
        first = 0 if text.lengths is None else 1
        coins = _coins(text.word)
        each = (text.uniforms - first) // text.tokens
        self.coins = {first + each * at + i: p for at in range(text.tokens) for i, p in enumerate(coins)}

    def options(self):
        """What each uniform chooses among. One that chose nothing yet may choose any word."""
        return [range(2 if k in self.coins else width or SIZE) for k, width in enumerate(self.widths)]

    def run(self, script):
        n, k = len(self.x), self.text.uniforms
        self.script, self.asked = np.array(script), 0
        self.logs = np.full((n, k), np.nan)
        out = self.text.sample(self.x, rng=self, **self.private)
        unused = np.isnan(self.logs) & ~np.isin(np.arange(k), list(self.coins))
        odds = [(1 - p, p)[script[column]] for column, p in self.coins.items()]
        self.masses = np.exp(np.nansum(self.logs, axis=1)) * np.prod(odds)
        self.masses[(unused & (self.script != 0)).any(axis=1)] = 0.0
        self.outputs = (out + 1) @ (SIZE + 1) ** np.arange(self.text.tokens)

    def uniform(self, rows, k):
        assert rows == len(self.x)
        columns = self.asked + np.arange(k)
        self.asked += k
        values = (np.arange(rows)[:, None] * self.text.uniforms + columns + 0.5) / (rows * self.text.uniforms)
        for i, column in enumerate(columns):
            if column in self.coins:  # 1 is below the coin's probability
                values[:, i] = 1e-9 if self.script[column] else 1 - 1e-9
        return values

    def further(self, rows, k):
        raise NotImplementedError

    def choose(self, log_weights, uniforms):
        """What stands in the place of `categorical.sample`."""
        midpoints = uniforms.u[:, 0] if isinstance(uniforms, Points) else uniforms
        cells = np.floor(midpoints * len(self.x) * self.text.uniforms).astype(int)
        rows, columns = np.divmod(cells, self.text.uniforms)
        width = log_weights.shape[1]
        np.maximum.at(self.widths, columns, width)
        chosen = self.script[columns]
        with np.errstate(divide="ignore"):
            table = np.where(chosen[:, None] < width, categorical.log_normalize(log_weights), -np.inf)
        chosen = np.minimum(chosen, width - 1)
        found, known = table[np.arange(len(rows)), chosen], self.logs[rows, columns]
        twice = ~np.isnan(known)
        assert np.array_equal(known[twice], found[twice]), "one uniform chooses by two laws"
        self.logs[rows, columns] = found
        return chosen


def _coins(word):
    """Probabilities of the coins that a mechanism throws before it draws at a position."""
    return (1 - word.deletion, word.addition) if word.name == "dp-mlm-resized" else ()


class Given:
    """Uniforms (n, k) in the order in which they are asked for."""

    def __init__(self, values):
        self.values, self.asked = values, 0

    def uniform(self, rows, k):
        self.asked += k
        return self.values[:, self.asked - k : self.asked]

    def further(self, rows, k):
        return np.full((len(rows), k), 0.5)


def read(text, x, seed=0):
    """What a mechanism reads of each text beside its words, as unlike as may be from text to text."""
    rng = np.random.default_rng(seed)
    importance = rng.permuted(np.tile(np.arange(text.tokens, dtype=float), (len(x), 1)), axis=1)
    ends = (getattr(text.word, "low", 0.0), getattr(text.word, "high", 0.0))
    logits = rng.choice(ends, (len(x), 2 * text.tokens + 1, SIZE))

    def scores(positions, words, rows):
        return logits[rows, positions]

    return {name: {"importance": importance, "scores": scores}[name] for name in text.word.reads}


# --- what texts agree in


def agreement(text, x, private):
    """(n, n) whether two texts agree in all that the text's guarantee exposes, by the loosest reading of its words: of
    what every token has, at the places where both have a token."""
    agree = np.ones((len(x), len(x)), dtype=bool)
    for name in text.guarantee.exposes:
        agree &= AGREE[name](text, x, private)
    return agree


def _kept(mask):
    """The words of a kind, and where they stand."""
    return lambda text, x, _: _alike(np.where((x != NOTHING) & mask(text)[x], x, NOTHING))


def _alike(values):
    return (values[:, None] == values[None]).all(axis=2)


def _where_both(values, x, wild=None):
    there = x != NOTHING
    same = (values[:, None] == values[None]) | ~(there[:, None] & there[None])
    if wild is not None:
        same |= wild[:, None] | wild[None]
    return same.all(axis=2)


def _tag(text, x, _):
    """An unknown word has a part of speech too, and nobody says which."""
    return _where_both(np.append(SMALL.tags, -1)[x], x, wild=x == SIZE)


def _choice(text, x, private):
    chosen = text.word.chosen(x, private["importance"])
    return _where_both(np.where(chosen, NOTHING, x), x)


def _repetition(text, x, _):
    first, second = np.triu_indices(x.shape[1], 1)
    known = (x != NOTHING) & (x != SIZE)
    return _alike((x[:, first] == x[:, second]) & known[:, first])


def _filter(text, x, _):
    return _alike(np.where(np.isin(x, text.word._pairs[:, 0]), x, NOTHING))


AGREE = {
    "length": lambda text, x, _: _alike((x != NOTHING).sum(axis=1)[:, None]),
    "stop-words": _kept(lambda text: SMALL.kinds["stop_words"]),
    "punctuation": _kept(lambda text: SMALL.kinds["punctuation"]),
    "numbers": _kept(lambda text: SMALL.kinds["numbers"]),
    "unknown-words": _kept(lambda text: np.arange(SIZE + 1) == SIZE),
    "frequent-words": _kept(lambda text: ~text.word.sensitive),
    "group": lambda text, x, _: _where_both(text.word.mapping.group[x], x),
    "tag": _tag,
    "choice": _choice,
    "repetition": _repetition,
    "filter": _filter,
}


# --- what is claimed


def claimed(text, x):
    """(n, n) the bound that `TextMechanism` states for two texts, which agree in what is exposed."""
    word, there = text.word.guarantee, x != NOTHING
    filled = np.where(there, x, SIZE)
    bound = np.full((len(x), len(x)), text.tokens * (word.offset + word.numeric_epsilon))
    if word.protects == "sequence":
        bound += text.tokens * word.epsilon * word.diameter
    else:
        every = np.arange(SIZE + 1)
        apart = (every[:, None] != every).astype(float)
        if word.metric != "discrete":
            apart = metric_distances(text.word, every, every)
        bound += word.epsilon * apart[filled[:, None], filled[None]].sum(axis=2)
    if text.lengths is not None:
        ends = there.sum(axis=1)
        bound += text.lengths.epsilon * np.abs(ends[:, None] - ends)
    return bound
