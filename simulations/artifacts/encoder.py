"""Encoder of a run, as clients run it: fine-tuned and exported once, then cached."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Any

from server.checkpoint_files import read_layout, resolve
from server.protocols.protocol import Training
from server.protocols.statistics import SAME
from simulations.artifacts.cache import folder_once, made_by
from simulations.corpora import builtin
from simulations.corpora.corpus import Corpus
from simulations.errors import UserError
from simulations.experiment import Arm, EncoderConfig, Experiment
from simulations.experiment.sections import AUTO, TrainingConfig

log = logging.getLogger(__name__)


#: Built-in texts that calibrate an int8 encoder. They are fixed, so that the encoder depends on the model alone.
CALIBRATION_TEXTS, CALIBRATION_SEED = 256, 0
#: Checkpoint in the folder of an encoder that was fine-tuned first.
_CHECKPOINT = "checkpoint"
#: Libraries whose versions determine the bits of an exported model.
LIBRARIES = ("torch", "transformers", "tokenizers", "safetensors", "onnx", "onnxruntime", "numpy")


def encoder_folder(settings: EncoderConfig, public: Corpus, *, batch_size: int, seed: int) -> Path:
    """Return the folder of the exported encoder, which is made once and then cached.

    The encoder is first fine-tuned on the public part if the settings ask for it, with `batch_size` and `seed`.
    """
    from server.accelerator import device
    from server.checkpoint_files import fingerprint
    from server.export import export_encoder

    made_from: list[object] = [fingerprint(settings.model), pooling_of(settings), settings.max_length]
    if settings.fine_tune_on_public:
        made_from += [
            settings.fine_tune_epochs,
            settings.fine_tune_lr,
            batch_size,
            seed,
            list(public.texts),
            public.labels.tolist(),
            device().type,
        ]
    if settings.layers:
        made_from += [["layers", *layers_of(settings)]]
    if settings.precision != "fp32":
        made_from += [settings.precision, list(_calibration_texts())]
    code = ("server.export", *(["server.training.finetune"] if settings.fine_tune_on_public else []))
    made_from.append(made_by(code, LIBRARIES))

    def make(folder: Path) -> None:
        checkpoint: str | Path = settings.model
        if settings.fine_tune_on_public:
            from server.training.finetune import finetune

            checkpoint = finetune(
                settings.model,
                public.texts,
                public.labels,
                folder / _CHECKPOINT,
                classes=len(public.classes),
                epochs=settings.fine_tune_epochs,
                lr=settings.fine_tune_lr,
                batch_size=batch_size,
                seed=seed,
                pooling=pooling_of(settings),
                max_length=settings.max_length,
            )
        log.info(f"exporting the encoder {settings.model}")
        export_encoder(checkpoint, folder, **export_settings(settings))

    return folder_once("encoders", made_from, make)


def pooling_of(settings: EncoderConfig) -> str:
    """Return the pooling of an experiment's encoder (`server.checkpoint_files.POOLINGS`).

    Layers side by side are not normalized: that is part of the published embedding alone.

    Raises:
        ValueError: The checkpoint's files cannot be read.
    """
    pooling = read_layout(settings.model).pooling if settings.pooling == "published" else settings.pooling
    return pooling.partition("-")[0] if settings.layers else pooling


def _config(model: str) -> dict[str, Any]:
    """Return the configuration of a checkpoint on this machine, or an empty one for a checkpoint on a hub."""
    about = Path(resolve(model)) / "config.json"
    if not about.is_file():
        return {}
    try:
        config = json.loads(about.read_text(encoding="utf-8"))
    except ValueError:
        config = None
    if not isinstance(config, dict):
        raise UserError(f"encoder: {about} is no JSON object; name the folder of a checkpoint")
    return config


def width_of(settings: EncoderConfig) -> int | None:
    """Return the width of an embedding by the checkpoint's own configuration; None for a checkpoint on a hub."""
    width = _config(settings.model).get("hidden_size")
    return width * max(1, len(layers_of(settings))) if isinstance(width, int) else None


def layers_of(settings: EncoderConfig) -> tuple[int, ...]:
    """Return the layers whose states are an encoder's embedding, from 1; () for the last one alone.

    "auto" stands for every second layer of the upper half and the last one; of an encoder of more than 17 layers for
    every third or fewer, so that there are five at most.

    Raises:
        UserError: "auto" stands for nothing, because the checkpoint's configuration is not on this machine or names no
            number of layers.
    """
    if settings.layers != AUTO:
        return tuple(map(int, settings.layers))
    depth = _config(settings.model).get("num_hidden_layers")
    if not isinstance(depth, int) or depth < 1:
        raise UserError(
            f'encoder.layers: "auto" needs the number of layers of {settings.model}, which no config.json on this '
            f"machine states; name layers, or run: sottovoce encoders {quote(settings.model)}"
        )
    return tuple(sorted({*range(depth // 2 + 1, depth, max(2, depth // 6)), depth}))


def check_trained(settings: EncoderConfig, training: TrainingConfig, arms: Sequence[Arm]) -> None:
    """Check that an encoder has room for the settings of an experiment, without torch.

    It reads the configuration of a checkpoint on this machine. A checkpoint on a hub is checked before any user is
    queried (`server.export`, `server.training.end_to_end.check`).

    Raises:
        UserError: It has no room. The message names the key.
    """
    student = student_of(settings, training)
    if student != settings:
        check_trained(student, training.with_options(student=SAME), arms)
    config = _config(settings.model)
    width, places, depth = (config.get(key) for key in ("hidden_size", "max_position_embeddings", "num_hidden_layers"))
    protocol = training.protocol
    texts = protocol.releases_text or any(arm.protocol is not None and arm.protocol.releases_text for arm in arms)
    dim = training.bottleneck if texts else None
    if isinstance(width, int) and isinstance(dim, int) and dim > width:
        raise UserError(f"training.bottleneck: {dim} is above the encoder's width {width}; choose at most {width}")
    if isinstance(places, int) and not 3 <= settings.max_length <= places:
        raise UserError(
            f"encoder.max-length: must be from 3 to the encoder's {places} places, got {settings.max_length}"
        )
    longest = read_layout(settings.model).max_length if config else None
    if longest is not None and settings.max_length > longest:
        raise UserError(
            f"encoder.max-length: {settings.max_length} is above the {longest} tokens that "
            f"{settings.model} was published for"
        )
    if isinstance(depth, int) and max(layers_of(settings), default=0) > depth:
        raise UserError(
            f"encoder.layers: {max(layers_of(settings))} is above the encoder's {depth} layers; choose from these"
        )


def student_of(settings: EncoderConfig, training: TrainingConfig) -> EncoderConfig:
    """Return the encoder that training trains: that of the experiment, or the student of self-training."""
    if training.student == SAME:
        return settings
    return replace(settings, model=training.student, fine_tune_on_public=False)


def checkpoint_of(settings: EncoderConfig, folder: Path) -> str | Path:
    """Return the checkpoint of which the exported encoder in `folder` was made, for further training."""
    return folder / _CHECKPOINT if settings.fine_tune_on_public else settings.model


def export_settings(settings: EncoderConfig) -> dict[str, Any]:
    """Return the arguments of `server.export.export_encoder` for the encoder of an experiment."""
    calibration: Sequence[Any] = _calibration_texts() if settings.precision == "int8" else ()
    return {
        "pooling": pooling_of(settings),
        "max_length": settings.max_length,
        "layers": layers_of(settings),
        "precision": settings.precision,
        "calibration": calibration,
    }


def training_of(experiment: Experiment) -> Training:
    """Return the settings of a training server."""
    training, student = experiment.training, student_of(experiment.encoder, experiment.training)
    return Training(
        seed=experiment.seed,
        epochs=training.epochs,
        batch_size=training.batch_size,
        descent=training.descent,
        pooling=pooling_of(student),
        max_length=student.max_length,
        export=export_settings(student),
        student="" if student == experiment.encoder else student.model,
        options=training.options,
    )


def _calibration_texts() -> Sequence[Any]:
    return builtin.builtin(
        task="sentiment", public=CALIBRATION_TEXTS, train=1, test=1, seed=CALIBRATION_SEED
    ).public.texts
