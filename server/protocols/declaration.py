"""Declaration of a training protocol: its name, what it needs, its options and its steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from mechanisms.channels import EMBEDDING, LABEL, TEXT, VECTOR
from server.protocols.protocol import Conversation


@dataclass(frozen=True)
class Option:
    """Key of an experiment's [training] that belongs to a protocol.

    Args:
        name: Name of the key, with underscores.
        default: Its default. The type of the default is the type of the key: bool, int, float or str.
        about: Sentence that describes it, for the reference of experiment files.
        least: Smallest number.
        choices: Accepted texts; any text if there are none.
        optional: Whether a whole number may be "none", which steps read as None.
    """

    name: str
    default: bool | int | float | str
    about: str
    least: int = 0
    choices: tuple[str, ...] = ()
    optional: bool = False

    def of(self, options: Mapping[str, Any]) -> Any:
        """Return its value among a training's options."""
        value = options.get(self.name, self.default)
        return None if self.optional and value == "none" else value


class Alone(Enum):
    """Condition on which a protocol's steps also train without training users, for `public-only` arms."""

    NEVER = "never"
    LABELLED = "if public texts have labels"
    DESCRIBED = "if public texts have labels or classes have descriptions"
    ALWAYS = "always"


@dataclass(frozen=True)
class TrainingProtocol:
    """Training protocol, as experiments, checks, reports and deployments know it.

    Args:
        name: Name in experiment files.
        summary: One phrase for model cards.
        steps: Generator of the conversation with users (`server.protocols`); None if no request is sent, so that it is
            never deployed.
        trains_on: Channels that training users release, by name.
        queried: Channels by which users may query the trained model.
        public_text: Whether it needs public text.
        some_labels: Whether it accepts public text of which only some has labels.
        encoder: Whether users run the experiment's encoder before anything is trained.
        checkpoint: Whether it may train the encoder's checkpoint, so that results depend on the processor or GPU.
        alone: Whether its steps also train without training users.
        borrows: Whether it runs the steps of the experiment's protocol, without training users.
        private: False if training sees raw data; such a protocol is a reference.
        whole: Whether an experiment may name it.
        beside: Whether an arm may name it, beside the experiment's protocol.
        options: Keys of the experiment's [training] that belong to it.
        stages: Function from the values of these options to the number of stages in which training users release.
        check: Function that raises ValueError, "option: reason", if the values of these options contradict each other.
    """

    name: str
    summary: str
    steps: Callable[..., Conversation] | None = None
    trains_on: frozenset[str] = frozenset()
    queried: frozenset[str] = frozenset()
    public_text: bool = False
    some_labels: bool = False
    encoder: bool = False
    checkpoint: bool = False
    alone: Alone = Alone.NEVER
    borrows: bool = False
    private: bool = True
    whole: bool = True
    beside: bool = False
    options: tuple[Option, ...] = ()
    stages: Callable[[Mapping[str, Any]], int] = lambda options: 1
    check: Callable[[Mapping[str, Any]], None] = lambda options: None

    def __str__(self) -> str:
        return self.name

    @property
    def channels(self) -> frozenset[str]:
        """Return the channels that its users may release, in training and in inference."""
        return self.trains_on | self.queried

    @property
    def releases_text(self) -> bool:
        """Return True if training users release sanitized texts, on which a head or the whole model is trained."""
        return TEXT.name in self.trains_on

    @property
    def releases_vector(self) -> bool:
        """Return True if training users release one vector each."""
        return VECTOR.name in self.trains_on

    @property
    def releases_embedding(self) -> bool:
        """Return True if training users release sanitized embeddings."""
        return EMBEDDING.name in self.trains_on

    def goes_beside(self, other: TrainingProtocol) -> bool:
        """Return True if an arm of this protocol may stand in an experiment of the other one."""
        if self.borrows:
            return other.alone is not Alone.NEVER
        if self.releases_text:
            return other.releases_vector  # of which texts are a comparison; others release texts or train the encoder
        return self is not other and (other.encoder or not self.encoder) and (other.public_text or not self.public_text)


# Protocols without steps of their own: references, whose users send nothing, and public data alone.

#: `simulations.run.references` trains it on the simulated users' data.
CENTRALISED = TrainingProtocol(
    "centralised",
    "trained on all texts and labels as they are, by a server trusted with them: NOT private",
    some_labels=True,
    encoder=True,
    private=False,
    whole=False,
    beside=True,
)
#: The published procedure, simulated in one process without a ledger: its gradients depend on raw text.
PAPER = TrainingProtocol(
    "paper",
    "a trusted simulation of the published procedure; gradients depend on raw text: NOT private",
    trains_on=frozenset({EMBEDDING.name, LABEL.name}),
    queried=frozenset({EMBEDDING.name}),
    checkpoint=True,
    private=False,
)
#: It runs the steps of its experiment's protocol.
PUBLIC_ONLY = TrainingProtocol(
    "public-only", "public data alone; no user took part", some_labels=True, borrows=True, whole=False, beside=True
)
