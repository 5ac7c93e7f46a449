"""Language models that clients can run, made once from a checkpoint and public texts, then cached.

The bundled checkpoint, MiniLM, comes without a prediction head, which is package data: DP-MLM needs no training on a
new machine. `benchmarks.masked_head` trains the head on the built-in public texts and keeps what the training changed:
the head in half precision, and of each matrix of the encoder the 16 directions in which it moved farthest. That is
1.7 MB, and finds 89 % of the masked words of other built-in texts; the whole finds 96 %. Training again on another
machine gives another file in its last bits.
"""

from __future__ import annotations

import hashlib
import io
import logging
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from client.models import language_models
from client.models.tokens import tokenize
from mechanisms.mechanism import parameters
from mechanisms.pieces import Text
from mechanisms.streams import SimulationStreams
from mechanisms.vocabulary import NOTHING, Vocabulary
from mechanisms.words.text import KEPT, TextMechanism
from simulations.artifacts.cache import folder_once, made_by
from simulations.artifacts.encoder import LIBRARIES
from simulations.artifacts.vocabulary import MINILM
from simulations.errors import UserError

log = logging.getLogger(__name__)

# Nothing here may import torch before it is needed: the cache holds what was made once.

#: Texts of the built-in corpus that a language model learns from by default.
_PUBLIC = 3000
#: Shipped head, and its SHA-256; the checkpoint that it is added to has its own (`server.checkpoint_files`).
HEAD = Path(__file__).with_name("minilm_head.npz")
SHA256 = "e20f269076124695cfa06c655c3562ade43012367219b3df258028c6531898d6"
#: Start of the names of the head's parameters, and most tokens that clients read.
PARAMETERS, MAX_LENGTH = "cls.", 256


def public_sentences() -> Sequence[Text]:
    """Return the default texts for a language model, of the built-in corpus."""
    from simulations.corpora.builtin import builtin

    return builtin(task="sentiment", public=_PUBLIC, train=1, test=1, seed=0).public.texts


def generator_folder(
    checkpoint: str | Path,
    public_texts: Sequence[Text],
    *,
    kind: str,
    prompt: str | None = None,
    seed: int,
) -> Path:
    """Return the folder of an exported generating model, with clip bounds from the public texts.

    A folder that is one already stays as it is.

    Args:
        checkpoint: Checkpoint, or the folder of an exported model.
        public_texts: Public texts.
        kind: "generator" or "paraphraser". It determines the default prompt: nothing, or the request of a paraphrase.
        prompt: Prompt around the text, or None.
        seed: Seed of the export.

    Raises:
        UserError: A prompt is given beside a folder that has its own.
        ValueError: The checkpoint cannot be read.
    """
    folder = Path(checkpoint).expanduser()
    if (folder / language_models.GENERATOR_FILES[-1]).is_file():
        if prompt is not None:
            raise UserError(f"{checkpoint}: was exported with a prompt of its own; name its checkpoint, or no prompt")
        return folder
    from server.accelerator import device
    from server.checkpoint_files import fingerprint
    from server.generation import PARAPHRASE, PROMPT, export_generator

    texts = _sides(public_texts)
    if prompt is None:
        prompt = PROMPT if kind == language_models.GENERATOR else PARAPHRASE
    about = [fingerprint(checkpoint), texts, prompt, seed, made_by(("server.generation",), LIBRARIES), device().type]

    def make(place: Path) -> None:
        log.info(f"exporting the generating model {checkpoint}")
        export_generator(checkpoint, place, public_texts=texts, seed=seed, prompt=prompt)

    return folder_once("generators", about, make)


def together(folders: Mapping[str, Path]) -> Path:
    """Return the folder of the language models of a run, by kind: the only one, or one that holds all of them."""
    if len(folders) == 1:
        return next(iter(folders.values()))
    names = {kind: language_models.identity(folder, kind) for kind, folder in folders.items()}

    def make(place: Path) -> None:
        for kind, folder in folders.items():
            shutil.copytree(language_models.part(folder, kind), place / kind)

    return folder_once("language-models", sorted(names.items()), make)


def masked_lm_folder(
    model: str | Path,
    public_texts: Sequence[Text],
    *,
    seed: int,
    sanitizer: TextMechanism | None = None,
    steps: int = 500,
    max_length: int = 256,
) -> Path:
    """Return the folder of an exported masked language model (`client.models.language_models`).

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

    texts = _sides(public_texts)
    kept = None if sanitizer is None else replace(sanitizer, length=KEPT)
    if kept is not None and kept.word.reads:
        raise UserError(f"masked-lm: {kept.name} reads {', '.join(kept.word.reads)}; pretrain with another mechanism")
    about = [fingerprint(model), texts, seed, None if kept is None else parameters(kept), steps, max_length]
    # only the training target with a sanitizer depends on the mechanisms' draws
    drawn = ["simulations.artifacts.language_models"] if kept is not None else []
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


def _sides(texts: Sequence[Text]) -> list[str]:
    return [side for text in texts for side in ((text,) if isinstance(text, str) else text)]


def bundled_masked_lm() -> Path:
    """Return the folder of the bundled checkpoint with its shipped head, as clients run it.

    It is made in seconds, once.

    Raises:
        UserError: The file is not the shipped one.
    """
    about = made_by(("simulations.artifacts.language_models", "server.masked_lm"), LIBRARIES)

    def make(folder: Path) -> None:
        from server.masked_lm import read, write_masked_lm

        arrays = _shipped()
        model, tokenizer, _ = read(MINILM)
        restore(model, arrays)
        low, high = (float(value) for value in arrays["bounds"])
        write_masked_lm(model, tokenizer, folder, low=low, high=high, max_length=MAX_LENGTH)

    return folder_once("masked-lms", (about, SHA256), make)


def _shipped() -> Mapping[str, np.ndarray]:
    try:
        data = HEAD.read_bytes()
    except OSError as error:
        raise UserError(f"{HEAD}: cannot be read ({error.strerror}); reinstall sottovoce") from None
    if hashlib.sha256(data).hexdigest() != SHA256:
        raise UserError(f"{HEAD}: is not the prediction head that was shipped; reinstall sottovoce")
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
        return dict(arrays)


def restore(model: Any, arrays: Mapping[str, np.ndarray]) -> None:
    """Apply the inverse of `benchmarks.masked_head.compress` in place: the head's values and the encoder's changes.

    The encoder's second text then has the positions of the first.

    Raises:
        ValueError: An array does not belong to this model.
    """
    import torch

    from server.masked_lm import ALIGNED

    parameters = dict(model.named_parameters())
    names = {name.removesuffix(".left").removesuffix(".right") for name in arrays} - {"bounds"}
    if not names <= parameters.keys():
        raise ValueError(f"masked-lm: the head is of another model; {min(names - parameters.keys())} is not there")
    with torch.no_grad():
        for name in sorted(names):
            if f"{name}.left" in arrays:
                left, right = (arrays[f"{name}.{side}"].astype(np.float32) for side in ("left", "right"))
                parameters[name] += torch.from_numpy(left @ right)
            elif name.startswith(PARAMETERS):
                parameters[name].copy_(torch.from_numpy(arrays[name].astype(np.float32)))
            else:
                parameters[name] += torch.from_numpy(arrays[name].astype(np.float32))
    setattr(model.config, ALIGNED, True)
