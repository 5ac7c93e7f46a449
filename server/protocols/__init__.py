"""Protocols, one file each: generators that know public data and the batches they receive, and nothing else.

A protocol is a function with the following signature.

    def steps(public, channels, training, *, folder, progress) -> Conversation

It yields requests, and receives the shuffled batch of each request. It yields `Publish` if users need an encoder that
it has trained, and receives that encoder in the form that users run. It returns a model, or None if nothing arrived to
train one on. It is deterministic in what it receives. The driver of a protocol (`server.protocols.drive`) has the
users: a simulation, a deployment, an attack's shadow models, a test.
"""

from __future__ import annotations

from server.protocols.declaration import TrainingProtocol

RELEASE_ONCE = TrainingProtocol(
    "release-once", "every user released a sanitized embedding and label once; the rest is post-processing",
    steps="server.protocols.release_once:release_once", trains_on=frozenset({"embedding", "label"}),
    fits_maps=True, trains_encoder=False, answers=True, deployable=True, options=frozenset({"label_stages"}),
    stages=lambda training: training.label_stages,
)  # fmt: skip
SANITIZED_TEXT = TrainingProtocol(
    "sanitized-text", "every user released a sanitized text and label once; the rest is post-processing",
    steps="server.protocols.sanitized_text:sanitized_text", trains_on=frozenset({"text", "label"}),
    deployable=True, options=frozenset({"bottleneck"}),
)  # fmt: skip
STATISTICS = TrainingProtocol(
    "statistics", "every user released one vector, of how features go with labels; the server learnt from their mean, "
    "and the rest is post-processing",
    steps="server.protocols.statistics:statistics", trains_on=frozenset({"statistic"}),
    fits_maps=True, answers=True, deployable=True, options=frozenset({"rounds", "self_training"}),
    stages=lambda training: training.rounds,
)  # fmt: skip
TEXT_THEN_EMBEDDINGS = TrainingProtocol(
    "text-then-embeddings", "half of the users released a sanitized text, the others a sanitized embedding under the "
    "encoder trained on these, each with a label; the rest is post-processing",
    steps="server.protocols.text_then_embeddings:text_then_embeddings",
    trains_on=frozenset({"text", "embedding", "label"}), stages=lambda training: 2,
)  # fmt: skip
#: The published procedure, simulated in one process without a ledger.
PAPER = TrainingProtocol(
    "paper", "a trusted simulation of the published procedure; gradients depend on raw text: NOT private",
    trains_on=frozenset({"embedding", "label"}), private=False,
)  # fmt: skip
#: Of single arms: they stand beside the arms of another protocol.
PUBLIC_ONLY = TrainingProtocol("public-only", "public data alone; no user took part")
CENTRALISED = TrainingProtocol(
    "centralised", "trained on all texts and labels as they are, by a server trusted with them: NOT private",
    private=False,
)  # fmt: skip

#: Every protocol by its name; the first five may be an experiment's, the others are of single arms.
PROTOCOLS: dict[str, TrainingProtocol] = {
    protocol.name: protocol
    for protocol in (
        RELEASE_ONCE, SANITIZED_TEXT, STATISTICS, TEXT_THEN_EMBEDDINGS, PAPER, PUBLIC_ONLY, CENTRALISED,
    )
}  # fmt: skip
#: Those that talk with training users.
ASKING = tuple(name for name, protocol in PROTOCOLS.items() if protocol.steps is not None)
