"""Means over runs of one study."""

import json

import pytest

from simulations.commands.cli import main
from simulations.errors import UserError
from simulations.study.summary import summarize


def run(tmp_path, seed, accuracy, name="study", worst=31.4):
    arm = {
        "name": "a", "accuracy": accuracy, "accuracy_clean_test": 0.9, "dim": 16, "delivered": 2000,
        "reference": False, "budget": {"worst_case_epsilon": worst, "label_epsilon": None},
    }  # fmt: skip
    folder = tmp_path / f"{name}-{seed}"
    folder.mkdir(exist_ok=True)
    (folder / "results.json").write_text(json.dumps({"name": name, "seed": seed, "arms": [arm], "way_sentence": None}))
    return folder


def test_mean_and_standard_error(tmp_path):
    folders = [run(tmp_path, s, a) for s, a in ((1, 0.7), (2, 0.8), (3, 0.9))]
    line = summarize(folders).splitlines()[4]
    # standard deviation 0.1, by hand: 0.1 / sqrt(3) = 0.058
    assert line == "| a | 0.800 ± 0.058 | – | 0.900 ± 0.000 | 16 | 31.4 | – | 2,000 |"


def test_what_users_added_is_paired_by_run_and_the_figure_is_drawn(tmp_path):
    folders = []
    for seed, alone, users in ((1, 0.60, 0.70), (2, 0.70, 0.78), (3, 0.80, 0.92)):
        folder = run(tmp_path, seed, users)
        results = json.loads((folder / "results.json").read_text())
        arm = results["arms"][0] | {"mechanism": "purkayastha", "epsilon": 4.0, "way": "release-once"}
        other = arm | {"name": "public-only, other ε", "epsilon": 1.0, "accuracy": 0.1, "way": "public-only"}
        base = arm | {"name": "public-only", "accuracy": alone, "way": "public-only"}
        (folder / "results.json").write_text(json.dumps(results | {"arms": [other, base, arm]}))
        folders.append(folder)
    lines = summarize(folders).splitlines()
    # gains .10, .08, .12: their deviation, 0.02 / sqrt(3) = 0.012, not that of the accuracies
    assert "| 0.800 ± 0.064 | +0.100 ± 0.012 |" in lines[6] and "| – |" in lines[4]
    for name, start in (("a.png", b"\x89PNG"), ("a.PDF", b"%PDF-"), ("a.svg", b"<?xml")):
        picture = tmp_path / name
        made = []
        for _ in range(2):
            assert main(["summarize", *map(str, folders), "--figure", str(picture)]) == 0
            made.append(picture.read_bytes())
        assert made[0].startswith(start) and made[0] == made[1]
    assert b"public-only, other" in made[0]  # text is text


@pytest.mark.parametrize("name", ["means", "means.jpg", "means.pdf.txt"])
def test_a_figure_of_no_known_kind_is_refused(name, tmp_path, capsys):
    assert main(["summarize", str(run(tmp_path, 1, 0.7)), "--figure", str(tmp_path / name)]) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.endswith(f"{name}: must end in .pdf, .svg or .png\n")
    assert not (tmp_path / name).exists()


def test_one_run_has_no_error_and_infinity_is_shown(tmp_path):
    assert "| a | 0.700 | – | 0.900 | 16 | ∞ | – |" in summarize([run(tmp_path, 1, 0.7, worst="inf")])


def test_runs_that_do_not_belong_together_are_refused(tmp_path):
    one = run(tmp_path, 1, 0.7)
    with pytest.raises(UserError, match="same seed"):
        summarize([one, one])
    with pytest.raises(UserError, match="not runs of one study"):
        summarize([one, run(tmp_path, 2, 0.7, name="other")])


def test_a_folder_without_results_is_one_line(tmp_path, capsys):
    assert main(["summarize", str(tmp_path / "nothing")]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "nothing" in error
