"""The parts of a study from files: which class is which, and that a run says it."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulations.corpora.builtin import GENRES, SENTIMENTS
from simulations.corpora.builtin import builtin as builtin_corpus
from simulations.corpora.classes import described, matched
from simulations.errors import UserError
from simulations.experiment import Experiment, load, to_toml
from simulations.run.report import data_notes
from tests.support.studies import files_study, split_of


def reviews(folder: Path, names: dict[str, str]) -> None:
    """Built-in reviews as somebody's files, their labels called otherwise."""
    corpus = builtin_corpus(train=40, test=20, public=1, seed=9)
    for name in ("train", "test"):
        part = getattr(corpus, name)
        rows = (f"{names[SENTIMENTS[label]]}\t{text}" for label, text in zip(part.labels, part.texts, strict=True))
        (folder / f"{name}.tsv").write_text("\n".join(["label\ttext", *rows]) + "\n", encoding="utf-8")


def study(folder: Path, **public: object) -> Experiment:
    data = {"public-size": 30, "public": {"split": "built-in", **public}}
    return files_study(folder, data=data, population={"users": 30})


RENAMED = {"positive": "favourable", "negative": "unfavourable"}


def test_renamed_classes_are_asked_about_and_then_paired_as_said_and_printed(tmp_path: Path) -> None:
    """By the order of their names, favourable would be what the public reviews call negative."""
    reviews(tmp_path, RENAMED)
    with pytest.raises(UserError, match=r"data\.public\.classes: is missing.*favourable, unfavourable"):
        split_of(study(tmp_path))
    said = {"favourable": "positive", "unfavourable": "negative"}
    experiment = study(tmp_path, classes=said)
    split, about = split_of(experiment)
    plain = builtin_corpus(public=30, train=1, test=1, seed=1).public
    called = [RENAMED[SENTIMENTS[label]] for label in plain.labels]
    assert [split.public.classes[label] for label in split.public.labels] == called
    assert about["classes"] == said
    assert data_notes(about) == [
        "Classes of the data, and of the public part: favourable is positive, unfavourable is negative."
    ]
    (tmp_path / "e.toml").write_text(to_toml(experiment), encoding="utf-8")
    assert load(tmp_path / "e.toml") == experiment


def test_without_public_labels_nothing_is_paired(tmp_path: Path) -> None:
    reviews(tmp_path, RENAMED)
    split, about = split_of(study(tmp_path, labels=False))
    assert "classes" not in about and not split.public.labels.any() and data_notes(about) == []


@pytest.mark.parametrize(
    ("public", "line"),
    [
        ({"classes": {"a": 1}}, r"data.public\.classes: must be a table"),
        ({"classes": {"a": "negative", "b": "negative"}}, r"data.public\.classes: must be a table"),
        ({"classes": {"a": "negative"}, "labels": False}, r"data.public\.classes: goes with"),
        ({"classes": {"a": "negative"}, "split": "random"}, r"data.public\.classes: goes with"),
    ],
)
def test_a_mapping_that_maps_nothing(tmp_path: Path, public: dict, line: str) -> None:
    with pytest.raises(UserError, match=line):
        study(tmp_path, **public)


# --- public text from elsewhere


def elsewhere(folder: Path, **public: object) -> Experiment:
    given = {"split": "file", "file": str(folder / "public.tsv"), **public}
    return study(folder, **{name: value for name, value in given.items() if value is not None})


def public_file(folder: Path) -> None:
    corpus = builtin_corpus(train=1, test=1, public=50, seed=3).public
    rows = (f"{text}\t{SENTIMENTS[label]}" for label, text in zip(corpus.labels, corpus.texts, strict=True))
    (folder / "public.tsv").write_text("\n".join(["said\tverdict", *rows]) + "\n", encoding="utf-8")


def test_public_text_from_a_file_is_a_part_of_its_own(tmp_path: Path) -> None:
    """So many rows of it, drawn by the seed, with labels by their names; the users keep all of theirs."""
    reviews(tmp_path, RENAMED)
    public_file(tmp_path)
    said = {"favourable": "positive", "unfavourable": "negative"}
    experiment = elsewhere(tmp_path, text="said", label="verdict", classes=said)
    assert experiment.data.elsewhere
    split, about = split_of(experiment)
    assert (len(split.public), len(split.train), about["classes"]) == (30, 40, said)
    lines = [line.split("\t") for line in (tmp_path / "public.tsv").read_text().splitlines()[1:]]
    truth = {text: RENAMED[label] for text, label in lines}
    pairs = zip(split.public.texts, split.public.labels, strict=True)
    assert all(truth[str(text)] == split.public.classes[label] for text, label in pairs)
    with pytest.raises(UserError, match=r"data\.public\.classes: is missing.*the public part's negative, positive"):
        split_of(elsewhere(tmp_path, text="said", label="verdict"))
    (tmp_path / "e.toml").write_text(to_toml(experiment), encoding="utf-8")
    assert load(tmp_path / "e.toml") == experiment


def test_public_lines_without_labels(tmp_path: Path) -> None:
    reviews(tmp_path, RENAMED)
    (tmp_path / "wiki.txt").write_text("text\none text\nanother text\na third\n", encoding="utf-8")
    split, about = split_of(elsewhere(tmp_path, file=str(tmp_path / "wiki.txt"), text="text", labels=False))
    assert list(split.public.texts) == ["one text", "another text", "a third"]
    assert split.public.classes == split.train.classes and "classes" not in about


@pytest.mark.parametrize(
    ("public", "says"),
    [
        ({"file": None}, r'data\.public\.file: goes with split = "file"'),
        ({"hub": "glue/sst2"}, r'data\.public\.hub: goes with split = "hub"'),
        ({"part": "train"}, r'data\.public\.part: goes with split = "hub"'),
        ({"fraction": 0.1}, r"data\.public\.fraction: is of the users' data"),
        ({"split": "built-in", "file": None}, r'data\.public: part, text and label go with split = "file"'),
        ({"file": "nowhere.tsv"}, "nowhere.tsv"),
        ({"text": "sayd"}, 'has no column "sayd"; did you mean "said"'),
        ({"text": 1}, r"data\.public\.text: must be a column's name, got 1; .* needs a header line"),
    ],
)
def test_a_public_part_that_cannot_be_is_one_line(public: dict, says: str, tmp_path: Path) -> None:
    reviews(tmp_path, RENAMED)
    public_file(tmp_path)
    given = {"text": "said", "label": "verdict", **public}
    with pytest.raises(UserError, match=says) as caught:
        split_of(elsewhere(tmp_path, **given))
    assert "\n" not in str(caught.value)


# --- which class is which


def test_names_and_published_numbers_say_it_and_no_order_does() -> None:
    assert matched(("0", "1"), SENTIMENTS, None) == {"0": "negative", "1": "positive"}
    assert matched(("1", "0"), SENTIMENTS, None) == {"1": "positive", "0": "negative"}
    assert matched(("Positive", "Negative"), SENTIMENTS, None) == {"Positive": "positive", "Negative": "negative"}
    shuffled = sorted(GENRES)
    assert matched(shuffled, GENRES, None) == {name: name for name in shuffled}


@pytest.mark.parametrize(
    "names",
    [
        ("favourable", "unfavourable"),
        ("1", "2"),
        ("-1", "1"),
        ("bad", "positive"),
        ("negative", "neutral", "positive"),
        ("positive", "Positive"),
    ],
)
def test_other_names_are_asked_about(names: tuple[str, ...]) -> None:
    with pytest.raises(UserError, match=r"data.public\.classes: is missing: .* which is which") as caught:
        matched(names, SENTIMENTS, None)
    assert "\n" not in str(caught.value)


def test_what_is_said_counts_and_must_say_all() -> None:
    said = {"unfavourable": "negative", "favourable": "positive"}
    assert matched(("favourable", "unfavourable"), SENTIMENTS, said) == said
    turned = {"0": "positive", "1": "negative"}
    assert matched(("0", "1"), SENTIMENTS, turned) == turned  # somebody's own data may mean it
    for bad in (
        {"favourable": "positive"},
        said | {"so": "so"},
        {"unfavourable": "negative", "favourable": "good"},
        {"unfavorable": "negative", "favourable": "positive"},
    ):
        with pytest.raises(UserError, match=r"data\.public\.classes: must name each class once"):
            matched(("favourable", "unfavourable"), SENTIMENTS, bad)


@pytest.mark.parametrize(
    "classes, texts",
    [
        (("card_arrival", "Refund-not_showing"), [("card arrival",), ("Refund not showing",)]),
        (("negative", "positive"), [("negative",), ("positive",)]),
        (("0", "1"), None),
        (("class 1", "class 2"), None),
        (("label_a", "label_b"), None),
        (("x", "y"), None),
        (("sports", "7"), None),
    ],
)
def test_names_of_words_describe_classes(classes, texts) -> None:
    assert described(classes, "names", numbers=False, pairs=False) == texts
    for nothing in ({"numbers": True, "pairs": False}, {"numbers": False, "pairs": True}):
        assert described(classes, "names", **nothing) is None
    assert described(classes, "none", numbers=False, pairs=False) is None


def test_a_table_describes_each_class_once() -> None:
    said = {"1": ("great", "good"), "0": ("terrible",)}
    assert described(("0", "1"), said, numbers=False, pairs=False) == [("terrible",), ("great", "good")]
    with pytest.raises(UserError, match=r"data\.class-descriptions: must name each class once: the data have 0, 1, 2"):
        described(("0", "1", "2"), said, numbers=False, pairs=False)
