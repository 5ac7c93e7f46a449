"""A mechanism of one's own in the audit, as README and CONTRIBUTING say it gets there.

Statistical, at the audit's own rate: false alarms of all figures of one audit have probability 1e-3 together, on a
fixed seed; the planted fault draws at twice the ε that is claimed.
"""

import json
import re
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from mechanisms.catalogue import CATALOGUE
from mechanisms.randomized_response import RandomizedResponse
from mechanisms.spherical import PlanarLaplace
from mechanisms.vocabulary import Vocabulary
from simulations.audit import games as audit_games
from simulations.commands.cli import main
from tests.support.paths import ROOT


@dataclass(frozen=True)
class Own(RandomizedResponse):
    """A label mechanism of one's own, in the catalogue and nowhere else; honest, or not."""

    name: ClassVar[str] = "my-own"


@dataclass(frozen=True)
class Careless(Own):
    def sample(self, x, *, rng):
        return RandomizedResponse(2 * self.epsilon, self.classes).sample(x, rng=rng)


@dataclass(frozen=True)
class Direction(PlanarLaplace):
    """An embedding mechanism of one's own."""

    name: ClassVar[str] = "my-own"


def contributed() -> type:
    """The example of CONTRIBUTING.md, of which the text there is the only copy, with what all mechanisms have."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (code,) = [block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "privacy_loss" in block]
    names: dict[str, Any] = {}
    exec(IMPORTS + code, names)

    @dataclass(frozen=True)
    class Contributed:
        epsilon: float
        vocabulary: Vocabulary

        name: ClassVar[str] = "my-own"
        channel: ClassVar[str] = "text"
        reads: ClassVar[tuple[str, ...]] = ()
        grid: ClassVar[None] = None
        guarantee = names["guarantee"]
        sample = names["sample"]
        privacy_loss = names["privacy_loss"]

    return Contributed


IMPORTS = """
from typing import Any
import numpy as np
from numpy.typing import NDArray
from mechanisms import categorical, checks
from mechanisms.guarantee import Guarantee
from mechanisms.losses.categorical import pure_loss
from mechanisms.losses.loss import LossCells, no_loss
from mechanisms.mechanism import Uniforms, uniforms
from mechanisms.vocabulary import NOTHING
"""


@dataclass(frozen=True)
class Demanding(Own):
    strength: float


KINDS = {Own: "holds", Careless: "violated", Direction: "holds", contributed(): "holds"}


@pytest.mark.parametrize(("kind", "verdict"), KINDS.items())
def test_a_mechanism_of_ones_own_is_audited_with_a_line_in_the_catalogue_alone(kind, verdict, monkeypatch, capsys):
    monkeypatch.setitem(CATALOGUE, "my-own", kind)
    assert main(["audit", "--mechanism", "my-own", "--draws", "40000", "--json"]) == int(verdict == "violated")
    (entry,) = json.loads(capsys.readouterr().out)["entries"]
    assert entry["name"] == "my-own" and entry["verdict"] == verdict


def test_a_mechanism_whose_worst_pair_nobody_knows_is_one_line(monkeypatch, capsys):
    monkeypatch.setitem(CATALOGUE, "my-own", Demanding)
    for asked in (["--mechanism", "my-own"], []):  # a whole audit passes over nothing
        assert main(["audit", *asked]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "my-own: the audit does not know what to tell apart; add a line to simulations/audit/games.py" in line


def test_every_mechanism_that_comes_with_sottovoce_has_a_worst_pair_of_its_own():
    assert CATALOGUE.keys() <= audit_games.GAMES.keys()
