"""No public phrase inside a private sentence, nor the other way round."""

import numpy as np
import pytest

from simulations.corpora.corpus import Corpus
from simulations.corpora.files import read_files
from simulations.corpora.splits import random_split, split_by_sentence, split_by_text, stratified
from simulations.errors import UserError
from tests.support.paths import DATA

SST2 = DATA / "sst2"


def corpus(texts, users=None) -> Corpus:
    return Corpus(texts, np.arange(len(texts)) % 2, ("0", "1"), users=users)


def runs(texts) -> set[tuple[str, ...]]:
    """Every run of whole tokens of every text: slow and plain, to judge the fast search by."""
    found = set()
    for tokens in {tuple(text.split()) for text in texts}:
        for start in range(len(tokens)):
            found.update(tokens[start:end] for end in range(start + 1, len(tokens) + 1))
    return found


def leaks(one: Corpus, other: Corpus) -> set[tuple[str, ...]]:
    return runs(one.texts) & {tuple(text.split()) for text in other.texts}


def test_phrases_follow_their_sentences():
    texts = ["a fine b c", "a fine", "fine b", "x y z w v", "y z w", "c", "x y", "fine", "q fine", "a fine b c "]
    whole = corpus(texts)
    sides = set()
    for seed in range(20):
        public, private, dropped = split_by_sentence(whole, 0.34, seed)
        assert len(public) + len(private) + dropped == len(texts)
        assert not leaks(public, private) and not leaks(private, public)
        together = [{"a fine b c", "a fine", "fine b", "c", "a fine b c "}, {"x y z w v", "y z w", "x y"}]
        for part in (public, private):
            for sentence in together:
                assert not sentence & set(part.texts) or sentence <= set(part.texts)
        # "fine" is in two sentences: dropped exactly where they are apart.
        assert dropped == (("q fine" in public.texts) != ("a fine b c" in public.texts))
        sides.add(tuple(sorted(public.texts)))
    assert len(sides) == 3


def test_a_part_of_a_word_is_not_inside():
    public, private, dropped = split_by_sentence(corpus(["the cattle", "the cat", "tle"]), 0.34, 0)
    assert (len(public), len(private), dropped) == (1, 2, 0)


@pytest.mark.parametrize("seed", range(5))
def test_random_phrases_never_leak(seed):
    rng = np.random.default_rng(seed)
    texts = [" ".join(rng.choice(list("abcdef"), size=rng.integers(1, 9))) for _ in range(200)]
    public, private, dropped = split_by_sentence(corpus(texts), 0.3, seed)
    assert len(public) and len(private) and len(public) + len(private) + dropped == 200
    assert not leaks(public, private) and not leaks(private, public)


@pytest.mark.skipif(not SST2.is_dir(), reason=f"{SST2} is missing: SST-2 is not part of the repository")
def test_no_public_sst2_phrase_lies_inside_a_private_sentence():
    train, _ = read_files(SST2, "train.tsv", "dev.tsv", text="sentence", label="label")
    public, private, dropped = split_by_sentence(train, 0.05, 1)
    assert (len(public), len(private), dropped) == (2_979, 63_441, 929)
    # Looked for in every row of the other part, not only in its full sentences.
    assert not leaks(public, private)
    phrases = {tuple(text.split()) for text in public.texts}
    lengths = sorted({len(phrase) for phrase in phrases})
    for text in private.texts:
        tokens = tuple(text.split())
        for length in lengths:
            for start in range(len(tokens) - length + 1):
                assert tokens[start : start + length] not in phrases, text


def test_a_random_split_keeps_users_together():
    texts = [f"text {i}" for i in range(100)]
    users = [f"user {i % 25}" for i in range(100)]
    public, private = random_split(corpus(texts, users), 0.2, 3)
    assert len(public) == 20 and len(private) == 80
    assert not set(public.users) & set(private.users)
    again, _ = random_split(corpus(texts, users), 0.2, 3)
    other, _ = random_split(corpus(texts, users), 0.2, 4)
    assert again.texts == public.texts != other.texts
    public, private = random_split(corpus(texts), 0.05, 0)
    assert (len(public), len(private)) == (5, 95)
    assert len(random_split(corpus(texts), 0.0, 0)[0]) == 0


def test_bad_splits_are_refused():
    with pytest.raises(UserError, match=r"data.public.fraction: 1.0"):
        split_by_sentence(corpus(["a", "b"]), 1.0, 0)
    with pytest.raises(UserError, match="not on pairs"):
        split_by_sentence(corpus([("a", "b")]), 0.1, 0)


@pytest.mark.parametrize("seed", range(5))
def test_a_limit_takes_of_each_class_its_share_whatever_the_order(seed):
    rng = np.random.default_rng(seed)
    rows = rng.integers(1, 60, size=rng.integers(2, 7))
    labels = np.repeat(np.arange(len(rows)), rows)
    for size in (len(rows), int(rng.integers(len(rows), len(labels) + 1)), len(labels) - 1, len(labels), 10**6):
        for order in (np.arange(len(labels)), rng.permutation(len(labels))):
            taken = stratified(labels[order], size, seed)
            assert len(set(taken.tolist())) == len(taken) == min(size, len(labels)) and (np.diff(taken) > 0).all()
            counts = np.bincount(labels[order][taken], minlength=len(rows))
            due = rows * len(taken) / len(labels)
            assert (counts <= rows).all() and (np.abs(counts - due) < 1).all()
    some = stratified(labels, len(rows) + 1, seed)
    assert (stratified(labels, len(rows) + 1, seed) == some).all()


def test_a_limit_keeps_the_proportions_of_many_rare_classes():
    """970 of 1,000 rows are of one class, the others of 30 classes: .97 of 100 rows are too."""
    labels = np.concatenate([np.zeros(970, np.int64), 1 + np.arange(30)])
    counts = np.bincount(labels[stratified(labels, 100, 1)], minlength=31)
    assert counts[0] == 97 and counts.sum() == 100


def test_a_limit_is_drawn_by_the_seed():
    labels = np.repeat([0, 1], 50)
    drawn = {tuple(stratified(labels, 10, seed)) for seed in range(20)}
    assert len(drawn) == 20 and all(np.bincount(labels[list(rows)]).tolist() == [5, 5] for rows in drawn)
    assert len(stratified(labels, 1, 0)) == 1 and len(stratified(np.zeros(0, np.int64), 3, 0)) == 0


def annotated(groups: int, each: int, texts: int, *, mixed: bool = False) -> Corpus:
    """groups of users, each of whom has labelled all texts of the group; mixed: or as many of all texts, at random."""
    rng = np.random.default_rng(3)
    rows = [
        (f"user {group} {person}", f"text {rng.integers(groups * texts) if mixed else group * texts + text}")
        for group in range(groups)
        for person in range(each)
        for text in range(texts)
    ]
    return Corpus([t for _, t in rows], np.arange(len(rows)) % 2, ("0", "1"), users=[u for u, _ in rows])


@pytest.mark.parametrize("seed", range(5))
def test_annotators_of_the_same_texts_go_together(seed: int) -> None:
    corpus = annotated(6, 10, 50)
    public, private, dropped = split_by_text(corpus, 0.2, seed)
    assert dropped == 0 and len(public) + len(private) == len(corpus) == 3000
    assert len(set(public.users)) == 10 and len(set(private.users)) == 50
    assert not set(public.texts) & set(private.texts)


@pytest.mark.parametrize("seed", range(3))
def test_what_is_in_two_parts_all_the_same_is_dropped_from_one(seed: int) -> None:
    corpus = annotated(6, 10, 20, mixed=True)
    public, private, dropped = split_by_text(corpus, 0.2, seed)
    assert 0 < dropped < len(corpus) / 2 and len(public) + len(private) + dropped == len(corpus)
    assert not set(public.texts) & set(private.texts) and not set(public.users) & set(private.users)
    assert len(set(public.users)) == 12 and len(public) > 0.1 * len(corpus)
    alone = Corpus([f"t {i // 2}" for i in range(100)], np.arange(100) % 2, ("0", "1"))
    public, private, dropped = split_by_text(alone, 0.2, seed)
    assert (len(public), len(private), dropped) == (20, 80, 0)
    assert len(split_by_text(alone, 0.0, seed)[1]) == 100
