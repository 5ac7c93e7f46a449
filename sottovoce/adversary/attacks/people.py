"""Comparison of releases by what an attacker learns of a person and what a model learns of a task, on SynthPAI.

SynthPAI (Yukhymenko et al. 2024) has comments of 300 synthetic authors whose attributes are known. Every release is
made of the same comments. The attack is that of `adversary.attacks.users`: it knows which releases come from one
author, and the attributes of other authors.

**Task.** The comments have no labels. The task is sentiment, by a teacher that was trained on other people's labels
(naive Bayes of words and pairs of words, on SST-2). It shares neither words' weights nor an encoder with the models,
and no attribute of an author. Only the half of the comments of which it is surest has a label. A model learns on the
releases of nine tenths of the authors, and is tested on the comments, as written, of the others.
"""

from __future__ import annotations

import csv
import json
import logging
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from client.rewrite import Rewriter
from mechanisms.catalogue import build
from mechanisms.privunit import PrivUnit
from mechanisms.projection import project, signed_directions, user_means
from mechanisms.streams import SimulationStreams
from mechanisms.words.text import KEPT
from server.training.noise import sanitize_public
from server.training.statistic_head import simplex_codes
from simulations.analysis.attack_results import table
from simulations.artifacts.bundled_head import bundled_masked_lm
from simulations.artifacts.encoder import encoder_folder
from simulations.artifacts.public import CachedEncoder
from simulations.artifacts.vocabulary import MINILM, vocabulary_folder
from simulations.corpora.corpus import Corpus
from simulations.errors import UserError
from simulations.experiment import from_table
from simulations.output import markdown
from simulations.output.atomic import whole
from simulations.output.figures import COLOURS, MARKERS, new_figure, save
from simulations.output.jsonable import json_ready
from sottovoce.adversary.attacks import intervals, users
from sottovoce.adversary.attacks.target import Skipped
from sottovoce.adversary.attacks.users import Received
from sottovoce.adversary.estimators import allowed
from sottovoce.adversary.estimators.statistic import VectorQuestion
from sottovoce.adversary.estimators.users import FOLDS

log = logging.getLogger(__name__)

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
#: Text releases by name: their mechanism, and whether its ε is that of a token.
TEXTS: dict[str, dict[str, Any]] = {
    "words of the vocabulary": {"mechanism": "identity"},
    "redaction": {"mechanism": "redaction"},
    "Presidio": {"mechanism": "mechanisms.words.redaction:Presidio"},
    "SanText, ε = 16": {"mechanism": "santext", "epsilon": 16.0},
    "SanText, ε = 12": {"mechanism": "santext", "epsilon": 12.0},
    "SanText+, ε = 12": {"mechanism": "santext+", "epsilon": 12.0, "w": 0.9, "p": 0.3},
    "CusText, ε = 8": {"mechanism": "custext", "epsilon": 8.0},
    "DP-MLM, ε = 100": {"mechanism": "dp-mlm", "epsilon": 100.0},
}
#: ε of a released sentence embedding and its width; ε of a user vector and its number of features.
_EMBEDDING, _WIDTH, _VECTOR, _FEATURES = (24.0, 12.0), 16, 6.0, 24
_CLEAR, _COMMERCIAL = "clear text", "commercial redaction"
#: Number of public texts, and ridge of the task's model in mean eigenvalues.
_PUBLIC, _RIDGE = 3_000, 0.1
#: Redacted comments to compare a comment with, and the least share of words that must agree.
_AHEAD, _AGREE = 4, 0.7


@dataclass(frozen=True, eq=False)
class People:
    """Authors with their comments and attributes.

    Args:
        names: Names of u authors.
        users: Author (n,) of each comment.
        texts: Comments.
        attributes: Value of each author by attribute; None where there is none.
        redacted: The comments after a commercial redaction, as far as they can be told; None without the file.
        published: Published guesses: (text, author, attribute, right).
    """

    names: tuple[str, ...]
    users: IntArray
    texts: list[str]
    attributes: dict[str, list[str | None]]
    redacted: list[str | None] | None
    published: list[tuple[str, str, str, bool]]


def read(folder: Path, most: int | None = None) -> People:
    """Return the authors of a folder with comments.tsv and profiles.tsv, and the two other files if they are there.

    Args:
        folder: Folder of the data.
        most: Comments of each author, at most; None for all.

    Raises:
        UserError: A file or column is missing.
    """
    profiles = {row["author"]: row for row in _rows(folder / "profiles.tsv", "author")}
    comments = [row for row in _rows(folder / "comments.tsv", "author", "sentence") if row["author"] in profiles]
    names = tuple(dict.fromkeys(row["author"] for row in comments))
    counts: Counter[str] = Counter()
    kept = []
    for at, row in enumerate(comments):
        counts[row["author"]] += 1
        if most is None or counts[row["author"]] <= most:
            kept.append(at)
    redacted = None
    if (folder / "comments_redacted.tsv").is_file():
        every = _aligned(comments, _rows(folder / "comments_redacted.tsv", "author", "sentence"))
        redacted = [every[at] for at in kept]
    published = []
    if (folder / "guesses_gpt4.tsv").is_file():
        for row in _rows(folder / "guesses_gpt4.tsv", "text", "author", "attribute", "first_right"):
            published.append((row["text"], row["author"], row["attribute"], row["first_right"] == "1"))
    number = {name: i for i, name in enumerate(names)}
    return People(
        names,
        np.array([number[comments[at]["author"]] for at in kept], dtype=np.int64),
        [comments[at]["sentence"] for at in kept],
        {name: [binned(profiles[author]) for author in names] for name, binned in _ATTRIBUTES.items()},
        redacted,
        published,
    )


def _rows(path: Path, *columns: str) -> list[dict[str, str]]:
    if not path.is_file():
        raise UserError(f"{path}: is missing; name a folder with comments.tsv and profiles.tsv, as SynthPAI's")
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    if not rows or not set(columns) <= rows[0].keys():
        raise UserError(f"{path}: has no rows, or lacks one of the columns {', '.join(columns)}")
    return rows


def _aligned(comments: Sequence[Mapping[str, str]], redacted: Sequence[Mapping[str, str]]) -> list[str | None]:
    """Return the redacted text of each comment: of the author's next ones, the one whose unmasked words agree best."""
    left: dict[str, list[str]] = {}
    for row in redacted:
        left.setdefault(row["author"], []).append(row["sentence"])
    found: list[str | None] = []
    for row in comments:
        words, shares = set(row["sentence"].split()), []
        for text in left.get(row["author"], ())[:_AHEAD]:
            seen = [word for word in text.split() if "*" not in word]
            shares.append(sum(word in words for word in seen) / max(1, len(seen)))
        best = int(np.argmax(shares)) if shares else -1
        found.append(left[row["author"]].pop(best) if shares and shares[best] >= _AGREE else None)
    return found


# --- attributes


def _age(profile: Mapping[str, str]) -> str | None:
    if not (age := profile.get("age", "")).isdigit():
        return None
    return "below 30" if int(age) < 30 else "30 to 44" if int(age) < 45 else "45 and above"


def _country(profile: Mapping[str, str]) -> str | None:
    country = profile.get("city_country", "").rpartition(",")[2].strip()
    return {"USA": "United States", "UAE": "United Arab Emirates", "UK": "United Kingdom"}.get(country, country) or None


def _education(profile: Mapping[str, str]) -> str | None:
    said = profile.get("education", "").lower()
    if "study" in said:
        return "studying"
    levels = {"doctorate": r"ph\.?d|doctor|\bmd\b|\bjd\b", "master": "master|mba", "bachelor": "bachelor"}
    return next((level for level, of in levels.items() if re.search(of, said)), "school" if said else None)


def _income(profile: Mapping[str, str]) -> str | None:
    return profile.get("income_level", "").replace("very high", "high") or None


def _relationship(profile: Mapping[str, str]) -> str | None:
    return profile.get("relationship_status", "").lower().replace("in relationship", "in a relationship") or None


#: Attributes, with values that enough authors share. Occupation and place of birth have too many values.
_ATTRIBUTES: dict[str, Callable[[Mapping[str, str]], str | None]] = {
    "age": _age,
    "sex": lambda profile: profile.get("sex") or None,
    "country": _country,
    "education": _education,
    "income_level": _income,
    "relationship_status": _relationship,
}


# --- task


@dataclass(frozen=True, eq=False)
class Task:
    """Sentiment of comments by the teacher, and public texts.

    Args:
        labels: Label (n,) of each comment; -1 where the teacher is not sure.
        public: Public texts of another domain.
    """

    labels: IntArray
    public: list[str]


def sentiment(file: Path, texts: Sequence[str], seed: int) -> Task:
    """Return the task by a file of labelled sentences (columns label 0 or 1, sentence).

    Raises:
        UserError: The file is missing, or has no such columns.
    """
    rows = _rows(file, "label", "sentence")
    known: dict[str, int] = {}
    tables = [_counted((row["sentence"] for row in rows), known, grow=True), _counted(texts, known, grow=False)]
    labels = np.array([int(row["label"]) for row in rows])
    tables[0].resize(len(rows), len(known))
    law = np.stack([np.asarray(tables[0][labels == value].sum(axis=0)).ravel() + 0.5 for value in (0, 1)])
    weights = np.log(law[1] / law[1].sum()) - np.log(law[0] / law[0].sum())
    score = tables[1] @ weights
    sure = np.abs(score) >= np.median(np.abs(score))
    long = [row["sentence"] for row in rows if len(row["sentence"].split()) >= 5]
    chosen = np.random.default_rng([seed, 20]).permutation(len(long))[:_PUBLIC]
    return Task(np.where(sure, (score > 0).astype(np.int64), -1), [long[i] for i in chosen])


def _counted(texts: Any, known: dict[str, int], *, grow: bool) -> Any:
    """Return which words and pairs of words each text has, (n, k); new ones are added to `known` if it grows."""
    rows: list[int] = []
    columns: list[int] = []
    count = 0
    for count, text in enumerate(texts, 1):
        words = re.findall(r"[\w']+|[!?]", text.lower())
        for term in {*words, *map(" ".join, pairwise(words))}:
            if grow or term in known:
                rows.append(count - 1)
                columns.append(known.setdefault(term, len(known)))
    return sparse.csr_matrix((np.ones(len(rows)), (rows, columns)), shape=(count, max(1, len(known))))


# --- releases


@dataclass(frozen=True, eq=False)
class Release:
    """Releases of all authors by one mechanism.

    Args:
        name: Name of the arm.
        authors: Author (u,) of each user of `received`.
        received: Releases.
        epsilon: Worst-case ε of a user, all of whose comments are released; infinite without a guarantee.
        rows: Comment (n,) of each release; None if a release is of a user.
        clear: All comments as written (n, m), in the form that a model reads.
        bound: Mechanism of the only release of a user; None if there are several.
    """

    name: str
    authors: IntArray
    received: Received
    epsilon: float
    rows: IntArray | None = None
    clear: NDArray[Any] | None = None
    bound: Any = None


@dataclass(frozen=True, eq=False)
class Study:
    """One comparison.

    Args:
        people: Authors.
        task: Task; None without labels, then embeddings and vectors are left out.
        masked_lm: Folder of a masked language model for DP-MLM, or None.
        texts: Text releases by name.
        seed: Seed of all random choices.
        encoder: Sentence encoder.
        vocabulary: Vocabulary of sanitized texts, or its folder.
    """

    people: People
    task: Task | None
    masked_lm: Path | None
    texts: Mapping[str, Mapping[str, Any]]
    seed: int
    encoder: Any
    vocabulary: Any

    def releases(self, skipped: list[str]) -> Iterator[Release]:
        """Yield all releases; lines about those that cannot be made are added to `skipped`."""
        people = self.people
        every = np.arange(len(people.texts))
        yield self._text(_CLEAR, people.texts, every, math.inf)
        if people.redacted is None:
            skipped.append(f"all attacks on {_COMMERCIAL}: comments_redacted.tsv is missing")
        else:
            rows = np.array([row for row in every if people.redacted[row] is not None], dtype=np.int64)
            said = [str(people.redacted[row]).replace("*", " ") for row in rows]
            yield self._text(_COMMERCIAL, said, rows, math.inf)
        for name, spec in self.texts.items():
            try:
                yield self._sanitized(name, spec)
            except ValueError as error:
                skipped.append(f"all attacks on {name}: {error}")
        if self.task is not None:
            yield from self._embedded()
            yield from self._vectors()
        else:
            skipped.append("all attacks on embeddings and vectors: need labelled texts; name a file with --labelled")

    def _text(self, name: str, texts: Sequence[str], rows: IntArray, epsilon: float) -> Release:
        words = [re.findall(r"\w+", text.lower()) for text in texts]
        vectors = self.encoder.embed([text if text.strip() else "." for text in texts])
        authors, owner = np.unique(self.people.users[rows], return_inverse=True)
        return Release(name, authors, Received(owner, vectors, words), epsilon, rows, self._embeddings)

    def _sanitized(self, name: str, spec: Mapping[str, Any]) -> Release:
        reads = self.masked_lm if str(spec["mechanism"]).startswith("dp-mlm") else None
        if reads is None and str(spec["mechanism"]).startswith("dp-mlm"):
            raise ValueError("needs a masked language model; name its folder with --masked-lm")
        log.info(f"{name}: {len(self.people.texts):,} comments")
        rewriter = Rewriter({"length": KEPT} | dict(spec), self.vocabulary, model=reads)
        rows = np.arange(len(self.people.texts))
        said: list[str] = []
        for start in range(0, len(rows), rewriter.batch_size):
            piece = rows[start : start + rewriter.batch_size]
            rng = SimulationStreams(self.seed).rows(piece, np.zeros_like(piece), stage=f"people-{name}", channel="text")
            said += rewriter.rewrite([self.people.texts[row] for row in piece], rng=rng)
        guarantee = rewriter.text.guarantee
        worst = guarantee.worst_case(declared=guarantee.exposes) * int(np.bincount(self.people.users).max())
        return self._text(name, said, rows, worst)

    def _embedded(self) -> Iterator[Release]:
        """Yield releases of sentence embeddings: in clear, and in few dimensions with noise."""
        rows, most = np.arange(len(self.people.texts)), int(np.bincount(self.people.users).max())
        authors, owner = np.unique(self.people.users, return_inverse=True)
        clear = self._embeddings
        yield Release("sentence embeddings, clear", authors, Received(owner, clear), math.inf, rows, clear)
        points = project(clear, *self._maps(_WIDTH))
        for epsilon in _EMBEDDING:
            mechanism = build({"mechanism": "purkayastha", "epsilon": epsilon}, channel="embedding", dim=_WIDTH)
            drawn = sanitize_public(mechanism, points, seed=self.seed, stage="people-embeddings")
            worst = mechanism.guarantee.worst_case()
            name = f"sentence embeddings, Purkayastha, ε = {epsilon:g}"
            yield Release(name, authors, Received(owner, drawn), worst * most, rows, points)

    def _vectors(self) -> Iterator[Release]:
        """Yield releases of one vector a user: without noise, and by PrivUnit."""
        assert self.task is not None
        labelled = np.flatnonzero(self.task.labels >= 0)
        order = labelled[np.argsort(self.people.users[labelled], kind="stable")]
        authors, starts = np.unique(self.people.users[order], return_index=True)
        maps, codes = self._maps(_FEATURES), simplex_codes(2)
        mechanism = PrivUnit(codes.shape[1] * (maps[1].shape[1] + 1), _VECTOR)
        vectors = VectorQuestion(*maps, codes, mechanism).vectors(self._embeddings[order], self.task.labels[order])
        means = user_means(vectors, np.append(starts, len(order)))
        features, users_ = project(self._embeddings, *maps), np.arange(len(authors))
        yield Release("one vector a user, no noise", authors, Received(users_, means), math.inf, None, features)
        directions = signed_directions(means, np.random.default_rng([self.seed, 21]).random(len(means)))
        rng = SimulationStreams(self.seed).rows(authors, np.zeros_like(authors), stage="people", channel="statistic")
        drawn, worst = mechanism.sample(directions, rng=rng), mechanism.guarantee.worst_case()
        name = f"one vector a user, ε = {_VECTOR:g}"
        yield Release(name, authors, Received(users_, drawn), worst, None, features, mechanism)

    @cached_property
    def _embeddings(self) -> NDArray[np.float32]:
        found: NDArray[np.float32] = self.encoder.embed(self.people.texts)
        return found

    @cached_property
    def _public(self) -> NDArray[np.float32]:
        assert self.task is not None
        found: NDArray[np.float32] = self.encoder.embed(self.task.public)
        return found

    def _maps(self, dim: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the mean of public embeddings, and their first principal directions, whitened."""
        mean = self._public.mean(axis=0)
        variances, directions = np.linalg.eigh(np.cov(self._public - mean, rowvar=False))
        top = np.argsort(-variances)[:dim]
        scaled = directions[:, top] / np.sqrt(variances[top] + variances.mean())
        return mean, (scaled / np.linalg.norm(scaled, axis=0).max()).astype(np.float32)

    # --- use

    def use(self, release: Release) -> tuple[float, float] | None:
        """Return the accuracy of the task's model on comments as written, and its standard error by author.

        The model of an author's comments was trained on the releases of other authors.
        """
        if self.task is None or release.clear is None:
            return None
        count, people, labels = len(self.people.names), self.people.users, self.task.labels
        fold = np.random.default_rng([self.seed, 22]).permutation(count) % FOLDS
        hits, tests = np.zeros(count), np.zeros(count)
        for number in range(FOLDS):
            test = np.flatnonzero((fold[people] == number) & (labels >= 0))
            scores = release.clear[test] @ (weights := self._weights(release, fold != number))[:-1] + weights[-1]
            np.add.at(hits, people[test], (scores > 0) == (labels[test] == 1))
            np.add.at(tests, people[test], 1)
        accuracy = float(hits.sum() / tests.sum())
        return accuracy, float(np.sqrt(((hits - accuracy * tests) ** 2).sum()) / tests.sum())

    def _weights(self, release: Release, known: NDArray[np.bool_]) -> FloatArray:
        """Return weights (m + 1,), the constant last, by least squares on the releases of some authors."""
        assert self.task is not None and release.clear is not None
        x, rows = np.asarray(release.received.vectors, dtype=np.float64), release.rows
        if rows is None:  # means of code ⊗ features: their second moments are those of public text
            features = project(self._public, *self._maps(_FEATURES))
            mean = x[known[release.authors]].mean(axis=0) * float(simplex_codes(2)[1, 0])
            centre = features.mean(axis=0)
            slope, moments = mean[:-1] / math.sqrt(len(centre)) - mean[-1] * centre, np.cov(features, rowvar=False)
            offset = 0.0
        else:
            train = np.flatnonzero(known[self.people.users[rows]] & (self.task.labels[rows] >= 0))
            x, y = x[train], 2.0 * self.task.labels[rows[train]] - 1
            centre, offset = x.mean(axis=0), float(y.mean())
            slope, moments = (x - centre).T @ (y - offset) / len(x), np.cov(x, rowvar=False)
        ridge = _RIDGE * np.trace(moments) / len(moments)
        weights = np.linalg.solve(moments + ridge * np.eye(len(moments)), slope)
        return np.append(weights, offset - centre @ weights)


# --- results


def compare(study: Study) -> dict[str, Any]:
    """Return the results of all attacks on all releases, the use of each, and published guesses."""
    skipped: list[str] = []
    entries: list[dict[str, Any]] = []
    arms: list[dict[str, Any]] = []
    right: dict[tuple[str, str], dict[int, bool]] = {}
    for release in study.releases(skipped):
        contributions = np.zeros(len(study.people.names))
        gains: list[float] = []
        for name, values in study.people.attributes.items():
            try:
                found = users.attribute(release.received, [values[author] for author in release.authors], study.seed)
            except Skipped as why:
                skipped.append(f"attribute-user of {name} on {release.name}: {why}")
                continue
            mine = {int(release.authors[user]): hit for user, hit in found.pop("right").items()}
            right[release.name, name] = mine
            share = np.array(found.pop("share"))
            gains.append(found["success"] - found["baseline"])
            np.add.at(contributions, list(mine), (np.array(list(mine.values())) - found["success"]) / len(mine))
            bounds = {"bound": None, "bound_counts": None}
            if release.bound is not None:
                curves = (allowed.curve(release.bound), allowed.curve(release.bound, 2))
                keys = ("bound", "bound_counts")
                bounds = dict(zip(keys, (allowed.guess(one, share) for one in curves), strict=True))
            entries.append(_entry(release, "attribute-user", found | bounds | {"attribute": name}))
        try:
            linked = users.linkage(release.received, study.seed)
            entries.append(_entry(release, "linkage-user", linked | {"bound": None, "bound_counts": None}))
        except Skipped as why:
            skipped.append(f"linkage-user on {release.name}: {why}")
        use = study.use(release)
        many = max(1, len(gains))
        arms.append(
            {
                "name": release.name,
                "user_epsilon": release.epsilon,
                "gain": float(np.mean(gains)) if gains else None,
                "gain_error": float(np.sqrt((contributions**2).sum()) / many),
                "use": None if use is None else use[0],
                "use_error": None if use is None else use[1],
                "records": None if release.rows is None else len(release.rows),
            }
        )
        log.info(f"{release.name}: {len(gains)} attributes, task accuracy {arms[-1]['use']}")
    people = study.people
    return {
        "name": "people",
        "seed": study.seed,
        "authors": len(people.names),
        "comments": len(people.texts),
        "entries": [e | {"about": users.ATTACKS[e["attack"]]} for e in intervals.judged(entries)],
        "arms": arms,
        "published": _published(people, right),
        "skipped": skipped,
        "reading": [users.READING],
        "task": None if study.task is None else _share(study.task.labels),
    }


def _share(labels: IntArray) -> dict[str, float]:
    known = labels[labels >= 0]
    return {"labelled": len(known), "most_frequent": float(max(known.mean(), 1 - known.mean()))}


def _entry(release: Release, attack: str, found: dict[str, Any]) -> dict[str, Any]:
    note = ", ".join(filter(None, (found.get("attribute"), found["note"])))
    return (
        {
            "attack": attack,
            "arm": release.name,
            "mechanism": release.name,
            "epsilon": None,
            "stage": "people",
            "worst_case_epsilon": release.epsilon,
            "tokens": None,
            "best": None,
            "expected": None,
        }
        | found
        | {"note": note}
    )


def _published(people: People, right: Mapping[tuple[str, str], Mapping[int, bool]]) -> list[dict[str, Any]]:
    """Return the share of published guesses that were right, and of ours about the same authors, by attribute."""
    found = []
    number = {name: author for author, name in enumerate(people.names)}
    for text, release in (("comments", _CLEAR), ("comments_redacted", _COMMERCIAL)):
        for attribute in people.attributes:
            ours = right.get((release, attribute), {})
            theirs = {
                number[author]: hit
                for said, author, of, hit in people.published
                if said == text and of == attribute and number.get(author) in ours
            }
            if len(theirs) < users.LEAST_OF_A_VALUE:
                continue
            values = Counter(people.attributes[attribute][author] for author in theirs)
            rates = {"gpt4": [*theirs.values()], "ours": [ours[author] for author in theirs]}
            found.append(
                {
                    "text": text,
                    "attribute": attribute,
                    "authors": len(theirs),
                    "baseline": max(values.values()) / len(theirs),
                    **{who: float(np.mean(hits)) for who, hits in rates.items()},
                    **{
                        f"{who}_interval": intervals.interval(float(np.mean(hits)), len(hits), 1.0)
                        for who, hits in rates.items()
                    },
                }
            )
    return found


def summary(results: Mapping[str, Any]) -> str:
    """Return the results as Markdown: arms, attributes, published guesses, and all attacks."""
    attributes = list(dict.fromkeys(e["attribute"] for e in results["entries"] if "attribute" in e))
    at = {(e["arm"], e.get("attribute", "linkage")): e for e in results["entries"]}
    rows = []
    for arm in results["arms"]:
        cells = [at.get((arm["name"], name)) for name in (*attributes, "linkage")]
        epsilon = "no guarantee (∞)" if math.isinf(arm["user_epsilon"]) else markdown.number(arm["user_epsilon"])
        rows.append(
            [
                arm["name"],
                epsilon,
                _pm(arm["use"], arm["use_error"]),
                _pm(arm["gain"], arm["gain_error"]),
                *(
                    "–" if e is None else "{:.3f} ({:.3f} to {:.3f})".format(e["success"], *e["interval"])
                    for e in cells
                ),
            ]
        )
    first = {name: next(e for e in results["entries"] if e.get("attribute") == name) for name in attributes}
    share = "" if results["task"] is None else f"{results['task']['most_frequent']:.3f}"
    rows.append(["most frequent value", "", share, "0", *(f"{first[n]['baseline']:.3f}" for n in attributes), ""])
    lines = [
        f"{results['authors']} authors, {results['comments']:,} comments, seed {results['seed']}.",
        "",
        markdown.table(
            ["release", "ε of a user", "task accuracy", "mean gain of the attacker", *attributes, "linkage"], rows
        ),
        "",
        "Task accuracy: sentiment by a teacher, on comments as written of authors whose releases were not learned "
        "from. Gain: success minus the most frequent value's, mean of the attributes. ±: one standard error by author; "
        "in brackets: exact 95 % intervals.",
    ]
    if results["published"]:
        rows = [
            [
                p["text"],
                p["attribute"],
                p["authors"],
                f"{p['baseline']:.3f}",
                *("{:.3f} ({:.3f} to {:.3f})".format(p[who], *p[f"{who}_interval"]) for who in ("gpt4", "ours")),
            ]
            for p in results["published"]
        ]
        headings = ["text", "attribute", "authors", "most frequent value", "GPT-4, published", "our attack"]
        lines += ["", markdown.table(headings, rows)]
    return "\n".join([*lines, "", table(results)])


def _pm(value: float | None, error: float | None) -> str:
    return "–" if value is None else f"{value:.3f} ± {error:.3f}"


def figure(results: Mapping[str, Any]) -> Any:
    """Return the figure: what an attacker learns of a person, against what a model learns of the task."""
    drawn, axes = new_figure(7.2, 5.0)
    for i, arm in enumerate(arm for arm in results["arms"] if arm["use"] is not None and arm["gain"] is not None):
        private = not math.isinf(arm["user_epsilon"])
        axes.errorbar(
            [arm["gain"]],
            [arm["use"]],
            xerr=[1.96 * arm["gain_error"]],
            yerr=[1.96 * arm["use_error"]],
            color=COLOURS[i % 6],
            marker=MARKERS[(i // 6 + i) % 6],
            markersize=6,
            capsize=2,
            linewidth=1,
            linestyle="none",
            markerfacecolor=COLOURS[i % 6] if private else "white",
            label=arm["name"] + ("" if private else " (no guarantee)"),
        )
    for text, style in (("comments", "--"), ("comments_redacted", ":")):
        theirs = [p for p in results["published"] if p["text"] == text]
        if theirs:
            x = float(np.average([p["gpt4"] - p["baseline"] for p in theirs], weights=[p["authors"] for p in theirs]))
            named = ", ".join(p["attribute"].split("_")[0] for p in theirs)
            axes.axvline(
                x,
                color="black",
                linestyle=style,
                linewidth=1,
                label=f"GPT-4 on {text.replace('_', ' ')}, published ({named})",
            )
    if results["task"] is not None:
        axes.axhline(results["task"]["most_frequent"], color="grey", linewidth=0.8, label="most frequent sentiment")
    axes.set_xlabel("attacker's gain about a person: success minus the most frequent value (mean of attributes)")
    axes.set_ylabel("accuracy of the task's model")
    axes.set_title("What is learned of a person, and of the task (bars: 95 %)", loc="left", fontsize=9)
    drawn.legend(loc="outside lower center", ncols=2, fontsize=7, frameon=False)
    return drawn


def run(
    folder: Path,
    out: Path,
    *,
    labelled: Path | None = None,
    masked_lm: str | None = None,
    most: int | None = None,
    releases: Sequence[str] = (),
    seed: int = 1,
) -> dict[str, Any]:
    """Compare releases of the comments in a folder, and write people.json, people.md and people.png.

    Args:
        folder: Folder of comments, as `read` takes it.
        out: Folder of the results.
        labelled: File of labelled sentences for the task.
        masked_lm: Folder of a masked language model in client form for DP-MLM, or "minilm" for the bundled one.
        most: Comments of each author, at most.
        releases: Names of text releases; () for all.
        seed: Seed of all random choices.

    Returns:
        The results.

    Raises:
        UserError: The data are missing. The message is one line.
    """
    people = read(folder, most)
    task = None if labelled is None else sentiment(labelled, people.texts, seed)
    nothing = Corpus((), np.zeros(0, np.int64), ("none",))  # data for fine-tuning, which is off
    arm = {"name": "any", "reference": True, "embedding": {"mechanism": "identity", "dim": 16}}
    standard = from_table({"name": "people", "arm": [arm]})
    encoder = CachedEncoder(
        encoder_folder(standard.encoder, nothing, batch_size=standard.training.batch_size, seed=seed)
    )
    words = vocabulary_folder(MINILM, public_texts=None if task is None else task.public)
    texts = {name: spec for name, spec in TEXTS.items() if not releases or name in releases}
    model = None if masked_lm is None else Path(masked_lm)
    if masked_lm == MINILM:
        model = bundled_masked_lm()
    results = compare(Study(people, task, model, texts, seed, encoder, words))
    out.mkdir(parents=True, exist_ok=True)
    text = json.dumps(json_ready(results), indent=2, ensure_ascii=False, allow_nan=False)
    for name, content in (("people.json", text), ("people.md", summary(results))):
        with whole(out / name) as file:
            file.write((content + "\n").encode())
    with whole(out / "people.png") as file:
        save(figure(results), file)
    return results
