"""Protocol composed of requests: its ladder, rung by rung, and its form as an experiment and as a command."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mechanisms.accounting.ladder import ladder_of
from mechanisms.messages.questions import EmbeddingQuestion, LabelQuestion, Question, TextQuestion
from mechanisms.vocabulary import Vocabulary
from server.protocols import PROTOCOLS
from simulations.corpora.builtin import LIMIT
from simulations.errors import UserError
from simulations.experiment import from_table, to_toml
from simulations.experiment.names import key
from sottovoce.explore.settings import MECHANISMS, SLIDERS, Settings
from sottovoce.explore.world import kind_of

_PUBLIC, _TEST = 1000, 1000
_FILE = "explored.toml"


@dataclass(frozen=True)
class Protocol:
    """Requests of different channels for every record of a user, or the one user vector.

    Rounds, records, users and δ are those of the last settings.

    Args:
        stack: Settings of each request.
    """

    stack: tuple[Settings, ...]

    @classmethod
    def of(cls, values: Any) -> Protocol:
        """Return the protocol in a JSON value.

        Raises:
            UserError: The requests do not go together. The message is one line.
        """
        if not isinstance(values, list) or not 1 <= len(values) <= len(MECHANISMS):
            raise UserError(f"protocol: must be a list of 1 to {len(MECHANISMS)} questions")
        stack = tuple(Settings.of(value) for value in values)
        kinds = [kind_of(settings) for settings in stack]
        if len(set(kinds)) < len(kinds):
            raise UserError("protocol: a channel is asked for twice in one round; raise the number of rounds")
        if len(kinds) > 1 and any(kind.alone for kind in kinds):
            raise UserError("protocol: a statistic holds all that a user releases in a round; nothing goes beside it")
        if len({s.label_epsilon for s in stack if s.label_epsilon is not None}) + (LabelQuestion in kinds) > 1:
            raise UserError("protocol: the label is asked for twice; leave it out beside the embedding or the text")
        last = stack[-1]
        same = {"users": last.users, "delta": last.delta, "rounds": last.rounds, "records": last.records}
        return cls(tuple(replace(settings, **same) for settings in stack))

    @property
    def last(self) -> Settings:
        """Return the last settings."""
        return self.stack[-1]

    def asked(self, kind: type[Question]) -> Settings | None:
        """Return the settings of a class of questions; None if there are none."""
        return next((s for s in self.stack if kind_of(s) is kind), None)

    @property
    def label_epsilon(self) -> float | None:
        """Return ε of the label, by itself or beside another channel; None without a label."""
        alone = self.asked(LabelQuestion)
        beside = (s.label_epsilon for s in self.stack if s.label_epsilon is not None)
        return alone.epsilon if alone is not None else next(beside, None)

    def rungs(self, classes: int, vocabulary: Vocabulary | None, declared: Mapping[str, str]) -> list[dict[str, Any]]:
        """Return the ladder, as `sottovoce budget ladder` prints it.

        Args:
            classes: Number of classes.
            vocabulary: Vocabulary of texts, if it is loaded.
            declared: Exposures declared public, with their reasons.
        """
        made: dict[str, Any] = {}
        for settings in self.stack:
            for mechanism in settings.mechanisms(classes, vocabulary):
                made[mechanism.channel] = mechanism
        text, last = made.get(TextQuestion.channel), self.last
        public = {} if text is None else {n: why for n, why in declared.items() if n in text.guarantee.exposes}
        found = ladder_of(
            list(made.values()),
            records=last.records,
            stages=last.rounds,
            users=last.users,
            delta=last.delta,
            public=public,
        )
        return [rung.to_dict() for rung in found]

    def command(self, classes: int) -> str:
        """Return the command line that prints this ladder; a text, or more parameters, need the saved experiment."""
        if self.asked(TextQuestion) is not None or self._first.more:
            return f"sottovoce budget ladder {_FILE}"
        first, last = self._first, self.last
        size = {"dim": first.size(classes), "classes": classes if kind_of(first) is LabelQuestion else None}
        named = [f"{k}={v}" for k, v in ({"epsilon": first.epsilon} | size).items() if v is not None]
        given = [("mechanism", f"{first.mechanism}:{','.join(named)}")]
        if not kind_of(first).reads_labels and self.label_epsilon is not None:
            given.append(("mechanism", f"randomized-response:epsilon={self.label_epsilon},classes={classes}"))
        numbers = {"users": last.users, "records": last.records, "stages": last.rounds, "delta": last.delta}
        return "sottovoce budget ladder " + " ".join(f"--{name} {value}" for name, value in [*given, *numbers.items()])

    def experiment(self, base: Mapping[str, Any], declared: Mapping[str, str], worst: Mapping[str, float]) -> str:
        """Return the protocol as an experiment on the page's data, in TOML for `simulate`.

        Args:
            base: Document of a run's experiment; empty for the built-in reviews.
            declared: Exposures declared public, with their reasons.
            worst: Worst case of each channel.

        Raises:
            UserError: An experiment has no such protocol.
        """
        if self.asked(EmbeddingQuestion) is not None and self.asked(TextQuestion) is not None:
            raise UserError("an experiment releases texts or embeddings, not both of one record; leave one out")
        if kind_of(self._first) is LabelQuestion:
            raise UserError("an experiment trains a model, and a label alone goes with nothing; add another question")
        last, arm = self.last, self._arm()
        table = {key: dict(base[key]) for key in ("data", "population", "encoder") if key in base} or {
            "data": {"source": "built-in", "task": "sentiment", "public-size": _PUBLIC, "test-size": _TEST}
        }
        if not base and last.users > LIMIT - _PUBLIC - _TEST:
            raise UserError(f"the built-in reviews are of at most {LIMIT - _PUBLIC - _TEST:,} users; choose fewer")
        least = base.get("shuffle", {}).get("minimum-users", _TEST // 2)
        table |= {
            "name": "explored",
            "population": table.get("population", {}) | {"users": last.users},
            "training": {"protocol": _trained_on(self._first.channel)},
            "shuffle": {"minimum-users": max(1, min(last.users // 2, least)), "delta": last.delta},
            "policy": self._policy(declared, worst),
            "arm": [arm],
        }
        head = "# Composed on the page of `sottovoce explore`. What it costs: sottovoce budget ladder THIS_FILE\n"
        if last.rounds > 1 or last.records > 1:
            head += (
                f"# The page's ladder is of {last.rounds} rounds and {last.records} records a user; an experiment asks "
                "each record once.\n"
            )
        return head + to_toml(from_table(table))

    @property
    def _first(self) -> Settings:
        """Return the request that is not for the label alone, if there is one."""
        return next((s for s in self.stack if kind_of(s) is not LabelQuestion), self.stack[0])

    def _arm(self) -> dict[str, Any]:
        first = self._first
        spec = {"mechanism": first.mechanism, "epsilon": first.epsilon, "dim": first.dim, **dict(first.more)}
        if SLIDERS[first.mechanism].calibrated:
            spec["delta"] = first.delta
        arm: dict[str, Any] = {"name": f"{first.mechanism}, ε = {first.epsilon:g}"}
        arm[key(first.channel)] = first.text if kind_of(first) is TextQuestion else spec
        if self.label_epsilon is not None:
            arm[LabelQuestion.channel] = {"mechanism": "randomized-response", "epsilon": self.label_epsilon}
        return arm

    def _policy(self, declared: Mapping[str, str], worst: Mapping[str, float]) -> dict[str, Any]:
        if infinite := [channel for channel, epsilon in worst.items() if math.isinf(epsilon)]:
            raise UserError(f"{infinite[0]}: something leaves without protection, which users of a study would refuse")
        limits: dict[str, Any] = {key(channel): _up(epsilon) for channel, epsilon in worst.items()}
        if SLIDERS[self._first.mechanism].calibrated:
            limits["delta"] = self.last.delta
        public = [f"{name}: {why}" for name, why in declared.items()] if self.asked(TextQuestion) is not None else []
        if self.label_epsilon is None and not kind_of(self._first).reads_labels:
            public.append("label: nobody has said on the page how it leaves")
        return limits | ({"accept-unprotected": public} if public else {})


def _trained_on(channel: str) -> str:
    """Return the first protocol whose training users release a channel."""
    return next(name for name, protocol in PROTOCOLS.items() if channel in protocol.trains_on and protocol.private)


def _up(value: float) -> float:
    """Return the value rounded up to three decimals: a limit that the release just satisfies."""
    return math.ceil(value * 1000 + 1e-6) / 1000


def worst_cases(made: Sequence[Any], declared: Mapping[str, str], delta: float = 0.0) -> dict[str, float]:
    """Return the worst-case cost of one release by channel, without declared exposures; of Gaussian noise, at δ.

    Args:
        made: Mechanisms.
        declared: Exposures declared public, with their reasons.
        delta: δ.
    """
    return {m.channel: m.guarantee.worst_case(delta, declared=declared) for m in made}
