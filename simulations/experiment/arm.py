"""Arm of an experiment: its table in the file, the mechanisms that this table describes, and its setup."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any, ClassVar

import numpy as np

from client.policy import Policy
from mechanisms import catalogue
from mechanisms.channels import ANSWER, EMBEDDING, LABEL, TEXT, VECTOR
from mechanisms.gaussian import Gaussian
from mechanisms.mechanism import Mechanism
from mechanisms.privunit import PrivUnit
from mechanisms.vocabulary import TAGS, Vocabulary
from mechanisms.words.tables import Verbatim
from mechanisms.words.text import KEPT, TextMechanism
from server.protocols import PROTOCOLS
from server.protocols.declaration import PUBLIC_ONLY, TrainingProtocol
from server.training.descent import DPSGD
from simulations.errors import UserError
from simulations.experiment import values
from simulations.experiment.names import either, key, slug
from simulations.experiment.sections import Section, Shuffle, setting

#: Value of `perturb`: the texts of all users are perturbed.
BOTH = "both"
#: Default m' of an arm: the paper's choice for all its main results (Du et al. 2023, section 4.2).
DEFAULT_DIM = 16
_TABLES = ("text", "embedding", "statistic", "label", "answer", "curator")
#: Noise of a trusted server that an arm may name.
CURATORS = (DPSGD.name, Gaussian.name)
#: Key of an arm's vector: the shuffled ε of a user.
CENTRAL = "central_epsilon"
#: Description of a language model for pricing a mechanism without drawing from it. The price depends neither on the
#: clipping bounds of logits nor on the width of states.
ANY_MODEL = {"low": 0.0, "high": 1.0}


@dataclass(frozen=True)
class Arm(Section):
    """One line of the results: the mechanisms of its users' releases.

    A mechanism is a table with its name, its epsilon and its other parameters. Without label, labels are sent in clear.

    Attributes:
        name: Name in tables and folders.
        embedding: Mechanism of embeddings. `dim` is m', the number of released coordinates; of a list, the best on
            public data is taken.
        label: Mechanism of labels.
        text: Mechanism of texts. `sides`: 2 sanitizes the texts of a pair one by one, 1 joins them.
        vector: Mechanism of user vectors. `dim` is d, the number of features, which is chosen where it is not given.
        answer: Mechanism of the class that a device finds itself. Test users release it in place of an embedding.
        curator: Noise of a trusted server in a reference arm, with epsilon and delta: on the sum of the users' vectors
            in clear ("gaussian"), or in training on them ("dp-sgd").
        perturb: Users whose texts are sanitized: training users ("train"), test users ("test"), or both. The texts of
            the others are sent in clear, so such an arm is a reference.
        reference: True for an arm without privacy, whose users accept anything.
        smallest-crowd: Least number of delivered users, as somebody who knows assures, that agree with any one of them
            in all that is sent in clear. Without it nothing is amplified before a run. After a run labels in clear are
            counted, and it stands for what texts expose.
        protocol: "public-only" trains on no user, "release-once" and "sanitized-text" are comparisons beside protocol
            "statistics", and "centralised" is a reference arm whose trusted server has all texts and labels in clear.
    """

    place: ClassVar[str] = "arm"
    name: str = setting(values.text, "")
    embedding: dict[str, Any] | None = setting(values.mechanism)  # noqa: RUF009 - a field, like its neighbours
    label: dict[str, Any] | None = setting(values.mechanism)  # noqa: RUF009
    text: dict[str, Any] | None = setting(values.mechanism)  # noqa: RUF009
    statistic: dict[str, Any] | None = setting(values.mechanism)  # noqa: RUF009
    answer: dict[str, Any] | None = setting(values.mechanism)  # noqa: RUF009
    curator: dict[str, Any] | None = setting(values.mechanism)  # noqa: RUF009
    perturb: str = setting(values.choice(BOTH, "train", "test"), BOTH)
    reference: bool = setting(values.flag, False)
    smallest_crowd: int | None = setting(values.whole(1))
    way: str | None = setting(values.choice(*(name for name, protocol in PROTOCOLS.items() if protocol.beside)))

    def _where(self, name: str) -> str:
        return f'arm "{self.name}": {key(name)}'

    def __post_init__(self) -> None:
        super().__post_init__()
        if not slug(self.name):
            raise UserError(f'arm "{self.name}": name: must contain a letter or a digit')
        if self.protocol is not None and not self.protocol.private and not self.reference:
            raise UserError(f'{self._where("way")}: "{self.way}" is not private; write reference = true beside it')
        if self.centralised:
            if names := [name for name in _TABLES if getattr(self, name) is not None]:
                raise UserError(
                    f'{self._where(names[0])}: a "{self.way}" arm releases nothing: its server has the texts; remove it'
                )
            return
        for taught in (LABEL.name, VECTOR.name):
            if self.public_only and getattr(self, taught) is not None:
                raise UserError(
                    f'{self._where(taught)}: a "{PUBLIC_ONLY}" arm takes no {key(taught)} from users; remove it'
                )
        if not self.public_only and self.embedding is None and self.text is None and self.statistic is None:
            raise UserError(f'{self._where("embedding")}: is missing; name a mechanism, or protocol = "{PUBLIC_ONLY}"')
        if self.embedding and self.embedding["mechanism"] != "identity" and "dim" not in self.embedding:
            raise UserError(f"{self._where('embedding')}.dim: is missing; give m', the dimension of what is sent")
        if self.perturb != BOTH:
            self._check_perturb()
        if isinstance((self.statistic or {}).get("dim"), list):
            raise UserError(f"{self._where('statistic')}.dim: give one number of features, or none to have it chosen")

    def _check_perturb(self) -> None:
        if self.text is None or self.embedding is not None or self.public_only:
            raise UserError(
                f"{self._where('perturb')}: goes with users who teach by texts, and ask by texts; remove it"
            )
        if not self.reference:
            whose = "training users" if self.perturb == "test" else "users who ask"
            raise UserError(
                f'{self._where("perturb")}: "{self.perturb}" has the texts of {whose} leave in clear, which is not '
                "private; write reference = true beside it"
            )

    @property
    def protocol(self) -> TrainingProtocol | None:
        """Return the arm's own protocol; None if it has the experiment's."""
        return None if self.way is None else PROTOCOLS[self.way]

    @property
    def public_only(self) -> bool:
        """Return True if no training user takes part."""
        return self.protocol is not None and self.protocol.borrows

    @property
    def centralised(self) -> bool:
        """Return True if a trusted server has all texts and labels in clear."""
        return self.protocol is not None and not self.protocol.private

    @property
    def features(self) -> int | None:
        """Return d of the arm's user vector; None if it is chosen on public text before the first request."""
        return (self.statistic or {}).get("dim")

    @property
    def dims(self) -> tuple[int, ...]:
        """Return the candidates for m'; none if the arm leaves it to the run (identity, public-only)."""
        dim = (self.embedding or {}).get("dim", [])
        return tuple(dim) if isinstance(dim, list) else (dim,)

    @property
    def parameters(self) -> dict[str, Any]:
        """Return all entries of the arm's tables by "table.key": "embedding.dim", "statistic.cap_probability"."""
        tables = {name: getattr(self, name) or {} for name in _TABLES}
        return {f"{name}.{key}": value for name, table in tables.items() for key, value in table.items()}


def embedding_mechanism(spec: dict[str, Any], dim: int) -> Mechanism:
    """Return the embedding mechanism of an arm, for one of its m'.

    Raises:
        ValueError: `catalogue.build` raises it.
    """
    return catalogue.build({k: v for k, v in spec.items() if k != "dim"}, channel=EMBEDDING.name, dim=dim)


def text_mechanism(
    spec: dict[str, Any], vocabulary: Vocabulary, *, model: Mapping[str, Any] | None = None
) -> TextMechanism:
    """Return the text mechanism of an arm.

    Args:
        spec: The arm's text table.
        vocabulary: Vocabulary of the mechanism.
        model: Description of a language model (`client.models.language_models.said`), for the parameters of the
            mechanism that the arm does not name.

    Raises:
        ValueError: `catalogue.build` raises it.
    """
    takes = {f.name for f in fields(catalogue.admit(spec["mechanism"]))}
    arguments = {name: value for name, value in (model or {}).items() if name in takes}
    built: TextMechanism = catalogue.build(arguments | spec, channel=TEXT.name, vocabulary=vocabulary)
    return built


def released_text(arm: Arm, text: TextMechanism, split: str) -> TextMechanism:
    """Return the mechanism by which an arm's users of a split ("train", "test") release texts.

    It is the arm's mechanism. If the arm perturbs only the other split, it is none, at ε = ∞: the words of the
    vocabulary unchanged, and as many as there are.
    """
    if arm.perturb in (BOTH, split):
        return text
    return replace(text, word=Verbatim(text.vocabulary), length=KEPT)


@contextmanager
def _table(arm: Arm, channel: str) -> Iterator[None]:
    """Name the arm and its table in an error of the catalogue; some of these already name the channel."""
    where = f'arm "{arm.name}": {key(channel)}'
    if channel not in (EMBEDDING.name, VECTOR.name) and "dim" in (getattr(arm, channel) or {}):
        raise UserError(f"{where}.dim: applies to embeddings only; remove it")
    try:
        yield
    except ValueError as error:
        raise UserError(f"{where}: {str(error).removeprefix(f'{channel}: ')}") from error


def embeddings_of(arm: Arm) -> list[Mechanism]:
    """Return the mechanism of an arm's embeddings for each candidate m'; none if it releases none.

    Raises:
        UserError: The arm's parameters do not fit the mechanism.
    """
    if arm.embedding is None:
        return []
    with _table(arm, EMBEDDING.name):
        return [embedding_mechanism(arm.embedding, dim) for dim in arm.dims or (DEFAULT_DIM,)]


def label_of(arm: Arm, classes: int) -> Mechanism:
    """Return the mechanism of an arm's labels, identity if it names none.

    Raises:
        UserError: The arm's parameters do not fit the mechanism, or it has no log_prob.
    """
    with _table(arm, LABEL.name):
        built: Mechanism = catalogue.build(arm.label or {"mechanism": "identity"}, channel=LABEL.name, classes=classes)
    if arm.label is not None and built.name != "identity" and not hasattr(built, "log_prob"):
        raise UserError(f'arm "{arm.name}": label: {built.name} has no log_prob, by which released labels are read')
    return built


def answer_of(arm: Arm, classes: int) -> Mechanism | None:
    """Return the mechanism of the answers of an arm's test users; None if they release none.

    Raises:
        UserError: The arm's parameters do not fit the mechanism.
    """
    if arm.answer is None:
        return None
    with _table(arm, ANSWER.name):
        built: Mechanism = catalogue.build(arm.answer, channel=ANSWER.name, classes=classes)
    return built


def curator_of(arm: Arm) -> Gaussian | DPSGD | None:
    """Return the noise that a trusted curator adds to the sum of an arm's vectors, or its training of a head on them.

    It is None if the arm has no curator.

    Raises:
        UserError: The arm's curator table is not valid.
    """
    if arm.curator is None:
        return None
    where = f'arm "{arm.name}": curator'
    if not arm.reference or (arm.statistic or {}).get("mechanism") != "identity":
        raise UserError(f'{where}: stands with reference = true and vector = {{ mechanism = "identity" }}')
    if arm.curator["mechanism"] not in CURATORS or not {"epsilon", "delta"} <= arm.curator.keys():
        raise UserError(
            f"{where}: must be one of {either(CURATORS)} with epsilon and delta, as "
            '{ mechanism = "gaussian", epsilon = 1.0, delta = 1e-6 }'
        )
    spec = dict(arm.curator)
    trains = spec["mechanism"] == DPSGD.name
    names = [f.name for f in fields(DPSGD)] if trains else ["epsilon", "delta"]
    try:
        if unknown := spec.keys() - {"mechanism", *names}:
            raise ValueError(f"{spec['mechanism']}: unknown parameter {min(unknown)}; known are {', '.join(names)}")
        if trains:
            return DPSGD(**{name: value for name, value in spec.items() if name != "mechanism"})
        noise: Gaussian = catalogue.build(spec, channel=EMBEDDING.name, dim=1)
        return noise
    except ValueError as error:
        raise UserError(f"{where}: {error}") from error


def _planned(arm: Arm, spec: dict[str, Any], users: int | None, delta: float) -> dict[str, Any]:
    """Return the table with the ε0 and p of least error for the arm's central ε. They hardly depend on D."""
    from mechanisms.accounting.planner import privunit_of  # takes its time to load

    where, central = f'arm "{arm.name}": vector.{key(CENTRAL)}', spec[CENTRAL]
    if spec["mechanism"] != PrivUnit.name or {"epsilon", "cap_probability"} & spec.keys():
        raise UserError(f'{where}: stands in place of epsilon and cap_probability, with mechanism = "privunit" alone')
    if users is None:
        raise UserError(f"{where}: needs the shuffler; set shuffle.enabled = true, or name epsilon")
    try:
        best = privunit_of(central, delta, users)
    except ValueError as error:
        raise UserError(f"{where}: {error}") from error
    if best is None:
        raise UserError(f"{where}: nothing fits {central:g} among {users:,} users; name a larger one, or epsilon")
    return {"mechanism": PrivUnit.name, "epsilon": best.epsilon, "cap_probability": best.cap_probability}


def trial_text_of(arm: Arm) -> TextMechanism:
    """Return an arm's text mechanism on an artificial vocabulary, for its parameters and exposures, not for its ε.

    Raises:
        UserError: The arm's parameters do not fit the mechanism.
    """
    assert arm.text is not None
    with _table(arm, TEXT.name):
        return text_mechanism(arm.text, stand_in(), model=ANY_MODEL)


@cache
def stand_in() -> Vocabulary:
    """Return an artificial vocabulary with all that a mechanism may need: all kinds of words, counts and tags."""
    rng = np.random.default_rng(0)
    words = ("the", ".", "7", *(f"word{i}" for i in range(253)))
    n = len(words)
    vectors = rng.normal(size=(n, 8)).astype(np.float32)
    return Vocabulary(words, vectors, np.arange(1, n + 1), (np.arange(n) % len(TAGS)).astype(np.int8))


@dataclass(frozen=True)
class ArmSetup:
    """Arm with what its experiment settles for it.

    Args:
        arm: The arm.
        protocol: Training protocol of its users.
        policy: Policy of its clients.
        declared: Channels and exposures that the experiment declares public, each with its reason.
        shuffle: Settings of the shuffler.
        users: Number of training users.
        answering: Number of users who are expected to answer together: all, or those of one stage.
        stages: Number of stages in which users release, each user in one of them.
        epochs: Epochs of a training end to end.
        classes: Number of classes that the file names.
        shared_codes: True if user vectors also encode where the users' texts lie, beside public text of another domain.
        records: Number of records of a training user; None if the data tell.
        test_records: Number of records of a test user; None if the data tell.
    """

    arm: Arm
    protocol: TrainingProtocol
    policy: Policy
    declared: Mapping[str, str]
    shuffle: Shuffle
    users: int
    answering: int
    stages: int
    epochs: int
    classes: int
    shared_codes: bool
    records: int | None
    test_records: int | None

    @property
    def way(self) -> str:
        """Return the name of the arm's protocol; "public-only" and "centralised" arms have their own."""
        return self.arm.way or self.protocol.name

    @property
    def shuffled(self) -> bool:
        """Return True if the releases of the arm's users are shuffled."""
        return self.shuffle.enabled and self.protocol.private

    @property
    def statistic(self) -> Callable[[int], Mechanism] | None:
        """Return a function from the number D of coordinates to the mechanism of the arm's user vectors, or None.

        Raises:
            UserError: The arm's parameters do not fit the mechanism. It is raised now, not when the function is called.
        """
        if self.arm.statistic is None:
            return None
        spec = {k: v for k, v in self.arm.statistic.items() if k != "dim"}
        if CENTRAL in spec:
            users = self.answering if self.shuffle.enabled else None
            spec = _planned(self.arm, spec, users, self.shuffle.delta)

        def built(size: int) -> Mechanism:
            mechanism: Mechanism = catalogue.build(spec, channel=VECTOR.name, dim=size)
            return mechanism

        with _table(self.arm, VECTOR.name):
            built(2)
        return built
