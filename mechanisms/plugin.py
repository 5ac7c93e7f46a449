"""Plugins: mechanisms of other packages, with their base class, their discovery, and checks of their declarations.

A package installs one as an entry point of the group `sottovoce.mechanisms`, whose name is the mechanism's. Without one
its place is its name, "package.module:Class". Finding one imports other people's code. Only `load` does so, and no
content of a message, a bundle or a server may lead to it (`mechanisms.catalogue.build` and `rebuild`).
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import lru_cache, wraps
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from mechanisms import categorical, checks
from mechanisms.arrays import IntArray
from mechanisms.channels import CHANNELS, EMBEDDING, LABEL, TEXT, Domain
from mechanisms.guarantee import METRICS, Guarantee
from mechanisms.losses.categorical import pure_loss
from mechanisms.losses.loss import LossCells, checked_distance, no_loss
from mechanisms.mechanism import Uniforms, parameters
from mechanisms.quantizer import SPACE, Quantizer
from mechanisms.streams import Points
from mechanisms.vocabulary import NOTHING
from mechanisms.words.distances import diameter

#: Group of entry points in which packages name their mechanisms.
GROUP = "sottovoce.mechanisms"
#: Field that determines the channel of a mechanism that does not state it.
_BY_FIELD = {"classes": LABEL.name, "vocabulary": TEXT.name, "dim": EMBEDDING.name}
#: Largest distance of two inputs by metric; vectors have length 1.
_DIAMETERS = {"discrete": 1.0, "euclidean": 2.0, "angular": math.pi}
_REFERENCE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
#: Largest excess of a loss over its guarantee by rounding alone.
_SLACK = 1e-9


class OwnMechanism:
    """Base class of a plugin: a frozen dataclass with a `metric`, a field `epsilon`, further fields and `sample`.

    Guarantee and loss follow from the metric. The loss is that of a pair that dominates every mechanism of that ε
    (Kairouz, Oh and Viswanath 2015). A plugin with another theorem writes both `guarantee` and `privacy_loss`.
    `parameters`, and with them a request's digest, are the fields.

    Attributes:
        metric: Metric of the theorem, Pr[M(x) in O] <= exp(epsilon·d(x, x'))·Pr[M(x') in O] for all x, x', O:
            "discrete" (d is 1 for any two inputs that differ: ε-LDP), for vectors also "euclidean" or "angular", for
            words "euclidean" of their vectors. It has no default.
        numeric_delta: Largest total variation between a draw and the theorem's. Vectors must state it; for classes and
            words it is that of `mechanisms.categorical.sample`.
        name: Name of the entry point, and without one the class's place, "package.module:Class".
        channel: "label" with a field `classes`, "text" with a `vocabulary`, "embedding" with a `dim`; or stated.
        grid: For vectors ±32,768 in steps of 2^-16.
    """

    name: ClassVar[str]
    channel: ClassVar[str]
    metric: ClassVar[str]
    needs_prior: ClassVar[bool] = False
    reads: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, **words: Any) -> None:
        super().__init_subclass__(**words)
        if "name" not in cls.__dict__:
            cls.name = f"{cls.__module__}:{cls.__qualname__}"
        if not hasattr(cls, "channel"):
            named = {name for base in cls.__mro__ for name in inspect.get_annotations(base)}
            channels = [channel for field, channel in _BY_FIELD.items() if field in named]
            if channels:
                cls.channel = channels[0]
        if "sample" in cls.__dict__:
            cls.sample = _checked(cls.__dict__["sample"])  # type: ignore[attr-defined]

    def draw(self, weights: NDArray[Any], *, rng: Uniforms) -> IntArray:
        """Draw one of K choices for each entry: (n, K) log-weights -> (n,), or (n, L, K) of texts -> (n, L).

        Args:
            weights: Logarithms of the weights, not normalized.
            rng: Randomness that `sample` was given.
        """
        shape = weights.shape[:-1]
        choices = categorical.sample(weights.reshape(-1, weights.shape[-1]), Points.drawn(rng, shape, 1))
        return choices.reshape(shape)

    @property
    def grid(self) -> Quantizer | None:
        """Return the quantizer of vectors, ±32,768 in steps of 2^-16; None on other channels."""
        return SPACE if CHANNELS[self.channel].domain.vectors else None

    @property
    def guarantee(self) -> Guarantee:
        """Return the theorem of the metric."""
        own: Any = self
        if own.epsilon == math.inf:
            raise ValueError(f"{self.name}: epsilon must be finite, got inf")
        delta = getattr(own, "numeric_delta", None)
        if delta is None:
            delta = categorical.numeric_delta(own.classes if hasattr(own, "classes") else len(own.vocabulary))
        return Guarantee(
            own.epsilon, self.metric, self._diameter, CHANNELS[self.channel].protects[0], numeric_delta=delta
        )

    @property
    def _diameter(self) -> float:
        """Return the largest distance of two inputs."""
        if CHANNELS[self.channel] is TEXT and self.metric == "euclidean":
            return diameter(self.vocabulary)  # type: ignore[attr-defined]
        return _DIAMETERS[self.metric]

    def privacy_loss(self, distance: float | None = None) -> LossCells:
        """Return the loss of a pair that dominates all within `distance` (None: any two).

        Raises:
            ValueError: It is no distance of the metric.
        """
        own: Any = self
        if self.metric == "discrete":
            return pure_loss(own.epsilon) if checks.differs(self.name, distance) else no_loss()
        apart = checked_distance(self.name, distance, self._diameter)
        return pure_loss(own.epsilon * apart) if apart > 0 else no_loss()


def _checked(sample: Callable[..., Any]) -> Callable[..., Any]:
    """Return a `sample` that refuses inputs outside the channel's domain, in one line that names the mechanism.

    Where a text has no word, NOTHING stays.
    """

    @wraps(sample)
    def checked(self: Any, x: Any, *args: Any, **more: Any) -> Any:
        domain = CHANNELS[self.channel].domain
        if domain is Domain.CLASSES:
            x = checks.labels(self.name, x, self.classes)
        elif domain is Domain.TEXT:
            x = checks.word_ids(self.name, x, self.vocabulary)
            return np.where(x == NOTHING, NOTHING, sample(self, x, *args, **more))
        elif domain is Domain.BALL:
            x = checks.ball_rows(self.name, x, self.dim)
        elif getattr(self, "normalize", True):
            x = checks.unit_rows(self.name, x, self.dim)[0]
        else:
            x = checks.rows(self.name, x, self.dim)
        return sample(self, x, *args, **more)

    return checked


def is_reference(name: str) -> bool:
    """Return True if a name has the form "package.module:Class"."""
    return ":" in name


def installed() -> dict[str, EntryPoint]:
    """Return the entry points of the group, by name. It imports nothing.

    Raises:
        ValueError: Two packages give one name to different mechanisms.
    """
    entries: dict[str, EntryPoint] = {}
    for point in entry_points(group=GROUP):
        other = entries.setdefault(point.name, point)
        if other.value != point.value:
            raise ValueError(
                f"{point.name}: two installed packages have a mechanism of that name, {other.value} and {point.value}; "
                "uninstall one"
            )
    return entries


def load(name: str, taken: frozenset[str]) -> type[Any]:
    """Import and return the class of an installed mechanism, or of a reference.

    `name` must come from the user of this process.

    Args:
        name: Name of an entry point, or "package.module:Class".
        taken: Names of the catalogue.

    Raises:
        ValueError: It cannot be imported, it is no mechanism, it does not state its guarantee, or its own name differs.
    """
    reference = name if is_reference(name) else installed()[name].value
    if not _REFERENCE.fullmatch(reference):
        raise ValueError(f'{name}: is no mechanism\'s place; write "package.module:Class"')
    module, _, attribute = reference.partition(":")
    try:
        kind = getattr(import_module(module), attribute)
    except (Exception, SystemExit) as error:  # other people's code may raise anything
        raise ValueError(
            f"{name}: cannot be imported ({type(error).__name__}: {_line(error)}); is its package installed, or its "
            "folder on PYTHONPATH?"
        ) from error
    if complaint := _complaint(kind):
        raise ValueError(f"{name}: {complaint}")
    if kind.name in taken:
        raise ValueError(f"{name}: calls itself {kind.name!r}, as a mechanism of the catalogue does; rename it")
    if kind.name != name and not (kind.name in (points := installed()) and points[kind.name].value == reference):
        raise ValueError(
            f"{name}: calls itself {kind.name!r}, and it is by its name that a release says what drew it; leave `name` "
            f"out, or install it as an entry point of {GROUP} under that name"
        )
    mechanism_type: type[Any] = kind
    return mechanism_type


def _complaint(kind: Any) -> str:
    """Return why this is no class of a mechanism that states its guarantee; "" if it is one."""
    if not isinstance(kind, type):
        return f"is no class but a {type(kind).__name__}; name the mechanism's class"
    if not (is_dataclass(kind) and kind.__dataclass_params__.frozen):  # type: ignore[attr-defined]
        return "is no frozen dataclass; its fields are the mechanism's public parameters"
    if (channel := getattr(kind, "channel", None)) not in CHANNELS:
        return f"states no channel; give it one of {', '.join(CHANNELS)}, got {channel!r}"
    if not isinstance(getattr(kind, "name", None), str):
        return "states no name; derive it from mechanisms.plugin.OwnMechanism, or give it one"
    for needed in ("guarantee", "privacy_loss", "sample", "grid"):
        if not hasattr(kind, needed):
            return f"has no {needed}; derive it from mechanisms.plugin.OwnMechanism, or write it"
    sample: Any = kind.sample  # type: ignore[attr-defined]
    rng = inspect.signature(sample).parameters.get("rng")
    if rng is None or rng.kind is not inspect.Parameter.KEYWORD_ONLY or rng.default is not inspect.Parameter.empty:
        return "its sample must take its randomness as `*, rng`, required and by keyword"
    return _unstated(kind) if issubclass(kind, OwnMechanism) else ""


def _unstated(kind: type[OwnMechanism]) -> str:
    """Return what the base class lacks to derive a theorem from, unless both halves of it are written."""
    halves = {half for half in ("guarantee", "privacy_loss") if getattr(kind, half) is getattr(OwnMechanism, half)}
    if not halves:
        return ""
    if len(halves) < 2:
        return f"writes one of guarantee and privacy_loss, and they go together; write {min(halves)}"
    named = {f.name for f in fields(kind)}  # type: ignore[arg-type]
    vectors = CHANNELS[kind.channel].domain.vectors
    metrics = METRICS if vectors else ("discrete", "euclidean") if CHANNELS[kind.channel] is TEXT else ("discrete",)
    if getattr(kind, "metric", None) not in metrics or not ("epsilon" in named or hasattr(kind, "epsilon")):
        return (
            f"does not state its guarantee; give it a field epsilon and a metric, {' or '.join(metrics)}, or write "
            "guarantee and privacy_loss"
        )
    if hasattr(kind, "distances"):  # they may be larger than those from which the guarantee would be derived
        return "states distances of its own; write guarantee and privacy_loss, of the largest of them"
    if vectors and not hasattr(kind, "numeric_delta"):
        return "does not state numeric_delta, how far its draws may be from its theorem's"
    return ""


@lru_cache(maxsize=16)
def check(mechanism: Any) -> None:
    """Check that a mechanism's declarations have the right types and agree.

    Raises:
        ValueError: They do not.
    """
    name = mechanism.name
    guarantee, loss = mechanism.guarantee, mechanism.privacy_loss()
    if not isinstance(guarantee, Guarantee):
        raise ValueError(f"{name}: its guarantee is a {type(guarantee).__name__}, and must be a Guarantee")
    if not isinstance(loss, LossCells):
        raise ValueError(f"{name}: its privacy_loss gives a {type(loss).__name__}, and must give LossCells")
    if not (mechanism.grid is None or isinstance(mechanism.grid, Quantizer)):
        raise ValueError(f"{name}: its grid is a {type(mechanism.grid).__name__}, and must be a Quantizer or None")
    if guarantee.protects not in (units := CHANNELS[mechanism.channel].protects):
        allowed = " or a ".join(units)
        raise ValueError(f"{name}: its guarantee is of a {guarantee.protects}, and the channel's is of a {allowed}")
    for delta in (0.0, 1e-6):
        charged = guarantee.worst_case(delta, declared=guarantee.exposes)
        # Gaussian noise is charged by its exact profile, which cells of its loss approximate from above alone
        lost = loss.epsilon(delta) if guarantee.sigma is None else loss.epsilon_optimistic(delta)
        if lost > charged * (1 + _SLACK) + _SLACK:
            raise ValueError(
                f"{name}: its guarantee says ε = {charged:.6g} at δ = {delta:g} and its privacy_loss {lost:.6g}; it is "
                "charged by the guarantee, which must not be the smaller"
            )
    parameters(mechanism)


def made(kind: type[Any], given: Mapping[str, Any]) -> Any:
    """Return the mechanism of a class with these parameters, after `check`.

    Raises:
        ValueError: A check fails, or the mechanism's own code raises any exception.
    """
    try:
        mechanism = kind(**given)
        check(mechanism)
    except ValueError:
        raise
    except Exception as error:
        raise ValueError(f"{kind.name}: fails with {dict(given)!r} ({_line(error)})") from error
    return mechanism


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())
