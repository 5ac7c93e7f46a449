"""A new mechanism is one file and one line of the catalogue: nothing else in the tree names it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.paths import ROOT

NAME = "half-uniform"
#: Randomized response of words, a share of whose draws is uniform: that share is a parameter of no other mechanism.
FILE = """
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from mechanisms import categorical, checks
from mechanisms.facts import Facts, Pair, Range, Slider
from mechanisms.guarantee import Guarantee
from mechanisms.losses.categorical import pure_loss
from mechanisms.losses.loss import no_loss
from mechanisms.streams import Points
from mechanisms.vocabulary import NOTHING, Vocabulary


@dataclass(frozen=True)
class HalfUniform:
    epsilon: float
    vocabulary: Vocabulary
    uniform: float = 0.5

    name: ClassVar[str] = "half-uniform"
    channel: ClassVar[str] = "text"
    reads: ClassVar[tuple[str, ...]] = ()
    facts: ClassVar[Facts] = Facts(
        label="half uniform: or any word", tried={"uniform": (0.0, 0.25)}, audits=({"epsilon": 3.0},), pair=Pair.WORDS,
        slider=Slider(5.0, (0.0, 4.0, 10.0), {"uniform": Range("Share of uniform draws", 0.1, 1.0, 0.1)}),
    )

    grid = None

    def __post_init__(self):
        object.__setattr__(self, "epsilon", checks.epsilon(self.name, self.epsilon))

    @property
    def guarantee(self):
        delta = categorical.exact_delta(len(self.vocabulary))
        return Guarantee(self.epsilon, "discrete", 1.0, "token", numeric_delta=delta)

    def log_probs(self, x):
        size, x = len(self.vocabulary), checks.word_ids(self.name, x, self.vocabulary)
        raised = np.exp(np.where(x[:, None] == np.arange(size), 0.0, -self.epsilon))
        kept = raised / raised.sum(axis=1, keepdims=True)
        return np.log(self.uniform / size + (1 - self.uniform) * kept)

    def log_prob(self, y, x):
        return self.log_probs(x)[np.arange(len(x)), y]

    def sample(self, x, *, rng):
        x = checks.word_ids(self.name, x, self.vocabulary)
        there = np.where(x == NOTHING, self.vocabulary.unknown, x).ravel()
        drawn = categorical.sample(self.log_probs(there), Points.drawn(rng, x.shape, 1))
        return np.where(x == NOTHING, NOTHING, drawn.reshape(x.shape))

    def privacy_loss(self, distance=None):
        return pure_loss(self.epsilon) if checks.differs(self.name, distance) else no_loss()
"""
IMPORT = "from mechanisms.words.half_uniform import HalfUniform\n"
#: Everything that knows mechanisms by name, asked about the new one.
ASKED = """
import json, sys

from mechanisms.catalogue import build
from mechanisms.accounting.ladder import ladder

heavy = {"torch", "transformers", "sottovoce", "simulations", "client"} & set(sys.modules)

from sottovoce.adversary.audit.measure import Audit, measure
from sottovoce.adversary.audit.plugin import games_of, names
from sottovoce.contracts.cases import small_vocabulary
from sottovoce.explore import costs
from sottovoce.explore.settings import MECHANISMS, Settings, slider_of

NAME, words = "half-uniform", small_vocabulary()
text = build({"mechanism": NAME, "epsilon": 2.0, "length": "kept"}, channel="text", vocabulary=words)
games = games_of(NAME, 1e-3)
verdicts = [finding.verdict for finding in measure(games, Audit(draws=20_000), family=1e-5)]
public = {"length": "of the test"}
chosen = Settings.of({"channel": "text", "mechanism": NAME, "epsilon": 2.0, "uniform": 0.25})
print(json.dumps({
    "heavy": sorted(heavy), "listed": NAME in names(), "verdicts": verdicts, "pairs": [game.pair for game in games],
    "ladder": [rung.to_dict() for rung in ladder(None, None, users=None, delta=1e-6, text=text, public=public)],
    "mechanisms": MECHANISMS["text"], "slider": slider_of(NAME), "drawn": chosen.mechanisms(2, words)[0].word.uniform,
    "price": costs.price(chosen, 2, words, public), "loss": costs.loss(chosen, 2, words, public),
}, default=float))
"""


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the code with the new file and the new line."""
    folder = tmp_path_factory.mktemp("tree")
    for package in ("client", "server", "mechanisms", "simulations", "sottovoce", "tests"):
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    (folder / "mechanisms" / "words" / "half_uniform.py").write_text(FILE, encoding="utf-8")
    catalogue = folder / "mechanisms" / "catalogue.py"
    before = catalogue.read_text(encoding="utf-8")
    after = before.replace("        Identity,\n", "        HalfUniform,\n        Identity,\n")
    assert after != before
    catalogue.write_text(after.replace("CATALOGUE: dict", IMPORT + "\nCATALOGUE: dict", 1), encoding="utf-8")
    return folder


def ran(tree: Path, *arguments: str) -> str:
    """What a process in that tree prints."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=tree,
        env={"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def told(tree: Path) -> dict[str, Any]:
    return dict(json.loads(ran(tree, "-c", ASKED)))


def test_it_is_accounted_and_on_the_ladder(told: dict[str, Any]) -> None:
    token = next(rung for rung in told["ladder"] if rung["rung"] == "token")
    assert token["worst_case"] == 2.0


def test_it_is_audited_by_its_own_pair(told: dict[str, Any]) -> None:
    """False alarms have probability 1e-5, on a fixed seed."""
    assert told["listed"] and told["verdicts"] == ["no violation found"]
    assert all(" / " in pair for pair in told["pairs"])


def test_the_page_shows_its_sliders_and_its_costs(told: dict[str, Any]) -> None:
    slider = told["slider"]
    assert NAME in told["mechanisms"] and slider["label"] == "half uniform: or any word" and slider["usual"] == 5.0
    assert (slider["least"], slider["most"], slider["more"]["uniform"]["start"]) == (0.0, 10.0, 0.5)
    assert told["drawn"] == 0.25 and told["price"]["worst_case"] == told["loss"]["worst_case"] == 32.0


def test_declarations_load_no_model_and_nothing_of_other_packages(told: dict[str, Any]) -> None:
    assert told["heavy"] == []


def test_the_tests_of_all_mechanisms_try_it(tree: Path) -> None:
    """The contracts, with each value that it declares, the exact loss of its texts, and its draws through a client."""
    files = (
        "tests/mechanisms/test_contracts.py",
        "tests/mechanisms/words/test_exposures.py",
        "tests/sottovoce/adversary/audit/test_streams.py",
    )
    said = ran(tree, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0", "-k", NAME, "-rA", *files)
    exposed = ("[half-uniform-0.5-words-0.25]", "[half-uniform-10.0-words-0.0]", "[half-uniform-0.7,0.25]")
    for shown in (*exposed, "[half-uniform-text]"):
        assert shown in said
    assert "failed" not in said
