"""Public part of a training server: public texts, the encoder, and the sanitization of public text."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client.models.encoder import Encoder
from server.protocols.protocol import Public, Text
from server.protocols.public_maps import PublicMaps
from simulations.artifacts.cache import CachedEmbeddings, embed
from simulations.artifacts.encoder import check_trained, checkpoint_of, encoder_folder
from simulations.artifacts.text_channel import prepare_rewriter, saved_rewriter
from simulations.corpora.corpus import Corpus
from simulations.errors import UserError
from simulations.experiment import Experiment
from simulations.experiment.sections import Public as PublicSettings
from simulations.output.atomic import staged

#: Format of the folder of a public part, and the files in it.
FORMAT = 1
_ABOUT, _TEXTS = "public.json", "texts.jsonl"


class CachedEncoder:
    """Exported encoder whose embeddings are cached, text by text (`server.protocols.protocol.Encoding`)."""

    def __init__(self, folder: Path) -> None:
        self._encoder = Encoder(folder)
        self.folder = folder

    @property
    def identity(self) -> str:
        """Return the SHA-256 of the encoder."""
        return self._encoder.identity

    @property
    def precision(self) -> str:
        """Return the precision of the encoder."""
        return str(self._encoder.precision)

    @property
    def width(self) -> int:
        """Return m, the number of coordinates of an embedding."""
        return int(self._encoder.dim)

    def embed(self, texts: Sequence[Text]) -> NDArray[np.float32]:
        """Return sentence embeddings (n, m)."""
        return np.asarray(self.embedded(texts))

    def embedded(self, texts: Sequence[Text]) -> CachedEmbeddings:
        """Return the same, left on the disk."""
        return embed(self._encoder, texts)


def prepare_public(experiment: Experiment, corpus: Corpus) -> Public:
    """The public part of an experiment's data as its training server has it. Raises UserError and ValueError, in one
    line."""
    check_trained(experiment.encoder, experiment.training, experiment.arms)
    encoder = None
    if not experiment.training.protocol.releases_text:
        place = encoder_folder(
            experiment.encoder, corpus, batch_size=experiment.training.batch_size, seed=experiment.seed,
        )  # fmt: skip
        encoder = CachedEncoder(place)
    rewriter = prepare_rewriter(
        experiment.setups, experiment.text, corpus.texts, model=experiment.encoder.model, seed=experiment.seed,
    )  # fmt: skip
    labels = _public_labels(experiment.data.public, corpus, experiment.seed)
    return _with_maps(experiment, Public(
        corpus.texts, labels, corpus.classes, encoder, rewriter=rewriter,
        checkpoint="" if encoder is None else checkpoint_of(experiment.encoder, encoder.folder),
    ))  # fmt: skip


def _public_labels(public: PublicSettings, corpus: Corpus, seed: int) -> NDArray[np.int64] | None:
    """The labels that are public, (n,), -1 for one that is not; None where none is. UserError where more are asked for
    than there are. Fewer are always some of those that are picked where there are more."""
    if not public.any_labels:
        return None
    if public.labelled is None:
        return corpus.labels
    if public.labelled > len(corpus):
        raise UserError(
            f"data.public.labelled: {public.labelled} were asked for, and there are {len(corpus)} public texts"
        )
    order = np.random.default_rng([seed, 8]).permutation(len(corpus))
    labels = np.full(len(corpus), -1, np.int64)
    labels[order[: public.labelled]] = corpus.labels[order[: public.labelled]]
    return labels


def save_public(name: str, public: Public, out: Path) -> None:
    """Writes all that a training server needs into a folder of its own, whole or not at all, for `load_public`."""
    with staged(out) as folder:
        parts = {
            "encoder": getattr(public.encoder, "folder", None), "vocabulary": getattr(public.rewriter, "folder", None),
            "masked_lm": getattr(public.rewriter, "masked_lm", None),
            "checkpoint": public.checkpoint if Path(public.checkpoint).is_dir() else None,
        }  # fmt: skip
        for part, place in parts.items():
            if place is not None:
                shutil.copytree(place, folder / part)
        about = {
            "format": FORMAT, "experiment": name, "classes": list(public.classes),
            "labels": public.labels is not None, **{part: place is not None for part, place in parts.items()},
        }  # fmt: skip
        (folder / _ABOUT).write_text(json.dumps(about, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
        with open(folder / _TEXTS, "w", encoding="utf-8", errors="surrogatepass") as file:
            for row, text in enumerate(public.texts):
                line: dict[str, Any] = {"text": text}
                if public.labels is not None:
                    line["label"] = int(public.labels[row])
                file.write(json.dumps(line, ensure_ascii=False) + "\n")


def load_public(experiment: Experiment, folder: Path) -> Public:
    """What `save_public` has written for the experiment. Raises UserError, in one line, for anything else."""
    try:
        about = json.loads((folder / _ABOUT).read_text(encoding="utf-8"))
        with open(folder / _TEXTS, encoding="utf-8", errors="surrogatepass") as file:
            lines = [json.loads(line) for line in file]
        texts = [text if isinstance(text, str) else tuple(text) for text in (line["text"] for line in lines)]
        labels = np.array([line["label"] for line in lines], np.int64) if about["labels"] else None
        part, classes = experiment.data.public, tuple(about["classes"])
        if about["format"] != FORMAT or about["labels"] != part.any_labels:
            raise ValueError
        known = np.zeros(len(lines), np.int64) if labels is None else np.where(labels == -1, 0, labels)
        Corpus(texts, known, classes)  # checks all of them
        if labels is not None and (labels != -1).sum() != (len(lines) if part.labelled is None else part.labelled):
            raise ValueError
        checkpoint = folder / "checkpoint" if about["checkpoint"] else experiment.encoder.model
        encoder = CachedEncoder(folder / "encoder") if about["encoder"] else None
        rewriter = None
        if about["vocabulary"]:
            models = folder / "masked_lm" if about["masked_lm"] else None
            rewriter = saved_rewriter(
                experiment.text, folder / "vocabulary", masked_lm=models, model=experiment.encoder.model,
                seed=experiment.seed,
            )  # fmt: skip
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{folder}: is no public part of {experiment.name}; make it anew with: sottovoce deploy public"
        ) from error
    return _with_maps(experiment, Public(texts, labels, classes, encoder, rewriter=rewriter, checkpoint=checkpoint))


def _with_maps(experiment: Experiment, public: Public) -> Public:
    """The same with embeddings of the texts, where users have an encoder, and what learns their maps from these."""
    public = replace(public, elsewhere=experiment.data.elsewhere)
    if public.encoder is None:
        return public
    embeddings = public.encoder.embed(public.texts)
    if all(setup.arm.centralised or setup.protocol.releases_vector for setup in experiment.setups):
        return replace(public, embeddings=embeddings)
    maps = PublicMaps(
        embeddings, public.labels, classes=len(public.classes), learned=experiment.training.maps == "learned",
        seed=experiment.seed,
    )  # fmt: skip
    return replace(public, embeddings=embeddings, maps=maps)
