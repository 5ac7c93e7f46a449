"""The three parts of an experiment's data: public, held by users, and for the test."""

from __future__ import annotations

import numpy as np

from simulations.corpora import builtin, files, hub, splits
from simulations.corpora.classes import matched
from simulations.corpora.corpus import Corpus, Split
from simulations.experiment import Experiment

#: Of the built-in corpus, on average, where a user may hold several.
REVIEWS_PER_USER = 5


def load_split(experiment: Experiment) -> tuple[Split, dict[str, object]]:
    """The public part, what users hold before they are chosen, and the test part; and words about them."""
    data, seed = experiment.data, experiment.seed
    if data.source == "built-in":
        people = experiment.population
        train, authors = people.users, None
        if people.assignment != "record":  # several reviews to a user, as far as the corpus goes
            room = builtin.LIMIT - data.public_size - data.test_size
            train = max(people.users, min(REVIEWS_PER_USER * people.users, room))
            authors = people.users
        split = builtin.builtin(
            task=data.task, public=data.public_size, train=train, test=data.test_size, seed=seed, authors=authors
        )
        return split, {"source": "built-in", "task": data.task}
    if data.source == "files":
        train, test = files.read_files(
            data.path, data.train, data.test,
            text=data.text, label=data.label, user=data.user, second_text=data.second_text,
            numbers=data.numbers,
        )  # fmt: skip
    else:
        train, test = hub.read_hub(
            data.path, train=data.train, test=data.test,
            text=data.text, label=data.label, user=data.user, second_text=data.second_text,
            numbers=data.numbers,
        )  # fmt: skip
    about: dict[str, object] = {"source": data.source, "split": data.public.split}
    if data.public.split == "by-sentence":
        public, private, dropped = splits.split_by_sentence(train, data.public.fraction, seed)
        about["dropped"] = dropped
    elif data.public.split == "random":
        public, private = splits.random_split(train, data.public.fraction, seed)
    else:
        public = builtin.builtin(task=data.task, public=data.public_size, train=1, test=1, seed=seed).public
        labels = np.zeros(len(public), np.int64)  # nobody's, where labels are not public
        if data.public.labels:
            about["classes"] = same = matched(train.classes, public.classes, data.public.classes)
            ours = {name: i for i, name in enumerate(same.values())}
            labels = np.array([ours[public.classes[label]] for label in public.labels], np.int64)
        public = Corpus(public.texts, labels, train.classes)
        private = train
    return Split(public, private, test), about
