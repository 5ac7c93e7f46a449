"""Corpora from the Hugging Face hub by name, through `datasets`."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from simulations.corpora.columns import Columns, RowNames, as_numbers, make_corpora, require_columns
from simulations.corpora.corpus import Corpus
from simulations.errors import UserError

#: Short names that people use, with their places on the hub.
OWNERS = {"glue": "nyu-mll/glue", "imdb": "stanfordnlp/imdb"}


def read_hub(
    path: str,
    *,
    train: str = "train",
    test: str = "validation",
    text: str,
    label: str,
    user: str | None = None,
    second_text: str | None = None,
    group: str | None = None,
    numbers: Sequence[float] | None = None,
) -> tuple[Corpus, Corpus]:
    """Return train and test corpora from two splits of "glue/sst2", "imdb", or any "owner/name[/configuration]".

    Classes are those that the hub names, or that occur in train.

    Args:
        path: Name on the hub.
        train: Train split.
        test: Test split.
        text: Column of the texts.
        label: Column of the labels.
        user: Column of the users, or None.
        second_text: Column of the second texts. With it, each text is a pair (in "glue/qnli": question and sentence).
        group: Column of an attribute, or None.
        numbers: Values of numeric labels (`make_corpora`).

    Raises:
        UserError: The hub cannot be reached, a name or split is unknown, or as for `read_files`.
    """
    wanted = [column for column in (text, label, user, second_text, group) if column]
    parts = [read_part(path, split, wanted, label=label) for split in (train, test)]
    corpora = make_corpora(
        parts, text=text, label=label, user=user, second_text=second_text, group=group, numbers=numbers
    )
    return corpora[0], corpora[1]


def read_part(path: str, split: str, wanted: list[str], *, label: str | None = None) -> Columns:
    """Return some columns of one split. `label` is the one whose classes the hub may name.

    Raises:
        UserError: As for `read_hub`.
    """
    name, configuration = _located(path)
    return _read(path, name, configuration, split, label, wanted)


def _located(path: str) -> tuple[str, str | None]:
    parts = path.split("/")
    if parts[0] in OWNERS:
        name, rest = OWNERS[parts[0]], parts[1:]
    else:
        name, rest = "/".join(parts[:2]), parts[2:]
    if not all(parts) or len(rest) > 1:
        raise UserError(f'{path}: is no name of a data set; write "owner/name" or "owner/name/configuration"')
    return name, rest[0] if rest else None


def _read(path: str, name: str, configuration: str | None, split: str, label: str | None, wanted: list[str]) -> Columns:
    import datasets  # takes seconds to import, and only this source needs it
    from datasets.exceptions import DatasetNotFoundError

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
    named = None if label is None else data.features[label]
    classes = tuple(named.names) if isinstance(named, datasets.ClassLabel) else None
    values = {column: as_numbers(data[column]) for column in wanted}
    return Columns(place, values, RowNames("row", range(len(data))), classes)


@contextmanager
def _cache_alone_where_no_hub_answers() -> Iterator[None]:
    """Set `datasets` to its offline mode if no hub answers: it has no argument for it, and would try six times."""
    import datasets
    from huggingface_hub import constants

    from server.hub import reachable

    switches = (datasets.config, constants)
    before = [switch.HF_HUB_OFFLINE for switch in switches]
    try:
        if not reachable():
            for switch in switches:
                switch.HF_HUB_OFFLINE = True
        yield
    finally:
        for switch, value in zip(switches, before, strict=True):
            switch.HF_HUB_OFFLINE = value
