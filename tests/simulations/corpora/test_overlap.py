"""Overlap of the parts of the data, and the splits that avoid it."""

from __future__ import annotations

import numpy as np
import pytest

from simulations.corpora.builtin import builtin
from simulations.corpora.corpus import Corpus, Split
from simulations.corpora.files import read_files
from simulations.corpora.overlap import compared, normalized
from simulations.corpora.splits import random_split, split_by_sentence, split_by_text, stratified
from tests.support.commands import refused
from tests.support.paths import DATA

SST2 = DATA / "sst2"
SENTENCE = "the of film a slow story with wit and no heart it never quite ends where one hoped but charm wins"


def corpus(texts: list, users: list[str] | None = None) -> Corpus:
    return Corpus(texts, np.arange(len(texts)) % 2, ("0", "1"), users=users)


def test_letters_with_their_marks_and_digits_make_a_text() -> None:
    assert normalized("  A “fine” Film, of 1999!") == normalized("a fine\tfilm of 1999") == "a fine film of 1999"
    assert normalized("Ｃａｆé") == "café" and normalized(":-)") == ":-)" and normalized("İ") == normalized("i̇")
    assert normalized(("Who?", "Ann.")) == "who\nann" != normalized("who ann")
    for sign in ("\u200b", "\u00ad", "\ufeff", "\u034f", "\ufe0f", "\U000e0061"):
        assert normalized(sign.join(SENTENCE)) == SENTENCE
    assert normalized("मैं!") == "मैं" != normalized("में") and normalized("ไป่") != normalized("ไป")
    assert normalized("किताब, दो") == "किताब दो" and normalized("x̂ ~̂ y") == "x̂ y" and normalized("❤️") == "❤"


def test_all_parts_are_compared_and_rows_are_counted() -> None:
    long = "it never quite ends where one hoped, but its charm wins in the end"
    split = Split(
        public=corpus(["A fine film.", long, "of its own"], [*"abe"]),
        train=corpus(["a fine film", "a fine film", "quite another"], [*"acc"]),
        test=corpus(["A FINE FILM", "a  fine film!", long.replace("charm", "charms"), "new"], [*"dcad"]),
    )
    result, repeated = compared(split, people=True)
    counted = [(pair.of, pair.within, pair.rows, pair.texts, pair.users) for pair in result]
    assert counted == [("public", "train", 3, 1, 1), ("test", "train", 4, 2, 2), ("test", "public", 4, 2, 1)]
    assert repeated == {"public": 0, "train": 1, "test": 1} and all(result)
    assert str(result[2]) == "2 of 4 test texts are in public, 1 user is in test and public"
    result, repeated = compared(builtin(public=150, train=400, test=100, seed=3), people=True)
    assert not any(pair.texts for pair in result) and not any(repeated.values())
    assert result[1].users and not result[0].users


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.skipif(not SST2.is_dir(), reason=f"{SST2} is missing: SST-2 is not part of the repository")
def test_sst2_as_the_bundled_experiments_split_it() -> None:
    train, test = read_files(SST2, "train.tsv", "dev.tsv", text="sentence", label="label")
    public, private, _ = split_by_sentence(train, 0.05, 1)
    result, _ = compared(Split(public, private, test), people=True)
    assert [pair.texts for pair in result] == [9, 1, 0]


# --- splits


def leaks(one: Corpus, other: Corpus) -> set[tuple[str, ...]]:
    """Return the texts of the other part that are a run of whole tokens of this part, by brute force."""
    runs = set()
    for tokens in {tuple(text.split()) for text in one.texts}:
        runs |= {tokens[i:j] for i in range(len(tokens)) for j in range(i + 1, len(tokens) + 1)}
    return runs & {tuple(text.split()) for text in other.texts}


def test_phrases_follow_their_sentences() -> None:
    texts = ["a fine b c", "a fine", "fine b", "x y z w v", "y z w", "c", "x y", "fine", "q fine", "a fine b c "]
    public_parts = set()
    for seed in range(20):
        public, private, dropped = split_by_sentence(corpus(texts), 0.34, seed)
        assert len(public) + len(private) + dropped == len(texts)
        assert not leaks(public, private) and not leaks(private, public)
        # "fine" is in two sentences: dropped exactly where they are in different parts
        assert dropped == (("q fine" in public.texts) != ("a fine b c" in public.texts))
        public_parts.add(tuple(sorted(public.texts)))
    assert len(public_parts) == 3
    public, private, dropped = split_by_sentence(corpus(["the cattle", "the cat", "tle"]), 0.34, 0)
    assert (len(public), len(private), dropped) == (1, 2, 0)  # a part of a word is no phrase


def test_a_random_split_keeps_users_together() -> None:
    texts, users = [f"text {i}" for i in range(100)], [f"user {i % 25}" for i in range(100)]
    public, private = random_split(corpus(texts, users), 0.2, 3)
    assert (len(public), len(private)) == (20, 80) and not set(public.users) & set(private.users)
    again, other = (random_split(corpus(texts, users), 0.2, seed)[0] for seed in (3, 4))
    assert again.texts == public.texts != other.texts
    assert list(map(len, random_split(corpus(texts), 0.05, 0))) == [5, 95]
    assert len(random_split(corpus(texts), 0.0, 0)[0]) == 0
    refused(r"data.public.fraction: 1.0", split_by_sentence, corpus(["a", "b"]), 1.0, 0)
    refused("not on pairs", split_by_sentence, corpus([("a", "b")]), 0.1, 0)


@pytest.mark.parametrize("seed", range(3))
def test_a_stratified_sample_takes_its_share_of_each_class_in_any_order(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.integers(1, 60, size=rng.integers(2, 7))
    labels = np.repeat(np.arange(len(rows)), rows)
    for size in (len(rows), int(rng.integers(len(rows), len(labels) + 1)), len(labels) - 1, len(labels), 10**6):
        for order in (np.arange(len(labels)), rng.permutation(len(labels))):
            taken = stratified(labels[order], size, seed)
            assert len(set(taken.tolist())) == len(taken) == min(size, len(labels)) and (np.diff(taken) > 0).all()
            counts = np.bincount(labels[order][taken], minlength=len(rows))
            assert (counts <= rows).all() and (np.abs(counts - rows * len(taken) / len(labels)) < 1).all()
    rare = np.concatenate([np.zeros(970, np.int64), 1 + np.arange(30)])
    assert np.bincount(rare[stratified(rare, 100, seed)])[0] == 97


def annotated(*, mixed: bool = False) -> Corpus:
    """Six groups of ten users, each with 20 texts: all texts of the group or, mixed, of all texts at random."""
    rng = np.random.default_rng(3)
    rows = [
        (f"user {group} {person}", f"text {rng.integers(120) if mixed else group * 20 + text}")
        for group in range(6)
        for person in range(10)
        for text in range(20)
    ]
    return corpus([text for _, text in rows], [user for user, _ in rows])


@pytest.mark.parametrize("seed", range(3))
def test_a_split_by_text_shares_neither_users_nor_texts(seed: int) -> None:
    public, private, dropped = split_by_text(annotated(), 0.2, seed)
    assert dropped == 0 and len(public) + len(private) == 1200 and not set(public.texts) & set(private.texts)
    assert len(set(public.users)) == 10 and len(set(private.users)) == 50  # one group
    public, private, dropped = split_by_text(annotated(mixed=True), 0.2, seed)
    assert 0 < dropped < 600 and len(public) + len(private) + dropped == 1200 and len(public) > 120
    assert not set(public.texts) & set(private.texts) and not set(public.users) & set(private.users)
    assert len(set(public.users)) == 12
    alone = corpus([f"t {i // 2}" for i in range(100)])
    assert [len(part) for part in split_by_text(alone, 0.2, seed)[:2]] == [20, 80]
    assert len(split_by_text(alone, 0.0, seed)[1]) == 100
