"""What the text channel of a study works with: its vocabulary, its masked language model, its arms' mechanisms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from client.models import masked_lm, texts
from client.models import vocabulary as vocabularies
from client.models.tokens import in_form, joined
from mechanisms.streams import SimulationStreams
from mechanisms.vocabulary import Vocabulary
from mechanisms.words.text import TextMechanism
from simulations.artifacts.masked_lm import masked_lm_folder
from simulations.artifacts.vocabulary import MINILM, vocabulary_folder
from simulations.corpora.corpus import Text
from simulations.errors import UserError
from simulations.experiment import (
    BUNDLED_LM,
    CHECKPOINT,
    NONE,
    UNIT_BOUNDS,
    Arm,
    Experiment,
    text_mechanism,
    trial_text_of,
)
from simulations.progress import Progress


@dataclass(frozen=True)
class StudyRewriter:
    """Sanitizes *public* text as users sanitize theirs (`server.protocols.protocol.PublicRewriter`).

    folder: the vocabulary's, which every node has too. masked_lm: the folder of the masked language model, None where
    no arm reads one; bounds: of its logits. model: the checkpoint that a training end to end starts from; pretrain: for
    how many batches it first learns to restore sanitized public text, from the seed; None where it does not.
    """

    vocabulary: Vocabulary
    folder: Path
    masked_lm: Path | None = None
    bounds: tuple[float, float] | None = None
    model: str = ""
    pretrain: int | None = None
    seed: int = 0

    def mechanism(self, arm: Arm) -> TextMechanism:
        """The text mechanism of an arm. Raises UserError."""
        assert arm.text is not None
        try:
            return text_mechanism(arm.text, self.vocabulary, bounds=self.bounds)
        except ValueError as error:
            raise UserError(f'arm "{arm.name}": text: {error}') from error

    def identity(self, text: TextMechanism) -> str:
        """What a request calls the masked language model: "" where the mechanism reads none."""
        return masked_lm.load(self.masked_lm).identity if text.word.reads and self.masked_lm else ""

    def in_form(self, text: TextMechanism, texts: Sequence[Text]) -> list[Text]:
        """Each text as users sanitize it: a pair as two texts, or, of a mechanism of one side, as one."""
        return in_form(texts, text.sides)

    def sanitize(self, text: TextMechanism, texts_: Sequence[Text], *, seed: int, stage: str) -> list[Text]:
        """Public texts as users' come out, one simulated draw each; nobody is charged for it."""
        rows = np.arange(len(texts_), dtype=np.int64)
        drawn = texts.draw(
            text, texts_, rows, np.zeros_like(rows), streams=SimulationStreams(seed), stage=stage,
            masked_lm=self.masked_lm,
        )  # fmt: skip
        return text.texts(drawn)

    def checkpoint(self, text: TextMechanism, texts_: Sequence[Text], *, progress: Progress) -> str | Path:
        """The encoder as it is, or pretrained on sanitized public text."""
        if self.pretrain is None:
            return self.model
        read = as_lines(texts_) if text.sides == 1 else texts_
        folder = masked_lm_folder(
            self.model, read, seed=self.seed, sanitizer=text.side, steps=self.pretrain, progress=progress
        )
        return folder / "checkpoint"


def prepare_rewriter(
    experiment: Experiment, public: Sequence[Text], *, progress: Progress
) -> StudyRewriter | None:
    """The vocabulary, counted on the public texts and tagged if an arm needs tags, and the masked language model; None
    where no arm releases texts. Raises UserError where an arm's own users would refuse what it asks."""
    arms = [arm for arm in experiment.arms if arm.text is not None]
    if not arms:
        return None
    lines = as_lines(public)
    rewriter = _with_vocabulary(experiment, arms, lines, progress)
    if (source := _language_model(experiment, arms)) is not None:
        folder = masked_lm_folder(source, public, seed=experiment.seed, progress=progress)
        model = masked_lm.load(folder)
        rewriter = replace(rewriter, masked_lm=folder, bounds=(model.low, model.high))
    for arm in arms:
        experiment.check_text(arm, rewriter.mechanism(arm))
    return rewriter


def saved_rewriter(experiment: Experiment, vocabulary: Path, language_model: Path | None) -> StudyRewriter:
    """As `prepare_rewriter` had made it, from the folders of the vocabulary and of the masked language model."""
    bounds = None
    if language_model is not None:
        model = masked_lm.load(language_model)
        bounds = (model.low, model.high)
    return _study_rewriter(experiment, vocabulary, masked_lm=language_model, bounds=bounds)


def rewriter_to_price(experiment: Experiment, public: Sequence[Text]) -> StudyRewriter | None:
    """As `prepare_rewriter`, without the masked language model, which takes minutes to make: what a draw costs depends
    on how many words there are, and not on where their logits are clipped. Its mechanisms are not to be drawn from."""
    arms = [arm for arm in experiment.arms if arm.text is not None]
    if not arms:
        return None
    rewriter = _with_vocabulary(experiment, arms, as_lines(public), lambda line: None)
    if _language_model(experiment, arms) is not None:
        rewriter = replace(rewriter, bounds=UNIT_BOUNDS)
    for arm in arms:
        experiment.check_text(arm, rewriter.mechanism(arm))
    return rewriter


def as_lines(texts: Sequence[Text]) -> list[str]:
    """Each text; a pair as its two texts with a space between."""
    return [joined(text) for text in texts]


def _with_vocabulary(
    experiment: Experiment, arms: list[Arm], public: list[str], progress: Progress
) -> StudyRewriter:
    settings = experiment.text
    source = experiment.encoder.model if settings.words == CHECKPOINT else settings.words
    progress(f"preparing the vocabulary of {source}")
    tags = any(_needs_tags(arm) for arm in arms)
    folder = vocabulary_folder(source, public_texts=public, tags=tags, progress=progress)
    return _study_rewriter(experiment, folder)


def _study_rewriter(experiment: Experiment, folder: Path, **language_model: Any) -> StudyRewriter:
    settings = experiment.text
    return StudyRewriter(
        vocabularies.load_cached(folder), folder, model=experiment.encoder.model, seed=experiment.seed,
        pretrain=settings.pretrain_steps if settings.pretrain else None, **language_model,
    )  # fmt: skip


def _needs_tags(arm: Arm) -> bool:
    """Whether the mechanism refuses, or cannot work with, words that nobody has tagged."""
    return arm.text is not None and "syntax" in arm.text["mechanism"]


def _language_model(experiment: Experiment, arms: list[Arm]) -> str | None:
    """The checkpoint of the masked language model that an arm reads; None where none does. UserError where one does,
    and the experiment names none."""
    readers = [arm.name for arm in arms if trial_text_of(arm).word.reads]
    model = experiment.text.masked_lm
    if readers and model == NONE:
        raise UserError(
            f'arm "{readers[0]}": text: reads a masked language model; set text.masked-lm = "{BUNDLED_LM}" or a folder'
        )
    return None if not readers else MINILM if model == BUNDLED_LM else model
