"""What a server may ask of a client: public parameters only, checked before anything else looks at them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mechanisms.catalogue import rebuild
from mechanisms.checks import is_hex, is_slug, is_whole
from mechanisms.mechanism import Mechanism, parameters
from mechanisms.messages.release import digest
from mechanisms.vocabulary import Vocabulary

SPLITS = ("train", "test")
#: The name of each channel's one payload array: words w (n, L), grid integers z (n, m') and s (n, D), classes c (n,) of
#: answers and y (n,) of labels.
PAYLOAD = {"text": "w", "embedding": "z", "statistic": "s", "answer": "c", "label": "y"}
MAX_WIDTH = 4096
MAX_CLASSES = 32767  # classes travel as int16

_SPEC_LENGTH = 2**16
_HEAD = {"head_w", "head_b"}
_INTEGERS = ("classes", "minimum_users", "part_index", "part_count")
_STRINGS = ("arm", "stage", "split", "encoder", "masked_lm", "text", "embedding", "statistic", "answer", "label")


@dataclass(frozen=True, eq=False)
class Request:
    """One question to every client: release these channels, drawn so. One that exists has been validated.

    arm: "" on a device; in a simulation, the slug of the arm whose ledger and policy answer.
    stage: the name of the stage, a short slug; with the record and the channel it names one release.
    split: which records answer, "train" or "test".
    encoder: SHA-256 (hex) of the encoder whose embeddings are meant; "" where no embedding is asked for.
    mean: (m,) float32, subtracted from an embedding. m1: (m, m') float32, 2 <= m' <= m, applied to it. Both None
        where there is no encoder.
    embedding, label, text, statistic, answer: the mechanism of each channel ({"mechanism": name, parameters}); None
        where not asked. A text's names its vocabulary by its identity, under "vocabulary". A statistic is asked for
        alone: it is one vector of a user, who has put all records and their labels into it, and belongs to record 0 of
        theirs. So is an answer: the class that the model of `head` gives a record's text.
    classes: number of classes of the label, the statistic or the answer, at least 2.
    minimum_users: the smallest batch that the shuffler promises to release.
    part: (index, count): the users with user % count == index answer.
    prior: (W (m', K) float32, b (K,) float32): the prior is softmax(ẑ @ W + b), ẑ the *released* embedding.
    vocabulary: the words of a text, the very ones that its mechanism names. They do not travel: each side has its own.
    masked_lm: SHA-256 (hex) of the masked language model that the text's mechanism reads from; "" where it reads none.
    head: (W (m', K) float32, b (K,) float32): the model that a device runs for an answer; the class of an embedding is
        the first of the largest of x @ W + b, x the mapped, normalized one. None where no answer is asked for.
    codes: (K, c) float32, of length 1 each: what a class stands for in a statistic
        (`mechanisms.projection.statistic_vectors`); None where none is asked for.
    Raises ValueError, one line, on anything else.
    """

    arm: str
    stage: str
    split: str
    encoder: str
    mean: NDArray[np.float32] | None
    m1: NDArray[np.float32] | None
    embedding: dict[str, Any] | None
    label: dict[str, Any] | None
    classes: int
    minimum_users: int
    part: tuple[int, int] = (0, 1)
    prior: tuple[NDArray[np.float32], NDArray[np.float32]] | None = None
    text: dict[str, Any] | None = None
    vocabulary: Vocabulary | None = None
    masked_lm: str = ""
    statistic: dict[str, Any] | None = None
    codes: NDArray[np.float32] | None = None
    answer: dict[str, Any] | None = None
    head: tuple[NDArray[np.float32], NDArray[np.float32]] | None = None

    def __post_init__(self) -> None:
        self.validate()

    @property
    def dim(self) -> int:
        """m', the number of coordinates of a released embedding; 0 where there is no encoder."""
        return 0 if self.m1 is None else int(self.m1.shape[1])

    @property
    def statistic_dim(self) -> int:
        """D = c·(d + 1), the number of coordinates of a statistic of d features; 0 where none is asked for."""
        return 0 if self.codes is None else int(self.codes.shape[1]) * (self.dim + 1)

    @property
    def of_users(self) -> bool:
        """Whether a user's records are released together, as one row."""
        return self.statistic is not None

    @property
    def channels(self) -> tuple[str, ...]:
        """The channels asked for, the label last: its prior may depend on the released embedding."""
        return tuple(channel for channel, spec in self._specs.items() if spec is not None)

    @property
    def _specs(self) -> dict[str, dict[str, Any] | None]:
        return {
            "text": self.text, "embedding": self.embedding, "statistic": self.statistic, "answer": self.answer,
            "label": self.label,
        }  # fmt: skip

    def mechanism(self, channel: str) -> Mechanism:
        """The mechanism of a channel that is asked for. KeyError for another."""
        return self._mechanisms[channel]

    def payload_form(self, channel: str) -> tuple[str, np.dtype[Any], tuple[int, ...]]:
        """Name, dtype and shape of one row of a channel's payload: w, (L,) int32, of a pair (2L,); z, (m',) and s, (D,)
        grid integers (float32 where the mechanism names no grid); c and y, () int16."""
        if channel in ("answer", "label"):
            return PAYLOAD[channel], np.dtype(np.int16), ()
        if channel == "text":
            text: Any = self.mechanism(channel)
            return PAYLOAD[channel], np.dtype(np.int32), (text.positions,)
        grid = self.mechanism(channel).grid
        size = self.statistic_dim if channel == "statistic" else self.dim
        return PAYLOAD[channel], np.dtype(np.float32) if grid is None else grid.dtype, (size,)

    def digest(self, channel: str) -> str:
        """SHA-256 (hex) of every public parameter that a channel's draw depends on, but for the stage, which
        is a part of a release's key beside it."""
        return self._digests[channel]

    @cached_property
    def _mechanisms(self) -> dict[str, Mechanism]:
        built: dict[str, Mechanism] = {}
        try:
            if self.text is not None:
                built["text"] = rebuild(self.text, channel="text", vocabulary=self.vocabulary)
            if self.embedding is not None:
                built["embedding"] = rebuild(self.embedding, channel="embedding", dim=self.dim)
            if self.statistic is not None:
                built["statistic"] = rebuild(self.statistic, channel="statistic", dim=self.statistic_dim)
            if self.answer is not None:
                built["answer"] = rebuild(self.answer, channel="answer", classes=self.classes)
            if self.label is not None:
                built["label"] = rebuild(self.label, channel="label", classes=self.classes)
        except (TypeError, KeyError, OverflowError):
            raise ValueError("request: a mechanism's parameter is of the wrong kind") from None
        return built

    @cached_property
    def _digests(self) -> dict[str, str]:
        digests: dict[str, str] = {}
        for channel in self.channels:
            mechanism = self.mechanism(channel)
            public: dict[str, Any] = {
                "channel": channel,
                "split": self.split,
                "mechanism": parameters(mechanism),
                "guarantee": mechanism.guarantee.to_dict(),
            }
            if channel == "text":
                public["masked_lm"] = self.masked_lm
            elif channel != "label":
                grid = mechanism.grid
                public |= {
                    "encoder": self.encoder,
                    "mean": self.mean,
                    "m1": self.m1,
                    "grid": None if grid is None else {"bits": grid.bits, "step": grid.step},
                }
                if channel == "statistic":
                    public |= {"codes": self.codes, "classes": self.classes}
                elif channel == "answer":
                    public |= {"head": self.head, "classes": self.classes}
            else:
                public["classes"] = self.classes
                if self.prior is not None:
                    public |= {"prior": list(self.prior), "embedding": digests["embedding"]}
            digests[channel] = digest(public)
        return digests

    def validate(self) -> None:
        """Raise ValueError unless every field has its type, shape and range, and the mechanisms exist."""
        _require(isinstance(self.arm, str) and (not self.arm or is_slug(self.arm)), "arm is no slug")
        _require(is_slug(self.stage), "stage is no slug")
        _require(isinstance(self.split, str) and self.split in SPLITS, "split is neither train nor test")
        self._validate_encoder()
        _require(is_whole(self.classes, 2, MAX_CLASSES), "classes is out of range")
        _require(is_whole(self.minimum_users, 0, 2**53), "minimum_users is out of range")
        _require(isinstance(self.part, tuple) and len(self.part) == 2, "part is not a pair")
        index, count = self.part
        _require(is_whole(count, 1, 2**31) and is_whole(index, 0, count - 1), "part is out of range")
        for name, spec in self._specs.items():
            _require(spec is None or isinstance(spec, dict), f"{name} is not a mechanism")
        _require(bool(self.channels), "no channel is asked for")
        self._validate_vocabulary()
        self._validate_codes()
        self._validate_head()
        built = self._mechanisms
        sizes_of = {"embedding": self.dim, "statistic": self.statistic_dim, "answer": self.classes}
        for channel, size in (*sizes_of.items(), ("label", self.classes)):
            own = parameters(built[channel]) if channel in built else {}
            sizes = [own[k] for k in ("dim", "classes", "size") if k in own]
            _require(all(s == size for s in sizes), f"the {channel}'s mechanism is of another size")
        needs = "label" in built and bool(getattr(built["label"], "needs_prior", False))
        _require(needs == (self.prior is not None), "a prior goes with a mechanism that needs one")
        if self.prior is not None:
            _require("embedding" in built, "a prior needs an embedding in the same request")
            self._validate_linear(self.prior, "prior")

    def _validate_encoder(self) -> None:
        if self.encoder == "" and self.mean is None and self.m1 is None:
            mapped = (self.embedding, self.statistic, self.answer)
            _require(all(spec is None for spec in mapped), "no encoder is named")
            return
        _require(is_hex(self.encoder), "encoder is no SHA-256")
        mean, m1 = _require_array(self.mean, 1, "mean"), _require_array(self.m1, 2, "m1")
        m, dim = m1.shape
        _require(len(mean) == m and m <= MAX_WIDTH, "mean and m1 do not fit each other")
        _require(2 <= dim <= m, "m1 must map to at least 2 and at most m coordinates")

    def _validate_vocabulary(self) -> None:
        """A text names the vocabulary that is here, and the masked language model where its mechanism reads one."""
        _require(isinstance(self.masked_lm, str), "masked_lm is no SHA-256")
        if self.text is None:
            _require(self.vocabulary is None and not self.masked_lm, "a vocabulary and a language model go with a text")
            return
        _require(isinstance(self.vocabulary, Vocabulary), "a text needs a vocabulary")
        assert self.vocabulary is not None
        _require(_named(self.text) == self.vocabulary.identity, "the text names another vocabulary than the one here")
        text: Any = self._mechanisms["text"]
        if text.word.reads:
            _require(is_hex(self.masked_lm), "masked_lm is no SHA-256, and the text's mechanism reads one")
        else:
            _require(not self.masked_lm, "a language model goes with a mechanism that reads one")

    def _validate_codes(self) -> None:
        """Codes go with a statistic, which goes with nothing else."""
        _require((self.statistic is None) == (self.codes is None), "codes go with a statistic")
        if self.statistic is None:
            return
        _require(self.channels == ("statistic",), "a statistic is asked for alone")
        codes = _require_array(self.codes, 2, "codes")
        _require(codes.shape[0] == self.classes and codes.shape[1] <= self.classes, "codes do not fit classes")
        lengths = np.sqrt((codes.astype(np.float64) ** 2).sum(axis=1))
        _require(bool((np.abs(lengths - 1.0) <= 1e-6).all()), "a code's length is not 1")

    def _validate_head(self) -> None:
        """A head goes with an answer, which goes with nothing else."""
        _require((self.answer is None) == (self.head is None), "a head goes with an answer")
        if self.head is not None:
            _require(self.channels == ("answer",), "an answer is asked for alone")
            self._validate_linear(self.head, "head")

    def _validate_linear(self, pair: object, name: str) -> None:
        if not (isinstance(pair, tuple) and len(pair) == 2):
            raise ValueError(f"request: {name} is not a pair")
        weight, bias = _require_array(pair[0], 2, name), _require_array(pair[1], 1, name)
        _require(weight.shape == (self.dim, self.classes), f"{name} does not fit m1 and classes")
        _require(bias.shape == (self.classes,), f"{name} does not fit classes")

    def parts(self) -> tuple[dict[str, NDArray[Any]], dict[str, str | int]]:
        """Arrays and scalars from which `from_parts` makes an equal request. Pure."""
        arrays: dict[str, NDArray[Any]] = {}
        if self.mean is not None and self.m1 is not None:
            arrays |= {"mean": self.mean, "m1": self.m1}
        if self.prior is not None:
            arrays |= {"prior_w": self.prior[0], "prior_b": self.prior[1]}
        if self.head is not None:
            arrays |= {"head_w": self.head[0], "head_b": self.head[1]}
        if self.codes is not None:
            arrays["codes"] = self.codes
        return arrays, {
            "arm": self.arm,
            "stage": self.stage,
            "split": self.split,
            "encoder": self.encoder,
            "masked_lm": self.masked_lm,
            "text": "" if self.text is None else json.dumps(self.text, sort_keys=True),
            "embedding": "" if self.embedding is None else json.dumps(self.embedding, sort_keys=True),
            "statistic": "" if self.statistic is None else json.dumps(self.statistic, sort_keys=True),
            "answer": "" if self.answer is None else json.dumps(self.answer, sort_keys=True),
            "label": "" if self.label is None else json.dumps(self.label, sort_keys=True),
            "classes": int(self.classes),
            "minimum_users": int(self.minimum_users),
            "part_index": int(self.part[0]),
            "part_count": int(self.part[1]),
        }

    @classmethod
    def from_parts(
        cls, arrays: Mapping[str, NDArray[Any]], about: Mapping[str, Any],
        vocabulary: Callable[[str], Vocabulary] | None = None,
    ) -> Request:  # fmt: skip
        """Inverse of `parts`. Raises ValueError on all but a valid request: the sender may be hostile.

        vocabulary: gives the one of an identity (64 hexadecimal digits, checked); it may raise for one that is not
        there. None: there is none, and a request for a text is refused.
        """
        _require(set(about) == {*_STRINGS, *_INTEGERS}, "its keys are not those of a request")
        maps = {"mean", "m1"}
        known: tuple[set[str], ...] = (set(), maps, maps | {"prior_w", "prior_b"}, maps | {"codes"}, maps | _HEAD)
        _require(set(arrays) in known, "its arrays are not those of a request")
        _require(all(isinstance(about[k], str) for k in _STRINGS), "a string is missing")
        _require(all(is_whole(about[k], 0, 2**53) for k in _INTEGERS), "an integer is out of range")
        text = _spec(about["text"])
        installed = None
        if text is not None:
            _require(vocabulary is not None, "a text needs a vocabulary")
            assert vocabulary is not None
            installed = vocabulary(_named(text))
        return cls(
            arm=about["arm"],
            stage=about["stage"],
            split=about["split"],
            encoder=about["encoder"],
            mean=arrays.get("mean"),
            m1=arrays.get("m1"),
            embedding=_spec(about["embedding"]),
            label=_spec(about["label"]),
            statistic=_spec(about["statistic"]),
            codes=arrays.get("codes"),
            answer=_spec(about["answer"]),
            head=(arrays["head_w"], arrays["head_b"]) if "head_w" in arrays else None,
            classes=about["classes"],
            minimum_users=about["minimum_users"],
            part=(about["part_index"], about["part_count"]),
            prior=(arrays["prior_w"], arrays["prior_b"]) if "prior_w" in arrays else None,
            text=text,
            vocabulary=installed,
            masked_lm=about["masked_lm"],
        )


def _require(condition: object, complaint: str) -> None:
    if not condition:
        raise ValueError(f"request: {complaint}")


def _named(text: Mapping[str, Any]) -> str:
    """The identity of the vocabulary that a text's description names."""
    identity = text.get("vocabulary")
    if not is_hex(identity):
        raise ValueError("request: the text's vocabulary is no SHA-256")
    return identity


def _require_array(value: object, axes: int, name: str) -> NDArray[Any]:
    complaint = f"{name} is not a finite float32 array of {axes} axes"
    if not isinstance(value, np.ndarray):
        raise ValueError(f"request: {complaint}")
    _require(value.dtype == np.float32 and value.ndim == axes and value.size > 0, complaint)
    _require(np.isfinite(value).all(), complaint)
    return value


def _plain(value: object, depth: int = 2) -> bool:
    """A scalar, or a list of strings or of lists of strings (a word mechanism's pairs of words)."""
    if isinstance(value, list):
        return depth > 0 and all(isinstance(v, str | list) and _plain(v, depth - 1) for v in value)
    return value is None or isinstance(value, str | int | float | bool)


def _spec(text: str) -> dict[str, Any] | None:
    """The mechanism in a request's JSON; None for the empty string."""
    if not text:
        return None
    _require(len(text) <= _SPEC_LENGTH, "a mechanism's description is too long")
    try:
        spec = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("request: a mechanism's description is not JSON") from None
    _require(isinstance(spec, dict), "a mechanism's description is not a table")
    _require(all(_plain(v) for v in spec.values()), "a mechanism's parameter is no scalar nor a list of words")
    finite = all(math.isfinite(v) for v in spec.values() if isinstance(v, float))
    _require(finite, "a mechanism's parameter is not finite")
    return dict(spec)
