"""Accounted releases of another app's answers: each vector and label is randomized, and charged before it is sent.

The unit of privacy is the user of this client. Everything in an answer that is declared to leave is a release of their
record 0, and covers all data that the app reads. A vector is the difference between the app's answer and the values
that it was sent, clipped to a norm that the client's side has fixed. `mechanisms.projection.signed_directions` turns it
into a unit vector of the same mean, so the vectors of any two users are within the mechanism's domain. The content of
the app's answer never decides whether there is an answer: a vector that is not finite counts as zero, an invalid label
as the first.

A request is the whole content of a message. A repeated request is answered from the ledger, with the same bytes, and
the app is not run. Any other request is charged anew, until the policy's total is spent. No message can change a
mechanism, its parameters or a norm.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client.charging import Due, Payloads, recall, release
from client.policy import Policy, Refused
from client.store.ledger import Ledger
from mechanisms.catalogue import build
from mechanisms.channels import CHANNELS, LABEL, VECTOR
from mechanisms.mechanism import parameters
from mechanisms.messages.release import digest
from mechanisms.projection import signed_directions
from mechanisms.streams import SecureStreams

#: A message's or an answer's content: records by name, in each arrays or values by key.
Content = Mapping[str, Mapping[str, Any]]

#: Size of a vector that is not known yet: the cost of a mechanism does not depend on it.
_ANY_SIZE = 16
_RECORDS = np.zeros(1, np.int64)
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Outgoing:
    """Part of an answer that leaves: all arrays of the record `name` as one vector, or the label at "record.key".

    Attributes:
        name: Name of the record, or of the label.
        spec: Its mechanism, as in experiment files.
        norm: Length to which the vector is clipped; None for a label.
    """

    name: str
    spec: Mapping[str, Any]
    norm: float | None

    @classmethod
    def of(cls, name: str, spec: Mapping[str, Any]) -> Outgoing:
        """Return the part that a description declares.

        Raises:
            ValueError: It is neither a vector's name with a norm, nor a label's. The message is one line.
        """
        norm = spec.get("norm")
        arguments = {key: value for key, value in spec.items() if key != "norm"}
        if "." in name:
            if norm is not None:
                raise ValueError(f"accounted: {name}: a label has no norm; name a whole record for its arrays")
            return cls(name, arguments, None)
        if isinstance(norm, bool) or not isinstance(norm, int | float) or not 0 < norm < math.inf:
            raise ValueError(f"accounted: {name}: give the norm that its update is clipped to, above 0, got {norm!r}")
        return cls(name, arguments, float(norm))

    @property
    def channel(self) -> str:
        """Return the channel of the mechanism."""
        return (LABEL if self.norm is None else VECTOR).name

    def mechanism(self, size: int) -> Any:
        """Return the mechanism, for vectors of that many coordinates.

        Raises:
            ValueError: There is none.
        """
        return _built(self.channel, tuple(sorted(self.spec.items())), size)


@lru_cache(maxsize=32)
def _built(channel: str, spec: tuple[tuple[str, Any], ...], size: int) -> Any:
    vectors = CHANNELS[channel].domain.vectors
    mechanism = build(dict(spec), channel=channel, dim=size if vectors else None)
    if vectors and mechanism.grid is None:
        raise ValueError(f"{mechanism.name}: rounds to no grid, and no vector leaves unrounded")
    return mechanism


class Accountant:
    """Selection and charging of the parts of an app's answers that leave.

    Args:
        ledger: File of the ledger.
        policy: Policy of the user. Its total must be finite, and it must declare nothing public.
        releases: By the type of a message ("train", "query.mine"), descriptions of the parts of the answer that leave.
        instead: "record.key" -> the constant that replaces the app's value, or None to send nothing; "record.*" -> None
            for its other keys. Any other content of an answer is refused.

    Raises:
        ValueError: The arguments do not fit together, or the policy would refuse every release. The message is one
            line.
    """

    def __init__(
        self,
        ledger: Path | str,
        policy: Policy,
        releases: Mapping[str, Mapping[str, Mapping[str, Any]]],
        instead: Mapping[str, float | None],
    ) -> None:
        self.ledger, self.policy, self.instead = Path(ledger), policy, dict(instead)
        self.releases = {
            kind: [Outgoing.of(name, spec) for name, spec in specs.items()] for kind, specs in releases.items()
        }
        policy.require_end("accounted: the policy")
        if policy.unprotected or policy.minimum_users:
            raise ValueError("accounted: nothing is declared public here, and no batch is waited for; remove it")
        for name, value in instead.items():
            number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
            if "." not in name or not (value is None or (number and not name.endswith(".*"))):
                raise ValueError(f'accounted: instead: write "record.key" and a finite number or None, got {name!r}')
        for kind, leaving in self.releases.items():
            for out in leaving:
                mechanism = out.mechanism(_ANY_SIZE)
                if out.name in instead:
                    raise ValueError(f"accounted: {out.name}: is released, and something else instead; remove one")
                if mechanism.name not in policy.mechanisms:
                    raise ValueError(f"accounted: {out.name}: the policy does not allow {mechanism.name}")
                if (reason := policy.refusal(out.channel, policy.cost(mechanism.guarantee))) is not None:
                    raise ValueError(f"accounted: {kind}: {out.name}: {Refused(reason).text}")

    def answer(
        self, kind: str, asked: Content, user: int, run: Callable[[], Content]
    ) -> tuple[dict[str, dict[str, NDArray[Any]]], dict[str, dict[str, float]]]:
        """Return the arrays and the numbers that leave in answer to a message, charged before this returns.

        Args:
            kind: Type of the message.
            asked: Content of the message.
            user: Number of the user.
            run: Function that returns the app's answer. It is called unless the ledger holds all of the answer.

        Raises:
            Refused: The policy does not allow the answer, or the answer holds undeclared content.
            LedgerError: The ledger cannot be trusted. Exceptions of `run` pass through.
        """
        if kind not in self.releases:
            raise Refused("unaccounted")
        parts = [_Part.of(kind, out, asked) for out in self.releases[kind]]
        due = [part.due for part in parts]
        if self.policy.questions is not None and not {entry.digest for entry in due} <= set(self.policy.questions):
            raise Refused("question")
        person = np.array([user], np.int64)
        with Ledger(self.ledger) as ledger:
            payloads = recall(due, person, _RECORDS, policy=self.policy, ledger=ledger)
            if payloads is None:
                answered = run()  # without the ledger's lock: it may take long
                self._check(kind, answered)
                values = {part.due: (part, part.value(answered)) for part in parts}

                def draw(one: Due, rows: NDArray[np.intp], step: int, before: Payloads) -> NDArray[Any]:
                    part, value = values[one]
                    return part.draw(value, person, step)

                _, payloads = release(due, person, _RECORDS, policy=self.policy, ledger=ledger, draw=draw)
        return self._content(parts, payloads)

    def _check(self, kind: str, answered: Content) -> None:
        """Raise Refused if the app's answer holds undeclared content, which is named here and not sent."""
        names = {out.name for out in self.releases[kind]} | set(self.instead)
        for record, values in answered.items():
            for key in values:
                if not {record, f"{record}.{key}", f"{record}.*"} & names:
                    _log.warning("nothing accounts for %s.%s of the app's answer, so it is not sent", record, key)
                    raise Refused("unaccounted")

    def _content(
        self, parts: list[_Part], payloads: Payloads
    ) -> tuple[dict[str, dict[str, NDArray[Any]]], dict[str, dict[str, float]]]:
        arrays: dict[str, dict[str, NDArray[Any]]] = {}
        numbers: dict[str, dict[str, float]] = {}
        named: dict[str, float] = {}
        for part in parts:
            if part.out.norm is None:
                named[part.out.name] = int(payloads[part.due][0])
            else:
                arrays[part.out.name] = part.vector(payloads[part.due])
        fixed = {name: value for name, value in self.instead.items() if value is not None}
        for name, value in (named | fixed).items():
            record, _, key = name.partition(".")
            numbers.setdefault(record, {})[key] = value
        return arrays, numbers


@dataclass(frozen=True)
class _Part:
    """One part of an answer, as a message requests it.

    Attributes:
        due: Its release.
        base: Arrays that the app was sent, by key; none for a label.
    """

    out: Outgoing
    mechanism: Any
    due: Due
    base: Mapping[str, NDArray[Any]]

    @classmethod
    def of(cls, kind: str, out: Outgoing, asked: Content) -> _Part:
        """Return the part. Raise Refused if the message has no arrays to compare with, or too many."""
        base: Mapping[str, NDArray[Any]] = {}
        size = _ANY_SIZE
        if out.norm is not None:
            base = asked.get(out.name, {})
            numeric = all(isinstance(array, np.ndarray) and array.dtype.kind in "fiu" for array in base.values())
            size = sum(array.size for array in base.values()) if numeric else 0
        try:
            mechanism = out.mechanism(size)
        except ValueError as error:
            _log.warning("%s: %s", out.name, error)
            raise Refused("malformed") from None
        drawn, usual = parameters(mechanism), {parameter.name: parameter.default for parameter in fields(mechanism)}
        # a parameter that the mechanism has computed itself may have other last digits on another CPU
        stated = {key: drawn[key] for key in drawn if key in {"dim", *out.spec} or drawn[key] == usual[key]}
        about = {"kind": kind, "asked": asked, "name": out.name, "norm": out.norm, "drawn": dict(out.spec) | stated}
        form: tuple[Any, tuple[int, ...]] = (np.dtype(np.int64), ())
        if out.norm is not None:
            form = (mechanism.grid.dtype, (size,))
        former = digest(about | {"drawn": drawn})  # of earlier versions
        due = Due(f"{kind} {out.name}", out.channel, digest(about), mechanism.guarantee, *form, former=lambda _: former)
        return cls(out, mechanism, due, base)

    def value(self, answered: Content) -> NDArray[Any]:
        """Return the private value in the mechanism's domain: a mean (1, D) of length 1 at most, or a class (1,)."""
        if self.out.norm is None:
            record, _, key = self.out.name.partition(".")
            label = answered.get(record, {}).get(key)
            within = type(label) is int and 0 <= label < self.mechanism.classes
            return np.array([label if within else 0], np.int64)
        arrays = answered.get(self.out.name, {})
        if {key: np.shape(a) for key, a in arrays.items()} != {key: a.shape for key, a in self.base.items()}:
            _log.warning("%s: the app's arrays are not of the shapes that it was sent", self.out.name)
            raise Refused("failed")
        with np.errstate(all="ignore"):
            update = [np.asarray(arrays[key], np.float64) - self.base[key].astype(np.float64) for key in self.base]
            mean = np.concatenate([part.ravel() for part in update]) / self.out.norm
            mean = mean if np.isfinite(mean).all() else np.zeros_like(mean)
            largest = max(1.0, float(np.abs(mean).max()))  # otherwise the squares of very long vectors would overflow
            length = largest * float(np.sqrt(((mean / largest) ** 2).sum()))
        return (mean / max(1.0, length))[None]

    def draw(self, value: NDArray[Any], person: NDArray[np.int64], step: int) -> NDArray[Any]:
        """Draw the release, (1, *shape). The stream's step counts other requests at this stage."""
        rng = SecureStreams().rows(person, _RECORDS, stage=self.due.stage, channel=self.due.channel, step=step)
        drawn: NDArray[Any]
        if self.out.norm is None:
            drawn = self.mechanism.sample(value, rng=rng)
        else:
            unit = signed_directions(value, rng.uniform(1, 1)[:, 0])
            drawn = self.mechanism.grid.encode(self.mechanism.sample(unit, rng=rng))
        return drawn

    def vector(self, codes: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """Return the arrays that leave: those that the app was sent, moved by the released update, (1, D)."""
        unbiased: Any = getattr(self.mechanism, "decoded_mean", None)
        mean = self.mechanism.grid.decode(codes)[0] if unbiased is None else unbiased(codes)
        moved, at = {}, 0
        assert self.out.norm is not None
        for key, array in self.base.items():
            part = mean[at : at + array.size].reshape(array.shape) * self.out.norm
            moved[key] = _like(array, part)
            at += array.size
        return moved


def _like(array: NDArray[Any], update: NDArray[np.float64]) -> NDArray[Any]:
    """Return the sum of an array and an update in the array's type; whole numbers are rounded and stay in its range."""
    with np.errstate(all="ignore"):
        total = array.astype(np.float64) + update
        if array.dtype.kind in "iu":
            bounds = np.iinfo(array.dtype)
            total = np.clip(np.rint(total), float(bounds.min), np.nextafter(float(bounds.max), 0))
        moved: NDArray[Any] = np.asarray(total, array.dtype)  # without axes, the sum is no array
    return moved
