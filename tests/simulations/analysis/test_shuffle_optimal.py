"""The search over densities of one vector, and the price of more messages."""

from __future__ import annotations

import json

import pytest

from mechanisms.accounting.planner import Target, best_privunit
from simulations.analysis.shuffle_optimal import _cap, best_messages, best_of_shape, shapes
from sottovoce.cli import main as cli

TARGET = Target(1.0, 1e-6, 20_000)


def test_a_flat_cap_is_privunit() -> None:
    """The stepped density and its search find the planner's, to the cells' coarseness."""
    known = best_privunit(64, TARGET)
    found = best_of_shape(_cap(0.0), 64, TARGET)
    assert known is not None and found is not None
    assert found[0] == pytest.approx(known.scale, rel=5e-3) and found[1] == pytest.approx(known.epsilon, rel=0.05)


def test_a_linear_cap_gains_what_many_users_promise() -> None:
    """Of Gaussian accounting and Gaussian cosines, at the b and the mass of the cap found there: 7 to 8 % of squared
    error (see the module); exactly it is .9268."""
    flat, linear = (best_of_shape(_cap(power), 64, TARGET) for power in (0.0, 1.0))
    assert flat is not None and linear is not None
    assert 0.91 < (flat[0] / linear[0]) ** 2 < 0.94


def test_smooth_densities_lose() -> None:
    flat = best_of_shape(_cap(0.0), 64, TARGET)
    smooth = best_of_shape(shapes(64)["uniform and von Mises-Fisher"], 64, TARGET)
    assert flat is not None and smooth is not None and (flat[0] / smooth[0]) ** 2 > 1.4


def test_more_messages_buy_a_smaller_error_at_a_weaker_local_guarantee() -> None:
    target = Target(1.0, 1e-6, 2000)
    one, two = (best_messages(64, target, m) for m in (1, 2))
    assert one is not None and two is not None
    assert 1.4 < 2 * (two.scale / one.scale) ** 2 < 1.7 and 2 * two.epsilon > 1.5 * one.epsilon


def test_the_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simulations.analysis.shuffle_optimal._TRIED", 3)
    arguments = ["dev", "optimal", "--users", "300", "--dim", "16", "--epsilon", "2"]
    assert cli.main([*arguments, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert {r["messages"] for r in answer["releases"]} == {1, 2, 4, 8} and len(answer["releases"]) == 9
    assert all(r["error"] > 1 for r in answer["releases"])  # nobody comes below the curator
    assert cli.main(["dev", "optimal", "--users", "0", "--epsilon", "2"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
