"""How close a measured bound comes to the exact loss, the pair searched for; each bound is below it but for 1e-3."""

from __future__ import annotations

from itertools import count
from typing import Any

import numpy as np
import pytest

from mechanisms.privunit import PrivUnit
from mechanisms.streams import SeededUniforms
from mechanisms.words.santext import SanText
from sottovoce.adversary.audit.external.claim import Claim
from sottovoce.adversary.audit.games import words, worst_pair
from sottovoce.adversary.audit.run import audit
from sottovoce.adversary.estimators import audit as adversary
from tests.support import planted

SEEDS = count(3)
SANTEXT = SanText(1.0, words())


@pytest.fixture(autouse=True)
def draws_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planted, "RNG", np.random.default_rng(12))


def privunit(x: list[float], n: int) -> Any:
    mechanism, unit = PrivUnit(16, 2.0), np.array(x) / np.linalg.norm(x)
    codes = mechanism.grid.encode(mechanism.sample(np.tile(unit, (n, 1)), rng=SeededUniforms(next(SEEDS))))
    return mechanism.grid.decode(codes)


def santext(x: int, n: int) -> Any:
    return SANTEXT.sample(np.full(n, x), rng=SeededUniforms(next(SEEDS)))


def of_santext() -> dict[str, Any]:
    """Its exact loss over all pairs, by enumeration."""
    table = SANTEXT.log_probs(np.arange(25))
    x, y = worst_pair(table)
    return {"epsilon": float((table[x] - table[y]).max()), "inputs": list(range(25)), "releases": "category"}


CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "randomized response": planted.SOUND["randomized response"],
    "Laplace": planted.SOUND["Laplace"],
    "Gaussian": (planted.gaussian, planted.SOUND["Gaussian"][1] | {"delta": 1e-5}),
    "PrivUnit": (privunit, {"epsilon": 2.0, "inputs": {"radius": 1.0, "size": 16}, "releases": "vector"}),
    "SanText": (santext, of_santext()),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [n if n in ("randomized response", "Gaussian") else pytest.param(n, marks=pytest.mark.soak) for n in CASES]
)
def test_the_measured_bound_is_close_to_the_exact_loss(name: str) -> None:
    """At 60,000 draws, half of which search; Gaussian noise at δ = 1e-5, by its μ."""
    draws, claim = CASES[name]
    entry = audit(draws, Claim.of(claim), draws=60_000, fixed=True)["entries"][0]
    exact, measured = (entry[key + ("_at_delta" if name == "Gaussian" else "")] for key in ("claimed", "measured"))
    assert 0.8 * exact <= measured <= exact and entry["verdict"] == "no violation found"


def test_a_bound_of_mu_is_close_and_below_and_of_nothing_it_is_nothing() -> None:
    """Noise of deviation 1 at distance 1; louder at 2/3 is seen, and at 3/2 not taken for it."""
    rng = np.random.default_rng(5)
    for scale, low, high in ((1.0, 0.88, 1.0), (2 / 3, 1.35, 1.5), (3 / 2, 0.57, 2 / 3)):
        first, second = rng.normal(0, scale, (40_000, 1)), rng.normal(1, scale, (40_000, 1))
        assert low < adversary.lower_mu(adversary.scores(first, second, adversary.learned), 1e-4) < high
    same = rng.normal(0, 1, (2, 4000, 1))
    assert adversary.lower_mu(adversary.scores(*same, adversary.learned), 1e-4) == 0
