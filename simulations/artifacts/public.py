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
from client.store.text_column import TextColumn
from mechanisms.pieces import Text
from server.checkpoint_files import fingerprint
from server.protocols.protocol import Public
from server.training.class_names import prototypes_of, sentences_of
from server.training.public_maps import PublicMaps
from simulations.artifacts.cache import CachedEmbeddings, embed
from simulations.artifacts.encoder import check_trained, checkpoint_of, encoder_folder, student_of
from simulations.artifacts.text_channel import prepare_rewriter, saved_rewriter
from simulations.corpora.classes import described, listed
from simulations.corpora.corpus import Corpus
from simulations.errors import UserError
from simulations.experiment import Experiment
from simulations.experiment.sections import PublicConfig
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


def encoder_of(experiment: Experiment, public: Corpus) -> CachedEncoder:
    """Return the encoder of an experiment's users; `public` is its public part, for fine-tuning."""
    training = experiment.training
    folder = encoder_folder(experiment.encoder, public, batch_size=training.batch_size, seed=experiment.seed)
    return CachedEncoder(folder)


def prepare_public(experiment: Experiment, corpus: Corpus) -> Public:
    """Return the public part of an experiment's data, as its training server has it.

    Raises:
        UserError: A setting does not fit the data or the encoder.
        ValueError: The encoder cannot be made.
    """
    check_trained(experiment.encoder, experiment.training, experiment.arms)
    student = student_of(experiment.encoder, experiment.training)
    if student != experiment.encoder:
        fingerprint(student.model)  # whether there is one, before any user is queried
    encoder = None
    if not experiment.training.protocol.releases_text:
        encoder = encoder_of(experiment, corpus)
    rewriter = prepare_rewriter(experiment, corpus.texts)
    labels = public_labels(experiment.data.public, corpus, experiment.seed)
    return with_maps(
        experiment,
        Public(
            corpus.texts,
            labels,
            corpus.classes,
            encoder,
            rewriter=rewriter,
            checkpoint="" if encoder is None else checkpoint_of(experiment.encoder, encoder.folder),
        ),
    )


def public_labels(public: PublicConfig, corpus: Corpus, seed: int) -> NDArray[np.int64] | None:
    """Return the public labels, (n,), -1 for a label that is not public; None if no label is public.

    A smaller number of labels is always a subset of a larger one.

    Raises:
        UserError: The experiment names more labels than there are texts.
    """
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
    """Write the public part of a training server into a folder for `load_public`, completely or not at all."""
    with staged(out) as folder:
        parts = {
            "encoder": getattr(public.encoder, "folder", None),
            "vocabulary": getattr(public.rewriter, "folder", None),
            "masked_lm": getattr(public.rewriter, "masked_lm", None),
            "checkpoint": public.checkpoint if Path(public.checkpoint).is_dir() else None,
        }
        for part, place in parts.items():
            if place is not None:
                shutil.copytree(place, folder / part)
        about = {
            "format": FORMAT,
            "experiment": name,
            "classes": list(public.classes),
            "labels": public.labels is not None,
            **{part: place is not None for part, place in parts.items()},
        }
        (folder / _ABOUT).write_text(json.dumps(about, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
        with open(folder / _TEXTS, "w", encoding="utf-8", errors="surrogatepass") as file:
            for row, text in enumerate(public.texts):
                line: dict[str, Any] = {"text": text}
                if public.labels is not None:
                    line["label"] = int(public.labels[row])
                file.write(json.dumps(line, ensure_ascii=False) + "\n")


def load_public(experiment: Experiment, folder: Path) -> Public:
    """Return the public part that `save_public` wrote for the experiment.

    Raises:
        UserError: The folder holds no public part of this experiment.
    """
    try:
        about = json.loads((folder / _ABOUT).read_text(encoding="utf-8"))
        with open(folder / _TEXTS, encoding="utf-8", errors="surrogatepass") as file:
            lines = [json.loads(line) for line in file]
        read = (line["text"] for line in lines)
        texts = TextColumn.of(text if isinstance(text, str) else tuple(text) for text in read)
        labels = np.array([line["label"] for line in lines], np.int64) if about["labels"] else None
        part, classes = experiment.data.public, tuple(about["classes"])
        if about["format"] != FORMAT or about["labels"] != part.any_labels:
            raise ValueError
        class_ids = np.zeros(len(lines), np.int64) if labels is None else np.where(labels == -1, 0, labels)
        Corpus(texts, class_ids, classes)  # checks all of them
        if labels is not None and (labels != -1).sum() != (len(lines) if part.labelled is None else part.labelled):
            raise ValueError
        checkpoint = folder / "checkpoint" if about["checkpoint"] else experiment.encoder.model
        encoder = CachedEncoder(folder / "encoder") if about["encoder"] else None
        rewriter = None
        if about["vocabulary"]:
            models = folder / "masked_lm" if about["masked_lm"] else None
            rewriter = saved_rewriter(experiment, folder / "vocabulary", masked_lm=models)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{folder}: is no public part of {experiment.name}; make it anew with: sottovoce deploy public"
        ) from error
    return with_maps(experiment, Public(texts, labels, classes, encoder, rewriter=rewriter, checkpoint=checkpoint))


def names_of(experiment: Experiment, public: Public) -> NDArray[np.float64] | None:
    """Return the classes' prototypes (K, m) from their descriptions; None if they have none.

    Raises:
        UserError: An arm trains on public text alone, which has neither labels nor described classes.
    """
    data, encoder = experiment.data, public.encoder
    assert encoder is not None
    texts = described(
        public.classes,
        data.class_descriptions,
        numbers=data.label_range is not None,
        pairs=data.second_text is not None,
    )
    if texts is None:
        alone = next((arm.name for arm in experiment.arms if arm.public_only), None)
        if alone is not None and public.labels is None:
            raise UserError(
                f'arm "{alone}": public text has no labels, and the classes {listed(public.classes)} do not say what '
                "they are; describe them with data.class-descriptions, or remove the arm"
            )
        return None
    sentences = sentences_of(texts)
    embedded = encoder.embed([sentence for several in sentences for sentence in several])
    return prototypes_of(np.split(embedded, np.cumsum([len(several) for several in sentences])[:-1]))


def with_maps(experiment: Experiment, public: Public) -> Public:
    """Return the public part with its embeddings and the learning of maps, if users have an encoder."""
    public = replace(public, elsewhere=experiment.data.elsewhere)
    if public.encoder is None:
        return public
    embeddings = public.encoder.embed(public.texts)
    public = replace(public, names=names_of(experiment, public))
    if all(setup.arm.centralised or setup.protocol.releases_vector for setup in experiment.setups):
        return replace(public, embeddings=embeddings)
    maps = PublicMaps(
        embeddings,
        public.labels,
        classes=len(public.classes),
        learned=experiment.training.maps == "learned",
        seed=experiment.seed,
    )
    return replace(public, embeddings=embeddings, maps=maps)
