"""Target of an attack: one arm of a finished run, its releases, the server's knowledge, and the truth for scores."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client.node import Node
from client.store.ledger import Ledger, LedgerError, LedgerRow
from mechanisms.arrays import FloatArray, IntArray
from mechanisms.channels import EMBEDDING, TEXT
from mechanisms.mechanism import parameters
from mechanisms.messages.questions import EmbeddingQuestion, Projection, decoded
from mechanisms.pieces import Text
from server.maps import FILE, Maps
from server.protocols.models import ASKED, ENCODER, STUDENT
from simulations.artifacts.public import CachedEncoder
from simulations.corpora.corpus import Corpus, Split
from simulations.corpora.parts import load_split
from simulations.errors import UserError
from simulations.experiment import Arm, ArmSetup, Experiment, embedding_mechanism, load, slug
from simulations.experiment.result import ArmResult, arms_of
from simulations.run.population import late
from simulations.run.prepare import Prepared, prepare
from sottovoce.adversary.attacks.scores import Rate
from sottovoce.adversary.estimators.vectors import drawn

log = logging.getLogger(__name__)


#: Least number of records of each kind in membership inference: if half of them are scored, the standard error of a
#: coin is .09.
LEAST = 30


@lru_cache(maxsize=1)
def prepared(run: Path) -> Prepared:
    """Return the run's data, and what its server learns from the public part, computed once for all attacks."""
    return prepare(load(run / "experiment.toml"))


@dataclass(frozen=True, eq=False)
class Target:
    """One arm of a finished run, with the settings of its attacks.

    Each kind of attack is a module with ATTACKS, a description of each attack by name, and entries(target, names). The
    function returns the entry of each result, and a line with the reason for each attack that does not apply. `names`
    are some of its ATTACKS.

    Args:
        run: Folder of the run.
        experiment: Experiment of the run.
        setup: Arm of the experiment.
        nodes: Nodes of the run, with their ledgers and the truth.
        limit: Most texts to attack.
        masked_lm: Checkpoint with a prediction head, for attacks that need one; None for that of the run, if it has
            one.
        attributes: Columns that attribute inference guesses; () for those of the corpus.
        shadows: Number of shadow models of membership inference; None for as many as take seconds.
        unprotected: Whether to attack also embeddings without any mechanism.
    """

    run: Path
    experiment: Experiment
    setup: ArmSetup
    nodes: list[Node]
    limit: int = 500
    masked_lm: Path | None = None
    attributes: tuple[str, ...] = ()
    shadows: int | None = None
    unprotected: bool = False

    @property
    def arm(self) -> Arm:
        """Return the arm of the experiment."""
        return self.setup.arm

    @property
    def seed(self) -> int:
        """Return the seed of the experiment."""
        return self.experiment.seed

    @property
    def model(self) -> Path:
        """Return the folder of the arm's model."""
        return self.run / "models" / slug(self.arm.name)

    @property
    def prepared(self) -> Prepared:
        """Return the run's data, and what its server learns from the public part."""
        return prepared(self.run)

    def split(self) -> Split:
        """Return the parts of the run's data, before users are chosen."""
        return load_split(self.experiment.data, self.experiment.population, self.seed)[0]

    def arm_results(self) -> dict[str, ArmResult]:
        """Return the results of the run by arm; none if the run has none."""
        path = self.run / "results.json"
        return {arm.name: arm for arm in arms_of(json.loads(path.read_text("utf-8")))} if path.is_file() else {}


class Skipped(Exception):
    """Reason why an attack does not apply."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """Success of one attack on one arm: an entry of attacks.json. Unknown values are None.

    Args:
        attack: Name of the attack.
        arm: Name of the arm.
        mechanism: Name of the mechanism.
        epsilon: ε that the mechanism names.
        worst_case_epsilon: ε of the theorem between any two inputs.
        stage: Names of the stages of the releases.
        texts: Number of attacked texts.
        tokens: Number of scored tokens.
        rate: Success.
        baseline: Success of a guess without any release.
        best: Largest success of any such attack.
        bound: Bound of the theorem for guesses from one release at a time.
        bound_counts: Bound of the theorem for an adversary who sees all releases and knows the number of each value
            (`adversary.estimators.allowed`).
        expected: Expected success of this attack, where theory gives it.
        attribute: Name of the guessed attribute.
        note: Further figures, for people.
        more: Further entries.
    """

    attack: str
    arm: str
    mechanism: str | None
    epsilon: float | None
    worst_case_epsilon: float
    stage: str
    texts: int
    tokens: int | None = None
    rate: Rate
    baseline: float
    best: float | None = None
    bound: float | None = None
    bound_counts: float | None = None
    expected: float | None = None
    attribute: str | None = None
    note: str = ""
    more: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the entry."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("rate", "more", "attribute")}
        attribute = {} if self.attribute is None else {"attribute": self.attribute}
        return values | asdict(self.rate) | attribute | dict(self.more)


def result_of(target: Target, mechanism: Any, stage: str) -> Callable[..., Result]:
    """Return a function to the results of attacks on a mechanism's releases."""
    return partial(
        Result,
        arm=target.arm.name,
        mechanism=mechanism.name,
        epsilon=getattr(mechanism, "epsilon", None),
        worst_case_epsilon=mechanism.guarantee.worst_case(),
        stage=stage,
    )


def collect(
    names: Iterable[str], attack: Callable[[str], Iterable[Result]], *, on: str
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the entries of attack(name) for each name, and a line for each that raises Skipped."""
    entries: list[dict[str, Any]] = []
    skipped: list[str] = []
    for name in names:
        try:
            for result in attack(name):
                suffix = "" if result.attribute is None else f" of {result.attribute}"
                log.info(f"{on}: {name}{suffix}: {result.rate.success:.3f} ± {result.rate.error:.3f}")
                entries.append(result.to_dict())
        except Skipped as reason:
            skipped.append(f"{name} on {on}: {reason}")
    return entries, skipped


# --- releases


@dataclass(frozen=True)
class Row:
    """One row of a node's ledger."""

    node: Node
    released: LedgerRow

    @property
    def split(self) -> str:
        """Return the split of the release, "train" or "test"."""
        return "train" if self.released.stage.startswith("train") else "test"

    @property
    def key(self) -> tuple[int, int]:
        """Return the user and the record."""
        return self.released.user, self.released.record


def rows_of(target: Target, channel: str | None = None) -> list[Row]:
    """Return every release of the arm on a channel, or on all channels, by user, record and stage.

    Raises:
        UserError: A ledger cannot be read.
    """
    results = []
    for node in target.nodes:
        path = node.folder / f"ledger-{slug(target.arm.name)}.sqlite"
        if not path.is_file():
            continue
        try:
            with Ledger(path, durable=False) as ledger:
                results += [Row(node, row) for row in ledger.rows() if channel in (None, row.channel)]
        except LedgerError as error:
            raise UserError(f"{path}: {error}") from error
    return sorted(results, key=lambda row: (*row.key, row.released.stage))


def attacked(target: Target, rows: Sequence[Row], what: str) -> list[Row]:
    """Return the releases to attack: those of training users, otherwise of test users; at most `target.limit`.

    Raises:
        UserError: There are fewer than two.
    """
    result = [row for row in rows if row.split == "train"] or list(rows)
    if len(result) < 2:
        raise UserError(f'{target.run}: arm "{target.arm.name}" has fewer than two released {what}')
    return [result[i] for i in np.sort(shuffled(target, len(result))[: target.limit])]


def shuffled(target: Target, n: int) -> np.ndarray:
    """Return 0..n-1 in an order that the study's seed determines."""
    return np.random.default_rng([target.seed, 6]).permutation(n)


def texts_of(target: Target, rows: Sequence[Row]) -> list[Text]:
    """Return the texts, or pairs, that releases were drawn from.

    Raises:
        UserError: A node does not hold one of them.
    """
    texts: dict[tuple[int, int], Text] = {}
    for node, split in {(row.node.folder, row.split): (row.node, row.split) for row in rows}.values():
        shard = node.shard(split)
        keys = zip(shard.users.tolist(), shard.records.tolist(), strict=True)
        texts |= dict(zip(keys, shard.texts, strict=True))
    for row in rows:
        if row.key not in texts:
            raise UserError(f"{target.run}: user {row.key[0]} has released a text that its node does not hold")
    return [texts[row.key] for row in rows]


def payloads(rows: Sequence[Row], kind: Any) -> NDArray[Any]:
    """Return what was released, (n, k), in numbers of its kind on the wire."""
    content = b"".join(row.released.payload for row in rows)
    return np.frombuffer(content, np.dtype(kind).newbyteorder("<")).astype(kind).reshape(len(rows), -1)


def points_of(rows: Sequence[Row], mechanism: Any) -> FloatArray:
    """Return released vectors (n, k) as numbers."""
    return decoded(mechanism, payloads(rows, np.float32 if mechanism.grid is None else mechanism.grid.dtype))


def stages(rows: Sequence[Row]) -> str:
    """Return the names of the stages of releases."""
    return ", ".join(sorted({row.released.stage for row in rows}))


def written_by_another(row: Row, arm: str) -> UserError:
    """Return the error for a release that the arm cannot have made by its experiment file."""
    path = row.node.folder / f"ledger-{slug(arm)}.sqlite"
    return UserError(
        f'{path}: was not written by arm "{arm}" as experiment.toml describes it, or by another version of Sottovoce '
        "(results.json names it)"
    )


# --- knowledge of the server


@dataclass(frozen=True, eq=False)
class Knowledge:
    """Knowledge of the server about an arm's releases.

    Args:
        texts: Texts of the public part.
        embeddings: Their embeddings (p, m).
        encoder: Encoder of the users.
        checkpoint: Checkpoint of the encoder, for its tokens and its lower layers.
        question: Question that the releases answer.
        seed: Seed of simulated draws.
    """

    texts: list[Text]
    embeddings: FloatArray
    encoder: CachedEncoder
    checkpoint: str | Path
    question: EmbeddingQuestion
    seed: int

    @cached_property
    def points(self) -> FloatArray:
        """Return the mechanism's inputs for the public texts, unit rows (p, m')."""
        return self.question.projection.apply(self.embeddings)

    def drawn(self, count: int) -> FloatArray:
        """Return simulated releases of the public texts on the public quantizer, (count, p, m')."""
        stages = [f"attack-{i}" for i in range(count)]
        return np.stack([drawn(self.question, self.points, seed=self.seed, stage=stage) for stage in stages])


def knowledge(target: Target, row: Row) -> Knowledge:
    """Return the server's knowledge at the request behind a release: the maps whose digest is the release's.

    Raises:
        UserError: There are no such maps.
    """
    public, folder = target.prepared.public, target.model
    checkpoint: str | Path
    if (folder / ENCODER).is_dir():  # the run has trained it for these releases
        encoder = CachedEncoder(folder / ENCODER)
        checkpoint = folder / STUDENT if (folder / STUDENT).is_dir() else folder
        embeddings = encoder.embed(public.texts)
    else:
        assert isinstance(public.encoder, CachedEncoder) and public.embeddings is not None
        encoder, checkpoint, embeddings = public.encoder, target.experiment.encoder.model, public.embeddings
        if target.experiment.encoder.fine_tune_on_public:
            checkpoint = encoder.folder / "checkpoint"
    sent = list(maps_sent(folder))
    if not sent:
        raise UserError(f"{folder}: holds no maps; this arm's model is gone")
    for maps in sent:
        assert target.arm.embedding is not None
        spec = parameters(embedding_mechanism(target.arm.embedding, maps.dim))
        projection = Projection(encoder.identity, maps.mean, maps.m1)
        question = EmbeddingQuestion(spec, projection=projection, classes=maps.classes)
        if question.digest(row.split) == row.released.digest:
            return Knowledge(
                list(public.texts), embeddings.astype(np.float64), encoder, checkpoint, question, target.seed
            )
    raise written_by_another(row, target.arm.name)


def maps_sent(model: Path) -> Iterator[Maps]:
    """Yield the maps that test users received, and those that training users received."""
    for folder in (model, model / ASKED):
        if (folder / FILE).is_file():
            yield Maps.load(folder)


# --- members and others


def arrived(target: Target, channel: str) -> list[Row]:
    """Return the training users' releases on a channel that the server has.

    Raises:
        Skipped: There are none.
    """
    results = target.arm_results()
    if target.arm.name in results and not results[target.arm.name].delivered:
        raise Skipped("no training user's release was delivered")
    training_rows = [row for row in rows_of(target) if row.split == "train"]
    rows = _in_time(target, [row for row in training_rows if row.released.channel == channel])
    if not rows:
        if not training_rows:
            raise Skipped("no training user has released anything")
        channels = " and ".join(sorted({row.released.channel for row in training_rows}))
        raise Skipped(f"what its training users released ({channels}) is not what this attack reads ({channel})")
    return rows


def delivered(target: Target) -> list[Row] | None:
    """Return the training users' embeddings or texts that reached the server; None if the protocol has none.

    Raises:
        Skipped: The users released nothing that membership attacks read. The message names what they released.
    """
    if not target.setup.protocol.private:
        return None
    return arrived(target, (EMBEDDING if target.arm.text is None else TEXT).name)


def rows_of_members(target: Target, rows: Sequence[Row]) -> IntArray:
    """Return the rows of the run's training part that were delivered.

    Raises:
        Skipped: The nodes hold other texts than the experiment's data have now.
    """
    held = target.prepared.held
    texts = dict(zip((row.key for row in rows), texts_of(target, rows), strict=True))
    keys = zip(held.holders.users.tolist(), held.holders.records.tolist(), strict=True)
    found = zip(keys, held.train.texts, strict=True)
    result = np.array([row for row, (key, text) in enumerate(found) if texts.get(key) == text], dtype=np.int64)
    if len(result) < len(texts):
        raise Skipped("the experiment's data are not those that the run was made with; who was a member is unknown")
    return result


def _in_time(target: Target, rows: list[Row]) -> list[Row]:
    """Return the rows without users who were late at their stage."""
    probability, result = target.experiment.population.late, []
    for stage in sorted({row.released.stage for row in rows}):
        stage_rows = [row for row in rows if row.released.stage == stage]
        people, person = np.unique([row.key[0] for row in stage_rows], return_inverse=True)
        absent = late(people, probability=probability, stage=stage, seed=target.seed)[person]
        result += [row for row, absence in zip(stage_rows, absent, strict=True) if not absence]
    return result


def members_and_others(target: Target, inside: IntArray) -> tuple[Corpus, Corpus, np.random.Generator]:
    """Return as many members as other records, at most the target's limit, and the generator that picked them.

    The members are rows `inside` of the training part.

    Raises:
        Skipped: There are too few records.
    """
    train, nonmembers = target.prepared.held.train, _others(target)
    n = min(target.limit, len(inside), len(nonmembers))
    if n < LEAST:
        raise Skipped(
            f"needs {LEAST} training records and as many others; there are {len(inside)} and {len(nonmembers)}, and "
            f"--limit is {target.limit}"
        )
    rng = np.random.default_rng([target.seed, 7])
    return train.take(rng.permutation(inside)[:n]), nonmembers.take(rng.permutation(len(nonmembers))[:n]), rng


def _others(target: Target) -> Corpus:
    """Return texts that nobody released: private texts without a user if there are enough, otherwise test texts."""
    held = target.prepared.held
    texts = set(held.train.texts)
    for corpus in (target.split().train, held.test):
        first: dict[Any, int] = {}
        for row, text in enumerate(corpus.texts):
            if text not in texts:
                first.setdefault(text, row)
        if len(first) >= min(target.limit, len(texts)):
            break
    return corpus.take(np.array(list(first.values()), dtype=np.int64))
