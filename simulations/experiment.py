"""A run, described: frozen, validated, read from TOML and written back.

Keys of the file are the field names below with "-" for "_"; `[[arm]]` tables become `Experiment.arms`.
Every check is made on construction, so an `Experiment` that exists is one that makes sense; what depends on
the data or the encoder (a missing column, m' above the encoder's width) is checked when the run meets it.
Folders in `data.path` and `encoder.model` are relative to the working directory, not to the file.
"""

from __future__ import annotations

import difflib
import math
import re
import tomllib
import unicodedata
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import tomli_w

from mechanisms import catalogue
from mechanisms.guarantee import EXPOSURES
from mechanisms.mechanism import Mechanism
from mechanisms.text import Text
from mechanisms.vocabulary import TAGS, Vocabulary
from simulations.errors import UserError

BUNDLED = Path(__file__).parent / "experiments"
CHANNELS = ("text", "embedding", "label")
HALVES = "text-then-embeddings"
TEXT_WAYS = ("sanitized-text", HALVES)
WAYS = ("release-once", *TEXT_WAYS, "paper")
PUBLIC_ONLY = "public-only"
CHECKPOINT, NONE, BUNDLED_LM = "checkpoint", "none", "bundled"
CLASSES = {"sentiment": 2, "genre": 12}

#: Sums of floats may miss a limit by their rounding, and by no more.
_ROUNDING = 1e-9

Check = Callable[[Any, str], Any]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise UserError(f"{where}: must be a text that is not empty, got {value!r}")
    return value


def _flag(value: Any, where: str) -> bool:
    if not isinstance(value, bool):
        raise UserError(f"{where}: must be true or false, got {value!r}")
    return value


def _choice(*names: str) -> Check:
    def check(value: Any, where: str) -> str:
        if value not in names:
            raise UserError(f"{where}: must be {_either(names)}, got {value!r}{_nearest(value, names)}")
        return str(value)

    return check


def _whole(least: int) -> Check:
    def check(value: Any, where: str) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise UserError(f"{where}: must be a whole number of at least {least}, got {value!r}")
        return value

    return check


def _number(
    least: float = 0.0, *, above: bool = False, below: float = math.inf, infinite: bool = False
) -> Check:
    """A float of at least `least` (or above it) and below `below`; inf only where it means "no limit"."""

    def check(value: Any, where: str) -> float:
        bounds = f"{'above' if above else 'of at least'} {least:g}"
        bounds += f" and below {below:g}" if below < math.inf else ""
        within = _is_number(value) and (value > least if above else value >= least)
        if not within or (value >= below and not (infinite and value == math.inf)):
            raise UserError(
                f"{where}: must be a {'' if infinite else 'finite '}number {bounds}, got {value!r}"
            )
        return float(value)

    return check


def _auto_or_whole(value: Any, where: str) -> int | str:
    if value == "auto":
        return "auto"
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UserError(f'{where}: must be "auto" or a whole number of at least 1, got {value!r}')
    return value


def _reasons(value: Any, where: str) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        raise UserError(f'{where}: must be a list such as ["label: why this is acceptable"], got {value!r}')
    for entry in value:
        name, _, reason = entry.partition(":") if isinstance(entry, str) else ("", "", "")
        if name.strip() not in (*CHANNELS, *EXPOSURES) or not reason.strip():
            raise UserError(
                f'{where}: each entry must be "label: why", or embedding or text, or one of '
                f"{', '.join(EXPOSURES)}, got {entry!r}"
            )
    return tuple(value)


def _spec(value: Any, where: str) -> dict[str, Any]:
    """A mechanism's table. Names and parameters are the catalogue's to judge, kinds of values ours."""
    if not isinstance(value, dict):
        raise UserError(f'{where}: must be a table such as {{ mechanism = "identity" }}, got {value!r}')
    _text(value.get("mechanism"), f"{where}.mechanism")
    for key, entry in value.items():
        if key == "dim":
            dims = entry if isinstance(entry, list) else [entry]
            whole = [isinstance(d, int) and not isinstance(d, bool) and d >= 2 for d in dims]
            if not dims or not all(whole) or len(set(dims)) < len(dims):
                raise UserError(
                    f"{where}.dim: must be a whole number of at least 2, or a list of them, got {entry!r}"
                )
        elif _is_number(entry):
            if not math.isfinite(entry) or entry < 0:
                raise UserError(f"{where}.{key}: must be a finite number of at least 0, got {entry!r}")
        elif key != "mechanism" and not isinstance(entry, bool | str):
            raise UserError(f"{where}.{key}: must be a number, a text, true or false, got {entry!r}")
    return dict(value)


def _either(names: Iterable[str]) -> str:
    return ", ".join(f'"{n}"' for n in names)


def _nearest(name: Any, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(str(name), list(known), n=1, cutoff=0.5)
    return f'; did you mean "{close[0]}"?' if close else ""


def _setting(check: Check, default: Any = None) -> Any:
    """A field with its check. None as the default: optional, or filled in from what other fields say."""
    return field(default=default, metadata={"check": check})


def _key(name: str) -> str:
    return name.replace("_", "-")


@dataclass(frozen=True)
class _Section:
    """Checks each field on construction. `place` is what errors call the section."""

    place: ClassVar[str]

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            if "check" in f.metadata and not (value is None and f.default is None):
                self._set(f.name, f.metadata["check"](value, self._where(f.name)))

    def _where(self, name: str) -> str:
        return f"{self.place}.{_key(name)}"

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)


@dataclass(frozen=True)
class Public(_Section):
    """The public part: `fraction` of the training data, or the built-in corpus (of data.public-size).

    labels: whether its labels are public too. split: "random", "by-sentence" (SST-2: phrases follow the
    sentences that contain them) or "built-in".
    """

    place: ClassVar[str] = "data.public"
    fraction: float | None = _setting(_number(below=1.0))
    labels: bool = _setting(_flag, True)
    split: str | None = _setting(_choice("random", "by-sentence", "built-in"))


@dataclass(frozen=True)
class Data(_Section):
    """Where texts come from. files: a folder and names in it; hub: `path` is the name, then splits.

    user: a column. test_repeats: how often the test sentences are sanitized, each time by users of their own.
    public_size, test_size: of the built-in corpus; its training part is as large as the population needs.
    """

    place: ClassVar[str] = "data"
    source: str = _setting(_choice("built-in", "files", "hub"), "built-in")
    path: str | None = _setting(_text)
    train: str | None = _setting(_text)
    test: str | None = _setting(_text)
    text: str | None = _setting(_text)
    second_text: str | None = _setting(_text)
    label: str | None = _setting(_text)
    user: str | None = _setting(_text)
    task: str | None = _setting(_choice(*CLASSES))
    public_size: int | None = _setting(_whole(1))
    test_size: int | None = _setting(_whole(1))
    test_limit: int | None = _setting(_whole(1))
    test_repeats: int = _setting(_whole(1), 1)
    public: Public = field(default_factory=Public)

    def __post_init__(self) -> None:
        super().__post_init__()
        built_in = self.source == "built-in"
        described = ("path", "train", "test", "text", "second_text", "label", "user")
        if built_in:
            for name in described:
                if getattr(self, name) is not None:
                    raise UserError(f'{self._where(name)}: does not apply to source = "built-in"; remove it')
        else:
            needed = (
                ("path", "train", "test", "text", "label")
                if self.source == "files"
                else ("path", "text", "label")
            )
            for name in needed:
                if getattr(self, name) is None:
                    raise UserError(f'{self._where(name)}: is missing, and source = "{self.source}" needs it')
            if self.source == "hub":
                self._set("train", self.train or "train")
                self._set("test", self.test or "validation")
            if self.test_size is not None:
                raise UserError('data.test-size: applies to source = "built-in" only; use test-limit')
        self._set("public", self._resolved_public(built_in))
        if self.public.split == "built-in":
            self._set("public_size", self.public_size or 1000)
            self._set("task", self.task or "sentiment")
        elif self.public_size is not None or self.task is not None:
            name = "public_size" if self.public_size is not None else "task"
            raise UserError(f"{self._where(name)}: applies to the built-in corpus only; remove it")
        if built_in:
            self._set("test_size", self.test_size or 1000)

    def _resolved_public(self, built_in: bool) -> Public:
        public = self.public
        split = public.split or ("built-in" if built_in else "random")
        if built_in and split != "built-in":
            raise UserError("data.public.split: the built-in corpus has a public part of its own; remove it")
        if split == "built-in":
            if public.fraction is not None:
                raise UserError(
                    "data.public.fraction: does not apply to the built-in corpus; use data.public-size"
                )
            return Public(None, public.labels, split)
        return Public(0.05 if public.fraction is None else public.fraction, public.labels, split)


@dataclass(frozen=True)
class Population(_Section):
    """Who holds which record. assignment: "record" (one a user), "column", or "dirichlet" over labels.

    dropout: probability that a user never answers, and so is not charged. late: probability that a user's answer misses
    the deadline of a stage: it has left and is charged, but it is not delivered. timeout: seconds that a stage waits
    for nodes; one that is still at work then counts as "no answer".
    """

    place: ClassVar[str] = "population"
    users: int = _setting(_whole(1), 2000)
    users_per_node: int | str = _setting(_auto_or_whole, "auto")
    assignment: str | None = _setting(_choice("record", "column", "dirichlet"))
    alpha: float | None = _setting(_number(above=True))
    dropout: float = _setting(_number(below=1.0), 0.0)
    late: float = _setting(_number(below=1.0), 0.0)
    timeout: float = _setting(_number(above=True), 3600.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.assignment == "dirichlet" and self.alpha is None:
            raise UserError('population.alpha: is missing, and assignment = "dirichlet" needs it')
        if self.assignment != "dirichlet" and self.alpha is not None:
            raise UserError('population.alpha: applies to assignment = "dirichlet" only; remove it')


@dataclass(frozen=True)
class Encoder(_Section):
    """model: "minilm", a folder, or a hub name. Fine-tuning is on public labelled text, before releases. precision:
    "int8" is about twice as fast and another public function, declared by an identity of its own on every release."""

    place: ClassVar[str] = "encoder"
    model: str = _setting(_text, "minilm")
    pooling: str = _setting(_choice("mean", "cls"), "mean")
    max_length: int = _setting(_whole(2), 128)
    precision: str = _setting(_choice("fp32", "int8"), "fp32")
    fine_tune_on_public: bool = _setting(_flag, False)
    fine_tune_epochs: int = _setting(_whole(1), 4)
    fine_tune_lr: float = _setting(_number(above=True), 5e-5)


@dataclass(frozen=True)
class Training(_Section):
    """way: "release-once", "sanitized-text", "text-then-embeddings" (half of the users release texts, on which the
    encoder is trained under which the others release embeddings), or "paper", which is not private and must be
    acknowledged.

    epochs, batch_size: of a training end to end, on texts.
    maps: how M1 is found on public data; learned, if it has labels.
    label_stages: in how many stages, of disjoint users, labels are released; a later stage's prior comes from
    the model of the stage before.
    """

    place: ClassVar[str] = "training"
    way: str = _setting(_choice(*WAYS), "release-once")
    epochs: int = _setting(_whole(1), 5)
    batch_size: int = _setting(_whole(1), 32)
    maps: str | None = _setting(_choice("learned", "principal-components"))
    acknowledge_not_private: bool = _setting(_flag, False)
    label_stages: int = _setting(_whole(1), 1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.way == "paper" and not self.acknowledge_not_private:
            raise UserError(
                'training.way: "paper" is not private (its gradients depend on raw text), only a trusted '
                "simulation; set training.acknowledge-not-private = true to run it"
            )
        if self.way != "release-once" and self.label_stages > 1:
            raise UserError(f'training.label-stages: must be 1 with way = "{self.way}"')


@dataclass(frozen=True)
class TextChannel(_Section):
    """What text mechanisms work with. words: "checkpoint", the encoder's own whole words, or a file of word vectors.

    masked_lm: what some mechanisms read: "none", "bundled", or a folder. pretrain: whether the checkpoint first learns
    to restore the words of sanitized *public* text, for pretrain_steps batches.
    """

    place: ClassVar[str] = "text"
    words: str = _setting(_text, CHECKPOINT)
    masked_lm: str = _setting(_text, NONE)
    pretrain: bool = _setting(_flag, False)
    pretrain_steps: int = _setting(_whole(1), 500)


@dataclass(frozen=True)
class Shuffle(_Section):
    """minimum_users: a batch of fewer distinct users is discarded. delta: of the amplification."""

    place: ClassVar[str] = "shuffle"
    enabled: bool = _setting(_flag, True)
    minimum_users: int = _setting(_whole(1), 100)
    delta: float = _setting(_number(above=True, below=1.0), 1e-6)


@dataclass(frozen=True)
class Policy(_Section):
    """What every client accepts: largest worst-case ε at `delta`, of a record by channel, a user in total."""

    place: ClassVar[str] = "policy"
    delta: float = _setting(_number(below=1.0), 0.0)
    embedding: float = _setting(_number(infinite=True), 0.0)
    label: float = _setting(_number(infinite=True), 0.0)
    text: float = _setting(_number(infinite=True), 0.0)
    total: float = _setting(_number(infinite=True), math.inf)
    accept_unprotected: tuple[str, ...] = _setting(_reasons, ())

    @property
    def declared(self) -> dict[str, str]:
        """The channels, and what texts expose, that are declared public: each with its reason."""
        parts = (entry.partition(":") for entry in self.accept_unprotected)
        return {name.strip(): reason.strip() for name, _, reason in parts}

    def accepts_unprotected(self, channel: str) -> bool:
        """Whether the channel is declared public: no limit applies to it."""
        return channel in self.declared


@dataclass(frozen=True)
class Arm(_Section):
    """One line of the table. Without `label`, labels are sent in clear; way "public-only" trains on no user.

    text, embedding, label: mechanism tables as the catalogue reads them; of several `dim`, the best on public data.
    reference: not private; its users accept anything.
    """

    name: str = _setting(_text, "")
    embedding: dict[str, Any] | None = _setting(_spec)  # noqa: RUF009 - a field, like its neighbours
    label: dict[str, Any] | None = _setting(_spec)  # noqa: RUF009
    text: dict[str, Any] | None = _setting(_spec)  # noqa: RUF009
    reference: bool = _setting(_flag, False)
    way: str | None = _setting(_choice(PUBLIC_ONLY))

    def _where(self, name: str) -> str:
        return f'arm "{self.name}": {_key(name)}'

    def __post_init__(self) -> None:
        super().__post_init__()
        if not slug(self.name):
            raise UserError(f'arm "{self.name}": name: must contain a letter or a digit')
        if self.way == PUBLIC_ONLY and self.label is not None:
            raise UserError(
                f'{self._where("label")}: a "{PUBLIC_ONLY}" arm takes no label from users; remove it'
            )
        if self.way is None and self.embedding is None and self.text is None:
            raise UserError(
                f'{self._where("embedding")}: is missing; name a mechanism, or way = "{PUBLIC_ONLY}"'
            )
        if self.embedding and self.embedding["mechanism"] != "identity" and "dim" not in self.embedding:
            raise UserError(
                f"{self._where('embedding')}.dim: is missing; give m', the dimension of what is sent"
            )

    @property
    def dims(self) -> tuple[int, ...]:
        """Candidates for m'; empty where the arm leaves it to the run (identity, public-only)."""
        dim = (self.embedding or {}).get("dim", [])
        return tuple(dim) if isinstance(dim, list) else (dim,)


@dataclass(frozen=True)
class Experiment:
    """Everything a run depends on, but for the data. Raises UserError where parts contradict each other."""

    name: str
    seed: int = 1
    data: Data = field(default_factory=Data)
    population: Population = field(default_factory=Population)
    encoder: Encoder = field(default_factory=Encoder)
    training: Training = field(default_factory=Training)
    text: TextChannel = field(default_factory=TextChannel)
    shuffle: Shuffle = field(default_factory=Shuffle)
    policy: Policy = field(default_factory=Policy)
    arms: tuple[Arm, ...] = ()

    def __post_init__(self) -> None:
        _text(self.name, "name")
        _whole(0)(self.seed, "seed")
        if not slug(self.name):
            raise UserError(f"name: must contain a letter or a digit, got {self.name!r}")
        self._resolve()
        self._check_public()
        self._check_users()
        self._check_arms()

    def _resolve(self) -> None:
        if self.population.assignment is None:
            assignment = "column" if self.data.user else "record"
            object.__setattr__(self, "population", replace(self.population, assignment=assignment))
        if self.training.maps is None:
            maps = "learned" if self.data.public.labels else "principal-components"
            object.__setattr__(self, "training", replace(self.training, maps=maps))

    def _check_public(self) -> None:
        public, release_once = self.data.public, self.training.way == "release-once"
        if release_once and public.fraction == 0:
            raise UserError(
                'data.public.fraction: must be above 0; way = "release-once" learns its maps on public data'
            )
        if not public.labels and self.encoder.fine_tune_on_public:
            raise UserError(
                "encoder.fine-tune-on-public: needs public labels, and data.public.labels is false"
            )
        if not public.labels and self.training.maps == "learned":
            raise UserError('training.maps: "learned" needs public labels; use "principal-components"')
        if self.training.way in TEXT_WAYS and self.encoder.fine_tune_on_public:
            raise UserError(
                f'encoder.fine-tune-on-public: does not go with training.way = "{self.training.way}", where labelled '
                "public text joins the users', sanitized like theirs; remove it"
            )
        if self.text.pretrain and self.training.way not in TEXT_WAYS:
            raise UserError(f"text.pretrain: needs training.way = {_either(TEXT_WAYS)}")
        if self.text.pretrain and public.fraction == 0:
            raise UserError("text.pretrain: needs public text, and data.public.fraction is 0")

    def _check_users(self) -> None:
        users, stages = self.population.users, 2 if self.training.way == HALVES else self.training.label_stages
        if self.population.assignment == "column" and self.data.source != "built-in" and not self.data.user:
            raise UserError('population.assignment: "column" needs data.user, the name of the column')
        if self.shuffle.enabled and self.shuffle.minimum_users > users // stages:
            raise UserError(
                f"shuffle.minimum-users: {self.shuffle.minimum_users} is more than the {users // stages} "
                f"users of {'a stage' if stages > 1 else 'the population'}, so every batch would be discarded"
            )

        if self.data.source == "built-in" and self.shuffle.enabled:
            tested = (
                min(self.data.test_size, self.data.test_limit or self.data.test_size) * self.data.test_repeats
            )
            if self.shuffle.minimum_users > tested:
                raise UserError(
                    f"shuffle.minimum-users: {self.shuffle.minimum_users} is more than the {tested} test "
                    "users, so their batch would be discarded; raise data.test-size"
                )

    def _check_arms(self) -> None:
        if not self.arms:
            raise UserError("arm: there is none; add at least one [[arm]] table")
        taken: dict[str, str] = {}
        for arm in self.arms:
            if slug(arm.name) in taken:
                raise UserError(f'arm "{arm.name}": its name is too close to arm "{taken[slug(arm.name)]}"')
            taken[slug(arm.name)] = arm.name
            if arm.way == PUBLIC_ONLY and self.training.way == "paper":
                raise UserError(
                    f'arm "{arm.name}": way: "{PUBLIC_ONLY}" does not go with training.way = "paper", which trains '
                    "on users' texts; put this arm into a study of another way"
                )
            self._check_channels(arm)
            if len(arm.dims) > 1 and (self.training.way == "paper" or not self.data.public.labels):
                raise UserError(
                    f'arm "{arm.name}": embedding.dim: a list is chosen from by accuracy on public labels; '
                    "give one number here"
                )
            self._check_policy(arm)

    def _check_channels(self, arm: Arm) -> None:
        """Which channels an arm releases goes with the way of training."""
        way, texts = self.training.way, self.training.way in TEXT_WAYS
        if texts and arm.text is None:
            raise UserError(
                f'arm "{arm.name}": text: is missing; name a mechanism, since training.way = "{way}" trains on texts'
            )
        if arm.text is not None and not texts:
            raise UserError(
                f'arm "{arm.name}": text: does not go with training.way = "{way}", but with {_either(TEXT_WAYS)}'
            )
        if way == "sanitized-text" and arm.embedding is not None:
            raise UserError(f'arm "{arm.name}": embedding: none is released with training.way = "{way}"; remove it')
        if way == HALVES:
            if arm.way == PUBLIC_ONLY:
                raise UserError(f'arm "{arm.name}": way: "{PUBLIC_ONLY}" does not go with training.way = "{way}"')
            if arm.embedding is None:
                raise UserError(f'arm "{arm.name}": embedding: is missing; half of the users release one')
            if len(arm.dims) > 1:
                raise UserError(f'arm "{arm.name}": embedding.dim: give one number with training.way = "{way}"')
        if texts and arm.way == PUBLIC_ONLY and (not self.data.public.labels or self.data.public.fraction == 0):
            raise UserError(f'arm "{arm.name}": way: "{PUBLIC_ONLY}" needs labelled public text')
        needs_prior = arm.label is not None and arm.label["mechanism"] == "randomized-response-prior"
        if needs_prior and (arm.embedding is None or texts) and arm.way is None:
            raise UserError(f'arm "{arm.name}": label: randomized-response-prior needs an embedding beside it')

    def _check_policy(self, arm: Arm) -> None:
        """An arm that its own users would refuse is a mistake in the file: better said now than later.

        How large a text's ε is depends on the vocabulary: `check_text` looks at it when that is there.
        """
        costs = {channel: self._worst_case(arm, channel) for channel in ("embedding", "label")}
        text = None if arm.text is None else self._trial(arm)
        if text is not None:
            self._check_exposed(arm, text)
        self._check_costs(arm, costs)

    def check_text(self, arm: Arm, text: Text) -> None:
        """Raise UserError where the arm's users would refuse its text, the mechanism as it is with its vocabulary."""
        self._check_exposed(arm, text)
        costs = {channel: self._worst_case(arm, channel) for channel in ("embedding", "label")}
        costs["text"] = text.guarantee.worst_case(self.policy.delta, declared=self.policy.declared)
        self._check_costs(arm, costs)

    def _check_exposed(self, arm: Arm, text: Text) -> None:
        declared = self.policy.declared
        if arm.reference or "text" in declared:
            return
        if exposed := [name for name in text.guarantee.exposes if name not in declared]:
            what = ", ".join(f"{EXPOSURES[name]} ({name})" for name in exposed)
            reasons = ", ".join(f'"{name}: ..."' for name in exposed)
            raise UserError(
                f'arm "{arm.name}": its texts pass {what} through (worst-case ε = ∞); choose another mechanism or '
                f"treatment, or give reasons in policy.accept-unprotected = [{reasons}], or set reference = true"
            )
        if math.isinf(text.guarantee.worst_case(self.policy.delta, declared=declared)):
            raise UserError(f'arm "{arm.name}": {self._unprotected(arm, "text")}')

    def _check_costs(self, arm: Arm, costs: dict[str, float]) -> None:
        if arm.reference:
            return
        counted = {c: cost for c, cost in costs.items() if not self.policy.accepts_unprotected(c)}
        for channel, cost in counted.items():
            if math.isinf(cost):
                raise UserError(f'arm "{arm.name}": {self._unprotected(arm, channel)}')
            limit = getattr(self.policy, channel)
            if cost > limit * (1 + _ROUNDING):
                raise UserError(
                    f'arm "{arm.name}": {channel}: worst-case ε {cost:.4g} is above '
                    f"policy.{channel} = {limit:g}, so its users refuse; raise the limit or lower epsilon"
                )
        total = sum(counted.values())
        if total > self.policy.total * (1 + _ROUNDING):
            raise UserError(
                f'arm "{arm.name}": the worst-case ε of one record, {total:.4g}, '
                f"is above policy.total = {self.policy.total:g}"
            )

    @staticmethod
    def _unprotected(arm: Arm, channel: str) -> str:
        spec = getattr(arm, channel)
        mend = f"name a {channel} mechanism" if spec is None else "choose another mechanism"
        if spec is not None and spec["mechanism"] == "gaussian":
            mend = "set policy.delta above 0"
        return (
            f"its {channel}s are sent unprotected (worst-case ε = ∞); {mend}, "
            f'or give a reason in policy.accept-unprotected = ["{channel}: ..."], or set reference = true'
        )

    @staticmethod
    def _trial(arm: Arm) -> Text:
        """The arm's text mechanism on words that stand in for the vocabulary: for its parameters, and exposures."""
        assert arm.text is not None
        where = f'arm "{arm.name}": text'
        if "dim" in arm.text:
            raise UserError(f"{where}.dim: applies to embeddings only; remove it")
        try:
            return text_mechanism(arm.text, stand_in(), bounds=(0.0, 1.0))
        except ValueError as error:
            raise UserError(f"{where}: {error}") from error

    def _worst_case(self, arm: Arm, channel: str) -> float:
        """Largest worst-case ε that one record is charged on the channel; inf where it is sent in clear."""
        spec, where = getattr(arm, channel), f'arm "{arm.name}": {channel}'
        if spec is None:
            return math.inf if channel == "label" and arm.way is None else 0.0
        if channel == "label" and "dim" in spec:
            raise UserError(f"{where}.dim: applies to embeddings only; remove it")
        try:
            if channel == "embedding":
                built = [embedding_mechanism(spec, dim) for dim in arm.dims or (2,)]
            else:
                built = [catalogue.build(spec, channel=channel, classes=CLASSES.get(self.data.task or "", 2))]
        except ValueError as error:
            raise UserError(f"{where}: {error}") from error
        return max(float(m.guarantee.worst_case(self.policy.delta)) for m in built)


SECTIONS: dict[str, type[_Section]] = {
    s.place: s for s in (Data, Population, Encoder, Training, TextChannel, Shuffle, Policy)
}


def embedding_mechanism(spec: dict[str, Any], dim: int) -> Mechanism:
    """The embedding mechanism of an arm, of one m' out of those that it names. ValueError as `catalogue.build`."""
    return catalogue.build({k: v for k, v in spec.items() if k != "dim"}, channel="embedding", dim=dim)


def text_mechanism(spec: dict[str, Any], vocabulary: Vocabulary, *, bounds: tuple[float, float] | None = None) -> Text:
    """The text mechanism of an arm. bounds: of a masked language model's logits, where the mechanism has such
    parameters and the arm does not name them. ValueError as `catalogue.build`."""
    kind = catalogue.CATALOGUE.get(str(spec.get("mechanism")))
    takes = {f.name for f in fields(kind)} if kind is not None else set()
    given = dict(zip(("low", "high"), bounds, strict=True)) if bounds and {"low", "high"} <= takes else {}
    built: Text = catalogue.build(given | spec, channel="text", vocabulary=vocabulary)
    return built


@cache
def stand_in() -> Vocabulary:
    """A vocabulary that has everything a mechanism may ask for: words of all kinds, counts and tags."""
    rng = np.random.default_rng(0)
    words = ("the", ".", "7", *(f"word{i}" for i in range(253)))
    n = len(words)
    vectors = rng.normal(size=(n, 8)).astype(np.float32)
    return Vocabulary(words, vectors, np.arange(1, n + 1), (np.arange(n) % len(TAGS)).astype(np.int8))


def slug(name: str) -> str:
    """A name as it appears in file names: lower-case letters, digits and hyphens; ε becomes eps."""
    plain = (
        unicodedata.normalize("NFKD", name.lower().replace("ε", "eps ")).encode("ascii", "ignore").decode()
    )
    return re.sub(r"[^a-z0-9]+", "-", plain).strip("-")


def bundled() -> tuple[str, ...]:
    """Names of the experiment files that come with Sottovoce."""
    return tuple(sorted(p.stem for p in BUNDLED.glob("*.toml")))


def load(path: str | Path, overrides: Iterable[str] = ()) -> Experiment:
    """The experiment in a TOML file, or of a bundled name.

    overrides: "section.key=value"; arms are addressed by index from 0, as "arm.0.embedding.epsilon=4".
    A value is read as TOML, and as a plain text where it is none. Raises UserError, which names the
    file.
    """
    file = Path(path)
    if not file.is_file():
        if file.suffix or len(file.parts) != 1:
            raise UserError(f"{path}: there is no such file")
        file = BUNDLED / f"{path}.toml"
        if not file.is_file():
            raise UserError(f"{path}: neither a file nor a bundled experiment ({', '.join(bundled())})")
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UserError(f"{path}: is not valid TOML: {error}") from error
    try:
        for override in overrides:
            _override(table, override)
        return from_table(table)
    except UserError as error:
        raise UserError(f"{path}: {error}") from error


def from_table(table: dict[str, Any]) -> Experiment:
    """The experiment that a parsed TOML document describes. Raises UserError."""
    known = {"name", "seed", "arm", *SECTIONS}
    _refuse_unknown(table, known, "")
    if "name" not in table:
        raise UserError("name: is missing")
    parts: dict[str, Any] = {k: table[k] for k in ("name", "seed") if k in table}
    for place, section in SECTIONS.items():
        if place in table:
            parts[place] = _read(section, table[place], place)
    arms = table.get("arm", [])
    if not isinstance(arms, list):
        raise UserError("arm: write it with two brackets, [[arm]]")
    parts["arms"] = tuple(_read(Arm, arm, f"arm.{i}") for i, arm in enumerate(arms))
    return Experiment(**parts)


def to_toml(experiment: Experiment) -> str:
    """The experiment with every default filled in, as TOML that `load` reads back to an equal one."""
    table: dict[str, Any] = {"name": experiment.name, "seed": experiment.seed}
    table |= {place: _table(getattr(experiment, place)) for place in SECTIONS}
    return tomli_w.dumps(table) + "".join(
        "\n[[arm]]\n" + tomli_w.dumps(_arm_table(a)) for a in experiment.arms
    )


def _arm_table(arm: Arm) -> dict[str, Any]:
    """Plain keys first, then mechanisms as [arm.embedding] and the like: tables of the last [[arm]]."""
    table = _table(arm)
    nested = {k: table.pop(k) for k in CHANNELS if k in table}
    return table | ({"arm": nested} if nested else {})


def _table(section: _Section) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for f in fields(section):
        value = getattr(section, f.name)
        if isinstance(value, _Section):
            table[_key(f.name)] = _table(value)
        elif value is not None:
            table[_key(f.name)] = list(value) if isinstance(value, tuple) else value
    return table


def _read(section: type[_Section], table: Any, where: str) -> Any:
    if not isinstance(table, dict):
        raise UserError(f"{where}: must be a table, got {table!r}")
    names = {_key(f.name): f.name for f in fields(section)}
    _refuse_unknown(table, names, f"{where}.")
    values = {names[k]: v for k, v in table.items()}
    if section is Data and "public" in values:
        values["public"] = _read(Public, values["public"], "data.public")
    if section is Arm and "name" not in values:
        raise UserError(f"{where}.name: is missing")
    return section(**values)


def _refuse_unknown(table: dict[str, Any], known: Iterable[str], prefix: str) -> None:
    for key in table:
        if key not in known:
            mend = _nearest(key, known) or f"; known are {', '.join(sorted(known))}"
            raise UserError(f"{prefix}{key}: unknown key{mend}")


def _override(table: dict[str, Any], override: str) -> None:
    path, equals, text = override.partition("=")
    keys = path.strip().split(".")
    if not equals or not all(keys):
        raise UserError(f"--set {override}: must look like section.key=value")
    try:
        value = tomllib.loads(f"value = {text.strip()}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    place: Any = table
    for key in keys[:-1]:
        if isinstance(place, list):
            if not key.isdecimal() or int(key) >= len(place):
                raise UserError(
                    f"--set {override}: arms are numbered from 0 to {len(place) - 1}, got {key!r}"
                )
            place = place[int(key)]
        elif isinstance(place, dict):
            place = place.setdefault(key, {})
        else:
            raise UserError(f"--set {override}: {key!r} is inside something that is not a table")
    if not isinstance(place, dict):
        raise UserError(f"--set {override}: {keys[-2]!r} is not a table")
    place[keys[-1]] = value
