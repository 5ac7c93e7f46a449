"""From an experiment to what its arms share: what the training server may hold, and the truth, which users hold."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from server.protocols.protocol import Public
from simulations.artifacts.cache import CachedEmbeddings
from simulations.artifacts.encoder import width_of
from simulations.artifacts.public import CachedEncoder, prepare_public
from simulations.corpora.corpus import Corpus, Split
from simulations.corpora.overlap import compared, normalized
from simulations.corpora.parts import load_split
from simulations.corpora.splits import stratified
from simulations.errors import UserError
from simulations.experiment import Experiment
from simulations.experiment.sections import Data, Population, Shuffle, Training
from simulations.progress import Progress
from simulations.run import population


@dataclass(frozen=True)
class Holders:
    """Who holds a corpus' rows: users[i] holds row i as their record records[i]."""

    users: NDArray[np.int64]
    records: NDArray[np.int64]

    @property
    def people(self) -> int:
        """How many users there are."""
        return len(np.unique(self.users))

    @property
    def most(self) -> int:
        """Records of one user, at most."""
        return int(self.records.max()) + 1


@dataclass(frozen=True, eq=False)
class Held:
    """The truth: what users hold, and who they are. It belongs to whoever runs a study, and to no server.

    train: the rows that training users hold, `holders` says who. test: the test sentences; test user i, of
    `test_holders`, holds a copy of sentence test_rows[i], so that sanitized accuracy is measured over several draws
    while every user is charged once. train_embeddings, test_embeddings: under the encoder that users have from the
    start; None where there is none. Those of training users stay on the disk.
    """

    train: Corpus
    test: Corpus
    holders: Holders
    test_holders: Holders
    test_rows: NDArray[np.int64]
    train_embeddings: CachedEmbeddings | None = None
    test_embeddings: NDArray[np.float32] | None = None

    @cached_property
    def test_texts(self) -> NDArray[np.int64]:
        """Which distinct text, but for case and marks, each test sentence is, (n,), numbered as they come first."""
        numbers: dict[str, int] = {}
        texts = (normalized(text) for text in self.test.texts)
        return np.array([numbers.setdefault(text, len(numbers)) for text in texts], dtype=np.int64)


class Prepared(NamedTuple):
    """What all arms of a study share. about: the corpus, for the results."""

    public: Public
    held: Held
    about: dict[str, Any]


def parts(experiment: Experiment, *, progress: Progress) -> tuple[Split, Holders, dict[str, Any]]:
    """The data as they are read, divided, handed out to training users and limited: all that a study works on, and
    words about it. Raises UserError where something in them would make a figure mean less than it says."""
    data = experiment.data
    split, about = load_split(data, experiment.population, experiment.seed)
    split, holders = _hand_out(experiment.population, split, experiment.seed)
    if data.test_limit is not None:
        rows = stratified(split.test.labels, data.test_limit, experiment.seed)
        whole, split = split.test, Split(split.public, split.train, split.test.take(rows))
        if lost := np.setdiff1d(whole.labels, split.test.labels).tolist():
            about["untested"] = [whole.classes[label] for label in lost]
    _check_test_classes(split.test)
    _check_public(experiment.training, split.public)
    for setup in experiment.setups:
        setup.check_requests(classes=len(split.train.classes), width=width_of(experiment.encoder))
    progress("looking for what public, train and test have in common")
    return split, holders, about | _in_common(data, split)


def prepare(experiment: Experiment, *, progress: Progress) -> Prepared:
    """Reads the data, gives each user their records, makes the encoder and embeds every text once."""
    data = experiment.data
    split, holders, about = parts(experiment, progress=progress)
    test_rows, test_holders = check_asked(data, experiment.population, experiment.shuffle, split.test)
    public = prepare_public(experiment, split.public, progress=progress)
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
    )
    return Prepared(public, held, about | sizes | {"test_repeats": data.test_repeats})


def check_asked(
    data: Data, people: Population, shuffler: Shuffle, test: Corpus
) -> tuple[NDArray[np.int64], Holders]:
    """The test sentence of each row that test users hold, and who holds it. UserError where they are too few for a
    batch."""
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
    """Advise how there are more test users, in a way that the experiment would not refuse."""
    if data.user is not None:
        return "raise data.test-limit" if data.test_limit is not None else "give texts of more test users"
    return "raise data.test-repeats"


def _in_common(data: Data, split: Split) -> dict[str, Any]:
    """What two parts share and what one repeats, for the results. Raises UserError where nobody has said why it may be:
    the built-in corpus' parts share no sentence, and may come near each other by chance."""
    found, repeated = compared(split, people=data.user is not None)
    shared = [each for each in found if each]
    people = next(each.users for each in found if (each.of, each.within) == ("test", "train"))
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
        f"{each.of} in {each.within}": {"rows": each.rows, "texts": each.texts, "near": each.near, "users": each.users}
        for each in found
    }
    return {"overlap": counts, "overlap_reason": data.overlap, "repeated": repeated}


def _test_holders(data: Data, people: Population, test: Corpus, rows: int) -> Holders:
    """Who holds each of the rows, users counted on from those who train: those that the data name, or one for each."""
    first = people.users
    if data.user is None or test.users is None:
        return Holders(first + np.arange(rows, dtype=np.int64), np.zeros(rows, np.int64))
    users, records = population.numbered(test.users)
    return Holders(first + users, records)


def _check_test_classes(test: Corpus) -> None:
    """Raises UserError where there is nothing to tell apart."""
    there = np.unique(test.labels)
    if len(there) < 2:
        said = f'all {len(test):,} test texts are of class "{test.classes[there[0]]}", and always guessing it is right'
        raise UserError(f"data.test: {said if len(there) else 'there are none'}; give test texts of two classes")


def _check_public(training: Training, public: Corpus) -> None:
    """Raise UserError where there are too few public texts for maps to be learned on."""
    if training.protocol.public_text and len(public) < 2:
        texts = f"{len(public)} public text{'s' * (len(public) != 1)}"
        raise UserError(f"data.public: there is {texts}, and maps are learned on two or more; make more texts public")


def _hand_out(people: Population, split: Split, seed: int) -> tuple[Split, Holders]:
    """The rows that the experiment's users hold, and who holds them; the rest of the rows is left out."""
    rows, users, records = population.assign(
        split.train, users=people.users, assignment=people.assignment, alpha=people.alpha, seed=seed
    )
    if len(np.unique(users)) < people.users:
        raise UserError(
            f"population.users: {people.users} were asked for, and the data have {len(np.unique(users))}; ask for fewer"
        )
    return Split(split.public, split.train.take(rows), split.test), Holders(users, records)
