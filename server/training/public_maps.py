"""Maps and dimension that a server learns from public data alone, before any request.

M1 is learned from labelled public text under the mechanism's noise, or holds its principal components.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mechanisms.mechanism import Mechanism, parameters
from server.maps import Maps, checked, factored, pca_maps, rescaled
from server.training.head import train_head
from server.training.noise import Noise, sanitize_public

#: Share of the public rows that choose among candidates for m'.
HELD_OUT = 0.25
#: Draws for each held-out row: noise must not decide the choice.
DRAWS = 10
#: Shrinkage before whitening, in units of the mean eigenvalue: small ones are noisy. This value and DROPOUT gave
#: the best mean accuracy of 9 pairs on held-out SST-2 *training* phrases (frozen MiniLM, 3,300 public phrases, two
#: splits without contained phrases, m' = 2 at ε = 1, 4, 10 and m' = 16 at ε = 10).
SHRINKAGE = 30.0
#: Share of whitened coordinates hidden at each step: it keeps M1 from learning the public rows by heart.
DROPOUT = 0.3
BATCH = 4096
RATE = 0.003


class PublicMaps:
    """Maps from public embeddings. Arms of the same mechanism share them, and each is computed once.

    Args:
        embeddings: Public embeddings (n, m).
        labels: Labels (n,); None if they are not public.
        classes: K.
        learned: True if M1 is learned from labels, False for principal components.
        seed: Seed of all random choices.
    """

    def __init__(
        self,
        embeddings: NDArray[np.float32],
        labels: NDArray[np.int64] | None,
        *,
        classes: int,
        learned: bool,
        seed: int,
    ) -> None:
        self.embeddings = embeddings
        self.labels = labels
        self.classes = classes
        self.learned = learned
        self.seed = seed
        self._maps: dict[Mechanism, Maps] = {}
        self._accuracy: dict[Mechanism, float] = {}

    def best(self, candidates: Sequence[Mechanism]) -> Mechanism:
        """Return the candidate of highest sanitized accuracy on held-out public rows.

        A single candidate needs no labels.
        """
        return candidates[0] if len(candidates) == 1 else max(candidates, key=self._held_out_accuracy)

    def of(self, mechanism: Mechanism) -> Maps:
        """Return maps for releases of the mechanism. Without public labels the head is 0."""
        if mechanism not in self._maps:
            self._maps[mechanism] = self._fit(mechanism)
        return self._maps[mechanism]

    def _fit(self, mechanism: Mechanism) -> Maps:
        if self.learned:
            assert self.labels is not None
            return self._learn(self.embeddings, self.labels, mechanism)
        maps = pca_maps(self.embeddings, dim=dim_of(mechanism), classes=self.classes)
        if self.labels is None:
            return maps
        noisy = sanitize_public(mechanism, maps.project(self.embeddings), seed=self.seed, stage="public-head")
        return train_head(maps, noisy, self.labels)

    def _held_out_accuracy(self, mechanism: Mechanism) -> float:
        """Return the sanitized accuracy on held-out public rows."""
        if mechanism not in self._accuracy:
            assert self.labels is not None
            order = np.random.default_rng([self.seed, 1]).permutation(len(self.embeddings))
            cut = int(len(order) * HELD_OUT)
            validation, rest = order[:cut], order[cut:]
            learned = self._learn(self.embeddings[rest], self.labels[rest], mechanism)
            maps = rescaled(learned, public=self.embeddings[rest])
            z = np.tile(maps.project(self.embeddings[validation]), (DRAWS, 1))
            guesses = maps.predict(sanitize_public(mechanism, z, seed=self.seed, stage="choose-dim"))
            self._accuracy[mechanism] = float(np.mean(guesses == np.tile(self.labels[validation], DRAWS)))
        return self._accuracy[mechanism]

    def _learn(self, embeddings: NDArray[np.float32], labels: NDArray[np.int64], mechanism: Mechanism) -> Maps:
        return learn_maps(embeddings, labels, classes=self.classes, mechanism=mechanism, seed=self.seed)


def dim_of(mechanism: Any) -> int:
    """Return m' of an embedding mechanism; identity stores it as its size."""
    about = parameters(mechanism)
    return int(about.get("dim") or about["size"])


def learn_maps(
    embeddings: NDArray[Any],
    labels: NDArray[Any],
    *,
    classes: int,
    mechanism: Any,
    seed: int,
    steps: int = 150,
) -> Maps:
    """Return maps and head from public embeddings and labels, for releases of `mechanism`.

    It minimizes the cross-entropy of the head on fresh draws at every step (Adam, up to 4,096 rows a step, dropout on
    whitened embeddings). It starts from Fisher's discriminant directions and then principal components. One core does
    3,000 rows of width 384 in seconds. The same arguments give the same maps, and global generators stay unchanged.

    Args:
        embeddings: Public embeddings (n, m).
        labels: Labels (n,).
        classes: Number of classes K.
        mechanism: Mechanism of the releases, whose length is m'.
        seed: Seed of all random choices.
        steps: Number of steps.

    Raises:
        ValueError: Shapes, labels or m' do not fit each other, or a class has no row.
    """
    import torch  # which other parties of a deployment do without

    from server.text_batches import warmed

    dim = dim_of(mechanism)
    h, y = checked(embeddings, labels, classes, dim)
    mean, whiten = _whitening(h)
    start = _discriminants(h, mean, whiten, y, classes, dim)
    x = torch.from_numpy(((h - mean) @ whiten).astype(np.float32))
    target = torch.tensor(y)  # a copy, because the labels of a corpus are read-only
    noise = Noise(mechanism, seed=seed, stage="public-maps")
    pick = torch.Generator().manual_seed(seed)

    a = torch.from_numpy(start.astype(np.float32)).requires_grad_()
    offset = torch.zeros(dim, requires_grad=True)  # position of the sphere's centre: a shift of `mean`
    weight = torch.zeros(dim, classes, requires_grad=True)
    bias = torch.zeros(classes, requires_grad=True)
    optimizer = torch.optim.Adam(
        [{"params": [a, offset], "lr": RATE}, {"params": [weight, bias], "lr": 10 * RATE}], betas=(0.9, 0.98)
    )
    schedule = warmed(optimizer, steps)
    for _ in range(steps):
        rows = torch.randperm(len(x), generator=pick)[:BATCH]
        kept = (torch.rand(len(rows), x.shape[1], generator=pick) >= DROPOUT) / (1 - DROPOUT)
        z = torch.nn.functional.normalize((x[rows] * kept) @ a + offset, dim=1)
        loss = torch.nn.functional.cross_entropy(noise(z) @ weight + bias, target[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    m1 = whiten @ a.detach().double().numpy()
    # (h - mean) @ m1 + offset == (h - shifted) @ m1 with the shift in M1's own range
    shifted = mean - np.linalg.lstsq(m1.T, offset.detach().double().numpy(), rcond=None)[0]
    m1 /= np.linalg.norm(m1, axis=0).max()
    return factored(shifted, m1, weight.detach().numpy(), bias.detach().numpy())


def _whitening(h: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return mean (m,), and a matrix (m, m) to decorrelated coordinates of variance <= 1, largest first."""
    mean = h.mean(axis=0)
    values, vectors = np.linalg.eigh(np.cov(h, rowvar=False))
    values, vectors = np.clip(values[::-1], 0, None), vectors[:, ::-1]
    shrunk = values + SHRINKAGE * values.mean() + np.finfo(np.float64).tiny
    return mean, vectors / np.sqrt(shrunk)


def _discriminants(
    h: NDArray[np.float64],
    mean: NDArray[np.float64],
    whiten: NDArray[np.float64],
    y: NDArray[np.int64],
    classes: int,
    dim: int,
) -> NDArray[np.float64]:
    """Return a start (m, dim) in whitened coordinates: directions between class means, then the largest components."""
    x = (h - mean) @ whiten
    means = np.stack([x[y == k].mean(axis=0) for k in range(classes)])
    count = np.bincount(y, minlength=classes)
    _, _, vt = np.linalg.svd(means * np.sqrt(count / count.sum())[:, None], full_matrices=False)
    lead = vt[: min(dim, classes - 1)].T
    rest = np.eye(x.shape[1], dim)  # whitened coordinates are sorted by variance
    rest -= lead @ (lead.T @ rest)
    basis, _ = np.linalg.qr(np.hstack([lead, rest]))
    start = basis[:, :dim].copy()
    start[:, lead.shape[1] :] *= 0.3  # on the sphere, other directions take length from the discriminative ones
    return start
