"""Resources of a run's text channel: its vocabulary, its language models, its arms' mechanisms."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from client.draw import draw_texts
from client.models import language_models
from client.models import vocabulary as vocabularies
from client.models.tokens import in_form, joined
from mechanisms.catalogue import admit
from mechanisms.facts import AboutWords, facts_of
from mechanisms.pieces import Text
from mechanisms.streams import SimulationStreams
from mechanisms.vocabulary import Vocabulary
from mechanisms.words.text import TextMechanism
from simulations.artifacts.language_models import bundled_masked_lm, generator_folder, masked_lm_folder, together
from simulations.artifacts.vocabulary import vocabulary_folder
from simulations.errors import UserError
from simulations.experiment import (
    ANY_MODEL,
    BUNDLED_LM,
    CHECKPOINT,
    NONE,
    Arm,
    ArmSetup,
    Experiment,
    text_mechanism,
    trial_text_of,
)
from simulations.experiment.preflight import check_prices
from simulations.experiment.sections import TextChannel
from simulations.progress import prefixed

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StudyRewriter:
    """Sanitizer of *public* text as users sanitize theirs (`server.protocols.protocol.PublicRewriter`).

    Attributes:
        vocabulary: Vocabulary.
        folder: Folder of the vocabulary, which every node has too.
        masked_lm: Folder of the language models that arms read (`client.models.language_models`), or None.
        declaration: Replacement of the declarations of these models, or None.
        model: Checkpoint from which end-to-end training starts.
        pretrain: Number of batches in which the model first learns to restore sanitized public text, or None.
        seed: Seed of that training.
    """

    vocabulary: Vocabulary
    folder: Path
    masked_lm: Path | None = None
    declaration: Mapping[str, Any] | None = None
    model: str = ""
    pretrain: int | None = None
    seed: int = 0

    def mechanism(self, arm: Arm) -> TextMechanism:
        """Return the text mechanism of an arm.

        Raises:
            UserError: The arm's parameters are invalid.
        """
        assert arm.text is not None
        try:
            return text_mechanism(arm.text, self.vocabulary, model=self._said(arm.text["mechanism"]))
        except ValueError as error:
            raise UserError(f'arm "{arm.name}": text: {error}') from error

    def _said(self, name: str) -> Mapping[str, Any] | None:
        kind = admit(name)
        if self.declaration is not None or self.masked_lm is None or not getattr(kind, "reads", ()):
            return self.declaration
        return language_models.said(kind, language_models.load(self.masked_lm, language_models.kind_of(kind)))

    def identity(self, text: TextMechanism) -> str:
        """Return the identity of the language model for a request, or "" if the mechanism reads none."""
        if not text.word.reads or self.masked_lm is None:
            return ""
        return language_models.load(self.masked_lm, language_models.kind_of(text)).identity

    def in_form(self, text: TextMechanism, texts: Sequence[Text]) -> list[Text]:
        """Return each text as users sanitize it: a pair as two texts, or, for a mechanism of one side, as one."""
        return in_form(texts, text.sides)

    def sanitize(self, text: TextMechanism, texts_: Sequence[Text], *, seed: int, stage: str) -> list[Text]:
        """Return sanitized public texts, one simulated draw each. No user is charged."""
        rows = np.arange(len(texts_), dtype=np.int64)
        drawn = draw_texts(
            text,
            texts_,
            rows,
            np.zeros_like(rows),
            streams=SimulationStreams(seed),
            stage=stage,
            masked_lm=self.masked_lm,
        )
        return text.texts(drawn)

    def checkpoint(self, text: TextMechanism, texts_: Sequence[Text]) -> str | Path:
        """Return the encoder as it is, or pretrained on sanitized public text."""
        if self.pretrain is None:
            return self.model
        read = as_lines(texts_) if text.sides == 1 else texts_
        folder = masked_lm_folder(self.model, read, seed=self.seed, sanitizer=text.side, steps=self.pretrain)
        return folder / "checkpoint"


def prepare_rewriter(experiment: Experiment, public: Sequence[Text], *, to_price: bool = False) -> StudyRewriter | None:
    """Return the vocabulary and the language models of a run; None if no arm releases texts.

    The vocabulary is counted on the public texts, and tagged if an arm needs tags. `to_price` leaves the language
    models out, which take minutes: the price of a draw depends on the number of words and not on the clipping bounds of
    logits. Such mechanisms must not be drawn from.

    Raises:
        UserError: The policy of an arm's own users would refuse its request.
    """
    setups, settings = [setup for setup in experiment.setups if setup.arm.text is not None], experiment.text
    if not setups:
        return None
    source = experiment.encoder.model if settings.words == CHECKPOINT else settings.words
    log.info(f"preparing the vocabulary of {source}")
    specs = [setup.arm.text["mechanism"] for setup in setups if setup.arm.text is not None]
    tags = any(AboutWords.TAGS in facts_of(admit(name)).needs for name in specs)
    rewriter = saved_rewriter(experiment, vocabulary_folder(source, public_texts=as_lines(public), tags=tags))
    if sources := _language_models(setups, settings):
        if to_price:
            rewriter = replace(rewriter, declaration=ANY_MODEL)
        else:
            seed = experiment.seed
            models = {kind: _made(settings, kind, source, public, seed) for kind, source in sources.items()}
            rewriter = replace(rewriter, masked_lm=together(models))
    for setup in setups:
        check_prices(setup, rewriter.mechanism(setup.arm))
    return rewriter


def rewriter_to_price(experiment: Experiment, public: Sequence[Text]) -> StudyRewriter | None:
    """Return what `prepare_rewriter` makes without the language models, and show no progress."""
    with prefixed(None):
        return prepare_rewriter(experiment, public, to_price=True)


def saved_rewriter(experiment: Experiment, folder: Path, *, masked_lm: Path | None = None) -> StudyRewriter:
    """Return what `prepare_rewriter` made, from the folders of the vocabulary and of the language models."""
    settings = experiment.text
    return StudyRewriter(
        vocabularies.load_cached(folder),
        folder,
        masked_lm,
        model=experiment.encoder.model,
        seed=experiment.seed,
        pretrain=settings.pretrain_steps if settings.pretrain else None,
    )


def as_lines(texts: Sequence[Text]) -> list[str]:
    """Return each text; a pair as its two texts with a space between."""
    return [joined(text) for text in texts]


def _language_models(setups: Sequence[ArmSetup], settings: TextChannel) -> dict[str, str]:
    """Return the checkpoints of the language models that arms read, by kind.

    Raises:
        UserError: An arm reads a language model that the experiment does not name.
    """
    named = {
        language_models.MASKED_LM: settings.masked_lm,
        language_models.GENERATOR: settings.generator,
        language_models.PARAPHRASER: settings.paraphraser,
    }
    entries = {}
    for arm in (setup.arm for setup in setups):
        word = trial_text_of(arm).word
        if not word.reads:
            continue
        kind = language_models.kind_of(word)
        if named.get(kind, NONE) == NONE:
            masked = kind == language_models.MASKED_LM
            what = f'"{BUNDLED_LM}" or a checkpoint' if masked else "the folder of a checkpoint that generates text"
            read = language_models.SAID.get(kind, kind)
            raise UserError(f'arm "{arm.name}": text: reads a {read}; set text.{kind} = {what}')
        entries[kind] = named[kind]
    return entries


def _made(settings: TextChannel, kind: str, source: str, public: Sequence[Text], seed: int) -> Path:
    """Return the folder of a language model, as clients read it."""
    if kind == language_models.MASKED_LM:
        if source == BUNDLED_LM:
            return bundled_masked_lm()
        return masked_lm_folder(source, public, seed=seed)
    prompt = settings.prompt if kind == language_models.GENERATOR else settings.paraphraser_prompt
    return generator_folder(source, public, kind=kind, prompt=prompt, seed=seed)
