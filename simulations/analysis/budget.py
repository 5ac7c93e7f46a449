"""Privacy losses without a run: of one release, of an experiment, and of a text by the ε of its words."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

from client.models import language_models
from client.models.vocabulary import load
from client.policy import Policy
from mechanisms import catalogue, checks
from mechanisms.accounting.compose import compose
from mechanisms.accounting.ladder import ladder
from mechanisms.accounting.shuffle import amplify
from mechanisms.channels import EMBEDDING, LABEL
from mechanisms.facts import AboutWords, facts_of
from mechanisms.mechanism import Mechanism, parameters
from mechanisms.mechanism_text import read_mechanism
from mechanisms.words.language_model import FromLogits, OfAnyVocabulary
from mechanisms.words.text import KEPT, TextMechanism
from simulations.artifacts.generator import generator_folder, public_sentences
from simulations.artifacts.text_channel import rewriter_to_price
from simulations.artifacts.vocabulary import vocabulary_folder
from simulations.corpora.parts import load_split
from simulations.errors import UserError
from simulations.experiment import ANY_MODEL, Experiment, stand_in, text_mechanism
from simulations.experiment.ladder import PAPER, of_experiment

#: Methods of composition (`mechanisms.accounting.compose`).
METHODS = ("basic", "advanced", "renyi", "pld")


@dataclass(frozen=True)
class Release:
    """One linked release of a record: a mechanism with its parameters, and an optional label.

    Attributes:
        mechanism: Name and parameters, as purkayastha:epsilon=4,dim=16 (`read_mechanism`).
        classes: Number of classes of a label.
        label_epsilon: ε of the label by randomized response; None if no label is released.
        delta: δ at which `sigma` of Gaussian noise follows from `epsilon`.
        dim: Number of coordinates, if the parameters do not give it.
    """

    mechanism: str
    classes: int = 2
    label_epsilon: float | None = None
    delta: float = 1e-6
    dim: int | None = None

    def mechanisms(self) -> list[Mechanism]:
        """Return the mechanism of the release, then the mechanism of its label.

        Raises:
            UserError: Two labels are released.
            ValueError: The parameters are invalid (`catalogue.build`).
        """
        spec = read_mechanism(self.mechanism)
        name = spec["mechanism"]
        channel = EMBEDDING.name if name == "identity" else catalogue.admit(name).channel
        if name == "gaussian" and "epsilon" in spec and "sigma" not in spec:
            spec = {"delta": self.delta} | spec
        released = [catalogue.build(spec, channel=channel, dim=self.dim, classes=self.classes)]
        if self.label_epsilon is not None:
            if channel == LABEL.name:
                raise UserError(f"--label-epsilon: {name} is a label mechanism already; leave it out")
            label = {"mechanism": "randomized-response", "epsilon": self.label_epsilon}
            released.append(catalogue.build(label, channel=LABEL.name, classes=self.classes))
        return released

    def with_losses(self) -> list[Mechanism]:
        """Return the mechanisms, all with privacy loss distributions.

        Raises:
            UserError: A mechanism has none.
        """
        if read_mechanism(self.mechanism)["mechanism"] == "identity":
            raise UserError("identity: has no privacy loss distribution: it passes values through, so ε = ∞ at every δ")
        return self.mechanisms()


#: Channels that `ladder_of_release` knows.
_OF_A_LADDER = ("embedding", "label", "statistic", "answer")


def local(released: Sequence[Mechanism], *, times: int, delta: float) -> dict[str, Any]:
    """Return ε at δ of repeated releases of one user without a shuffler.

    The keys are "mechanisms", "times", "delta", "worst_case", "epsilon", "methods" and "sampler_delta". "methods" has ε
    by each of METHODS, and "epsilon" is the least of them.
    """
    methods = {method: composed(released, times=times, delta=delta, method=method) for method in METHODS}
    return {
        "mechanisms": [described(mechanism) for mechanism in released],
        "times": times,
        "delta": delta,
        "worst_case": sum(m.guarantee.worst_case() for m in released) * times,
        "epsilon": min(methods.values()),
        "methods": methods,
        "sampler_delta": sum(m.guarantee.numeric_delta for m in released) * times,
    }


def composed(released: Sequence[Mechanism], *, times: int, delta: float, method: str) -> float:
    """Return ε at δ of `times` releases by each of the mechanisms, by one of METHODS."""
    # densities that are off by e^(±numeric) raise δ by that factor
    least = delta * math.exp(-times * math.fsum(m.guarantee.numeric_epsilon for m in released))
    return compose([(mechanism, times) for mechanism in released], delta=least, method=method).epsilon


def shuffled(released: Sequence[Mechanism], *, users: int, honest: float, delta: float) -> dict[str, Any]:
    """Return the amplification among honest users (`amplify`), with "users", "honest" and "crowd".

    Dishonest users may tell the server what they sent. So only a share `honest` of the delivered users, the target
    included, hides the target.

    Raises:
        UserError: The share is out of range.
    """
    users = checks.integer("budget shuffle", "--users", users, 1, 10**12)
    if not 0 < honest <= 1:
        raise UserError(f"--honest: must be above 0 and at most 1, got {honest:g}")
    crowd = max(1, math.floor(users * honest + 1e-9))
    answer = amplify(released, users=crowd, delta=delta).to_dict()
    return answer | {"users": users, "honest": honest, "crowd": crowd}


def ladder_of_release(
    released: Sequence[Mechanism], *, users: int | None, records: int, stages: int, delta: float
) -> dict[str, Any]:
    """Return "delta", "users" and "ladder", with rungs as dicts (`mechanisms.accounting.ladder`).

    Raises:
        UserError: A mechanism is of a channel that this ladder does not cover.
    """
    channels = {mechanism.channel: mechanism for mechanism in released}
    if other := next((m for m in released if m.channel not in _OF_A_LADDER or m is not channels[m.channel]), None):
        raise UserError(
            f"budget ladder: {other.name}: no ladder is of a {other.channel} by it beside what else is named; "
            "`budget local` says what it costs"
        )
    rungs = ladder(
        channels.get("embedding"),
        channels.get("label"),
        statistic=channels.get("statistic"),
        answer=channels.get("answer"),
        records=records,
        stages=stages,
        users=users,
        delta=delta,
    )
    return {"delta": delta, "users": users, "ladder": [rung.to_dict() for rung in rungs]}


def ladders_of_experiment(experiment: Experiment, *, records: int | None, classes: int | None) -> dict[str, Any]:
    """Return "name", "way", "delta" and "arms", as `simulations.experiment.ladder.of_experiment` does.

    "way_sentence" is added if the protocol is not private. The data are read if an arm releases texts.

    Raises:
        UserError: The experiment or its data cannot be used.
    """
    protocol = experiment.training.protocol
    arms = of_experiment(experiment, texts=texts_to_price(experiment), records=records, classes=classes)
    ladders = {"name": experiment.name, "way": protocol.name, "delta": experiment.shuffle.delta, "arms": arms}
    return ladders | ({"way_sentence": f"{PAPER}: NOT private"} if not protocol.private else {})


def texts_to_price(experiment: Experiment) -> dict[str, TextMechanism]:
    """Return the text mechanism of each arm that releases texts, by the arm's name, for prices only.

    The mechanisms must not be drawn from. The data are read only if such an arm exists.

    Raises:
        UserError: The experiment or its data cannot be used.
    """
    arms, seed = [arm for arm in experiment.arms if arm.text is not None], experiment.seed
    if not arms:
        return {}
    public = load_split(experiment.data, experiment.population, seed)[0].public
    rewriter = rewriter_to_price(
        experiment.setups, experiment.text, public.texts, model=experiment.encoder.model, seed=seed
    )
    assert rewriter is not None  # some arm releases texts
    return {arm.name: rewriter.mechanism(arm) for arm in arms}


@dataclass(frozen=True)
class TextToPlan:
    """Text of a plan, without its word mechanism; None stands for the default.

    Attributes:
        tokens: Maximum number of tokens.
        length: ε of the length, or KEPT.
        words: Word vectors, a file or a checkpoint.
        generator: Model of a mechanism that generates. Without `words`, its own tokens are the vocabulary.
        accept_unprotected: Exposures that are declared public, as in a client's policy.
        crowd: Least number of delivered users who agree in these exposures.
    """

    tokens: int | None = None
    length: str | None = None
    words: str | None = None
    generator: str | None = None
    accept_unprotected: Sequence[str] | None = None
    crowd: int | None = None

    @property
    def public(self) -> dict[str, str]:
        """Return the exposures that are declared public, each with its reason.

        Raises:
            ValueError: No client's policy accepts one of them.
        """
        return Policy(accept_unprotected=tuple(self.accept_unprotected or ())).declared

    def by_epsilon(self, mechanism: str, *, delta: float) -> tuple[Callable[[float], TextMechanism], str]:
        """Return the text as a function of the ε of its word mechanism, and its vocabulary in words.

        The ε is at `delta` if the mechanism needs one. Other parameters are the catalogue's defaults. The price of a
        draw depends on the size of the vocabulary.

        Raises:
            UserError: An option does not fit the mechanism.
        """
        spec: dict[str, Any] = {"mechanism": mechanism} | ({} if self.tokens is None else {"tokens": self.tokens})
        if self.length is not None:
            try:
                spec["length"] = self.length if self.length == KEPT else float(self.length)
            except ValueError:
                raise UserError(f"length: must be an ε from 0 to 1000, or {KEPT}, got {self.length!r}") from None
        kind: Any = catalogue.admit(mechanism)
        if "delta" in (field.name for field in fields(kind)):
            spec["delta"] = delta
        generates = bool(getattr(kind, "reads", ())) and language_models.kind_of(kind) != language_models.MASKED_LM
        if self.generator is not None and not generates:
            raise UserError(f"--generator: goes with a mechanism that generates, as dp-prompt; {mechanism} reads none")
        if getattr(kind, "whole", False):  # the price of its noise does not depend on the model
            if self.words is not None or self.generator is not None:
                raise UserError(f"--generator and --words: what {mechanism} costs depends on neither; leave them out")
            return partial(_of_any_vocabulary, spec), f"at once, by one draw of the whole text at δ = {delta:g}"
        model: Any = ANY_MODEL
        if not generates or self.words is not None:
            source = self.words or "minilm"
            vocabulary = load(vocabulary_folder(source, tags=AboutWords.TAGS in facts_of(kind).needs))
            among = f"{len(vocabulary):,} words of {source}"
            among += ", which sanitize must be given too, as --words" if generates else ""
        elif self.generator is not None:
            name = language_models.kind_of(kind)
            found: Any = language_models.load(
                generator_folder(self.generator, public_sentences(), kind=name, seed=0), name
            )
            model, vocabulary = language_models.said(kind, found), found.vocabulary
            among = f"{len(vocabulary):,} tokens of {self.generator}"
        elif "scores" in kind.reads and not issubclass(kind, FromLogits):
            raise UserError(f"--generator: is missing; what {mechanism} costs may depend on the model")
        else:
            return partial(_of_any_vocabulary, spec), _ANY_VOCABULARY
        return lambda epsilon: text_mechanism(spec | {"epsilon": epsilon}, vocabulary, model=model), among


#: Vocabulary of a mechanism whose model is not given.
_ANY_VOCABULARY = "any vocabulary, at worst; with --generator FOLDER, among that model's own tokens"


def _of_any_vocabulary(spec: dict[str, Any], epsilon: float) -> TextMechanism:
    """Return a text by an unknown generating model, at the worst case over vocabularies."""
    text = text_mechanism(spec | {"epsilon": epsilon}, stand_in(), model=ANY_MODEL)
    return replace(text, word=OfAnyVocabulary(text.word)) if isinstance(text.word, FromLogits) else text


def described(mechanism: Mechanism) -> str:
    """Return a mechanism's name and parameters for people."""
    given = parameters(mechanism)
    return f"{given.pop('mechanism')}({', '.join(f'{k} = {v}' for k, v in given.items())})"
