"""Declarations of training protocols: names, what users release, and which options go with each.

Importing this loads no model code: experiment files are checked with it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from mechanisms.channels import EMBEDDING, LABEL, TEXT, VECTOR


@dataclass(frozen=True)
class TrainingProtocol:
    """Training protocol, as experiments, checks, reports and deployments know it.

    Attributes:
        name: as experiment files write it.
        summary: one phrase for model cards.
        steps: "module:function" of the generator that talks with users, None where no request is sent.
        trains_on: channels that training users release, by name; empty where nobody releases anything to train on.
        private: False where training sees raw data; such a protocol is a reference.
        fits_maps: whether linear maps are learned on public text before users are asked.
        trains_encoder: whether it may train BERT, so that results depend on the processor or GPU.
        answers: whether users may query the model by the class that their own device finds.
        deployable: whether it runs on real processes.
        options: keys of the experiment's [training] that go with this protocol alone.
        stages: number of stages in which training users release, from the values of those options.
    """

    name: str
    summary: str
    steps: str | None = None
    trains_on: frozenset[str] = frozenset()
    private: bool = True
    fits_maps: bool = False
    trains_encoder: bool = True
    answers: bool = False
    deployable: bool = False
    options: frozenset[str] = frozenset()
    stages: Callable[[Any], int] = lambda training: 1

    def __str__(self) -> str:
        return self.name

    def conversation(self) -> Any:
        """Return the generator function of the steps. Raises ValueError where the protocol has none."""
        if self.steps is None:
            raise ValueError(f"{self.name}: sends no requests")
        module, _, function = self.steps.partition(":")
        return getattr(import_module(module), function)

    @property
    def releases_text(self) -> bool:
        """Return True if training users release sanitized texts, on which BERT is trained end to end."""
        return TEXT.name in self.trains_on

    @property
    def releases_vector(self) -> bool:
        """Return True if training users release one vector each."""
        return VECTOR.name in self.trains_on

    @property
    def releases_embedding(self) -> bool:
        """Return True if training users release sanitized embeddings."""
        return EMBEDDING.name in self.trains_on

    @property
    def only_texts(self) -> bool:
        """Return True if training users release texts and no embedding."""
        return self.releases_text and not self.releases_embedding

    @property
    def in_halves(self) -> bool:
        """Return True if one half of the users releases texts and the other half embeddings."""
        return self.releases_text and self.releases_embedding


RELEASE_ONCE = TrainingProtocol(
    "release-once", "every user released a sanitized embedding and label once; the rest is post-processing",
    steps="server.protocols.release_once:release_once", trains_on=frozenset({EMBEDDING.name, LABEL.name}),
    fits_maps=True, trains_encoder=False, answers=True, deployable=True, options=frozenset({"label_stages"}),
    stages=lambda training: training.label_stages,
)  # fmt: skip
SANITIZED_TEXT = TrainingProtocol(
    "sanitized-text", "every user released a sanitized text and label once; the rest is post-processing",
    steps="server.protocols.sanitized_text:sanitized_text", trains_on=frozenset({TEXT.name, LABEL.name}),
    deployable=True, options=frozenset({"bottleneck"}),
)  # fmt: skip
STATISTICS = TrainingProtocol(
    "statistics", "every user released one vector, of how features go with labels; the server learnt from their mean, "
    "and the rest is post-processing",
    steps="server.protocols.statistics:statistics", trains_on=frozenset({VECTOR.name}),
    fits_maps=True, answers=True, deployable=True, options=frozenset({"rounds", "self_training"}),
    stages=lambda training: training.rounds,
)  # fmt: skip
TEXT_THEN_EMBEDDINGS = TrainingProtocol(
    "text-then-embeddings", "half of the users released a sanitized text, the others a sanitized embedding under the "
    "encoder trained on these, each with a label; the rest is post-processing",
    steps="server.protocols.text_then_embeddings:text_then_embeddings",
    trains_on=frozenset({TEXT.name, EMBEDDING.name, LABEL.name}), stages=lambda training: 2,
)  # fmt: skip
#: The published procedure, simulated in one process without a ledger.
PAPER = TrainingProtocol(
    "paper", "a trusted simulation of the published procedure; gradients depend on raw text: NOT private",
    trains_on=frozenset({EMBEDDING.name, LABEL.name}), private=False,
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


def releases(name: str, channel: str) -> bool:
    """Return True if training users of a protocol release a channel; False for a name that another version wrote."""
    return name in PROTOCOLS and channel in PROTOCOLS[name].trains_on
