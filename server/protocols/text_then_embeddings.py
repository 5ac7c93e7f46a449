"""Protocol text-then-embeddings: half of the users release sanitized texts, which train an encoder.

The other half release embeddings under that encoder. No user releases both, so each pays once.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from mechanisms.channels import EMBEDDING, LABEL, TEXT
from mechanisms.identity import Identity
from mechanisms.messages.questions import EmbeddingQuestion, LabelQuestion
from server.protocols.declaration import TrainingProtocol
from server.protocols.decoding import decoded, log_transition
from server.protocols.models import ENCODER, EmbeddingModel
from server.protocols.protocol import Channels, Conversation, Public, Publish, Training
from server.protocols.public_maps import dim_of
from server.protocols.sanitized_text import start_of, trained_on
from server.training.head import train_head
from server.training.rescale import rescaled

#: Users with even numbers release texts, the others embeddings.
FIRST, SECOND = (0, 2), (1, 2)


def text_then_embeddings(public: Public, channels: Channels, training: Training, *, folder: Path) -> Conversation:
    """Train an encoder on released texts, then a head on released embeddings.

    Args:
        public: Public data.
        channels: Releases of the arm's users.
        training: Settings of the training.
        folder: Folder for the trained checkpoint; `folder`/client holds it in the form that clients run.
    """
    from server.export import export_encoder

    assert public.rewriter is not None
    (mechanism,) = channels.embedding
    dim = dim_of(mechanism)
    checkpoint = start_of(public, channels, training, dim=dim, name="embedding.dim")
    batch = yield channels.texts(public.rewriter, stage="train-text", split="train", label=True, part=FIRST)
    pipeline = trained_on(batch, public, channels, training, checkpoint=checkpoint, dim=dim, mechanism=mechanism)
    if pipeline is None:
        return None
    asked = pipeline.maps()
    pipeline.save_pretrained(folder, about={})
    export_encoder(folder, folder / ENCODER, **training.export)
    encoder = yield Publish(folder / ENCODER)
    batch = yield channels.embeddings(
        encoder.identity, asked, mechanism, stage="train-embedding", split="train", label=True, part=SECOND
    )
    maps = asked
    embedding, labels = batch.of(EmbeddingQuestion), batch.of(LabelQuestion)
    if embedding is not None and labels is not None:
        z, y = decoded(mechanism, embedding), labels.values.astype(np.int64)
        noisy = not isinstance(channels.label, Identity)
        transition = np.exp(log_transition(channels.label, y, classes=channels.classes)) if noisy else None
        maps = train_head(asked, z, y, label_transition=transition, seed=training.seed)
    if len(public.texts):
        maps = rescaled(maps, public=encoder.embed(public.texts))
    return EmbeddingModel(channels, encoder, mechanism, maps, asked)


PROTOCOL = TrainingProtocol(
    "text-then-embeddings",
    "half of the users released a sanitized text, the others a sanitized embedding under the "
    "encoder trained on these, each with a label; the rest is post-processing",
    steps=text_then_embeddings,
    trains_on=frozenset({TEXT.name, EMBEDDING.name, LABEL.name}),
    queried=frozenset({EMBEDDING.name}),
    checkpoint=True,
    stages=lambda options: 2,
)
