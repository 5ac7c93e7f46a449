"""Ladder of each arm: before a run from the experiment alone, after it from the delivered users.

`mechanisms.accounting.ladder` composes. This module decides which users release what, how often, and in what crowd.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mechanisms.accounting import liars
from mechanisms.accounting.ladder import Rung, ladder, widest
from mechanisms.identity import Identity
from mechanisms.mechanism import Mechanism
from mechanisms.words.text import TextMechanism
from server.training.statistic_head import CANDIDATES, code_length, features_allowed
from simulations.experiment.arm import DEFAULT_DIM, ArmSetup, answer_of, embeddings_of, label_of, released_text
from simulations.experiment.experiment import Experiment

PAPER = "trusted simulation, not a protocol"
_OF_STATISTICS = "the largest of all numbers of features that are chosen from, or of all stages"
GRADIENTS = f"{PAPER}: gradients through M1 and BERT depend on raw text"


@dataclass(frozen=True)
class Curator:
    """Description of a trusted server in words, and its guarantee for the outcome."""

    description: str
    epsilon: float
    delta: float


@dataclass(frozen=True)
class Releases:
    """Releases of an arm's users: the mechanisms, and the number of users that each stage delivered.

    A stage whose batch was discarded counts 0. A mechanism is None where nothing of its channel is released.

    Args:
        embedding: Mechanism of embeddings.
        label: Mechanism of labels; None if labels are declared public, too.
        train: Users delivered in each stage of disjoint training users; None without any such request.
        test: Test users delivered; None without any such request.
        text: Mechanism of the texts of training users, and of test users unless `asked_text` is given.
        asked_text: Mechanism of the texts of test users, if it differs.
        statistics: Mechanism of the user vectors of each training stage. These users release nothing else.
        answer: Mechanism of the answers of test users, who release nothing else.
        classes: For each training stage the rows of the smallest class, if labels are sent in clear; otherwise None.
        public_label: True if labels are sent in clear, declared public.
        curator: Trusted server that processes the user vectors; None if the server is not trusted.
    """

    embedding: Mechanism | None = None
    label: Mechanism | None = None
    train: tuple[int, ...] | None = None
    test: int | None = None
    text: TextMechanism | None = None
    asked_text: TextMechanism | None = None
    statistics: tuple[Mechanism, ...] = ()
    answer: Mechanism | None = None
    classes: tuple[int, ...] | None = None
    public_label: bool = False
    curator: Curator | None = None

    @property
    def name(self) -> str | None:
        """Return the joined names of the mechanisms of texts, user vectors, embeddings and answers, or None."""
        every = (self.text, self.asked_text, *self.statistics[:1], self.embedding, self.answer)
        names = [mechanism.name for mechanism in every if mechanism is not None]
        return ", then ".join(names) or None

    def crowd(self, *, stated: int | None, records: int) -> int | None:
        """Return the smallest crowd of the training users.

        Labels in clear are counted. The server sees rows, not users: k records of one class may all belong to one user.
        The crowd of the exposures of texts is as stated.

        Args:
            stated: The crowd that the arm states.
            records: Maximum number of records of a user.
        """
        if self.classes is None:
            return stated
        counted = min((-(-rows // records) for rows in self.classes), default=0)
        if self.text is None or not self.text.guarantee.exposes:
            return counted
        return None if stated is None else min(stated, counted)


def of_run(setup: ArmSetup, what: Releases, *, records: int | None, test_records: int | None) -> dict[str, Any]:
    """Return the ladders of an arm that has run, JSON-ready.

    Stages have disjoint users, so a user pays for one of them. The result holds for every stage: it takes the fewest
    users and the smallest crowd of any. Test users are never training users. The protocol `paper` draws
    an embedding afresh in every epoch, and its gradients are unprotected.

    Args:
        setup: The arm.
        what: Releases of its users.
        records: Maximum number of records of a training user; None if it is unknown.
        test_records: Maximum number of records of a test user; None if it is unknown.

    Returns:
        {"ladder", "test_ladder"}.
    """
    notes: dict[str, str] = {}
    ladders: dict[str, Any] = {"ladder": None, "test_ladder": None}
    if what.train:
        if len(what.train) > 1:
            counts = ", ".join(f"{n:,}" for n in what.train)
            notes["shuffled"] = f"stages of disjoint users delivered {counts}; this is the smallest stage's"
        users = min(what.train) if setup.shuffled else None
        crowd = what.crowd(stated=setup.arm.smallest_crowd, records=records or 1)
        rungs = _train(setup, [what.embedding], what.label, users, records, notes, what.text, crowd, what.statistics)
        ladders["ladder"] = _plain(rungs)
    if what.test is not None:
        users, text = what.test if setup.shuffled else None, what.asked_text or what.text
        rungs = _test(setup, [what.embedding], users, {}, text, what.answer, records=test_records)
        ladders["test_ladder"] = _plain(rungs)
    return ladders


def of_experiment(
    experiment: Experiment,
    *,
    texts: Mapping[str, TextMechanism] | None = None,
    records: int | None = None,
    test_records: int | None = None,
    tests: int | None = None,
    public: int | None = None,
    classes: int | None = None,
) -> list[dict[str, Any]]:
    """Return the ladders of each arm before a run.

    The number of users is the expected one: users × (1 - dropout) × (1 - late), divided by label-stages. The results of
    a run contain the number delivered. With several candidates for m', each rung is their maximum.

    Args:
        experiment: The experiment.
        texts: Mechanisms with their vocabularies, by the names of the arms that release texts. The caller has read the
            data for them.
        records: Maximum number of records of a training user, if the data's users have several.
        test_records: Maximum number of records of a test user, if the data's users have several.
        tests: Number of test users, if the data have been read.
        public: Number of public texts, if the data have been read.
        classes: Number of classes, if no task names them.

    Returns:
        For each arm {"arm", "reference", "way", "ladder", "test_ladder", "liars"}, with rungs as dicts. liars says
        how far dishonest users move the training result (`mechanisms.accounting.liars`); "" if no bound is known.

    Raises:
        UserError: An arm's parameters do not fit a mechanism.
    """
    people = experiment.population
    if test_records is None:
        test_records = 1 if experiment.data.user is None else records
    records = records or (1 if people.assignment == "record" else None)
    classes = classes or experiment.data.classes
    assumed = f"expected: {people.users:,} users × (1 - dropout {people.dropout:g})"
    assumed += f" × (1 - late {people.late:g})" if people.late else ""
    lines = []
    for setup in experiment.setups:
        train, test, arm, bound = None, None, setup.arm, ""
        users = setup.answering if setup.shuffled else None
        split = f" / {setup.stages} stages of disjoint users" if setup.stages > 1 else ""
        notes = {"shuffled": assumed + split, "label": f"{classes} classes"}
        embeddings: list[Mechanism | None] = [*embeddings_of(arm)] or [None]
        arm_text = None if arm.text is None else (texts or {})[arm.name]
        text, test_text = (
            None if arm_text is None else released_text(arm, arm_text, split) for split in ("train", "test")
        )
        if not (arm.public_only or arm.centralised):
            label, vectors = label_of(arm, classes), _statistics(setup, classes, public)
            train = _train(setup, embeddings, label, users, records, notes, text, arm.smallest_crowd, vectors)
            counted = label if arm.label is not None and not setup.protocol.releases_text else None
            teller = max(vectors, key=lambda mechanism: liars.amplification(mechanism) or 0.0, default=counted)
            bound = "" if teller is None else liars.told(teller)
            if bound and len(vectors) > 1:
                bound += f" (of the largest number of features that {'this' if public else 'any'} public text allows)"
        answer = answer_of(arm, classes)
        if any((arm.embedding, test_text, answer)) and setup.protocol.private:
            test = _test(setup, embeddings, *_test_users(experiment, tests), test_text, answer, records=test_records)
        ladders = {"ladder": _plain(train), "test_ladder": _plain(test)}
        lines.append({"arm": arm.name, "reference": arm.reference, "way": setup.way, **ladders, "liars": bound})
    return lines


def _train(
    setup: ArmSetup,
    embeddings: Sequence[Mechanism | None],
    label: Mechanism | None,
    users: int | None,
    records: int | None,
    notes: Mapping[str, str],
    text: TextMechanism | None,
    crowd: int | None,
    statistics: Sequence[Mechanism],
) -> tuple[Rung, ...]:
    if statistics:
        ladders = [
            ladder(None, None, statistic=mechanism, users=users, delta=setup.shuffle.delta) for mechanism in statistics
        ]
        return tuple(_noted(rung, notes.get(rung.name)) for rung in widest(ladders, _OF_STATISTICS))
    paper = not setup.protocol.private
    public = _exposed(setup, text)
    reason = setup.declared.get("label")
    if setup.arm.label is None and reason is not None:
        label, public = None, {"label": reason} | public
    else:
        label = label or Identity("label", 2)  # the arm names no mechanism, and nobody declared its labels public
    gradients: dict[str, Any] = {"draws": setup.epochs, "unprotected": {"gradients": GRADIENTS}} if paper else {}
    release: dict[str, Any] = {"label": label, "text": text, "crowd": crowd, "public": public, **gradients}
    return _widest(setup, embeddings, notes, records=records, users=users, **release)


def _statistics(setup: ArmSetup, classes: int, public: int | None) -> list[Mechanism]:
    """Return the mechanism of an arm's user vectors for each candidate number of features; none if it releases none."""
    arm, statistic, length = setup.arm, setup.statistic, code_length(classes, shared=setup.shared_codes)
    if statistic is None:
        return []
    chosen = features_allowed(length, rows=public, candidates=CANDIDATES) if arm.features is None else (arm.features,)
    # inference on an embedding needs at least m' features
    least = 0 if arm.embedding is None else max(arm.dims or (DEFAULT_DIM,))
    return [statistic(length * (d + 1)) for d in dict.fromkeys(max(d, least) for d in chosen)]


def _test(
    setup: ArmSetup,
    embeddings: Sequence[Mechanism | None],
    users: int | None,
    notes: Mapping[str, str],
    text: TextMechanism | None,
    answer: Mechanism | None,
    *,
    records: int | None,
) -> tuple[Rung, ...]:
    if answer is not None:
        notes = dict(notes) | {"answer": "the user's device runs the whole model, and nothing else leaves it"}
        return _widest(setup, [None], notes, answer=answer, records=records, users=users)
    public = _exposed(setup, text)
    release: dict[str, Any] = {"text": text, "crowd": setup.arm.smallest_crowd if public else None, "public": public}
    return _widest(setup, embeddings, notes, records=records, users=users, **release)


def _exposed(setup: ArmSetup, text: TextMechanism | None) -> dict[str, str]:
    """Return the exposures of the text that the policy declares public, with the reasons."""
    passed = () if text is None else text.guarantee.exposes
    return {name: why for name, why in setup.declared.items() if name in passed}


def _widest(
    setup: ArmSetup,
    embeddings: Sequence[Mechanism | None],
    notes: Mapping[str, str],
    *,
    label: Mechanism | None = None,
    **release: Any,
) -> tuple[Rung, ...]:
    """Return one ladder for all candidates for m'. Each note is added to the assumption of its rung."""
    ladders = [ladder(embedding, label, delta=setup.shuffle.delta, **release) for embedding in embeddings]
    rungs = widest(ladders, "the largest of all m' that are chosen from on public data")
    return tuple(_noted(rung, notes.get(rung.name)) for rung in rungs)


def _noted(rung: Rung, note: str | None) -> Rung:
    return rung if note is None or rung.epsilon is None else replace(rung, assumption=f"{rung.assumption}; {note}")


def _test_users(experiment: Experiment, tests: int | None) -> tuple[int | None, Mapping[str, str]]:
    """Return the expected number of delivered test users, if it is known, and a note on it."""
    data = experiment.data
    if not experiment.shuffle.enabled:
        return None, {}
    late, rows = experiment.population.late, "test sentences"
    if tests is not None:
        count = tests
    elif data.source == "built-in":
        count = min(data.test_size or 0, data.test_limit or data.test_size or 0) * data.test_repeats
    elif data.test_limit is not None and data.user is None:
        count, rows = data.test_limit * data.test_repeats, "test sentences, if there are as many as data.test-limit,"
    else:
        return experiment.shuffle.minimum_users, {
            "shuffled": "at the least that the shuffler delivers, as the number of test sentences is in the data"
        }
    what = "test users" if data.user is not None else f"{rows} × test-repeats"
    note = f"expected: {what}" + (f" × (1 - late {late:g})" if late else "")
    return int(count * (1 - late) + 1e-9), {"shuffled": note}


def _plain(rungs: tuple[Rung, ...] | None) -> Any:
    return None if rungs is None else [rung.to_dict() for rung in rungs]
