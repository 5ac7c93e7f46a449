"""Studies in files: what runs they stand for, and what is refused and how."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulations.experiment import load, trial_text_of
from simulations.sweep.definition import bundled, load_study
from tests.support.commands import refused

BASE = """
name = "small"
[policy]
embedding = 40.0
label = 5.0
[[arm]]
name = "a, ε = 10"
embedding = { mechanism = "purkayastha", epsilon = 10.0, dim = 16 }
label = { mechanism = "randomized-response", epsilon = 2.0 }
[[arm]]
name = "b"
reference = true
embedding = { mechanism = "identity", dim = 16 }
"""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("small.toml").write_text(BASE, encoding="utf-8")


def written(more: str, *, name: str = 'name = "s"\n', base: str = 'experiment = "small.toml"\n') -> str:
    Path("s.toml").write_text(name + base + more, encoding="utf-8")
    return "s.toml"


def test_every_point_with_every_seed() -> None:
    study = load_study(
        written(
            "seeds = [3, 5]\n[set]\nshuffle.minimum-users = 50\n"
            '[grid]\npopulation.users = [200, 300]\n"training.maps" = ["learned", "principal-components"]\n'
        )
    )
    assert study.axes == ("population.users", "training.maps") and len(study.runs) == 8
    results = [(e.population.users, e.training.maps, e.seed) for e in (run.experiment for run in study.runs)]
    assert results == [(u, m, s) for u in (200, 300) for m in ("learned", "principal-components") for s in (3, 5)]
    assert all(run.experiment.shuffle.minimum_users == 50 for run in study.runs)
    assert len({run.name for run in study.runs}) == 8 and study.runs[0].name.startswith("users-200-maps-learned-")
    long = load_study(written(f'[grid]\ntext.prompt = ["{"请" * 200} {{text}}"]\ntext.generator = ["m"]\n')).runs[0]
    assert len(long.name) < 100 and long.name.isascii()
    (alone,) = load_study(written("")).runs
    assert alone.name == "seed-1" and alone.experiment == load("small.toml")


def test_a_key_of_an_arm_makes_arms_of_one_run() -> None:
    (run,) = load_study(
        written('[grid]\n"arm.a, ε = 10.embedding.epsilon" = [1.0, 2.0]\narm.0.label.epsilon = [0.5, 5.0]\n')
    ).runs
    names = [arm.name for arm in run.experiment.arms]
    assert names == [*(f"a, ε = {e}, label ε = {label}" for e in (1.0, 2.0) for label in (0.5, 5.0)), "b"]
    specs = [(arm.embedding, arm.label) for arm in run.experiment.arms[:-1]]
    pairs = [(e["epsilon"], label["epsilon"]) for e, label in specs if e and label]
    assert pairs == [(e, label) for e in (1.0, 2.0) for label in (0.5, 5.0)]
    assert run.point == {}


def test_keys_that_go_together_and_arms_of_the_studys_own() -> None:
    study = load_study(
        written("""
[[arm]]
name = "one"
embedding = { mechanism = "purkayastha", epsilon = 1.0, dim = 16 }
label = { mechanism = "randomized-response", epsilon = 2.0 }
[grid]
budget = [
  { "arm.one.embedding.epsilon" = 4.0, "arm.one.label.epsilon" = 1.0, population.users = 200 },
  { "arm.one.embedding.epsilon" = 2.0, "arm.one.label.epsilon" = 3.0, population.users = 400 },
]
""")
    )
    assert study.axes == ("arm.0.embedding.epsilon", "arm.0.label.epsilon", "population.users")
    specs = [(run.experiment.arms[0], run.experiment.population.users) for run in study.runs]
    assert [(a.name, a.embedding and a.embedding["epsilon"], a.label and a.label["epsilon"], n) for a, n in specs] == [
        ("one", 4.0, 1.0, 200),
        ("one", 2.0, 3.0, 400),
    ]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("sedes = [1]", 'sedes: unknown key; did you mean "seeds"?'),
        ("seeds = [1, 1]", "seeds: one is there twice"),
        ('arms = ["c"]', "arms: there is no arm 'c'"),
        ("[grid]\npopulation.users = [300, 300]", "grid.population.users: one value is there twice"),
        ("[grid]\nseed = [1, 2]", "grid.seed: give seeds"),
        ("[grid]\narm.c.embedding.epsilon = [1]", "grid.arm.c.embedding.epsilon: there is no such arm"),
        ("[grid]\nx = [1, { seed = 2 }]", "grid.x: must be values, or tables of keys"),
        ("[grid]\npopulation.user = [300]", "population.user = 300: small.toml: population.user: unknown key; did you"),
        ("[grid]\narm.0.embedding.epsilon = [100.0]", "every point: small.toml: arm"),
        (f"seeds = {list(range(200))}\n[grid]\npopulation.users = {list(range(200, 251))}", "the most"),
    ],
)
def test_mistakes_are_one_line_that_names_the_point(more: str, words: str) -> None:
    line = refused("^s.toml: ", load_study, written(more))
    assert words in line


def test_paths_that_are_no_sweeps() -> None:
    Path("odd.toml").write_text("name = \n")
    refused("neither a file nor a bundled sweep", load_study, "gone.toml")
    refused("is not valid TOML", load_study, "odd.toml")
    refused("experiment: must be given", load_study, written("", base=""))
    refused(r"nothing\.toml: there is no such file", load_study, written("", base='experiment = "nothing.toml"\n'))


def test_bundled_sweeps_load_and_name_the_models_that_their_arms_read() -> None:
    for name in bundled():
        runs = load_study(name).runs
        assert runs
        for experiment in (run.experiment for run in runs):
            texts = [trial_text_of(arm) for arm in experiment.arms if arm.text is not None]
            assert experiment.text.masked_lm != "none" or not any(text.word.reads for text in texts)
