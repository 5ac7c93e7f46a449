"""Means over runs of one experiment."""

import json

import pytest
import tomli_w

from benchmarks.summary import figure, main, summarize
from simulations.errors import UserError
from tests.support.results import user

STUDY = {"name": "study", "data": {"path": "a"}, "arm": [{"name": "a", "arm": {"embedding": {"epsilon": 1.0}}}]}


def arm(name, accuracy, worst=31.4, error=0.01, public=()):
    return {
        "name": name,
        "accuracy": accuracy,
        "accuracy_se": error,
        "accuracy_clean_test": 0.9,
        "accuracy_clean_test_se": None,
        "dim": 16,
        "delivered": 2000,
        "reference": False,
        "ladder": None if worst is None else user(worst, public=public),
        "budget": {"worst_case_epsilon": worst, "label_epsilon": None},
    }


def run(tmp_path, seed, accuracy, *, study=STUDY, arms=None, differences=(), **options):
    results = {
        "name": study["name"],
        "seed": seed,
        "arms": arms or [arm("a", accuracy, **options)],
        "way_sentence": None,
        "differences": list(differences),
    }
    folder = tmp_path / f"{len(list(tmp_path.iterdir()))}"
    folder.mkdir()
    (folder / "results.json").write_text(json.dumps(results))
    (folder / "experiment.toml").write_text(tomli_w.dumps(study | {"seed": seed}))
    return folder


def test_mean_and_standard_errors(tmp_path):
    """Over seeds, and in brackets by test text, which more seeds do not make smaller."""
    folders = [run(tmp_path, s, a, error=e) for s, a, e in ((1, 0.7, 0.01), (2, 0.8, 0.02), (3, 0.9, 0.03))]
    lines = summarize(folders).splitlines()
    assert lines[0] == "study, 3 seeds (1, 2, 3): mean ± standard error over seeds (and by test text)"
    # standard deviation 0.1, by hand: 0.1 / sqrt(3) = 0.058
    assert lines[4] == "| a | 0.800 ± 0.058 (0.020) | – | 0.900 ± 0.000 | 16 | 31.4 | 2,000 |"


def pair(one, less, difference, error, users_added=False):
    said = {"difference": difference, "error": error}
    return {"arm": one, "less": less, "users_added": users_added, "sanitized": said, "on_device": None}


@pytest.fixture
def three(tmp_path):
    folders = []
    for seed, base, users in ((1, 0.60, 0.70), (2, 0.70, 0.78), (3, 0.80, 0.92)):
        arms = [arm("other", 0.1), arm("public-only", base), arm("users", users)]
        differences = [
            pair("public-only", "other", base - 0.1, 0.03),
            pair("users", "other", users - 0.1, 0.03),
            pair("users", "public-only", users - base, 0.004, users_added=True),
        ]
        folders.append(run(tmp_path, seed, 0.0, arms=arms, differences=differences))
    return folders


def test_what_users_added_and_every_gap_is_paired_by_run(three):
    text = summarize(three)
    # gains .10, .08, .12: their deviation, 0.02 / sqrt(3) = 0.012, not that of the accuracies
    assert "| users | 0.800 ± 0.064 (0.010) | +0.100 ± 0.012 (0.004) |" in text
    assert "| public-only | 0.700 ± 0.058 (0.010) | – |" in text
    assert "| 3 users | +0.700 ± 0.064 (0.030) | +0.100 ± 0.012 (0.004) |" in text
    assert summarize(three[:1]).startswith("study, 1 seed (1): mean (standard error by test text)\n")
    assert "| +0.100 (0.004) |" in summarize(three[:1])


def test_a_figure_is_what_its_suffix_says(three, tmp_path):
    for name, start in (("a.png", b"\x89PNG"), ("a.PDF", b"%PDF-"), ("a.svg", b"<?xml")):
        picture = tmp_path / name
        made = []
        for _ in range(2):
            assert main([*map(str, three), "--figure", str(picture)]) == 0
            made.append(picture.read_bytes())
        assert made[0].startswith(start) and made[0] == made[1]
    assert b"public-only" in made[0]  # text is text


def test_a_figure_says_of_how_many_seeds_it_is(three):
    titles = [figure(runs).axes[0].get_title(loc="left") for runs in (three, three[:1])]
    assert titles == ["study: mean ± standard error over 3 seeds", "study: seed 1"]


@pytest.mark.parametrize("name", ["means", "means.jpg", "means.pdf.txt"])
def test_a_figure_of_no_known_kind_is_refused(name, tmp_path, capsys):
    assert main([str(run(tmp_path, 1, 0.7)), "--figure", str(tmp_path / name)]) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.endswith(f"{name}: must end in .pdf, .svg or .png\n")
    assert not (tmp_path / name).exists()


def test_one_run_has_no_error_over_seeds_and_infinity_is_shown(tmp_path):
    said = summarize([run(tmp_path, 1, 0.7, worst="inf")])
    assert "| a † | 0.700 (0.010) | – | 0.900 | 16 | ∞ |" in said and "† not private" in said


def test_what_users_paid_is_that_of_the_dearest_run(tmp_path):
    dear = arm("a", 0.7) | {"ladder": user(40.0, worst_case="inf", delta=1e-6)}
    none = arm("a", 0.7, worst=None)
    for arms in ([arm("a", 0.7), dear, none], [dear, none, arm("a", 0.7)]):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        runs = [run(folder, seed, 0, arms=[each]) for seed, each in enumerate(arms)]
        assert "| 16 | 40 (δ 1e-06) | 2,000 |" in summarize(runs)
    endless = [run(tmp_path, seed, 0.7, worst=worst) for seed, worst in ((1, 31.4), (2, "inf"))]
    assert "| 16 | ∞ |" in summarize(endless) and "| a † |" in summarize(endless)


def test_what_is_declared_public_is_named_in_the_row(tmp_path):
    folder = run(tmp_path, 1, 0, arms=[arm("a", 0.7, public=["label"]), arm("b", 0.7)])
    said = summarize([folder])
    assert "| 16 | 31.4 ‡ | 2,000 |" in said and "| 16 | 31.4 | 2,000 |" in said
    ticks = figure([folder]).axes[0].get_yticklabels()
    assert [tick.get_text() for tick in ticks] == ["a (label public)", "b"]


EPSILON = [{"name": "a", "arm": {"embedding": {"epsilon": 2.0}}}]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": "other"}, "name is 'other' there, and 'study' here"),
        ({"data": {"path": "a", "test-limit": 5}}, "data.test-limit is 5 there, and not given here"),
        ({"arm": EPSILON}, "arm.0.arm.embedding.epsilon is 2.0 there, and 1.0 here"),
        ({"arm": EPSILON * 2}, "arm is 2 entries there, and 1 entries here"),
    ],
)
def test_runs_of_different_experiments_are_refused(change, words, tmp_path, capsys):
    """Names of studies and arms may be the same: what counts is the experiment as it was resolved."""
    one, other = run(tmp_path, 1, 0.7), run(tmp_path, 2, 0.7, study=STUDY | change)
    assert main([str(one), str(other)]) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1 and words in said.err and str(other) in said.err


def test_the_same_seed_twice_is_refused(tmp_path):
    one = run(tmp_path, 1, 0.7)
    with pytest.raises(UserError, match="same seed"):
        summarize([one, one])


@pytest.mark.parametrize("missing", ["results.json", "experiment.toml"])
def test_a_folder_without_results_is_one_line(missing, tmp_path, capsys):
    folder = run(tmp_path, 1, 0.7)
    (folder / missing).unlink()
    assert main([str(folder)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and missing in error


def test_whom_users_trust_stands_where_the_server_is_trusted(tmp_path):
    trusting = arm("b", 0.7, worst="inf") | {"reference": True}
    trusting["budget"] |= {"central_epsilon": 1.0, "central_delta": 1e-6}
    table = summarize([run(tmp_path, 1, 0, arms=[arm("a", 0.6), trusting])]).splitlines()
    assert table[2].endswith("| ε, training | central ε | trusts | users |")
    assert table[4].endswith("| 31.4 | – | nobody | 2,000 |") and table[5].endswith("| ∞ | 1 | the server | 2,000 |")
    assert len({line.count("|") for line in table[2:6]}) == 1
    assert "trusts" not in summarize([run(tmp_path, 1, 0.5)])


def test_a_bar_in_a_name_is_no_column(tmp_path):
    lines = summarize([run(tmp_path, 1, 0.7, arms=[arm("a | b", 0.7)])]).splitlines()
    assert lines[4].startswith("| a \\| b | 0.700")


def test_runs_of_several_encoders_have_a_table_each(tmp_path):
    small, large = (STUDY | {"encoder": {"model": name}} for name in ("minilm", "mpnet"))
    folders = [run(tmp_path, seed, a, study=s) for s, a in ((small, 0.7), (large, 0.8)) for seed in (1, 2)]
    said = summarize(folders)
    assert said.count("| arm |") == 2
    assert said.index("Encoder minilm") < said.index("0.700") < said.index("Encoder mpnet") < said.index("0.800")
    with pytest.raises(UserError, match="encoder: runs of each need the same seeds"):
        summarize(folders[:3])
    with pytest.raises(UserError, match="a figure of several encoders needs arms with a central ε"):
        figure(folders)
