"""Base of the questions of a request: one channel's mechanism, its release, and how both ends make and read it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from mechanisms.arrays import BoolArray, FloatArray, IntArray
from mechanisms.catalogue import rebuild
from mechanisms.channels import Channel, Domain
from mechanisms.checks import is_hex, is_whole, whole
from mechanisms.identity import Identity
from mechanisms.mechanism import Mechanism, Uniforms, parameters
from mechanisms.messages.release import digest
from mechanisms.pieces import Text
from mechanisms.projection import project
from mechanisms.quantizer import SPACE
from mechanisms.vocabulary import Vocabulary

MAX_WIDTH = 4096
MAX_CLASSES = 32767  # classes travel as int16


def require(condition: object, complaint: str) -> None:
    """Raise ValueError of a request unless the condition holds."""
    if not condition:
        raise ValueError(f"request: {complaint}")


def require_array(value: object, axes: int, name: str) -> NDArray[Any]:
    """Return a finite, not empty float32 array of that many axes. Raise ValueError on anything else."""
    complaint = f"{name} is not a finite float32 array of {axes} axes"
    if not isinstance(value, np.ndarray):
        raise ValueError(f"request: {complaint}")
    require(value.dtype == np.float32 and value.ndim == axes and value.size > 0, complaint)
    require(np.isfinite(value).all(), complaint)
    return value


@dataclass(frozen=True, eq=False)
class Projection:
    """Encoder and public maps from its embeddings to unit vectors.

    encoder: SHA-256 (hex) of the encoder. mean: (m,) float32, subtracted from an embedding. m1: (m, m') float32,
    2 <= m' <= m, applied to it.
    Raises ValueError on anything else.
    """

    encoder: str
    mean: NDArray[np.float32]
    m1: NDArray[np.float32]

    def __post_init__(self) -> None:
        require(is_hex(self.encoder), "encoder is no SHA-256")
        mean, m1 = require_array(self.mean, 1, "mean"), require_array(self.m1, 2, "m1")
        m, dim = m1.shape
        require(len(mean) == m and m <= MAX_WIDTH, "mean and m1 do not fit each other")
        require(2 <= dim <= m, "m1 must map to at least 2 and at most m coordinates")

    @property
    def width(self) -> int:
        """Return m, the number of coordinates of an embedding."""
        return len(self.mean)

    @property
    def dim(self) -> int:
        """Return m', the number of coordinates of a mapped one."""
        return int(self.m1.shape[1])

    def apply(self, embeddings: NDArray[np.floating[Any]]) -> FloatArray:
        """Map embeddings (n, m) to unit rows (n, m')."""
        return project(embeddings, self.mean, self.m1)

    def linear(self, pair: object, name: str) -> int:
        """Return the number of classes of a linear model (W (m', K), b (K,)) on mapped embeddings.

        Raises:
            ValueError: It is no such model.
        """
        if not (isinstance(pair, tuple) and len(pair) == 2):
            raise ValueError(f"request: {name} is not a pair")
        weight, bias = require_array(pair[0], 2, name), require_array(pair[1], 1, name)
        require(weight.shape[0] == self.dim, f"{name} does not fit m1 and classes")
        require(bias.shape == weight.shape[1:], f"{name} does not fit classes")
        return len(bias)


class Records(Protocol):
    """Private records of a node, as a question reads them by their rows."""

    def texts(self, rows: IntArray) -> list[Text]:
        """Return texts or pairs."""
        ...

    def labels(self, rows: IntArray) -> IntArray:
        """Return labels (n,), which may be invalid."""
        ...

    def embeddings(self, rows: IntArray, projection: Projection) -> NDArray[np.float32]:
        """Return embeddings (n, m) by the encoder of the projection; raise if the node has none of that width."""
        ...


@dataclass(frozen=True)
class Lent:
    """Functions and data that the caller of a draw lends it.

    rng: opens the rows' random stream.
    texts: draws texts, by the tokenizers and language models of the device: (mechanism, texts) -> word ids.
    released: releases of the question's `given`, of the same rows, where it has one.
    """

    rng: Callable[[], Uniforms]
    texts: Callable[[Any, Sequence[Text]], NDArray[np.int32]]
    released: NDArray[Any] | None = None


@dataclass(frozen=True)
class Received:
    """Parts of a request's wire from which a question is read: the sender may be hostile.

    arrays: of the request. classes, masked_lm: of the request. projection: makes its maps; it raises where there are
    none. vocabulary: gives the one of an identity, and may raise; None where there is none. before: the questions that
    stand before this one.
    """

    arrays: Mapping[str, NDArray[Any]]
    classes: int
    masked_lm: str
    projection: Callable[[], Projection]
    vocabulary: Callable[[str], Vocabulary] | None
    before: tuple[Question, ...]

    def pair(self, name: str) -> tuple[NDArray[Any], NDArray[Any]] | None:
        """Return the arrays of a linear model; None if there are none."""
        if f"{name}_w" not in self.arrays or f"{name}_b" not in self.arrays:
            return None
        return self.arrays[f"{name}_w"], self.arrays[f"{name}_b"]


@dataclass(frozen=True, eq=False)
class Question:
    """One channel of a request: release this, drawn so. One that exists has been validated.

    spec: {"mechanism": name, parameters}.

    A class says for its channel: the payload's `array`; whether a row is `of_user` or of a record; whether a request
    may hold other questions beside it (`alone`); whether it reads labels. It is added by one call of
    `mechanisms.messages.questions.register`.
    """

    spec: Mapping[str, Any]

    about: ClassVar[Channel]
    #: The channel's name on the wire, in ledgers and in digests.
    channel: ClassVar[str]
    #: The name of the payload's one array.
    array: ClassVar[str]
    of_user: ClassVar[bool] = False
    alone: ClassVar[bool] = False
    reads_labels: ClassVar[bool] = False
    #: Mechanisms that this channel has of its own, beside those that state it as theirs: what names stand for on it.
    mechanisms: ClassVar[tuple[type[Any], ...]] = ()
    #: Whether the draw runs a model that the request carries.
    has_model: ClassVar[bool] = False

    def __post_init__(self) -> None:
        require(isinstance(self.spec, dict), f"{self.channel} is not a mechanism")
        if "classes" in self.__dataclass_fields__:
            object.__setattr__(self, "classes", whole(self.classes))
        require(is_whole(self.classes, 2, MAX_CLASSES), "classes is out of range")
        # a text's mechanism may use these names for anything
        own = {} if self.about.domain is Domain.TEXT else parameters(self.mechanism)
        sizes = [own[key] for key in ("dim", "classes", "size") if key in own]
        require(all(s in self.sizes.values() for s in sizes), f"the {self.channel}'s mechanism is of another size")

    # What it asks for.

    if TYPE_CHECKING:  # fields of some classes

        @property
        def classes(self) -> int:
            """Return the number of classes of the task."""

        @property
        def projection(self) -> Projection | None:
            """Return the public maps that the draw applies, if any."""

        @property
        def vocabulary(self) -> Vocabulary | None:
            """Return the words of a text, which do not travel: each side has its own."""

        @property
        def masked_lm(self) -> str:
            """Return the SHA-256 (hex) of the language model that the draw reads; "" if it reads none."""

        @property
        def clip(self) -> float:
            """Return C, at which users' means are clipped; 1 where none are."""

    else:
        projection, vocabulary, masked_lm, clip = None, None, "", 1.0

    @property
    def sizes(self) -> Mapping[str, Any]:
        """Return sizes of the mechanism's domain, for `mechanisms.catalogue.rebuild`."""
        raise NotImplementedError

    @property
    def given(self) -> Question | None:
        """Return the question of the same request whose release the draw reads, if any."""
        return None

    @cached_property
    def mechanism(self) -> Mechanism:
        """Return the mechanism."""
        try:
            built: Mechanism = rebuild(self.spec, channel=self.channel, **self.sizes)
        except (TypeError, KeyError, OverflowError):
            raise ValueError("request: a mechanism's parameter is of the wrong kind") from None
        return built

    def public(self, split: str) -> dict[str, Any]:
        """Return public parameters that the draw depends on, beside its mechanism."""
        raise NotImplementedError

    def digest(self, split: str) -> str:
        """Return the SHA-256 (hex) of every public parameter that the draw depends on, as the request states it.

        It leaves out the stage, which is a part of a release's key beside it, and the guarantee: CPUs compute its
        numbers with different last bits.
        """
        return digest(self._named(split))

    def former_digest(self, split: str, guarantee: Mapping[str, Any]) -> str:
        """Return the digest of versions up to 0.3, which held a release's guarantee as its device had computed it."""
        return digest(self._named(split) | {"guarantee": guarantee})

    def _named(self, split: str) -> dict[str, Any]:
        return {"channel": self.channel, "split": split, "mechanism": parameters(self.mechanism)} | self.public(split)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return its own arrays on the wire."""
        return {}

    @classmethod
    def read(cls, spec: dict[str, Any], wire: Received) -> Question:
        """Return the question of a request's wire. Raise ValueError if it is invalid."""
        raise NotImplementedError

    # What a device does.

    def values(self, records: Records, rows: IntArray, starts: IntArray) -> Any:
        """Return private inputs of the draws; a record's content never raises.

        Input i is made of rows[starts[i]:starts[i + 1]]: one row, unless the release is `of_user`.
        """
        raise NotImplementedError

    def draw(self, values: Any, lent: Lent) -> NDArray[Any]:
        """Draw once for each of n inputs, in the form of the payload.

        Each row depends on its own values and stream alone.
        """
        raise NotImplementedError

    @property
    def bytes_in_draw(self) -> int:
        """Return the bytes that the draw of a row holds beside its payload, at least."""
        return 0

    # What a server does.

    @property
    def payload_form(self) -> tuple[str, np.dtype[Any], tuple[int, ...]]:
        """Return name, dtype and shape of one row of the payload."""
        raise NotImplementedError

    def checks(self, payload: NDArray[Any]) -> dict[str, BoolArray]:
        """Return masks (n,) of rows that may be releases, by the reason why the others are not.

        The payload is of the right form (`payload_form`).
        """
        raise NotImplementedError

    def decode(self, payload: NDArray[Any]) -> Any:
        """Return released values as a server computes with them."""
        raise NotImplementedError

    # What people read.

    @property
    def content(self) -> str:
        """Return the content of a release, in words."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class MappedQuestion(Question):
    """Question about embeddings under public maps."""

    projection: Projection = field(kw_only=True)

    def __post_init__(self) -> None:
        require(isinstance(self.projection, Projection), "no encoder is named")
        super().__post_init__()

    def public(self, split: str) -> dict[str, Any]:
        """Return encoder, maps and grid."""
        grid, maps = self.mechanism.grid, self.projection
        return {
            "encoder": maps.encoder,
            "mean": maps.mean,
            "m1": maps.m1,
            "grid": None if grid is None else {"bits": grid.bits, "step": grid.step},
        }

    def values(self, records: Records, rows: IntArray, starts: IntArray) -> NDArray[Any]:
        """Return embeddings (n, m) of the encoder's full width."""
        return records.embeddings(rows, self.projection)


@dataclass(frozen=True, eq=False)
class VectorRelease(Question):
    """Question whose release is a vector of `dim` coordinates."""

    #: Whether a vector in clear may be shorter than 1.
    inside: ClassVar[bool] = False

    @property
    def dim(self) -> int:
        """Return the number of coordinates."""
        raise NotImplementedError

    @property
    def sizes(self) -> dict[str, Any]:
        """Return the number of coordinates."""
        return {"dim": self.dim}

    @property
    def payload_form(self) -> tuple[str, np.dtype[Any], tuple[int, ...]]:
        """Return the form of grid integers, or of float32 if the mechanism names no grid."""
        grid = self.mechanism.grid
        return self.array, np.dtype(np.float32) if grid is None else grid.dtype, (self.dim,)

    def sampled(self, x: FloatArray, rng: Uniforms) -> NDArray[Any]:
        """Draw vectors, in the form of the payload."""
        y, grid = self.mechanism.sample(x, rng=rng), self.mechanism.grid
        drawn: NDArray[Any] = y.astype(np.float32) if grid is None else grid.encode(y)
        return drawn

    def decode(self, payload: NDArray[Any]) -> FloatArray:
        """Return released vectors (n, dim) as numbers."""
        return decoded(self.mechanism, payload)

    def checks(self, payload: NDArray[Any]) -> dict[str, BoolArray]:
        """Check that vectors are on the grid, finite, and of length 1 up to rounding."""
        channel, grid = self.channel, self.mechanism.grid
        if grid is None:  # a mechanism without a quantizer releases float32 unit vectors
            finite = np.isfinite(payload).all(axis=1)
            values = np.where(finite[:, None], payload, 0).astype(np.float64)
            checks = {f"{channel}: not finite": finite}
            step = float(np.finfo(np.float32).eps)
        else:
            checks = {f"{channel}: off the grid": (np.abs(payload.astype(np.int64)) <= grid.limit).all(axis=1)}
            values, step = grid.decode(payload), grid.step
        if grid != SPACE:
            shorter = self.inside and isinstance(self.mechanism, Identity)
            slack = np.sqrt(payload.shape[1]) * step / 2 + 1e-9  # each coordinate is off by at most half a step
            length = np.linalg.norm(values, axis=1)
            checks[f"{channel}: off the sphere"] = (length <= 1.0 + slack) & (shorter | (length >= 1.0 - slack))
        return checks


@dataclass(frozen=True, eq=False)
class ClassRelease(Question):
    """Question whose release is one of K classes."""

    @property
    def sizes(self) -> dict[str, Any]:
        """Return K."""
        return {"classes": self.classes}

    @property
    def payload_form(self) -> tuple[str, np.dtype[Any], tuple[int, ...]]:
        """Return the form of a class."""
        return self.array, np.dtype(np.int16), ()

    @property
    def bytes_in_draw(self) -> int:
        """Return the bytes of a number for each class."""
        return 8 * self.classes

    def sampled(self, classes: IntArray, rng: Uniforms, **given: Any) -> NDArray[Any]:
        """Draw classes (n,); an invalid one counts as class 0, inside the mechanism's domain."""
        mechanism: Any = self.mechanism
        drawn: NDArray[Any] = mechanism.sample(inside_classes(classes, self.classes), rng=rng, **given)
        return drawn

    def decode(self, payload: NDArray[Any]) -> IntArray:
        """Return classes (n,)."""
        return payload.astype(np.int64)

    def checks(self, payload: NDArray[Any]) -> dict[str, BoolArray]:
        """Check that rows are classes."""
        return {f"{self.channel}: out of range": (payload >= 0) & (payload < self.classes)}


def decoded(mechanism: Mechanism, payload: NDArray[Any]) -> FloatArray:
    """Return released vectors (n, D) as numbers."""
    return payload.astype(np.float64) if mechanism.grid is None else mechanism.grid.decode(payload)


def inside_classes(values: IntArray, classes: int) -> IntArray:
    """Return the classes, with class 0 for an invalid one."""
    return np.where((values >= 0) & (values < classes), values, 0)
