"""Every mechanism of the catalogue is asked for through a client, one that joins it later too, and faults are found.

Statistical, at the audit's own rate: all figures of one test raise a false alarm with probability 1e-3 together, on
fixed seeds.
"""

from dataclasses import dataclass
from typing import ClassVar

import pytest

from mechanisms.catalogue import CATALOGUE
from mechanisms.facts import Pair, facts_of
from mechanisms.spherical import PlanarLaplace
from mechanisms.words.custext import CusText
from mechanisms.words.santext import SanText
from sottovoce.adversary.audit import run as audit
from sottovoce.adversary.audit.catalogue_games import _ASKED, catalogue_games, left_out
from sottovoce.adversary.audit.clients import Clients
from sottovoce.adversary.audit.run import Audit

#: Of 4 figures or more at no less confidence than each of 480 figures has in a whole audit.
WHOLE = audit.FAMILY / 120


@dataclass(frozen=True)
class Joined(PlanarLaplace):
    name: ClassVar[str] = "joined"


@dataclass(frozen=True)
class Careless(Joined):
    """Draws at three times the ε that it claims."""

    def sample(self, x, *, rng):
        return PlanarLaplace(self.dim, 3 * self.epsilon).sample(x, rng=rng)


@dataclass(frozen=True)
class Worded(SanText):
    name: ClassVar[str] = "joined"


def asked_for(folder):
    return {game.about.split(",")[0]: game for game in catalogue_games(Clients(folder), 1e-3)}


def test_the_whole_catalogue_is_asked_for(tmp_path):
    out = {name for name, kind in CATALOGUE.items() if left_out(kind)}
    beside = {Pair.IMPORTANCE, Pair.LOGITS, Pair.STATES}
    models = (name for name, kind in CATALOGUE.items() if facts_of(kind).pair in beside)
    assert out == {"identity", *models}
    assert asked_for(tmp_path).keys() == CATALOGUE.keys() - out - _ASKED


def test_sound_mechanisms_hold(tmp_path):
    games = list(asked_for(tmp_path).values())
    assert {f.verdict for f in audit.measure(games, Audit(draws=20_000))} == {"no violation found"}


@pytest.mark.parametrize(
    ("kind", "verdict"), [(Joined, "no violation found"), (Careless, "violated"), (Worded, "no violation found")]
)
def test_a_mechanism_that_joins_is_asked_for(kind, verdict, tmp_path, monkeypatch):
    monkeypatch.setitem(CATALOGUE, "joined", kind)
    (found,) = audit.measure([asked_for(tmp_path)["joined"]], Audit(draws=40_000), family=WHOLE)
    assert found.verdict == verdict


def test_a_client_that_sends_a_word_as_it_stands_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(CusText, "sample", lambda self, x, *, rng: x)
    (found,) = audit.measure([asked_for(tmp_path)["custext"]], Audit(draws=20_000), family=WHOLE)
    assert found.verdict == "violated"
