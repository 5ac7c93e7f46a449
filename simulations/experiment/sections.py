"""Tables of an experiment file except its arms: possible values and defaults of each key."""

from __future__ import annotations

import math
import textwrap
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar

from client import policy as client
from server.protocols import PROTOCOLS
from server.protocols.declaration import Option, TrainingProtocol
from server.protocols.release_once import PROTOCOL as RELEASE_ONCE
from simulations.errors import UserError
from simulations.experiment import values
from simulations.experiment.names import key

#: Protocols that an experiment may name; others belong to single arms.
WAYS = tuple(name for name, protocol in PROTOCOLS.items() if protocol.whole)
CHECKPOINT, NONE, BUNDLED_LM = "checkpoint", "none", "bundled"
#: Tasks of the built-in corpus, with their numbers of classes.
CLASSES = {"sentiment": 2, "genre": 12}
#: Public parts that are no part of the users' data.
ELSEWHERE = ("built-in", "file", "hub")
#: Measures beside accuracy (`simulations.run.measures`).
NUMERIC = ("pearson", "spearman")
MEASURES = ("matthews", "macro-f1", "auroc", "auprc", *NUMERIC)
#: Default number of levels of a numeric label.
LEVELS = 21


def setting(check: values.Check, default: Any = None) -> Any:
    """Return a field with its check. The default None means optional, or derived from other fields."""
    return field(default=default, metadata={"check": check})


@dataclass(frozen=True)
class Section:
    """Table of the file that checks each field on construction. `place` is its name in errors."""

    place: ClassVar[str]

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            if "check" in f.metadata and not (value is None and f.default is None):
                self._set(f.name, f.metadata["check"](value, self._where(f.name)))

    def _where(self, name: str) -> str:
        return f"{self.place}.{key(name)}"

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)


@dataclass(frozen=True)
class Public(Section):
    """The public part: `fraction` of the training data, the built-in corpus, a file, or a part of a data set of the hub
    (of these so many rows as data.public-size says, drawn by the seed).

    file: where it lies. hub: its name, and of which part. text, label: its columns, those of the data where they are
    not given.

    labels: whether its labels are public too; labelled: of so many of its texts alone, picked by the seed, or 0. split:
    "random", "by-sentence" (SST-2: phrases follow the sentences that contain them), "by-text" (annotators: users who
    hold the same texts go together, and what is in two parts all the same is left out of one), "built-in", "file" or
    "hub".
    classes: for each class of the data which of the public part's it is, where the names do not say it.
    """

    place: ClassVar[str] = "data.public"
    fraction: float | None = setting(values.number(below=1.0))
    labels: bool = setting(values.flag, True)
    labelled: int | None = setting(values.whole(0))
    split: str | None = setting(values.choice("random", "by-sentence", "by-text", *ELSEWHERE))
    file: str | None = setting(values.text)
    hub: str | None = setting(values.text)
    part: str | None = setting(values.text)
    text: str | int | None = setting(values.column)
    label: str | int | None = setting(values.column)
    classes: dict[str, str] | None = setting(values.names)  # noqa: RUF009 - a field, like its neighbours

    @property
    def any_labels(self) -> bool:
        """Return True if the label of at least one text is public."""
        return self.labels and self.labelled != 0


@dataclass(frozen=True)
class Data(Section):
    """Where texts come from. files: a folder and names in it; hub: `path` is the name, then splits.

    text, second_text, label, user: columns, by their names; of a file of tabs or commas without a header, all by their
    positions, from 1.

    user: a column of both files; whoever is named is one user with one budget, in one of the two. overlap: why texts,
    nearly the same texts or users may be in two parts, where they are. test_limit: of the test part, so many rows,
    drawn by the seed within each class. test_repeats: how often the test sentences are sanitized, each time by users of
    their own.
    held_out: a share of what users would hold, which is the test part in place of that of the file: set aside as the
    public part is, after it and by the seed, by sentences or by people. For what is looked at once, at the end.
    public_size, test_size: of the built-in corpus; its training part is as large as the population needs.
    label_range: where a label is a number, the lowest and the highest that there may be; it is rounded to the nearest
    of so many equally spaced levels (21), which are the classes then. "pearson" and "spearman" are of the number that a
    model expects.
    measures: what is said of a model beside accuracy; "auroc" and "auprc" of the second of two classes, or, of more, on
    average over each against the rest.
    """

    place: ClassVar[str] = "data"
    source: str = setting(values.choice("built-in", "files", "hub"), "built-in")
    path: str | None = setting(values.text)
    train: str | None = setting(values.text)
    test: str | None = setting(values.text)
    text: str | int | None = setting(values.column)
    second_text: str | int | None = setting(values.column)
    label: str | int | None = setting(values.column)
    label_range: tuple[float, float] | None = setting(values.interval)
    levels: int | None = setting(values.whole(2))
    user: str | int | None = setting(values.column)
    overlap: str | None = setting(values.text)
    task: str | None = setting(values.choice(*CLASSES))
    public_size: int | None = setting(values.whole(2))
    test_size: int | None = setting(values.whole(1))
    test_limit: int | None = setting(values.whole(1))
    held_out: float | None = setting(values.number(above=True, below=1.0))
    test_repeats: int = setting(values.whole(1), 1)
    measures: tuple[str, ...] = setting(values.choices(*MEASURES), ())
    public: Public = field(default_factory=Public)

    @property
    def elsewhere(self) -> bool:
        """Return True if the public texts are of another domain than the users' texts."""
        return self.source != "built-in" and self.public.split in ELSEWHERE

    @property
    def classes(self) -> int:
        """Return the number of classes of the task; 2 if it depends on data that have not been read yet."""
        if self.levels is not None:
            return self.levels
        return CLASSES.get(self.task or "", 2)

    def __post_init__(self) -> None:
        super().__post_init__()
        built_in = self.source == "built-in"
        described = (
            "path", "train", "test", "text", "second_text", "label", "label_range", "user", "overlap", "held_out",
        )  # fmt: skip
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
            columns = [v for v in (self.text, self.second_text, self.label, self.user) if v is not None]
            by_name = sum(isinstance(value, str) for value in columns)
            if by_name < len(columns) and (by_name or self.source == "hub"):
                raise UserError("data.text: columns have names, or, in files without a header, all of them positions")
            if self.source == "hub":
                self._set("train", self.train or "train")
                self._set("test", self.test or "validation")
            if self.test_size is not None:
                raise UserError('data.test-size: applies to source = "built-in" only; use test-limit')
        if self.user is not None and self.test_repeats > 1:
            raise UserError(
                "data.test-repeats: each is by users of their own, and data.user says whose a sentence is; remove one"
            )
        self._check_numbers()
        self._set("public", self._resolved_public(built_in))
        if self.public.split == "built-in":
            self._set("public_size", self.public_size or 1000)
            self._set("task", self.task or "sentiment")
        elif self.task is not None or (self.public_size is not None and self.public.split not in ELSEWHERE):
            name = "task" if self.task is not None else "public_size"
            raise UserError(f"{self._where(name)}: applies to the built-in corpus only; remove it")
        if built_in:
            self._set("test_size", self.test_size or 1000)

    def _check_numbers(self) -> None:
        if self.label_range is not None:
            self._set("levels", self.levels or LEVELS)
            if self.public.split in ELSEWHERE and self.public.labels:
                raise UserError("data.public.labels: those of another source are no numbers; set labels = false")
        elif self.levels is not None:
            raise UserError("data.levels: goes with data.label-range; remove it")
        elif numeric := [name for name in self.measures if name in NUMERIC]:
            raise UserError(f'data.measures: "{numeric[0]}" is of labels that are numbers; give data.label-range')

    @property
    def numbers(self) -> tuple[float, ...] | None:
        """Return the number that each level of a label stands for; None if labels are classes."""
        if self.label_range is None or self.levels is None:
            return None
        low, high = self.label_range
        return tuple(low + (high - low) * level / (self.levels - 1) for level in range(self.levels))

    def _resolved_public(self, built_in: bool) -> Public:
        public = self.public
        split = public.split or ("built-in" if built_in else "random")
        if built_in and split != "built-in":
            raise UserError("data.public.split: the built-in corpus has a public part of its own; remove it")
        if public.classes is not None and (built_in or split not in ELSEWHERE or not public.labels):
            raise UserError(
                'data.public.classes: goes with data of another source, split = "built-in" and public labels; remove it'
            )
        for name in ("file", "hub"):
            if (getattr(public, name) is None) == (split == name):
                raise UserError(f'data.public.{name}: goes with split = "{name}", and that with it')
        if (public.part or public.text or public.label) and split not in ("file", "hub"):
            raise UserError('data.public: part, text and label go with split = "file" or "hub"; remove them')
        if split == "file" and public.part:
            raise UserError('data.public.part: goes with split = "hub"; remove it')
        if split in ELSEWHERE:
            if public.fraction is not None:
                raise UserError(
                    "data.public.fraction: is of the users' data; of another source use data.public-size"
                )
            return replace(public, split=split)
        return replace(public, fraction=0.05 if public.fraction is None else public.fraction, split=split)


@dataclass(frozen=True)
class Population(Section):
    """Who holds which record. assignment: "record" (one a user), "column", or "dirichlet" over labels.

    dropout: probability that a user never answers, and so is not charged. late: probability that a user's answer misses
    the deadline of a stage: it has left and is charged, but it is not delivered. timeout: seconds that a stage waits
    for nodes; one that is still at work then counts as "no answer".
    """

    place: ClassVar[str] = "population"
    users: int = setting(values.whole(1), 2000)
    users_per_node: int | str = setting(values.auto_or_whole, "auto")
    assignment: str | None = setting(values.choice("record", "column", "dirichlet"))
    alpha: float | None = setting(values.number(above=True))
    dropout: float = setting(values.number(below=1.0), 0.0)
    late: float = setting(values.number(below=1.0), 0.0)
    timeout: float = setting(values.number(above=True), 3600.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.assignment == "dirichlet" and self.alpha is None:
            raise UserError('population.alpha: is missing, and assignment = "dirichlet" needs it')
        if self.assignment != "dirichlet" and self.alpha is not None:
            raise UserError('population.alpha: applies to assignment = "dirichlet" only; remove it')


@dataclass(frozen=True)
class Encoder(Section):
    """model: "minilm", "mpnet", "e5-small", "e5-small-en", a folder, or a hub name (encoders.md). Weights are read
    from safetensors, or from pytorch_model.bin without running what a pickle may hold. pooling: "published" is that
    of the model's own files, and for "minilm" the mean. layers: whose states stand side by side in an embedding,
    from 1, without normalization; none: the last one's. Fine-tuning is on public labelled text, before releases.
    precision: "int8" is about twice as fast, "int4" about a sixth of the size; each is another public function,
    declared by an identity of its own on every release.
    """

    place: ClassVar[str] = "encoder"
    model: str = setting(values.text, "minilm")
    pooling: str = setting(
        values.choice("published", "mean", "cls", "last", "mean-normalized", "cls-normalized", "last-normalized"),
        "published",
    )
    max_length: int = setting(values.whole(2), 128)
    layers: tuple[int, ...] = setting(values.wholes(1), ())
    precision: str = setting(values.choice("fp32", "int8", "int4"), "fp32")
    fine_tune_on_public: bool = setting(values.flag, False)
    fine_tune_epochs: int = setting(values.whole(1), 4)
    fine_tune_lr: float = setting(values.number(above=True, below=1.0), 5e-5)


def _checked(option: Option) -> values.Check:
    """Return the check of a protocol's option, by the type of its default."""
    if isinstance(option.default, bool):
        return values.flag
    if isinstance(option.default, int):
        return values.whole(option.least, none=option.optional)
    if isinstance(option.default, float):
        return values.number(option.least)
    return values.choice(*option.choices) if option.choices else values.text


def _with_options(section: type[Section]) -> type[Section]:
    """Add the options of all protocols to a section: a key for each, and lines of its docstring."""
    known: dict[str, Option] = {}
    lines = [(section.__doc__ or "").rstrip()]
    for protocol in map(PROTOCOLS.__getitem__, WAYS):
        words = [f'"{protocol}": {protocol.summary}.', *(f"{it.name}: {it.about}" for it in protocol.options)]
        lines += ["", *textwrap.wrap(" ".join(words), 112, initial_indent="    ", subsequent_indent="    ")]
        for option in protocol.options:
            if option.name in section.__annotations__ or known.setdefault(option.name, option) != option:
                raise ValueError(f"{protocol}: option {option.name} is another key of [training] already")
    section.__doc__ = "\n".join(lines)
    for name, option in known.items():
        section.__annotations__[name] = "Any"
        setattr(section, name, setting(_checked(option), option.default))
    return section


@dataclass(frozen=True)
@_with_options
class Training(Section):
    """protocol: what users release, and how a model is trained on it; "paper" is not private and must be acknowledged
    (acknowledge_not_private).

    epochs, batch_size, lr, weight_decay (of the encoder), warm_up (the share of steps in which learning rates rise) and
    schedule (behind that they fall to 0, or stay): of a training end to end, on texts.
    maps: how M1 is found on public data; learned, if it has labels.

    Each protocol, with the keys that go with it alone:
    """

    place: ClassVar[str] = "training"
    way: str = setting(values.choice(*WAYS), RELEASE_ONCE.name)
    epochs: int = setting(values.whole(1), 5)
    batch_size: int = setting(values.whole(1), 32)
    lr: float = setting(values.number(above=True, below=1.0), 5e-5)
    schedule: str = setting(values.choice("linear", "constant"), "linear")
    warm_up: float = setting(values.number(below=1.0), 0.1)
    weight_decay: float = setting(values.number(below=1.0), 0.01)
    maps: str | None = setting(values.choice("learned", "principal-components"))
    acknowledge_not_private: bool = setting(values.flag, False)

    @property
    def descent(self) -> dict[str, Any]:
        """Return the keys of gradient descent as end-to-end training takes them."""
        return {
            "encoder_lr": self.lr, "schedule": self.schedule, "warm_up": self.warm_up, "weight_decay": self.weight_decay
        }  # fmt: skip

    @property
    def stages(self) -> int:
        """Return the number of stages in which users release, each user in one of them."""
        return self.protocol.stages(self.options)

    @property
    def protocol(self) -> TrainingProtocol:
        """Return the protocol that the file names."""
        return PROTOCOLS[self.way]

    @property
    def options(self) -> dict[str, Any]:
        """Return the values of the protocol's own options."""
        return {option.name: getattr(self, option.name) for option in self.protocol.options}

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.protocol.private and not self.acknowledge_not_private:
            raise UserError(
                f'training.protocol: "{self.way}" is not private (its gradients depend on raw text), only a trusted '
                "simulation; set training.acknowledge-not-private = true to run it"
            )
        for other in PROTOCOLS.values():
            for option in other.options:
                if option not in self.protocol.options and getattr(self, option.name) != option.default:
                    raise UserError(f'training.{key(option.name)}: goes with protocol = "{other}"; remove it')
        try:
            self.protocol.check(self.options)
        except ValueError as error:
            raise UserError(f"training.{error}") from error


#: Placeholder of the private text in a prompt.
_TEXT = "{text}"


@dataclass(frozen=True)
class TextChannel(Section):
    """What text mechanisms work with. words: "checkpoint", the encoder's own whole words, or a file of word vectors.

    masked_lm: what some mechanisms read: "none", "bundled", or a folder. generator: the checkpoint that `dp-prompt`
    generates by, causal or of two parts: "none", a folder or a hub name, and paraphraser that of `dp-paraphrase`, and
    of `dp-bart`, then of two parts; prompt, paraphraser_prompt: what stands around the private text, which is named
    {text}; where it is not given, the question for a paraphrase (Utpala et al. 2023), and nothing. pretrain: whether
    the checkpoint first learns to restore the words of sanitized *public* text, for pretrain_steps batches.
    """

    place: ClassVar[str] = "text"
    words: str = setting(values.text, CHECKPOINT)
    masked_lm: str = setting(values.text, NONE)
    generator: str = setting(values.text, NONE)
    prompt: str | None = setting(values.text)
    paraphraser: str = setting(values.text, NONE)
    paraphraser_prompt: str | None = setting(values.text)
    pretrain: bool = setting(values.flag, False)
    pretrain_steps: int = setting(values.whole(1), 500)

    def __post_init__(self) -> None:
        super().__post_init__()
        for prompt, model in (("prompt", "generator"), ("paraphraser_prompt", "paraphraser")):
            given = getattr(self, prompt)
            if given is not None and getattr(self, model) == NONE:
                raise UserError(f"{self._where(prompt)}: goes with text.{model}; name its checkpoint, or remove it")
            if given is not None and given.count(_TEXT) != 1:
                raise UserError(f"{self._where(prompt)}: must name {_TEXT} once, where the private text stands")


@dataclass(frozen=True)
class Shuffle(Section):
    """minimum_users: a batch of fewer distinct users is discarded. delta: of the amplification."""

    place: ClassVar[str] = "shuffle"
    enabled: bool = setting(values.flag, True)
    minimum_users: int = setting(values.whole(1), 100)
    delta: float = setting(values.number(above=True, below=1.0), 1e-6)

    @property
    def least(self) -> int:
        """Return the minimum number of users of a batch; 0 without shuffling."""
        return self.minimum_users if self.enabled else 0


@dataclass(frozen=True)
class Policy(Section):
    """What every client accepts: the largest ε of a record by channel (a user vector: of all that a user has) and of a
    user in total, the δ of all that, and the number of a user's releases. dummy-releases: how often something that
    says nothing of a user is released in place of what they can pay no more. delta: at which a release that needs one
    is priced (`client.policy.Policy`).
    """

    place: ClassVar[str] = "policy"
    delta: float = setting(values.number(below=1.0), 0.0)
    embedding: float = setting(values.number(infinite=True), 0.0)
    label: float = setting(values.number(infinite=True), 0.0)
    text: float = setting(values.number(infinite=True), 0.0)
    statistic: float = setting(values.number(infinite=True), 0.0)
    answer: float = setting(values.number(infinite=True), 0.0)
    total: float = setting(values.number(infinite=True), math.inf)
    total_delta: float = setting(values.number(below=1.0), client.Policy.total_delta)
    releases: int = setting(values.whole(0), client.Policy.releases)
    stand_ins: int = setting(values.whole(0), client.Policy.stand_ins)
    accept_unprotected: tuple[str, ...] = setting(values.reasons, ())

    @property
    def declared(self) -> dict[str, str]:
        """Return the channels and exposures that are declared public, each with its reason."""
        return client.Policy(accept_unprotected=self.accept_unprotected).declared


#: Sections by the names of their tables in the file.
SECTIONS: dict[str, type[Section]] = {
    s.place: s for s in (Data, Population, Encoder, Training, TextChannel, Shuffle, Policy)
}
