"""Count of classes among an experiment's users: request, releases from their nodes, shuffler, estimate."""

from __future__ import annotations

import logging
import math
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client.node import load_node
from client.policy import Refused
from client.sanitizer import Sanitizer
from mechanisms.accounting.ladder import ladder
from mechanisms.channels import ANSWER
from mechanisms.mechanism import CountMechanism, parameters
from mechanisms.messages.questions import AnswerQuestion
from mechanisms.messages.request import Request
from server.counts import MOST_CLASSES, answers_to, change, estimate, of_several
from server.training.counting import CountModel
from server.validation import validate
from simulations.counts.asking import Asked, Budget, asked_by
from simulations.counts.result import CountResult, counts_of, moved, read, rows_of
from simulations.errors import UserError
from simulations.experiment import ArmSetup, Experiment, slug
from simulations.output.atomic import staged
from simulations.run.partition import hand_out
from simulations.run.population import late
from simulations.run.prepare import Prepared, prepare
from simulations.shuffler.shuffle import shuffle

log = logging.getLogger(__name__)

#: Split of the request.
SPLIT = "train"


def count(
    experiment: Experiment,
    out: Path | str,
    *,
    epsilon: float | None = None,
    central: float | None = None,
    mechanism: str | None = None,
    topics: Path | str | None = None,
    model: Path | str | None = None,
    confidence: float = 0.95,
    since: Path | str | None = None,
) -> CountResult:
    """Count the classes of an experiment's training users, write the results into a folder, and return them.

    Devices classify their text by a public model and release the class by a mechanism, as an answer. The release takes
    the path of every other one: request, policy, ledger, validation, shuffler. The experiment gives data, users,
    encoder, shuffler and policy; its arms are not run. A device of several records releases the class of one, drawn at
    random, so that ε is for all of them; the shares are then means of users' own shares.

    The model is `model`, or the nearest of `topics`, or a logistic head on half of the labelled public text. Without
    public labels it is the nearest class name. Labelled public text that trained no model gives the confusion, by which
    true classes are counted.

    Args:
        experiment: The experiment.
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
    budget, last = Budget(epsilon, central, mechanism), None if since is None else read(Path(since))
    users = _Users.of(experiment, confidence)
    (asked,) = asked_by(
        users.ready.public, seed=experiment.seed, topics=() if topics is None else (topics,), model=model
    )
    if asked.model.classes > MOST_CLASSES:
        raise UserError(f"{asked.model.classes:,} classes: at most {MOST_CLASSES:,} can be counted")
    drawn = users.best(budget, asked.model.classes)
    with staged(Path(out)) as folder:
        held = users.handed_out(asked, folder / "nodes")
        if last is not None:
            check_series(last, drawn, asked.names)
            _copy_ledger(Path(since or "") / "nodes" / "0", folder / "nodes" / "0", users.arm)
        week = 1 if last is None else last.week + 1
        released = users.released(asked.model, drawn, folder / "nodes" / "0", stage=f"count-{week}")
        result = users.counted(asked, held, drawn, released, chosen=mechanism is None, last=last)
        result.write(folder)
    return result


def count_several(
    experiment: Experiment,
    out: Path | str,
    *,
    topics: Sequence[Path | str],
    epsilon: float | None = None,
    central: float | None = None,
    confidence: float = 0.95,
) -> tuple[CountResult, ...]:
    """Count the answers to several questions, and write the result of each into a folder `1`, `2` ... of a new one.

    Either each user releases one class for all of their answers, or each user answers one question: whatever has the
    smaller expected error (`server.counts.of_several`).

    Args:
        experiment: The experiment.
        out: New folder.
        topics: Files of topics, one for each question.
        epsilon: Local ε, of all that a user releases; or give `central`.
        central: Central ε, as of `count`.
        confidence: Probability that all intervals of all questions hold together.

    Raises:
        UserError: The experiment cannot be counted, or the users' policy refuses.
    """
    budget, number = Budget(epsilon, central), len(topics)
    users = _Users.of(experiment, 1 - (1 - confidence) / number)
    asked = asked_by(users.ready.public, seed=experiment.seed, topics=topics)
    sizes = [each.model.classes for each in asked]

    def best(classes: int, every: int) -> Any:
        try:
            return users.best(budget, classes, every=every)
        except UserError:
            return None

    way = of_several(sizes, best)
    if way is None:
        raise UserError(f"--topics: no release about {number} questions fits the ε or the policy's limit; raise them")
    with staged(Path(out)) as folder:
        held, node = users.handed_out(asked[0], folder / "nodes"), folder / "nodes" / "0"
        if way.together:
            (drawn,) = way.mechanisms
            released = users.released(CountModel.together([each.model for each in asked]), drawn, node, stage="count-1")
            results = tuple(
                users.counted(each, held, drawn, released, chosen=True, of=of)
                for each, of in zip(asked, answers_to(sizes), strict=True)
            )
        else:
            results = tuple(
                users.counted(
                    each,
                    held,
                    drawn,
                    users.released(each.model, drawn, node, stage=f"count-1-{place}", part=(place, number)),
                    chosen=True,
                )
                for place, (each, drawn) in enumerate(zip(asked, way.mechanisms, strict=True))
            )
        for place, result in enumerate(results, 1):
            (folder / str(place)).mkdir()
            result.write(folder / str(place))
    return results


@dataclass(frozen=True, eq=False)
class _Released:
    """Batch of a count, and the users behind its rows, whom only the simulation knows."""

    values: NDArray[np.int64]
    origin: NDArray[np.int64]
    charged: int
    dropped: dict[str, int]


@dataclass(frozen=True, eq=False)
class _Users:
    """Users of an experiment, who are counted.

    Attributes:
        experiment: The experiment.
        setup: Arm whose policy users have.
        ready: Data.
        confidence: Probability that all intervals of a count hold together.
    """

    experiment: Experiment
    setup: ArmSetup
    ready: Prepared
    confidence: float

    @classmethod
    def of(cls, experiment: Experiment, confidence: float) -> _Users:
        """Return the users; raise UserError if they cannot be counted."""
        if not 0 < confidence < 1:
            raise UserError(f"--confidence {confidence:g}: must be between 0 and 1")
        setup = next((each for each in experiment.setups if not each.arm.reference), None)
        if setup is None:
            raise UserError("arm: all arms are references, whose users accept anything; add a private one")
        return cls(experiment, setup, prepare(experiment), confidence)

    @property
    def arm(self) -> str:
        return slug(self.setup.arm.name)

    @property
    def many(self) -> bool:
        """Return True if a user may hold several records."""
        return self.experiment.population.assignment != "record"

    def best(self, budget: Budget, classes: int, *, every: int = 1) -> CountMechanism:
        """Return the mechanism for K classes, of which a batch holds one of `every` users."""
        crowd = self.setup.answering // every if self.setup.shuffled else None
        limit = self.setup.policy.limit(ANSWER.name)
        found: CountMechanism = budget.chosen(classes, users=crowd, delta=self.experiment.shuffle.delta, limit=limit)
        return found

    def handed_out(self, asked: Asked, nodes: Path) -> Any:
        """Write all users onto one node, and return their embeddings by the model's encoder."""
        held, public = self.ready.held, replace(self.ready.public, encoder=asked.encoder)
        if asked.encoder is not self.ready.public.encoder:
            held = replace(held, train_embeddings=asked.encoder.embed(held.train.texts))
        hand_out([self.setup], self.experiment.population, public, held, nodes, seed=self.experiment.seed, nodes=1)
        return np.asarray(held.train_embeddings)

    def released(
        self, model: CountModel, drawn: CountMechanism, folder: Path, *, stage: str, part: tuple[int, int] = (0, 1)
    ) -> _Released:
        """Return what the shuffler delivers in answer to a request, charged to the users' ledger."""
        experiment, people, policy = self.experiment, self.experiment.population, self.setup.policy
        try:
            question = AnswerQuestion(
                parameters(drawn), projection=model.projection, head=model.head, of_user=self.many
            )
            request = Request(self.arm, stage, SPLIT, experiment.shuffle.least, (question,), part)
        except ValueError as error:
            raise UserError(str(error)) from error
        log.info(f"asking {self.setup.answering // part[1]:,} users")
        node = load_node(folder)
        try:
            with node.ledger(self.arm) as ledger:
                reply = Sanitizer(node.policy(self.arm), ledger, node.streams).answer(request, node.shard(SPLIT))
        except Refused as refused:
            raise UserError(
                f"policy: {refused.text} (answer = {policy.answer:g}, total = {policy.total:g}); raise it, or ask for "
                "less"
            ) from None
        valid, dropped = validate(reply, request, enrolled=range(people.users))
        rng = np.random.default_rng([experiment.seed, 2, *stage.encode()])
        clock = partial(late, probability=people.late, stage=stage, seed=experiment.seed) if people.late else None
        batch, origin, gone = shuffle([valid], minimum_users=request.minimum_users, rng=rng, late=clock)
        if (release := batch.of(AnswerQuestion)) is None:
            raise UserError(f"count: the batch was discarded: {batch.discarded}; the users stay charged")
        dropped.update({"late": gone} if gone else {})
        return _Released(release.values.astype(np.int64), origin.users, len(reply), dict(dropped))

    def counted(
        self,
        asked: Asked,
        embeddings: Any,
        drawn: CountMechanism,
        released: _Released,
        *,
        chosen: bool,
        last: CountResult | None = None,
        of: NDArray[np.int64] | None = None,
    ) -> CountResult:
        """Estimate the counts, and compare them with the truth and with a trusted curator."""
        there = self._shares(asked.model.classify(embeddings), released.origin, len(asked.names))
        truth = self._shares(self.ready.held.train.labels, released.origin, len(asked.names)) if asked.true else None
        return counted(
            self.experiment,
            asked,
            drawn,
            released.values,
            shuffled=self.setup.shuffled,
            chosen=chosen,
            confidence=self.confidence,
            charged=released.charged,
            dropped=released.dropped,
            last=last,
            of=of,
            many=self.many,
            there=there,
            truth=truth,
        )

    def _shares(self, classes: NDArray[np.int64], delivered: NDArray[np.int64], number: int) -> NDArray[np.float64]:
        """Return the mean of delivered users' shares of the classes of their records."""
        holders = self.ready.held.holders.users
        weights = np.isin(holders, delivered) / np.bincount(holders)[holders]
        return np.asarray(np.bincount(classes, weights=weights, minlength=number) / len(delivered))


def counted(
    experiment: Experiment,
    asked: Asked,
    drawn: CountMechanism,
    values: NDArray[np.int64],
    *,
    shuffled: bool,
    chosen: bool,
    confidence: float,
    charged: int,
    dropped: dict[str, int],
    last: CountResult | None = None,
    of: NDArray[np.int64] | None = None,
    many: bool = False,
    there: NDArray[np.float64] | None = None,
    truth: NDArray[np.float64] | None = None,
) -> CountResult:
    """Return the counts of a batch.

    Args:
        experiment: The experiment.
        asked: The model.
        drawn: The mechanism.
        values: Outputs (n,) of the users delivered.
        shuffled: Whether a shuffler delivered them.
        chosen: Whether the mechanism was chosen by its variance.
        confidence: Probability that all intervals hold together.
        charged: Number of releases on ledgers.
        dropped: Number of dropped rows by reason.
        last: Last count of the same users.
        of: As in `server.counts.estimate`.
        many: Whether users hold several records, and released the class of one.
        there: Shares (K,) of the classes that devices found; None if nobody knows them.
        truth: Shares of the true classes.

    Raises:
        UserError: They cannot be counted.
    """
    users, classes, delta = len(values), len(asked.names), experiment.shuffle.delta
    least, week = (users, 1) if last is None else (min(users, last.least), last.week + 1)
    rungs = ladder(None, None, answer=drawn, stages=week, users=least if shuffled else None, delta=delta)
    central = rungs[-1].epsilon
    # a curator's noise here is for whole numbers of users, and users of many records have shares
    noise = None if central is None or many else _two_sided_geometric(central, classes, seed=experiment.seed)
    try:
        found = estimate(drawn, values, of=of, one_of_many=many, confidence=confidence)
        corrected = None
        if asked.confusion is not None:
            corrected = estimate(drawn, values, confusion=asked.confusion, one_of_many=many, confidence=confidence)
    except ValueError as error:
        raise UserError(str(error)) from error

    def published(true: NDArray[np.float64] | None) -> NDArray[np.float64] | None:
        return None if noise is None or true is None else true + noise / users

    earlier = None if last is None else counts_of(last, last.corrected if corrected is not None else last.found)
    changed = None if earlier is None else change(earlier, found if corrected is None else corrected)
    confusion = asked.confusion
    return CountResult(
        experiment.name,
        experiment.seed,
        asked.about,
        parameters(drawn),
        chosen,
        users,
        confidence,
        rows_of(asked.names, found, there, published(there)),
        () if corrected is None else rows_of(asked.names, corrected, truth, published(truth)),
        float(found.errors.sum() / math.sqrt(2 * math.pi)),
        [rung.to_dict() for rung in rungs],
        charged,
        0 if confusion is None else int(confusion.counts.sum()),
        None if confusion is None else float(np.trace(confusion.counts) / confusion.counts.sum()),
        dropped,
        week,
        least,
        () if changed is None else moved(asked.names, changed),
        many,
    )


def check_series(last: CountResult, drawn: Any, names: tuple[str, ...]) -> None:
    """Raise UserError unless a count goes on with the series of the last one."""
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


def _two_sided_geometric(epsilon: float, classes: int, *, seed: int) -> NDArray[np.float64]:
    """Return the noise of a trusted curator's counts (K,): one user's change moves two counts by one each.

    It is ε-DP with P(z) proportional to e^(-ε·|z|/2) (Ghosh, Roughgarden and Sundararajan 2012).
    """
    rng, p = np.random.default_rng([seed, 15]), -math.expm1(-epsilon / 2)
    return (rng.geometric(p, classes) - rng.geometric(p, classes)).astype(np.float64)
