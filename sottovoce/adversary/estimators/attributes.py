"""Attack that guesses an attribute of a text's author or subject from a release: a network of three layers.

It is the attack of Song and Raghunathan 2020 (section 3.3), as Du et al. 2023 (section 4.4) use it. The adversary turns
auxiliary texts with known attributes into the vectors of releases. A network of three layers learns on them, and
guesses the attribute of other texts. A *static* adversary learns on vectors without noise. An *adaptive* one learns on
vectors with the mechanism's own noise, drawn afresh in every epoch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.neural_network import MLPClassifier

IntArray = NDArray[np.int64]

_HIDDEN, _BATCH, _DECAY = 128, 64, 1e-2
_EPOCHS = 60
#: Share of the auxiliary texts that decides when to stop.
_HELD_OUT = 0.2


def guessed(auxiliary: NDArray[Any], labels: IntArray, seen: NDArray[Any], *, classes: int, seed: int) -> IntArray:
    """Return the guessed class for each attacked vector, (n,).

    The network is that of the epoch with the best guesses on a held-out fifth of the texts. No global generator is
    used.

    Args:
        auxiliary: Vectors (d, p, k) of d draws for each of p texts; epochs use the draws in turn.
        labels: Classes (p,) of the texts.
        seen: Attacked vectors (n, k).
        classes: Number of classes.
        seed: Seed of all random choices.

    Raises:
        ValueError: There are fewer than 10 texts.
    """
    texts = auxiliary.shape[1]
    if texts < 10:
        raise ValueError(f"{texts} auxiliary texts are too few to learn on")
    order = np.random.default_rng([seed, 9]).permutation(texts)
    fold, fit_rows = order[: int(texts * _HELD_OUT)], order[int(texts * _HELD_OUT) :]
    middle, spread = auxiliary.mean(axis=(0, 1)), auxiliary.std(axis=(0, 1)) + 1e-9
    x, attacked = ((values - middle) / spread for values in (auxiliary, seen))
    network = MLPClassifier((_HIDDEN, _HIDDEN), batch_size=min(_BATCH, len(fit_rows)), alpha=_DECAY, random_state=seed)
    best, guesses = -1.0, np.zeros(len(seen), np.int64)
    for epoch in range(_EPOCHS):
        network.partial_fit(x[epoch % len(x)][fit_rows], labels[fit_rows], classes=np.arange(classes))
        right = float(np.mean([network.score(draw[fold], labels[fold]) for draw in x]))
        if right > best:
            best, guesses = right, network.predict(attacked)
    return guesses
