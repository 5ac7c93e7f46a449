"""Questions of a count: the model whose classes are counted, and the mechanism that a budget pays for."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mechanisms.accounting.counting import of_central, of_local
from mechanisms.accounting.planner import Target
from mechanisms.catalogue import build
from mechanisms.channels import ANSWER
from server.counts import Confusion
from server.maps import Maps
from server.protocols.models import ENCODER
from server.protocols.protocol import Encoding, Public
from server.training.class_names import prototypes_of, sentences_of
from server.training.counting import CountModel
from simulations.artifacts.model_folder import read_about
from simulations.artifacts.public import CachedEncoder
from simulations.errors import UserError, no_file

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Budget:
    """Price of a count.

    Attributes:
        epsilon: Local ε; None to plan it for `central`.
        central: Central ε after the shuffler; None if `epsilon` is given.
        mechanism: Name of the mechanism; None for the one of least variance.
    """

    epsilon: float | None = None
    central: float | None = None
    mechanism: str | None = None

    def __post_init__(self) -> None:
        if (self.epsilon is None) == (self.central is None):
            raise UserError("--epsilon, --central: give one of the two, the local ε or that behind the shuffler")
        name, value = ("--epsilon", self.epsilon) if self.central is None else ("--central", self.central)
        if not 0 < (value or 0) < 1000:
            raise UserError(f"{name} {value:g}: must be above 0 and below 1,000")
        if self.central is not None and self.mechanism is not None:
            raise UserError("--mechanism: goes with --epsilon; for --central the best one is planned")

    def chosen(self, classes: int, *, users: int | None, delta: float, limit: float) -> Any:
        """Return the mechanism for K classes. Its ε is at most the limit of the users' policy.

        Raises:
            UserError: Nothing fits, or the limit is below the ε that is asked for.
        """
        try:
            if self.epsilon is not None:
                if self.epsilon > limit:
                    raise UserError(
                        f"policy.answer: {limit:g} is below --epsilon {self.epsilon:g}, so every device would refuse; "
                        f"set policy.answer={self.epsilon:g}, or take a smaller one"
                    )
                if self.mechanism is None:
                    return of_local(classes, self.epsilon)
                spec = {"mechanism": self.mechanism, "epsilon": self.epsilon}
                return build(spec, channel=ANSWER.name, classes=classes)
            assert self.central is not None
            if limit == 0:
                raise UserError("policy.answer: is 0, so every device would refuse; set the largest ε of an answer")
            planned: Any = of_central(classes, Target(self.central, delta, users))
        except ValueError as error:
            raise UserError(str(error)) from error
        if planned is None:
            raise UserError(f"--central {self.central:g}: no release fits; take a larger one, or more users")
        if planned.epsilon > limit:
            log.info(f"policy.answer = {limit:g} is below the ε = {planned.epsilon:.3g} that would fit, and is taken")
            planned = replace(planned, epsilon=limit)
        return planned


@dataclass(frozen=True, eq=False)
class Asked:
    """Model that users are asked by.

    Attributes:
        about: The model, in words.
        names: Names of its classes.
        model: Its maps and head.
        encoder: Encoder before it.
        confusion: Its confusion; None if no labelled public text is left for one.
        true: Whether its classes are those of the data.
    """

    about: str
    names: tuple[str, ...]
    model: CountModel
    encoder: Encoding
    confusion: Confusion | None
    true: bool


def asked_by(
    public: Public, *, seed: int, topics: Sequence[Path | str] = (), model: Path | str | None = None
) -> tuple[Asked, ...]:
    """Return the model of each question, its classes, and its confusion on public text that it was not trained on.

    Args:
        public: Public data.
        seed: Seed of the halves of labelled text.
        topics: Files of topics, each of which is a question.
        model: Folder of a trained model.

    Raises:
        UserError: There is no such model.
    """
    if topics and model is not None:
        raise UserError("--topics, --model: a model has classes of its own; give one of the two")
    encoder = public.encoder
    if encoder is None or public.embeddings is None:
        raise UserError("training.protocol: has no encoder on devices, which a count needs; use another")
    known = np.zeros(0, np.int64) if public.labels is None else np.flatnonzero(public.labels >= 0)
    table, classes = np.asarray(public.embeddings), public.classes
    of_data, left = True, known
    try:
        if topics:
            named = [_topics(Path(each)) for each in topics]
            made = CountModel.of_topics(encoder.identity, [_prototypes(names, encoder) for names in named], table)
            return tuple(
                Asked(f"the nearest of {len(names):,} topics", names, each, encoder, None, False)
                for names, each in zip(named, made, strict=True)
            )
        if model is not None:
            classes, identity = read_about(Path(model))
            if (Path(model) / ENCODER).is_dir():
                encoder = CachedEncoder(Path(model) / ENCODER)
            if encoder.identity != identity:
                raise UserError(f"{model}: runs on another encoder; name the one of its experiment under [encoder]")
            found, about = CountModel.of_maps(identity, Maps.load(model)), "a trained model"
            of_data, left = classes == public.classes, known[:0]  # it may have been trained on public labels
        elif len(known):
            order = np.random.default_rng([seed, 14]).permutation(known)
            half, left = np.sort(order[: len(order) // 2]), np.sort(order[len(order) // 2 :])
            assert public.labels is not None
            found = CountModel.of_labels(encoder.identity, table[half], public.labels[half], len(classes))
            about = f"a logistic head on {len(half):,} labelled public texts"
        elif public.names is not None:
            (found,) = CountModel.of_topics(encoder.identity, [public.names], table)
            about = "the nearest class name"
        else:
            raise UserError(
                "data.public.labels: without them a count needs --topics, --model or data.class-descriptions"
            )
        confusion = None
        if of_data and len(left):
            assert public.labels is not None
            confusion = Confusion.of(public.labels[left], found.classify(table[left]), len(classes))
    except ValueError as error:
        raise UserError(str(error)) from error
    return (Asked(about, tuple(classes), found, encoder, confusion, of_data),)


def _prototypes(names: tuple[str, ...], encoder: Encoding) -> NDArray[np.float64]:
    sentences = sentences_of([(name,) for name in names])
    embedded = encoder.embed([sentence for several in sentences for sentence in several])
    return prototypes_of(np.split(embedded, np.cumsum([len(several) for several in sentences])[:-1]))


def _topics(path: Path) -> tuple[str, ...]:
    if not path.is_file():
        raise no_file(path)
    try:
        names = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except UnicodeDecodeError:
        raise UserError(f"{path}: is not UTF-8; save it as UTF-8") from None
    if len(names) < 2 or len(set(names)) < len(names):
        raise UserError(f"{path}: must name two or more topics, one a line, none of them twice")
    return tuple(names)
