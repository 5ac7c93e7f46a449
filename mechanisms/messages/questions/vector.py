"""Questions for user vectors, one for all of a user's records and labels. On the wire the channel is "statistic"."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from mechanisms.arrays import FloatArray, IntArray
from mechanisms.channels import VECTOR
from mechanisms.identity import Identity
from mechanisms.messages.questions.question import (
    Lent,
    MappedQuestion,
    Received,
    Records,
    VectorRelease,
    inside_classes,
    require,
    require_array,
)
from mechanisms.projection import constant_share, signed_directions, statistic_vectors, user_means

#: Array with the share of the constant. A request has it exactly if this share is larger than 1/(d + 1), so that a
#: client or a server of a version with other vectors refuses the other's requests.
_CONSTANT = "constant"
#: Array with C, the public length at which means of users are clipped. A request has it exactly if C < 1.
_CLIP = "clip"
#: Steps of C: a multiple of 1/256 is exact in float32, and no digit of it depends on a processor.
CLIP_STEPS = 256


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

    @property
    def content(self) -> str:
        """Return the content of a release, in words."""
        return f"how texts go with labels, in {self.dim} coordinates"
