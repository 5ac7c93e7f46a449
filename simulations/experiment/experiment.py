"""Whole experiment: its tables and arms, their contradictions, and the setup of each arm."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from client.policy import Policy as ClientPolicy
from mechanisms.catalogue import CATALOGUE, admit
from mechanisms.channels import CHANNELS, LABEL, TEXT
from server.protocols import PROTOCOLS
from server.protocols.declaration import Alone, TrainingProtocol
from server.protocols.statistics import SAME
from server.training.descent import DPSGD
from simulations.errors import UserError
from simulations.experiment import values
from simulations.experiment.arm import Arm, ArmSetup, curator_of, released_text, trial_text_of
from simulations.experiment.names import either, key, slug
from simulations.experiment.preflight import check_prices, check_requests
from simulations.experiment.sections import (
    AUTO,
    WAYS,
    Data,
    EncoderConfig,
    PolicyConfig,
    Population,
    Shuffle,
    TextChannel,
    TrainingConfig,
)


@dataclass(frozen=True)
class Experiment:
    """Complete description of a run, without the data.

    Args:
        name: Name of the experiment, in tables and folders.
        seed: Seed of all random draws.
        data: Table [data].
        population: Table [population].
        encoder: Table [encoder].
        training: Table [training].
        text: Table [text].
        shuffle: Table [shuffle].
        policy: Table [policy].
        arms: Tables [[arm]].

    Raises:
        UserError: Parts contradict each other.
    """

    name: str
    seed: int = 1
    data: Data = field(default_factory=Data)
    population: Population = field(default_factory=Population)
    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    text: TextChannel = field(default_factory=TextChannel)
    shuffle: Shuffle = field(default_factory=Shuffle)
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    arms: tuple[Arm, ...] = ()

    def __post_init__(self) -> None:
        values.text(self.name, "name")
        object.__setattr__(self, "seed", values.whole(0, bits=64)(self.seed, "seed"))
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
        if self.data.second_text is not None:
            object.__setattr__(self, "arms", tuple(_with_sides(arm) for arm in self.arms))

    def _check_public(self) -> None:
        public, protocol = self.data.public, self.training.protocol
        if protocol.public_text and public.fraction == 0:
            raise UserError(f'data.public.fraction: must be above 0; the protocol "{protocol}" needs public text')
        partial_labels = protocol.some_labels and public.labels and not self.encoder.fine_tune_on_public
        if public.labelled is not None and not partial_labels:
            raise UserError(
                f"data.public.labelled: goes with training.protocol = {_named(lambda it: it.some_labels)}, "
                "labels = true and encoder.fine-tune-on-public = false; remove it"
            )
        if not public.labels and self.encoder.fine_tune_on_public:
            raise UserError("encoder.fine-tune-on-public: needs public labels, and data.public.labels is false")
        if not public.labels and self.training.maps == "learned":
            raise UserError('training.maps: "learned" needs public labels; use "principal-components"')
        if protocol.releases_text and self.encoder.fine_tune_on_public:
            raise UserError(
                f'encoder.fine-tune-on-public: does not go with training.protocol = "{protocol}", where labelled '
                "public text joins the users', sanitized like theirs; remove it"
            )
        if not protocol.encoder and self.encoder.layers:
            raise UserError(
                f'encoder.layers: does not go with training.protocol = "{protocol}", which trains the last one\'s '
                "states; remove it"
            )
        if self.training.student != SAME and self.encoder.layers not in ((), AUTO):
            raise UserError(
                f"encoder.layers: {list(self.encoder.layers)} are not of {self.training.student}, the student that "
                'training.student names; use "auto"'
            )
        encode = protocol.private and (protocol.releases_embedding or protocol.releases_vector)
        if not encode and self.encoder.precision != "fp32":
            raise UserError(
                f'encoder.precision: "{self.encoder.precision}" is of what users encode, and with training.protocol = '
                f'"{self.training.way}" they encode nothing; remove it'
            )
        if self.text.pretrain and not protocol.releases_text:
            raise UserError(f"text.pretrain: needs training.protocol = {_named(lambda it: it.releases_text)}")
        if self.text.pretrain and public.fraction == 0:
            raise UserError("text.pretrain: needs public text, and data.public.fraction is 0")
        for arm in self.arms if self.text.pretrain else ():
            word = None if arm.text is None else released_text(arm, trial_text_of(arm), "train").word
            if word is not None and word.reads:
                raise UserError(
                    f'arm "{arm.name}": text: {word.name} reads a {", ".join(word.reads)}, and text.pretrain restores '
                    "what a mechanism without one makes of words; remove text.pretrain"
                )

    def _check_users(self) -> None:
        users, stages = self.population.users, self.training.stages
        if self.population.assignment == "column" and self.data.source != "built-in" and not self.data.user:
            raise UserError('population.assignment: "column" needs data.user, the name of the column')
        if self.data.user and self.population.assignment != "column":
            raise UserError(
                f'population.assignment: "{self.population.assignment}" makes users of rows, and data.user says whose '
                "they are; remove one of the two"
            )
        if self.shuffle.enabled and self.shuffle.minimum_users > users // stages:
            raise UserError(
                f"shuffle.minimum-users: {self.shuffle.minimum_users} is more than the {users // stages} "
                f"users of {'a stage' if stages > 1 else 'the population'}, so every batch would be discarded"
            )
        size = self.data.test_size  # of the built-in corpus alone
        if size is not None and self.shuffle.enabled:
            limit = self.data.test_limit or size
            tested = min(size, limit) * self.data.test_repeats
            if self.shuffle.minimum_users > tested:
                key = "data.test-size" if size <= limit else "data.test-limit"
                raise UserError(
                    f"shuffle.minimum-users: {self.shuffle.minimum_users} is more than the {tested} test "
                    f"users, so their batch would be discarded; lower it, or raise {key} or data.test-repeats"
                )

    def _check_arms(self) -> None:
        if not self.arms:
            raise UserError("arm: there is none; add at least one [[arm]] table")
        names: dict[str, str] = {}
        for arm in self.arms:
            if slug(arm.name) in names:
                raise UserError(f'arm "{arm.name}": its name is too close to arm "{names[slug(arm.name)]}"')
            names[slug(arm.name)] = arm.name
            if self.data.second_text is None and (arm.text or {}).get("sides", 1) != 1:
                raise UserError(f'arm "{arm.name}": text.sides: goes with pairs of texts, data.second-text; remove it')
            self._check_beside(arm)
            if arm.centralised:
                continue
            self._check_channels(arm)
            public = self.data.public
            way = self.protocol_of(arm)
            chosen = way.encoder and way.releases_embedding and public.labels and public.labelled is None
            if len(arm.dims) > 1 and not chosen:
                raise UserError(
                    f'arm "{arm.name}": embedding.dim: a list is chosen from by accuracy on public labels; '
                    "give one number here"
                )
            setup = self.setup(arm)
            curator = curator_of(arm)
            if isinstance(curator, DPSGD) and self.population.assignment != "record":
                raise UserError(
                    f'arm "{arm.name}": curator: {curator.name} trains on users of one record each; set '
                    'population.assignment = "record"'
                )
            check_prices(setup)
            check_requests(setup)
            if arm.smallest_crowd is not None and not _in_clear(arm):
                raise UserError(
                    f'arm "{arm.name}": smallest-crowd: nothing leaves in clear beside what is released here, so its '
                    "crowd is all who are delivered; remove it"
                )

    def _check_beside(self, arm: Arm) -> None:
        """Check that an arm's own protocol goes with the experiment's."""
        own, other, public = arm.protocol, self.training.protocol, self.data.public
        if own is None:
            return
        where = f'arm "{arm.name}": protocol'
        if not own.goes_beside(other):
            names = _named(own.goes_beside)
            raise UserError(f'{where}: "{own}" does not go with training.protocol = "{other}", but with {names}')
        if public.labelled is not None and not own.some_labels:
            raise UserError(f'{where}: "{own}" does not go with data.public.labelled; remove it')
        if own.borrows and other.alone is Alone.LABELLED and (not public.labels or public.fraction == 0):
            raise UserError(f'{where}: "{own}" needs labelled public text')
        unnamed = not public.labels and self.data.class_descriptions == "none"
        if own.borrows and other.alone is Alone.DESCRIBED and unnamed:
            raise UserError(f'{where}: "{own}" needs labelled public text or data.class-descriptions')

    def _check_channels(self, arm: Arm) -> None:
        """Check that the channels of an arm are those of its protocol."""
        way = self.protocol_of(arm)
        channels = {name for name in CHANNELS if getattr(arm, name) is not None}
        if extra := min(channels - way.channels, default=None):
            names = _named(lambda it: extra in it.channels)
            raise UserError(
                f'arm "{arm.name}": {key(extra)}: does not go with training.protocol = "{way}", but with {names}; '
                "remove it"
            )
        for name in sorted(way.trains_on - channels - {LABEL.name}):  # labels may be sent in clear
            if name == TEXT.name or not arm.public_only:  # whoever queries a model of texts releases texts
                raise UserError(
                    f'arm "{arm.name}": {key(name)}: is missing; name a mechanism, which training.protocol = "{way}" '
                    "needs"
                )
        if arm.answer is not None and arm.embedding is not None and not way.releases_embedding:
            raise UserError(
                f'arm "{arm.name}": answer: whoever asks releases an answer or an embedding; remove one of the two'
            )
        needs_prior = arm.label is not None and arm.label["mechanism"] == "randomized-response-prior"
        if needs_prior and (arm.embedding is None or way.releases_text) and not arm.public_only:
            raise UserError(f'arm "{arm.name}": label: randomized-response-prior needs an embedding beside it')
        if needs_prior and not way.private:
            raise UserError(
                f'arm "{arm.name}": label: randomized-response-prior takes its prior from a model that users were '
                f'sent, and training.protocol = "{way}" sends none; use randomized-response'
            )

    def protocol_of(self, arm: Arm) -> TrainingProtocol:
        """Return the protocol that trains the arm; a public-only arm runs the experiment's without users."""
        own = arm.protocol
        return self.training.protocol if own is None or own.borrows else own

    def setup(self, arm: Arm) -> ArmSetup:
        """Return an arm with what the experiment settles for it."""
        people, protocol = self.population, self.protocol_of(arm)
        stages = self.training.stages if protocol is self.training.protocol else 1
        return ArmSetup(
            arm,
            protocol,
            self._policy(arm),
            self.policy.declared,
            self.shuffle,
            users=people.users,
            answering=int(people.users * (1 - people.dropout) * (1 - people.late) + 1e-9) // stages,
            stages=stages,
            epochs=self.training.epochs,
            classes=self.data.classes,
            shared_codes=self.data.elsewhere and not self.training.self_training,
            records=1 if people.assignment == "record" else None,
            test_records=1 if self.data.user is None else None,
        )

    @property
    def setups(self) -> tuple[ArmSetup, ...]:
        """Return each arm with what the experiment settles for it."""
        return tuple(map(self.setup, self.arms))

    def allowed(self) -> dict[str, Any]:
        """Return what the clients' policy allows one user, and the smallest batch of the shuffler, JSON-ready."""
        policy = self.policy
        limits = {name: getattr(policy, name) for name in ("text", "embedding", "label", "answer")}
        limits["vector"] = policy.statistic
        return {
            "total_epsilon": policy.total,
            "total_delta": policy.total_delta,
            "minimum_users": self.shuffle.least,
            "releases": policy.releases,
            "unprotected": list(policy.accept_unprotected),
            "limits": [{"channel": name, "epsilon": limit} for name, limit in limits.items() if limit],
        }

    def _policy(self, arm: Arm) -> ClientPolicy:
        """Return the policy of an arm's clients: the experiment's, or, in a reference arm, one that accepts all."""
        policy, accepted = self.policy, self.policy.accept_unprotected
        limits = {name: getattr(policy, name) for name in ("embedding", "label", "text", "statistic", "answer")}
        bounds: dict[str, Any] = {
            "total": policy.total,
            "total_delta": policy.total_delta,
            "minimum_users": self.shuffle.least,
        }
        if arm.reference:
            limits, bounds = dict.fromkeys(limits, math.inf), {}
            accepted += tuple(f"{channel}: a reference arm, not private" for channel in CHANNELS)
        return ClientPolicy(
            delta=policy.delta,
            releases=policy.releases,
            mechanisms=self._mechanisms,
            accept_unprotected=accepted,
            **limits,
            **bounds,
        )

    @property
    def _mechanisms(self) -> tuple[str, ...]:
        """Return the mechanisms that requests may name: the whole catalogue, and external ones that arms name."""
        allowed = dict.fromkeys(CATALOGUE)
        for arm in self.arms:
            for spec in (getattr(arm, channel) for channel in CHANNELS):
                with suppress(ValueError):  # of a mechanism that is not there: who builds it says so
                    allowed |= {} if spec is None else {admit(spec["mechanism"]).name: None}
        return tuple(allowed)


def _named(fits: Callable[[TrainingProtocol], bool]) -> str:
    """Return the names of the experiments' protocols that fit, for an error message."""
    return either(name for name in WAYS if fits(PROTOCOLS[name]))


def _in_clear(arm: Arm) -> bool:
    """Return True if something in clear splits an arm's users into crowds: labels, or exposures of texts."""
    labels = arm.label is None and arm.statistic is None and not arm.public_only
    return labels or (arm.text is not None and bool(trial_text_of(arm).guarantee.exposes))


def _with_sides(arm: Arm) -> Arm:
    """Return the arm for pairs of texts: they are released as two, unless `sides = 1` joins them."""
    return arm if arm.text is None else replace(arm, text={**arm.text, "sides": arm.text.get("sides", 2)})
