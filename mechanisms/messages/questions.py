"""Questions of a request, one class a channel: its mechanism, its release, and how both ends make and read it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from mechanisms.arrays import BoolArray, FloatArray, IntArray
from mechanisms.catalogue import rebuild
from mechanisms.channels import ANSWER, EMBEDDING, LABEL, TEXT, VECTOR, Channel, Domain
from mechanisms.checks import is_hex, is_whole, whole
from mechanisms.identity import Identity
from mechanisms.mechanism import Mechanism, Uniforms, parameters
from mechanisms.messages.release import digest
from mechanisms.pieces import Text
from mechanisms.projection import (
    constant_share,
    linear_classes,
    project,
    signed_directions,
    softmax,
    statistic_vectors,
    user_means,
)
from mechanisms.quantizer import SPACE
from mechanisms.vocabulary import NOTHING, Vocabulary
from mechanisms.words.text import TextMechanism

MAX_WIDTH = 4096
MAX_CLASSES = 32767  # classes travel as int16
#: Array with the share of the constant. A request has it exactly if this share is larger than 1/(d + 1), so that a
#: client or a server of a version with other vectors refuses the other's requests.
_CONSTANT = "constant"
#: Array with C, the public length at which means of users are clipped. A request has it exactly if C < 1.
_CLIP = "clip"
#: Steps of C: a multiple of 1/256 is exact in float32, and no digit of it depends on a processor.
CLIP_STEPS = 256


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
    may hold other questions beside it (`alone`); whether it reads labels.
    """

    spec: Mapping[str, Any]

    about: ClassVar[Channel]
    #: The channel's name on the wire, in ledgers and in digests.
    channel: ClassVar[str]
    #: The name of the payload's one array.
    array: ClassVar[str]
    #: The content of a release in words, of the question {0}.
    says: ClassVar[str]
    of_user: ClassVar[bool] = False
    alone: ClassVar[bool] = False
    reads_labels: ClassVar[bool] = False
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
        return self.says.format(self)


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


@dataclass(frozen=True, eq=False)
class TextQuestion(Question):
    """Sanitized text of each record.

    classes: of the task.
    vocabulary: words of the text, the very ones that the mechanism names under "vocabulary".
    masked_lm: SHA-256 (hex) of the language model that the mechanism reads from; "" where it reads none.
    """

    classes: int = field(kw_only=True)
    vocabulary: Vocabulary = field(kw_only=True)
    masked_lm: str = field(default="", kw_only=True)

    about = TEXT
    channel: ClassVar[str] = TEXT.name
    array: ClassVar[str] = "w"
    says: ClassVar[str] = "the text, word by word"

    def __post_init__(self) -> None:
        require(isinstance(self.masked_lm, str), "masked_lm is no SHA-256")
        require(isinstance(self.spec, dict), f"{self.channel} is not a mechanism")
        require(isinstance(self.vocabulary, Vocabulary), "a text needs a vocabulary")
        named = self.spec.get("vocabulary")
        require(is_hex(named), "the text's vocabulary is no SHA-256")
        require(named == self.vocabulary.identity, "the text names another vocabulary than the one here")
        super().__post_init__()
        if self.text.word.reads:
            require(is_hex(self.masked_lm), "masked_lm is no SHA-256, and the text's mechanism reads one")
        else:
            require(not self.masked_lm, "a language model goes with a mechanism that reads one")

    @property
    def text(self) -> TextMechanism:
        """Return the mechanism, of its own class."""
        mechanism: Any = self.mechanism
        assert isinstance(mechanism, TextMechanism)
        return mechanism

    @property
    def sizes(self) -> dict[str, Any]:
        """Return the vocabulary."""
        return {"vocabulary": self.vocabulary}

    def public(self, split: str) -> dict[str, Any]:
        """Return the language model; the mechanism names the vocabulary."""
        return {"masked_lm": self.masked_lm}

    @classmethod
    def read(cls, spec: dict[str, Any], wire: Received) -> TextQuestion:
        """Return the question of a request's wire."""
        identity = spec.get("vocabulary")
        require(wire.vocabulary is not None, "a text needs a vocabulary")
        if wire.vocabulary is None or not is_hex(identity):
            raise ValueError("request: the text's vocabulary is no SHA-256")
        return cls(spec, classes=wire.classes, vocabulary=wire.vocabulary(identity), masked_lm=wire.masked_lm)

    def values(self, records: Records, rows: IntArray, starts: IntArray) -> list[Text]:
        """Return texts or pairs."""
        return records.texts(rows)

    def draw(self, values: list[Text], lent: Lent) -> NDArray[np.int32]:
        """Draw word ids (n, L)."""
        return lent.texts(self.text, values)

    @property
    def payload_form(self) -> tuple[str, np.dtype[Any], tuple[int, ...]]:
        """Return the form of word ids (L,), of a pair (2L,)."""
        return self.array, np.dtype(np.int32), (self.text.positions,)

    def checks(self, payload: NDArray[Any]) -> dict[str, BoolArray]:
        """Check that rows are words of the vocabulary."""
        outside = (payload < NOTHING) | (payload >= len(self.vocabulary))
        return {"text: no word of the vocabulary": np.asarray(~outside.any(axis=1))}

    def decode(self, payload: NDArray[Any]) -> list[Text]:
        """Return words with spaces between."""
        return self.text.texts(payload)


@dataclass(frozen=True, eq=False)
class EmbeddingQuestion(VectorRelease, MappedQuestion):
    """Mapped embedding of each record. classes: of the task."""

    classes: int = field(kw_only=True)

    about = EMBEDDING
    channel: ClassVar[str] = EMBEDDING.name
    array: ClassVar[str] = "z"
    says: ClassVar[str] = "what the text says, in {0.dim} coordinates"

    @property
    def dim(self) -> int:
        """Return the number m' of coordinates."""
        return self.projection.dim

    @classmethod
    def read(cls, spec: dict[str, Any], wire: Received) -> EmbeddingQuestion:
        """Return the question of a request's wire."""
        return cls(spec, projection=wire.projection(), classes=wire.classes)

    def draw(self, values: NDArray[np.float32], lent: Lent) -> NDArray[Any]:
        """Draw vectors (n, m'). An embedding that cannot be normalized becomes the first basis vector."""
        return self.sampled(self.projection.apply(values), lent.rng())


@dataclass(frozen=True, eq=False)
class VectorQuestion(VectorRelease, MappedQuestion):
    """One vector of each user, who has put all records and their labels into it. It belongs to their record 0.

    codes: (K, c) float32, of length 1 each: what a class stands for in a vector
        (`mechanisms.projection.statistic_vectors`).
    clip: C, a multiple of 1/256 from 1/256 to 1, chosen on public data: `mechanisms.projection.signed_directions`.
    """

    codes: NDArray[np.float32] = field(kw_only=True)
    clip: float = field(default=1.0, kw_only=True)

    about = VECTOR
    channel: ClassVar[str] = VECTOR.name
    array: ClassVar[str] = "s"
    says: ClassVar[str] = "how texts go with labels, in {0.dim} coordinates"
    of_user: ClassVar[bool] = True
    inside: ClassVar[bool] = True
    alone: ClassVar[bool] = True
    reads_labels: ClassVar[bool] = True

    def __post_init__(self) -> None:
        codes = require_array(self.codes, 2, "codes")
        require(codes.shape[1] <= codes.shape[0], "codes do not fit classes")
        lengths = np.sqrt((codes.astype(np.float64) ** 2).sum(axis=1))
        require(bool((np.abs(lengths - 1.0) <= 1e-6).all()), "a code's length is not 1")
        steps = self.clip * CLIP_STEPS
        require(1 <= steps <= CLIP_STEPS and steps == int(steps), "clip is no multiple of 1/256 from 1/256 to 1")
        super().__post_init__()

    @property
    def classes(self) -> int:
        """Return K, the number of codes."""
        return len(self.codes)

    @property
    def dim(self) -> int:
        """Return D = c·(d + 1), the number of coordinates of a vector of d features."""
        return int(self.codes.shape[1]) * (self.projection.dim + 1)

    def public(self, split: str) -> dict[str, Any]:
        """Return encoder, maps, grid, codes and the other arrays that say of which form its vectors are."""
        return super().public(split) | {"classes": self.classes} | self.arrays()

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the codes, the share of the constant if it is larger than 1/(d + 1), and C if it is below 1."""
        d = self.projection.dim
        share = constant_share(d)
        stated = {_CONSTANT: np.array([share], np.float32)} if share > 1 / (d + 1) else {}
        clipped = {_CLIP: np.array([self.clip], np.float32)} if self.clip < 1 else {}
        return {"codes": self.codes} | stated | clipped

    @classmethod
    def read(cls, spec: dict[str, Any], wire: Received) -> VectorQuestion:
        """Return the question of a request's wire."""
        projection = wire.projection()
        require("codes" in wire.arrays, "codes go with a statistic")
        clip = require_array(wire.arrays.get(_CLIP, np.ones(1, np.float32)), 1, _CLIP)
        question = cls(spec, projection=projection, codes=wire.arrays["codes"], clip=float(clip[0]))
        same = (np.array_equal(wire.arrays.get(name, 0), own) for name, own in question.arrays().items())
        require(all(same), "its vectors are of another form")
        return question

    def means(self, embeddings: NDArray[np.float32], labels: IntArray, starts: IntArray) -> FloatArray:
        """Return vectors of u users before randomization (u, D): the mean of label code ⊗ features over their records.

        embeddings: (n, m), of the users' records, contiguous for each user. labels: (n,), of the same records; an
        invalid one counts as class 0. starts: (u + 1,), the start of each user, and the end of the last.
        """
        labels = inside_classes(labels, self.classes)
        return user_means(statistic_vectors(self.projection.apply(embeddings), labels, self.codes), starts)

    def values(self, records: Records, rows: IntArray, starts: IntArray) -> FloatArray:
        """Return users' means (u, D), of length 1 at most."""
        return self.means(records.embeddings(rows, self.projection), records.labels(rows), starts)

    def draw(self, values: FloatArray, lent: Lent) -> NDArray[Any]:
        """Draw vectors (u, D) from unit vectors whose expectations are the clipped means; in clear, the means."""
        rng = lent.rng()
        if not isinstance(self.mechanism, Identity):
            values = signed_directions(values, rng.uniform(len(values), 1)[:, 0], self.clip)
        return self.sampled(values, rng)


@dataclass(frozen=True, eq=False)
class AnswerQuestion(ClassRelease, MappedQuestion):
    """Class of each record's text by a model.

    head: (W (m', K) float32, b (K,) float32): the class of an embedding is the first of the largest of x @ W + b, x the
        mapped, normalized one.
    """

    head: tuple[NDArray[np.float32], NDArray[np.float32]] = field(kw_only=True)

    about = ANSWER
    channel: ClassVar[str] = ANSWER.name
    array: ClassVar[str] = "c"
    says: ClassVar[str] = "which of {0.classes} classes a model finds in it"
    alone: ClassVar[bool] = True
    has_model: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require(isinstance(self.projection, Projection), "no encoder is named")
        self.projection.linear(self.head, "head")
        super().__post_init__()

    @property
    def classes(self) -> int:
        """Return K, the number of the model's classes."""
        return len(self.head[1])

    def public(self, split: str) -> dict[str, Any]:
        """Return encoder, maps and model."""
        return super().public(split) | {"head": self.head, "classes": self.classes}

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the model."""
        return {"head_w": self.head[0], "head_b": self.head[1]}

    @classmethod
    def read(cls, spec: dict[str, Any], wire: Received) -> AnswerQuestion:
        """Return the question of a request's wire."""
        projection, head = wire.projection(), wire.pair("head")
        if head is None:
            raise ValueError("request: a head goes with an answer")
        return cls(spec, projection=projection, head=head)

    def draw(self, values: NDArray[Any], lent: Lent) -> NDArray[Any]:
        """Draw classes (n,)."""
        return self.sampled(linear_classes(self.projection.apply(values), *self.head), lent.rng())


@dataclass(frozen=True, eq=False)
class Prior:
    """Prior of a label: softmax(ẑ @ W + b), ẑ the *released* embedding of the same request.

    weights: (W (m', K) float32, b (K,) float32).
    """

    weights: tuple[NDArray[np.float32], NDArray[np.float32]]
    embedding: EmbeddingQuestion

    def __post_init__(self) -> None:
        require(isinstance(self.embedding, EmbeddingQuestion), "a prior needs an embedding in the same request")
        self.embedding.projection.linear(self.weights, "prior")


@dataclass(frozen=True, eq=False)
class LabelQuestion(ClassRelease):
    """Label of each record. classes: of the label. prior: goes with a mechanism that needs one."""

    classes: int = field(kw_only=True)
    prior: Prior | None = field(default=None, kw_only=True)

    about = LABEL
    channel: ClassVar[str] = LABEL.name
    array: ClassVar[str] = "y"
    says: ClassVar[str] = "its label"
    reads_labels: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        needs = bool(getattr(self.mechanism, "needs_prior", False))
        require(needs == (self.prior is not None), "a prior goes with a mechanism that needs one")
        if self.prior is not None:
            require(len(self.prior.weights[1]) == self.classes, "prior does not fit classes")

    @property
    def given(self) -> EmbeddingQuestion | None:
        """Return the embedding that the prior reads."""
        return None if self.prior is None else self.prior.embedding

    def public(self, split: str) -> dict[str, Any]:
        """Return classes, and the prior with the embedding that it reads."""
        public: dict[str, Any] = {"classes": self.classes}
        if self.prior is not None:
            public |= {"prior": list(self.prior.weights), "embedding": self.prior.embedding.digest(split)}
        return public

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the prior."""
        if self.prior is None:
            return {}
        return {"prior_w": self.prior.weights[0], "prior_b": self.prior.weights[1]}

    @classmethod
    def read(cls, spec: dict[str, Any], wire: Received) -> LabelQuestion:
        """Return the question of a request's wire."""
        weights, prior = wire.pair("prior"), None
        if weights is not None:
            embeddings = [question for question in wire.before if isinstance(question, EmbeddingQuestion)]
            require(embeddings, "a prior needs an embedding in the same request")
            prior = Prior(weights, embeddings[0])
        return cls(spec, classes=wire.classes, prior=prior)

    def values(self, records: Records, rows: IntArray, starts: IntArray) -> IntArray:
        """Return labels (n,)."""
        return records.labels(rows)

    def draw(self, values: IntArray, lent: Lent) -> NDArray[Any]:
        """Draw classes (n,). An invalid label counts as class 0."""
        arguments = {}
        if self.prior is not None:
            assert lent.released is not None
            arguments["prior"] = softmax(self.prior.embedding.decode(lent.released), *self.prior.weights)
        return self.sampled(values, lent.rng(), **arguments)


#: Question classes by the name of their channel, in their order on the wire: the label last, because its prior may
#: depend on the released embedding.
QUESTIONS: dict[str, type[Question]] = {
    kind.channel: kind for kind in (TextQuestion, EmbeddingQuestion, VectorQuestion, AnswerQuestion, LabelQuestion)
}
