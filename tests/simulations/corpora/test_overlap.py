"""What is in two parts is found: the same texts, nearly the same, people; and nothing else is."""

from __future__ import annotations

import re

import numpy as np
import pytest

from simulations.corpora import overlap
from simulations.corpora.builtin import builtin
from simulations.corpora.corpus import Corpus, Split
from simulations.corpora.files import read_files
from simulations.corpora.overlap import NEARLY, compared, nearly, normalized
from simulations.corpora.splits import random_split, split_by_sentence, split_by_text, stratified
from simulations.errors import UserError
from tests.support.paths import DATA

SST2 = DATA / "sst2"
SENTENCE = "the of film a slow story with wit and no heart it never quite ends where one hoped but charm wins"
WORDS = re.findall(r"\w+", SENTENCE)


def shingles(text: str) -> set[bytes]:
    data = text.encode()
    return {data[i : i + 5] for i in range(len(data) - 4)}


def index(one: str, other: str) -> float:
    """Jaccard's, by the definition."""
    a, b = shingles(one), shingles(other)
    return len(a & b) / len(a | b) if a and b else 0.0


def test_letters_and_digits_make_a_text() -> None:
    assert normalized("  A “fine” Film, of 1999!") == normalized("a fine\tfilm of 1999") == "a fine film of 1999"
    assert normalized("Ｃａｆé") == "café" and normalized(":-)") == ":-)" and normalized("İ") == normalized("i̇")
    assert normalized(("Who?", "Ann.")) == "who\nann" != normalized("who ann")


UNSEEN = ("\u200b", "\u00ad", "\u2060", "\ufeff", "\u034f", "\u200d", "\ufe0f", "\U000e0061")


@pytest.mark.parametrize("sign", UNSEEN)
def test_what_nobody_sees_makes_no_other_text(sign: str) -> None:
    """A space of no width between all letters would hide a text from the comparison, and from what is nearly it."""
    assert normalized(sign.join(SENTENCE)) == normalized(SENTENCE) == SENTENCE
    result, _ = compared(Split(part(["public"]), part([SENTENCE]), part([sign.join(SENTENCE)])), people=False)
    assert [each.texts for each in result] == [0, 1, 0]


def test_marks_of_letters_tell_texts_apart() -> None:
    """Where vowels are marks, they are no punctuation: he and she, I and in, would be one text."""
    assert normalized("मैं!") == "मैं" != normalized("में") and normalized("ไป่") != normalized("ไป")
    assert normalized("किताब, दो") == "किताब दो" and normalized("x̂ ~̂ y") == "x̂ y" and normalized("❤️") == "❤"


@pytest.mark.parametrize("seed", range(6))
def test_what_is_nearly_the_same_is_what_the_definition_says(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlap, "_AT_ONCE", 16)
    monkeypatch.setattr(overlap, "_BLOCK", 32)
    monkeypatch.setattr(overlap, "_PAIRS", 50)
    rng = np.random.default_rng(seed)

    def text() -> list[str]:
        return [WORDS[i] for i in rng.integers(0, len(WORDS), size=rng.integers(1, 16))]

    others = [text() for _ in range(100)]
    texts = [text() for _ in range(20)]
    for row in rng.integers(0, 100, size=60):  # some of the others, a few words changed, left out or added
        changed = list(others[row])
        for _ in range(rng.integers(1, 4)):
            at = int(rng.integers(0, len(changed)))
            new = [WORDS[i] for i in rng.integers(0, len(WORDS), size=rng.integers(0, 2))]
            changed[at : at + int(rng.integers(0, 2))] = new
            changed = changed or ["film"]
        texts.append(changed)
    theirs = [" ".join(words) for words in others]
    mine = sorted({" ".join(words) for words in texts} - set(theirs))
    wanted = {one for one in mine if max(index(one, other) for other in theirs) >= NEARLY - 1e-9}
    assert nearly(mine, theirs) == wanted and 0 < len(wanted) < len(mine)


def test_texts_without_a_shingle() -> None:
    assert nearly([], ["a b c d"]) == nearly(["a b c d e"], []) == nearly(["a", "ok"], ["b", "ok!"]) == set()


def part(texts: list[str], users: list[str] | None = None) -> Corpus:
    return Corpus(texts, np.arange(len(texts)) % 2, ("0", "1"), users=users)


def test_all_parts_are_compared_and_rows_are_counted() -> None:
    long = "it never quite ends where one hoped, but its charm wins in the end"
    split = Split(
        public=part(["A fine film.", long, "of its own"], [*"abe"]),
        train=part(["a fine film", "a fine film", "quite another"], [*"acc"]),
        test=part(["A FINE FILM", "a  fine film!", long.replace("charm", "charms"), "new"], [*"dcad"]),
    )
    result, repeated = compared(split, people=True)
    counted = [(each.of, each.within, each.rows, each.texts, each.near, each.users) for each in result]
    assert counted == [("public", "train", 3, 1, 0, 1), ("test", "train", 4, 2, 0, 2), ("test", "public", 4, 2, 1, 1)]
    assert repeated == {"public": 0, "train": 1, "test": 1} and all(result)
    assert str(result[2]) == "2 and 1 nearly of 4 test texts are in public, 1 user is in test and public"


def test_the_built_in_parts_have_nothing_in_common() -> None:
    result, repeated = compared(builtin(public=150, train=400, test=100, seed=3), people=True)
    assert [(each.texts, each.near) for each in result] == [(0, 0)] * 3 and not any(repeated.values())
    assert result[1].users and not result[0].users  # whoever wrote them; a study says whether that is who holds them


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.skipif(not SST2.is_dir(), reason=f"{SST2} is missing: SST-2 is not part of the repository")
def test_sst2_as_the_bundled_experiments_split_it() -> None:
    train, test = read_files(SST2, "train.tsv", "dev.tsv", text="sentence", label="label")
    public, private, _ = split_by_sentence(train, 0.05, 1)
    result, _ = compared(Split(public, private, test), people=True)
    assert [(each.texts, each.near) for each in result] == [(9, 22), (1, 0), (0, 0)]


# --- splits: no public phrase inside a private sentence, nor the other way round


def corpus(texts, users=None) -> Corpus:
    return Corpus(texts, np.arange(len(texts)) % 2, ("0", "1"), users=users)


def runs(texts) -> set[tuple[str, ...]]:
    """Every run of whole tokens of every text: slow and plain, to judge the fast search by."""
    result = set()
    for tokens in {tuple(text.split()) for text in texts}:
        for start in range(len(tokens)):
            result.update(tokens[start:end] for end in range(start + 1, len(tokens) + 1))
    return result


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
