"""Contracts that every catalogue entry passes; the catalogue itself."""

import dataclasses
import inspect
import itertools
import json
import math
import pickle
import random

import numpy as np
import pytest

from mechanisms.catalogue import CATALOGUE, build
from mechanisms.gaussian import Gaussian
from mechanisms.grid import SPHERE
from mechanisms.guarantee import Guarantee
from mechanisms.identity import Identity
from mechanisms.mechanism import parameters
from mechanisms.metrics import DISTANCES
from mechanisms.spherical import PlanarLaplace, Purkayastha
<<<<<<< HEAD
from mechanisms.streams import SecureStreams, SimulationStreams
from mechanisms.vocabulary import NOTHING, Vocabulary
from tests.support.paths import ROOT

ALARM = 1e-6


def small_vocabulary():
    """Twelve words in four dimensions, two of them at one place, two of them stop words; counted and tagged."""
    rng = np.random.default_rng(3)
    vectors = rng.normal(size=(12, 4)).astype(np.float32)
    vectors[7] = vectors[2]
    words = (*(f"word{i}" for i in range(10)), "the", "of")
    return Vocabulary(words, vectors, rng.integers(1, 50, 12), rng.integers(0, 3, 12).astype(np.int8))


# What a contract test tries for each parameter, by its name: a new mechanism that uses these names is found
# here by itself; one with a parameter of a new name says so.
VALUES = {
    "dim": (2, 3, 16, 768),
    "epsilon": (0.5, 10.0, 1000.0),
    "sigma": (0.7,),
    "normalize": (True, False),
    "classes": (2, 12),
    "channel": ("embedding", "label"),
    "size": (5,),
    "vocabulary": (small_vocabulary(),),
    "w": (0.5,),
    "p": (0.3, 1.0),
    "k": (3,),
    "similarity": ("euclidean", "cosine"),
    "rest": (8.0,),
    "share": (0.4,),
    "which": ("top", "bottom"),
    "strategy": ("aggressive", "conservative"),
    "mode": ("repaired", "paper"),
    "penalty": (1.0,),
    "low": (-2.0,),
    "high": (3.0,),
    "antonyms": ((("word0", "word1"),),),
    "addition": (0.1,),
    "deletion": (0.05,),
    "end": ("",),
    "cap_probability": (None, 0.5),
}
# ... and where one mechanism has a smaller range than the others.
RANGES = {("privunit", "epsilon"): (0.5, 10.0, 100.0)}
TOKENS = 6


def instances():
    for kind in CATALOGUE.values():
        names = [f.name for f in dataclasses.fields(kind)]
        for values in itertools.product(*(RANGES.get((kind.name, name), VALUES[name]) for name in names)):
            mechanism = kind(**dict(zip(names, values, strict=True)))
            shown = ["words" if isinstance(v, Vocabulary) else str(v) for v in values]
            yield pytest.param(mechanism, id=f"{kind.name}-{'-'.join(shown)}")


every_mechanism = pytest.mark.parametrize("mechanism", list(instances()))


def unit(n, dim, seed=0):
    x = np.random.default_rng(seed).normal(size=(n, dim))
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def width(mechanism):
    return next(getattr(mechanism, f) for f in ("dim", "classes", "size") if hasattr(mechanism, f))


def inputs(mechanism, n, seed=0):
    if mechanism.channel in ("embedding", "statistic"):
        return unit(n, width(mechanism), seed)
    if mechanism.channel == "text":
        rng = np.random.default_rng(seed)
        numbers = rng.integers(0, len(mechanism.vocabulary) + 1, (n, TOKENS))
        return np.where(np.arange(TOKENS) < rng.integers(0, TOKENS + 1, n)[:, None], numbers, NOTHING)
    return np.random.default_rng(seed).integers(0, width(mechanism), n)


def extras(mechanism, n, seed=7):
    """Further arguments of `sample`, and of `log_prob`: public priors, or what else of a text is read."""
    if mechanism.channel == "text":
        return {name: READ[name](mechanism, n, seed) for name in mechanism.reads}
    if not mechanism.needs_prior:
        return {}
    return {"prior": np.random.default_rng(seed).dirichlet(np.ones(width(mechanism)), n)}


def made_up_scores(mechanism, n, seed):
    """Logits that depend on the place and on the words around it, and on nothing else."""
    table = np.random.default_rng(seed).normal(size=(64, 14, len(mechanism.vocabulary)))

    def scores(positions, words, rows):
        before = np.where(positions > 0, words[rows, np.maximum(positions - 1, 0)], NOTHING)
        return table[positions % 64, before]

    return scores


READ = {
    "importance": lambda mechanism, n, seed: np.random.default_rng(seed).random((n, TOKENS)),
    "scores": made_up_scores,
}


def part_of(more, rows):
    """The same arguments for some of the rows."""
    return {k: v if callable(v) else v[rows] for k, v in more.items()}


def rebuilt(mechanism, spec):
    if mechanism.channel != "text":
        return build(spec, channel=mechanism.channel)
    return build(spec, channel="text", vocabulary=mechanism.vocabulary).word


def streams(n, seed=1, offset=0):
    users = np.arange(offset, offset + n)
    return SimulationStreams(seed).rows(users, np.zeros(n, np.int64), stage="test", channel="any")


class Recorder:
    """A source that remembers what was asked of it."""

    def __init__(self, source):
        self.source, self.asked = source, []

    def uniform(self, rows, k):
        self.asked.append((rows, k))
        return self.source.uniform(rows, k)

    def further(self, rows, k):
        return self.source.further(rows, k)


class Constant:
    """A source whose every uniform is one given lattice point."""

    def __init__(self, value):
        self.value = value

    def uniform(self, rows, k):
        return np.full((rows, k), self.value)

    def further(self, rows, k):
        return np.full((len(rows), k), 0.5)

=======
from mechanisms.streams import SecureStreams
from mechanisms.vocabulary import NOTHING
from tests.support.mechanisms import (
    TOKENS,
    Constant,
    Recorder,
    every_mechanism,
    extras,
    inputs,
    instances,
    part_of,
    rebuilt,
    streams,
    unit,
    width,
)
>>>>>>> main

# --- contracts
# ----------------------------------------------------------------------------------------------------


@every_mechanism
def test_is_a_frozen_value_that_its_parameters_rebuild(mechanism):
    spec = json.loads(json.dumps(parameters(mechanism)))
    assert spec["mechanism"] == mechanism.name and CATALOGUE[mechanism.name] is type(mechanism)
    again = rebuilt(mechanism, spec)
    assert (
        again == mechanism
        and hash(again) == hash(mechanism)
        and pickle.loads(pickle.dumps(mechanism)) == again
    )
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(mechanism, dataclasses.fields(mechanism)[0].name, 1)


@every_mechanism
def test_the_guarantee_is_a_sound_value(mechanism):
    guarantee = mechanism.guarantee
    assert Guarantee.from_dict(json.loads(json.dumps(guarantee.to_dict()))) == guarantee
    allowed = {"embedding": ("sequence",), "label": ("label",), "text": ("token", "sequence"), "statistic": ("record",)}
    assert guarantee.protects in allowed[mechanism.channel]
    assert guarantee.worst_case(1e-6) >= guarantee.loss(0.0) == 0.0
    assert guarantee.numeric_epsilon < 1e-6
    assert guarantee.numeric_delta < (1e-6 if mechanism.grid in (SPHERE, None) else 1e-2)


@every_mechanism
def test_draws_are_valid_and_fit_the_grid(mechanism):
    x = inputs(mechanism, 300)
    before = x.copy()
    y = mechanism.sample(x, rng=streams(300), **extras(mechanism, 300))
    np.testing.assert_array_equal(x, before)
    if mechanism.channel == "text":  # dp-mlm-resized may answer longer texts than it is given
        assert len(y) == len(x) and y.dtype == np.int64
        assert y.min() >= NOTHING and y.max() < len(mechanism.vocabulary)
        return
    assert y.shape == x.shape and np.isfinite(y).all()
    if mechanism.grid is None:
        assert y.dtype == np.int64 and y.min() >= 0 and y.max() < width(mechanism)
        return
    assert y.dtype == np.float64
    decoded = mechanism.grid.decode(mechanism.grid.encode(y))
    inside = np.abs(y) <= mechanism.grid.limit * mechanism.grid.step
    assert np.all(np.abs(decoded - y)[inside] <= mechanism.grid.step / 2 * (1 + 1e-9))
    if mechanism.grid is SPHERE:
        np.testing.assert_allclose(np.linalg.norm(y, axis=1), 1.0, atol=1e-12)


@every_mechanism
def test_two_groupings_of_rows_give_identical_draws(mechanism):
    n = 60
    x, more = inputs(mechanism, n), extras(mechanism, n)
    whole = mechanism.sample(x, rng=streams(n), **more)
    for size in (1, 7):
        parts = [
            mechanism.sample(
                x[i : i + size],
                rng=streams(len(x[i : i + size]), offset=i),
                **part_of(more, slice(i, i + size)),
            )
            for i in range(0, n, size)
        ]
        np.testing.assert_array_equal(np.concatenate(parts), whole)
    np.testing.assert_array_equal(mechanism.sample(np.asfortranarray(x), rng=streams(n), **more), whole)


@every_mechanism
def test_chunks_do_not_matter(mechanism, monkeypatch):
    x, more = inputs(mechanism, 40), extras(mechanism, 40)
    whole = mechanism.sample(x, rng=streams(40), **more)
    for module in ("spherical", "words.exponential", "words.custext"):
        monkeypatch.setattr(f"mechanisms.{module}._CHUNK", 9)
    np.testing.assert_array_equal(mechanism.sample(x, rng=streams(40), **more), whole)


@every_mechanism
def test_every_row_uses_the_same_number_of_uniforms_whatever_its_value(mechanism):
    asked = []
    for seed in (0, 1):
        recorder = Recorder(streams(20))
        mechanism.sample(inputs(mechanism, 20, seed), rng=recorder, **extras(mechanism, 20, seed))
        asked.append(recorder.asked)
    assert asked[0] == asked[1] and all(rows == 20 for rows, _ in asked[0])


@every_mechanism
def test_a_row_depends_on_no_other(mechanism):
    x, other, more = inputs(mechanism, 30), inputs(mechanism, 30, 5), extras(mechanism, 30)
    other[11] = x[11]
    a, b = (mechanism.sample(v, rng=streams(30), **more) for v in (x, other))
    np.testing.assert_array_equal(a[11], b[11])


@every_mechanism
def test_the_generator_is_required_and_global_ones_stay_untouched(mechanism):
    x, more = inputs(mechanism, 10), extras(mechanism, 10)
    with pytest.raises(TypeError):
        mechanism.sample(x, **more)
    assert inspect.signature(mechanism.sample).parameters["rng"].kind is inspect.Parameter.KEYWORD_ONLY
    before = random.getstate(), pickle.dumps(np.random.get_state())  # noqa: NPY002
    for rng in (streams(10), SecureStreams().rows(np.arange(10), np.arange(10), stage="s", channel="c")):
        mechanism.sample(x, rng=rng, **more)
    assert (random.getstate(), pickle.dumps(np.random.get_state())) == before  # noqa: NPY002


@every_mechanism
@pytest.mark.parametrize("uniform", [2.0**-53, 0.5 + 2.0**-53, 1 - 2.0**-53])
def test_extreme_uniforms_give_finite_draws(mechanism, uniform):
    x, more = inputs(mechanism, 10), extras(mechanism, 10)
    assert np.isfinite(mechanism.sample(x, rng=Constant(uniform), **more)).all()


@every_mechanism
def test_an_empty_batch_is_a_batch(mechanism):
    x = inputs(mechanism, 5)[:0]
    y = mechanism.sample(x, rng=streams(0), **extras(mechanism, 0))
    assert y.shape == x.shape or (mechanism.channel == "text" and len(y) == 0)


@every_mechanism
def test_bad_inputs_are_refused_in_one_line(mechanism):
    n, bad = 3, []
    if mechanism.channel == "label":
        bad += [
            np.array([0, 1, width(mechanism)]),
            np.array([0, -1, 0]),
            np.array([0.5, 0, 0]),
            np.zeros((3, 1), int),
        ]
    elif mechanism.channel == "text":
        x = np.zeros((n, TOKENS), int)
        outside = np.arange(TOKENS) == 2
        bad += [np.where(outside, len(mechanism.vocabulary) + 1, x), np.where(outside, -2, x), x + 0.5, x[None]]
    else:
        x = unit(n, width(mechanism))
        bad += [np.where(np.arange(n)[:, None] == 1, np.nan, x), x[:, :-1], x[0]]
        if getattr(mechanism, "normalize", True):
            bad += [x * 1.00001, np.zeros_like(x)]
    for values in bad:
        with pytest.raises(ValueError, match=mechanism.name) as caught:
            mechanism.sample(values, rng=streams(3), **extras(mechanism, 3))
        assert "\n" not in str(caught.value)


def has_density(mechanism):
    closed = hasattr(mechanism, "log_prob") and getattr(mechanism, "normalize", False) is False
    return closed and mechanism.channel != "text"


def densities():
    return pytest.mark.parametrize("mechanism", [p for p in instances() if has_density(p.values[0])])


@densities()
def test_the_log_likelihood_ratio_never_exceeds_the_guarantee(mechanism):
    """10,000 random triples, half of them with y drawn from the mechanism at x, where ratios are largest."""
    n = 10_000
    x, other, more = inputs(mechanism, n, 1), inputs(mechanism, n, 2), extras(mechanism, n)
    y = inputs(mechanism, n, 3)
    y[: n // 2] = mechanism.sample(x, rng=streams(n), **more)[: n // 2]
    first, second = mechanism.log_prob(y, x, **more), mechanism.log_prob(y, other, **more)
    possible = np.isfinite(first)
    np.testing.assert_array_equal(possible, np.isfinite(second))  # no output rules an input out
    distance = DISTANCES[mechanism.guarantee.metric](x, other)
    guarantee = mechanism.guarantee
    bound = np.array([guarantee.loss(d) for d in distance]) - guarantee.numeric_epsilon
    ratio = np.abs(first[possible] - second[possible])
    assert np.all(ratio <= bound[possible] + 1e-9)


# --- text mechanisms
# ----------------------------------------------------------------------------------------------------


def words_alone():
    """Text mechanisms that read nothing but the word, and give its probabilities."""
    every = [p for p in instances() if p.values[0].channel == "text" and not p.values[0].reads]
    return pytest.mark.parametrize("mechanism", [p for p in every if hasattr(p.values[0], "log_probs")])


@every_mechanism
def test_the_loss_distribution_is_no_larger_than_the_guarantee(mechanism):
    if mechanism.channel == "text":
        worst = mechanism.guarantee.worst_case(declared=mechanism.guarantee.exposes)
        assert mechanism.privacy_loss().epsilon(0.0) <= worst * (1 + 1e-12)
        assert mechanism.privacy_loss(0.0).epsilon(0.0) == 0.0


@words_alone()
def test_all_pairs_of_words_keep_the_guarantee(mechanism):
    """Where nothing is exposed; what exposes something has tests of its own."""
    vocabulary, guarantee = mechanism.vocabulary, mechanism.guarantee
    x = np.arange(len(vocabulary) + 1)
    try:
        table = mechanism.log_probs(x)
    except NotImplementedError:
        return
    np.testing.assert_allclose(np.exp(table).sum(axis=1), 1.0, rtol=0, atol=1e-12)
    first, other = np.repeat(x, len(vocabulary)), np.tile(x[:-1], len(x))
    np.testing.assert_allclose(mechanism.log_prob(other, first), table.ravel(), rtol=0, atol=1e-9)
    if guarantee.exposes:
        return
    points = vocabulary.points.astype(np.float64)
    for a, b in itertools.permutations(x, 2):
        apart = np.linalg.norm(points[a] - points[b]) if guarantee.metric == "euclidean" else 1.0
        apart = min(apart, guarantee.diameter) if guarantee.inputs == "all" else guarantee.diameter
        possible = np.isfinite(table[a])
        assert np.all(possible == np.isfinite(table[b]))
        bound = guarantee.epsilon * apart + guarantee.offset + 1e-9
        assert np.abs(table[a][possible] - table[b][possible]).max() <= bound


# --- the catalogue
# ------------------------------------------------------------------------------------------------


def test_the_catalogue_fills_in_sizes():
    assert build({"mechanism": "purkayastha", "epsilon": 10}, channel="embedding", dim=8) == Purkayastha(
        8, 10.0
    )
    assert build({"mechanism": "purkayastha", "epsilon": 10.0, "dim": 4}, channel="embedding", dim=8).dim == 4
    assert build({"mechanism": "randomized-response", "epsilon": 2}, channel="label", classes=3).classes == 3
    assert build({"mechanism": "identity"}, channel="label", classes=3) == Identity("label", 3)
    assert build({"mechanism": "identity", "dim": 4}, channel="embedding", dim=8) == Identity("embedding", 4)
    spec = {"mechanism": "gaussian", "epsilon": 1.0, "delta": 1e-6}
    assert build(spec, channel="embedding", dim=8) == Gaussian.calibrated(1.0, 1e-6, 8)
    assert PlanarLaplace(3, 1.0).normalize


@pytest.mark.parametrize(
    ("spec", "channel", "words"),
    [
        ({"mechanism": "purkayasta", "epsilon": 1.0}, "embedding", "did you mean 'purkayastha'"),
        ({"mechanism": "zzz"}, "embedding", "known: "),
        ({"epsilon": 1.0}, "embedding", "no name"),
        ({"mechanism": ["purkayastha"]}, "embedding", "no name"),
        ({"mechanism": "purkayastha"}, "embedding", "missing parameter epsilon"),
        ({"mechanism": "purkayastha", "epsilon": 1.0, "epsilom": 2}, "embedding", "did you mean 'epsilon'"),
        ({"mechanism": "purkayastha", "epsilon": 1.0}, "label", "sanitizes the embedding, not the label"),
        ({"mechanism": "randomized-response", "epsilon": 1.0}, "embedding", "sanitizes the label"),
        ({"mechanism": "identity", "channel": "label"}, "embedding", "sanitizes the label"),
        ({"mechanism": "gaussian", "epsilon": 1.0}, "embedding", "epsilon"),
        ({"mechanism": "gaussian"}, "embedding", "missing parameter sigma"),
        (
            {"mechanism": "purkayastha", "epsilon": -1.0},
            "embedding",
            "epsilon must be from 0 to 1000, got -1",
        ),
        ({"mechanism": "purkayastha", "epsilon": math.nan}, "embedding", "got nan"),
        ({"mechanism": "purkayastha", "epsilon": math.inf}, "embedding", "got inf"),
        ({"mechanism": "purkayastha", "epsilon": 1001}, "embedding", "got 1001"),
        ({"mechanism": "purkayastha", "epsilon": "10"}, "embedding", "got '10'"),
        ({"mechanism": "purkayastha", "epsilon": True}, "embedding", "got True"),
        (
            {"mechanism": "purkayastha", "epsilon": 1.0, "dim": 1},
            "embedding",
            "dim must be from 2 to 1024, got 1",
        ),
        ({"mechanism": "purkayastha", "epsilon": 1.0, "dim": 1025}, "embedding", "got 1025"),
        ({"mechanism": "purkayastha", "epsilon": 1.0, "dim": 4.0}, "embedding", "whole number"),
        ({"mechanism": "planar-laplace", "epsilon": 0.0, "normalize": False}, "embedding", "above 0"),
        ({"mechanism": "planar-laplace", "epsilon": 1.0, "normalize": 1}, "embedding", "true or false"),
        ({"mechanism": "gaussian", "sigma": 0.0}, "embedding", "sigma"),
        ({"mechanism": "gaussian", "epsilon": 1.0, "delta": 0.0}, "embedding", "delta"),
        ({"mechanism": "randomized-response", "epsilon": -0.1}, "label", "got -0.1"),
        ({"mechanism": "randomized-response-prior", "epsilon": math.nan}, "label", "got nan"),
        ({"mechanism": "randomized-response", "epsilon": 1.0, "classes": 1}, "label", "classes"),
    ],
)
def test_a_bad_specification_is_one_line_that_says_what(spec, channel, words):
    with pytest.raises(ValueError) as caught:
        build(spec, channel=channel, dim=16, classes=12)
    assert words in str(caught.value) and "\n" not in str(caught.value)


<<<<<<< HEAD
# --- Purkayastha
# --------------------------------------------------------------------------------------------------

CASES = list(itertools.product((2, 3, 16, 768), (0.0, 1.0, 10.0, 1000.0)))


def angle_distribution(dim, kappa):
    """The distribution of the angle, by quadrature in log tan(θ/2) that shares nothing with the table."""
    u = np.linspace(-45, 45, 900_001)
    log_density = -(dim - 1) * np.logaddexp(u, -u) - kappa * 2 * np.arctan(np.exp(u))
    cdf = np.cumsum(np.exp(log_density - log_density.max()))
    return lambda theta: np.interp(np.log(np.tan(theta / 2)), u, cdf / cdf[-1])


def table_angles(dim, kappa, n, seed=1):
    sine, cosine, _ = angle_table(dim, kappa).sine_cosine(streams(n, seed).uniform(n, 1)[:, 0])
    return np.arctan2(sine, cosine)


def fits(values, distribution):
    return stats.kstest(values, distribution).pvalue > ALARM


@pytest.mark.parametrize(("dim", "kappa"), CASES)
def test_the_table_of_angles_fits_its_density(dim, kappa):
    n = 1_200_000 if (dim, kappa) == (768, 1.0) else 50_000  # there ε moves the angle by 1/80 of its spread
    distribution = angle_distribution(dim, kappa)
    assert fits(table_angles(dim, kappa, n), distribution)
    if kappa:
        assert not fits(table_angles(dim, kappa * 2 / 3, n), distribution)
        assert not fits(table_angles(dim, kappa * 3 / 2, n), distribution)


@pytest.mark.parametrize(("dim", "kappa"), CASES)
def test_purkayastha_draws_fit_their_density(dim, kappa):
    """The angle to the input by quadrature; the direction around it by its beta distribution."""
    n = 20_000
    x = np.tile(unit(1, dim), (n, 1))
    y = Purkayastha(dim, kappa).sample(x, rng=streams(n))
    angles = angular(x, y)
    assert fits(angles, angle_distribution(dim, kappa))
    if kappa and (dim, kappa) != (768, 1.0):
        assert not fits(angles, angle_distribution(dim, kappa * 2 / 3))
        assert not fits(angles, angle_distribution(dim, kappa * 3 / 2))

    tangent = y - np.sum(x * y, axis=1, keepdims=True) * x
    tangent /= np.linalg.norm(tangent, axis=1, keepdims=True)
    axis = unit(1, dim, seed=3)[0]
    axis -= (axis @ x[0]) * x[0]
    along = tangent @ (axis / np.linalg.norm(axis))
    if dim == 2:
        assert stats.binomtest(int((along > 0).sum()), n).pvalue > ALARM
    else:
        assert fits((1 + along) / 2, stats.beta((dim - 2) / 2, (dim - 2) / 2).cdf)
    assert abs(stats.spearmanr(along, angles).statistic) * math.sqrt(n) < stats.norm.isf(ALARM / 2)


@pytest.mark.parametrize("mechanism", [Purkayastha, PlanarLaplace])
@pytest.mark.parametrize("dim", [2, 3, 16])
def test_epsilon_zero_is_uniform_on_the_sphere(mechanism, dim):
    n = 20_000
    y = mechanism(dim, 0.0).sample(np.tile(unit(1, dim), (n, 1)), rng=streams(n))
    for axis in (np.eye(dim)[0], unit(1, dim)[0], unit(1, dim, seed=9)[0]):
        along = np.clip((1 + y @ axis) / 2, 0, 1)
        assert fits(along, stats.beta((dim - 1) / 2, (dim - 1) / 2).cdf)
        assert not fits(along**1.1, stats.beta((dim - 1) / 2, (dim - 1) / 2).cdf)


@pytest.mark.parametrize(("dim", "kappa"), [*CASES, (4, 0.5), (17, 40.0), (1024, 1000.0), (1024, 0.0)])
def test_the_normalizer_against_independent_quadrature(dim, kappa):
    with mpmath.workdps(40):
        peak = mpmath.atan2(dim - 2, kappa) if kappa or dim > 2 else mpmath.pi / 2
        # cuts one standard deviation apart around the peak: coarser ones lose 1e-8 at (768, 1000)
        scale = mpmath.sin(peak) / mpmath.sqrt(dim - 2) if dim > 2 else mpmath.mpf(1) / max(kappa, 1)
        near = [peak + k * scale for k in [*range(-20, 20), *range(20, 80, 5)]]
        cuts = [mpmath.mpf(0), *(p for p in near if 0 < p < mpmath.pi), +mpmath.pi]
        integral = mpmath.quad(lambda t: mpmath.sin(t) ** (dim - 2) * mpmath.exp(-kappa * t), cuts)
        surface = 2 * mpmath.pi ** (mpmath.mpf(dim - 1) / 2) / mpmath.gamma(mpmath.mpf(dim - 1) / 2)
        expected = -mpmath.log(surface * integral)
    assert log_normalizer(dim, kappa) == pytest.approx(float(expected), rel=1e-12, abs=1e-11)


@pytest.mark.parametrize(("dim", "kappa"), CASES)
def test_the_density_integrates_to_one(dim, kappa):
    """log_prob itself along a great circle, times the sphere of directions around it."""
    u = np.linspace(-45, 45, 20_001) if dim < 100 else np.linspace(-4, 4, 2_001)
    theta = 2 * np.arctan(np.exp(u))
    x, ortho = np.zeros(dim), np.zeros(dim)
    x[0], ortho[1] = 1.0, 1.0
    y = np.cos(theta)[:, None] * x + np.sin(theta)[:, None] * ortho
    log_surface = math.log(2) + (dim - 1) / 2 * math.log(math.pi) - math.lgamma((dim - 1) / 2)
    # dθ = sin θ du, so one more sine; log sin θ = -log cosh u
    log_sine = math.log(2) - np.logaddexp(u, -u)
    log_mass = (
        Purkayastha(dim, kappa).log_prob(y, np.broadcast_to(x, y.shape)) + (dim - 1) * log_sine + log_surface
    )
    assert logsumexp(log_mass) + math.log(u[1] - u[0]) == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize(("dim", "kappa"), CASES)
def test_purkayastha_attains_its_bound_on_geodesics(dim, kappa):
    """At y = x, y = x', and wherever x lies on the geodesic from y to x' (or x' on that from y to x)."""
    n = 200
    mechanism = Purkayastha(dim, kappa)
    x, step = unit(n, dim, 1), unit(n, dim, 2)
    step -= np.sum(step * x, axis=1, keepdims=True) * x
    step /= np.linalg.norm(step, axis=1, keepdims=True)

    def at(angle):
        return np.cos(angle)[:, None] * x + np.sin(angle)[:, None] * step

    rng = np.random.default_rng(3)
    distance = rng.uniform(0, np.pi, n)
    other = at(distance)
    for y, sign in (
        (x, 1),
        (other, -1),
        (at(-rng.uniform(0, 1, n) * (np.pi - distance)), 1),
        (at(distance + rng.uniform(0, 1, n) * (np.pi - distance)), -1),
    ):
        ratio = mechanism.log_prob(y, x) - mechanism.log_prob(y, other)
        np.testing.assert_allclose(sign * ratio, kappa * distance, rtol=0, atol=1e-9)
    antipodal = mechanism.log_prob(x, x) - mechanism.log_prob(x, -x)
    np.testing.assert_allclose(antipodal, kappa * np.pi, rtol=0, atol=1e-9)
    assert mechanism.guarantee.worst_case() == pytest.approx(kappa * math.pi, abs=1e-6)


@pytest.mark.parametrize(
    ("dim", "kappa"),
    [(m, e) for m, e in CASES if m > 2]
    + [(4, 0.1), (5, 300.0), (64, 50.0), (1024, 1000.0), (1024, 0.0), (3, 30.0)],
)
def test_the_table_keeps_its_proved_bound(dim, kappa):
    """Log density inside each cell against the exact one: two points differ by at most numeric ε."""
    table = angle_table(dim, kappa)
    assert isinstance(table, AngleTable) and table.cells.shape == (CELLS, 5)
    mass, middle = table.masses, table.middle
    start, inverse, growth, scale, knot = table.cells.T
    # where a cell begins is the mass before it, or beyond the middle minus the mass after
    np.testing.assert_allclose(start[1:middle], np.cumsum(mass[: middle - 1]), rtol=1e-11)
    np.testing.assert_allclose(-start[middle:], np.cumsum(mass[middle:][::-1])[::-1], rtol=1e-11)
    assert mass[:middle].sum() == pytest.approx(table.split, abs=1e-12) and 0.5 <= table.split < 0.51
    worth = mass > 0
    assert mass[~worth].sum() == 0 and np.allclose(inverse[worth] * mass[worth], 1.0, rtol=1e-15)
    mass, growth, scale, knot = mass[worth], growth[worth], scale[worth], knot[worth]
    slope = np.log1p(growth)
    errors = []
    for t in (0.0, 0.25, 0.5, 0.75, 1.0):
        u = knot + t * scale * slope
        log_table = np.log(mass) - np.log(scale * growth) + t * slope
        log_sech = math.log(2) - np.logaddexp(u, -u)
        exact = (dim - 1) * log_sech - kappa * 2 * np.arctan(np.exp(u)) - log_angle_integral(dim - 2, kappa)
        errors.append(log_table - exact)
    spread = np.max(errors) - np.min(errors)
    assert spread <= table.numeric_epsilon + 1e-10
    assert table.numeric_epsilon < 2e-7 and table.numeric_delta < 1e-15
    assert start[0] == 0 and np.all(mass >= 0)


def test_a_table_may_be_off_by_more_than_half_of_its_numeric_epsilon(monkeypatch):
    """Where the log density bends both ways, the normalizer is off too: δ and γ pay e^(±numeric), not half of it."""
    monkeypatch.setattr("mechanisms.losses.angle_table.CELLS", 64)
    table = angle_table.__wrapped__(3, 5.0)
    mass = table.masses
    _, _, growth, scale, knot = table.cells.T
    slope, t = np.log1p(growth), np.linspace(0, 1, 9)[:, None]
    u = knot + t * scale * slope
    exact = 2 * (math.log(2) - np.logaddexp(u, -u)) - 5.0 * 2 * np.arctan(np.exp(u)) - log_angle_integral(1, 5.0)
    off = (np.log(mass) - np.log(scale * growth) + t * slope - exact)[:, mass > 1e-9]
    assert table.numeric_epsilon / 2 < np.abs(off).max() <= table.numeric_epsilon
    assert np.ptp(off) <= table.numeric_epsilon

    monkeypatch.setattr("mechanisms.spherical.angle_table", lambda dim, kappa: table)
    rough = Purkayastha(3, 5.0)
    assert compose([(rough, 3)], delta=1e-6).delta >= 1e-6 * math.exp(3 * table.numeric_epsilon)
    cells = joint_blanket([rough])
    assert cells.log_gamma <= rough.blanket().log_gamma - table.numeric_epsilon


@pytest.mark.parametrize(("dim", "kappa"), [(m, e) for m, e in CASES if m > 2] + [(1024, 1000.0)])
def test_the_table_cuts_off_no_more_than_it_says(dim, kappa):
    table = angle_table(dim, kappa)
    low = table.cells[0, 4]
    high = table.cells[-1, 4] + table.cells[-1, 3] * np.log1p(table.cells[-1, 2])
    for left, right in ((low - 40, low), (high, high + 40)):
        u = np.linspace(left, right, 400_001)
        log_density = (dim - 1) * (math.log(2) - np.logaddexp(u, -u)) - kappa * 2 * np.arctan(np.exp(u))
        tail = logsumexp(log_density) + math.log(u[1] - u[0]) - log_angle_integral(dim - 2, kappa)
        assert -75 * math.log(2) < tail < -60.9 * math.log(2)


def test_the_arc_is_exact():
    for kappa in (0.0, 1e-9, 1.0, 1000.0):
        u = np.array([2.0**-53, 0.1, 0.5, 0.9, 1 - 2.0**-53])
        theta = np.arctan2(*angle_table(2, kappa).sine_cosine(u)[:2])
        with mpmath.workdps(40):
            for p, found in zip(u, theta, strict=True):
                rate = mpmath.mpf(kappa)
                whole = 1 - mpmath.exp(-rate * mpmath.pi)
                exact = -mpmath.log(1 - mpmath.mpf(p) * whole) / rate if kappa else mpmath.pi * mpmath.mpf(p)
                assert found == pytest.approx(float(exact), rel=1e-12)


@pytest.mark.parametrize(
    ("dim", "kappa"), [(3, 1000.0), (768, 0.0), (768, 1000.0), (1024, 0.0), (1024, 1000.0)]
)
def test_nothing_underflows(dim, kappa):
    x = unit(500, dim)
    mechanism = Purkayastha(dim, kappa)
    y = mechanism.sample(x, rng=streams(500))
    np.testing.assert_allclose(np.linalg.norm(y, axis=1), 1.0, atol=1e-12)
    assert np.isfinite(mechanism.log_prob(y, x)).all() and np.isfinite(mechanism.log_prob(-x, x)).all()


def test_slightly_long_inputs_are_the_directions_they_point_in():
    x = unit(50, 16)
    for mechanism in (Purkayastha(16, 5.0), PlanarLaplace(16, 5.0), Gaussian(16, 1.0)):
        near = mechanism.sample(x * (1 + 9e-7), rng=streams(50))
        np.testing.assert_allclose(near, mechanism.sample(x, rng=streams(50)), rtol=0, atol=1e-13)


# --- planar Laplace
# -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dim", "epsilon"), [(2, 1.0), (3, 10.0), (16, 0.5), (16, 10.0), (768, 10.0), (768, 1000.0)]
)
def test_planar_laplace_draws_fit_their_density(dim, epsilon):
    n = 20_000
    x = np.tile(3 * unit(1, dim), (n, 1))
    noise = PlanarLaplace(dim, epsilon, normalize=False).sample(x, rng=streams(n)) - x
    radius = np.linalg.norm(noise, axis=1)
    assert fits(radius, stats.gamma(dim, scale=1 / epsilon).cdf)
    assert not fits(radius, stats.gamma(dim, scale=1.5 / epsilon).cdf)
    assert not fits(radius, stats.gamma(dim, scale=1 / (1.5 * epsilon)).cdf)
    along = (1 + noise @ unit(1, dim, 4)[0] / radius) / 2
    assert fits(along, stats.beta((dim - 1) / 2, (dim - 1) / 2).cdf)


@pytest.mark.parametrize(("dim", "epsilon"), [(2, 2.0), (3, 10.0), (16, 10.0), (768, 600.0)])
def test_normalized_planar_laplace_against_another_sampler(dim, epsilon):
    """The angle to the input, compared by the two-sample KS test with draws from NumPy's gamma and normal."""
    n = 20_000 if dim < 100 else 5_000
    x = np.tile(unit(1, dim), (n, 1))
    rng = np.random.default_rng(5)
    direction = rng.normal(size=(n, dim))
    direction /= np.linalg.norm(direction, axis=1, keepdims=True)
    reference = x + direction * rng.gamma(dim, 1 / epsilon, (n, 1))
    reference = angular(x, reference / np.linalg.norm(reference, axis=1, keepdims=True))
    for factor, right in ((1, True), (2 / 3, False), (3 / 2, False)):
        y = PlanarLaplace(dim, epsilon * factor).sample(x, rng=streams(n))
        assert (stats.ks_2samp(angular(x, y), reference).pvalue > ALARM) == right


@pytest.mark.parametrize(("dim", "epsilon"), [(2, 1.0), (3, 10.0), (16, 0.5), (768, 1000.0)])
def test_the_planar_density_integrates_to_one_and_attains_its_bound(dim, epsilon):
    mechanism = PlanarLaplace(dim, epsilon, normalize=False)
    centre = np.zeros(dim)
    axis = np.eye(dim)[0]
    log_radius = np.linspace(-20, 5, 20_001) if dim < 100 else np.linspace(-2, 2, 2_001)
    log_radius += math.log(dim / epsilon)
    y = np.exp(log_radius)[:, None] * axis
    log_surface = math.log(2) + dim / 2 * math.log(math.pi) - math.lgamma(dim / 2)
    log_mass = mechanism.log_prob(y, np.broadcast_to(centre, y.shape)) + dim * log_radius + log_surface
    assert logsumexp(log_mass) + math.log(log_radius[1] - log_radius[0]) == pytest.approx(0.0, abs=1e-9)

    x, other = unit(100, dim, 1), unit(100, dim, 2)
    for beyond in (0.0, 0.3, 5.0):  # y = x, and y further along the line from x' through x
        y = x + beyond * (x - other)
        ratio = mechanism.log_prob(y, x) - mechanism.log_prob(y, other)
        np.testing.assert_allclose(ratio, epsilon * np.linalg.norm(x - other, axis=1), rtol=0, atol=1e-9)
    assert mechanism.guarantee.worst_case() == 2 * epsilon


def test_the_normalized_form_promises_no_density():
    with pytest.raises(NotImplementedError, match="closed-form"):
        PlanarLaplace(3, 1.0).log_prob(unit(1, 3), unit(1, 3))


@pytest.mark.parametrize("dim", [2, 3, 16, 768, 1024])
def test_the_radius_is_the_exact_quantile(dim):
    with mpmath.workdps(40):
        for u in (2.0**-53, 1e-6, 0.1, 0.5, 0.9, 1 - 1e-6):
            r = mpmath.mpf(float(gammaincinv(dim, u)))
            missed = mpmath.gammainc(dim, 0, r, regularized=True) - mpmath.mpf(u)
            density = mpmath.exp((dim - 1) * mpmath.log(r) - r - mpmath.loggamma(dim))
            assert abs(missed / density / r) < 1e-11


def test_the_normals_are_exact_quantiles():
    with mpmath.workdps(40):
        for u in (2.0**-53, 1e-10, 0.01, 0.3, 0.5 + 2.0**-53, 0.7, 1 - 1e-10, 1 - 2.0**-53):
            z = mpmath.mpf(float(ndtri(u)))
            assert abs(mpmath.ncdf(z) - mpmath.mpf(u)) / mpmath.npdf(z) < 1e-14 * max(1, abs(z))


# --- Gaussian
# -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sigma", [0.1, 3.0])
def test_gaussian_draws_fit_their_density(sigma):
    x = unit(3000, 16)
    noise = (Gaussian(16, sigma).sample(x, rng=streams(3000)) - x).ravel()
    assert fits(noise, stats.norm(scale=sigma).cdf)
    assert not fits(noise, stats.norm(scale=sigma * 1.5).cdf)
    assert not fits(noise, stats.norm(scale=sigma / 1.5).cdf)
    expected = stats.norm(x, sigma).logpdf(x + noise.reshape(x.shape)).sum(axis=1)
    np.testing.assert_allclose(
        Gaussian(16, sigma).log_prob(x + noise.reshape(x.shape), x), expected, atol=1e-9
    )


@pytest.mark.parametrize(
    ("epsilon", "delta"), [(0.0, 0.01), (0.1, 1e-6), (1.0, 1e-6), (8.0, 1e-12), (100.0, 1e-9)]
)
def test_analytic_calibration_against_an_independent_evaluation(epsilon, delta):
    """δ of Balle and Wang, Theorem 8, in 60 digits: met at the σ chosen, missed by any smaller one."""

    def exact(sigma):
        with mpmath.workdps(60):
            ratio, e = 2 / mpmath.mpf(sigma), mpmath.mpf(epsilon)
            return mpmath.ncdf(ratio / 2 - e / ratio) - mpmath.exp(e) * mpmath.ncdf(-ratio / 2 - e / ratio)

    mechanism = Gaussian.calibrated(epsilon, delta, 16)
    assert exact(mechanism.sigma) <= delta < exact(mechanism.sigma * (1 - 1e-8))
    assert mechanism.guarantee.worst_case(delta) == pytest.approx(epsilon, abs=1e-6)
    assert mechanism.guarantee.worst_case(0.0) == math.inf


# --- labels
# -------------------------------------------------------------------------------------------------------


def chi_square_fits(labels, probability):
    counts = np.bincount(labels, minlength=len(probability))
    possible = probability > 0
    if counts[~possible].any():
        return False
    if possible.sum() == 1:
        return True
    expected = probability[possible] * len(labels)
    return stats.chisquare(counts[possible], expected / expected.sum() * len(labels)).pvalue > ALARM


@pytest.mark.parametrize(("classes", "epsilon"), [(2, 0.5), (2, 3.0), (3, 1.0), (12, 1.0), (12, 4.0)])
def test_randomized_response_fits_its_probabilities(classes, epsilon):
    n = 50_000
    x = np.full(n, classes - 1)
    labels = RandomizedResponse(epsilon, classes).sample(x, rng=streams(n))
    for factor, right in ((1, True), (2 / 3, False), (3 / 2, False)):
        log_prob = RandomizedResponse(epsilon * factor, classes).log_prob(
            np.arange(classes), np.full(classes, x[0])
        )
        assert np.exp(log_prob).sum() == pytest.approx(1.0, abs=1e-12)
        assert chi_square_fits(labels, np.exp(log_prob)) == right


@pytest.mark.parametrize("classes", [2, 12])
def test_randomized_response_at_zero_is_uniform_and_attains_its_bound(classes):
    n = 20_000
    x = np.zeros(n, np.int64)
    labels = RandomizedResponse(0.0, classes).sample(x, rng=streams(n))
    assert chi_square_fits(labels, np.full(classes, 1 / classes))
    for epsilon in (0.0, 1.0, 1000.0):
        mechanism = RandomizedResponse(epsilon, classes)
        one, zero = np.array([1]), np.array([0])
        ratio = mechanism.log_prob(zero, zero) - mechanism.log_prob(zero, one)
        assert ratio[0] == pytest.approx(epsilon, abs=1e-9) == mechanism.guarantee.worst_case()


PRIOR = np.array([0.05, 0.4, 0.02, 0.3, 0.03, 0.2])


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0, 4.0])
@pytest.mark.parametrize("label", [0, 1, 3])
def test_randomized_response_with_a_prior_fits_its_probabilities(epsilon, label):
    n, classes = 100_000, len(PRIOR)
    prior = np.tile(PRIOR, (n, 1))
    labels = RandomizedResponsePrior(epsilon, classes).sample(np.full(n, label), prior=prior, rng=streams(n))
    scores = []
    for factor in (1, 2 / 3, 3 / 2):
        mechanism = RandomizedResponsePrior(epsilon * factor, classes)
        probability = np.exp(
            mechanism.log_prob(np.arange(classes), np.full(classes, label), prior=prior[:classes])
        )
        assert probability.sum() == pytest.approx(1.0, abs=1e-12)
        kept = mechanism.kept(prior[:1])[0]
        # with the truth left out, or alone, ε shows only in the number of labels kept
        visible = kept[label] and kept.sum() > 1
        scores.append((chi_square_fits(labels, probability), visible, kept.sum()))
    assert scores[0][0]
    for fit, visible, size in scores[1:]:
        if (visible and scores[0][1]) or size != scores[0][2]:
            assert not fit


def exact_matrix(epsilon, prior):
    """Log P[output | label], (outputs, labels)."""
    classes = len(prior)
    outputs, labels = np.meshgrid(np.arange(classes), np.arange(classes), indexing="ij")
    mechanism = RandomizedResponsePrior(epsilon, classes)
    rows = np.tile(prior, (classes**2, 1))
    return mechanism.log_prob(outputs.ravel(), labels.ravel(), prior=rows).reshape(classes, classes)


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0, 2.5, 5.0])
def test_the_prior_mechanism_is_the_best_of_all_and_private(epsilon):
    """Against a linear program over every ε-LDP mechanism on 4 labels; ε-LDP checked on all pairs."""
    rng = np.random.default_rng(11)
    for prior in [*rng.dirichlet(np.full(4, 0.7), 8), np.full(4, 0.25), np.array([1.0, 0, 0, 0])]:
        log_matrix = exact_matrix(epsilon, prior)
        possible = np.isfinite(log_matrix)
        assert np.all(possible.all(axis=1) | ~possible.any(axis=1))
        ratios = np.ptp(log_matrix[possible.all(axis=1)], axis=1)
        assert np.all(ratios <= epsilon + 1e-12)
        if possible.all(axis=1).sum() > 1:
            np.testing.assert_allclose(ratios, epsilon, atol=1e-9)
        matrix = np.exp(log_matrix)
        np.testing.assert_allclose(matrix.sum(axis=0), 1.0, atol=1e-12)

        # variables P[o | y], flattened as (y, o); maximize Σ p_y P[y | y] under P[o | y] <= e^ε P[o | y']
        size, pairs = 4, list(itertools.permutations(range(4), 2))
        limits = np.zeros((len(pairs) * size, size * size))
        for row, ((a, b), output) in enumerate(itertools.product(pairs, range(size))):
            limits[row, a * size + output], limits[row, b * size + output] = 1.0, -math.exp(epsilon)
        best = linprog(
            -np.diag(prior).ravel(),
            A_ub=limits,
            b_ub=np.zeros(len(limits)),
            A_eq=np.kron(np.eye(size), np.ones(size)),
            b_eq=np.ones(size),
        )
        assert prior @ np.diag(matrix) == pytest.approx(-best.fun, abs=1e-7)


@pytest.mark.parametrize(
    "prior", [[[0.5, 0.6]], [[1.1, -0.1]], [[np.nan, 1.0]], [[1.0]], [0.5, 0.5], [[0.5, 0.5]] * 2]
)
def test_a_prior_must_be_one_distribution_for_each_row(prior):
    with pytest.raises(ValueError, match="prior"):
        RandomizedResponsePrior(1.0, 2).sample(np.array([1]), prior=np.array(prior), rng=streams(1))


def test_choices_of_weight_zero_are_never_made():
    weights = np.log(
        np.array([[0.0, 1e-300, 1.0, 0.0, 2.0, 0.0]]),
        where=[[False, True, True, False, True, False]],
        out=np.full((1, 6), -np.inf),
    )
    u = np.array([2.0**-53, 0.2, 1 / 3 + 1e-9, 0.9, 1 - 2.0**-53])
    found = categorical.sample(np.tile(weights, (5, 1)), u)
    np.testing.assert_array_equal(found, [2, 2, 4, 4, 4])
    np.testing.assert_allclose(
        np.exp(categorical.log_normalize(weights)), [[0, 1e-300 / 3, 1 / 3, 0, 2 / 3, 0]]
    )


=======
>>>>>>> main
# --- identity
# -----------------------------------------------------------------------------------------------------


def test_identity_passes_values_and_promises_nothing():
    x = unit(5, 16)
    mechanism = Identity("embedding", 16)
    np.testing.assert_allclose(mechanism.sample(x, rng=streams(5)), x, rtol=0, atol=1e-15)
    assert mechanism.guarantee.worst_case(1e-6) == math.inf == Identity("label", 2).guarantee.worst_case()
    np.testing.assert_array_equal(Identity("label", 3).sample(np.array([2, 0]), rng=streams(2)), [2, 0])
    with pytest.raises(ValueError, match="channel"):
        Identity("text", 5)
