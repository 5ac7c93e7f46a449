"""Attack that guesses an attribute of a text's author or subject from a release: a network of three layers.

It is the attack of Song and Raghunathan 2020 (section 3.3), as Du et al. 2023 (section 4.4) use it. The adversary turns
auxiliary texts with known attributes into the vectors of releases. A network of three layers learns on them, and
guesses the attribute of other texts. A *static* adversary learns on vectors without noise. An *adaptive* one learns on
vectors with the mechanism's own noise, drawn afresh in every epoch.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

IntArray = NDArray[np.int64]

_HIDDEN, _BATCH, _RATE, _DECAY = 128, 64, 1e-3, 1e-2
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
    draws, texts, width = auxiliary.shape
    if texts < 10:
        raise ValueError(f"{texts} auxiliary texts are too few to learn on")
    order = np.random.default_rng([seed, 9]).permutation(texts)
    held, rest = order[: int(texts * _HELD_OUT)], order[int(texts * _HELD_OUT) :]
    middle, spread = auxiliary.mean(axis=(0, 1)), auxiliary.std(axis=(0, 1)) + 1e-9

    def tensor(x: NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(((x - middle) / spread).astype(np.float32))

    chance = torch.Generator().manual_seed(seed)
    sizes = (width, _HIDDEN, _HIDDEN, classes)
    weights = [(torch.randn(a, b, generator=chance) * (2 / a) ** 0.5).requires_grad_() for a, b in pairwise(sizes)]
    biases = [torch.zeros(b, requires_grad=True) for b in sizes[1:]]

    def logits(x: torch.Tensor) -> torch.Tensor:
        for i, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
            x = x @ weight + bias
            x = torch.relu(x) if i < len(weights) - 1 else x
        return x

    optimizer = torch.optim.AdamW([*weights, *biases], lr=_RATE, weight_decay=_DECAY)
    y = torch.tensor(labels)
    known, asked = tensor(auxiliary[:, held].reshape(-1, width)), tensor(seen)
    truth = y[held].repeat(draws)
    best, guesses = -1.0, torch.zeros(len(seen), dtype=torch.int64)
    for epoch in range(_EPOCHS):
        x = tensor(auxiliary[epoch % draws][rest])
        for rows in torch.randperm(len(rest), generator=chance).split(_BATCH):
            loss = torch.nn.functional.cross_entropy(logits(x[rows]), y[rest][rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            right = float((logits(known).argmax(dim=1) == truth).float().mean())
            if right > best:
                best, guesses = right, logits(asked).argmax(dim=1)
    result: IntArray = guesses.numpy()
    return result
