"""Three parts of an experiment's data: the public part, the users' part, and the test part."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from simulations.corpora import builtin, files, hub, splits
from simulations.corpora.classes import matched
from simulations.corpora.columns import Roles, class_numbers, label_names, refuse_two_spellings, texts_of
from simulations.corpora.corpus import Corpus, Split
from simulations.errors import no_file
from simulations.experiment.sections import Data, Population

#: Mean number of reviews of a user of the built-in corpus who may hold several.
REVIEWS_PER_USER = 5


def _read_public(data: Data, seed: int) -> Corpus:
    """Return the public texts of a file or of the hub, and their labels if these are public."""
    public = data.public
    label = (public.label or data.label) if public.labels else None
    wanted = [public.text or data.text or "", *([] if label is None else [label])]
    if public.split == "file":
        assert public.file is not None
        if not Path(public.file).is_file():
            raise no_file(Path(public.file))
        result = files.read(Path(public.file), wanted)
    else:
        assert public.hub is not None
        result = hub.read_part(public.hub, public.part or "train", wanted)
    names = label_names(result, wanted[1]) if label is not None else ["public"] * len(result.numbers)
    classes = tuple(sorted(set(names)))
    refuse_two_spellings(result.source, wanted[-1], classes)
    corpus = Corpus(texts_of(result, wanted[0]), class_numbers(result, names, classes, "name its class"), classes)
    if data.public_size is None or data.public_size >= len(corpus):
        return corpus
    rows = np.random.default_rng([seed, 12]).permutation(len(corpus))[: data.public_size]
    return corpus.take(np.sort(rows))


def read_parts(data: Data, *, label: str | None = None) -> tuple[Corpus, Corpus]:
    """Return the training part and the test part of files, or of the hub.

    `label` is another column of labels, as any attribute.

    Raises:
        UserError: They cannot be read.
    """
    columns: Roles = {
        "text": data.text or "",
        "label": data.label or "" if label is None else label,
        "second_text": data.second_text,
    }
    if label is None:
        columns |= {"user": data.user, "group": data.group, "numbers": data.numbers}
    read = files.read_files if data.source == "files" else hub.read_hub
    return read(str(data.path), str(data.train), str(data.test), **columns)


def load_split(data: Data, people: Population, seed: int) -> tuple[Split, dict[str, object]]:
    """Return the three parts, with all candidate users, and a description of their source.

    Raises:
        UserError: The data cannot be read, or do not fit the settings.
    """
    task, size = data.task or "", data.public_size or 0
    if data.source == "built-in":
        users, test_size = people.users, data.test_size or 0
        rows, authors = users, None
        if people.assignment != "record":  # several reviews for each user, as far as the corpus has them
            room = builtin.LIMIT - size - test_size
            rows, authors = max(users, min(REVIEWS_PER_USER * users, room)), users
        split = builtin.builtin(task=task, public=size, train=rows, test=test_size, seed=seed, authors=authors)
        return split, {"source": "built-in", "task": task}
    train, test = read_parts(data)
    about: dict[str, object] = {"source": data.source, "split": data.public.split}
    in_two = {"by-sentence": splits.split_by_sentence, "by-text": splits.split_by_text}.get(str(data.public.split))
    fraction, dropped = data.public.fraction or 0.0, 0
    if in_two is not None:
        public, private, dropped = in_two(train, fraction, seed)
        about["dropped"] = dropped
    elif data.public.split == "random":
        public, private = splits.random_split(train, fraction, seed)
    else:
        if data.public.split == "built-in":
            public = builtin.builtin(task=task, public=size, train=1, test=1, seed=seed).public
        else:
            public = _read_public(data, seed)
        labels = np.zeros(len(public), np.int64)  # placeholders where labels are not public
        if data.public.labels:
            about["classes"] = same = matched(train.classes, public.classes, data.public.classes)
            indices = {name: i for i, name in enumerate(same.values())}
            labels = np.array([indices[public.classes[label]] for label in public.labels], np.int64)
        public = Corpus(public.texts, labels, train.classes)
        private = train
    if data.held_out is not None:
        about["held_out"] = data.held_out
        if in_two is not None:
            test, private, more = in_two(private, data.held_out, seed)
            about["dropped"] = dropped + more
        else:
            test, private = splits.random_split(private, data.held_out, seed)
    return Split(public, private, test), about
