"""Attacks on released embeddings: strong where nothing hides, blind where noise hides all, never above the theorem.

Statistical tests allow for 5 standard errors, which an estimate of a true value exceeds with probability below 1e-6, on
fixed seeds.
"""

import json
import math
import shutil

import numpy as np
import pytest
from scipy.integrate import quad

from mechanisms.gaussian import Gaussian
from mechanisms.identity import Identity
from mechanisms.mechanism import parameters
from mechanisms.messages.questions import EmbeddingQuestion, Projection
from mechanisms.privunit import PrivUnit
from mechanisms.randomized_response import RandomizedResponse
from mechanisms.spherical import PlanarLaplace, Purkayastha
from mechanisms.streams import SimulationStreams
from simulations.corpora.builtin import builtin
from simulations.errors import UserError
from simulations.run.journal import UNFINISHED
from simulations.run.run import run
from sottovoce.adversary.attacks import attributes, scores
from sottovoce.adversary.attacks import embeddings as attack_embeddings
from sottovoce.adversary.attacks.target import Skipped, Target
from sottovoce.adversary.estimators import allowed, inversion, tokens, vectors
from sottovoce.adversary.estimators.attributes import by_network
from sottovoce.cli.main import main
from tests.support.mechanisms import unit
from tests.support.studies import experiment, files_study, in_process
from tests.support.tiny_models import tiny_bert

SIGMAS = 5.0


def released(mechanism, x, seed=1, stage="train"):
    people = np.arange(len(x))
    rows = SimulationStreams(seed).rows(people, np.zeros_like(people), stage=stage, channel="embedding")
    return mechanism.sample(x, rng=rows)


# --- densities


def test_likelihoods_are_the_mechanisms_own():
    for mechanism in (Purkayastha(5, 3.0), PlanarLaplace(5, 3.0, normalize=False), Gaussian(5, 0.7), PrivUnit(5, 3.0)):
        x, z = unit(7, 5), released(mechanism, unit(3, 5, 1))
        log_p = vectors.log_likelihood(mechanism, z, x)
        exact = np.array([mechanism.log_prob(np.tile(row, (7, 1)), x) for row in z])
        np.testing.assert_allclose(log_p - log_p[:, :1], exact - exact[:, :1], atol=1e-9)
    np.testing.assert_array_equal(np.exp(vectors.log_likelihood(Identity("embedding", 5), x, x)), np.eye(7))
    with pytest.raises(ValueError, match=r"^randomized-response: its density is not known here$"):
        vectors.log_likelihood(RandomizedResponse(1.0, 2), x, x)


def test_the_likelihood_of_normalized_noise_is_the_raw_densitys_integral_along_a_ray():
    mechanism = PlanarLaplace(4, 2.0)
    x, z = unit(5, 4), unit(2, 4, 3)
    found = vectors.log_likelihood(mechanism, z, x)
    for i, row in enumerate(z):
        exact = [quad(lambda r, p=p: r**3 * math.exp(-2 * np.linalg.norm(r * row - p)), 0, 60)[0] for p in x]  # noqa: B023
        np.testing.assert_allclose(found[i] - found[i, 0], np.log(exact) - np.log(exact[0]), atol=1e-4)


def test_two_values_alike_are_guessed_as_often_as_the_total_variation_says():
    """The bound of two values is attained by the antipodal pair: it is 1/2 + TV/2."""
    mechanism = Purkayastha(16, 4.0)
    variation = mechanism.privacy_loss().delta(0.0)
    allows = allowed.guess(allowed.curve(mechanism), np.array([0.5, 0.5]))
    assert allows == pytest.approx(0.5 + variation / 2, abs=1e-6)
    x = np.zeros((4000, mechanism.dim))
    x[:, 0] = np.where(np.arange(4000) % 2, 1.0, -1.0)
    right = (np.sign(released(mechanism, x)[:, 0]) == x[:, 0]).mean()
    assert abs(right - allows) <= SIGMAS * math.sqrt(allows * (1 - allows) / 4000) + 1e-3


def test_where_nothing_or_everything_is_promised():
    f = np.array([0.5, 0.3, 0.2])
    assert allowed.guess(allowed.curve(Identity("embedding", 4)), f) == 1.0
    assert allowed.f1(allowed.curve(Identity("embedding", 4)), f) == 1.0
    quiet = allowed.curve(Purkayastha(4, 0.0))
    assert allowed.guess(quiet, f) == pytest.approx(0.5, abs=1e-6)
    for epsilon in (0.5, 2.0):
        curve = allowed.curve(Purkayastha(4, epsilon))
        assert allowed.guess(curve, f) <= tokens.randomized(f, epsilon * math.pi) + 1e-6
        assert allowed.guess(curve, f) <= allowed.guess(allowed.curve(Purkayastha(4, epsilon), 2), f)
    assert allowed.guess(allowed.curve(Gaussian(4, 5.0)), f) < 1


def test_without_any_information_the_most_frequent_words_have_the_largest_f1():
    words = np.random.default_rng(0).random((4000, 30)) < np.linspace(0.02, 0.6, 30)
    q = words.mean(axis=0)
    guess = inversion.most_frequent(words)
    plain = 2 * q[guess].sum() / (guess.sum() + q.sum())
    assert allowed.f1(np.array([[0.0, 0.0]]), q) == pytest.approx(plain, rel=1e-6)


def test_the_bound_of_f1_is_attained_by_randomized_response_on_one_word():
    """Of one word that is in a share q of texts, by the best of guessing never, always, or what was released."""
    epsilon = 1.0
    keep, q = math.exp(epsilon) / (1 + math.exp(epsilon)), np.array([0.3])
    pairs = ((keep, 1 - keep), (1.0, 1.0))
    best = max(2 * 0.3 * t / (0.3 + 0.3 * t + 0.7 * s) for t, s in pairs)
    assert allowed.f1(np.array([[epsilon, 0.0]]), q) == pytest.approx(best, rel=1e-6)
    assert allowed.f1(np.array([[epsilon, 0.0], [0.0, math.tanh(epsilon / 2)]]), q) == pytest.approx(best, rel=1e-6)


# --- inversion


@pytest.fixture(scope="module")
def bags():
    """Texts as bags of 5 of 60 words; an embedding is the mean of the words' vectors."""
    rng = np.random.default_rng(2)
    table = rng.normal(size=(60, 48))
    weights = 1 / np.arange(1, 61)
    words = np.zeros((900, 60), dtype=bool)
    for row in words:
        row[rng.choice(60, size=5, replace=False, p=weights / weights.sum())] = True
    return words, table, words @ table / 5


def attacks(words, table, x, mechanism=None):
    public, lower = x[None, :600], words[:600] @ table / 5
    every = np.ones(60, dtype=bool)
    made = {
        "regression": [inversion.regression(public, words[:600], p) for p in inversion.PENALTIES],
        "two step": [inversion.two_step(public, lower, table, every, 1e-2, s) for s in inversion.SPARSITIES],
    }
    return {name: inversion.guessed(fits, public, words[:600], x[600:], seed=1) for name, fits in made.items()}


def test_words_are_found_in_embeddings_that_nothing_hides_and_not_in_noise(bags):
    words, table, x = bags
    truth, beyond = words[600:], np.zeros(300, dtype=np.int64)
    plain, *_ = scores.words(np.tile(inversion.most_frequent(words[:600]), (300, 1)), truth, beyond)
    for name, guesses in attacks(words, table, x).items():
        assert scores.words(guesses, truth, beyond)[0].success > 2 * plain.success, name
    noise = np.random.default_rng(3).normal(size=x.shape)
    for name, guesses in attacks(words, table, noise).items():
        found, *_ = scores.words(guesses, truth, beyond)
        assert found.success <= plain.success + SIGMAS * math.hypot(found.error, plain.error), name


def test_thresholds_and_scores_by_hand():
    score = np.array([[0.9, 0.5, 0.5], [0.1, 0.8, 0.5]])
    words = np.array([[True, False, True], [False, True, False]])
    value, threshold = inversion._threshold(score, words)
    assert (value, threshold) == (pytest.approx(0.8), 0.8)  # of three at .5 one is right: all or none
    rate, precision, recall = scores.words(score >= 0.8, words, np.array([1, 0]))
    assert (precision, recall, rate.success) == (1.0, 0.5, pytest.approx(2 * 2 / (2 + 4)))
    with pytest.raises(ValueError, match="7 public texts are too few"):
        inversion.guessed([], np.zeros((1, 7, 2)), np.zeros((7, 3), bool), np.zeros((1, 2)), seed=0)


# --- attributes


def test_an_attribute_is_guessed_where_it_shows_and_not_where_it_does_not():
    rng = np.random.default_rng(5)
    labels = rng.integers(4, size=500)
    x = unit(4, 12, 9)[labels] + 0.4 * rng.normal(size=(500, 12))
    guesses = by_network(x[None, :300], labels[:300], x[300:], classes=4, seed=1)
    again = by_network(x[None, :300], labels[:300], x[300:], classes=4, seed=1)
    assert (guesses == again).all()
    assert scores.guesses_right(guesses, labels[300:]).success > 0.6
    noise, other = rng.normal(size=(3, 300, 12)), rng.normal(size=(200, 12))
    blind = by_network(noise, labels[:300], other, classes=4, seed=1)
    rate = scores.guesses_right(blind, labels[300:])
    assert abs(rate.success - 0.25) <= SIGMAS * math.sqrt(0.25 * 0.75 / 200)


@pytest.mark.parametrize("count", [2, 6])
def test_maps_for_a_question_show_what_other_maps_hide(count):
    """Values that lie apart in few directions of many. Two of them on a line through the centre, m' = 2, are guessed as
    often as a half circle has of the density's mass, 1/(1 + exp(-ε·π/2))."""
    rng = np.random.default_rng(2)
    n, width, epsilon = 800, 24, 4.0
    values = rng.integers(count, size=2 * n)
    apart = 8 * np.eye(count)[values] + 0.1 * rng.normal(size=(2 * n, count))
    h = np.concatenate([apart, 20 * rng.normal(size=(2 * n, width - count))], axis=1).astype(np.float32)
    pool, zeros = vectors.Pool(h[:n], np.zeros(n, np.int64), values[:n]), np.zeros(n, np.int64)
    maps = Projection("ab" * 32, h[:n].mean(axis=0), np.eye(width, dtype=np.float32)[:, -4:].copy())
    honest = EmbeddingQuestion(parameters(Purkayastha(4, epsilon)), projection=maps, classes=2)
    question = vectors.for_value(honest, pool, count, seed=1)

    def right(q):
        drawn = vectors.drawn(q, vectors.inputs(q, h[n:], zeros), seed=3, stage="test")
        return (vectors.guessed(q, drawn, pool, count) == values[n:]).mean()

    success, blind = right(question), right(honest)
    error = math.sqrt(0.25 / n)
    assert success <= allowed.guess(allowed.curve(question.mechanism), np.bincount(values[n:]) / n) + SIGMAS * error
    assert blind < 1 / count + SIGMAS * error
    if count == 2:
        assert abs(success - 1 / (1 + math.exp(-epsilon * math.pi / 2))) <= SIGMAS * error
    else:
        assert success > 0.6


def test_a_column_of_a_file_is_an_attribute(tmp_path):
    rows = [(f"text {i}", i % 2, ("red", "blue", "green")[i % 3]) for i in range(90)]
    lines = ["\t".join(map(str, row)) for row in [("words", "label", "kind"), *rows, ("text 0", 0, "blue")]]
    for name in ("train.tsv", "test.tsv"):
        (tmp_path / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    study = files_study(tmp_path, data={"text": "words"})
    target = Target(tmp_path, study, study.setups[0], [])
    values = attributes.column(target, "kind")
    assert values["text 1"] == "blue" and len(values) == 89 and "text 0" not in values  # the file has two for it
    public, private = [f"text {i}" for i in range(60)], [f"text {i}" for i in range(50, 95)]
    found = attributes.collected(target, "kind", public, private)
    assert found.classes == ("blue", "green", "red") and len(found.auxiliary) == 59
    assert found.attacked.tolist() == list(range(40)) and found.truth[0] == found.classes.index(values["text 50"])
    with pytest.raises(UserError, match=r'^--attribute kin: .*has no column "kin"; did you mean "kind"\?$'):
        attributes.column(target, "kin")
    with pytest.raises(Skipped, match="30 attacked ones of the same values, are needed; there are 59 and 20"):
        attributes.collected(target, "kind", public, private[:20])


# --- the command, on a run folder


ARMS = {
    "no noise": {"reference": True, "embedding": {"mechanism": "identity", "dim": 8}},
    "purkayastha": {"embedding": {"mechanism": "purkayastha", "epsilon": 8.0, "dim": 8}},
    "laplace": {"embedding": {"mechanism": "planar-laplace", "epsilon": 0.1, "dim": 8}},
}


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """A folder with a small encoder that knows the words of the built-in corpus; the cache is there."""
    folder = tmp_path_factory.mktemp("shared")
    texts = builtin(public=400, train=80, test=40, seed=1).public.texts
    words = sorted({word.strip(".,!-'").lower() for text in texts for word in text.split()} - {""})
    tiny_bert(folder / "model", 128, [".", ",", *words], layers=1, spread=0.3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        yield folder


@pytest.fixture(scope="module")
def finished(shared, tmp_path_factory):
    """The folder of a run of 80 users, made without Flower."""
    out = tmp_path_factory.mktemp("run")
    study = experiment(
        *({"name": name, **values} for name, values in ARMS.items()),
        data={"public-size": 400, "test-size": 40},
        population={"users": 80, "users-per-node": 40},
        encoder={"model": str(shared / "model"), "max-length": 48},
    )
    run(study, out, engine=in_process)
    shutil.rmtree(out / UNFINISHED)
    return out


def options(*names):
    return [word for name in names for word in ("--attack", name)]


def test_a_run_under_attack(finished, capsys, monkeypatch):
    monkeypatch.setattr("sottovoce.adversary.estimators.attributes._EPOCHS", 6)
    arms, names = ("no noise", "laplace"), tuple(attack_embeddings.ATTACKS)
    chosen = [word for name in arms for word in ("--arm", name)]
    assert main(["attack", str(finished), "--json", *chosen, *options(*names)]) == 0
    out, err = capsys.readouterr()
    results = json.loads(out)
    assert json.loads((finished / "attacks.json").read_text()) == results
    assert "80 released embeddings of stage train" in err
    entries = {(e["arm"], e["attack"]): e for e in results["entries"]}
    bare = attack_embeddings.UNPROTECTED
    assert set(entries) == {(arm, name) for arm in arms for name in names} | {(bare, name) for name in names[:3]}
    for e in entries.values():
        assert 0 <= e["baseline"] <= 1 and 0 <= e["success"] <= e["bound"] + SIGMAS * e["error"]
    full, hidden = entries[bare, "inversion"], entries["laplace", "inversion"]
    assert full["success"] > hidden["success"] + SIGMAS * math.hypot(full["error"], hidden["error"])
    assert full["success"] > 1.5 * full["baseline"]
    assert hidden["success"] <= hidden["baseline"] + SIGMAS * hidden["error"]
    genre, hidden = entries[bare, "attribute-static"], entries["laplace", "attribute-adaptive"]
    assert genre["attribute"] == "genre"
    assert genre["gain"] == pytest.approx((genre["success"] - genre["baseline"]) / (1 - genre["baseline"]))
    assert hidden["success"] <= hidden["bound"] + SIGMAS * math.sqrt(hidden["bound"] / 80) and hidden["bound"] < 0.4
    assert "| no mechanism, full width | inversion |" in (finished / "attacks.md").read_text()
    drawn = {path.name for path in finished.glob("*.png")}
    assert {"attacks-inversion.png", "attacks-attributes.png"} <= drawn
    assert main(["attack", str(finished), "--attack", "inversion", "--arm", "laplace", "--limit", "40"]) == 0
    assert {path.name for path in finished.glob("attacks-*.png")} == {"attacks-inversion.png"}


def test_releases_of_other_maps_are_not_taken_for_the_arms(finished, tmp_path, capsys):
    """A run folder whose model and experiment are not those that the releases were drawn under."""
    for name in ("nodes", "models"):
        (tmp_path / name).symlink_to(finished / name)
    text = (finished / "experiment.toml").read_text(encoding="utf-8")
    (tmp_path / "experiment.toml").write_text(text.replace("epsilon = 8.0", "epsilon = 7.0"), encoding="utf-8")
    assert main(["attack", str(tmp_path), "--arm", "purkayastha", "--attack", "inversion"]) == 2
    assert "was not written by arm" in capsys.readouterr().err
    assert main(["attack", str(finished), "--attack", "attribute-static", "--attribute", "gender"]) == 2
    assert "--attribute gender: the built-in corpus has none of that name" in capsys.readouterr().err
