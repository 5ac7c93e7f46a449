"""Masked language model that clients can run, made once from a checkpoint and public texts, then cached."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from client.models.tokens import tokenize
from mechanisms.mechanism import parameters
from mechanisms.pieces import Text
from mechanisms.streams import SimulationStreams
from mechanisms.vocabulary import NOTHING, Vocabulary
from mechanisms.words.text import KEPT, TextMechanism
from simulations.artifacts.cache import folder_once
from simulations.artifacts.encoder import LIBRARIES
from simulations.artifacts.provenance import made_by
from simulations.errors import UserError

log = logging.getLogger(__name__)


def masked_lm_folder(
    model: str | Path,
    public_texts: Sequence[Text],
    *,
    seed: int,
    sanitizer: TextMechanism | None = None,
    steps: int = 500,
    max_length: int = 256,
) -> Path:
    """Return the folder of an exported masked language model (`client.models.masked_lm`).

    Clip bounds come from the public texts. A checkpoint without a prediction head, as "minilm" is, gets one
    by training on the public texts (see `server.training.pretrain`, minutes). Each side of a pair is a text: clients
    read it by itself.

    Args:
        model: Checkpoint.
        public_texts: Public texts.
        seed: Seed of the training.
        sanitizer: Text mechanism, or None. With one, the model learns to predict the original word in text that this
            mechanism sanitized, and its trained checkpoint lies in the folder `checkpoint` within. Its length mechanism
            is left out, so words stay in their places.
        steps: Batches of the training.
        max_length: Most tokens that the model reads.
    """
    from server.accelerator import device
    from server.checkpoint_files import fingerprint
    from server.masked_lm import export_masked_lm, read
    from server.training.pretrain import pretrain

    texts = [side for text in public_texts for side in ((text,) if isinstance(text, str) else text)]
    kept = None if sanitizer is None else replace(sanitizer, length=KEPT)
    if kept is not None and kept.word.reads:
        raise UserError(f"masked-lm: {kept.name} reads {', '.join(kept.word.reads)}; pretrain with another mechanism")
    about = [fingerprint(model), texts, seed, None if kept is None else parameters(kept), steps, max_length]
    # only the training target with a sanitizer depends on the mechanisms' draws
    drawn = ["simulations.artifacts.masked_lm"] if kept is not None else []
    about += [made_by(("server.masked_lm", "server.training.pretrain", *drawn), LIBRARIES), device().type]

    def make(folder: Path) -> None:
        checkpoint: str | Path = model
        if kept is not None or not read(model)[2]:
            why = "to restore sanitized words" if kept is not None else "to have a prediction head"
            log.info(f"training {model} on {len(texts):,} public texts {why}: {steps} batches; kept for later runs")
            clean, noisy = (texts, texts) if kept is None else sanitized(texts, kept, seed=seed)
            checkpoint = pretrain(
                model, clean, folder / "checkpoint", sanitizer=lambda _: noisy, steps=steps, seed=seed
            )
        log.info(f"exporting the masked language model {model}")
        export_masked_lm(checkpoint, folder, public_texts=texts, seed=seed, max_length=max_length)

    return folder_once("masked-lms", about, make)


def sanitized(texts: Sequence[str], text: TextMechanism, *, seed: int) -> tuple[list[str], list[str]]:
    """Return (the texts' words, the draws of `text` for each), with spaces between.

    Word i of one corresponds to word i of the other. A word that is unknown or not drawn is the vocabulary's own
    unknown word.
    """
    vocabulary: Vocabulary = text.vocabulary
    x = np.full((len(texts), text.tokens), NOTHING, dtype=np.int64)
    clean = []
    for row, item in enumerate(texts):
        result = [(word, vocabulary.word_id(word)) for word in tokenize(item, vocabulary)]
        result = [(word, number) for word, number in result if not text.dropped[number]][: text.tokens]
        x[row, : len(result)] = [number for _, number in result]
        clean.append(" ".join(word for word, _ in result))
    people = np.arange(len(texts))
    rng = SimulationStreams(seed).rows(people, np.zeros_like(people), stage="pretraining", channel="text")
    drawn = text.sample(x, rng=rng)
    noisy = [
        " ".join(vocabulary.words[w] if w != NOTHING else "[UNK]" for w in row[: int((word_ids != NOTHING).sum())])
        for row, word_ids in zip(drawn, x, strict=True)
    ]
    return clean, noisy
