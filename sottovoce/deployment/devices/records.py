"""Command `sottovoce device add`: a user's own records, from a file into the folder of a device."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from client.device.records import add_records
from client.node import load_device
from client.store.text_column import TextColumn
from mechanisms.pieces import Text
from simulations.corpora.columns import class_numbers, label_names, texts_of
from simulations.corpora.files import lines, read
from simulations.errors import UserError, no_file


def add(node: Path, file: Path, *, text: str | None, label: str | None, user: int | None, split: str) -> str:
    """Add a file's records to a device, all or none, and return one line for people.

    Args:
        node: Folder of the device.
        file: .txt with a sentence a line, or a file that `simulations.corpora.files.read` reads.
        text: Column of the texts.
        label: Column of the labels, by the names of the classes in the device's bundle.
        user: Number of the user; None for the default.
        split: Split of the records.

    Raises:
        UserError: A file, a column or a class is invalid. The message is one line.
        ValueError: The records cannot be added. The message is one line.
    """
    names = () if label is None else load_device(node, simulated=", whose records a study hands out").classes
    if label is not None and not names:
        raise UserError(f"{node}: names no classes; install a bundle that does")
    texts: Sequence[Text]
    if not file.is_file():
        raise no_file(file)
    if file.suffix.lower() == ".txt":
        if text is not None or label is not None:
            raise UserError(f"{file}: is read as lines, and has no columns; leave --text and --label out")
        texts, labels = TextColumn.of(line.strip() for _, line in lines(file) if line.strip()), None
    else:
        texts, labels = _columns(file, text, label, names)
    if not texts:
        raise UserError(f"{file}: holds no records; give it at least one")
    person, numbers = add_records(node, split, texts, labels, user)
    count = f"{len(numbers):,} record{'' if len(numbers) == 1 else 's'}"
    classes = "".join(f", {name} as class {number}" for number, name in enumerate(names))
    return (
        f"{node}: {count} of user {person} added to the split {split}, numbered {numbers[0]} to {numbers[-1]}{classes}"
    )


def _columns(
    file: Path, text: str | None, label: str | None, classes: Sequence[str]
) -> tuple[Sequence[Text], NDArray[np.int64] | None]:
    if text is None:
        raise UserError(f"{file}: name the column of the texts with --text")
    part = read(file, [text] if label is None else [text, label])
    labels = None
    if label is not None:
        labels = class_numbers(part, label_names(part, label), classes, "name the classes as the bundle does")
    return texts_of(part, text), labels
