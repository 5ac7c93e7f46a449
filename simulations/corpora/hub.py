"""Corpora from the Hugging Face hub by name, through `datasets`."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Unpack

from simulations.corpora.columns import Columns, Roles, as_numbers, make_corpora, named, require_columns
from simulations.corpora.corpus import Corpus
from simulations.errors import UserError

#: Short names that people use, with their places on the hub.
OWNERS = {"glue": "nyu-mll/glue", "imdb": "stanfordnlp/imdb"}


def read_hub(
    path: str, train: str = "train", test: str = "validation", **roles: Unpack[Roles]
) -> tuple[Corpus, Corpus]:
    """Return train and test corpora from two splits of "glue/sst2", "imdb", or any "owner/name[/configuration]".

    Classes are those that the hub names, or that occur in train.

    Args:
        path: Name on the hub.
        train: Train split.
        test: Test split.
        **roles: Columns (`Roles`).

    Raises:
        UserError: The hub cannot be reached, a name or split is unknown, or as for `read_files`.
    """
    wanted = named(roles)
    train_part, test_part = make_corpora(
        [read_part(path, split, wanted, label=wanted[1]) for split in (train, test)], **roles
    )
    return train_part, test_part


def read_part(path: str, split: str, wanted: list[str], *, label: str | None = None) -> Columns:
    """Return some columns of one split. `label` is the one whose classes the hub may name.

    Raises:
        UserError: As for `read_hub`.
    """
    import datasets  # takes seconds to import, and only this source needs it
    from datasets.exceptions import DatasetNotFoundError

    name, configuration = _located(path)
    place = f"{path} {split}"
    try:
        with _cache_alone_where_no_hub_answers():
            data = datasets.load_dataset(name, configuration, split=split)
    except DatasetNotFoundError as error:
        raise UserError(f"{path}: the hub has no such data set; check the name") from error
    except (ValueError, KeyError) as error:  # an unknown split or configuration
        raise UserError(f"{place}: {str(error).splitlines()[0]}") from error
    except OSError as error:
        raise UserError(
            f"{path}: no data hub can be reached and no copy is cached; connect this machine, "
            'or put the data into files and use source = "files"'
        ) from error
    require_columns(place, wanted, data.column_names, declared=True)
    feature = None if label is None else data.features[label]
    classes = tuple(feature.names) if isinstance(feature, datasets.ClassLabel) else None
    values = {column: as_numbers(data[column]) for column in wanted}
    return Columns(place, values, "row", range(len(data)), classes)


def _located(path: str) -> tuple[str, str | None]:
    parts = path.split("/")
    if parts[0] in OWNERS:
        name, rest = OWNERS[parts[0]], parts[1:]
    else:
        name, rest = "/".join(parts[:2]), parts[2:]
    if not all(parts) or len(rest) > 1:
        raise UserError(f'{path}: is no name of a data set; write "owner/name" or "owner/name/configuration"')
    return name, rest[0] if rest else None


@contextmanager
def _cache_alone_where_no_hub_answers() -> Iterator[None]:
    """Set `datasets` to its offline mode if no hub answers: it has no argument for it, and would try six times."""
    import datasets
    from huggingface_hub import constants

    from server.hub import reachable

    switches: tuple[Any, ...] = (datasets.config, constants)
    before = [switch.HF_HUB_OFFLINE for switch in switches]
    try:
        if not reachable():
            for switch in switches:
                switch.HF_HUB_OFFLINE = True
        yield
    finally:
        for switch, value in zip(switches, before, strict=True):
            switch.HF_HUB_OFFLINE = value
