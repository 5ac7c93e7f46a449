"""The audit of other people's mechanisms: planted faults are found, sound ones pass, and a mistake is one line.

An audit's own false alarms have probability 1e-3 together, on fixed seeds here; every fault is planted in what draws,
never in what claims, and no pair of inputs is given.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from itertools import count, cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from mechanisms.privunit import PrivUnit
from mechanisms.streams import SeededUniforms
from mechanisms.words.santext import SanText
from simulations.errors import UserError
from sottovoce.adversary.audit import measure
from sottovoce.adversary.audit.external.claim import Claim
from sottovoce.adversary.audit.external.run import audit_source
from sottovoce.adversary.audit.external.source import Function
from sottovoce.adversary.audit.games import words as game_words
from sottovoce.adversary.audit.games import worst_pair
from sottovoce.adversary.audit.run import audit, verify
from sottovoce.adversary.estimators import audit as adversary
from sottovoce.cli.main import main
from tests.support import planted
from tests.support.paths import ROOT

PLANTED = ROOT / "tests" / "support" / "planted.py"
#: Tested each time, and each time but slowly; the others before a release.
FAST = {"label at two thirds", "low bits", "seed reused", "randomized response"}
SLOW = {"length", "order", "Gaussian", "text"}


@pytest.fixture(autouse=True)
def fresh_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planted, "RNG", np.random.default_rng(12))


def marked(group: dict[str, Any]) -> list[Any]:
    slow, soak = pytest.mark.slow, pytest.mark.soak
    return [
        pytest.param(name, marks=[] if name in FAST else [slow] if name in SLOW else [slow, soak]) for name in group
    ]


def audited(made: tuple[planted.Draws, dict[str, Any]], draws: int, **options: Any) -> dict[str, Any]:
    return audit_source(Function(made[0], Claim.of(made[1])), draws=draws, **{"seed": 1, "fixed": True} | options)


@pytest.mark.parametrize("name", marked(planted.FAULTS))
def test_a_planted_fault_is_found_with_a_pair_that_was_searched_for(name: str) -> None:
    results = audited(planted.FAULTS[name], 24_000)
    found = {entry["about"]: entry for entry in results["entries"]}
    broken = found["beside a known draw" if name == "seed reused" else "a draw"]
    assert broken["verdict"] == "violated" and len(results["certificates"]) == results["violated"]
    if name == "seed reused":
        assert found["a draw"]["verdict"] == "no violation found", "a draw alone says nothing of it"
    assert json.loads(json.dumps(results["certificates"]))[0]["measured"]["confidence"] > 1 - 1e-3


@pytest.mark.parametrize("name", marked(planted.SOUND))
def test_a_sound_one_holds_and_no_bound_is_above_its_claim(name: str) -> None:
    results = audited(planted.SOUND[name], 24_000)
    assert results["violated"] == 0 and results["certificates"] == []
    for entry in results["entries"]:
        assert entry["measured_at_delta"] <= entry["claimed_at_delta"]
    if name in ("randomized response", "Laplace", "sum"):
        assert results["entries"][0]["measured"] > 0.7


def alarms(audits: int, family: float) -> int:
    """How many audits of sound mechanisms raise an alarm, each on seeds of its own."""
    cheap = [made for name, made in planted.SOUND.items() if name not in ("shuffler", "text")]
    several = islice(cycle(cheap), audits)
    return sum(audited(made, 16_000, seed=seed, family=family)["violated"] > 0 for seed, made in enumerate(several))


@pytest.mark.slow
@pytest.mark.soak
def test_the_rate_of_false_alarms() -> None:
    """No more audits alarm at the stated 1e-3 than it explains (at 1e-6): of 200, four."""
    assert alarms(200, measure.FAMILY) <= stats.binom.isf(1e-6, 200, measure.FAMILY)


# --- programs


def command(name: str) -> str:
    return f"{sys.executable} {PLANTED} '{name}'"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("!talks", "wrote a line that is no JSON, 'loading the model ...'"),
        ("!dies", "ended with code 1: MemoryError: too much of it"),
        ("!few", "was asked for 16 draws and answered 15"),
        ("!words", "a draw is not a number, finite, as the claim says"),
        ("!refuses", "says of 16 draws at the input"),
        ("!hangs", "no answer in 0.7 s; give it longer with --timeout"),
    ],
)
def test_a_program_that_does_not_do_as_it_should_is_one_line(
    name: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    asked = ["audit", "--command", command(name), "--draws", "20000", "--out", str(out)]
    if name == "!hangs":  # the others may take long to start on a busy machine
        asked += ["--timeout", "0.7"]
    assert main(asked) == 2
    *_, line = [line for line in capsys.readouterr().err.splitlines() if line.startswith("sottovoce: ")]
    assert said in line and not out.exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--command", "no-such-program-anywhere"], "does not start"),
        (["--command", ""], "does not start: is empty"),
        (["--command", "true"], "a claim, on its first line: it ended with code 0"),
        (["--command", "echo [1]"], "must be a JSON object that states the claim"),
        (["--command", 'echo {"epsilom":1}'], "is no JSON"),
        (["--command", "echo '{\"epsilom\": 1}'"], "unknown key 'epsilom'; did you mean 'epsilon'?"),
        (["--command", "true", "--mechanism", "santext"], "--command takes no --mechanism"),
        (["--fixed"], "--fixed is of --command"),
        (["--verify", "nowhere.json"], "there is no such file"),
        (["--verify", "nowhere.json", "--delta", "0.1"], "--verify takes"),
    ],
)
def test_a_mistake_in_what_is_asked_is_one_line(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["audit", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def test_a_violations_certificate_is_confirmed_on_new_draws_and_not_where_there_is_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    asked = ["audit", "--command", command("low bits"), "--draws", "20000", "--fixed", "--out", str(out)]
    assert main(asked) == 1
    kept = out / "certificate-1.json"
    written = json.loads(kept.read_text())
    assert written["command"] == command("low bits") and written["claimed"]["epsilon"] >= 0
    capsys.readouterr()
    assert main(["audit", "--verify", str(kept)]) == 0
    assert capsys.readouterr().out.startswith("confirmed: ")
    sound = tmp_path / "sound.py"  # the same claim, of noise whose low bits are hidden
    sound.write_text(
        f"import sys\nsys.path.insert(0, {str(PLANTED.parent)!r})\nimport planted\n"
        "planted.FAULTS['low bits'] = planted.SOUND['Laplace']\nplanted.main('low bits')\n"
    )
    assert main(["audit", "--verify", str(kept), "--command", f"{sys.executable} {sound}", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["confirmed"] is False
    assert main(["audit", "--verify", str(kept), "--command", command("Laplace")]) == 2
    assert "is about another claim" in capsys.readouterr().err
    for spoiled in ({"format": "other"}, {"pair": 3}, {"claim": {}}):
        kept.write_text(json.dumps(written | spoiled))
        assert main(["audit", "--verify", str(kept)]) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1


# --- in Python


def test_a_function_is_audited_with_its_claim_and_what_it_raises_is_one_line(tmp_path: Path) -> None:
    claim = Claim.of(planted.SOUND["randomized response"][1])
    results = audit(planted.randomized_response(1.0), claim, draws=16_000, out=tmp_path / "out")
    assert results["violated"] == 0 and (tmp_path / "out" / "audit.md").is_file()

    def broken(x: Any, n: int) -> Any:
        raise KeyError("no model")

    with pytest.raises(UserError, match="mechanism: raised KeyError at the input"):
        audit(broken, claim)
    for asked in ((broken,), (broken, {"epsilon": 1}), (broken, claim, "santext")):
        with pytest.raises(UserError, match=r"audited alone, with its claim: audit\(function, Claim"):
            audit(*asked)
    for options in ({"draws": 10}, {"draws": 1000, "fixed": True}, {"seed": -1}):
        with pytest.raises(UserError, match="--"):
            audit(broken, claim, **options)


def coin(x: float, n: int) -> list[bool]:
    """Heads with probability (1 + x/2)/2."""
    return [bool(heads) for heads in planted.RNG.random(n) < (1 + x / 2) / 2]


def given(pairs: Any, draws: Callable[[Any, int], Any] = coin) -> dict[str, Any]:
    return audit(draws, Claim(epsilon=1.1, pairs=pairs, releases="category"), draws=16_000, fixed=True)


def test_pairs_may_be_given_and_one_alone_is_not_searched_for() -> None:
    asked: list[int] = []

    def counted(x: Any, n: int) -> Any:
        asked.append(n)
        return coin(x, n)

    assert given([[0.0, 1.0]], counted)["entries"][0]["draws"] == 16_000 and sum(asked) == 2 * (
        16_000 + 2 * 4000 + 2000
    )
    assert given([[0.0, 0.1], [0.0, 1.0]])["entries"][0]["pair"] == "0.0 / 1.0"
    for pairs, said in (([[1, 1]], "no two neighbouring"), ([[1]], "no pair of inputs")):
        with pytest.raises(UserError, match=said):
            given(pairs)


def test_the_adapter_of_the_page_is_audited_as_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Fourteen lines; the coin's ε is 2 and not 1."""
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/how-to/audit-package.md").read_text("utf-8"), re.DOTALL)
    assert len(code.splitlines()) <= 14
    monkeypatch.chdir(tmp_path)
    Path("adapter.py").write_text(code, encoding="utf-8")
    assert main(["audit", "--command", f"{sys.executable} adapter.py", "--draws", "16000", "--out", "coin"]) == 1
    assert "violated" in capsys.readouterr().out
    assert main(["audit", "--verify", "coin/certificate-1.json"]) == 0


def rounded(x: float, n: int) -> list[float]:
    """Laplace noise of ε = 1 for numbers in [0, 1], on a grid."""
    drawn: list[float] = (np.rint((x + NOISE.laplace(size=n)) * 1024) / 1024).tolist()
    return drawn


NOISE = np.random.default_rng(5)
OF_A_NUMBER = Claim(epsilon=1.0, inputs=[0.0, 1.0], releases="number", name="number")


def test_an_answer_in_clear_to_a_request_of_one_row_is_found_and_confirmed(tmp_path: Path) -> None:
    """Every draw alone is the input itself. In batches the noise is right: no alarm there (probability 1e-3)."""

    def clear(x: float, n: int) -> list[float]:
        return [x] if n == 1 else rounded(x, n)

    found = audit(clear, OF_A_NUMBER, draws=20_000, out=tmp_path / "clear")
    assert {entry["about"]: entry["verdict"] for entry in found["entries"]} == {
        "a draw": "no violation found",
        "beside a known draw": "no violation found",
        "a draw alone": "violated",
    }
    assert verify(tmp_path / "clear" / "certificate-1.json", clear)["confirmed"]


# --- how close a measured bound comes to the exact loss

SEEDS = count(3)
SANTEXT = SanText(1.0, game_words())


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
