"""Train a classifier on users' texts that never leave them: the algorithm in one file, one process and memory alone.

    python docs/algorithm.py

Each of 2,000 users holds one review and its label. A user sends one random vector, charged before it leaves. A server
that nobody trusts averages the vectors, and computes a linear head for a frozen sentence encoder in closed form. The
rest of Sottovoce does the same for any number of records, labels, channels and machines, and repeats a draw to the bit.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from client.models.encoder import Encoder
from mechanisms.accounting.shuffle import amplify
from mechanisms.privunit import PrivUnit
from mechanisms.streams import SimulationStreams
from mechanisms.vocabulary import Vocabulary
from mechanisms.words.santext import SanText
from simulations.artifacts.encoder import encoder_folder
from simulations.corpora.builtin import builtin
from simulations.corpora.corpus import Corpus
from simulations.experiment import EncoderConfig

EPSILON, TOTAL, DELTA, SEED = 4.0, 8.0, 1e-6, 1
PUBLIC, USERS, TESTS, FEATURES = 2_000, 2_000, 1_000, 32
#: Of the head, measured on labelled public text (server/training/statistic_head.py says where): how fast label
#: information falls with a direction's variance, ridge in mean variances, and largest correlation with a label.
DECAY, RIDGE, CORRELATED = 2.5, 0.2, 0.95
#: Share of a vector's squared length for its constant, whose mean is the difference of the classes' frequencies.
CONSTANT = 0.1


@dataclass
class Ledger:
    """Sums of ε by user: a release is charged before it leaves, or refused.

    Theorem (basic composition): releases of ε1 and ε2 on the same data are (ε1 + ε2)-LDP together.
    """

    total: float
    spent: dict[int, float] = field(default_factory=dict)

    def charge(self, user: int, epsilon: float) -> None:
        """Add ε to a user's sum; ValueError if it would exceed the total."""
        if self.spent.get(user, 0.0) + epsilon > self.total:
            raise ValueError("the policy's total is spent")
        self.spent[user] = self.spent.get(user, 0.0) + epsilon


@dataclass(frozen=True)
class Frame:
    """Features (n, d) of length 1 from embeddings (n, m): principal components of public text, public itself."""

    mean: np.ndarray
    components: np.ndarray

    @classmethod
    def of(cls, embeddings: np.ndarray) -> Frame:
        """Return the frame of the FEATURES directions of largest variance."""
        directions = np.linalg.eigh(np.cov(embeddings, rowvar=False))[1][:, ::-1]
        return cls(embeddings.mean(axis=0).astype(np.float32), directions[:, :FEATURES].astype(np.float32))

    def features(self, embeddings: np.ndarray) -> np.ndarray:
        """Return centred, mapped, normalized embeddings."""
        mapped = (embeddings.astype(np.float64) - self.mean) @ self.components.astype(np.float64)
        return mapped / np.linalg.norm(mapped, axis=1, keepdims=True)


def user_vectors(features: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return code · [√(1-w)·f, √w], (n, d + 1) of length 1; code is 1 for class 0, -1 for class 1; w is CONSTANT.

    Their mean holds E[code·f], how features go with labels, and E[code]: all that a linear discriminant needs of users.
    """
    codes = np.where(labels == 0, 1.0, -1.0)
    constant = np.full((len(features), 1), np.sqrt(CONSTANT))
    return codes[:, None] * np.hstack([np.sqrt(1 - CONSTANT) * features, constant])


def release(vectors: np.ndarray, mechanism: PrivUnit, ledger: Ledger) -> np.ndarray:
    """Charge each user, then draw their release (n, D).

    Theorem (Bhowmick et al. 2018, section 4.1): y is uniform in a cap around x with probability p, else uniform outside
    it, and the densities of any two x differ by at most e^ε. So the release is ε-LDP, whatever the server does with it.
    Rounding to a public grid is post-processing.
    """
    for user in range(len(vectors)):
        ledger.charge(user, mechanism.epsilon)
    users = np.arange(len(vectors))
    streams = SimulationStreams(SEED).rows(users, np.zeros_like(users), stage="train", channel=mechanism.channel)
    streams.uniform(len(users), 1)  # the coin of users with many records; with one it always falls the same way
    return mechanism.grid.encode(mechanism.sample(vectors, rng=streams))


def shuffled(releases: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return the releases in random order: the server does not learn whose is whose."""
    return releases[rng.permutation(len(releases))]


def head(releases: np.ndarray, mechanism: PrivUnit, public: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return weight (d, 2) and bias (2,) of Fisher's discriminant from releases (n, D) and public features (N, d).

    Post-processing costs no ε. E[y] = scale·x, so the mean of y/scale is unbiased, with noise of a known variance in
    each coordinate. The cross moment C = E[code·(f - f̄)] is shrunk along directions of public text: its prior is
    N(0, τ²·λ^DECAY) in a direction of variance λ, with the τ² of largest likelihood (empirical Bayes).
    """
    n, share = len(releases), CONSTANT
    mean = mechanism.grid.decode(releases).mean(axis=0) / mechanism.scale
    noise = (1 / mechanism.scale**2 - 1) / (n * mechanism.dim)
    cross, constant = mean[:-1] / np.sqrt(1 - share), mean[-1] / np.sqrt(share)

    values, directions = np.linalg.eigh(np.cov(public, rowvar=False))
    cross = (cross - constant * public.mean(axis=0)) @ directions
    variance = noise / (1 - share) + values / n
    profile = values**DECAY / (values**DECAY).sum()
    levels = np.exp(np.linspace(-16, 0, 65)) / (profile / values).sum()
    total = levels[:, None] * profile + variance
    prior = levels[np.argmin((np.log(total) + cross**2 / total).sum(axis=1))] * profile
    cross *= prior / (prior + variance)

    doubt = noise / share + 1 / n  # variance of `constant`, which is shrunk by James and Stein's factor
    constant *= max(0.0, min(1 - doubt / constant**2, 1 / (1 + doubt)))
    frequency = np.array([1 + constant, 1 - constant]) / 2

    unit = 1 / np.sqrt(values + RIDGE * values.mean())
    sides = np.array([0.5, -0.5]) / np.sqrt(frequency)
    correlation = np.linalg.norm(sides) * np.linalg.norm(cross * unit)
    sides /= np.linalg.norm(sides) * np.sqrt(frequency)
    rho = min(correlation, CORRELATED)
    direction = unit**2 * cross / np.linalg.norm(cross * unit) * rho / (1 - rho**2)
    weight = np.outer(directions @ direction, sides)
    bias = np.log(frequency) - sides**2 / 2 * rho**2 / (1 - rho**2)
    return weight, bias - public.mean(axis=0) @ weight


def words_of(text: str) -> list[str]:
    """Return the words of a text, in lower case."""
    return re.findall(r"[a-z']+", text.lower())


def rewritten(text: str, words: Sequence[str], vectors: np.ndarray, epsilon: float, seed: int) -> tuple[str, float]:
    """Return a text whose words are drawn by SanText from public words, and its ε in the worst case.

    Theorem (Yue et al. 2021): Pr[y | x] ∝ exp(-ε·d(x, y)/2) is ε·d(x, x')-LDP for a word. Over n words, against any
    other n words, that is at most n·ε·D, with D the largest distance of two words.
    """
    vocabulary = Vocabulary(tuple(words), vectors)
    mechanism = SanText(epsilon, vocabulary)
    ids = np.array([words.index(word) if word in words else vocabulary.unknown for word in words_of(text)])
    draws = mechanism.sample(ids, rng=np.random.default_rng(seed))  # a device draws from its secure generator
    return " ".join(words[i] for i in draws), len(ids) * mechanism.guarantee.worst_case()


def main() -> None:
    """Train one model, and print what it learnt and what each user paid."""
    split = builtin(public=PUBLIC, train=USERS, test=TESTS, seed=SEED)
    no_texts = Corpus((), np.zeros(0, np.int64), split.public.classes)
    encoder = Encoder(encoder_folder(EncoderConfig(), no_texts, batch_size=32, seed=SEED))
    public, train, test = (encoder.encode(part.texts) for part in (split.public, split.train, split.test))

    frame, mechanism, ledger = Frame.of(public), PrivUnit(FEATURES + 1, EPSILON), Ledger(TOTAL)
    vectors = user_vectors(frame.features(train), split.train.labels)
    batch = shuffled(release(vectors, mechanism, ledger), np.random.default_rng(SEED))
    weight, bias = head(batch, mechanism, frame.features(public))
    right = (frame.features(test) @ weight + bias).argmax(axis=1) == split.test.labels
    print(f"accuracy on {TESTS:,} test reviews: {right.mean():.3f}; a guess has about .5")

    print(f"ε of each user, who trusts nobody: {max(ledger.spent.values()):g} of {ledger.total:g} allowed")
    # Theorem (Balle et al. 2019, the privacy blanket): among n shuffled releases, each hides in the part of the others
    # that does not depend on their data
    central = amplify([mechanism], users=USERS, delta=DELTA).epsilon
    print(f"ε of each user, who trusts the shuffler: {central:.3f} at δ = {DELTA:g}")

    words = sorted({word for text in split.public.texts for word in words_of(text)})
    text, worst = rewritten(split.train.texts[0], words, encoder.encode(words), 8.0, SEED)
    print(f"a text rewritten by SanText: {text}\nε of that text in the worst case: {worst:.0f}")


if __name__ == "__main__":
    main()
