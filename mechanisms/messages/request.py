"""Requests of a server to its clients: public parameters only, validated on construction."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

from numpy.typing import NDArray

from mechanisms.checks import is_slug, is_whole, whole
from mechanisms.messages.questions import QUESTIONS, Projection, Question, Received, require
from mechanisms.messages.release import Release
from mechanisms.vocabulary import Vocabulary

SPLITS = ("train", "test")

_SPEC_LENGTH = 2**16
_INTEGERS = ("classes", "minimum_users", "part_index", "part_count")
_STRINGS = ("arm", "stage", "split", "encoder", "masked_lm")
Asked = TypeVar("Asked", bound=Question)


@dataclass(frozen=True, eq=False)
class Request:
    """Questions to every client, at most one for each channel. Every instance is valid.

    Attributes:
        arm: "" on a device. In a simulation, slug of the arm whose ledger and policy answer.
        stage: Slug of the stage. With the record and the channel it identifies one release.
        split: Part of the records that answers, "train" or "test".
        minimum_users: Smallest batch that the shuffler promises to release.
        questions: Questions, in any order. They are stored in the order of the wire format.
        part: Pair (index, count): users with user % count == index answer.

    Raises:
        ValueError: A field is invalid, or the questions do not go together.
    """

    arm: str
    stage: str
    split: str
    minimum_users: int
    questions: tuple[Question, ...]
    part: tuple[int, int] = (0, 1)

    def __post_init__(self) -> None:
        require(isinstance(self.arm, str) and (not self.arm or is_slug(self.arm)), "arm is no slug")
        require(is_slug(self.stage), "stage is no slug")
        require(isinstance(self.split, str) and self.split in SPLITS, "split is neither train nor test")
        object.__setattr__(self, "minimum_users", whole(self.minimum_users))
        require(is_whole(self.minimum_users, 0, 2**53), "minimum_users is out of range")
        require(isinstance(self.part, tuple) and len(self.part) == 2, "part is not a pair")
        index, count = self.part
        require(is_whole(count, 1, 2**31) and is_whole(index, 0, count - 1), "part is out of range")
        require(self.questions, "no channel is asked for")
        order = {kind: place for place, kind in enumerate(QUESTIONS.values())}
        require(all(type(question) in order for question in self.questions), "a question is of no channel")
        object.__setattr__(self, "questions", tuple(sorted(self.questions, key=lambda question: order[type(question)])))
        require(len(set(self.channels)) == len(self.channels), "a channel is asked for twice")
        for question in self.questions:
            require(not question.alone or len(self.questions) == 1, f"the {question.channel} is asked for alone")
            require(question.classes == self.classes, "its questions are of different numbers of classes")
            require(
                question.given is None or question.given in self.questions, "what a question reads is asked for with it"
            )
        maps = {id(question.projection) for question in self.questions if question.projection is not None}
        require(len(maps) <= 1, "its questions are of different maps")

    @property
    def classes(self) -> int:
        """Return the number of classes of the task."""
        return self.questions[0].classes

    @property
    def of_users(self) -> bool:
        """Return True if a user's records are released together, as one row."""
        return self.questions[0].of_user

    @property
    def channels(self) -> tuple[str, ...]:
        """Return the requested channels. The label is last: its prior may depend on the released embedding."""
        return tuple(question.channel for question in self.questions)

    @property
    def projection(self) -> Projection | None:
        """Return the encoder and the maps that the questions apply; None if they apply none."""
        return next((question.projection for question in self.questions if question.projection is not None), None)

    @property
    def encoder(self) -> str:
        """Return the SHA-256 (hex) of the encoder; "" if no question reads one."""
        return "" if self.projection is None else self.projection.encoder

    @property
    def vocabulary(self) -> Vocabulary | None:
        """Return the vocabulary of the requested text; None if no text is requested."""
        return next((question.vocabulary for question in self.questions if question.vocabulary is not None), None)

    @property
    def masked_lm(self) -> str:
        """Return the SHA-256 (hex) of the language model; "" if no question reads one."""
        return next((question.masked_lm for question in self.questions if question.masked_lm), "")

    def find(self, kind: type[Asked]) -> Asked | None:
        """Return the question of a class; None if there is none."""
        return next((question for question in self.questions if isinstance(question, kind)), None)

    def question(self, kind: type[Asked]) -> Asked:
        """Return the question of a class.

        Raises:
            KeyError: There is none.
        """
        question = self.find(kind)
        if question is None:
            raise KeyError(kind.channel)
        return question

    def named(self, channel: str) -> Question:
        """Return the question of a channel that a message names.

        Raises:
            KeyError: There is none.
        """
        return {question.channel: question for question in self.questions}[channel]

    def without(self, *kinds: type[Question]) -> Request:
        """Return the request without the questions of some classes."""
        return replace(
            self, questions=tuple(question for question in self.questions if not isinstance(question, kinds))
        )

    def digest(self, channel: str) -> str:
        """Return the digest of a requested channel (`Question.digest`)."""
        return self._digests[channel]

    def release(self, question: Question, payload: NDArray[Any]) -> Release:
        """Return a release that answers one of the questions."""
        return Release(
            {question.array: payload},
            question.channel,
            self.stage,
            question.mechanism.guarantee,
            self.digest(question.channel),
        )

    @cached_property
    def _digests(self) -> dict[str, str]:
        return {question.channel: question.digest(self.split) for question in self.questions}

    def parts(self) -> tuple[dict[str, NDArray[Any]], dict[str, str | int]]:
        """Return the arrays and scalars from which `from_parts` makes an equal request."""
        arrays: dict[str, NDArray[Any]] = {}
        if self.projection is not None:
            arrays |= {"mean": self.projection.mean, "m1": self.projection.m1}
        for question in self.questions:
            arrays |= question.arrays()
        strings = {
            "arm": self.arm,
            "stage": self.stage,
            "split": self.split,
            "encoder": self.encoder,
            "masked_lm": self.masked_lm,
        }
        specs = {question.channel: json.dumps(question.spec, sort_keys=True) for question in self.questions}
        return arrays, strings | dict.fromkeys(QUESTIONS, "") | specs | {
            "classes": int(self.classes),
            "minimum_users": int(self.minimum_users),
            "part_index": int(self.part[0]),
            "part_count": int(self.part[1]),
        }

    @classmethod
    def from_parts(
        cls,
        arrays: Mapping[str, NDArray[Any]],
        about: Mapping[str, Any],
        vocabulary: Callable[[str], Vocabulary] | None = None,
    ) -> Request:
        """Return the request of `parts`. The sender may be hostile, so only a valid request is accepted.

        Args:
            arrays: Arrays of the request.
            about: Scalars of the request.
            vocabulary: Function that returns the vocabulary of an identity (64 hexadecimal digits, checked), and may
                raise if it is not there. None refuses every request for a text.

        Raises:
            ValueError: The parts are not those of a valid request.
        """
        require(set(about) == {*_STRINGS, *_INTEGERS, *QUESTIONS}, "its keys are not those of a request")
        require(all(is_whole(about[k], 0, 2**53) for k in _INTEGERS), "an integer is out of range")
        require(all(isinstance(about[k], str) for k in about if k not in _INTEGERS), "a string is missing")
        projections: list[Projection] = []

        def projection() -> Projection:
            require(arrays.keys() >= {"mean", "m1"}, "no encoder is named")
            if not projections:
                projections.append(Projection(about["encoder"], arrays["mean"], arrays["m1"]))
            return projections[0]

        questions: tuple[Question, ...] = ()
        for channel, kind in QUESTIONS.items():
            if (spec := _spec(about[channel])) is not None:
                wire = Received(arrays, about["classes"], about["masked_lm"], projection, vocabulary, questions)
                questions += (kind.read(spec, wire),)
        request = cls(
            arm=about["arm"],
            stage=about["stage"],
            split=about["split"],
            minimum_users=about["minimum_users"],
            questions=questions,
            part=(about["part_index"], about["part_count"]),
        )
        sent, strings = request.parts()
        require(set(arrays) == set(sent), "its arrays are not those of a request")
        same = all(about[name] == strings[name] for name in ("encoder", "masked_lm", "classes"))
        require(same, "an encoder, a language model or a number of classes is of no question")
        return request


def _plain(value: object, depth: int = 2) -> bool:
    """Return True for a scalar, a list of strings, or a list of lists of strings (pairs of words)."""
    if isinstance(value, list):
        return depth > 0 and all(isinstance(v, str | list) and _plain(v, depth - 1) for v in value)
    return value is None or isinstance(value, str | int | float | bool)


def _spec(text: str) -> dict[str, Any] | None:
    """Return the mechanism in the JSON of a request; None for ""."""
    if not text:
        return None
    require(len(text) <= _SPEC_LENGTH, "a mechanism's description is too long")
    try:
        spec = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("request: a mechanism's description is not JSON") from None
    require(isinstance(spec, dict), "a mechanism's description is not a table")
    require(all(_plain(v) for v in spec.values()), "a mechanism's parameter is no scalar nor a list of words")
    finite = all(math.isfinite(v) for v in spec.values() if isinstance(v, float))
    require(finite, "a mechanism's parameter is not finite")
    return dict(spec)
