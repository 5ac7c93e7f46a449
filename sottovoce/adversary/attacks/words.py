"""Attacks on sanitized texts: guesses of the original words, and linkage of two releases of one text.

The adversary (`adversary.estimators`) gets the releases of the nodes' ledgers, the vocabulary with its public counts,
and the mechanism. The truth lies in the same run folder. Only `adversary.attacks.scores` compares the guesses with it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from client.draw import draw_texts
from client.models import language_models
from client.models import vocabulary as vocabularies
from client.models.tokens import padded_word_ids
from client.node import NODE
from mechanisms.arrays import BoolArray, FloatArray, IntArray
from mechanisms.catalogue import admit
from mechanisms.pieces import Text
from mechanisms.streams import SimulationStreams
from mechanisms.words.text import TextMechanism
from simulations.errors import UserError
from simulations.experiment import BOTH, text_mechanism
from simulations.progress import prefixed
from sottovoce.adversary.attacks import scores
from sottovoce.adversary.attacks.target import (
    Result,
    Skipped,
    Target,
    attacked,
    collect,
    payloads,
    result_of,
    rows_of,
    stages,
    texts_of,
    written_by_another,
)
from sottovoce.adversary.estimators import context, tokens
from sottovoce.adversary.estimators.channel import Channel, Table

log = logging.getLogger(__name__)


#: Description of each attack, by its name on the command line.
ATTACKS = {
    "bayes": "the word of largest posterior given the released word",
    "copy": "the released word itself",
    "mask": "what a masked language model puts in the released word's place",
    "context": "the word of largest posterior given the whole text, taken for a chain of words",
    "strongest": "whichever of these guesses does best on one half of the texts, measured on the other",
    "linkage": "which of two releases come from one text",
}
#: Attacks that guess words from one release of each text.
_ONE_RELEASE = ("bayes", "copy", "mask", "context")
#: Explanation of their table's columns.
READING = (
    "Tokens that are scored are words of the vocabulary in whose place a word was released. Baseline: always the word "
    "that is most frequent in public text; of linkage, chance. Best possible: the largest success of any attack that "
    "looks at single tokens, if it knew how frequent each word is here. The theorem allows: the same for the worst "
    "mechanism of this guarantee; of linkage, for two releases of a whole text. Mask and context read the words "
    "around too, and are bounded by neither. Strongest: the attack is chosen on other texts than it is measured on, so "
    "that to have tried several does not flatter it. The worst-case ε is that of a word."
)
#: Assumed share of unknown words in linkage: public counts say nothing about them.
_UNKNOWN = 0.1
#: Assumed share of unknown words in the chain of words, beside public text's own estimate.
_UNSEEN = 0.01
#: Most texts that linkage matches: it computes every pair, place by place.
_LINKED = 250


@dataclass(frozen=True)
class Held:
    """Releases of an arm and, for the scores alone, the truth.

    Released and true words are numbers (n, L). The users and records of the original texts are (n,).
    """

    stage: str
    released: IntArray
    truth: IntArray
    texts: list[Text]
    users: IntArray
    records: IntArray


def entries(target: Target, names: Sequence[str]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the entries of attacks on sanitized texts: see `Target`.

    Raises:
        UserError: The arm has released no texts. The message is one line.
    """
    text, language_model = mechanism_of(target)
    releases_of_arm = held_of(target, text)
    log.info(f"{target.arm.name}: {len(releases_of_arm.texts):,} released texts of stage {releases_of_arm.stage}")
    attack = _Words(target, text, releases_of_arm, language_model)
    return collect(names, lambda name: [attack.result(name)], on=target.arm.name)


def mechanism_of(target: Target) -> tuple[TextMechanism, Path | None]:
    """Return the arm's text mechanism, and the folder of the masked language model that it may read.

    Raises:
        UserError: The run has no vocabulary, or the mechanism cannot be built.
    """
    node, arm, model = target.nodes[0], target.arm, None
    if node.vocabulary_folder is None:
        raise UserError(f"{node.folder}: has no vocabulary; its users released no texts")
    assert arm.text is not None
    try:
        words, language_model = vocabularies.load_cached(node.vocabulary_folder), node.masked_lm
    except ValueError as error:
        raise UserError(f"{node.folder / NODE}: {error}") from error
    try:
        kind = admit(arm.text["mechanism"])
        if language_model is not None and getattr(kind, "reads", None):
            model = language_models.said(kind, language_models.load(language_model, language_models.kind_of(kind)))
        return text_mechanism(arm.text, words, model=model), language_model
    except ValueError as error:
        raise UserError(f'arm "{arm.name}": text: {error}') from error


def channel_of(target: Target, text: TextMechanism) -> Channel:
    """Return the distribution of a released word.

    Raises:
        Skipped: It depends on more than the word in its place.
    """
    try:
        return Channel(text, target.seed)
    except ValueError as error:
        raise Skipped(str(error)) from error


def held_of(target: Target, text: TextMechanism) -> Held:
    """Return the attacked releases of the arm with their original texts: those whose texts it perturbs.

    Raises:
        UserError: There are none.
    """
    rows = [row for row in rows_of(target, "text") if target.arm.perturb in (BOTH, row.split)]
    for row in rows:
        if not row.released.guarantee.agrees(text.guarantee) or len(row.released.payload) != 4 * text.positions:
            raise written_by_another(row, target.arm.name)
    sample = attacked(target, rows, "texts")
    texts_ = texts_of(target, sample)
    return Held(
        stage=stages(sample),
        released=payloads(sample, np.int32).astype(np.int64),
        truth=padded_word_ids(texts_, text),
        texts=texts_,
        users=np.array([row.key[0] for row in sample], dtype=np.int64),
        records=np.array([row.key[1] for row in sample], dtype=np.int64),
    )


def redrawn(
    target: Target,
    text: TextMechanism,
    lines: Sequence[Text],
    users: IntArray,
    records: IntArray,
    stage: str,
    masked_lm: Path | None = None,
) -> IntArray:
    """Return simulated releases of n texts, (n, L)."""
    streams = SimulationStreams(target.seed)
    draws = draw_texts(text, lines, users, records, streams=streams, stage=stage, masked_lm=masked_lm)
    return draws.astype(np.int64)


@dataclass(frozen=True, eq=False)
class _Words:
    """Attacks on the texts of one arm."""

    target: Target
    text: TextMechanism
    held: Held
    language_model: Path | None

    def result(self, name: str) -> Result:
        """Return one attack's result; raise Skipped if it does not apply."""
        if name == "linkage":
            return self._linkage()
        if name == "strongest":
            return self._strongest()
        about: dict[str, Any] = {}
        if name == "bayes":
            decoded, channel = self._decoded, self._channel
            law = "exact" if channel.exact else f"estimated, {channel.draws} draws of each word"
            about = {
                "expected": decoded.expected(self._frequencies),
                "note": "" if channel.exact else f"law {law}",
                "more": {"best_under_prior": float(decoded.best[0]), "law": law},
            }
        elif name == "copy" and self._exact:
            about = {"expected": float(self._frequencies[:-1] @ self._decoded.unchanged)}
        elif name == "context":
            chain, _, texts_read = self._chain
            about = {"note": f"{len(chain.states):,} words, {texts_read:,} public texts"}
        return self._tokens(name, self._guesses(name), alone=name in ("bayes", "copy"), **about)

    def _result(self, name: str, **values: Any) -> Result:
        return result_of(self.target, self.text.word, self.held.stage)(attack=name, **values)

    # --- tokens

    def _strongest(self) -> Result:
        guesses_by_name: dict[str, IntArray] = {}
        for name in _ONE_RELEASE:
            try:
                guesses_by_name[name] = self._guesses(name)
            except Skipped:
                continue  # its own line states the reason
        if len(self.held.texts) < 2 or not guesses_by_name:
            raise Skipped("nothing to choose from")
        guesses, names = scores.chosen_by_the_other_half(guesses_by_name, self.held.truth, self._scored)
        return self._tokens(
            "strongest", guesses, note=" and ".join(dict.fromkeys(names)) + f", of {len(guesses_by_name)}"
        )

    # --- guesses from one release of each text, each made once

    def _guesses(self, name: str) -> IntArray:
        """Return an attack's guesses (n, L); raise Skipped if it does not apply."""
        if name not in self._made:
            if name == "bayes":
                guesses = tokens.guessed(self.held.released, self._decoded.guesses[0])
            elif name == "copy":
                guesses = self.held.released
            elif name == "context":
                guesses = context.guessed(*self._chain[:2], self._alone)
            else:
                with prefixed(f"{self.target.arm.name}: mask: "):
                    guesses = self._masked_lm.guesses(self._alone)
            self._made[name] = guesses.reshape(self.held.released.shape)
        return self._made[name]

    @cached_property
    def _made(self) -> dict[str, IntArray]:
        return {}

    def _sides(self, texts: IntArray) -> IntArray:
        """Return each side of a pair as its own text, (n, positions) -> (sides·n, L)."""
        return texts.reshape(-1, self.text.tokens)

    @property
    def _alone(self) -> IntArray:
        return self._sides(self.held.released)

    @cached_property
    def _masked_lm(self) -> Any:
        from sottovoce.adversary.estimators.masked_tokens import MaskAttack  # torch: seconds, for these attacks alone

        checkpoint = self.target.masked_lm
        if checkpoint is None and self.language_model is not None:
            folder = language_models.part(self.language_model, language_models.MASKED_LM) / "checkpoint"
            checkpoint = folder if folder.is_dir() else None
        if checkpoint is None:
            raise Skipped("needs a masked language model; name its folder with --masked-lm")
        return MaskAttack(checkpoint, self.text.vocabulary)

    @cached_property
    def _chain(self) -> tuple[context.Chain, Table, int]:
        """Return the chain of public texts, the distribution of their released words, and the number of these texts.

        Each side of a pair is a text: no word of one side comes before the other side.
        """
        channel = Channel(self._channel.text.side, self._channel.seed)
        public = self._sides(padded_word_ids(self.target.split().public.texts, self.text))
        chain = context.Chain.fitted(public, self._public_prior(_UNSEEN))
        return chain, Table.of(channel, chain.states, self._alone), len(public)

    def _tokens(self, name: str, guesses: IntArray, *, alone: bool = False, **values: Any) -> Result:
        """Return the result of guesses.

        `alone` is True if each guess reads one released word. Bounds of single tokens do not apply to attacks that read
        the words around too.
        """
        return self._result(
            name,
            rate=self._rate(guesses),
            texts=len(self.held.texts),
            tokens=int(self._scored.sum()),
            baseline=float(self._frequencies[self._prior.argmax()]),
            best=float(self._decoded.best[1]) if alone and self._exact else None,
            bound=tokens.bound(self.text, self._frequencies) if alone else None,
            bound_counts=tokens.bound(self.text, self._frequencies, releases=2) if alone else None,
            **values,
        )

    def _rate(self, guesses: IntArray) -> scores.Rate:
        return scores.rate(guesses, self.held.truth, self._scored)

    @cached_property
    def _scored(self) -> BoolArray:
        if getattr(self.text.word, "moves", False):
            raise Skipped("its words do not stand where the text's do")
        mask = scores.scored(self.held.released, self.held.truth, len(self.text.vocabulary))
        if not mask.any():
            raise Skipped("no word of the vocabulary was released in its place")
        return mask

    @cached_property
    def _frequencies(self) -> FloatArray:
        return scores.frequencies(self.held.truth, self._scored, len(self.text.vocabulary))

    @cached_property
    def _prior(self) -> FloatArray:
        return self._public_prior(0.0)

    def _public_prior(self, unknown: float) -> FloatArray:
        prior = np.where(self.text.dropped, 0.0, tokens.unigram(self.text.vocabulary, unknown=unknown))
        return prior / prior.sum()

    @cached_property
    def _exact(self) -> bool:
        """Return True if the distribution of a released word is known."""
        try:
            return self._channel.exact
        except Skipped:
            return False

    @cached_property
    def _channel(self) -> Channel:
        return channel_of(self.target, self.text)

    @cached_property
    def _decoded(self) -> tokens.Decoded:
        """Return decoded words under the public prior, for the guesses, and the true frequencies, for the scores."""
        with prefixed(f"{self.target.arm.name}: bayes: "):
            return tokens.decode(self._channel, np.stack([self._prior, self._frequencies]))

    # --- linkage

    def _linkage(self) -> Result:
        n, records = min(len(self.held.texts), _LINKED), self.held
        second_draw = redrawn(
            self.target, self.text, records.texts[:n], records.users[:n], records.records[:n], "attack-linkage"
        )
        evidence = tokens.link_evidence(self._channel, self._public_prior(_UNKNOWN), records.released[:n], second_draw)
        area, bound = scores.area_of_pairs(evidence), tokens.link_bound(self.text, n)
        return self._result(
            "linkage",
            rate=scores.matched(evidence),
            texts=n,
            baseline=1 / n,
            bound=bound,
            bound_counts=bound,
            note=f"AUC {area.success:.3f} ± {area.error:.3f}",
            more={"auc": area.success, "auc_error": area.error},
        )
