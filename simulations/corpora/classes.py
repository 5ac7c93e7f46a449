"""Where two sets of labels meet: which class of the one is which class of the other, said by somebody or plain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from simulations.corpora.names import folded
from simulations.errors import UserError

#: What 0 and 1 mean where the other side says it in words, as everywhere in published sentiment data.
_BINARY = {"0": "negative", "1": "positive"}


def matched(data: Sequence[str], public: Sequence[str], said: Mapping[str, str] | None) -> dict[str, str]:
    """For each class of the data, in their order, the public part's class that is the same.

    said: `data.public.classes`, which an experiment may give. Without it the names are equal, but for case and Unicode
    form, or the data's are 0 and 1 and the public part's negative and positive; their order says nothing. Raises
    UserError.
    """
    if said is None:
        if sorted(data) == list(_BINARY) and set(public) == set(_BINARY.values()):
            return {name: _BINARY[name] for name in data}
        known = {folded(name): name for name in public}
        ours = {folded(name) for name in data}
        if ours != set(known) or not len(data) == len(public) == len(known):
            raise UserError(
                f"data.public.classes: is missing: the data's classes are {listed(data)}, the public part's "
                f"{listed(public)}, and no order says which is which; write classes = "
                f'{{ {_quoted(data[0])} = "{public[0]}", ... }}'
            )
        return {name: known[folded(name)] for name in data}
    for whose, named, there in (("the data have", said, data), ("the public part has", said.values(), public)):
        if sorted(named) != sorted(there):
            raise UserError(
                f"data.public.classes: must name each class once: {whose} {listed(there)}, and named are "
                f"{listed(list(named))}"
            )
    return {name: said[name] for name in data}


def listed(names: Sequence[str]) -> str:
    """The first names of a list, with commas between."""
    return ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")


def _quoted(name: str) -> str:
    escaped = name.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
