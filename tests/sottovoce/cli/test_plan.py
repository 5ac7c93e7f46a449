"""The commands `budget plan` and `budget figures`: from a central budget to local parameters."""

from __future__ import annotations

import math
import time
from pathlib import Path

import mpmath
import numpy as np
import pytest

from client.models import vocabulary
from mechanisms import RandomizedResponse
from mechanisms.accounting.ladder import ladder
from mechanisms.vocabulary import Vocabulary
from simulations.analysis import plan
from simulations.experiment import text_mechanism
from sottovoce.cli import main as cli
from tests.support.budgets import answer, printed, rung
from tests.support.tiny_generators import TOKENS, tiny_generator


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_plan_is_what_the_ladder_says(capsys: pytest.CaptureFixture[str]) -> None:
    budget = ("--central-epsilon", "0.5", "--delta", "1e-6", "--users", "20000", "--label-epsilon", "1")
    (split,) = answer(capsys, "plan", *budget)["splits"]
    assert 0.45 < split["central_epsilon"] <= 0.5
    released = [f"purkayastha:epsilon={split['embedding_epsilon']},dim=16", "randomized-response:epsilon=1,classes=2"]
    spec = [word for name in released for word in ("--mechanism", name)]
    rungs = answer(capsys, "ladder", *spec, "--users", "20000", "--delta", "1e-6")["ladder"]
    assert rung(rungs, "shuffled")["epsilon"] == split["central_epsilon"]


@pytest.mark.parametrize(
    ("found", "fits", "planned"), [(4.378, 4.381, 4.38), (4.378, 4.379, 4.37), (1.0, 0.9995, 0.999)]
)
def test_what_is_planned_is_the_largest_number_of_three_digits_that_fits(
    found: float, fits: float, planned: float
) -> None:
    """found: as `largest` finds it, to its tolerance."""
    assert plan._at_most(found, lambda e: e <= fits, lambda e: e, 10.0) == (planned, planned)


def test_a_plan_of_privunit(capsys: pytest.CaptureFixture[str]) -> None:
    """ε0 and p of least error for a central budget; the ladder says that it is kept."""
    asked = ("plan", "--mechanism", "privunit:dim=32", "--central-epsilon", "1", "--delta", "1e-6", "--users", "20000")
    plan = answer(capsys, *asked)
    assert plan["local_epsilon"] == pytest.approx(6.32, abs=0.1) and plan["expected_cosine"] >= 0.372
    assert plan["noise"] == pytest.approx(1 / plan["expected_cosine"] / math.sqrt(20_000))
    assert plan["curator_noise"] == pytest.approx(0.0024, rel=0.05) and 0.98 < plan["central_epsilon"] <= 1
    people = printed(capsys, *asked)
    assert f"p = {plan['cap_probability']:g}" in people and f"ε = {plan['local_epsilon']:g}" in people
    spec = ("--mechanism", f"privunit:epsilon={plan['local_epsilon']},dim=32", "--users", "20000")
    rungs = answer(capsys, "ladder", *spec)["ladder"]  # at the p of least error for ε0 alone
    assert rung(rungs, "statistic")["epsilon"] == pytest.approx(plan["local_epsilon"], abs=1e-9)
    assert rung(rungs, "shuffled")["epsilon"] <= 1.05
    assert cli.main(["budget", *asked, "--label-epsilon", "1"]) == 2
    assert capsys.readouterr().err.startswith("sottovoce: --label-epsilon: ")
    none = printed(capsys, *asked[:4], "1e-9", "--delta", "1e-9", "--users", "2")
    assert "no privunit fits" in none


def test_privunit_at_a_hundred_million_users_takes_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    start = time.process_time()
    spec = ("--mechanism", "privunit:epsilon=6,dim=32", "--users", "100000000")
    found = rung(answer(capsys, "ladder", *spec)["ladder"], "shuffled")
    assert time.process_time() - start < 10
    assert 0.005 < found["epsilon"] < 0.0081


def word_vectors(place: Path) -> Vocabulary:
    vectors = np.random.default_rng(3).normal(size=(24, 3)).astype(np.float32)
    found = Vocabulary(tuple(f"word{i}" for i in range(24)), vectors)
    vocabulary.save(found, place / "words")
    return found


@pytest.mark.parametrize(
    ("mechanism", "users", "length"),
    [
        ("santext", None, "0.5"),
        ("custext", None, "kept"),
        pytest.param("dp-mlm", 5000, "0.5", marks=[pytest.mark.slow, pytest.mark.soak]),
    ],
)
def test_a_plan_of_a_text_is_what_the_ladder_says(
    mechanism: str, users: int | None, length: str, capsys: pytest.CaptureFixture[str], place: Path
) -> None:
    words = word_vectors(place)
    why = {"length": "lengths are known", "group": "topics are known"}
    asked = f"--mechanism {mechanism}:tokens=16,length={length} --words words --central-epsilon 30 --delta 1e-6".split()
    asked += ["--label-epsilon", "1", *([] if users is None else ["--users", str(users)])]
    public = (option for name, reason in why.items() for option in ("--accept-unprotected", f"{name}: {reason}"))
    found = answer(capsys, "plan", *asked, *public)
    (split,) = found["splits"]
    assert found["tokens"] == 16 and found["delivered"] == users
    assert 29 < split["central_epsilon"] <= 30

    def users_own(epsilon: float) -> float:
        spec = {"mechanism": mechanism, "epsilon": epsilon, "tokens": 16} | (
            {"length": length if length == "kept" else float(length)}
        )
        text = text_mechanism(spec, words, model={"low": -1.0, "high": 4.0})
        rungs = ladder(None, RandomizedResponse(1.0, 2), text=text, users=users, delta=1e-6, public=why)
        by_name = {r.name: r for r in rungs}
        shuffled = by_name["shuffled"].epsilon
        return by_name["user"].epsilon if shuffled is None else shuffled

    assert users_own(split["text_epsilon"]) == pytest.approx(split["central_epsilon"], rel=1e-12)
    assert users_own(split["text_epsilon"] * 1.02) > 30


def test_a_plan_of_a_text_says_what_it_needs(capsys: pytest.CaptureFixture[str], place: Path) -> None:
    word_vectors(place)
    budget = ["--central-epsilon", "30", "--delta", "1e-6", "--label-epsilon", "1"]
    text = ["--words", "words"]
    for arguments, said in (
        (["--mechanism", "custext:tokens=8", *text], "which group of the mapping a word belongs to"),
        (["--mechanism", "santext:tokens=8,length=kept", *text], "the number of tokens"),
        (["--mechanism", "santext:tokens=8,length=long", *text], "length must be"),
        (["--mechanism", "santext:tokens=8", *text, "--crowd", "5"], "--crowd: without --users there is no shuffler"),
        (["--mechanism", "santext:tokens=8", *text, "--users", "9", "--crowd", "5"], "the text exposes nothing"),
        (["--mechanism", "santext", "--words", "absent.txt"], "there is no such file"),
        (["--mechanism", "santext:tokens=8", *text, "--accept-unprotected", "length"], "length"),
        (["--mechanism", "purkayastha:tokens=8", "--users", "9"], "a plan of purkayastha takes dim, and no tokens"),
        (["--mechanism", "santext:epsilon=2"], "no number of users is planned for a text"),
        (["--mechanism", "purkayastha:dim=8,epsilon=2", "--users", "9"], "--users: a plan of a mechanism with an ε"),
        ([], "--users: say how many"),
    ):
        assert cli.main(["budget", "plan", *budget, *arguments]) == 2
        error = capsys.readouterr().err
        assert said in error and error.count("\n") == 1
    shown = printed(capsys, "plan", "--mechanism", "santext:tokens=8", *text, *budget)
    assert "no shuffler; texts of at most 8 tokens" in shown and "largest ε of santext" in shown


@pytest.mark.parametrize(
    ("users", "dropout"), [(100, 0.01), (1000, 0.001), (50, 0.02), (200, 0.05), (40, 1e-5), (20_000, 0.2), (7, 0.0)]
)
def test_fewer_than_planned_are_delivered_once_in_a_billion_runs(users: int, dropout: float) -> None:
    """By the binomial law's own sum in 40 digits: within 10^-9, which one user more would pass."""

    def missed(least: int) -> mpmath.mpf:
        with mpmath.workdps(40):
            d, span = mpmath.mpf(dropout), range(users - least + 1, min(users, users - least + 2000) + 1)
            return mpmath.fsum(mpmath.binomial(users, k) * d**k * (1 - d) ** (users - k) for k in span)

    delivered = plan.Terms(1.0, 1e-6, users, dropout).target.users
    assert delivered is not None and missed(delivered) <= plan.MISSED
    assert delivered == users or missed(delivered + 1) > plan.MISSED


def test_a_plan_with_drop_outs_and_one_that_cannot_be(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--central-epsilon", "0.5", "--delta", "1e-6", "--label-epsilon", "1"]
    found = answer(capsys, "plan", *arguments, "--users", "20000", "--dropout", "0.2")
    assert found["delivered"] == 15_657
    none = answer(
        capsys, "plan", "--central-epsilon", "0.01", "--delta", "1e-6", "--label-epsilon", "5", "--users", "100"
    )
    assert none["splits"][0]["embedding_epsilon"] is None


GENERATED = ("--central-epsilon", "6", "--delta", "1e-6", "--label-epsilon", "0.001")


@pytest.mark.parametrize("mechanism", ["dp-prompt", "dp-paraphrase"])
def test_what_a_model_generates_is_planned_for_what_it_draws_among(
    mechanism: str, capsys: pytest.CaptureFixture[str], place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A draw among few words costs less than one among many: four tokens planned over four words at a total of 6 cost
    more than 8 over those of GPT-2. Where nobody names the model, a plan holds for each."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(place / "cache"))
    vocabulary.save(
        Vocabulary(tuple("abcd"), np.random.default_rng(1).normal(size=(4, 3)).astype(np.float32)), place / "four"
    )
    model = str(tiny_generator(place / "model"))
    asked = ("plan", "--mechanism", f"{mechanism}:tokens=4,length=0", *GENERATED)

    def cost(epsilon: float, size: int) -> float:
        """Of four tokens among so many, by the exact loss of a draw."""
        words = Vocabulary(tuple(map(str, range(size))), np.zeros((size, 1), np.float32))
        spec = {"mechanism": mechanism, "epsilon": epsilon, "low": 0.0, "high": 1.0, "tokens": 4, "length": 0.0}
        text = text_mechanism(spec, words)
        return rung([r.to_dict() for r in ladder(None, None, text=text, users=None, delta=1e-6)], "user")["epsilon"]

    unnamed = answer(capsys, *asked)
    (split,) = unnamed["splits"]
    assert unnamed["among"].startswith("any vocabulary, at worst; with --generator FOLDER")
    assert split["text_epsilon"] == pytest.approx((6 - 0.001) / 4, abs=0.01)
    for size in (2, 4, 50_257):
        assert cost(split["text_epsilon"], size) <= 6
    own = answer(capsys, *asked, "--generator", model)
    assert own["among"] == f"{len(TOKENS)} tokens of {model}"
    planned = own["splits"][0]["text_epsilon"]
    assert split["text_epsilon"] < planned and 5.9 < cost(planned, len(TOKENS)) <= 6
    few = answer(capsys, *asked, "--words", "four")
    assert few["among"] == "4 words of four, which sanitize must be given too, as --words"
    planned = few["splits"][0]["text_epsilon"]
    assert cost(planned, 4) <= 6 < 8 < cost(planned, 50_257)  # so it matters among what
    people = printed(capsys, *asked, "--words", "four")
    assert people.splitlines()[-1] == f"Drawn among {few['among']}."


def test_a_shuffler_promises_nothing_for_a_model_that_nobody_has_named(capsys: pytest.CaptureFixture[str]) -> None:
    plain, shuffled = (
        answer(capsys, "plan", "--mechanism", "dp-prompt:tokens=4,length=0", *GENERATED, *more)["splits"][0]
        for more in ((), ("--users", "1000000"))
    )
    assert plain["text_epsilon"] == shuffled["text_epsilon"]


def test_labels_hide_among_more_users_the_more_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    """Their samplers are exact enough for any crowd: at δ = 1e-9 a million of them used to hide nobody."""
    spec = ("--mechanism", "randomized-response:epsilon=2", "--delta", "1e-9")
    few = rung(answer(capsys, "ladder", *spec, "--users", "100000")["ladder"], "shuffled")
    many = rung(answer(capsys, "ladder", *spec, "--users", "1000000")["ladder"], "shuffled")
    assert many["epsilon"] < 0.0146 < few["epsilon"] and many["details"]["sampler_delta"] < 1e-20
    spec = ("--mechanism", "randomized-response:epsilon=2", "--delta", "1e-10", "--users", "100000000")
    assert rung(answer(capsys, "ladder", *spec)["ladder"], "shuffled")["epsilon"] < 0.0015


def test_why_nothing_is_amplified_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    raw = ("--mechanism", "planar-laplace:normalize=false,epsilon=4,dim=16", "--delta", "1e-9")
    for arguments, said in (
        ((*raw, "--users", "100000"), "the samplers of all users may be"),
        ((*raw, "--users", "1"), "one user alone"),
        (("--mechanism", "randomized-response-prior:epsilon=2", "--users", "9"), "priors differ"),
        (("--mechanism", "randomized-response:epsilon=6", "--users", "2"), "no bound is below"),
    ):
        assert said in rung(answer(capsys, "ladder", *arguments)["ladder"], "shuffled")["assumption"]
        assert said in printed(capsys, "ladder", *arguments)
    plan = ("plan", "--mechanism", "purkayastha:dim=16", "--central-epsilon", "1", "--label-epsilon", "1")
    crowded = printed(capsys, *plan, "--users", "100000000", "--delta", "1e-16")
    assert "the samplers of all users" in crowded and "more users" not in crowded
    assert "hide among more users" in printed(capsys, *plan, "--users", "2", "--delta", "1e-13")
