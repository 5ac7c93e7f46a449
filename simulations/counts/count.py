"""Count of classes among an experiment's users: request, releases from their nodes, shuffler, estimate."""

from __future__ import annotations

import logging
import math
import sqlite3
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client.node import load_node
from client.policy import Policy, Refused
from client.sanitizer import Sanitizer
from mechanisms.accounting.counting import of_central, of_local
from mechanisms.accounting.ladder import ladder
from mechanisms.accounting.planner import Target
from mechanisms.catalogue import build
from mechanisms.channels import ANSWER
from mechanisms.mechanism import parameters, share_variance
from mechanisms.messages.questions import AnswerQuestion
from mechanisms.messages.request import Request
from server.counts import MOST_CLASSES, Confusion, change, estimate
from server.maps import Maps
from server.protocols.models import ENCODER
from server.protocols.protocol import Encoding
from server.training.class_names import prototypes_of, sentences_of
from server.training.counting import CountModel
from server.validation import validate
from simulations.artifacts.model_folder import read_about
from simulations.artifacts.public import CachedEncoder
from simulations.counts.result import CountResult, counts_of, moved, read, rows_of
from simulations.errors import UserError, no_file
from simulations.experiment import Experiment, slug
from simulations.output.atomic import staged
from simulations.run.partition import hand_out
from simulations.run.population import late
from simulations.run.prepare import Prepared, prepare
from simulations.shuffler.shuffle import shuffle

log = logging.getLogger(__name__)

#: Split of the request.
_SPLIT = "train"


@dataclass(frozen=True)
class Budget:
    """Price of a count.

    Attributes:
        epsilon: Local ε; None to plan it for `central`.
        central: Central ε after the shuffler; None if `epsilon` is given.
        mechanism: Name of the mechanism; None for the one of least variance.
    """

    epsilon: float | None = None
    central: float | None = None
    mechanism: str | None = None

    def __post_init__(self) -> None:
        if (self.epsilon is None) == (self.central is None):
            raise UserError("--epsilon, --central: give one of the two, the local ε or that behind the shuffler")
        name, value = ("--epsilon", self.epsilon) if self.central is None else ("--central", self.central)
        if not 0 < (value or 0) < 1000:
            raise UserError(f"{name} {value:g}: must be above 0 and below 1,000")
        if self.central is not None and self.mechanism is not None:
            raise UserError("--mechanism: goes with --epsilon; for --central the best one is planned")

    def chosen(self, classes: int, *, users: int | None, delta: float, limit: float) -> Any:
        """Return the mechanism for K classes. Its ε is at most the limit of the users' policy.

        Raises:
            UserError: Nothing fits, or the limit is below the ε that is asked for.
        """
        try:
            if self.epsilon is not None:
                if self.epsilon > limit:
                    raise UserError(
                        f"policy.answer: {limit:g} is below --epsilon {self.epsilon:g}, so every device would refuse; "
                        f"set policy.answer={self.epsilon:g}, or take a smaller one"
                    )
                if self.mechanism is None:
                    return of_local(classes, self.epsilon)
                spec = {"mechanism": self.mechanism, "epsilon": self.epsilon}
                return build(spec, channel=ANSWER.name, classes=classes)
            assert self.central is not None
            if limit == 0:
                raise UserError("policy.answer: is 0, so every device would refuse; set the largest ε of an answer")
            planned: Any = of_central(classes, Target(self.central, delta, users))
        except ValueError as error:
            raise UserError(str(error)) from error
        if planned is None:
            raise UserError(f"--central {self.central:g}: no release fits; take a larger one, or more users")
        if planned.epsilon > limit:
            log.info(f"policy.answer = {limit:g} is below the ε = {planned.epsilon:.3g} that would fit, and is taken")
            planned = replace(planned, epsilon=limit)
        return planned


def count(
    experiment: Experiment, out: Path | str, *, epsilon: float | None = None, central: float | None = None,
    mechanism: str | None = None, topics: Path | str | None = None, model: Path | str | None = None,
    confidence: float = 0.95, since: Path | str | None = None,
) -> CountResult:  # fmt: skip
    """Count the classes of an experiment's training users, write the results into a folder, and return them.

    Devices classify their text by a public model and release the class by a mechanism, as an answer. The release takes
    the path of every other one: request, policy, ledger, validation, shuffler. The experiment gives data, users,
    encoder, shuffler and policy; its arms are not run.

    The model is `model`, or the nearest of `topics`, or a logistic head on half of the labelled public text. Without
    public labels it is the nearest class name. Labelled public text that trained no model gives the confusion, by which
    true classes are counted.

    Args:
        experiment: The experiment. Each user holds one record.
        out: New folder of the results.
        epsilon: Local ε; or give `central`.
        central: Central ε at the experiment's `shuffle.delta`, for which ε and mechanism are planned.
        mechanism: "randomized-response" or "subset-selection"; None for the better one.
        topics: File with one topic a line, a name or a sentence, in place of the data's classes.
        model: Folder of a trained model.
        confidence: Probability that all intervals hold together.
        since: Folder of the last count of the same users: this one is a stage more on their ledgers, and changes are
            found. Every device draws anew, also where its text is the same: a repeated release would show anyone who
            can link two of them which users did not change, and nothing would account for that.

    Raises:
        UserError: The experiment cannot be counted, or the users' policy refuses.
    """
    budget = Budget(epsilon, central, mechanism)
    if not 0 < confidence < 1:
        raise UserError(f"--confidence {confidence:g}: must be between 0 and 1")
    if topics is not None and model is not None:
        raise UserError("--topics, --model: a model has classes of its own; give one of the two")
    if experiment.population.assignment != "record":
        raise UserError(
            "population.assignment: a count takes one record of each user, and no ε of a user with several is shown "
            'here; set population.assignment = "record"'
        )
    setup = next((each for each in experiment.setups if not each.arm.reference), None)
    if setup is None:
        raise UserError("arm: all arms are references, whose users accept anything; add a private one")
    ready = prepare(experiment)
    if ready.public.encoder is None:
        way = experiment.training.way
        raise UserError(f'training.protocol: "{way}" has no encoder on devices, which a count needs; use another')
    asked = _asked(experiment, ready, topics=topics, model=model)
    last = None if since is None else read(Path(since))
    week = 1 if last is None else last.week + 1
    if asked.model.classes > MOST_CLASSES:
        raise UserError(f"{asked.model.classes:,} classes: at most {MOST_CLASSES:,} can be counted")
    crowd, delta = (setup.answering if setup.shuffled else None), experiment.shuffle.delta
    drawn = budget.chosen(asked.model.classes, users=crowd, delta=delta, limit=setup.policy.limit(ANSWER.name))
    with staged(Path(out)) as folder:
        nodes = folder / "nodes"
        held = replace(ready.held, train_embeddings=asked.embeddings)
        public = replace(ready.public, encoder=asked.encoder)
        hand_out([setup], experiment.population, public, held, nodes, seed=experiment.seed, nodes=1)
        arm = slug(setup.arm.name)
        if last is not None:
            _check_series(last, drawn, asked.names)
            _copy_ledger(Path(since or "") / "nodes" / "0", nodes / "0", arm)
        try:
            question = AnswerQuestion(parameters(drawn), projection=asked.model.projection, head=asked.model.head)
            request = Request(arm, f"count-{week}", _SPLIT, experiment.shuffle.least, (question,))
        except ValueError as error:
            raise UserError(str(error)) from error
        log.info(f"asking {setup.answering:,} users")
        released = _released(experiment, request, nodes / "0", arm, setup.policy)
        result = _counted(experiment, ready, asked, drawn, released, setup.shuffled, budget, confidence, last)
        result.write(folder)
    return result


@dataclass(frozen=True, eq=False)
class _Asked:
    """Model that users are asked by.

    Attributes:
        about: The model, in words.
        names: Names of its classes.
        model: Its maps and head.
        encoder: Encoder before it.
        embeddings: Users' embeddings by that encoder.
        confusion: Its confusion; None if no labelled public text is left for one.
        true: Whether its classes are those of the data.
    """

    about: str
    names: tuple[str, ...]
    model: CountModel
    encoder: Encoding
    embeddings: Any
    confusion: Confusion | None
    true: bool


def _asked(
    experiment: Experiment, ready: Prepared, *, topics: Path | str | None, model: Path | str | None
) -> _Asked:  # fmt: skip
    """Return the model, its classes, and its confusion on public text that it was not trained on."""
    public, encoder = ready.public, ready.public.encoder
    assert encoder is not None and public.embeddings is not None
    known = np.zeros(0, np.int64) if public.labels is None else np.flatnonzero(public.labels >= 0)
    table, classes, embeddings = np.asarray(public.embeddings), public.classes, ready.held.train_embeddings
    of_data, left = True, known
    try:
        if topics is not None:
            names = _topics(Path(topics))
            sentences = sentences_of([(name,) for name in names])
            embedded = encoder.embed([sentence for several in sentences for sentence in several])
            parts = np.split(embedded, np.cumsum([len(several) for several in sentences])[:-1])
            made = CountModel.of_topics(encoder.identity, prototypes_of(parts), table)
            about, classes, of_data = f"the nearest of {len(names):,} topics", names, False
        elif model is not None:
            classes, identity = read_about(Path(model))
            if (Path(model) / ENCODER).is_dir():
                encoder = trained = CachedEncoder(Path(model) / ENCODER)
                embeddings = trained.embedded(ready.held.train.texts)
            if encoder.identity != identity:
                raise UserError(f"{model}: runs on another encoder; name the one of its experiment under [encoder]")
            made, about = CountModel.of_maps(identity, Maps.load(model)), "a trained model"
            of_data, left = classes == public.classes, known[:0]  # it may have been trained on public labels
        elif len(known):
            order = np.random.default_rng([experiment.seed, 14]).permutation(known)
            half, left = np.sort(order[: len(order) // 2]), np.sort(order[len(order) // 2 :])
            labels = ready.public.labels
            assert labels is not None
            made = CountModel.of_labels(encoder.identity, table[half], labels[half], len(classes))
            about = f"a logistic head on {len(half):,} labelled public texts"
        elif public.names is not None:
            made = CountModel.of_topics(encoder.identity, public.names, table)
            about = "the nearest class name"
        else:
            raise UserError(
                "data.public.labels: without them a count needs --topics, --model or data.class-descriptions"
            )
        confusion = None
        if of_data and len(left):
            assert public.labels is not None
            confusion = Confusion.of(public.labels[left], made.classify(table[left]), len(classes))
    except ValueError as error:
        raise UserError(str(error)) from error
    return _Asked(about, tuple(classes), made, encoder, embeddings, confusion, of_data)


def _topics(path: Path) -> tuple[str, ...]:
    if not path.is_file():
        raise no_file(path)
    try:
        names = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except UnicodeDecodeError:
        raise UserError(f"{path}: is not UTF-8; save it as UTF-8") from None
    if len(names) < 2 or len(set(names)) < len(names):
        raise UserError(f"{path}: must name two or more topics, one a line, none of them twice")
    return tuple(names)


def _check_series(last: CountResult, drawn: Any, names: tuple[str, ...]) -> None:
    """Check that a count goes on with the series of the last one."""
    if parameters(drawn) != dict(last.mechanism):
        raise UserError(
            f"--since: the last count drew by {last.mechanism['mechanism']} with ε = {last.mechanism['epsilon']:g}; "
            "counts of one series have one mechanism, or no central ε is shown for them; give the same ε"
        )
    if tuple(row.name for row in last.found) != names:
        raise UserError("--since: the last count had other classes; count those, or start a series without --since")


def _copy_ledger(source: Path, target: Path, arm: str) -> None:
    """Copy the ledger of the last count, on which this one is charged."""
    place = source / f"ledger-{arm}.sqlite"
    if not place.is_file():
        raise UserError(f"--since: {place} is missing; name the folder of the last count of these users")
    with closing(sqlite3.connect(place)) as there, closing(sqlite3.connect(target / place.name)) as copy:
        there.backup(copy)


@dataclass(frozen=True, eq=False)
class _Released:
    """Batch of a count, and the users behind its rows, whom only the simulation knows."""

    values: NDArray[np.int64]
    origin: NDArray[np.int64]
    charged: int
    dropped: dict[str, int]


def _released(experiment: Experiment, request: Request, folder: Path, arm: str, policy: Policy) -> _Released:
    """Return what the shuffler delivers in answer to a request, charged to the users' ledger."""
    node, people = load_node(folder), experiment.population
    try:
        with node.ledger(arm) as ledger:
            reply = Sanitizer(node.policy(arm), ledger, node.streams).answer(request, node.shard(_SPLIT))
    except Refused as refused:
        raise UserError(
            f"policy: {refused.text} (answer = {policy.answer:g}, total = {policy.total:g}); raise it, or ask for less"
        ) from None
    valid, dropped = validate(reply, request, enrolled=range(people.users))
    stage = request.stage
    rng = np.random.default_rng([experiment.seed, 2, *stage.encode()])
    clock = partial(late, probability=people.late, stage=stage, seed=experiment.seed) if people.late else None
    batch, origin, gone = shuffle([valid], minimum_users=request.minimum_users, rng=rng, late=clock)
    if (release := batch.of(AnswerQuestion)) is None:
        raise UserError(f"count: the batch was discarded: {batch.discarded}; the users stay charged")
    dropped.update({"late": gone} if gone else {})
    return _Released(release.values.astype(np.int64), origin.users, len(reply), dict(dropped))


def _counted(
    experiment: Experiment, ready: Prepared, asked: _Asked, drawn: Any, released: _Released, shuffled: bool,
    budget: Budget, confidence: float, last: CountResult | None,
) -> CountResult:  # fmt: skip
    """Estimate the counts, and compare them with the truth and with a trusted curator."""
    users, classes, delta = len(released.values), len(asked.names), experiment.shuffle.delta
    row = np.empty(experiment.population.users, np.int64)
    row[ready.held.holders.users] = np.arange(len(ready.held.holders.users))
    rows = row[released.origin]
    there = np.bincount(asked.model.classify(np.asarray(asked.embeddings))[rows], minlength=classes) / users
    truth = np.bincount(ready.held.train.labels[rows], minlength=classes) / users if asked.true else None
    least, week = (users, 1) if last is None else (min(users, last.least), last.week + 1)
    rungs = ladder(None, None, answer=drawn, stages=week, users=least if shuffled else None, delta=delta)
    central = rungs[-1].epsilon
    noise = None if central is None else _two_sided_geometric(central, classes, seed=experiment.seed)
    try:
        found = estimate(drawn, released.values, confidence=confidence)
        corrected = None
        if asked.confusion is not None:
            corrected = estimate(drawn, released.values, confusion=asked.confusion, confidence=confidence)
    except ValueError as error:
        raise UserError(str(error)) from error

    def published(true: NDArray[np.float64] | None) -> NDArray[np.float64] | None:
        return None if noise is None or true is None else true + noise / users

    earlier = None if last is None else counts_of(last, last.corrected if corrected is not None else last.found)
    changed = None if earlier is None else change(earlier, found if corrected is None else corrected)
    errors = np.sqrt(share_variance(drawn.hit, drawn.miss, there) / users)
    confusion = asked.confusion
    return CountResult(
        experiment.name, experiment.seed, asked.about, parameters(drawn), budget.mechanism is None, users, confidence,
        rows_of(asked.names, found, there, published(there)),
        () if corrected is None else rows_of(asked.names, corrected, truth, published(truth)),
        float(errors.sum() / math.sqrt(2 * math.pi)), [rung.to_dict() for rung in rungs], released.charged,
        0 if confusion is None else int(confusion.counts.sum()),
        None if confusion is None else float(np.trace(confusion.counts) / confusion.counts.sum()), released.dropped,
        week, least, () if changed is None else moved(asked.names, changed),
    )  # fmt: skip


def _two_sided_geometric(epsilon: float, classes: int, *, seed: int) -> NDArray[np.float64]:
    """Return the noise of a trusted curator's counts (K,): one user's change moves two counts by one each.

    It is ε-DP with P(z) proportional to e^(-ε·|z|/2) (Ghosh, Roughgarden and Sundararajan 2012).
    """
    rng, p = np.random.default_rng([seed, 15]), -math.expm1(-epsilon / 2)
    return (rng.geometric(p, classes) - rng.geometric(p, classes)).astype(np.float64)
