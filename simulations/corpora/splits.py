"""Splits of a corpus into a public part and the private rest, by users or by sentences; and samples of a part.

A split by users may leave the same text in both parts; a split by sentences may leave the same user in both.
`simulations.corpora.overlap` counts what the parts still have in common.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse import csgraph

from simulations.corpora.corpus import Corpus
from simulations.corpora.overlap import normalized
from simulations.errors import UserError

_STREAM = 0x5B117  # keeps these draws apart from others of the same seed
_HEAD = 3


def random_split(corpus: Corpus, fraction: float, seed: int) -> tuple[Corpus, Corpus]:
    """Return public and private parts that share no user: `fraction` of the users is public, with all their records.

    Without users, each record is a user. At least one user is public if fraction > 0.

    Raises:
        UserError: The fraction is outside [0, 1).
    """
    if corpus.users is None:
        owners = np.arange(len(corpus))
    else:
        owners = np.unique(np.asarray(corpus.users), return_inverse=True)[1]
    public = _chosen(int(owners.max(initial=-1)) + 1, fraction, seed)[owners]
    return corpus.take(np.flatnonzero(public)), corpus.take(np.flatnonzero(~public))


def split_by_sentence(corpus: Corpus, fraction: float, seed: int) -> tuple[Corpus, Corpus, int]:
    """Return public part, private part and number of dropped rows, for rows that are phrases of one another.

    A full sentence is a row that no other row contains (as a run of whole tokens, split at white space). `fraction` of
    the full sentences is public, at random. A phrase goes with the full sentences that contain it, and is dropped if
    these are in both parts. So no public row lies inside a private one, nor the other way round. Rows of the same
    tokens count as one sentence, and stay together.

    SST-2's 67,349 training rows hold 6,886 full sentences. At 5 %, seed 1: 2,979 rows are public, 63,441 private, 929
    dropped, in under a second. If a sentence is not itself a row, two of its longest phrases count as full sentences,
    and may share words across the split.

    Raises:
        UserError: Texts are pairs, or the fraction is outside [0, 1).
    """
    if any(isinstance(text, tuple) for text in corpus.texts[:1]):
        raise UserError('data.public.split: "by-sentence" works on single texts, not on pairs; use "random"')
    rows: dict[str, list[int]] = {}
    for row, text in enumerate(corpus.texts):
        rows.setdefault(" ".join(str(text).split()), []).append(row)
    sentences, inside = _sentences(list(rows))
    public = _chosen(len(sentences), fraction, seed)
    parts: tuple[list[int], list[int]] = ([], [])
    dropped = 0
    for phrase, holders in inside.items():
        where = {bool(public[holder]) for holder in holders}
        if len(where) == 2:
            dropped += len(rows[phrase])
        else:
            parts[0 if where.pop() else 1].extend(rows[phrase])
    return corpus.take(sorted(parts[0])), corpus.take(sorted(parts[1])), dropped


def split_by_text(corpus: Corpus, fraction: float, seed: int) -> tuple[Corpus, Corpus, int]:
    """Return public part, private part and number of dropped rows, if users may hold the same texts, as annotators do.

    The parts share neither a user nor a text, except for case and marks. About `fraction` of the users is public. Users
    with common texts stay together if `fraction` allows it. Texts still in both parts are dropped from the part with
    relatively fewer of them.

    Raises:
        UserError: As for `random_split`.
    """
    names = np.arange(len(corpus)) if corpus.users is None else np.asarray(corpus.users)
    owners = np.unique(names, return_inverse=True)[1].astype(np.int64)
    public, dropped = apart(owners, [normalized(text) for text in corpus.texts], fraction, seed)
    parts = [corpus.take(np.flatnonzero(part & ~dropped)) for part in (public, ~public)]
    return parts[0], parts[1], int(dropped.sum())


def apart(
    owners: NDArray[np.int64], texts: Sequence[str], fraction: float, seed: int, *, stream: int = 2
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return masks of the chosen and of the dropped rows, bool (n,) each.

    The chosen rows are those of about `fraction` of the users. A text in both parts is dropped from one of them.

    Args:
        owners: (n,) user of each row.
        texts: n normalized texts.
        fraction: Share of the users.
        seed: Seed of the draw.
        stream: Number that separates this draw from others of the seed.
    """
    if not 0 <= fraction < 1:
        raise UserError(f"data.public.fraction: {fraction}; give a number from 0 to below 1")
    users = int(owners.max(initial=-1)) + 1
    numbers = np.unique(np.asarray(texts, dtype=object), return_inverse=True)[1]
    nodes = users + int(numbers.max(initial=-1)) + 1
    shared = sparse.csr_matrix((np.ones(len(owners), np.int8), (owners, users + numbers)), shape=(nodes, nodes))
    kin = csgraph.connected_components(shared, directed=False)[1][:users]
    room = min(users, max(1, round(fraction * users))) if fraction > 0 else 0
    order = np.random.default_rng((seed, _STREAM, stream)).permutation(users)
    sizes, mask = np.bincount(kin), np.zeros(users, np.bool_)
    groups, least = set(), room / 2
    for group in dict.fromkeys(kin[order].tolist()):
        if sizes[group] <= room:
            groups.add(group)
            room -= int(sizes[group])
    mask[np.isin(kin, list(groups))] = True
    if room > least:  # the next group is larger than the room left: some of it is taken, with its nearest
        near = csgraph.breadth_first_order(shared, order[~mask[order]][0], directed=False, return_predecessors=False)
        mask[near[near < users][:room]] = True
    chosen = mask[owners]
    inside, outside = (np.bincount(numbers[part], minlength=nodes - users) for part in (chosen, ~chosen))
    stays = inside * (1 - fraction) >= outside * fraction  # the part that has more of it than the share
    return chosen, ((inside > 0) & (outside > 0))[numbers] & (chosen != stays[numbers])


def stratified(labels: NDArray[np.int64], size: int, seed: int) -> NDArray[np.int64]:
    """Return sorted row numbers (k,) of a random sample of at most `size` labels, with classes in proportion.

    Rows left by rounding down go to the classes that lost most, so each is within one row of its share. A rare one
    may get none.
    """
    if size >= len(labels):
        return np.arange(len(labels), dtype=np.int64)
    rng = np.random.default_rng((seed, _STREAM, 1))
    due = np.bincount(labels) * (size / len(labels))
    take = np.floor(due).astype(np.int64)
    take[np.argsort(take - due, kind="stable")[: size - int(take.sum())]] += 1
    drawn = [rng.permutation(np.flatnonzero(labels == label))[:count] for label, count in enumerate(take)]
    return np.sort(np.concatenate(drawn))


def _chosen(count: int, fraction: float, seed: int) -> NDArray[np.bool_]:
    if not 0 <= fraction < 1:
        raise UserError(f"data.public.fraction: {fraction}; give a number from 0 to below 1")
    size = min(count, max(1, round(fraction * count))) if fraction > 0 else 0
    chosen = np.zeros(count, dtype=np.bool_)
    chosen[np.random.default_rng((seed, _STREAM)).permutation(count)[:size]] = True
    return chosen


def _sentences(phrases: list[str]) -> tuple[list[str], dict[str, list[int]]]:
    """Return the full sentences among distinct phrases, and for each phrase the indices of those that contain it.

    The loop goes from long to short, so a phrase that no sentence contains yet is a sentence. Only runs with the
    first tokens and length of some phrase are looked up: near linear in the tokens.
    """
    lengths: dict[str, set[int]] = {}
    for phrase in phrases:
        tokens = phrase.split()
        lengths.setdefault(" ".join(tokens[:_HEAD]), set()).add(len(tokens))
    inside: dict[str, list[int]] = {phrase: [] for phrase in phrases}
    sentences: list[str] = []
    for phrase in sorted(phrases, key=lambda phrase: -len(phrase.split())):
        if inside[phrase]:
            continue
        tokens = phrase.split()
        runs = set()
        for start in range(len(tokens)):
            for head in range(1, min(_HEAD, len(tokens) - start) + 1):
                begin = " ".join(tokens[start : start + head])
                for length in lengths.get(begin, ()):
                    # A head shorter than _HEAD is a whole phrase.
                    if (length == head or head == _HEAD) and start + length <= len(tokens):
                        runs.add(" ".join(tokens[start : start + length]))
        for run in runs:
            if run in inside:
                inside[run].append(len(sentences))
        sentences.append(phrase)
    return sentences, inside
