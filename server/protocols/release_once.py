"""Protocol release-once: users release an embedding and a label once, under maps from public data.

M2 and the head are trained on these releases.
"""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np

from mechanisms.channels import ANSWER, EMBEDDING, LABEL
from mechanisms.identity import Identity
from mechanisms.messages.questions import EmbeddingQuestion, LabelQuestion, decoded
from server.maps import rescaled
from server.protocols.declaration import Alone, Option, TrainingProtocol
from server.protocols.models import EmbeddingModel
from server.protocols.protocol import Channels, Conversation, Public, Training
from server.training.head import log_transition, train_head

log = logging.getLogger(__name__)

#: Number of stages of the labels.
LABEL_STAGES = Option(
    "label_stages",
    1,
    "Number of stages, of disjoint users, in which labels are released. The model of one stage "
    "gives the prior of the next.",
    least=1,
)


def release_once(public: Public, channels: Channels, training: Training, *, folder: Path) -> Conversation:
    """Train M2 and the head on the releases of disjoint users, stage by stage.

    After each stage, training uses all releases so far. A later stage's label prior is the model of the earlier stages.
    Training users release all m' directions, because the best ones are not known yet. At inference, users release the
    discriminative directions (`rescaled`).

    Args:
        public: Public data.
        channels: Releases of the arm's users.
        training: Settings of the training.
        folder: Unused; nothing is written into it.
    """
    del folder
    assert public.maps is not None and public.encoder is not None and public.embeddings is not None
    log.info(f"learning maps on {len(public.texts):,} public texts")
    mechanism = public.maps.best(channels.embedding)
    maps, user_maps, label = public.maps.of(mechanism), None, channels.label
    stages = LABEL_STAGES.of(training.options)
    z, y, transitions = [], [], []
    for stage in range(stages if channels.teaching else 0):
        user_maps = user_maps or maps
        prior = maps.folded() if getattr(label, "needs_prior", False) else None
        batch = yield channels.embeddings(
            public.encoder.identity,
            maps,
            mechanism,
            split="train",
            label=True,
            prior=prior,
            stage="train" if stages == 1 else f"train-{stage + 1}",
            part=(stage, stages),
        )
        embedding, labels = batch.of(EmbeddingQuestion), batch.of(LabelQuestion)
        if embedding is None or labels is None:
            continue
        z.append(decoded(mechanism, embedding.values))
        y.append(labels.values.astype(np.int64))
        transitions.append(log_transition(label, y[-1], classes=channels.classes, z=z[-1], prior=prior))
        maps = train_head(
            maps,
            np.concatenate(z),
            np.concatenate(y),
            label_transition=None if isinstance(label, Identity) else np.exp(np.concatenate(transitions)),
        )
    maps = rescaled(maps, public=public.embeddings)
    return EmbeddingModel(channels, public.encoder, mechanism, maps, user_maps)


RELEASE_ONCE = TrainingProtocol(
    "release-once",
    "every user released a sanitized embedding and label once; the rest is post-processing",
    steps=release_once,
    trains_on=frozenset({EMBEDDING.name, LABEL.name}),
    queried=frozenset({EMBEDDING.name, ANSWER.name}),
    public_text=True,
    encoder=True,
    alone=Alone.ALWAYS,
    beside=True,
    options=(LABEL_STAGES,),
    stages=LABEL_STAGES.of,
)
