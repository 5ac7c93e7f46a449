"""Count of a deployment's users by its training server, which asks them as in training and knows no truth."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from client.device.bundle import Bundle
from client.policy import Refused
from mechanisms.channels import ANSWER
from mechanisms.mechanism import parameters
from mechanisms.messages.questions import AnswerQuestion
from mechanisms.messages.request import Request
from server.counts import MOST_CLASSES
from server.protocols.drive import Users
from server.protocols.protocol import Public
from simulations.counts.asking import Asked, Budget
from simulations.counts.count import SPLIT, check_series, counted
from simulations.counts.result import CountResult
from simulations.errors import UserError
from simulations.experiment import ArmSetup, Experiment
from simulations.output.atomic import staged


def count(
    experiment: Experiment,
    setup: ArmSetup,
    public: Public,
    asked: Asked,
    out: Path,
    *,
    users: Users,
    bundle: Bundle,
    budget: Budget,
    confidence: float = 0.95,
    last: CountResult | None = None,
) -> CountResult:
    """Count the classes of the training users of a deployment, and write the results into a folder.

    Devices know the question if their publisher has signed it (`sottovoce.deployment.questions`). They charge it to
    their ledgers, and answer within the policy of their bundle.

    Args:
        experiment: The study.
        setup: Its arm.
        public: Public data, whose encoder the devices have.
        asked: Model and classes.
        out: New folder of the results.
        users: Users behind the shuffler.
        bundle: Bundle of the devices.
        budget: Price.
        confidence: Probability that all intervals hold together.
        last: Last count of the same users.

    Raises:
        UserError: The devices would refuse, or the batch is discarded.
    """
    if asked.encoder is not public.encoder:
        raise UserError("--model: runs on another encoder than that of the devices, who cannot get it from here")
    if asked.model.classes > MOST_CLASSES:
        raise UserError(f"{asked.model.classes:,} classes: at most {MOST_CLASSES:,} can be counted")
    limit, crowd = bundle.policy.limit(ANSWER.name), setup.answering if setup.shuffled else None
    drawn = budget.chosen(asked.model.classes, users=crowd, delta=experiment.shuffle.delta, limit=limit)
    week, many = 1, experiment.population.assignment != "record"
    if last is not None:
        check_series(last, drawn, asked.names)
        week = last.week + 1
    try:
        question = AnswerQuestion(
            parameters(drawn), projection=asked.model.projection, head=asked.model.head, of_user=many
        )
        request = Request("", f"count-{week}", SPLIT, experiment.shuffle.least, (question,))
        bundle.policy.listing(request).check(request)
    except Refused as refused:
        named = ", ".join(bundle.policy.mechanisms)
        raise UserError(
            f"--bundle: its devices would refuse: {refused.text} (answer = {limit:g}, mechanisms: {named})"
        ) from None
    except ValueError as error:
        raise UserError(str(error)) from error
    with staged(out) as folder:
        collected = users.collect(request)
        if (release := collected.batch.of(AnswerQuestion)) is None:
            raise UserError(f"count: the batch was discarded: {collected.batch.discarded}; the users stay charged")
        result = counted(
            experiment,
            asked,
            drawn,
            release.values.astype(np.int64),
            shuffled=setup.shuffled,
            chosen=budget.mechanism is None,
            confidence=confidence,
            charged=len(release),
            dropped=dict(collected.dropped),
            last=last,
            many=many,
        )
        result.write(folder)
    return result
