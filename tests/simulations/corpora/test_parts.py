"""Parts of an experiment on files: public text of another source, and the correspondence of classes."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulations.corpora.builtin import GENRES, SENTIMENTS, builtin
from simulations.corpora.classes import described, matched
from simulations.experiment import Experiment, load, to_toml
from simulations.run.report import data_notes
from tests.support.commands import refused
from tests.support.studies import files_study, split_of

RENAMED = {"positive": "favourable", "negative": "unfavourable"}
CLASSES = {"favourable": "positive", "unfavourable": "negative"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Built-in reviews as files whose labels have other names, and a public file with the usual ones."""
    corpus = builtin(train=40, test=20, public=50, seed=9)
    for name, classes in (("train", RENAMED), ("test", RENAMED), ("public", {name: name for name in SENTIMENTS})):
        part = getattr(corpus, name)
        rows = (f"{classes[SENTIMENTS[label]]}\t{text}" for label, text in zip(part.labels, part.texts, strict=True))
        header = "verdict\tsaid" if name == "public" else "label\ttext"
        (tmp_path / f"{name}.tsv").write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return tmp_path


def study(folder: Path, **public: object) -> Experiment:
    public = {name: value for name, value in public.items() if value is not None}
    data = {"public-size": 30, "public": {"split": "built-in", **public}}
    return files_study(folder, data=data, population={"users": 30})


def of_file(folder: Path, **public: object) -> Experiment:
    own = {"split": "file", "file": str(folder / "public.tsv"), "text": "said", "label": "verdict"}
    return study(folder, **(own | public))


def test_renamed_classes_are_paired_as_the_file_says_and_printed(folder: Path) -> None:
    """By the order of their names, favourable would be what the public reviews call negative."""
    refused(r"data\.public\.classes: is missing.*favourable, unfavourable", split_of, study(folder))
    experiment = study(folder, classes=CLASSES)
    split, about = split_of(experiment)
    plain = builtin(public=30, train=1, test=1, seed=1).public
    names = [RENAMED[SENTIMENTS[label]] for label in plain.labels]
    assert [split.public.classes[label] for label in split.public.labels] == names
    assert data_notes(about) == [
        "Classes of the data, and of the public part: favourable is positive, unfavourable is negative."
    ]
    (folder / "e.toml").write_text(to_toml(experiment), encoding="utf-8")
    assert load(folder / "e.toml") == experiment
    split, about = split_of(study(folder, labels=False))
    assert "classes" not in about and not split.public.labels.any() and data_notes(about) == []


def test_public_rows_of_a_file_are_drawn_by_the_seed_with_labels_by_their_names(folder: Path) -> None:
    experiment = of_file(folder, classes=CLASSES)
    split, about = split_of(experiment)
    assert experiment.data.elsewhere
    assert (len(split.public), len(split.train), about["classes"]) == (30, 40, CLASSES)
    lines = [line.split("\t") for line in (folder / "public.tsv").read_text().splitlines()[1:]]
    truth = {text: RENAMED[label] for label, text in lines}
    pairs = zip(split.public.texts, split.public.labels, strict=True)
    assert all(truth[str(text)] == split.public.classes[label] for text, label in pairs)
    (folder / "wiki.txt").write_text("text\none text\nanother text\na third\n", encoding="utf-8")
    split, _ = split_of(of_file(folder, file=str(folder / "wiki.txt"), text="text", label=None, labels=False))
    assert list(split.public.texts) == ["one text", "another text", "a third"]
    assert split.public.classes == split.train.classes


def test_contradictory_keys_of_the_public_part_are_refused(folder: Path) -> None:
    for build, public, match in (
        (study, {"classes": {"a": 1}}, r"data.public\.classes: must be a table"),
        (study, {"classes": {"a": "negative", "b": "negative"}}, r"data.public\.classes: must be a table"),
        (study, {"classes": {"a": "negative"}, "labels": False}, r"data.public\.classes: goes with"),
        (study, {"classes": {"a": "negative"}, "split": "random"}, r"data.public\.classes: goes with"),
        (of_file, {"file": None}, r'data\.public\.file: goes with split = "file"'),
        (of_file, {"hub": "glue/sst2"}, r'data\.public\.hub: goes with split = "hub"'),
        (of_file, {"part": "train"}, r'data\.public\.part: goes with split = "hub"'),
        (of_file, {"fraction": 0.1}, r"data\.public\.fraction: is of the users' data"),
        (of_file, {"split": "built-in", "file": None}, r"data\.public: part, text and label go with"),
        (of_file, {"file": "nowhere.tsv"}, "nowhere.tsv"),
        (of_file, {"text": "sayd"}, 'has no column "sayd"; did you mean "said"'),
        (of_file, {"text": 1}, r"data\.public\.text: must be a column's name .*, got 1"),
        (of_file, {}, r"data\.public\.classes: is missing.*the public part's negative, positive"),
    ):
        refused(match, lambda build=build, public=public: split_of(build(folder, **public)))


def test_classes_are_matched_by_names_or_published_numbers_and_never_by_order() -> None:
    assert matched(("1", "0"), SENTIMENTS, None) == {"1": "positive", "0": "negative"}
    assert matched(("Positive", "Negative"), SENTIMENTS, None) == {"Positive": "positive", "Negative": "negative"}
    assert matched(sorted(GENRES), GENRES, None) == {name: name for name in GENRES}
    pairs = (("favourable", "unfavourable"), ("1", "2"), ("bad", "positive"), ("positive", "Positive"))
    for names in (*pairs, ("negative", "neutral", "positive")):
        refused(r"data.public\.classes: is missing: .* which is which", matched, names, SENTIMENTS, None)
    assert matched(pairs[0], SENTIMENTS, CLASSES) == CLASSES
    turned = {"0": "positive", "1": "negative"}
    assert matched(("0", "1"), SENTIMENTS, turned) == turned
    for bad in ({"favourable": "positive"}, CLASSES | {"so": "so"}, CLASSES | {"favourable": "good"}):
        refused(r"data\.public\.classes: must name each class once", matched, pairs[0], SENTIMENTS, bad)


def test_names_of_words_describe_classes_and_a_table_each_class_once() -> None:
    for classes, texts in (
        (("card_arrival", "Refund-not_showing"), [("card arrival",), ("Refund not showing",)]),
        (("0", "1"), None),
        (("class 1", "class 2"), None),
        (("label_a", "label_b"), None),
        (("sports", "7"), None),
    ):
        assert described(classes, "names", numbers=False, pairs=False) == texts
    for how, numbers, pairs in (("names", True, False), ("names", False, True), ("none", False, False)):
        assert described(SENTIMENTS, how, numbers=numbers, pairs=pairs) is None
    table = {"1": ("great", "good"), "0": ("terrible",)}
    assert described(("0", "1"), table, numbers=False, pairs=False) == [("terrible",), ("great", "good")]
    once = r"data\.class-descriptions: must name each class once: the data have 0, 1, 2"
    refused(once, described, ("0", "1", "2"), table, numbers=False, pairs=False)
