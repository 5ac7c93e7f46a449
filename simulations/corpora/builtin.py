"""Built-in corpus: short reviews from a seeded grammar over the bank of words in `fragments.toml`.

A review has an author (a user) whose style leaks, a sentiment and a genre. Sentiment is the writer's conclusion, not
the sum of the clauses. Concessions, complaints before a kind verdict, irony, understatement and a few reviews that two
readers would judge differently keep a probe on frozen embeddings below 0.95. Every sentence belongs to one part by a
hash of its words before style, whatever the seed. So public, train and test never share a sentence, nor a complete
combination of fragments, even between two seeds.
"""

import hashlib
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from client.store.text_column import TextColumn
from simulations.corpora.corpus import Corpus, Split
from simulations.errors import UserError

T = TypeVar("T")

#: Hand-written words and clauses.
BANK: dict[str, Any] = tomllib.loads(Path(__file__).with_name("fragments.toml").read_text(encoding="utf-8"))
#: Words of one genre: its name, names of the thing, openers, subjects (singular), and whole clauses of both sides.
_Genre = Mapping[str, Any]

LIMIT = 100_000
PARTS = ("public", "train", "test")
SENTIMENTS = ("negative", "positive")
GENRES = tuple(genre["name"] for genre in BANK["genre"])
#: Desk i of an office takes up genres i, i + 4 and i + 8: a convention, which neither names nor texts tell.
DESKS = ("A", "B", "C", "D")
#: Classes of each task.
TASKS = {"sentiment": SENTIMENTS, "genre": GENRES, "desk": DESKS}
#: Smallest and largest number of words of a review.
_LENGTHS = (8, 32)

# Shares of the relations of a review to its label, measured with a MiniLM probe
# (tests/simulations/corpora/test_builtin.py).
_WAYS = (("plain", 0.87), ("concession", 0.06), ("against", 0.03), ("indirect", 0.025), ("standoff", 0.015))
_SENTENCES = (0.3, 0.45, 0.25)
_NEUTRAL = 0.25
_OWN_CLAUSE = 0.25
_AMERICAN = re.compile(r"\b(" + "|".join(sorted(BANK["american"], key=len, reverse=True)) + r")\b")
_CONTRACTIONS = re.compile(r"\b(" + "|".join(BANK["contractions"]) + r")\b")


class _Draw:
    """Choices from one generator. Uniforms come in blocks, a hundred times faster than one by one."""

    def __init__(self, key: Sequence[int]) -> None:
        self._rng = np.random.default_rng(key)
        self._block: list[float] = []

    def uniform(self) -> float:
        if not self._block:
            self._block = self._rng.random(4096).tolist()
        return self._block.pop()

    def chance(self, p: float) -> bool:
        return self.uniform() < p

    def pick(self, options: Sequence[T]) -> T:
        return options[int(self.uniform() * len(options))]

    def weighted(self, weights: Sequence[float]) -> int:
        remainder = self.uniform() * sum(weights)
        for index, weight in enumerate(weights):
            remainder -= weight
            if remainder < 0:
                return index
        return len(weights) - 1


@dataclass(frozen=True)
class _Author:
    name: str
    adverb: str
    adverb_rate: float
    ending: str
    sign_off: str
    dash: str
    openers: tuple[str, ...]
    genres: tuple[_Genre, ...]
    american: bool
    contracts: bool
    lower_case: bool


def builtin(
    *,
    task: str = "sentiment",
    public: int = 1_000,
    train: int = 2_000,
    test: int = 500,
    seed: int,
    authors: int | None = None,
) -> Split:
    """Return public, train and test parts of the built-in corpus, the same for the same arguments.

    `Corpus.extra` has "sentiment" and "genre", the names of both labels.

    Args:
        task: "sentiment" (2 classes), "genre" (12), or "desk" (4: whose work the review is, by a convention that only
            users know). The reviews are the same, only the label changes.
        public: Reviews of the part, distinct, at most 100,000 in all parts.
        train: As for public.
        test: As for public.
        seed: Seed of the corpus.
        authors: Number of people who wrote the train and test reviews (each writes at least one of train); by default
            one for every five train reviews. They are `users`. Public reviews have authors of their own.

    Raises:
        UserError: The task is unknown, or a size is out of range.
    """
    if task not in TASKS:
        choices = '", "'.join(TASKS)
        raise UserError(f'task: unknown "{task}"; choose "{choices}"')
    sizes = {"public": public, "train": train, "test": test}
    if sum(sizes.values()) > LIMIT:
        raise UserError(f"public + train + test: {sum(sizes.values())} reviews; the corpus ends at {LIMIT}")
    writers = max(1, train // 5) if authors is None else authors
    if not 1 <= writers <= max(1, train):
        raise UserError(f"authors: {writers} for {train} train reviews; give a number from 1 to {max(1, train)}")

    users = _authors("author", writers, seed)
    pools = {"public": _authors("public", max(1, public // 5), seed), "train": users, "test": users}
    return Split(**{name: _part(name, size, pools[name], task, seed) for name, size in sizes.items()})


def _authors(prefix: str, count: int, seed: int) -> list[_Author]:
    draw = _Draw((seed, len(PARTS), len(prefix)))
    return [
        _Author(
            name=f"{prefix}-{index:05d}",
            adverb=draw.pick(BANK["adverbs"]),
            adverb_rate=0.7 * draw.uniform(),
            ending=draw.pick(BANK["endings"]),
            sign_off=draw.pick(BANK["sign-offs"]) if draw.chance(0.5) else "",
            dash=draw.pick((" - ", " – ", " ... ", ", ")),
            openers=tuple(draw.pick(BANK["openers"]) for _ in range(4)),
            genres=tuple(draw.pick(BANK["genre"]) for _ in range(3)),
            american=draw.chance(0.5),
            contracts=draw.chance(0.5),
            lower_case=draw.chance(0.2),
        )
        for index in range(count)
    ]


def _part(part: str, size: int, authors: list[_Author], task: str, seed: int) -> Corpus:
    draw = _Draw((seed, PARTS.index(part)))
    texts: list[str] = []
    signs, genres, users = [], [], []
    seen: set[tuple[str, ...]] = set()
    while len(texts) < size:
        covering = part == "train" and len(texts) < len(authors)
        author = authors[len(texts)] if covering else draw.pick(authors)
        genre = draw.pick(author.genres) if draw.chance(0.5) else draw.pick(BANK["genre"])
        sign = draw.chance(0.5)
        sentences = _review(draw, PARTS.index(part), author, genre, sign)
        length = sum(len(sentence.split()) for sentence in sentences)
        if sentences in seen or not _LENGTHS[0] <= length <= _LENGTHS[1]:
            continue
        seen.add(sentences)
        texts.append(_styled(draw, author, sentences))
        signs.append(int(sign))
        genres.append(GENRES.index(genre["name"]))
        users.append(author.name)
    labels = np.array(signs if task == "sentiment" else genres, dtype=np.int64)
    return Corpus(
        texts=TextColumn.of(texts),
        labels=labels % len(DESKS) if task == "desk" else labels,
        classes=TASKS[task],
        users=users,
        extra={"sentiment": [SENTIMENTS[s] for s in signs], "genre": [GENRES[g] for g in genres]},
    )


def _review(draw: _Draw, part: int, author: _Author, genre: _Genre, sign: bool) -> tuple[str, ...]:
    """Return the sentences of a review before style, each one belonging to `part`."""
    way = _WAYS[draw.weighted([share for _, share in _WAYS])][0]
    count = 1 + draw.weighted(_SENTENCES)
    # One sentence has no room for a verdict, so its label must show in the clauses.
    if count == 1 and way in ("against", "indirect"):
        count = 2
    write = _Sentences(draw, part, author, genre)
    plainly = BANK["good-verdicts"] if sign else BANK["bad-verdicts"]
    indirectly = BANK["understated-praise"] if sign else BANK["ironic-blame"]
    if way == "standoff":
        return (write.standoff(),)
    if way == "against":
        return (write.aspect(not sign), write.verdict(plainly))
    if way == "indirect":
        alone = draw.chance(0.4)
        before = () if alone else (write.aspect(draw.chance(0.5)),)
        return (*before, write.verdict(indirectly))
    if way == "concession":
        return (write.concession(sign),) if count == 1 else (write.concession(sign), write.verdict(plainly))
    if count == 1:
        return (write.pair(sign),)
    return (*(write.aspect(sign) for _ in range(count - 1)), write.verdict(plainly))


@dataclass(frozen=True)
class _Sentences:
    """Sentences of one review, drawn again until they belong to its part."""

    draw: _Draw
    part: int
    author: _Author
    genre: _Genre

    def aspect(self, good: bool) -> str:
        return self._own(lambda: f"{self._feeling(good)} {self._clause(good)}")

    def pair(self, good: bool) -> str:
        def sentence() -> str:
            first = second = self._clause(good)
            while second == first:
                second = self._clause(good)
            return f"{self._feeling(good)} {first}{self.draw.pick(BANK['additions'])} {second}"

        return self._own(sentence)

    def concession(self, good: bool) -> str:
        def sentence() -> str:
            granted = self.draw.pick(BANK["concessions"])
            return f"{granted} {self._clause(not good)}{BANK['turns'][granted]}{self._clause(good)}"

        return self._own(sentence)

    def standoff(self) -> str:
        def sentence() -> str:
            first = self.draw.chance(0.5)
            opener, clause = self._opener(), self._clause(first)
            return f"{opener} {clause}{self.draw.pick(BANK['standoffs'])} {self._clause(not first)}"

        return self._own(sentence)

    def verdict(self, options: Sequence[str]) -> str:
        def sentence() -> str:
            core = self.draw.pick(options).format(thing=self.draw.pick(self.genre["things"]))
            head = f"{self.draw.pick(BANK['hedges'])}, ".replace("but, ", "but ")
            return head + core + (f", {self.draw.pick(BANK['codas'])}" if self.draw.chance(0.4) else "")

        return self._own(sentence)

    def _own(self, sentence: Callable[[], str]) -> str:
        while True:
            drawn = sentence()
            if _owner(drawn) == self.part:
                return drawn

    def _opener(self) -> str:
        if self.draw.chance(0.35):
            return self.draw.pick(self.genre["openers"]) + ","
        return (self.draw.pick(self.author.openers) if self.draw.chance(0.4) else self.draw.pick(BANK["openers"])) + ","

    def _feeling(self, good: bool) -> str:
        if self.draw.chance(_NEUTRAL):
            return self._opener()
        opener = self.draw.pick(BANK["glad-openers"] if good else BANK["sorry-openers"])
        return opener if opener.endswith("that") else opener + ","

    def _clause(self, good: bool) -> str:
        draw, genre = self.draw, self.genre
        if draw.chance(_OWN_CLAUSE):
            return draw.pick(genre["praise"] if good else genre["complaints"])
        subject = draw.pick(BANK["shared-subjects"]) if draw.chance(0.3) else draw.pick(genre["subjects"])
        return f"{subject} {draw.pick(BANK['good-predicates' if good else 'bad-predicates'])}"


def _owner(sentence: str) -> int:
    """Return the part of a sentence: a third of all sentences each, for every seed and size."""
    return int.from_bytes(hashlib.blake2b(sentence.encode(), digest_size=8).digest(), "big") % len(PARTS)


def _styled(draw: _Draw, author: _Author, sentences: tuple[str, ...]) -> str:
    ending = author.ending or "."
    lines = []
    for sentence in sentences:
        if draw.chance(author.adverb_rate):
            sentence = f"{author.adverb}, {sentence}"
        lines.append(sentence if author.lower_case else sentence[0].upper() + sentence[1:])
    text = f"{ending} ".join(lines)
    if author.sign_off and draw.chance(0.6):
        text += author.dash + author.sign_off
    text += author.ending
    if author.contracts:
        text = _CONTRACTIONS.sub(lambda match: BANK["contractions"][match[0]], text)
    if author.american:
        text = _AMERICAN.sub(lambda match: BANK["american"][match[0]], text)
    return text.lower() if author.lower_case else text
