"""The reference that reads everything: what it learns, what it says of itself, and that nobody takes it for private."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from mechanisms.accounting.ladder import ladder
from mechanisms.randomized_response import RandomizedResponse
from simulations.analysis.attack_results import below
from simulations.corpora.corpus import Corpus
from simulations.errors import UserError
from simulations.experiment import Experiment, from_table
from simulations.experiment.arm import embedding_mechanism
from simulations.experiment.ladder import of_experiment
from simulations.experiment.result import ArmResult, arms_of
from simulations.experiment.sections import Data
from simulations.run import centralised, trust
from simulations.run.centralised import CentralisedArm, logistic_regression
from simulations.run.frontier import frontier_figure
from simulations.run.measures import measures_of
from simulations.run.prepare import Held, Holders
from simulations.run.references import remarks
from sottovoce.report import facts
from sottovoce.report.page import page_of_plan
from sottovoce.report.reading import Finished
from tests.support.results import user as users
from tests.support.studies import PURKAYASTHA, USERS, experiment, prepared

READS_ALL = {"name": "centralised, not private", "protocol": "centralised", "reference": True}


def rows(n: int, seed: int, *, width: int = 12) -> tuple[np.ndarray, np.ndarray]:
    """Three classes that lie close together, off the origin."""
    rng = np.random.default_rng(seed)
    y = rng.integers(3, size=n)
    return (rng.normal(size=(3, width))[y] + 1.5 * rng.normal(size=(n, width)) + 4).astype(np.float32), y


def test_is_the_regression_of_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    h, y = rows(400, 1)
    x = h.astype(np.float64) - h.astype(np.float64).mean(axis=0)
    monkeypatch.setattr(centralised, "PENALTIES", (0.01,))
    result = logistic_regression(h, y, classes=3, seed=0)
    penalty = 0.01 * float((x * x).sum() / len(x))
    other = LogisticRegression(C=1 / (penalty * len(x)), tol=1e-10, max_iter=5000).fit(x, y)
    ours = x @ result.weight + result.bias
    theirs = other.decision_function(x)
    centred = [each - each.mean(axis=1, keepdims=True) for each in (ours, theirs)]
    np.testing.assert_allclose(*centred, atol=5e-3)
    assert (result.scores(h).argmax(axis=1) == other.predict(x)).mean() > 0.995


def test_the_penalty_is_chosen_on_rows_that_were_left_out() -> None:
    rng = np.random.default_rng(2)
    h, y = rng.normal(size=(60, 40)), rng.integers(2, size=60)
    noise = logistic_regression(h, y, classes=2, seed=0)
    assert np.abs(noise.weight).max() < 0.5  # of the least penalty they are above 1, and learn the rows by heart
    assert (noise.scores(h).argmax(axis=1) == y).mean() < 0.95
    h[:, 0] += 6 * y
    assert (logistic_regression(h, y, classes=2, seed=0).scores(h).argmax(axis=1) == y).mean() > 0.95
    with pytest.raises(ValueError, match="no rows"):
        logistic_regression(h[:0], y[:0], classes=2, seed=0)


def ran(study: Experiment) -> centralised.Finished:
    return CentralisedArm(study.arms[0], study.data, prepared(study), study.seed).run(None)


def test_learns_from_users_and_releases_nothing() -> None:
    study = experiment(READS_ALL, data={"measures": ["macro-f1"]})
    result, model, answers = ran(study)
    assert result.accuracy_clean_test is not None and result.accuracy_clean_test > 0.9 and model is None
    assert result.accuracy is None and not answers.sanitized.guesses.any() and result.bytes_per_user is None
    assert result.measures["on_device"]["macro-f1"]["value"] > 0.9
    assert trust.unprotected(result) and trust.local(result) is None and trust.central(result) == (None, "the server")
    cost = facts.paid(result, "training user")
    assert cost is not None and cost.epsilon == math.inf and "trusted with everything" in cost.why
    assert facts.kept(result) == ["nothing that this report could vouch for"]
    plan = {"name": "plan", "seed": 1, "arms": [result.to_dict()], "versions": {}}
    said = page_of_plan(Finished(Path("plan"), plan, None, None, None, has_run=False))
    assert "learns from the texts and labels as they are, and adds no noise" in said
    assert "NOT PROTECTED</span></h4>" in said and "NOT FOR USE</span>" in said
    (spent,) = of_experiment(study)
    assert spent["ladder"] is None and spent["test_ladder"] is None and spent["reference"]


def test_a_label_that_is_a_number_has_its_correlation() -> None:
    data = {
        "source": "files",
        "path": ".",
        "train": "a",
        "test": "b",
        "text": "text",
        "label": "label",
        "label-range": [1.0, 3.0],
        "levels": 3,
        "measures": ["pearson", "spearman"],
    }
    table = {"name": "small", "seed": 3, "arm": [READS_ALL], "data": data, "population": {"users": USERS}}
    result, _, _ = ran(from_table(table | {"shuffle": {"minimum-users": 10}}))
    assert result.measures["sanitized"] == {"pearson": None, "spearman": None}
    assert all(result.measures["on_device"][name]["value"] > 0.9 for name in data["measures"])


@pytest.mark.parametrize(
    ("arm", "said"),
    [
        ({"reference": False}, "write reference = true"),
        ({"embedding": PURKAYASTHA}, "releases nothing: its server has the texts"),
        ({"label": {"mechanism": "identity"}}, "releases nothing"),
    ],
)
def test_mistakes_are_one_line(arm: dict[str, object], said: str) -> None:
    with pytest.raises(UserError, match=said):
        experiment(READS_ALL | arm)
    with pytest.raises(UserError, match=r'"centralised" does not go with training\.protocol = "sanitized-text"'):
        experiment(READS_ALL, training={"protocol": "sanitized-text"})


def results(*gaps: float, error: float = 0.01) -> list[dict[str, object]]:
    """Runs in which "private" has so much over "no noise"."""

    def pair(arm: str, less: str, gap: float) -> dict[str, object]:
        return {"arm": arm, "less": less, "on_device": {"difference": gap, "error": error}, "sanitized": None}

    arms = [
        {"name": "all", "reference": True, "way": "centralised", "budget": {}},
        {"name": "no noise", "reference": True, "way": "statistics", "budget": {}},
        {"name": "private", "reference": False, "way": "statistics", "budget": {}},
    ]
    return [
        {
            "arms": arms,
            "differences": [
                pair("private", "no noise", gap),
                pair("no noise", "all", -0.1),
                pair("private", "all", gap - 0.1),
            ],
        }
        for gap in gaps
    ]


def test_a_reference_below_a_private_arm_is_remarked_beyond_its_error_over_seeds() -> None:
    lost = "no noise: lies below all, by 0.100 ± 0.010: that much is lost on the way to what users release, before any"
    (line,) = remarks(results(-0.05))
    assert line.startswith(lost)
    worse, _ = remarks(results(0.03, 0.05, 0.04))
    assert worse.startswith("no noise: lies below private, which are private: its maps or its head")
    assert len(remarks(results(0.2, -0.1, 0.05))) == 1  # over seeds the error is .09
    assert len(remarks(results(0.03, 0.05, 0.04, error=0.05))) == 1  # by test text, of texts that runs share, .05
    best = remarks(results(0.25, 0.3))
    assert best[0].startswith("all: lies below private, which are private: its head is the limit")


def test_an_attack_below_its_baseline_is_remarked() -> None:
    row = {"baseline": 0.5, "interval": [0.2, 0.4]}
    assert below(row) and not below(row | {"interval": [0.2, 0.6]})
    assert not below(row | {"baseline": None})


def taught(chance: float, accuracy: float, guesses: list[int], **more: object) -> dict[str, object]:
    arm = {
        "name": "a",
        "way": "statistics",
        "budget": {},
        "accuracy": None,
        "accuracy_clean_test": accuracy,
        "accuracy_clean_test_se": 0.02,
        "guessed": {"sanitized": [], "on_device": guesses},
    }
    return {"arms": [arm], "differences": [], "chance": chance, "classes": ["no", "yes"]} | more


def test_a_model_that_knows_one_class_and_one_below_chance_are_remarked() -> None:
    (one,) = remarks([taught(0.97, 0.97, [200, 0])])
    assert one == 'a: on the device its model says of every text "no": it tells no classes apart.'
    (most,) = remarks([taught(0.5, 0.5, [1, 199]), taught(0.5, 0.6, [90, 110])])
    assert 'says of 199 of 200 texts "yes" with 1 of 2 seeds' in most
    (below,) = remarks([taught(0.7, 0.6, [90, 110])])
    assert below.startswith("a: on the device its accuracy, 0.600 ± 0.020, lies below chance, 0.700")
    assert remarks([taught(0.7, 0.67, [90, 110])]) == []  # within two standard errors
    assert remarks([taught(0.7, 0.6, [90, 110], label_range=[0.0, 1.0])]) == []


@pytest.mark.parametrize(("share", "classes", "said"), [(0.74, 2, False), (0.76, 2, True), (0.55, 12, True)])
def test_macro_f1_stands_beside_accuracy_where_one_class_dominates(share: float, classes: int, said: bool) -> None:
    labels = np.r_[np.zeros(round(100 * share), np.int64), np.arange(100 - round(100 * share)) % (classes - 1) + 1]
    test = Corpus([str(i) for i in range(100)], labels, tuple(map(str, range(classes))))
    nobody = Holders(np.zeros(1, np.int64), np.zeros(1, np.int64))
    held = Held(test, test, nobody, nobody, np.arange(100))
    assert measures_of(Data(), held) == (*(("macro-f1",) if said else ()), "by-class")
    assert measures_of(Data(measures=("macro-f1", "auroc")), held) == ("macro-f1", "auroc", "by-class")


# --- the figure of accuracy against ε


def arm(
    name: str,
    accuracy: float,
    *,
    reference: bool = False,
    shuffled: float | None = None,
    public: Sequence[str] = (),
    **budget: Any,
) -> Any:
    budget = {"worst_case_epsilon": float("inf"), "label_epsilon": None} | budget
    user = budget["worst_case_epsilon"] + (budget["label_epsilon"] or 0)
    ladder = users(user, public=public, delta=1e-6)
    ladder += [] if shuffled is None else [{"rung": "shuffled", "epsilon": shuffled, "delta": 1e-6}]
    return {
        "name": name,
        "reference": reference,
        "accuracy_clean_test": accuracy,
        "accuracy_clean_test_se": 0.01,
        "ladder": ladder,
        "budget": budget,
    }


def run(seed: int, more: float = 0.0) -> dict[str, Any]:
    return {
        "name": "small",
        "seed": seed,
        "arms": [
            arm("no noise", 0.9 + more, reference=True),
            arm("next to no noise", 0.95 + more, reference=True, central_epsilon=1000.0),
            arm("one vector, ε = 1", 0.8 + more, shuffled=1.0, worst_case_epsilon=6.0),
            arm("one vector, ε = 4", 0.85 + more, shuffled=4.0, worst_case_epsilon=10.0),
            arm("DP-SGD, ε = 1", 0.87 + more, reference=True, central_epsilon=1.0),
            arm("as published: Laplace, ε = 10, label ε = 1", 0.6 + more, worst_case_epsilon=20.0, label_epsilon=1.0),
        ],
    }


def drawn(axes: Any) -> dict[str, list[tuple[float, float]]]:
    return {line.get_label(): list(zip(*line[0].get_data(), strict=True)) for line in axes.containers}


def near(epsilon: float, accuracy: float) -> tuple[Any, Any]:
    """Lines of an equal ε stand side by side."""
    return pytest.approx(epsilon, rel=0.06), pytest.approx(accuracy)


def test_each_arm_lies_at_the_epsilon_of_its_trust() -> None:
    figure = frontier_figure([run(1, -0.01), run(2, 0.01)])
    central, local = map(drawn, figure.axes)
    assert central["one vector"] == [near(1.0, 0.8), near(4.0, 0.85)]
    assert central["DP-SGD"] == [near(1.0, 0.87)]
    assert set(central) == {"one vector", "DP-SGD"}
    assert [x for x, _ in local["one vector"]] == [6.0, 10.0]
    assert local["as published: Laplace"] == [(21.0, pytest.approx(0.6))] and "DP-SGD" not in local
    told = [text.get_text() for text in figure.legends[0].get_texts()]
    assert told == [
        "one vector (central ε: trusting the shuffler)",
        "DP-SGD (central ε: trusting the server)",
        "as published: Laplace (no central ε)",
        "no noise (not private)",
        "next to no noise (not private)",
    ]
    assert "2 seeds" in figure.axes[0].get_title(loc="left")
    assert "seed 1" in frontier_figure([run(1)]).axes[0].get_title(loc="left")


def test_the_legend_says_what_is_not_private_and_what_is_public() -> None:
    """A reference or not: what has no finite ε is not private. A row of public labels shares no line with another."""
    clear, hidden = arm("in clear", 0.9), arm("one vector, ε = 1", 0.8, shuffled=1.0, worst_case_epsilon=6.0)
    public = arm("one vector, ε = 4", 0.85, shuffled=4.0, worst_case_epsilon=10.0, public=["label"])
    shown = frontier_figure([run(1) | {"arms": [clear, hidden, public]}]).legends[0].get_texts()
    assert [text.get_text() for text in shown] == [
        "one vector (central ε: trusting the shuffler)",
        "one vector, label public (central ε: trusting the\nshuffler)",
        "in clear (not private)",
    ]


def price(arm: dict[str, object]) -> float | None:
    return trust.local(ArmResult.from_dict(arm))


def test_a_price_is_of_those_who_trust_nobody() -> None:
    assert [trust.local(each) for each in arms_of(run(1))] == [None, None, 6.0, 10.0, None, 21.0]


def test_a_price_is_of_all_records_of_a_user() -> None:
    """Who holds three records releases three embeddings and labels: 3 × 21, while the budget is of one."""
    holder = arm("as published", 0.6, worst_case_epsilon=20.0, label_epsilon=1.0)
    several = ladder(
        embedding_mechanism({"mechanism": "planar-laplace", "epsilon": 10.0}, 16),
        RandomizedResponse(1.0, classes=2),
        records=3,
        users=None,
        delta=1e-6,
    )
    assert price(holder | {"ladder": [rung.to_dict() for rung in several]}) == pytest.approx(63.0)
    unknown = {"rung": "user", "epsilon": None, "worst_case": None, "delta": 1e-6}
    assert price(holder | {"ladder": [unknown]}) is None


def test_infinity_as_a_file_has_it_is_no_price() -> None:
    clear = {"rung": "user", "epsilon": "inf", "worst_case": "inf", "delta": 1e-6}
    open_ = arm("in clear", 0.9, worst_case_epsilon=1.0) | {"ladder": [clear]}
    assert price(open_) is None
    open_["ladder"][0] = clear | {"epsilon": 7.0}  # Gaussian noise
    assert price(open_) == 7.0


def test_a_price_is_that_of_the_dearest_run() -> None:
    first, second = run(1), run(2)
    second["arms"][2]["ladder"] = [{"rung": "shuffled", "epsilon": 1.5, "delta": 1e-6}]  # and no price of its user's
    figure = frontier_figure([first, second])
    central, local = map(drawn, figure.axes)
    assert central["one vector"][0] == near(1.5, 0.8) and [x for x, _ in local["one vector"]] == [10.0]
    second["arms"][3]["ladder"] = []  # of 4.0, nobody was hidden there
    assert [x for x, _ in drawn(frontier_figure([first, second]).axes[0])["one vector"]] == [near(1.5, 0)[0]]
