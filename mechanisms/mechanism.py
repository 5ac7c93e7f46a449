"""Interfaces of mechanisms: frozen objects whose fields are their public parameters."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any, Protocol

from numpy.typing import NDArray

from mechanisms.arrays import FloatArray, IntArray
from mechanisms.guarantee import Guarantee
from mechanisms.losses.loss import LossCells
from mechanisms.quantizer import Quantizer
from mechanisms.streams import drawn
from mechanisms.vocabulary import Vocabulary


class Uniforms(Protocol):
    """Source of randomness with a fixed number of uniforms for each row. Rows never share a stream."""

    def uniform(self, rows: int, k: int) -> FloatArray:
        """Return (rows, k) float64 in the open interval (0, 1): midpoints of 2^52 equal cells."""
        ...

    def further(self, rows: IntArray, k: int) -> FloatArray:
        """Return the places in their cells of the last k uniforms of these rows, (len(rows), k).

        They are shares of a cell, and uniforms themselves. The call changes no other draw.
        """
        ...


class Mechanism(Protocol):
    """Randomizer with its theorem.

    A class may state any of them as a class variable.

    Attributes:
        name: Catalogue name.
        channel: Channel that it sanitizes, "embedding" or "label" (or "text").
        guarantee: Theorem.
        grid: Grid of its outputs on the wire; None if they are integers.

    A complete one, of labels 0 and 1, by hand and shuffled among 1,000 users:

    >>> import numpy as np
    >>> from mechanisms.accounting.shuffle import amplify
    >>> from mechanisms.guarantee import Guarantee
    >>> from mechanisms.losses.categorical import pure_loss
    >>> from mechanisms.streams import SeededUniforms, drawn
    >>> class Coin:
    ...     name, channel, grid = "coin", "label", None
    ...     guarantee = Guarantee(2.0, "discrete", 1.0, "record")  # kept with probability e²/(1 + e²): ε = 2
    ...     def sample(self, x, *, rng):
    ...         return np.where(drawn(rng, len(x), 1)[:, 0] < 1 / (1 + np.exp(-2)), x, 1 - x)
    ...     def privacy_loss(self, distance=None):
    ...         return pure_loss(2.0)
    >>> Coin().sample(np.array([0, 0, 1, 1, 1]), rng=SeededUniforms(7))
    array([0, 0, 1, 0, 1])
    >>> round(amplify([Coin()], users=1_000, delta=1e-6).epsilon, 3)
    0.397
    """

    @property
    def name(self) -> str:
        """Return the catalogue name."""
        ...

    @property
    def channel(self) -> str:
        """Return the channel."""
        ...

    @property
    def guarantee(self) -> Guarantee:
        """Return the theorem."""
        ...

    @property
    def grid(self) -> Quantizer | None:
        """Return the wire grid, or None."""
        ...

    def sample(self, x: NDArray[Any], *, rng: Uniforms) -> NDArray[Any]:
        """Draw once, independently, for each row of x. The result has the shape of x.

        Raises:
            ValueError: An input is out of range.
        """
        ...

    def privacy_loss(self, distance: float | None = None) -> LossCells:
        """Return the loss of a pair that dominates all pairs within `distance` (None: of the whole domain)."""
        ...


class WordMechanism(Mechanism, Protocol):
    """Mechanism of one token of a text: word ids in, word ids out.

    A class may also state: `moves = True`, if its output's words do not stand for the text's at the same place;
    `whole = True`, if it makes all of a text by one draw, and `uniforms`, the number that takes; `distances(x, y)`,
    word ids (n,) and (k,) -> (n, k), if its guarantee has other distances than the Euclidean ones of the vectors;
    `settled(x, **private)`, if it decides something by the whole text. `settled` is called before the text is cut or
    filled up to a drawn length, and its result is the input of `sample`.

    Attributes:
        vocabulary: Its words. An input may also be `vocabulary.unknown`, an output never is.
        reads: Names of further properties of the private text that `sample` and `log_prob` take by keyword:
            "importance" (a weight for each token), or "scores" (an object that returns a logit for each word at a
            place, `language_model.Scores`). Most read nothing.
        model: Kind of its language model (`client.models.language_models`); "masked-lm" if a class states none.
    """

    @property
    def vocabulary(self) -> Vocabulary:
        """Return its words."""
        ...

    @property
    def reads(self) -> tuple[str, ...]:
        """Return the names."""
        ...

    def sample(self, x: NDArray[Any], *args: Any, **private: Any) -> IntArray:
        """Draw once for each word id, (n,) or (n, L), same shape out; NOTHING stays NOTHING.

        `rng` comes by keyword, as do the properties that the class reads. Rows of `rng` are the n rows, and each uses a
        fixed number of uniforms (see `uniforms`).
        """
        ...


def uniforms(rng: Uniforms, shape: tuple[int, ...], k: int) -> FloatArray:
    """Draw k uniforms for each entry of an array of that shape, (entries, k). The first axis is the rows of `rng`."""
    width = math.prod(shape[1:])
    return drawn(rng, shape[0], width * k).reshape(-1, k)


def parameters(mechanism: Any) -> dict[str, Any]:
    """Return the public parameters of a mechanism, JSON-ready, its catalogue name under "mechanism".

    A text's are its word mechanism's and its own together. A vocabulary is given by its identity.
    """
    values = {f.name: getattr(mechanism, f.name) for f in fields(mechanism)}
    word = values.pop("word", None)
    plain = {k: v.identity if isinstance(v, Vocabulary) else v for k, v in values.items()}
    own = {"mechanism": mechanism.name} | {k: list(v) if isinstance(v, tuple) else v for k, v in plain.items()}
    return own if word is None else parameters(word) | own
