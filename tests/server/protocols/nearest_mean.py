"""A way of training that no product has, in a file of its own: users release once, the head is the classes' means."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np

from mechanisms.messages.questions import EmbeddingQuestion, LabelQuestion
from server.protocols.decoding import decoded, log_transition
from server.protocols.models import EmbeddingModel
from server.protocols.protocol import Channels, Conversation, Public, Training
from server.training.rescale import factored

log = logging.getLogger(__name__)


def nearest_mean(public: Public, channels: Channels, training: Training, *, folder: Path) -> Conversation:
    """A class weighs each release by how likely its label is under that class, and points where they lie on average."""
    del training, folder
    mechanism = public.maps.best(channels.embedding)
    maps = public.maps.of(mechanism)
    batch = yield channels.embeddings(
        public.encoder.identity, maps, mechanism, stage="train", split="train", label=True
    )
    embedding, labels = batch.of(EmbeddingQuestion), batch.of(LabelQuestion)
    if embedding is None or labels is None:
        return None
    z, y = decoded(mechanism, embedding), labels.values.astype(np.int64)
    log.info(f"means of {len(z)} releases")
    if channels.label.name == "identity":
        weights = np.eye(channels.classes)[y]
    else:
        weights = np.exp(log_transition(channels.label, y, classes=channels.classes))
    weights -= weights.mean(axis=1, keepdims=True)
    means = z.T @ weights / len(z)
    return EmbeddingModel(
        channels, public.encoder, mechanism, factored(maps.mean, maps.m1, means, np.zeros(channels.classes)), asked=maps
    )
