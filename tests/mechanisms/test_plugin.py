"""Mechanisms of other people's packages: found, admitted, refused; and what they declare for tests."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import dataclass, fields
from typing import ClassVar

import pytest

from mechanisms import catalogue
from mechanisms.accounting.ladder import ladder
from mechanisms.catalogue import CATALOGUE, admit, admit_installed, build, find, rebuild
from mechanisms.facts import Facts, facts_of, tried, usual
from mechanisms.mechanism import parameters
from mechanisms.messages.questions import TextQuestion
from mechanisms.plugin import OwnMechanism
from mechanisms.words.distances import diameter
from sottovoce.contracts import test_mechanism as contracts
from sottovoce.contracts.cases import VOCABULARY, instances, small_vocabulary
from tests.support.own_package import POINTS, write_package
from tests.support.paths import ROOT

COIN = "quiet.noise:Coin"
HEAD = "\n@dataclass(frozen=True)\nclass Odd(OwnMechanism):\n    epsilon: float\n    classes: int\n"
SAMPLE = "    def sample(self, x, *, rng):\n        return x\n"
METRIC = "    metric: ClassVar[str] = 'discrete'\n"


@pytest.fixture
def path(monkeypatch):
    """Puts a folder on Python's path, with nothing of the package known before or after."""

    def forget():
        for name in [name for name in sys.modules if name.partition(".")[0] == "quiet"]:
            del sys.modules[name]

    monkeypatch.setattr(catalogue, "_ADMITTED", {})
    forget()
    yield lambda folder: monkeypatch.syspath_prepend(str(folder))
    forget()


@pytest.fixture
def package(tmp_path, path):
    path(write_package(tmp_path))


def test_a_place_is_built_with_what_the_base_class_derives(package):
    mechanism = build({"mechanism": COIN, "epsilon": 1.5}, channel="label", classes=4)
    assert parameters(mechanism) == {"mechanism": COIN, "epsilon": 1.5, "classes": 4}
    assert mechanism.guarantee.worst_case() == 1.5 and mechanism.guarantee.protects == "label"
    assert mechanism.privacy_loss().epsilon(0.0) == pytest.approx(1.5)
    assert mechanism.channel == "label" and mechanism.grid is None
    (rung,) = (r for r in ladder(None, mechanism, users=None, delta=1e-6) if r.name == "label")
    assert rung.worst_case == 1.5
    vectors = build({"mechanism": "quiet.noise:Direction", "epsilon": 2.0}, channel="embedding", dim=4)
    assert vectors.guarantee.protects == "sequence" and vectors.guarantee.numeric_delta == 2.0**-40


@pytest.mark.parametrize(("metric", "apart", "worst"), [("euclidean", 2.0, 6.0), ("angular", math.pi, 3 * math.pi)])
def test_a_metric_gives_a_guarantee_and_a_loss_at_each_distance(tmp_path, path, metric, apart, worst):
    more = f"\n@dataclass(frozen=True)\nclass Near(Direction):\n    metric: ClassVar[str] = {metric!r}\n"
    path(write_package(tmp_path, more=more))
    near = build({"mechanism": "quiet.noise:Near", "epsilon": 3.0}, channel="embedding", dim=4)
    assert near.guarantee.worst_case() == pytest.approx(worst)
    for distance in (0.0, 0.5, apart):
        assert near.privacy_loss(distance).epsilon(0.0) == pytest.approx(3.0 * distance)


def test_an_installed_mechanism_goes_by_the_name_of_its_entry_point(package):
    for name in ("quiet-coin", "quiet.noise:Installed"):
        mechanism = build({"mechanism": name, "epsilon": 1.0}, channel="label", classes=3)
        assert parameters(mechanism)["mechanism"] == "quiet-coin"
    with pytest.raises(ValueError, match="did you mean 'quiet-coin'"):
        build({"mechanism": "quiet-coins", "epsilon": 1.0}, channel="label", classes=3)


REFUSED = {
    "no-package:Coin": 'write "package.module:Class"',
    "nowhere.noise:Coin": "cannot be imported .*No module named 'nowhere'.*PYTHONPATH",
    "quiet.broken:Coin": "cannot be imported .*SyntaxError",
    "quiet.leaves:Coin": "cannot be imported .*SystemExit",
    "quiet.noise:math": "is no class but a module",
    "quiet.noise:OwnMechanism": "no frozen dataclass",
}
ODD = {
    HEAD + SAMPLE: "does not state its guarantee; give it a field epsilon and a metric, discrete",
    HEAD.replace("    epsilon: float\n", "") + METRIC + SAMPLE: "does not state its guarantee",
    HEAD.replace("classes", "dim") + METRIC + SAMPLE: "does not state numeric_delta",
    HEAD.replace("classes", "size") + METRIC + SAMPLE: "states no channel",
    HEAD + METRIC: "has no sample",
    HEAD + METRIC + SAMPLE + "    def distances(self, x, y): ...\n": "write guarantee and privacy_loss, of the largest",
    HEAD + METRIC + SAMPLE.replace("*, rng", "rng"): "required and by keyword",
    HEAD + METRIC + SAMPLE + "    guarantee = None\n": "they go together; write privacy_loss",
    HEAD + METRIC + SAMPLE + "    name: ClassVar[str] = 'purkayastha'\n": "as a mechanism of the catalogue does",
    HEAD + METRIC + SAMPLE + "    name: ClassVar[str] = 'odd'\n": "leave `name` out",
    HEAD.replace("OwnMechanism", "") + SAMPLE: "states no channel",
    HEAD.replace("(frozen=True)", "") + METRIC + SAMPLE: "is no frozen dataclass",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_mechanism_is_refused_in_one_line(tmp_path, path, name):
    path(write_package(tmp_path))
    (tmp_path / "quiet" / "broken.py").write_text("def (\n")
    (tmp_path / "quiet" / "leaves.py").write_text("import sys\nsys.exit(0)\n")
    with pytest.raises(ValueError, match=REFUSED[name]) as caught:
        admit(name)
    assert "\n" not in str(caught.value) and find(name) is None


@pytest.mark.parametrize(("code", "words"), ODD.items())
def test_a_class_that_does_not_say_what_it_promises_is_refused(tmp_path, path, code, words):
    path(write_package(tmp_path, more=code))
    with pytest.raises(ValueError, match=words) as caught:
        admit("quiet.noise:Odd")
    assert "\n" not in str(caught.value) and find("quiet.noise:Odd") is None


OWN = (
    """
from mechanisms.guarantee import Guarantee
from mechanisms.losses.categorical import pure_loss
"""
    + HEAD
    + SAMPLE
)
SAID = {
    "    guarantee = 3.0\n    privacy_loss = lambda self, distance=None: pure_loss(1.0)\n": "is a float",
    "    guarantee = Guarantee(1.0, 'discrete', 1.0, 'label')\n"
    "    privacy_loss = lambda self, distance=None: 1.0\n": "must give LossCells",
    "    guarantee = Guarantee(1.0, 'discrete', 1.0, 'token')\n"
    "    privacy_loss = lambda self, distance=None: pure_loss(1.0)\n": "of a token, and the channel's is of a label",
    "    guarantee = Guarantee(1.0, 'discrete', 1.0, 'label')\n"
    "    privacy_loss = lambda self, distance=None: pure_loss(1.01)\n": "must not be the smaller",
    "    guarantee = property(lambda self: self.nothing)\n"
    "    privacy_loss = lambda self, distance=None: 1\n": "fails with",
    METRIC + "    def __post_init__(self):\n        1 / 0\n": "fails with",
    METRIC + "    def __post_init__(self):\n        self.__dict__['epsilon'] = float('inf')\n": "must be finite",
}


@pytest.mark.parametrize(("code", "words"), SAID.items())
def test_what_an_instance_says_is_looked_at_before_anything_is_drawn(tmp_path, path, code, words):
    path(write_package(tmp_path, more=OWN + code))
    with pytest.raises(ValueError, match=words) as caught:
        build({"mechanism": "quiet.noise:Odd", "epsilon": 1.0}, channel="label", classes=3)
    assert "\n" not in str(caught.value)


NOISE = (
    """
from mechanisms.guarantee import Guarantee
from mechanisms.losses.gaussian import gaussian_loss

@dataclass(frozen=True)
class Noise(OwnMechanism):
    dim: int
    sigma: float
    diameter: float = 2.0
    guarantee = property(lambda self: Guarantee(float("inf"), "euclidean", self.diameter, "sequence", sigma=self.sigma))
    privacy_loss = lambda self, distance=None: gaussian_loss((2.0 if distance is None else distance) / self.sigma)
"""
    + SAMPLE
)


@pytest.mark.parametrize("sigma", [0.1, 20.0])
def test_gaussian_noise_of_ones_own_is_accepted_with_the_loss_that_is_here(tmp_path, path, sigma):
    path(write_package(tmp_path, more=NOISE))
    spec = {"mechanism": "quiet.noise:Noise", "sigma": sigma}
    assert build(spec, channel="embedding", dim=4).guarantee.worst_case(1e-6) > 0
    with pytest.raises(ValueError, match="must not be the smaller"):
        build(spec | {"diameter": 1.98}, channel="embedding", dim=4)


SIZED = """
@dataclass(frozen=True)
class Sized(Words):
    size: int = 3
"""


def test_a_request_holds_a_text_mechanism_whatever_its_parameters_are_called(tmp_path, path):
    path(write_package(tmp_path, more=SIZED))
    spec = {"mechanism": "quiet.noise:Sized", "epsilon": 1.0, "tokens": 4}
    text = build(spec, channel="text", vocabulary=VOCABULARY)
    asked = TextQuestion(parameters(text), classes=2, vocabulary=VOCABULARY)
    assert asked.text.word.size == 3


def test_a_name_of_two_packages_is_ambiguous(tmp_path, path):
    path(write_package(tmp_path / "a"))
    write_package(tmp_path / "b", points=POINTS.replace("Installed", "Coin"))
    (tmp_path / "b" / "quiet_noise-1.0.dist-info" / "METADATA").write_text("Name: other\nVersion: 1.0\n")
    (tmp_path / "b" / "quiet_noise-1.0.dist-info").rename(tmp_path / "b" / "other-1.0.dist-info")
    path(tmp_path / "b")
    with pytest.raises(ValueError, match="two installed packages"):
        admit("quiet-coin")


def test_an_entry_point_that_takes_a_name_of_the_catalogue_is_never_loaded(tmp_path, path):
    path(write_package(tmp_path, points=POINTS.replace("quiet-coin", "randomized-response")))
    made = build({"mechanism": "randomized-response", "epsilon": 1.0}, channel="label", classes=3)
    assert type(made).__module__ == "mechanisms.randomized_response" and "quiet" not in sys.modules


def test_what_somebody_else_sent_imports_nothing(package):
    for name in (COIN, "quiet-coin", "quiet.noise:Installed"):
        with pytest.raises(ValueError, match="unknown mechanism"):
            rebuild({"mechanism": name, "epsilon": 1.0}, channel="label", classes=3)
    with pytest.raises(ValueError, match="those that are installed on it"):
        admit_installed((COIN,))
    with pytest.raises(ValueError, match=r"^policy: 'a\\nb:c': [^\n]+$"):  # somebody's policy: a line stays one
        admit_installed(("a\nb:c",))
    admit_installed(("nowhere",))
    assert not [name for name in sys.modules if name.partition(".")[0] == "quiet"] and catalogue._ADMITTED == {}
    admit_installed(("purkayastha", "quiet-coin"))
    assert rebuild({"mechanism": "quiet-coin", "epsilon": 1.0}, channel="label", classes=3).epsilon == 1.0


CARELESS = """

@dataclass(frozen=True)
class Careless(Coin):
    def sample(self, x, *, rng):
        return np.random.default_rng(len(x)).integers(0, self.classes, len(x))


@dataclass(frozen=True)
class Promising(Open):
    def log_prob(self, y, x):
        return 2 * super().log_prob(y, x)
"""


@pytest.mark.parametrize("name", ["quiet-coin", "quiet.noise:Direction", "quiet.noise:Words", "quiet.noise:Near"])
def test_the_contracts_of_an_honest_mechanism_pass(package, name):
    for _, mechanism in instances(admit(name)):
        contracts.test_two_groupings_of_rows_give_identical_draws(mechanism)
        contracts.test_bad_inputs_are_refused_in_one_line(mechanism)
        contracts.test_an_empty_batch_is_a_batch(mechanism)
        if hasattr(mechanism, "log_probs"):
            contracts.test_all_pairs_of_words_keep_the_guarantee(mechanism)
            assert mechanism.guarantee.worst_case() == mechanism.epsilon * diameter(mechanism.vocabulary)
            assert mechanism.privacy_loss(0.5).epsilon(0.0) == pytest.approx(mechanism.epsilon / 2)


def test_contracts_find_what_breaks_them(tmp_path, path):
    path(write_package(tmp_path, more=CARELESS))
    for name, contract in (
        ("Careless", contracts.test_two_groupings_of_rows_give_identical_draws),
        ("Promising", contracts.test_the_log_likelihood_ratio_never_exceeds_the_guarantee),
        ("Nearer", contracts.test_all_pairs_of_words_keep_the_guarantee),
    ):
        with pytest.raises(AssertionError):
            for _, mechanism in instances(admit(f"quiet.noise:{name}")):
                contract(mechanism)


def test_the_plugin_of_pytest_loads_nothing_by_itself():
    code = "import sys, sottovoce.pytest_plugin; assert not {'numpy', 'mechanisms'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=120)


WORDS = small_vocabulary()


@dataclass(frozen=True)
class Plain(OwnMechanism):
    epsilon: float
    classes: int
    width: int = 3

    metric: ClassVar[str] = "discrete"


@dataclass(frozen=True)
class Demanding(Plain):
    strength: float = 0.0
    facts: ClassVar[Facts] = Facts(tried={"strength": (0.0, 1.0)}, usual={"epsilon": 2.0})


def test_the_catalogue_declares_values_of_every_parameter() -> None:
    for kind in CATALOGUE.values():
        tried = facts_of(kind).tried
        assert set(tried) | {"vocabulary"} >= {f.name for f in fields(kind)}, kind.name
        assert all(name in tried for name in usual(kind)), kind.name


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"tried": {}}, "are a dict, and must be Facts"),
        (Facts(tried={"w": (1,)}), "name w, which is no parameter"),
        (Facts(tried={"epsilon": ()}), "list nothing under epsilon, and a test without cases would pass"),
    ],
)
def test_facts_that_would_leave_something_untested_are_refused(facts, words) -> None:
    with pytest.raises(ValueError, match=f"^wrong: its facts {words}"):
        facts_of(dataclass(frozen=True)(type("Wrong", (Plain,), {"facts": facts, "name": "wrong"})))


def test_what_is_declared_stands_in_place_of_the_usual_values_and_beside_them() -> None:
    assert usual(Demanding) == {"epsilon": 2.0, "classes": 10}
    assert tried(Demanding, WORDS) == {"epsilon": (0.5, 10.0), "classes": (2, 12), "strength": (0.0, 1.0)}
    assert list(tried(CATALOGUE["santext+"], WORDS)) == ["epsilon", "vocabulary", "w", "p"]
