"""Preparation of an experiment: the training server's public part, and the users' data with the true labels."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from server.protocols.protocol import Public
from simulations.artifacts.cache import CachedEmbeddings
from simulations.artifacts.encoder import student_of, width_of
from simulations.artifacts.public import CachedEncoder, prepare_public
from simulations.corpora.corpus import Corpus, Split
from simulations.corpora.overlap import compared, normalized
from simulations.corpora.parts import load_split
from simulations.corpora.splits import stratified
from simulations.errors import UserError
from simulations.experiment import Experiment
from simulations.experiment.preflight import check_requests
from simulations.experiment.sections import Data, Population, Shuffle, TrainingConfig
from simulations.run import population
from simulations.shuffler.shuffle import Origin

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Holders:
    """Holders of a corpus' rows: users[i] holds row i as their record records[i]."""

    users: NDArray[np.int64]
    records: NDArray[np.int64]

    @property
    def people(self) -> int:
        """Return the number of users."""
        return len(np.unique(self.users))

    @property
    def most(self) -> int:
        """Return the largest number of records of a user."""
        return int(self.records.max()) + 1

    def rows_of(self, origin: Origin) -> NDArray[np.int64]:
        """Return the row of each user and record, (n,); -1 if nobody holds it, as a hostile client may say."""
        keys = zip(self.users.tolist(), self.records.tolist(), strict=True)
        rows = {key: row for row, key in enumerate(keys)}
        whose = zip(origin.users.tolist(), origin.records.tolist(), strict=True)
        return np.array([rows.get(key, -1) for key in whose], dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Held:
    """True data of the users. They belong to the owner of a simulation, and to no server.

    Attributes:
        train: Rows that training users hold.
        test: Test sentences.
        holders: Holders of the training rows.
        test_holders: Test users. Each is charged once, and sanitized accuracy is measured over several draws.
        test_rows: Test sentence of each row of the test users.
        train_embeddings: Embeddings by the users' first encoder, on the disk; None without an encoder.
        test_embeddings: Embeddings of the test sentences; None without an encoder.
        owners: User, from 0, of each test sentence, (n,), for measures by user; None if each is a user's own.
    """

    train: Corpus
    test: Corpus
    holders: Holders
    test_holders: Holders
    test_rows: NDArray[np.int64]
    train_embeddings: CachedEmbeddings | None = None
    test_embeddings: NDArray[np.float32] | None = None
    owners: NDArray[np.int64] | None = None

    def groups(self, column: str | None) -> NDArray[np.str_] | None:
        """Return the group of each test sentence, (n,), in a column of the test part; None without a column."""
        return None if column is None else np.asarray(self.test.extra[column], dtype=np.str_)

    @cached_property
    def test_texts(self) -> NDArray[np.int64]:
        """Return the number of each test sentence's text, without case and marks, (n,), by first appearance."""
        numbers: dict[str, int] = {}
        texts = (normalized(text) for text in self.test.texts)
        return np.array([numbers.setdefault(text, len(numbers)) for text in texts], dtype=np.int64)


class Prepared(NamedTuple):
    """Data that all arms of a run share. `about` describes the corpus in the results."""

    public: Public
    held: Held
    about: dict[str, Any]


def parts(experiment: Experiment, *, headline: str | None = None) -> tuple[Split, Holders, dict[str, Any]]:
    """Return the data of a run, split, assigned to training users and limited, and their description.

    `headline` is a line of progress that comes first, once no error is left in the data.

    Raises:
        UserError: The data would make a figure misleading.
    """
    data = experiment.data
    split, about = load_split(data, experiment.population, experiment.seed)
    split, holders = _hand_out(experiment.population, split, experiment.seed)
    if data.test_limit is not None:
        rows = stratified(split.test.labels, data.test_limit, experiment.seed)
        full_test, split = split.test, Split(split.public, split.train, split.test.take(rows))
        if lost := np.setdiff1d(full_test.labels, split.test.labels).tolist():
            about["untested"] = [full_test.classes[label] for label in lost]
    _check_test_classes(split.test)
    _check_public(experiment.training, split.public)
    for setup in experiment.setups:
        for encoder in dict.fromkeys((experiment.encoder, student_of(experiment.encoder, experiment.training))):
            check_requests(setup, classes=len(split.train.classes), width=width_of(encoder))
    if headline is not None:
        log.info(headline)
    log.info("looking for what public, train and test have in common")
    return split, holders, about | _in_common(data, split)


def prepare(experiment: Experiment, *, headline: str | None = None) -> Prepared:
    """Read the data, assign records to users, make the encoder, and embed every text once."""
    data = experiment.data
    split, holders, about = parts(experiment, headline=headline)
    test_rows, test_holders = check_asked(data, experiment.population, experiment.shuffle, split.test)
    public = prepare_public(experiment, split.public)
    train_embeddings = test_embeddings = None
    if isinstance(public.encoder, CachedEncoder):
        train_embeddings, test_embeddings = (public.encoder.embedded(part.texts) for part in (split.train, split.test))
    sizes = {name: len(part) for name, part in (("public", split.public), ("train", split.train), ("test", split.test))}
    held = Held(
        train=split.train,
        test=split.test,
        holders=holders,
        test_holders=test_holders,
        test_rows=test_rows,
        train_embeddings=train_embeddings,
        test_embeddings=None if test_embeddings is None else np.asarray(test_embeddings),
        owners=owners(experiment.population, split, experiment.seed),
    )
    return Prepared(public, held, about | sizes | {"test_repeats": data.test_repeats})


def owners(people: Population, split: Split, seed: int) -> NDArray[np.int64] | None:
    """Return the user of each test sentence for measures by user, (n,), from 0; None if each is a user's own.

    They are the users that the data name, if records of training users are assigned by them. "dirichlet" deals test
    sentences out as it does training rows, to users of as many records. Only measures know these users: who asks the
    model, and pays, is as `data.user` says.
    """
    test = split.test
    if people.assignment == "column" and test.users is not None:
        return population.numbered(test.users)[0]
    if people.assignment != "dirichlet":
        return None
    users = max(1, round(len(test) * people.users / len(split.train)))
    rows, holders, _ = population.assign(test, users=users, assignment="dirichlet", alpha=people.alpha, seed=seed)
    result = np.empty(len(test), np.int64)
    result[rows] = holders
    return result


def check_asked(data: Data, people: Population, shuffler: Shuffle, test: Corpus) -> tuple[NDArray[np.int64], Holders]:
    """Return the test sentence of each row that test users hold, and its holders.

    Raises:
        UserError: There are too few test users for a batch.
    """
    rows = np.tile(np.arange(len(test), dtype=np.int64), data.test_repeats)
    holders = _test_holders(data, people, test, len(rows))
    tests, least = holders.people, shuffler.minimum_users
    if shuffler.enabled and tests < least:
        raise UserError(
            f"shuffle.minimum-users: {least} is more than the {tests} test users, whose batch would be discarded; "
            f"lower it, or {_more_tests(data)}"
        )
    return rows, holders


def _more_tests(data: Data) -> str:
    """Return advice how to have more test users that the experiment would accept."""
    if data.user is not None:
        return "raise data.test-limit" if data.test_limit is not None else "give texts of more test users"
    return "raise data.test-repeats"


def _in_common(data: Data, split: Split) -> dict[str, Any]:
    """Return the overlaps of parts and the repetitions within each, for the results.

    The parts of the built-in corpus share no sentence, and may be similar by chance.

    Raises:
        UserError: Parts overlap without a reason in the experiment.
    """
    result, repeated = compared(split, people=data.user is not None)
    shared = [item for item in result if item]
    people = next(item.users for item in result if (item.of, item.within) == ("test", "train"))
    if people:
        raise UserError(
            f"data.user: {people:,} {'person is' if people == 1 else 'people are'} in test and in train, and would be "
            "two users with a budget each; divide the data by people"
        )
    if shared and data.overlap is None and data.source != "built-in":
        raise UserError(
            f"data.overlap: is missing, and {'; '.join(map(str, shared))}; take them out, or say why they may be "
            'there: overlap = "the reason"'
        )
    counts = {
        f"{item.of} in {item.within}": {"rows": item.rows, "texts": item.texts, "users": item.users} for item in result
    }
    return {"overlap": counts, "overlap_reason": data.overlap, "repeated": repeated}


def _test_holders(data: Data, people: Population, test: Corpus, rows: int) -> Holders:
    """Return the holder of each test row, as the data say or one for each, numbered after the training users."""
    first = people.users
    if data.user is None or test.users is None:
        return Holders(first + np.arange(rows, dtype=np.int64), np.zeros(rows, np.int64))
    users, records = population.numbered(test.users)
    return Holders(first + users, records)


def _check_test_classes(test: Corpus) -> None:
    """Raise UserError if the test part has fewer than two classes."""
    labels = np.unique(test.labels)
    if len(labels) < 2:
        text = f'all {len(test):,} test texts are of class "{test.classes[labels[0]]}", and always guessing it is right'
        raise UserError(f"data.test: {text if len(labels) else 'there are none'}; give test texts of two classes")


def _check_public(training: TrainingConfig, public: Corpus) -> None:
    """Raise UserError if there are too few public texts to learn maps."""
    if training.protocol.public_text and len(public) < 2:
        texts = f"{len(public)} public text{'s' * (len(public) != 1)}"
        raise UserError(f"data.public: there is {texts}, and maps are learned on two or more; make more texts public")


def _hand_out(people: Population, split: Split, seed: int) -> tuple[Split, Holders]:
    """Return the split with the training rows that users hold, and their holders."""
    rows, users, records = population.assign(
        split.train, users=people.users, assignment=str(people.assignment), alpha=people.alpha, seed=seed
    )
    if len(np.unique(users)) < people.users:
        raise UserError(
            f"population.users: {people.users} were asked for, and the data have {len(np.unique(users))}; ask for fewer"
        )
    return Split(split.public, split.train.take(rows), split.test), Holders(users, records)
