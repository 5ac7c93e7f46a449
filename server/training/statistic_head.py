"""A linear head in closed form, from the mean of what users release of features and labels (channel `statistic`).

Users' features f and codes of labels enter as E[code ⊗ (f - f̄)], which is linear in what they release, so its noise is
known exactly. The second moments of f are public text's. What is shrunk, and by how much, follows from both (empirical
Bayes): nothing is tuned, on no labels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mechanisms.mechanism import Mechanism, parameters
from mechanisms.privunit import MAX_DIM
from server.training.principal import pca_maps

FloatArray = NDArray[np.float64]

#: How fast what a direction says of labels falls with its variance λ: its share of E[code ⊗ (f - f̄)]² is λ^DECAY.
#: Between 2.7 and 3.3 on labelled public text of four corpora of two classes (SST-2, CR, SUBJ, built-in reviews),
#: flat there; twelve genres go with more directions, and are best served by 1.5 to 2.5.
DECAY = 2.5
#: In mean eigenvalues, what is added to each before it is inverted: flat between .1 and .3. Twelve genres, ε = 4 and
#: 20,000 users: .787 with .003, .797 with .1, .809 with .3; without noise and with 256 features .928, .925, .917.
RIDGE = 0.2
#: The largest canonical correlation of features and labels that is believed.
CORRELATED = 0.95
#: Share of a label's variance that features are taken to explain, where their number is chosen before anyone is asked:
#: .3 to .45 on the same corpora. The choice is flat: 1.5 times this share moves it by one candidate.
EXPLAINED = 0.35
#: Numbers of features that are chosen from.
CANDIDATES = (8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384)
#: Public rows for each feature, at least, whose second moments are to be known.
ROWS_PER_FEATURE = 8
#: Of the largest τ² that is possible, those that are tried, and with 0 the ω².
_LEVELS = np.exp(np.linspace(-16.0, 0.0, 65))
#: Of the squared length of a user's vector, what says where features are, whatever the label, where public text is of
#: another domain: flat between .1 and .5 with the built-in reviews as public text and CR's sentences as users (3,015 of
#: them; ε = 3: .783, .785, .789 with .1, .2 and .5, .762 with .05; .648 without, as one class is all that is guessed).
SHARED = 0.2
#: Twice the gain in log-likelihood from which on labelled public text is taken to differ from users': three standard
#: deviations. Under much noise a smaller one would have users' noise outweigh labels.
_DIFFERS = 9.0


def simplex_codes(classes: int) -> NDArray[np.float32]:
    """K vectors (K, K - 1) of length 1, each at the same angle from all others: a label's code.

    Against indicators, K of them, the codes leave out what all classes share, which says nothing of a label: fewer
    coordinates for the noise to be spread over, and K/(K - 1) times the squared signal. ValueError below 2 classes.
    """
    if classes < 2:
        raise ValueError(f"codes: there must be at least 2 classes, got {classes}")
    centred = np.eye(classes) - 1.0 / classes
    # Helmert's basis: of exact signs, so that no library's choice of eigenvectors shows in what users are asked
    basis = np.zeros((classes, classes - 1))
    for j in range(classes - 1):
        basis[: j + 1, j], basis[j + 1, j] = 1.0, -(j + 1.0)
        basis[:, j] /= np.sqrt((j + 1.0) * (j + 2.0))
    codes = centred @ basis
    codes /= np.linalg.norm(codes, axis=1, keepdims=True)
    return codes.astype(np.float32)


def shared_codes(classes: int) -> NDArray[np.float32]:
    """`simplex_codes` with a last coordinate that all classes share, (K, K) of length 1: their mean says where users'
    features are, too, which public text of another domain does not. ValueError below 2 classes."""
    shared = np.full((classes, 1), np.sqrt(SHARED))
    return np.hstack([simplex_codes(classes) * np.sqrt(1 - SHARED), shared]).astype(np.float32)


@dataclass(frozen=True, eq=False)
class Evidence:
    """What is known of how features go with labels, and how well.

    cross: (c, d), of E[code ⊗ f], in simplex codes. constant: (c,), of E[code]. noise, constant_noise: the variance of
    the noise in each entry of either. rows: of the sample that both are means over. mean: (d,), of E[f], where users
    have said it, and mean_noise the variance of the noise in it.
    """

    cross: FloatArray
    constant: FloatArray
    noise: float
    constant_noise: float
    rows: int
    mean: FloatArray | None = None
    mean_noise: float = 0.0

    def variance(self, of_feature: FloatArray) -> FloatArray:
        """(d,): of an entry of `cross` along directions in which features vary so, (d,): noise, and a sample's."""
        return self.noise + of_feature / (len(self.cross) * self.rows)

    @property
    def constant_variance(self) -> float:
        return self.constant_noise + 1.0 / (len(self.cross) * self.rows)


def of_users(mean: FloatArray, noise_variance: float, *, users: int, codes: NDArray[np.float32]) -> Evidence:
    """What the debiased mean (D,) of the statistics of so many users says, under noise of this variance in each of its
    coordinates (`mechanisms.projection.statistic_vectors` has their order and scale), of simplex or shared codes."""
    table = np.asarray(mean, np.float64).reshape(codes.shape[1], -1)
    d = table.shape[1] - 1
    where, where_noise = None, 0.0
    if codes.shape[1] == len(codes):
        where = table[-1, :d] * np.sqrt((d + 1) / d / SHARED)
        where_noise = noise_variance * (d + 1) / d / SHARED
        table, noise_variance = table[:-1] / np.sqrt(1 - SHARED), noise_variance / (1 - SHARED)
    return Evidence(
        table[:, :d] * np.sqrt((d + 1) / d), table[:, d] * np.sqrt(d + 1), noise_variance * (d + 1) / d,
        noise_variance * (d + 1), users, where, where_noise,
    )  # fmt: skip


def records_of(vectors: FloatArray, codes: NDArray[np.float32]) -> tuple[FloatArray, NDArray[np.int64]]:
    """The features (n, d) and labels (n,) of users of one record each, from their statistics in clear (n, D): the
    inverse of `mechanisms.projection.statistic_vectors`, for a curator who is trusted with them."""
    exact = codes.astype(np.float64)
    tables = vectors.reshape(len(vectors), exact.shape[1], -1)
    d = tables.shape[2] - 1
    labels = np.argmax(tables[:, :, d] @ exact.T, axis=1)
    features = np.einsum("nc,ncd->nd", exact[labels], tables[:, :, :d]) * np.sqrt((d + 1) / d)
    return features, labels


def of_labels(features: NDArray[Any], labels: NDArray[Any], codes: NDArray[np.float32]) -> Evidence:
    """What labelled text says: features (n, d), labels (n,) of 0..K-1 or how likely each is, (n, K); n >= 1."""
    labels = np.asarray(labels)
    exact = codes.astype(np.float64)
    coded = exact[labels] if labels.ndim == 1 else labels @ exact
    f = np.asarray(features, np.float64)
    return Evidence(coded.T @ f / len(f), coded.mean(axis=0), 0.0, 0.0, len(f))


def linear_head(
    features: NDArray[Any], codes: NDArray[np.float32], *, users: Evidence | None = None, labels: Evidence | None = None
) -> tuple[FloatArray, FloatArray]:
    """weight (d, K), bias (K,): Fisher's linear discriminant, from public features (N, d) and what is known of labels.

    users: of those whom the head is for. labels: of labelled public text, which may differ from theirs: by how much
    is learned from where the two disagree more than their noise explains, and weighs the labels down. Without
    either, the head is 0: it knows nothing. What says nothing is shrunk to it (see `_posterior`). Where users have said
    where their features are, the head is for features there: else E[code]'s share of the way from public text to them
    would pass for what goes with labels, and the threshold would stand where no user is.
    """
    f, exact = np.asarray(features, np.float64), codes.astype(np.float64)
    classes, d = len(exact), f.shape[1]
    if users is None and labels is None:
        return np.zeros((d, classes)), np.zeros(classes)
    mean = f.mean(axis=0)
    values, vectors = np.linalg.eigh(np.cov(f, rowvar=False))
    values = np.maximum(values, 1e-12)
    shift = _shift(users, mean, values)
    variances = [None if e is None else e.variance(values) for e in (users, labels)]
    if users is not None:  # the noise of their constant is moved along with them
        variances[0] = users.variance(values) + users.constant_noise * (shift @ vectors) ** 2
    cross = _posterior(
        *(None if e is None else (e.cross - np.outer(e.constant, centre)) @ vectors
          for e, centre in ((users, mean + shift), (labels, mean))),
        *variances, values,
    )  # fmt: skip
    share = _shares(exact, users, labels)
    # E[code ⊗ (f - f̄)] = Σ_k share_k·code_k·(class mean_k - f̄), and shares times class means add up to nothing
    weighted = (classes - 1) / classes * exact @ cross
    # in units of the whole scatter, between-class scatter is the squares of canonical correlations, and within-class
    # scatter what they leave of 1; noise alone may claim more than there is
    unit, root = 1 / np.sqrt(values + RIDGE * values.mean()), np.sqrt(share)
    u, correlations, vt = np.linalg.svd(weighted / root[:, None] * unit, full_matrices=False)
    rho = np.minimum(correlations, CORRELATED)
    u = u / root[:, None]
    weight = unit[:, None] * (vt.T * (rho / (1 - rho**2))) @ u.T
    bias = np.log(share) - 0.5 * (u**2) @ (rho**2 / (1 - rho**2))
    weight = vectors @ weight
    return weight, bias - (mean + shift) @ weight


def _shift(users: Evidence | None, mean: FloatArray, values: FloatArray) -> FloatArray:
    """(d,): from the mean of public text's features to that of users', by James and Stein's factor; 0 where they have
    not said it."""
    if users is None or users.mean is None:
        return np.zeros(len(mean))
    apart = users.mean - mean
    noise = len(mean) * users.mean_noise + float(values.sum()) / users.rows
    shift: FloatArray = apart * max(0.0, 1.0 - noise / max(float(apart @ apart), 1e-300))
    return shift


def _posterior(
    users: FloatArray | None, labels: FloatArray | None, user_variance: FloatArray | None,
    label_variance: FloatArray | None, values: FloatArray,
) -> FloatArray:  # fmt: skip
    """(c, d): the posterior mean of C = E[code ⊗ (f - f̄)] along directions of these variances λ (d,).

    C ~ N(0, τ²·λ^DECAY); users' estimate of it has their noise; that of labelled text is of C + N(0, ω²·λ^DECAY). τ²
    and ω² are those under which what was seen is likeliest (type II maximum likelihood), ω² = 0 unless another is so by
    far. Features explain at most all of a code's variance, Σ C²/λ <= 1/c, which bounds both.
    """
    profile = values**DECAY / (values**DECAY).sum()
    c = len(users if labels is None else labels)  # type: ignore[arg-type]
    level = _LEVELS / (c * (profile / values).sum())
    if users is None or labels is None:
        seen, variance = (users, user_variance) if labels is None else (labels, label_variance)
        assert seen is not None and variance is not None
        squares = (seen**2).sum(axis=0)
        total = level[:, None] * profile + variance
        prior = level[np.argmin((c * np.log(total) + squares / total).sum(axis=1))] * profile
        return seen * (prior / (prior + variance))
    assert user_variance is not None and label_variance is not None
    uu, up, pp = ((a * b).sum(axis=0) for a, b in ((users, users), (users, labels), (labels, labels)))
    tau, omega = level[:, None, None] * profile, np.append(0.0, level)[:, None] * profile
    a, b = tau + user_variance, tau + label_variance + omega
    determinant = a * b - tau**2
    misfit = (b * uu + a * pp - 2 * tau * up) / determinant
    cost = (c * np.log(determinant) + misfit).sum(axis=2)  # minus twice the log-likelihood, (τ², ω²)
    cost[:, 1:] += _DIFFERS
    at = np.unravel_index(int(np.argmin(cost)), cost.shape)
    prior, drift = level[at[0]] * profile, label_variance + omega[at[1]]
    posterior: FloatArray = (users / user_variance + labels / drift) / (1 / prior + 1 / user_variance + 1 / drift)
    return posterior


def _shares(codes: FloatArray, users: Evidence | None, labels: Evidence | None) -> FloatArray:
    """(K,): how frequent each class is; equally where nothing that is known rises above its noise."""
    classes, c = codes.shape
    known = [e for e in (users, labels) if e is not None]
    estimate, variance = known[0].constant, known[0].constant_variance
    if len(known) == 2:
        gap = float(((known[0].constant - known[1].constant) ** 2).mean())
        other = known[1].constant_variance
        # few coordinates say how far the shares of the two differ: no farther than noise explains, unless it is by far;
        # and E[code] lies in the unit ball
        if gap > _DIFFERS * (variance + other):
            other += min(gap - variance - other, 1 / c)
        estimate = (estimate * other + known[1].constant * variance) / (variance + other)
        variance = variance * other / (variance + other)
    # James and Stein's factor, and at most what the unit ball, in which E[code] lies, leaves of so much noise
    factor = min(1.0 - variance * c / max(float(estimate @ estimate), 1e-300), 1.0 / (1.0 + c * variance))
    shrunk = estimate * max(0.0, factor)
    share = np.maximum(1 / classes + (classes - 1) / classes * codes @ shrunk, 0.1 / classes)
    return share / share.sum()


def code_length(classes: int, *, shared: bool) -> int:
    """Return c, the coordinates of a code of so many classes: one more where all classes share one (`shared_codes`)."""
    return classes if shared else classes - 1


def features_allowed(
    length: int, *, width: int | None = None, rows: int | None = None, candidates: Sequence[int] = CANDIDATES
) -> tuple[int, ...]:
    """Return the numbers of features that may be chosen, for codes of so many coordinates: never none.

    A vector has at most MAX_DIM coordinates. width: of the encoder, rows: of public text; None where nobody knows yet,
    and then they set no limit.
    """
    limits = [MAX_DIM // length - 1, *([] if width is None else [width])]
    limits += [] if rows is None else [rows // ROWS_PER_FEATURE]
    most = max(min(limits), 2)
    return tuple(d for d in candidates if d <= most) or (min(most, max(candidates)),)


def best_features(
    embeddings: NDArray[Any], codes: NDArray[np.float32], noise: Callable[[int], float], *, users: int,
    length: int | None = None,
) -> int:  # fmt: skip
    """d, the number of principal components that is expected to teach most, before anyone is asked.

    It is that of the largest expected share of a label's variance that shrunk estimates explain, if the directions of
    public text (N, m) go with labels as DECAY and EXPLAINED have it, under a noise of variance `noise(D)` in each
    coordinate of so many users' mean. At least the smallest candidate that the encoder's width allows. length: of the
    codes that users send, where these are longer than `codes`.
    """
    h = np.asarray(embeddings, np.float64)
    c = codes.shape[1]
    allowed = features_allowed(length or c, width=h.shape[1], rows=len(h))
    maps = pca_maps(h, dim=allowed[-1], classes=len(codes))
    components = (h - maps.mean) @ maps.m1
    own = np.maximum(components.var(axis=0), 1e-12) ** (DECAY - 1)
    share = EXPLAINED * own / own.sum()  # of a label's variance, that each component explains
    best, chosen = -1.0, allowed[0]
    for d in allowed:
        f = components[:, :d] / np.maximum(np.linalg.norm(components[:, :d], axis=1, keepdims=True), 1e-12)
        values = np.maximum(np.linalg.eigvalsh(np.cov(f, rowvar=False))[::-1], 1e-12)
        prior = share[:d] * values / c
        variance = noise(c * (d + 1)) * (d + 1) / d + values / (c * users)
        explained = float((share[:d] * prior / (prior + variance)).sum())
        if explained > best:
            best, chosen = explained, d
    return chosen


def mean_noise(mechanism: Mechanism, *, users: int) -> float:
    """The variance that a mechanism of channel `statistic` leaves in each coordinate of so many users' debiased mean;
    inf where a release says nothing (ε = 0), 0 where it is the truth."""
    scale, about = float(getattr(mechanism, "scale", 1.0)), parameters(mechanism)
    size = int(about.get("dim") or about["size"])
    return np.inf if scale == 0 else (1 / scale**2 - 1) / (users * size)
