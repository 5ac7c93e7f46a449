"""What every mechanism is: a frozen object whose fields are its public parameters."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from mechanisms.guarantee import Guarantee
from mechanisms.losses.loss import LossCells
from mechanisms.quantizer import Quantizer
from mechanisms.streams import drawn
from mechanisms.vocabulary import Vocabulary


class Uniforms(Protocol):
    """A source of randomness: a fixed number of uniforms for each row, and rows never share a stream."""

    def uniform(self, rows: int, k: int) -> NDArray[np.float64]:
        """Shape (rows, k), float64 in the open interval (0, 1): midpoints of 2^52 equal cells."""
        ...

    def further(self, rows: NDArray[np.int64], k: int) -> NDArray[np.float64]:
        """Where in their cells the last k uniforms of these rows lie, as shares of a cell: uniforms themselves,
        (len(rows), k). Asking changes no other draw."""
        ...


class Mechanism(Protocol):
    """A randomizer with its theorem.

    name: its catalogue name. channel: what it sanitizes, "embedding" or "label" (or "text"). guarantee: the theorem.
    grid: what its outputs are rounded to on the wire; None where they are integers already.
    """

    name: ClassVar[str]
    channel: ClassVar[str]

    @property
    def guarantee(self) -> Guarantee: ...

    @property
    def grid(self) -> Quantizer | None: ...

    def sample(self, x: NDArray[Any], *, rng: Uniforms) -> NDArray[Any]:
        """One independent draw for each row of x. Same shape as x."""
        ...

    def privacy_loss(self, distance: float | None = None) -> LossCells:
        """Loss of a pair that dominates all pairs within `distance` (None: of the whole domain)."""
        ...


class WordMechanism(Mechanism, Protocol):
    """A mechanism of one token of a text: word ids in, word ids out.

    vocabulary: its words; an input may also be `vocabulary.unknown`, an output never is. reads: names of what else
    of the private text `sample` and `log_prob` take, by keyword: "importance" (a weight for each token), or "scores"
    (what answers with a logit for each word at a place, `language_model.Scores`); most read nothing. model: by which
    kind of language model (`client.models.language_models`); "masked-lm" where a class does not say. One whose
    output's words do not stand for the text's at the same place says `moves = True`; one that makes all of a text by
    one draw `whole = True`, and how many `uniforms` that takes; one whose guarantee is of other distances than the
    Euclidean ones of the vectors gives them in `distances(x, y)`: word ids (n,) and (k,) -> (n, k). One that decides
    something by the whole text does so in `settled(x, **private)`, before the text is cut or filled up to a drawn
    length: what it answers is what `sample` is then given.
    """

    vocabulary: Vocabulary
    reads: ClassVar[tuple[str, ...]]

    def sample(self, x: NDArray[Any], *, rng: Uniforms, **private: Any) -> NDArray[np.int64]:
        """One draw for each word id, (n,) or (n, L), same shape out; NOTHING stays NOTHING. Rows of `rng` are the n
        rows, and each uses a fixed number of uniforms (see `uniforms`). ValueError where a number is out of range."""
        ...


def uniforms(rng: Uniforms, shape: tuple[int, ...], k: int) -> NDArray[np.float64]:
    """k uniforms for each entry of an array of that shape, (entries, k): the first axis is the rows of `rng`."""
    each = math.prod(shape[1:])
    return drawn(rng, shape[0], each * k).reshape(-1, k)


def parameters(mechanism: Any) -> dict[str, Any]:
    """The public parameters of a mechanism, JSON-ready, its catalogue name under "mechanism".

    A text's are its word mechanism's and its own together; a vocabulary stands there by its identity.
    """
    values = {f.name: getattr(mechanism, f.name) for f in fields(mechanism)}
    word = values.pop("word", None)
    plain = {k: v.identity if isinstance(v, Vocabulary) else v for k, v in values.items()}
    own = {"mechanism": mechanism.name} | {k: list(v) if isinstance(v, tuple) else v for k, v in plain.items()}
    return own if word is None else parameters(word) | own
