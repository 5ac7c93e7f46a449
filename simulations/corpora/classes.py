"""Correspondence of two sets of labels, stated by the experiment or evident from the names."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from simulations.corpora.names import folded
from simulations.errors import UserError

#: Meaning of 0 and 1 if the other side uses words, as in all published sentiment data.
_BINARY = {"0": "negative", "1": "positive"}
#: Words before the number of a class.
_NUMBERED = {"class", "label", "category", "cat", "cluster", "group", "topic", "type", "kind", "level", "id", "no"}


def matched(data: Sequence[str], public: Sequence[str], mapping: Mapping[str, str] | None) -> dict[str, str]:
    """Return, for each class of the data, in their order, the same class of the public part.

    Args:
        data: Classes of the data.
        public: Classes of the public part.
        mapping: `data.public.classes`, which an experiment may give. Without it the names must be equal, except for
            case and Unicode form, or the data's be 0 and 1 and the public part's negative and positive. Their order
            is not used.

    Raises:
        UserError: The classes do not correspond.
    """
    if mapping is None:
        if sorted(data) == list(_BINARY) and set(public) == set(_BINARY.values()):
            return {name: _BINARY[name] for name in data}
        public_names = {folded(name): name for name in public}
        data_names = {folded(name) for name in data}
        if data_names != set(public_names) or not len(data) == len(public) == len(public_names):
            raise UserError(
                f"data.public.classes: is missing: the data's classes are {listed(data)}, the public part's "
                f"{listed(public)}, and no order says which is which; write classes = "
                f'{{ {_quoted(data[0])} = "{public[0]}", ... }}'
            )
        return {name: public_names[folded(name)] for name in data}
    for whose, named, classes in (("the data have", mapping, data), ("the public part has", mapping.values(), public)):
        if sorted(named) != sorted(classes):
            raise UserError(
                f"data.public.classes: must name each class once: {whose} {listed(classes)}, and named are "
                f"{listed(list(named))}"
            )
    return {name: mapping[name] for name in data}


def described(
    classes: Sequence[str], descriptions: str | Mapping[str, Sequence[str]], *, numbers: bool, pairs: bool
) -> list[tuple[str, ...]] | None:
    """Return the texts that describe each class, in their order; None if the classes say nothing.

    Args:
        classes: Names of the classes.
        descriptions: `data.class-descriptions` of the experiment.
        numbers: Whether labels are numbers; their names then say nothing.
        pairs: Whether texts are pairs; a name then describes no text.

    Raises:
        UserError: A table names other classes than the data have.
    """
    if isinstance(descriptions, Mapping):
        if sorted(descriptions) != sorted(classes):
            raise UserError(
                f"data.class-descriptions: must name each class once: the data have {listed(classes)}, and named are "
                f"{listed(list(descriptions))}"
            )
        return [tuple(descriptions[name]) for name in classes]
    if descriptions == "none" or numbers or pairs:
        return None
    names = [" ".join(re.findall(r"[^\W_]+", name)) for name in classes]
    return [(name,) for name in names] if all(map(_says_something, names)) else None


def _says_something(name: str) -> bool:
    """Return whether a class's name has a word other than those by which classes are numbered."""
    words = re.findall(r"[^\W\d_]{2,}", name.casefold())
    return any(word not in _NUMBERED for word in words)


def listed(names: Sequence[str]) -> str:
    """Return the first names of a list, with commas between."""
    return ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")


def _quoted(name: str) -> str:
    escaped = name.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
