"""DP-BART: noise on an encoder's states of a whole text, and a text that its decoder writes from the noisy states."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from mechanisms import checks
from mechanisms.facts import EPSILONS, WHOLE_TEXT, Facts, Pair
from mechanisms.gaussian import MAX_DIM, Gaussian
from mechanisms.guarantee import Guarantee
from mechanisms.losses.loss import LossCells, checked_distance
from mechanisms.mechanism import Uniforms
from mechanisms.vocabulary import NOTHING, Vocabulary
from mechanisms.words import language_model

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
#: writer(states (k, window·width), L) -> word ids (k, L), NOTHING after the end. This is a decoder, which knows only
#: these noisy states of the private texts, and writes for each row the same as for that row alone.
Writer = Callable[[FloatArray, int], IntArray]

MAX_CLIP = 1e6


@dataclass(frozen=True)
class DpBart:
    """z + N(0, s²) on the clipped states z of an encoder, decoded (DP-BART-CLV, Igamberdiev and Habernal 2023).

    An encoder makes n = window·width numbers of a text, cut or padded to `window` tokens. Each is clipped to [-clip,
    clip], so that the row of them lies in the ball of radius R = clip·√n, as published. w = z/R and the coordinate √(1
    - |w|²) beside it are a unit vector, which `Gaussian` releases. The n coordinates other than that last one, times R,
    go to the decoder. Noise on each of them has the standard deviation R·σ, as that of the paper, which calibrates by
    the same theorem to the same sensitivity 2R.

    **Guarantee.** *One draw a text*, (ε, δ)-LDP about all of it: two unit vectors are at most 2 apart (Balle and Wang
    2018, Theorem 8, by `Gaussian.calibrated`). The lift takes no pair beyond that, so it loses nothing: the bound of
    two points of the ball, which opposite corners of the cube meet, is 2 as well. Dropping a coordinate, scaling by
    public numbers and decoding are post-processing. Nothing else of a text is read. Its number of tokens is not: the
    decoder writes L positions for any x, and attends to all `window` states. A failure of the encoder is not: NaN
    counts as 0, and infinity is clipped. Any function of the text may replace the encoder. There is no pure ε: at δ = 0
    there is none.

    Attributes:
        epsilon: ε of a text, 0..1000.
        delta: δ of a text, above 0.
        width: Width d of a state of the model.
        vocabulary: Words that are written.
        window: Tokens l that the encoder reads; window·width is below 131,072.
        clip: C, a public number, above 0; 0.1 is the authors'.
    """

    epsilon: float
    delta: float
    width: int
    vocabulary: Vocabulary
    window: int = 20
    clip: float = 0.1

    name: ClassVar[str] = "dp-bart"
    channel: ClassVar[str] = "text"
    model: ClassVar[str] = "paraphraser"
    reads: ClassVar[tuple[str, ...]] = ("states", "writer")
    needs_prior: ClassVar[bool] = False
    moves: ClassVar[bool] = True
    whole: ClassVar[bool] = True
    facts: ClassVar[Facts] = Facts(
        usual={"delta": 1e-3, "width": 2},
        audits=({"window": 4},),
        pair=Pair.STATES,
        slider=WHOLE_TEXT,
        tried={"epsilon": EPSILONS, "delta": (1e-6,), "width": (3,), "window": (4,), "clip": (0.1,)},
    )

    def __post_init__(self) -> None:
        for name in ("width", "window"):
            object.__setattr__(self, name, checks.integer(self.name, name, getattr(self, name), 1, MAX_DIM - 1))
        if self.size >= MAX_DIM:
            raise ValueError(
                f"{self.name}: window {self.window} times width {self.width} must be below {MAX_DIM:,}; lower window"
            )
        clip = checks.real(self.name, "clip", self.clip, 0, MAX_CLIP)
        if clip < 1 / MAX_CLIP:
            raise ValueError(f"{self.name}: clip must be at least {1 / MAX_CLIP:g}, got {clip:g}")
        object.__setattr__(self, "clip", clip)
        object.__setattr__(self, "epsilon", checks.epsilon(self.name, self.epsilon))
        object.__setattr__(self, "delta", checks.real(self.name, "delta", self.delta, 1e-300, 1 - 1e-12))
        try:
            self.noise  # noqa: B018 - no noise may be large enough, which must be reported now
        except ValueError as error:
            raise ValueError(f"{self.name}: {error}") from error

    @property
    def grid(self) -> None:
        """Return None: outputs are integers."""
        return None

    @property
    def size(self) -> int:
        """Return n, the numbers that a text becomes."""
        return self.window * self.width

    @property
    def radius(self) -> float:
        """Return R of the ball in which they lie."""
        return self.clip * math.sqrt(self.size)

    @property
    def uniforms(self) -> int:
        """Return the number of uniforms of one text, whatever it holds."""
        return self.size + 1

    @cached_property
    def noise(self) -> Gaussian:
        """Return the release of the unit vectors.

        σ is rounded up, to ten digits: both ends of a request compute it, and must get the same value, whatever the
        last digit of their libraries.
        """
        sigma = Gaussian.calibrated(self.epsilon, self.delta, self.size + 1).sigma
        return Gaussian(self.size + 1, float(f"{sigma * (1 + 1e-9):.9e}"))

    @property
    def guarantee(self) -> Guarantee:
        """Return the theorem of one draw, which is that of a whole text.

        The sampler's error is that of the largest size, so that the cost of a text does not depend on the model.
        """
        noise = self.noise.guarantee
        return Guarantee(
            epsilon=math.inf,
            metric=noise.metric,
            diameter=noise.diameter,
            protects="sequence",
            numeric_delta=Gaussian(MAX_DIM, self.noise.sigma).guarantee.numeric_delta,
            sigma=noise.sigma,
        )

    def privacy_loss(self, distance: float | None = None) -> LossCells:
        """Return the loss that dominates all texts whose lifted states over R are within `distance` (None: 2)."""
        return self.noise.privacy_loss(checked_distance(self.name, distance, self.guarantee.diameter))

    def sample(self, x: NDArray[Any], *, rng: Uniforms, states: NDArray[Any], writer: Writer) -> IntArray:
        """Draw (n, L) or (n,): the decoder's text of L tokens at most; only the shape of x is read.

        `states` are the encoder's, (n, window·width).

        Raises:
            ValueError: The states, or the output of the decoder, have another shape.
        """
        word_ids, _ = language_model.rows_of(self.name, x, self.vocabulary)
        noisy = self.noised(states, rng=rng)
        if len(noisy) != len(word_ids):
            raise ValueError(f"{self.name}: expected states of {len(word_ids)} texts, got {len(noisy)}")
        out = np.asarray(writer(noisy, word_ids.shape[1]))
        if out.shape != word_ids.shape or out.dtype.kind not in "iu":
            raise ValueError(f"{self.name}: expected word ids {word_ids.shape}, got {out.dtype} {out.shape}")
        if out.size and not (out.min() >= NOTHING and out.max() < len(self.vocabulary)):
            raise ValueError(f"{self.name}: the decoder wrote what is no word of the vocabulary")
        return out.astype(np.int64).reshape(np.shape(x))

    def noised(self, states: NDArray[Any], *, rng: Uniforms) -> FloatArray:
        """Return the states for the decoder, (n, window·width) -> the same; window·width + 1 uniforms a row."""
        values = np.array(states, dtype=np.float64, order="C")
        if values.ndim != 2 or values.shape[1] != self.size:
            raise ValueError(f"{self.name}: expected states (n, {self.size}), got {values.shape}")
        values[np.isnan(values)] = 0.0
        np.clip(values, -self.clip, self.clip, out=values)
        lifted = np.empty((len(values), self.size + 1))
        lifted[:, :-1] = values / self.radius
        short = 1.0 - np.einsum("ij,ij->i", lifted[:, :-1], lifted[:, :-1])
        lifted[:, -1] = np.sqrt(np.maximum(short, 0.0))
        codes = self.noise.grid.encode(self.noise.sample(lifted, rng=rng))  # certain on the grid, and only there
        return self.noise.grid.decode(codes[:, :-1]) * self.radius
