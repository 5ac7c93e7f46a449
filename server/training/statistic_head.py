"""Linear head in closed form, from the mean of released user vectors (channel `statistic`).

Users' features f and codes of labels enter as E[code ⊗ (f - f̄)]. This is linear in the releases, so its noise is known
exactly. The second moments of f come from public text. Both determine the shrinkage (empirical Bayes): nothing is
tuned, on no labels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.special import logsumexp

from mechanisms.arrays import FloatArray, IntArray
from mechanisms.mechanism import Mechanism, parameters
from mechanisms.messages.questions import decoded
from mechanisms.privunit import MAX_DIM
from mechanisms.projection import constant_share, project
from server.maps import pca_maps

#: Decay of a direction's label information with its variance λ: its share of E[code ⊗ (f - f̄)]² is λ^DECAY.
#: Between 2.7 and 3.3 on labelled public text of four corpora of two classes (SST-2, CR, SUBJ, built-in reviews), flat
#: there. Twelve genres need more directions: 1.5 to 2.5 is best.
DECAY = 2.5
#: Ridge added to each eigenvalue before inversion, in mean eigenvalues: flat between .1 and .3. Twelve genres, ε = 4
#: and 20,000 users: .787 with .003, .797 with .1, .809 with .3. Without noise and with 256 features .928, .925, .917.
RIDGE = 0.2
#: Largest accepted canonical correlation of features and labels.
CORRELATED = 0.95
#: Assumed share of a label's variance that features explain, to choose their number before any request: .3 to .45 on
#: the same corpora. The choice is flat: 1.5 times this share moves it by one candidate.
EXPLAINED = 0.35
#: Candidates for the number of features.
CANDIDATES = (8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384)
#: Least number of public rows for each feature, so that second moments are known.
ROWS_PER_FEATURE = 8
#: Candidates for τ², as shares of its largest possible value; with 0 also for ω².
_LEVELS = np.exp(np.linspace(-16.0, 0.0, 65))
#: Share of a user vector's squared length for the position of features, whatever the label, if public text is of
#: another domain. Flat between .1 and .5, with the built-in reviews as public text and CR's sentences as users (3,015
#: of them; ε = 3: .783, .785, .789 with .1, .2 and .5, .762 with .05; .648 without, because the head then predicts one
#: class).
SHARED = 0.2
#: Twice the gain in log-likelihood at which labelled public text counts as different from users' text: three standard
#: deviations. Under much noise, a smaller value would let users' noise outweigh labels.
_DIFFERS = 9.0
#: Variance of what users do not report: far above that of any feature.
_UNKNOWN = 1e9
#: What is assumed of class names before users answer. Their error in E[code ⊗ (f - f̄)] explains ERROR times as much of
#: a code's variance as the names do, within a factor e (one standard deviation). Its square falls with a direction's
#: variance λ as λ^ERROR_DECAY. The truth is 1 ± .4 times what names say. With probability UNRELATED they say nothing.
#: Measured with all labels (MiniLM; CR, AG News, banking77): ERROR .15 to .35, ERROR_DECAY 1.2 to 1.8, scale .7 to 1.
#: Accuracy is flat between decays of 1 and 2.
ERROR, ERROR_DECAY, UNRELATED = 0.1, 1.5, 0.1
_ERRORS = np.exp(np.linspace(np.log(0.03), np.log(3.0), 8))
_SCALES = np.linspace(0.25, 1.75, 7)
_SCALE_DEVIATION = 0.4
#: Relative standard deviation of a class's share by names.
SHARE_ERROR = 0.15
#: Share of public texts on which class names must decide alike with and without the other features, so that users'
#: vectors have enough of them.
COVERED = 0.8
#: Estimate of C = E[code ⊗ (f - f̄)] along directions (c, d), and the variance (d,) of the noise in its rows.
Estimate = tuple[FloatArray, FloatArray]
#: Largest probability that two classes are reported as swapped whose names are not.
FALSE_ALARM = 1e-3


def simplex_codes(classes: int) -> NDArray[np.float32]:
    """Return codes of labels: K vectors (K, K - 1) of length 1, each at the same angle from all others.

    K indicators would also hold what all classes share, which says nothing about a label. The codes leave it out: the
    noise spreads over fewer coordinates, and the squared signal is K/(K - 1) times larger.

    Raises:
        ValueError: There are fewer than 2 classes.
    """
    if classes < 2:
        raise ValueError(f"codes: there must be at least 2 classes, got {classes}")
    centred = np.eye(classes) - 1.0 / classes
    # Helmert's basis has exact signs, so that no library's choice of eigenvectors shows in a request
    basis = np.zeros((classes, classes - 1))
    for j in range(classes - 1):
        basis[: j + 1, j], basis[j + 1, j] = 1.0, -(j + 1.0)
        basis[:, j] /= np.sqrt((j + 1.0) * (j + 2.0))
    codes = centred @ basis
    codes /= np.linalg.norm(codes, axis=1, keepdims=True)
    return codes.astype(np.float32)


def shared_codes(classes: int) -> NDArray[np.float32]:
    """Return `simplex_codes` with a last coordinate that all classes share, (K, K) of length 1.

    Its mean tells where users' features are; public text of another domain does not.

    Raises:
        ValueError: There are fewer than 2 classes.
    """
    shared = np.full((classes, 1), np.sqrt(SHARED))
    return np.hstack([simplex_codes(classes) * np.sqrt(1 - SHARED), shared]).astype(np.float32)


@dataclass(frozen=True, eq=False)
class Evidence:
    """Estimates of how features go with labels, with their noise.

    Args:
        cross: E[code ⊗ f], (c, d), in simplex codes.
        constant: E[code], (c,).
        noise: Variance of the noise in each entry of cross, or (d,) of each feature.
        constant_noise: Variance of the noise in each entry of constant.
        rows: Rows of the sample behind both means.
        mean: E[f], (d,), if users report it.
        mean_noise: Variance of the noise in each entry of mean.
        by_names: Whether labels were guessed from class names, so that they err beyond sampling.
    """

    cross: FloatArray
    constant: FloatArray
    noise: float | FloatArray
    constant_noise: float
    rows: int
    mean: FloatArray | None = None
    mean_noise: float = 0.0
    by_names: bool = False

    def variance(self, of_feature: FloatArray) -> FloatArray:
        """Return the variance (d,) of a row of `cross`: noise and sampling.

        Args:
            of_feature: Variance (d,) of features along each direction.
        """
        return self.noise + of_feature / (len(self.cross) * self.rows)

    @property
    def constant_variance(self) -> float:
        """Return the variance of an entry of `constant`: noise and sampling."""
        return self.constant_noise + 1.0 / (len(self.cross) * self.rows)


def of_users(mean: FloatArray, noise_variance: float, *, users: int, codes: NDArray[np.float32]) -> Evidence:
    """Return the evidence in the debiased mean of user vectors.

    Args:
        mean: Debiased mean (D,). `mechanisms.projection.statistic_vectors` defines its order and scale.
        noise_variance: Variance of the noise in each of its coordinates.
        users: Number of users.
        codes: Simplex or shared codes.
    """
    table = np.asarray(mean, np.float64).reshape(codes.shape[1], -1)
    d = table.shape[1] - 1
    share, where, where_noise = constant_share(d), None, 0.0
    if codes.shape[1] == len(codes):
        where = table[-1, :d] / np.sqrt((1 - share) * SHARED)
        where_noise = noise_variance / ((1 - share) * SHARED)
        table, noise_variance = table[:-1] / np.sqrt(1 - SHARED), noise_variance / (1 - SHARED)
    return Evidence(
        table[:, :d] / np.sqrt(1 - share),
        table[:, d] / np.sqrt(share),
        noise_variance / (1 - share),
        noise_variance / share,
        users,
        where,
        where_noise,
    )


def records_of(vectors: FloatArray, codes: NDArray[np.float32]) -> tuple[FloatArray, IntArray]:
    """Return the features (n, d) and labels (n,) of users with one record each.

    It inverts `mechanisms.projection.statistic_vectors`, for a curator whom users trust with clear vectors.

    Args:
        vectors: User vectors in clear (n, D).
        codes: Codes of labels.
    """
    exact = codes.astype(np.float64)
    tables = vectors.reshape(len(vectors), exact.shape[1], -1)
    d = tables.shape[2] - 1
    labels = np.argmax(tables[:, :, d] @ exact.T, axis=1)
    features = np.einsum("nc,ncd->nd", exact[labels], tables[:, :, :d]) / np.sqrt(1 - constant_share(d))
    return features, labels


def of_labels(
    features: NDArray[Any], labels: NDArray[Any], codes: NDArray[np.float32], *, by_names: bool = False
) -> Evidence:
    """Return the evidence in labelled text.

    Args:
        features: Features (n, d), n >= 1.
        labels: Labels (n,) of 0..K-1, or probabilities of classes (n, K).
        codes: Codes of labels.
        by_names: Whether the probabilities are of class names (`server.training.class_names.name_probabilities`).
    """
    labels = np.asarray(labels)
    exact = codes.astype(np.float64)
    coded = exact[labels] if labels.ndim == 1 else labels @ exact
    f = np.asarray(features, np.float64)
    return Evidence(coded.T @ f / len(f), coded.mean(axis=0), 0.0, 0.0, len(f), by_names=by_names)


def head_with_names(
    wide: NDArray[Any], likely: NDArray[Any], codes: NDArray[np.float32], users: Evidence
) -> tuple[FloatArray, FloatArray]:
    """Return weight (D, K) and bias (K,) of the head for wide features, from users' vectors and class names.

    Users' vectors know few features, class names know as many as the encoder has. The features that users do not know
    follow from the names, as far as users confirm these.

    Args:
        wide: Public features (N, D), of the components of users' vectors and D - d more.
        likely: Probabilities of classes (N, K) by the names.
        codes: Simplex codes.
        users: Evidence of users on the first d components.
    """
    if wide.shape[1] > users.cross.shape[1]:
        users = _widened(users, wide)
    return linear_head(wide, codes, users=users, labels=of_labels(wide, likely, codes, by_names=True))


def _widened(users: Evidence, wide: NDArray[Any]) -> Evidence:
    """Return users' evidence on wide features, of whose first components theirs are the direction."""
    d = users.cross.shape[1]
    part = float(np.sqrt((np.asarray(wide, np.float64)[:, :d] ** 2).sum(axis=1).mean()))  # of a wide feature's length
    cross = np.outer(users.constant, np.asarray(wide, np.float64).mean(axis=0))
    cross[:, :d] = users.cross * part
    noise = np.full(wide.shape[1], _UNKNOWN)
    noise[:d] = users.noise * part**2
    return replace(users, cross=cross, noise=noise)


def linear_head(
    features: NDArray[Any], codes: NDArray[np.float32], *, users: Evidence | None = None, labels: Evidence | None = None
) -> tuple[FloatArray, FloatArray]:
    """Return weight (d, K) and bias (K,) of Fisher's linear discriminant.

    Labelled public text may differ from users' text. The two are compared: a disagreement beyond their noise gives the
    labels less weight. Class names always err (see `_with_names`). Without either, the head is 0. Uninformative
    directions are shrunk to 0 (see `_posterior`). If users report where their features are, the head is for features
    there. Otherwise E[code]'s share of the shift from public text to users would pass for label information, and the
    threshold would stand where no user is.

    Args:
        features: Public features (N, d).
        codes: Simplex codes.
        users: Evidence of the users whom the head is for.
        labels: Evidence of labelled public text.
    """
    f, exact = np.asarray(features, np.float64), codes.astype(np.float64)
    classes, d = len(exact), f.shape[1]
    if users is None and labels is None:
        return np.zeros((d, classes)), np.zeros(classes)
    mean = f.mean(axis=0)
    values, vectors = np.linalg.eigh(np.cov(f, rowvar=False))
    values = np.maximum(values, 1e-12)
    spread, along = values, vectors
    if users is not None and np.ndim(users.noise):  # noise of each feature, whose directions do not turn
        spread, along = np.maximum(f.var(axis=0), 1e-12), np.eye(d)
    shift = _shift(users, mean, values)

    def estimate(evidence: Evidence | None, centre: FloatArray, more: FloatArray | float = 0.0) -> Estimate | None:
        if evidence is None:
            return None
        cross = (evidence.cross - np.outer(evidence.constant, centre)) @ along
        return cross, evidence.variance(spread) + more

    # the noise of users' constant moves along with them
    moved = 0.0 if users is None else users.constant_noise * (shift @ along) ** 2
    of_users, of_public = estimate(users, mean + shift, moved), estimate(labels, mean)
    if of_users is not None and labels is not None and labels.by_names:
        cross = _with_names(of_users, _posterior(None, of_public, spread), spread)
    else:
        cross = _posterior(of_users, of_public, spread)
    if along is not vectors:
        cross = cross @ vectors
    share = _shares(exact, users, labels)
    # E[code ⊗ (f - f̄)] = Σ_k share_k·code_k·(class mean_k - f̄), and shares times class means add up to nothing
    weighted = (classes - 1) / classes * exact @ cross
    # in units of the whole scatter, between-class scatter is the squares of canonical correlations, and within-class
    # scatter the rest to 1; noise alone may exceed 1
    unit, root = 1 / np.sqrt(values + RIDGE * values.mean()), np.sqrt(share)
    u, correlations, vt = np.linalg.svd(weighted / root[:, None] * unit, full_matrices=False)
    rho = np.minimum(correlations, CORRELATED)
    u = u / root[:, None]
    weight = unit[:, None] * (vt.T * (rho / (1 - rho**2))) @ u.T
    bias = np.log(share) - 0.5 * (u**2) @ (rho**2 / (1 - rho**2))
    weight = vectors @ weight
    return weight, bias - (mean + shift) @ weight


def _shift(users: Evidence | None, mean: FloatArray, values: FloatArray) -> FloatArray:
    """Return the shift (d,) from public features' mean to users' mean, by James and Stein's factor; 0 if unknown."""
    if users is None or users.mean is None:
        return np.zeros(len(mean))
    apart = users.mean - mean
    noise = len(mean) * users.mean_noise + float(values.sum()) / users.rows
    shift: FloatArray = apart * max(0.0, 1.0 - noise / max(float(apart @ apart), 1e-300))
    return shift


def _posterior(users: Estimate | None, labels: Estimate | None, values: FloatArray) -> FloatArray:
    """Return the posterior mean (c, d) of C = E[code ⊗ (f - f̄)] along directions of these variances λ (d,).

    C ~ N(0, τ²·λ^DECAY). Users' estimate of C has their noise; that of labelled text is of C + N(0, ω²·λ^DECAY). τ² and
    ω² maximize the likelihood of the evidence (type II maximum likelihood), with ω² = 0 unless another value gains
    `_DIFFERS` in twice its logarithm. Features explain at most all of a code's variance, Σ C²/λ <= 1/c, which bounds
    both.
    """
    (seen, variance), *others = (estimate for estimate in (users, labels) if estimate is not None)
    c, profile = len(seen), values**DECAY / (values**DECAY).sum()
    level = _LEVELS / (c * (profile / values).sum())
    if not others:
        squares = (seen**2).sum(axis=0)
        total = level[:, None] * profile + variance
        prior = level[np.argmin((c * np.log(total) + squares / total).sum(axis=1))] * profile
        return seen * (prior / (prior + variance))
    ((known, known_variance),) = others
    uu, up, pp = ((a * b).sum(axis=0) for a, b in ((seen, seen), (seen, known), (known, known)))
    tau, omega = level[:, None, None] * profile, np.append(0.0, level)[:, None] * profile
    a, b = tau + variance, tau + known_variance + omega
    determinant = a * b - tau**2
    misfit = (b * uu + a * pp - 2 * tau * up) / determinant
    cost = (c * np.log(determinant) + misfit).sum(axis=2)  # minus twice the log-likelihood, (τ², ω²)
    cost[:, 1:] += _DIFFERS
    at = np.unravel_index(int(np.argmin(cost)), cost.shape)
    prior, drift = level[at[0]] * profile, known_variance + omega[at[1]]
    posterior: FloatArray = (seen / variance + known / drift) / (1 / prior + 1 / variance + 1 / drift)
    return posterior


def _with_names(of_users: Estimate, names: FloatArray, values: FloatArray) -> FloatArray:
    """Return the posterior mean (c, d) of C = E[code ⊗ (f - f̄)] from users' estimate and that of class names (c, d).

    Either C ~ N(s·names, δ²·λ^ERROR_DECAY), with an unknown scale s and an unknown error δ² of the names, or, if names
    say nothing, C ~ N(0, τ²·λ^DECAY). Users' estimate is C with noise of this variance (d,). The result is the mean
    over all s, δ², τ² of a grid, each weighed by its prior and its marginal likelihood: names count as far as users
    confirm them on the scale of their noise. Users under infinite noise leave the names as they are, up to a scale.
    """
    users, variance = of_users
    c = len(users)
    uu, up, pp = ((a * b).sum(axis=0) for a, b in ((users, users), (users, names), (names, names)))
    profile = values**ERROR_DECAY / (values ** (ERROR_DECAY - 1)).sum()
    delta = np.outer(_ERRORS * (pp / values).sum() / c, profile)
    total = delta + variance
    misfit = uu - 2 * _SCALES[:, None] * up + _SCALES[:, None] ** 2 * pp
    belief = -0.5 * (((_SCALES - 1) / _SCALE_DEVIATION) ** 2)[:, None] - 0.5 * np.log(_ERRORS / ERROR) ** 2
    related = belief - logsumexp(belief) + np.log(1 - UNRELATED)
    related -= 0.5 * (c * np.log(total).sum(axis=1) + (misfit[:, None] / total).sum(axis=2))  # (s, δ²)
    own = values**DECAY
    tau = np.outer(_LEVELS / (c * (own / values).sum()), own)
    alone = np.full(len(tau), np.log(UNRELATED / len(tau)))
    alone -= 0.5 * (c * np.log(tau + variance) + uu / (tau + variance)).sum(axis=1)
    log_total = logsumexp([logsumexp(related), logsumexp(alone)])
    related, alone = np.exp(related - log_total), np.exp(alone - log_total)
    gain = delta / total
    weight = related.sum(axis=0) @ gain + alone @ (tau / (tau + variance))
    posterior: FloatArray = weight * users + ((_SCALES @ related) @ (1 - gain)) * names
    return posterior


def _shares(codes: FloatArray, users: Evidence | None, labels: Evidence | None) -> FloatArray:
    """Return the frequency of each class, (K,).

    They are equal if no estimate rises above its noise, or those of class names, whose head is calibrated by them.
    """
    classes, c = codes.shape
    evidence = [e for e in (users, labels) if e is not None]
    by_names = labels is not None and labels.by_names
    estimate, variance = evidence[0].constant, evidence[0].constant_variance
    if len(evidence) == 2:
        other = evidence[1].constant_variance
        if by_names:  # E[code] errs by K/(K - 1)·Σ_k (SHARE_ERROR/K)² in all its K - 1 coordinates
            other += (SHARE_ERROR / (classes - 1)) ** 2
        else:
            gap = float(((evidence[0].constant - evidence[1].constant) ** 2).mean())
            # few coordinates tell how far the two shares differ: no farther than noise explains, unless far beyond it;
            # and E[code] lies in the unit ball
            if gap > _DIFFERS * (variance + other):
                other += min(gap - variance - other, 1 / c)
        estimate = (estimate * other + evidence[1].constant * variance) / (variance + other)
        variance = variance * other / (variance + other)
    # James and Stein's factor, and at most what the unit ball, in which E[code] lies, leaves of so much noise
    factor = min(1.0 - variance * c / max(float(estimate @ estimate), 1e-300), 1.0 / (1.0 + c * variance))
    shrunk = estimate * (1.0 if by_names else max(0.0, factor))
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


class Prospects:
    """Forecast of what users' vectors teach, by their number of features, before any request.

    Directions of public text are assumed to go with labels as DECAY and EXPLAINED state.

    Args:
        embeddings: Public embeddings (N, m).
        codes: Codes of labels.
        length: Length of the codes that users send, if these are longer than `codes`.
        candidates: Numbers of features to choose from, as far as they are allowed (`features_allowed`).
    """

    def __init__(
        self,
        embeddings: NDArray[Any],
        codes: NDArray[np.float32],
        *,
        length: int | None = None,
        candidates: Sequence[int] = CANDIDATES,
    ) -> None:
        h = np.asarray(embeddings, np.float64)
        self._c = codes.shape[1]
        allowed = partial(features_allowed, length or self._c, width=h.shape[1], rows=len(h))
        every, self._allowed = allowed(), allowed(candidates=candidates)
        maps = pca_maps(h, dim=max(every[-1], self._allowed[-1]), classes=len(codes))
        components = (h - maps.mean) @ maps.m1
        own = np.maximum(components.var(axis=0), 1e-12) ** (DECAY - 1)
        self._share = EXPLAINED * own / own.sum()  # of a label's variance, explained by each component
        self._values = {}
        for d in self._allowed:
            f = components[:, :d] / np.maximum(np.linalg.norm(components[:, :d], axis=1, keepdims=True), 1e-12)
            self._values[d] = np.maximum(np.linalg.eigvalsh(np.cov(f, rowvar=False))[::-1], 1e-12)

    def best(self, noise: Callable[[int], float], *, users: int, least: int = 0) -> tuple[int, float]:
        """Return d, the number of features with the most expected information, and its share of all information.

        It maximizes the expected share of a label's variance that shrunk estimates explain. The result is at least the
        smallest candidate that the encoder's width allows.

        Args:
            noise: Function from D to the noise variance in each coordinate of the users' mean.
            users: Number of users.
            least: Smallest d that will do, as far as users' vectors can hold it.
        """
        candidates = [d for d in self._allowed if d >= least] or self._allowed[-1:]
        shares = [self._explained(d, noise(self._c * (d + 1)), users) for d in candidates]
        best = int(np.argmax(shares))
        return candidates[best], shares[best] / EXPLAINED

    def _explained(self, d: int, noise: float, users: int) -> float:
        share, values = self._share[:d], self._values[d]
        prior = share * values / self._c
        variance = noise / (1 - constant_share(d)) + values / (self._c * users)
        return float((share * prior / (prior + variance)).sum())


def wide_features(embeddings: NDArray[Any]) -> int:
    """Return the largest number of features that public text supports: that of a head without noise."""
    rows, width = embeddings.shape
    return features_allowed(1, width=width, rows=rows)[-1]


def covering_features(embeddings: NDArray[Any], likely: NDArray[Any], codes: NDArray[np.float32]) -> int:
    """Return the smallest d at which class names decide on public text as they do with all features.

    Where a class's name is known by features that users' vectors do not have, users cannot correct the names.

    Args:
        embeddings: Public embeddings (N, m).
        likely: Probabilities of classes (N, K) by the names.
        codes: Codes of labels.
    """
    widest = wide_features(embeddings)
    maps = pca_maps(embeddings, dim=widest, classes=len(codes))

    def decided(d: int) -> IntArray:
        features = project(embeddings, maps.mean, maps.m1[:, :d])
        weight, bias = linear_head(features, codes, labels=of_labels(features, likely, codes, by_names=True))
        return (features @ weight + bias).argmax(axis=1)

    allowed = features_allowed(1, width=widest)
    predictions = decided(widest)
    return next((d for d in allowed if (decided(d) == predictions).mean() >= COVERED), widest)


def expected_gain(
    features: NDArray[Any], likely: NDArray[Any], codes: NDArray[np.float32], noise: float, *, users: int
) -> float:
    """Return what users' vectors should explain of labels beyond class names, as a share of what the names explain.

    It is known before any request. It assumes that the names are right: they err as ERROR and ERROR_DECAY state, and
    say something of each class (UNRELATED = 0). Users' vectors remove a part δ²/(δ² + noise) of the error δ² of each
    direction. If the names are wrong, for example swapped, the result is no bound: users may add any amount.

    Args:
        features: Public features (n, d), those of users' vectors.
        likely: Probabilities of classes (n, K) by the names.
        codes: Simplex codes.
        noise: Noise variance in each coordinate of the users' mean.
        users: Number of users.
    """
    f = np.asarray(features, np.float64)
    c, d = codes.shape[1], f.shape[1]
    values, vectors = np.linalg.eigh(np.cov(f, rowvar=False))
    values = np.maximum(values, 1e-12)
    names = of_labels(f, likely, codes, by_names=True)
    cross = (names.cross - np.outer(names.constant, f.mean(axis=0))) @ vectors
    signal = float(((cross**2).sum(axis=0) / values).sum())
    error = ERROR * signal / c * values**ERROR_DECAY / (values ** (ERROR_DECAY - 1)).sum()
    removed = error**2 / np.maximum(error + noise / (1 - constant_share(d)) + values / (c * users), 1e-300)
    return c * float((removed / values).sum()) / max(signal, 1e-300)


def swapped_names(
    features: NDArray[Any], likely: NDArray[Any], codes: NDArray[np.float32], users: Evidence
) -> tuple[int, int] | None:
    """Return the two classes whose names users' vectors contradict most; None if they contradict no two.

    With C = E[code ⊗ (f - f̄)], the difference of two classes is (code_j - code_k)·C. The statistic is the product of
    users' difference and that of the names, each direction weighed by users' noise, in standard deviations of that
    noise. Names that are right give a positive expectation, unrelated ones 0. If names are permuted and their
    differences are a regular simplex, the pair of a class and the class of its name has a negative one: with unit
    prototypes of cosine ρ, it is (ρ - 1)·(1 or 2). Two classes are returned at FALSE_ALARM over all pairs
    (Bonferroni, normal noise).

    Args:
        features: Public features (n, d), those of users' vectors.
        likely: Probabilities of classes (n, K) by the names.
        codes: Simplex codes.
        users: Evidence of users.
    """
    f, exact = np.asarray(features, np.float64), codes.astype(np.float64)
    classes, mean, spread = len(exact), f.mean(axis=0), np.maximum(f.var(axis=0), 1e-12)
    centre = mean + _shift(users, mean, spread)
    names = of_labels(f, likely, codes, by_names=True)
    user_cross = exact @ (users.cross - np.outer(users.constant, centre))
    name_cross = exact @ (names.cross - np.outer(names.constant, mean))
    weighed = name_cross / (users.variance(spread) + users.constant_noise * centre**2)
    product, square = _between(user_cross @ weighed.T), _between(name_cross @ weighed.T)
    length = 2 * classes / (classes - 1)  # |code_j - code_k|²
    j, k = np.triu_indices(classes, 1)
    score = product[j, k] / np.sqrt(np.maximum(length * square[j, k], 1e-300))
    worst = int(score.argmin())
    return (int(j[worst]), int(k[worst])) if score[worst] < -stats.norm.isf(FALSE_ALARM / len(j)) else None


def _between(gram: FloatArray) -> FloatArray:
    """Return (a_j - a_k)·(b_j - b_k) for all pairs (K, K), from the products a_j·b_k."""
    own = np.diag(gram)
    return own[:, None] + own - gram - gram.T


def vector_mean(mechanism: Mechanism, values: NDArray[Any]) -> tuple[FloatArray, float]:
    """Return the debiased mean (D,) of released user vectors (n, D), n >= 1, and its noise variance (`mean_noise`)."""
    noise = mean_noise(mechanism, users=len(values))
    if np.isinf(noise):
        return np.zeros(values.shape[1]), noise
    if hasattr(mechanism, "decoded_mean"):
        return mechanism.decoded_mean(values), noise
    return decoded(mechanism, values).mean(axis=0), noise


def mean_noise(mechanism: Mechanism, *, users: int) -> float:
    """Return the noise variance in each coordinate of the users' debiased mean.

    Args:
        mechanism: Mechanism of channel `statistic`.
        users: Number of users.

    Returns:
        inf if a release says nothing (ε = 0), 0 if it is in clear.
    """
    scale, about = float(getattr(mechanism, "scale", 1.0)), parameters(mechanism)
    size = int(about.get("dim") or about["size"])
    return np.inf if scale == 0 else (1 / scale**2 - 1) / (users * size)
