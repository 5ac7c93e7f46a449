"""Protocol of an arm of an experiment, and the mechanisms of its users' releases."""

from __future__ import annotations

from pathlib import Path

from mechanisms.mechanism import Mechanism
from mechanisms.messages.batch import Batch
from server.protocols.models import Model
from server.protocols.protocol import Channels, Conversation, Encoding, Public, Training
from simulations.artifacts.text_channel import StudyRewriter
from simulations.experiment import (
    DEFAULT_DIM,
    ArmSetup,
    answer_of,
    curator_of,
    embedding_mechanism,
    label_of,
    released_text,
    slug,
)
from simulations.progress import prefixed


def protocol_of(setup: ArmSetup, training: Training, public: Public, *, folder: Path) -> Conversation:
    """Return the arm's protocol before its first request.

    `folder` is the folder of the arm's model, for models that are trained between stages.

    Raises:
        ValueError: The arm's parameters do not fit the data or the encoder.
    """
    if setup.protocol.steps is None:
        raise ValueError(f"{setup.protocol}: sends no requests")
    steps = setup.protocol.steps(public, channels_of(setup, public), training, folder=folder)
    return _prefixed(f"{setup.arm.name}: ", steps)


def _prefixed(prefix: str, protocol: Conversation) -> Conversation:
    """Yield the steps of a protocol, whose progress lines get the prefix."""
    answer: Batch | Encoding | None = None
    while True:
        try:
            with prefixed(prefix):
                step = protocol.send(answer)
        except StopIteration as end:
            model: Model | None = end.value
            return model
        answer = yield step


def channels_of(setup: ArmSetup, public: Public) -> Channels:
    """Return the mechanisms of the releases of an arm's users.

    Raises:
        ValueError: m' is above the encoder's width.
    """
    arm, texts = setup.arm, setup.protocol.releases_text
    text = taught = None
    if texts:
        assert isinstance(public.rewriter, StudyRewriter)
        mechanism = public.rewriter.mechanism(arm)
        text, taught = (released_text(arm, mechanism, split) for split in ("test", "train"))
    return Channels(
        arm=slug(arm.name),
        classes=len(public.classes),
        label=label_of(arm, len(public.classes)),
        embedding=embeddings_of(setup, public),
        text=text,
        taught=taught,
        statistic=setup.statistic,
        answer=answer_of(arm, len(public.classes)),
        curator=curator_of(arm),
        features=arm.features,
        users=setup.answering,
        teaching=not arm.public_only,
        asking=texts or (arm.embedding is not None and arm.answer is None),
        minimum_users=setup.shuffle.least,
        one_record=setup.records == 1,
    )


def embeddings_of(setup: ArmSetup, public: Public) -> tuple[Mechanism, ...]:
    """Return the mechanism of embeddings at each m' of an arm; () if its protocol has none.

    Raises:
        ValueError: m' is above the encoder's width.
    """
    arm, protocol = setup.arm, setup.protocol
    if protocol.releases_text:
        return ()
    assert public.embeddings is not None
    width = public.embeddings.shape[1]
    dims = arm.dims or (min(DEFAULT_DIM, width),)
    if max(dims) > width:
        raise ValueError(
            f'arm "{arm.name}": embedding.dim: {max(dims)} is above the encoder\'s width {width}; '
            f"choose at most {width}"
        )
    return tuple(embedding_mechanism(arm.embedding or {"mechanism": "identity"}, dim) for dim in dims)
