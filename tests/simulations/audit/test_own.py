"""A mechanism of one's own in the audit, as README and CONTRIBUTING say it gets there.

Statistical, at the audit's own rate: false alarms of all figures of one audit have probability 1e-3 together, on a
fixed seed; the planted fault draws at twice the ε that is claimed.
"""

import json
from dataclasses import dataclass
from typing import ClassVar

import pytest

from mechanisms.catalogue import CATALOGUE
from mechanisms.randomized_response import RandomizedResponse
from mechanisms.spherical import PlanarLaplace
from simulations.audit import games as audit_games
from simulations.commands.cli import main


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


@dataclass(frozen=True)
class Demanding(Own):
    strength: float


@pytest.mark.parametrize(("kind", "verdict"), [(Own, "holds"), (Careless, "violated"), (Direction, "holds")])
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
