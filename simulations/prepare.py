"""From an experiment to what its arms share: the split, the users, the encoder and the embeddings."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client.encoder import Encoder
from simulations import builtin, files, hub, population, splits
from simulations.cache import Embedded, Progress, embed, folder_once
from simulations.corpus import Corpus, Split
from simulations.errors import UserError
from simulations.experiment import TEXT_WAYS, Experiment
from simulations.experiment import Encoder as EncoderSettings
from simulations.text_channel import Words, prepare_words

#: Of the built-in corpus, on average, where a user may hold several.
REVIEWS_PER_USER = 5

#: Built-in texts from which an int8 encoder takes its ranges: always these, so that it follows from the model alone.
CALIBRATION_TEXTS, CALIBRATION_SEED = 256, 0


@dataclass(frozen=True)
class Holders:
    """Who holds a corpus' rows: users[i] holds row i as their record records[i]."""

    users: NDArray[np.int64]
    records: NDArray[np.int64]


@dataclass(frozen=True)
class Prepared:
    """What all arms of a study share.

    train: the rows that users hold, `held` says who. test: the test sentences; test_users hold `repeats` copies
    of each, under users of their own, so that sanitized accuracy is measured over several draws while every
    user is charged once. encoder and embeddings: None where nobody releases an embedding; those of users stay on the
    disk; words: None where nobody releases a text.
    """

    split: Split
    held: Holders
    test_held: Holders
    test_rows: NDArray[np.int64]
    encoder: Encoder | None
    public_embeddings: NDArray[np.float32] | None
    train_embeddings: Embedded | None
    test_embeddings: NDArray[np.float32] | None
    about_corpus: dict[str, object]
    words: Words | None = None


def prepare(experiment: Experiment, *, progress: Progress) -> Prepared:
    """Reads the data, gives each user their records, makes the encoder and embeds every text once."""
    data = experiment.data
    split, about = load_split(experiment)
    split, held = _hand_out(experiment, split)
    if data.test_limit is not None:
        split = Split(split.public, split.train, split.test.take(np.arange(min(data.test_limit, len(split.test)))))
    asked, least = len(split.test) * data.test_repeats, experiment.shuffle.minimum_users
    if experiment.shuffle.enabled and asked < least:
        raise UserError(
            f"shuffle.minimum-users: {least} is more than the {asked} test users, whose batch would be discarded; "
            "lower it, or raise data.test-repeats"
        )
    encoder = None
    embeddings: list[Embedded | None] = [None, None, None]
    if experiment.training.way not in TEXT_WAYS:
        encoder = Encoder(encoder_folder(experiment, split.public, progress=progress))
        parts = (split.public, split.train, split.test)
        embeddings = [embed(encoder, part.texts, progress=progress) for part in parts]
    public, users, tests = embeddings
    test_rows = np.tile(np.arange(len(split.test), dtype=np.int64), data.test_repeats)
    start = int(held.users.max()) + 1
    test_users = start + np.arange(len(test_rows), dtype=np.int64)
    about |= {
        name: len(part) for name, part in (("public", split.public), ("train", split.train), ("test", split.test))
    }
    about["test_repeats"] = data.test_repeats
    return Prepared(
        split=split,
        held=held,
        test_held=Holders(test_users, np.zeros(len(test_rows), np.int64)),
        test_rows=test_rows,
        encoder=encoder,
        public_embeddings=None if public is None else np.asarray(public),
        train_embeddings=users,
        test_embeddings=None if tests is None else np.asarray(tests),
        about_corpus=about,
        words=prepare_words(experiment, split.public, progress=progress),
    )


def load_split(experiment: Experiment) -> tuple[Split, dict[str, object]]:
    """The public part, what users hold before they are chosen, and the test part; and words about them."""
    data, seed = experiment.data, experiment.seed
    if data.source == "built-in":
        people = experiment.population
        train, authors = people.users, None
        if people.assignment != "record":  # several reviews to a user, as far as the corpus goes
            room = builtin.LIMIT - data.public_size - data.test_size
            train = max(people.users, min(REVIEWS_PER_USER * people.users, room))
            authors = people.users
        split = builtin.builtin(
            task=data.task, public=data.public_size, train=train, test=data.test_size, seed=seed, authors=authors
        )
        return split, {"source": "built-in", "task": data.task}
    if data.source == "files":
        train, test = files.files(
            data.path, data.train, data.test,
            text=data.text, label=data.label, user=data.user, second_text=data.second_text,
        )  # fmt: skip
    else:
        train, test = hub.hub(
            data.path, train=data.train, test=data.test,
            text=data.text, label=data.label, user=data.user, second_text=data.second_text,
        )  # fmt: skip
    about: dict[str, object] = {"source": data.source, "split": data.public.split}
    if data.public.split == "by-sentence":
        public, private, dropped = splits.split_by_sentence(train, data.public.fraction, seed)
        about["dropped"] = dropped
    elif data.public.split == "random":
        public, private = splits.random_split(train, data.public.fraction, seed)
    else:
        public = builtin.builtin(task=data.task, public=data.public_size, train=1, test=1, seed=seed).public
        if len(public.classes) != len(train.classes):
            raise UserError(
                f"data.public.split: the built-in corpus has {len(public.classes)} classes for {data.task}, "
                f"{data.path} has {len(train.classes)}"
            )
        public = Corpus(public.texts, public.labels, train.classes)  # class i of one stands for class i of the other
        private = train
    return Split(public, private, test), about


def _hand_out(experiment: Experiment, split: Split) -> tuple[Split, Holders]:
    """The rows that the experiment's users hold, and who holds them; the rest of the rows is left out."""
    people = experiment.population
    rows, users, records = population.assign(
        split.train, users=people.users, assignment=people.assignment, alpha=people.alpha, seed=experiment.seed
    )
    if len(np.unique(users)) < people.users:
        raise UserError(
            f"population.users: {people.users} were asked for, and the data have {len(np.unique(users))}; ask for fewer"
        )
    return Split(split.public, split.train.take(rows), split.test), Holders(users, records)


def encoder_folder(experiment: Experiment, public: Corpus, *, progress: Progress) -> Path:
    """The exported encoder, fine-tuned on the public part first if the experiment says so; made once, then cached."""
    from server.checkpoint_files import fingerprint
    from server.export import export_encoder

    settings = experiment.encoder
    made_from: list[object] = [fingerprint(settings.model), settings.pooling, settings.max_length]
    if settings.fine_tune_on_public:
        made_from += [
            settings.fine_tune_epochs, settings.fine_tune_lr, experiment.training.batch_size, experiment.seed,
            list(public.texts), public.labels.tolist(),
        ]  # fmt: skip
    if settings.precision != "fp32":
        made_from += [settings.precision, CALIBRATION_TEXTS, CALIBRATION_SEED]
    name = hashlib.sha256(repr(made_from).encode()).hexdigest()[:32]

    def make(folder: Path) -> None:
        checkpoint: str | Path = settings.model
        if settings.fine_tune_on_public:
            from server.training.finetune import finetune

            checkpoint = finetune(
                settings.model, public.texts, public.labels, folder / "checkpoint", classes=len(public.classes),
                epochs=settings.fine_tune_epochs, lr=settings.fine_tune_lr,
                batch_size=experiment.training.batch_size, seed=experiment.seed, pooling=settings.pooling,
                max_length=settings.max_length, progress=progress,
            )  # fmt: skip
        progress(f"exporting the encoder {settings.model}")
        export_encoder(checkpoint, folder, **export_settings(settings))

    return folder_once(f"encoders/{name}", make)


def export_settings(settings: EncoderSettings) -> dict[str, Any]:
    """How `server.export.export_encoder` is told to make the encoder of an experiment."""
    calibration: Sequence[Any] = ()
    if settings.precision == "int8":
        calibration = builtin.builtin(
            task="sentiment", public=CALIBRATION_TEXTS, train=1, test=1, seed=CALIBRATION_SEED
        ).public.texts
    return {
        "pooling": settings.pooling, "max_length": settings.max_length, "precision": settings.precision,
        "calibration": calibration,
    }  # fmt: skip
