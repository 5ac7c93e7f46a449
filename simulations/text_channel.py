"""What the text channel of a study works with: its vocabulary, its masked language model, its arms' mechanisms."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from client import masked_lm, texts
from client import vocabulary as vocabularies
from client.words import joined
from mechanisms.streams import SimulationStreams
from mechanisms.text import Text
from mechanisms.vocabulary import Vocabulary
from simulations.cache import Progress
from simulations.corpus import Corpus
from simulations.errors import UserError
from simulations.experiment import BUNDLED_LM, CHECKPOINT, NONE, Arm, Experiment, stand_in, text_mechanism
from simulations.masked_lm import masked_lm_folder
from simulations.vocabularies import MINILM, vocabulary_folder

#: Of logits, where a mechanism's price is asked for and none is drawn.
UNIT_BOUNDS = (0.0, 1.0)


@dataclass(frozen=True)
class Words:
    """folder: the vocabulary's, which every node has too. masked_lm: the folder of the masked language model, None
    where no arm reads one; bounds: of its logits."""

    vocabulary: Vocabulary
    folder: Path
    masked_lm: Path | None = None
    bounds: tuple[float, float] | None = None

    def mechanism(self, arm: Arm) -> Text:
        """The text mechanism of an arm. Raises UserError."""
        assert arm.text is not None
        try:
            return text_mechanism(arm.text, self.vocabulary, bounds=self.bounds)
        except ValueError as error:
            raise UserError(f'arm "{arm.name}": text: {error}') from error

    def identity(self, text: Text) -> str:
        """What a request calls the masked language model: "" where the mechanism reads none."""
        return masked_lm.load(self.masked_lm).identity if text.word.reads and self.masked_lm else ""

    def sanitize_public(self, text: Text, lines: list[str], *, seed: int, stage: str) -> list[str]:
        """*Public* texts as users' come out: one simulated draw each; nobody is charged for it."""
        rows = np.arange(len(lines), dtype=np.int64)
        drawn = texts.draw(
            text, lines, rows, np.zeros_like(rows), streams=SimulationStreams(seed), stage=stage,
            masked_lm=self.masked_lm,
        )  # fmt: skip
        return [self.vocabulary.text(row) for row in drawn]


def prepare_words(experiment: Experiment, public: Corpus, *, progress: Progress) -> Words | None:
    """The vocabulary, counted on the public part and tagged if an arm needs tags, and the masked language model; None
    where no arm releases texts. Raises UserError where an arm's own users would refuse what it asks."""
    arms = [arm for arm in experiment.arms if arm.text is not None]
    if not arms:
        return None
    lines = as_lines(public)
    words = _vocabulary(experiment, arms, lines, progress)
    if (source := _language_model(experiment, arms)) is not None:
        folder = masked_lm_folder(source, lines, seed=experiment.seed, progress=progress)
        found = masked_lm.load(folder)
        words = Words(words.vocabulary, words.folder, folder, (found.low, found.high))
    for arm in arms:
        experiment.check_text(arm, words.mechanism(arm))
    return words


def words_to_price(experiment: Experiment, public: Corpus) -> Words | None:
    """As `prepare_words`, without the masked language model, which takes minutes to make: what a draw costs depends on
    how many words there are, and not on where their logits are clipped. Its mechanisms are not to be drawn from."""
    arms = [arm for arm in experiment.arms if arm.text is not None]
    if not arms:
        return None
    words = _vocabulary(experiment, arms, as_lines(public), lambda line: None)
    if _language_model(experiment, arms) is not None:
        words = Words(words.vocabulary, words.folder, None, UNIT_BOUNDS)
    for arm in arms:
        experiment.check_text(arm, words.mechanism(arm))
    return words


def _vocabulary(experiment: Experiment, arms: list[Arm], public: list[str], progress: Progress) -> Words:
    settings = experiment.text
    source = experiment.encoder.model if settings.words == CHECKPOINT else settings.words
    progress(f"preparing the vocabulary of {source}")
    folder = vocabulary_folder(source, public_texts=public, tags=any(_needs_tags(arm) for arm in arms))
    return Words(vocabularies.loaded(folder), folder)


def as_lines(corpus: Corpus) -> list[str]:
    """The texts of a corpus; a pair as its two texts with a space between."""
    return [joined(text) for text in corpus.texts]


def trial(arm: Arm) -> Text:
    """The arm's mechanism on stand-in words, before there is a vocabulary."""
    assert arm.text is not None
    return text_mechanism(arm.text, stand_in(), bounds=UNIT_BOUNDS)


def _needs_tags(arm: Arm) -> bool:
    """Whether the mechanism refuses, or cannot work with, words that nobody has tagged."""
    return arm.text is not None and "syntax" in arm.text["mechanism"]


def _language_model(experiment: Experiment, arms: list[Arm]) -> str | None:
    """The checkpoint of the masked language model that an arm reads; None where none does. UserError where one does,
    and the experiment names none."""
    readers = [arm.name for arm in arms if trial(arm).word.reads]
    model = experiment.text.masked_lm
    if readers and model == NONE:
        raise UserError(
            f'arm "{readers[0]}": text: reads a masked language model; set text.masked-lm = "{BUNDLED_LM}" or a folder'
        )
    return None if not readers else MINILM if model == BUNDLED_LM else model
