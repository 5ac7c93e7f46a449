"""Declaration of a training protocol: its name, what its users release, and which options go with it.

Importing this loads no model code: experiment files are checked with it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True)
class TrainingProtocol:
    """A way of training, as experiments, checks, reports and deployments know it.

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
        """Whether training users release sanitized texts, on which BERT is trained end to end."""
        return "text" in self.trains_on

    @property
    def releases_vector(self) -> bool:
        """Whether training users release one vector each."""
        return "statistic" in self.trains_on

    @property
    def releases_embedding(self) -> bool:
        """Whether training users release sanitized embeddings."""
        return "embedding" in self.trains_on

    @property
    def only_texts(self) -> bool:
        """Whether training users release texts and no embedding."""
        return self.releases_text and not self.releases_embedding

    @property
    def in_halves(self) -> bool:
        """Whether one half of the users releases texts and the other half embeddings."""
        return self.releases_text and self.releases_embedding
