"""Privacy losses without a run: of mechanisms by their names, of an experiment, and of a text by the ε of its words."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from client.models import language_models
from client.models.vocabulary import load
from client.policy import Policy
from mechanisms import catalogue
from mechanisms.accounting.ladder import Rung, ladder_of
from mechanisms.channels import EMBEDDING, Domain, domain_of
from mechanisms.facts import AboutWords, facts_of
from mechanisms.mechanism import Mechanism, parameters
from mechanisms.mechanism_text import read_mechanism
from mechanisms.words.language_model import FromLogits, OfAnyVocabulary
from mechanisms.words.text import TextMechanism
from simulations.artifacts.language_models import generator_folder, public_sentences
from simulations.artifacts.text_channel import rewriter_to_price
from simulations.artifacts.vocabulary import vocabulary_folder
from simulations.corpora.parts import load_split
from simulations.errors import UserError
from simulations.experiment import ANY_MODEL, Experiment, stand_in, text_mechanism
from simulations.experiment.ladder import PAPER, of_experiment


@dataclass(frozen=True)
class Texts:
    """Properties of texts that a price depends on beside their mechanism; None stands for the default.

    Attributes:
        words: Word vectors, a file or a checkpoint.
        generator: Model of a mechanism that generates. Without `words`, its own tokens are the vocabulary.
        accept_unprotected: What is declared public, as in a client's policy.
        crowd: Least number of delivered users who agree in what is public.
    """

    words: str | None = None
    generator: str | None = None
    accept_unprotected: Sequence[str] | None = None
    crowd: int | None = None

    @property
    def public(self) -> dict[str, str]:
        """Return what is declared public, each with its reason.

        Raises:
            ValueError: No client's policy accepts one of them.
        """
        return Policy(accept_unprotected=tuple(self.accept_unprotected or ())).declared

    def by_epsilon(self, spec: Mapping[str, Any]) -> tuple[Callable[[float], TextMechanism], str]:
        """Return a text as a function of the ε of its word mechanism, and its vocabulary in words.

        The price of a draw depends on the size of the vocabulary.

        Args:
            spec: Name and parameters of the mechanism and of the text. Others are the catalogue's defaults.

        Raises:
            UserError: An option does not fit the mechanism.
        """
        mechanism = spec["mechanism"]
        kind: Any = catalogue.admit(mechanism)
        generates = bool(getattr(kind, "reads", ())) and language_models.kind_of(kind) != language_models.MASKED_LM
        if self.generator is not None and not generates:
            raise UserError(f"--generator: goes with a mechanism that generates, as dp-prompt; {mechanism} reads none")
        model: Any = ANY_MODEL
        if not generates or self.words is not None:
            source = self.words or "minilm"
            vocabulary = load(vocabulary_folder(source, tags=AboutWords.TAGS in facts_of(kind).needs))
            among = f"{len(vocabulary):,} words of {source}"
            among += ", which sanitize must be given too, as --words" if generates else ""
        elif self.generator is not None:
            name = language_models.kind_of(kind)
            result: Any = language_models.load(
                generator_folder(self.generator, public_sentences(), kind=name, seed=0), name
            )
            model, vocabulary = language_models.said(kind, result), result.vocabulary
            among = f"{len(vocabulary):,} tokens of {self.generator}"
        elif "scores" in kind.reads and not issubclass(kind, FromLogits):
            raise UserError(f"--generator: is missing; what {mechanism} costs may depend on the model")
        else:
            return partial(_of_any_vocabulary, spec), _ANY_VOCABULARY
        return lambda epsilon: text_mechanism({**spec, "epsilon": epsilon}, vocabulary, model=model), among


#: Vocabulary of a mechanism whose model is not given.
_ANY_VOCABULARY = "any vocabulary, at worst; with --generator FOLDER, among that model's own tokens"


def _of_any_vocabulary(spec: Mapping[str, Any], epsilon: float) -> TextMechanism:
    """Return a text by an unknown generating model, at the worst case over vocabularies."""
    text = text_mechanism({**spec, "epsilon": epsilon}, stand_in(), model=ANY_MODEL)
    return replace(text, word=OfAnyVocabulary(text.word)) if isinstance(text.word, FromLogits) else text


def is_text(mechanism: str) -> bool:
    """Return True if a mechanism of this name sanitizes texts."""
    return domain_of(catalogue.admit(mechanism)) is Domain.TEXT


def mechanism_of(
    text: str, *, classes: int = 2, delta: float = 1e-6, dim: int | None = None, texts: Texts | None = None
) -> Mechanism:
    """Return the mechanism that NAME:KEY=VALUE,... describes, of any channel (`read_mechanism`).

    Args:
        text: Name and parameters. Those of a text hold the word mechanism's and its own, as tokens and length.
        classes: Number of classes of a label, if the parameters do not give it.
        delta: δ at which `sigma` of Gaussian noise follows from `epsilon`.
        dim: Number of coordinates, if the parameters do not give it.
        texts: What else the price of a text depends on.

    Raises:
        ValueError: The parameters are invalid (`catalogue.build`).
    """
    spec = read_mechanism(text)
    name = spec["mechanism"]
    if name == "identity":
        return catalogue.build(spec, channel=EMBEDDING.name, dim=dim, classes=classes)
    if is_text(name):
        if "epsilon" not in spec:
            raise UserError(f"{name}: missing parameter epsilon")
        return (texts or Texts()).by_epsilon(spec)[0](spec["epsilon"])
    if name == "gaussian" and "epsilon" in spec and "sigma" not in spec:
        spec = {"delta": delta} | spec
    return catalogue.build(spec, channel=catalogue.admit(name).channel, dim=dim, classes=classes)


def ladder_of_release(
    released: Sequence[str | Mechanism],
    *,
    users: int | None,
    records: int | None,
    stages: int,
    delta: float,
    classes: int = 2,
    texts: Texts | None = None,
) -> tuple[list[Mechanism], tuple[Rung, ...]]:
    """Return the mechanisms and the rungs of a user each of whose records is released by all of them, in each stage.

    Args:
        released: Mechanisms, or their names with parameters (`mechanism_of`), one for each channel.
        users: Users that a shuffler delivers; None without a shuffler.
        records: Maximum number of records of a user; None if unknown.
        stages: Number of stages in which a user releases every record anew.
        delta: δ of every rung.
        classes: Number of classes of a label, if its parameters do not give it.
        texts: What else the price of a text depends on, and what is declared public.

    Raises:
        ValueError: The mechanisms do not go together, or an option has no effect.
    """
    about = texts or Texts()
    mechanisms = [
        mechanism_of(item, classes=classes, delta=delta, texts=about) if isinstance(item, str) else item
        for item in released
    ]
    options = [name for name in ("words", "generator") if getattr(about, name) is not None]
    if options and not any(isinstance(item, TextMechanism) for item in mechanisms):
        raise UserError(f"--{options[0]}: is about texts, and no mechanism sanitizes any; leave it out")
    if about.crowd is not None and users is None:
        raise UserError("--crowd: without --users there is no shuffler, so there is no crowd to speak of; leave it out")
    public = about.public
    if both := next((item.channel for item in mechanisms if item.channel in public), None):
        raise UserError(f"{both}: is declared public, and released by a mechanism; leave one out")
    rungs = ladder_of(
        mechanisms, users=users, records=records, stages=stages, delta=delta, public=public, crowd=about.crowd
    )
    return mechanisms, rungs


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
    arms = [arm for arm in experiment.arms if arm.text is not None]
    if not arms:
        return {}
    public = load_split(experiment.data, experiment.population, experiment.seed)[0].public
    rewriter = rewriter_to_price(experiment, public.texts)
    assert rewriter is not None  # some arm releases texts
    return {arm.name: rewriter.mechanism(arm) for arm in arms}


def described(mechanism: Mechanism) -> str:
    """Return a mechanism's name and parameters for people; for a text, its vocabulary too."""
    values, among = parameters(mechanism), ""
    if values.pop("vocabulary", None) is not None:
        text: Any = mechanism
        any_model = isinstance(text.word, OfAnyVocabulary)
        among = f", among {'any vocabulary, at worst' if any_model else f'{len(text.vocabulary):,} words'}"
    return f"{values.pop('mechanism')}({', '.join(f'{k} = {v}' for k, v in values.items())}){among}"
