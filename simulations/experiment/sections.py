"""Tables of an experiment file except its arms: possible values and defaults of each key."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar

from client import policy as client
from server.protocols import PROTOCOLS
from server.protocols.declaration import Option, TrainingProtocol
from server.protocols.release_once import RELEASE_ONCE
from simulations.errors import UserError
from simulations.experiment import values
from simulations.experiment.names import key

#: Protocols that an experiment may name; others belong to single arms.
WAYS = tuple(name for name, protocol in PROTOCOLS.items() if protocol.whole)
CHECKPOINT, NONE, BUNDLED_LM, AUTO = "checkpoint", "none", "bundled", "auto"
#: Tasks of the built-in corpus, with their numbers of classes.
CLASSES = {"sentiment": 2, "genre": 12, "desk": 4}
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
    """Table of the file that checks each field on construction. `place` is its name in errors.

    The first paragraphs of a docstring stand above the table, and its attributes describe the keys
    (`simulations.experiment.schema`).
    """

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
class PublicConfig(Section):
    """Public part of the data, which the server has in clear.

    Attributes:
        fraction: Share of the training data that is public.
        labels: True if the labels of the public part are public too.
        labelled: Number of public texts whose label is public, drawn by the seed; 0 for none.
        split: Rule that separates the public part. "by-sentence": phrases follow the sentences that contain them
            (SST-2). "by-text": users who hold the same texts stay together, and a text of both parts is left out of
            one. "built-in", "file" and "hub": another source, of which data.public-size rows are drawn by the seed.
        file: File of the public part.
        hub: Name of the data set on the hub.
        part: Split of the data set on the hub.
        text: Column of the text, as data.text where it is not given.
        label: Column of the label, as data.label where it is not given.
        classes: For each class of the data the class of the public part, where their names differ.
    """

    place: ClassVar[str] = "data.public"
    fraction: float | None = setting(values.number(below=1.0))
    labels: bool = setting(values.flag, True)
    labelled: int | None = setting(values.whole(0))
    split: str | None = setting(values.choice("random", "by-sentence", "by-text", *ELSEWHERE))
    file: str | None = setting(values.text)
    hub: str | None = setting(values.text)
    part: str | None = setting(values.text)
    text: str | None = setting(values.column)
    label: str | None = setting(values.column)
    classes: dict[str, str] | None = setting(values.names)  # noqa: RUF009 - a field, like its neighbours

    @property
    def any_labels(self) -> bool:
        """Return True if the label of at least one text is public."""
        return self.labels and self.labelled != 0


@dataclass(frozen=True)
class Data(Section):
    """Source of the texts, its parts and columns, and the measures of a model.

    Attributes:
        source: "files" are read from the folder path, "hub" is a data set of the hub.
        path: Folder of the files, or name of the data set.
        train: File or split that users hold.
        test: File or split of the test part.
        text: Column of the text.
        second-text: Column of the second text of a pair.
        label: Column of the label.
        label-range: Lowest and highest label, if labels are numbers. Each is rounded to the nearest of the levels.
        levels: Number of equally spaced levels of a numeric label, which are its classes; 21 where it is not given.
        user: Column of the user, in both files. Each user has one budget and belongs to one part.
        group: Column of an attribute, in both files, such as a dialect or an age group. Results show accuracy by its
            values. Neither devices nor the server receive it. Of the built-in corpus: its other task.
        overlap: Reason why parts may share texts or users.
        task: Task of the built-in corpus.
        public-size: Number of public texts of the built-in corpus, or of another source.
        test-size: Number of test texts of the built-in corpus. Its training part is as large as the population needs.
        test-limit: Number of test texts to use, drawn by the seed within each class.
        held-out: Share of the users' data that becomes the test part in place of the file's. It is set aside after the
            public part, by the same rule. Use it for a final measurement.
        test-repeats: Number of times that the test texts are sanitized, each time by new users.
        class-descriptions: Texts that describe each class to the encoder, at no cost of privacy. "names" are the
            classes' own names, where all are words. A table gives one text or several for each class. "none": nothing.
        measures: Measures beside accuracy. "auroc" and "auprc" are of the second of two classes, or the mean over each
            class against the rest. "pearson" and "spearman" are of the expected number.
    """

    place: ClassVar[str] = "data"
    source: str = setting(values.choice("built-in", "files", "hub"), "built-in")
    path: str | None = setting(values.text)
    train: str | None = setting(values.text)
    test: str | None = setting(values.text)
    text: str | None = setting(values.column)
    second_text: str | None = setting(values.column)
    label: str | None = setting(values.column)
    label_range: tuple[float, float] | None = setting(values.interval)
    levels: int | None = setting(values.whole(2))
    user: str | None = setting(values.column)
    group: str | None = setting(values.column)
    overlap: str | None = setting(values.text)
    task: str | None = setting(values.choice(*CLASSES))
    public_size: int | None = setting(values.whole(2))
    test_size: int | None = setting(values.whole(1))
    test_limit: int | None = setting(values.whole(1))
    held_out: float | None = setting(values.number(above=True, below=1.0))
    test_repeats: int = setting(values.whole(1), 1)
    class_descriptions: Any = setting(values.descriptions, "names")  # noqa: RUF009 - a field, like its neighbours
    measures: tuple[str, ...] = setting(values.choices(*MEASURES), ())
    public: PublicConfig = field(default_factory=PublicConfig)

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
        columns = ("text", "second_text", "label", "label_range", "user")
        if built_in:
            for name in ("path", "train", "test", *columns, "overlap", "held_out"):
                if getattr(self, name) is not None:
                    raise UserError(f'{self._where(name)}: does not apply to source = "built-in"; remove it')
            if self.group not in (None, "sentiment", "genre"):
                raise UserError("data.group: is one of sentiment, genre of the built-in corpus; or remove it")
        else:
            needed = ("path", "train", "test", "text", "label") if self.source == "files" else ("path", "text", "label")
            for name in needed:
                if getattr(self, name) is None:
                    raise UserError(f'{self._where(name)}: is missing, and source = "{self.source}" needs it')
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

    def _resolved_public(self, built_in: bool) -> PublicConfig:
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
                raise UserError("data.public.fraction: is of the users' data; of another source use data.public-size")
            return replace(public, split=split)
        return replace(public, fraction=0.05 if public.fraction is None else public.fraction, split=split)


@dataclass(frozen=True)
class Population(Section):
    """Users, their records, and the users who are missing or late.

    Attributes:
        users: Number of training users.
        users-per-node: Number of users that one simulated node serves.
        assignment: Users of the records: one record each ("record"), as data.user says ("column"), or by a Dirichlet
            distribution over labels ("dirichlet").
        alpha: Concentration of the Dirichlet distribution. Small values give users of few labels.
        dropout: Probability that a user never answers. Such a user is not charged.
        late: Probability that a user's answer misses the deadline of a stage. The user is charged, and the answer is
            not delivered.
        timeout: Seconds that a stage waits for nodes. A node that is still at work counts as "no answer".
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
class EncoderConfig(Section):
    """Sentence encoder of the users' devices and of the server.

    Attributes:
        model: "minilm", "mpnet", "e5-small", a folder, or a hub name (encoders.md). Weights are read from safetensors,
            or from pytorch_model.bin without running the code that a pickle may hold.
        pooling: "published" is the pooling of the model's own files, and the mean for "minilm".
        max-length: Number of tokens after which a text is cut.
        layers: Layers, from 1, whose states are concatenated to an embedding without normalization; the last layer
            where none are given. "auto": every second layer of the upper half, and the last (encoders.md).
        precision: "int8" is about twice as fast, "int4" has about a sixth of the size. Each is another public function
            with an identity of its own, which every release declares.
        fine-tune-on-public: True to fine-tune the encoder on public labelled text before users are queried.
        fine-tune-epochs: Number of epochs of this fine-tuning.
        fine-tune-lr: Learning rate of this fine-tuning.
    """

    place: ClassVar[str] = "encoder"
    model: str = setting(values.text, "minilm")
    pooling: str = setting(
        values.choice("published", "mean", "cls", "last", "mean-normalized", "cls-normalized", "last-normalized"),
        "published",
    )
    max_length: int = setting(values.whole(2), 128)
    layers: tuple[int, ...] | str = setting(values.auto_or_wholes, ())
    precision: str = setting(values.choice("fp32", "int8", "int4"), "fp32")
    fine_tune_on_public: bool = setting(values.flag, False)
    fine_tune_epochs: int = setting(values.whole(1), 4)
    fine_tune_lr: float = setting(values.number(above=True, below=1.0), 5e-5)


def _checked(option: Option) -> values.Check:
    """Return the check of a protocol's option, by the type of its default."""
    if isinstance(option.default, bool):
        return values.flag
    if isinstance(option.default, int):
        check = values.whole(option.least)
        return values.word_or("none", check) if option.optional else check
    if isinstance(option.default, float):
        return values.number(option.least)
    return values.choice(*option.choices) if option.choices else values.text


def _with_options(section: type[Section]) -> type[Section]:
    """Add the options of all protocols to a section: a key for each, described in the section's docstring."""
    options: dict[str, Option] = {}
    for protocol in map(PROTOCOLS.__getitem__, WAYS):
        for option in protocol.options:
            if option.name in section.__annotations__ or options.setdefault(option.name, option) != option:
                raise ValueError(f"{protocol}: option {option.name} is another key of [training] already")
    summaries = " ".join(f'"{name}": {PROTOCOLS[name].summary}.' for name in WAYS)
    lines = (section.__doc__ or "").rstrip().replace("Attributes:\n", f"Attributes:\n        protocol: {summaries}\n")
    section.__doc__ = "\n        ".join([lines, *(f"{key(name)}: {option.about}" for name, option in options.items())])
    for name, option in options.items():
        section.__annotations__[name] = "Any"
        setattr(section, name, setting(_checked(option), option.default))
    return section


@dataclass(frozen=True)
@_with_options
class TrainingConfig(Section):
    """Protocol by which users release and the server trains, and its options.

    Attributes:
        epochs: Number of epochs of end-to-end training.
        batch-size: Number of texts in a batch of end-to-end training.
        lr: Learning rate of the encoder in end-to-end training.
        schedule: Learning rates after the warm-up: they fall to 0, or stay.
        warm-up: Share of the steps in which learning rates rise.
        weight-decay: Weight decay of the encoder.
        maps: Method that finds M1 on public data: "learned" needs public labels.
        acknowledge-not-private: True to run a protocol that is not private.
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

    if TYPE_CHECKING:  # the protocols' options, which `_with_options` adds

        def __getattr__(self, name: str) -> Any: ...

    def with_options(self, **options: Any) -> TrainingConfig:
        """Return a copy with other values of the protocols' options."""
        return replace(self, **options)

    @property
    def descent(self) -> dict[str, Any]:
        """Return the keys of gradient descent as end-to-end training takes them."""
        return {
            "encoder_lr": self.lr,
            "schedule": self.schedule,
            "warm_up": self.warm_up,
            "weight_decay": self.weight_decay,
        }

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
    """Resources of text mechanisms: words, language models and prompts.

    Attributes:
        words: "checkpoint" for whole words of the encoder's own vocabulary, or a file of word vectors.
        masked-lm: Masked language model: "none"; "bundled", MiniLM with a prediction head that comes with Sottovoce; or
            a checkpoint. If a checkpoint has no prediction head, as "minilm", public texts train one before the first
            arm, which may take an hour.
        generator: Checkpoint of `dp-prompt`, causal or encoder-decoder: "none", a folder, or a hub name.
        prompt: Text around the private text, which it names {text}. Where it is not given: the request for a paraphrase
            of Utpala et al. 2023.
        paraphraser: Checkpoint of `dp-paraphrase`: "none", a folder, or a hub name.
        paraphraser-prompt: Text around the private text, which it names {text}. Where it is not given: nothing.
        pretrain: True if the checkpoint first learns to restore the words of sanitized *public* text.
        pretrain-steps: Number of batches of this pretraining.
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
            text = getattr(self, prompt)
            if text is not None and getattr(self, model) == NONE:
                raise UserError(f"{self._where(prompt)}: goes with text.{model}; name its checkpoint, or remove it")
            if text is not None and text.count(_TEXT) != 1:
                raise UserError(f"{self._where(prompt)}: must name {_TEXT} once, where the private text stands")


@dataclass(frozen=True)
class Shuffle(Section):
    """Shuffler between users and server.

    Attributes:
        enabled: False to deliver without a shuffler, and so without amplification.
        minimum-users: Number of distinct users below which a batch is discarded.
        delta: δ of the amplification.
    """

    place: ClassVar[str] = "shuffle"
    enabled: bool = setting(values.flag, True)
    minimum_users: int = setting(values.whole(1), 100)
    delta: float = setting(values.number(above=True, below=1.0), 1e-6)

    @property
    def least(self) -> int:
        """Return the minimum number of users of a batch; 0 without shuffling."""
        return self.minimum_users if self.enabled else 0


@dataclass(frozen=True)
class PolicyConfig(Section):
    """Limits that every client enforces (`client.policy.Policy`).

    Attributes:
        delta: δ at which a release is priced that has no ε without δ.
        embedding: Largest ε of a record by embeddings.
        label: Largest ε of a record by labels.
        text: Largest ε of a record by texts.
        vector: Largest ε of a user by vectors, which cover all records.
        answer: Largest ε of a record by answers.
        total: Largest ε of a user over all records, stages and channels.
        total-delta: δ of the total and of the limits above.
        releases: Largest number of releases of a user.
        accept-unprotected: Channels that are declared public and exposures that are accepted, each with a reason.
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
    accept_unprotected: tuple[str, ...] = setting(values.reasons, ())

    @property
    def declared(self) -> dict[str, str]:
        """Return the channels and exposures that are declared public, each with its reason."""
        return client.Policy(accept_unprotected=self.accept_unprotected).declared


#: Sections by the names of their tables in the file.
SECTIONS: dict[str, type[Section]] = {
    s.place: s for s in (Data, Population, EncoderConfig, TrainingConfig, TextChannel, Shuffle, PolicyConfig)
}
