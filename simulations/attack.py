"""Attacks on what a run's users released: the server's guesses, beside the best possible and what the theorem allows.

The adversary (`server.attacks`) gets the releases of the nodes' ledgers, the vocabulary with its public counts, and the
mechanism. The truth, which lies in the same run folder, meets its guesses in `simulations.attack_scores` alone.
"""

from __future__ import annotations

import difflib
import json
import math
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client import masked_lm as masked_lms
from client import texts
from client import vocabulary as vocabularies
from client.ledger import Ledger, LedgerError
from client.node import Node, load_node
from client.words import numbers
from mechanisms.streams import SimulationStreams
from mechanisms.text import Text
from server.attacks import linkage, tokens
from server.attacks.channel import Channel
from simulations import attack_scores as scores
from simulations.errors import UserError
from simulations.experiment import Arm, Experiment, load, slug, text_mechanism

IntArray = NDArray[np.int64]
Progress = Callable[[str], None]

#: What each attack does, by its name on the command line.
ATTACKS = {
    "bayes": "the word of largest posterior given the released word",
    "copy": "the released word itself",
    "mask": "what a masked language model puts in the released word's place",
    "linkage": "which of two releases come from one text",
}
#: The share of unknown words that linkage reckons with: public counts say nothing of them.
_UNKNOWN = 0.1
#: Texts that linkage matches, at most: every pair is looked at, place by place.
_LINKED = 250


@dataclass(frozen=True)
class Attack:
    """What to attack. names, arms: all that apply where there are none. limit: texts of each arm, at most. masked_lm: a
    checkpoint with a prediction head for `mask`; None: that of the run, if it has one."""

    run: Path
    names: tuple[str, ...] = ()
    arms: tuple[str, ...] = ()
    limit: int = 500
    masked_lm: Path | None = None


@dataclass(frozen=True)
class Held:
    """Releases of an arm and, for the scores alone, the truth. released, truth: (n, L) numbers of words. lines: the
    texts, of users and records (n,)."""

    stage: str
    released: IntArray
    truth: IntArray
    lines: list[str]
    users: IntArray
    records: IntArray


def run(attack: Attack, *, progress: Progress = lambda line: None) -> dict[str, Any]:
    """Every attack on every arm, as entries of a JSON object. UserError, one line, where there is nothing to attack, or
    no attack or arm of a name."""
    study, nodes, arms = _checked(attack)
    words, language_model = _installed(nodes)
    entries: list[dict[str, Any]] = []
    skipped: list[str] = []
    for arm in arms:
        text = _mechanism(arm, words, language_model)
        held = _held(attack, study, arm, text, nodes)
        progress(f"{arm.name}: {len(held.lines):,} released texts of stage {held.stage}")
        target = _Target(attack, study, arm, text, held, language_model, progress)
        for name in dict.fromkeys(attack.names or ATTACKS):
            try:
                entries.append(target.entry(name))
            except _Skipped as why:
                if attack.names and len(arms) == 1:
                    raise UserError(f"--attack {name}: {arm.name}: {why}") from None
                skipped.append(f"{name} on {arm.name}: {why}")
    return {
        "name": study.name,
        "run": str(attack.run),
        "vocabulary": {"words": len(words), "sha256": words.identity},
        "limit": attack.limit,
        "entries": entries,
        "skipped": skipped,
    }


def _checked(attack: Attack) -> tuple[Experiment, list[Node], list[Arm]]:
    for name in attack.names:
        if name not in ATTACKS:
            raise UserError(f"--attack {name}: there is none of that name; {_nearest(name, ATTACKS)}")
    if attack.limit < 2:
        raise UserError(f"--limit {attack.limit}: at least 2 texts are needed")
    if attack.masked_lm is not None and not attack.masked_lm.is_dir():
        raise UserError(f"--masked-lm {attack.masked_lm}: there is no such folder")
    if not (attack.run / "experiment.toml").is_file():
        raise UserError(f"{attack.run}: is no run folder: it has no experiment.toml")
    study = load(attack.run / "experiment.toml")
    arms = [arm for arm in study.arms if arm.text is not None]
    known = {arm.name: arm for arm in study.arms}
    for name in attack.arms:
        if name not in known:
            raise UserError(f"--arm {name}: the run has none of that name; {_nearest(name, known)}")
        if known[name].text is None:
            raise UserError(f"--arm {name}: releases no texts, and only texts are attacked so far")
    folders = sorted(p.parent for p in attack.run.glob("nodes/*/node.json"))
    if not arms or not folders:
        raise UserError(f"{attack.run}: holds no releases of texts; run an experiment whose arms release texts")
    nodes = [load_node(folder) for folder in folders]
    return study, nodes, [arm for arm in arms if not attack.arms or arm.name in attack.arms]


def _nearest(name: str, known: Any) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}"


def _installed(nodes: list[Node]) -> tuple[Any, Path | None]:
    """The vocabulary of the run's nodes, and the folder of their masked language model."""
    folder = nodes[0].words
    if folder is None:
        raise UserError(f"{nodes[0].folder}: has no vocabulary; its users released no texts")
    try:
        return vocabularies.loaded(folder), nodes[0].masked_lm
    except ValueError as error:
        raise UserError(f"{nodes[0].folder / 'node.json'}: {error}") from error


def _mechanism(arm: Arm, words: Any, language_model: Path | None) -> Text:
    assert arm.text is not None
    bounds = None
    try:
        if language_model is not None:
            found = masked_lms.load(language_model)
            bounds = found.low, found.high
        return text_mechanism(arm.text, words, bounds=bounds)
    except ValueError as error:
        raise UserError(f'arm "{arm.name}": text: {error}') from error


def _held(attack: Attack, study: Experiment, arm: Arm, text: Text, nodes: list[Node]) -> Held:
    """Releases of training users, else of test users; `attack.limit` of them, picked by the study's seed."""
    found: dict[str, list[tuple[Node, int, int, bytes]]] = {"train": [], "test": []}
    stages: dict[str, set[str]] = {"train": set(), "test": set()}
    theorem = text.guarantee
    for node in nodes:
        path = node.folder / f"ledger-{slug(arm.name)}.sqlite"
        if not path.is_file():
            continue
        try:
            with Ledger(path, durable=False) as ledger:
                rows = ledger.rows()
        except LedgerError as error:
            raise UserError(f"{path}: {error}") from error
        for row in rows:
            if row.channel != "text":
                continue
            if row.guarantee != theorem or len(row.payload) != 4 * text.tokens:
                raise UserError(f'{path}: was not written by arm "{arm.name}" as experiment.toml describes it')
            split = "train" if row.stage.startswith("train") else "test"
            found[split].append((node, row.user, row.record, row.payload))
            stages[split].add(row.stage)
    split = "train" if found["train"] else "test"
    releases = sorted(found[split], key=lambda each: each[1:])
    if len(releases) < 2:
        raise UserError(f'{attack.run}: arm "{arm.name}" has fewer than two released texts')
    picked = np.sort(np.random.default_rng([study.seed, 6]).permutation(len(releases))[: attack.limit])
    chosen = [releases[i] for i in picked]
    lines: dict[tuple[int, int], str] = {}
    for node in {each[0].folder: each[0] for each in chosen}.values():
        shard = node.shard(split)
        keys = zip(shard.users.tolist(), shard.records.tolist(), strict=True)
        lines |= dict(zip(keys, shard.lines(np.arange(len(shard))), strict=True))
    missing = [each[1:3] for each in chosen if each[1:3] not in lines]
    if missing:
        raise UserError(f"{attack.run}: user {missing[0][0]} has released a text that its node does not hold")
    texts_ = [lines[each[1:3]] for each in chosen]
    payload = b"".join(each[3] for each in chosen)
    return Held(
        stage=", ".join(sorted(stages[split])),
        released=np.frombuffer(payload, dtype="<i4").reshape(-1, text.tokens).astype(np.int64),
        truth=numbers(texts_, text),
        lines=texts_,
        users=np.array([each[1] for each in chosen], dtype=np.int64),
        records=np.array([each[2] for each in chosen], dtype=np.int64),
    )


class _Skipped(Exception):
    """An attack that does not apply, and why."""


@dataclass(frozen=True, eq=False)
class _Target:
    """One arm under attack."""

    attack: Attack
    study: Experiment
    arm: Arm
    text: Text
    held: Held
    language_model: Path | None
    progress: Progress

    @property
    def names(self) -> tuple[str, ...]:
        """The attacks that are asked for."""
        return self.attack.names or tuple(ATTACKS)

    def entry(self, name: str) -> dict[str, Any]:
        """One attack's line. Raises _Skipped where it does not apply."""
        kinds = {"bayes": self._bayes, "copy": self._copy, "mask": self._mask, "linkage": self._linkage}
        found = kinds[name]()
        error = found["error"]
        self.progress(f"{self.arm.name}: {name}: {found['success']:.3f}" + (f" ± {error:.3f}" if error else ""))
        worst = self.text.word.guarantee.worst_case()
        return {
            "attack": name,
            "arm": self.arm.name,
            "mechanism": self.text.name,
            "epsilon": getattr(self.text.word, "epsilon", None),
            "worst_case_epsilon": worst,
            "stage": self.held.stage,
            "texts": len(self.held.lines),
        } | found

    # --- tokens

    def _bayes(self) -> dict[str, Any]:
        found = self._decoded
        released = self.held.released
        at_most = tokens.guessed(released, found.top)
        extra = {
            "expected": found.expected(self._frequencies),
            "best_under_prior": float(found.best[0]),
            "success_of_5": self._rate(at_most).success,
            "law": "exact" if self._channel.exact else f"estimated, {self._channel.draws} draws of each word",
        }
        return self._tokens(tokens.guessed(released, found.guesses[0])) | extra

    def _copy(self) -> dict[str, Any]:
        extra = {}
        if self._exact:
            extra = {"expected": float(self._frequencies[:-1] @ self._decoded.unchanged)}
        return self._tokens(self.held.released) | extra

    def _mask(self) -> dict[str, Any]:
        from server.attacks.masked_tokens import MaskAttack

        checkpoint = self.attack.masked_lm
        if checkpoint is None and self.language_model is not None and (self.language_model / "checkpoint").is_dir():
            checkpoint = self.language_model / "checkpoint"
        if checkpoint is None:
            raise _Skipped("needs a masked language model; name its folder with --masked-lm")
        model = MaskAttack(checkpoint, self.text.vocabulary)
        guesses = model.guesses(
            self.held.released, progress=lambda line: self.progress(f"{self.arm.name}: mask: {line}")
        )
        # it reads the words around: what single tokens allow does not bound it
        return self._tokens(guesses) | {"best": None, "bound": None}

    def _tokens(self, guesses: IntArray) -> dict[str, Any]:
        found = scores.rate(guesses, self.held.truth, self._scored)
        return {
            "success": found.success,
            "error": found.error,
            "tokens": int(self._scored.sum()),
            "baseline": float(self._frequencies[self._prior.argmax()]),
            "best": float(self._decoded.best[1]) if self._exact else None,
            "bound": tokens.bound(self.text, self._frequencies),
            "expected": None,
        }

    def _rate(self, guesses: IntArray) -> scores.Rate:
        return scores.rate(guesses, self.held.truth, self._scored)

    @cached_property
    def _scored(self) -> NDArray[np.bool_]:
        if getattr(self.text.word, "moves", False):
            raise _Skipped("its words do not stand where the text's do")
        where = scores.scored(self.held.released, self.held.truth, len(self.text.vocabulary))
        if not where.any():
            raise _Skipped("no word of the vocabulary was released in its place")
        return where

    @cached_property
    def _frequencies(self) -> NDArray[np.float64]:
        return scores.frequencies(self.held.truth, self._scored, len(self.text.vocabulary))

    @cached_property
    def _prior(self) -> NDArray[np.float64]:
        return self._public_prior(0.0)

    def _public_prior(self, unknown: float) -> NDArray[np.float64]:
        prior = np.where(self.text.dropped, 0.0, tokens.unigram(self.text.vocabulary, unknown=unknown))
        return prior / prior.sum()

    @cached_property
    def _exact(self) -> bool:
        """Whether the law of a released word is known."""
        try:
            return self._channel.exact
        except _Skipped:
            return False

    @cached_property
    def _channel(self) -> Channel:
        try:
            return Channel(self.text, self.study.seed)
        except ValueError as error:
            raise _Skipped(str(error)) from error

    @cached_property
    def _decoded(self) -> tokens.Decoded:
        """Under the public prior, which the guesses are made by, and under the true frequencies, for the scores."""
        priors = np.stack([self._prior, self._frequencies])
        return tokens.decode(
            self._channel, priors, progress=lambda line: self.progress(f"{self.arm.name}: bayes: {line}"),
            also=self._pairs.add if "linkage" in self.names else None,  # one way through the words serves both
        )  # fmt: skip

    # --- linkage

    @cached_property
    def _pairs(self) -> linkage.Evidence:
        """Released texts, and each drawn once more, as for another stage, from a stream of its own."""
        held, n = self.held, min(len(self.held.lines), _LINKED)
        again = texts.draw(
            self.text, held.lines[:n], held.users[:n], held.records[:n],
            streams=SimulationStreams(self.study.seed), stage="attack-linkage",
        )  # fmt: skip
        return linkage.Evidence(self._public_prior(_UNKNOWN), held.released[:n], again.astype(np.int64))

    def _linkage(self) -> dict[str, Any]:
        channel, pairs, n = self._channel, self._pairs, min(len(self.held.lines), _LINKED)
        if {"bayes", "copy"} & set(self.names):
            self._decoded  # noqa: B018 - it fills the pairs
        else:
            for x, logs in channel.blocks(np.arange(channel.size + 1)):
                pairs.add(x, logs)
        evidence = pairs.scores(self.text)
        found, auc = scores.matched(evidence), scores.area(evidence)
        return {
            "success": found.success,
            "error": found.error,
            "texts": n,
            "tokens": None,
            "baseline": 1 / n,
            "best": None,
            "bound": linkage.bound(self.text, n),
            "expected": None,
            "auc": auc.success,
            "auc_error": auc.error,
        }


HEADINGS = (
    "arm", "attack", "success", "± s.e.", "baseline", "best possible", "the theorem allows", "ε of a word", "of",
    "note",
)  # fmt: skip


def table(results: dict[str, Any]) -> str:
    """The results as Markdown, with sentences about what the columns mean."""
    lines = ["| " + " | ".join(HEADINGS) + " |", "|" + "---|" * len(HEADINGS)]
    for e in results["entries"]:
        of = f"{e['texts']:,} texts" if e["tokens"] is None else f"{e['tokens']:,} tokens"
        note = ""
        if "auc" in e:
            note = f"AUC {e['auc']:.3f} ± {e['auc_error']:.3f}"
        elif "success_of_5" in e:
            note = f"{e['success_of_5']:.3f} among 5 guesses"
            note += "" if e["law"] == "exact" else f"; law {e['law']}"
        cells = [
            e["arm"], e["attack"], *(_number(e[k]) for k in ("success", "error", "baseline", "best", "bound")),
            _number(e["worst_case_epsilon"]), of, note,
        ]  # fmt: skip
        lines.append("| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |")
    named = dict.fromkeys(e["attack"] for e in results["entries"])
    said = [f"{name}: {ATTACKS[name]}" for name in named]
    notes = [
        "Attacks: " + "; ".join(said) + ".",
        "Tokens that are scored are words of the vocabulary in whose place a word was released. Baseline: always the "
        "word that is most frequent in public text; of linkage, chance. Best possible: the largest success of any "
        "attack that looks at single tokens, if it knew how frequent each word is here. The theorem allows: the same "
        "for the worst mechanism of this guarantee; of linkage, for two releases of a whole text. A mask attack reads "
        "the words around too, and is bounded by neither.",
        *(f"Left out: {line}." for line in results["skipped"]),
    ]
    return "\n".join([*lines, "", *notes])


def write(results: dict[str, Any], folder: Path) -> None:
    """attacks.json and attacks.md, each whole or not at all; those of an earlier attack are replaced."""
    from simulations.report import json_ready

    text = json.dumps(json_ready(results), indent=2, ensure_ascii=False, allow_nan=False)
    for name, content in (("attacks.json", text), ("attacks.md", table(results))):
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=folder, delete=False) as file:
            file.write(content + "\n")
        os.chmod(file.name, 0o644)
        os.replace(file.name, folder / name)


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return "∞" if math.isinf(value) else f"{value:.3g}"
