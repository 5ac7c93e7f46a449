"""Games of each mechanism: the worst known pair of inputs, the claim about it, and draws.

Only a mechanism of the catalogue has a game of its kind (`GAMES`). The audit does not trust other mechanisms about the
worst pair, nor about the best score. Inputs are chosen by the stated probabilities and by a pilot of separate draws, so
the audit's false-alarm rate stands. Each score from the stated probabilities has a learned score beside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import accumulate, cycle, product
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from mechanisms.arrays import FloatArray, IntArray
from mechanisms.catalogue import CATALOGUE, admit, instance
from mechanisms.channels import Domain, domain_of
from mechanisms.facts import usual
from mechanisms.guarantee import Guarantee
from mechanisms.identity import Identity
from mechanisms.losses.categorical import pair_loss, pure_loss
from mechanisms.losses.loss import LossCells
from mechanisms.mechanism import parameters
from mechanisms.quantizer import SPHERE
from mechanisms.streams import SimulatedUniforms, SimulationStreams
from mechanisms.vocabulary import NOTHING, Vocabulary
from mechanisms.words.custext import CusTextImportance
from mechanisms.words.distances import metric_distances
from mechanisms.words.santext import SanText
from mechanisms.words.text import Length, TextMechanism
from simulations.errors import UserError
from sottovoce.adversary.estimators.audit import Fit, Score, finite, known, learned, looked_at, paired

#: Largest ε that a practical number of draws can show; claims have no points above it.
_REACH = 14.0
_POINTS = 48
#: Draws at once.
_CHUNK = 2**17
#: Rows of a batch that are also drawn in batches of these sizes in turn.
_BATCH, _SIZES = 512, (1, 2, 3, 5, 8, 13)


@dataclass(frozen=True, eq=False)
class PairClaim:
    """Claim about one pair of inputs.

    Args:
        pure: ε at δ = 0; inf if there is none.
        at_delta: ε at the audit's δ.
        points: Points (ε, δ), (J, 2), at each of which the pair is claimed to be indistinguishable; may be empty.
        numeric_delta: Largest total variation between the sampler and the claimed distribution.
    """

    pure: float
    at_delta: float
    points: FloatArray
    numeric_delta: float = 0.0


@dataclass(frozen=True, eq=False)
class Game:
    """One test of an audit: draws under two inputs, which the scores `fits` distinguish.

    Args:
        name: Name in --mechanism.
        about: Parameters of the mechanism.
        pair: Description of the two inputs.
        worst: The guarantee's worst case over all inputs, with its exposures declared public.
        theorem: Claim about this pair.
        draw: Function draw(side, n, seed) that returns n independent outputs under x (side 0) or x' (side 1).
        fits: Functions that learn a score.
        law: Claim of the pair's exact distribution, if it is known in closed form and says more than the theorem.
        share: Share of the requested draws to make, above the least number. It is smaller if a draw is a whole
            simulation.
        gaussian: Whether the claim is a Gaussian's curve, so that a bound of its μ is one of ε at every δ.
        differing: Function of a seed that counts the rows of a batch that differ in small batches; None if draws
            cannot be repeated.
    """

    name: str
    about: str
    pair: str
    worst: float
    theorem: PairClaim
    draw: Callable[[int, int, int], NDArray[Any]]
    fits: tuple[Fit, ...]
    law: PairClaim | None = None
    share: float = 1.0
    gaussian: bool = False
    differing: Callable[[int], int] | None = None

    @property
    def claims(self) -> tuple[PairClaim, ...]:
        """Return the claims that can be violated; none if nothing is promised."""
        return tuple(c for c in (self.theorem, self.law) if c is not None and len(c.points))

    @property
    def shown(self) -> FloatArray:
        """Return points (J, 2) of the closest claim whose δ is always measured: at ε = 0, and at half of ε(δ)."""
        if not self.claims:
            return np.zeros((0, 2))
        closest = self.claims[-1]
        half = min(closest.at_delta, _REACH) / 2
        rows = {int(np.argmin(np.abs(closest.points[:, 0] - epsilon))) for epsilon in (0.0, half)}
        return closest.points[sorted(rows)]


def claim(loss: LossCells, guarantee: Guarantee, delta: float) -> PairClaim:
    """Return the claim of a loss distribution about its pair, with the samplers' numeric ε and δ."""
    numeric = guarantee.numeric_epsilon
    pure, at_delta = loss.epsilon(0.0) + numeric, loss.epsilon(delta) + numeric
    grid = np.linspace(0.0, min(pure, _REACH), _POINTS)
    epsilons = np.unique(np.concatenate([grid, [e for e in (pure, at_delta) if e <= _REACH]]))
    deltas = np.array([_delta(loss, guarantee, float(e)) for e in epsilons])
    return PairClaim(pure, at_delta, np.column_stack([epsilons, deltas])[deltas < 1], guarantee.numeric_delta)


def _delta(loss: LossCells, guarantee: Guarantee, epsilon: float) -> float:
    """Return δ(ε) of a loss, for a sampler within the guarantee's numeric ε and δ of it under either input."""
    numeric = guarantee.numeric_epsilon
    numeric_delta = guarantee.numeric_delta * (1 + math.exp(epsilon))
    return min(1.0, loss.delta(epsilon - numeric) * math.exp(numeric) + numeric_delta)


def streams(name: str, side: int, n: int, seed: int, start: int = 0) -> SimulatedUniforms:
    """Return rows start..start + n of the streams of one side of a game."""
    users = np.arange(start, start + n, dtype=np.int64)
    return SimulationStreams(seed).rows(users, np.zeros(n, np.int64), stage=f"audit {name}", channel=f"side {side}")


def _drawn(name: str, sample: Callable[[int, int, Any], NDArray[Any]]) -> dict[str, Any]:
    """Return a game's draws, by sample(side, n, rng): in pieces of bounded memory, and of a batch beside small ones.

    A row's draw depends on its input and its own uniforms alone. So a mechanism that answers in clear for one row, or
    leaks at every 499th place or call, draws some rows of a batch otherwise than in small batches.
    """

    def draw(side: int, n: int, seed: int) -> NDArray[Any]:
        starts = range(0, n, _CHUNK)
        pieces = [(at, min(_CHUNK, n - at)) for at in starts]
        return np.concatenate([sample(side, size, streams(name, side, size, seed, at)) for at, size in pieces])

    def differing(seed: int) -> int:
        batch, count = sample(0, _BATCH, streams(name, 0, _BATCH, seed)), 0
        for at, size in zip(accumulate(cycle(_SIZES), initial=0), cycle(_SIZES), strict=False):
            if (rows := batch[at : at + size]).size == 0:
                return count
            repeats = sample(0, len(rows), streams(name, 0, len(rows), seed, at))
            count += sum(not np.array_equal(row, item) for row, item in zip(rows, repeats, strict=True))
        return count

    return {"draw": draw, "differing": differing}


# --- embeddings


def ratio(mechanism: Any, x: FloatArray, other: FloatArray, *, rounded: bool = True) -> Score:
    """Return the log-likelihood ratio of x against another unit vector, as a score of outputs.

    `rounded` undoes the quantizer's rounding of outputs on a sphere.
    """

    def score(outputs: NDArray[Any]) -> FloatArray:
        z = outputs / np.linalg.norm(outputs, axis=1, keepdims=True) if rounded else outputs
        of_x, of_other = (mechanism.log_prob(z, np.tile(unit, (len(z), 1))) for unit in (x, other))
        return of_x - of_other

    return score


def sphere_game(mechanism: Any, delta: float, *, along: FloatArray | None = None, shown: str = "antipodal") -> Game:
    """Return the game of an antipodal pair, released on the public quantizer.

    It uses the likelihood ratio if the density is known, otherwise a learned linear score. Other scores read everything
    visible in the coordinates.

    The pair lies along a unit vector, or the first axis.
    """
    size = mechanism.size if isinstance(mechanism, Identity) else mechanism.dim
    first = np.eye(1, size)[0] if along is None else along
    inputs, grid = np.stack([first, -first]), mechanism.grid

    def sample(side: int, n: int, rng: Any) -> NDArray[Any]:
        y = mechanism.sample(np.tile(inputs[side], (n, 1)), rng=rng)
        return y if grid is None else grid.decode(grid.encode(y))

    density = hasattr(mechanism, "log_prob") and not getattr(mechanism, "normalize", False)
    return Game(
        name=mechanism.name,
        about=_about(mechanism),
        pair=shown,
        worst=mechanism.guarantee.worst_case(),
        theorem=claim(mechanism.privacy_loss(), mechanism.guarantee, delta),
        **_drawn(mechanism.name + _about(mechanism) + ("" if along is None else shown), sample),
        fits=(
            known(ratio(mechanism, *inputs, rounded=grid is SPHERE)) if density else learned,
            *(() if grid is None else (looked_at(grid.step), paired(grid.step))),
        ),
    )


# --- finitely many outcomes


def finite_game(
    mechanism: Any,
    inputs: Any,
    delta: float,
    *,
    shown: str,
    pair: tuple[int, int] = (0, 1),
    outcomes: NDArray[Any] | None = None,
    table: Any = None,
    distances: FloatArray | None = None,
    loss: LossCells | None = None,
    worst: float | None = None,
    **private: Any,
) -> Game:
    """Return the game of a pair of inputs of a mechanism with finitely many outcomes.

    Args:
        mechanism: Mechanism.
        inputs: Inputs, a number or a row of numbers each.
        delta: δ of the audit.
        shown: Description of the pair.
        pair: Numbers of the pair's inputs.
        outcomes: All outcomes (J,) or (J, L).
        table: Their log-probabilities under the inputs, (inputs, J); None if they are not known in closed form.
        distances: Distances of all inputs; None if the claim depends on none.
        loss: Claimed loss; None for the mechanism's at the distance.
        worst: Worst case; None for the guarantee's.
        **private: Other arguments of `sample`, for each of the inputs.
    """
    guarantee, (x, y) = mechanism.guarantee, pair

    def sample(side: int, n: int, rng: Any) -> NDArray[Any]:
        row = np.asarray(inputs[pair[side]])
        arguments = {key: _rows(values[pair[side]], n) for key, values in private.items()}
        return mechanism.sample(np.tile(row, (n, 1)) if row.ndim else np.full(n, row), rng=rng, **arguments)

    law: PairClaim | None = None
    fit: Fit = learned
    if table is not None and outcomes is not None:
        support = np.isfinite(table[x]) | np.isfinite(table[y])
        law = law_of(table[x], table[y], guarantee, delta)
        with np.errstate(invalid="ignore"):
            fit = finite(outcomes[support], table[x][support] - table[y][support])
    if loss is None:
        loss = mechanism.privacy_loss(None if distances is None else float(distances[x, y]))
    return Game(
        name=mechanism.name,
        about=_about(mechanism),
        pair=shown,
        worst=guarantee.worst_case(declared=guarantee.exposes) if worst is None else worst,
        theorem=claim(loss, guarantee, delta),
        law=law,
        **_drawn(f"{mechanism.name} {_about(mechanism)} {shown}", sample),
        fits=(fit,),
    )


def law_of(one: FloatArray, other: FloatArray, guarantee: Guarantee, delta: float) -> PairClaim:
    """Return the exact curve of a pair with log-probabilities (J,) each: at every ε, that of the worse direction."""
    support = np.isfinite(one) | np.isfinite(other)
    with np.errstate(invalid="ignore"):
        losses = pair_loss(one[support], other[support]), pair_loss(other[support], one[support])
    directions = [claim(loss, guarantee, delta) for loss in losses]
    epsilons = np.unique(np.concatenate([direction.points[:, 0] for direction in directions]))
    deltas = np.max([[_delta(loss, guarantee, float(e)) for e in epsilons] for loss in losses], axis=0)
    return PairClaim(
        max(direction.pure for direction in directions),
        max(direction.at_delta for direction in directions),
        np.column_stack([epsilons, deltas])[deltas < 1],
        guarantee.numeric_delta,
    )


def _rows(value: Any, n: int) -> Any:
    return value if callable(value) else np.tile(value, (n, 1))


def worst_pair(apart: FloatArray, together: NDArray[Any] | None = None) -> tuple[int, int]:
    """Return the two different inputs that lie farthest apart, of all pairs (inputs, inputs).

    If inputs have numbers `together`, only inputs of one number >= 0 may be a pair.
    """
    allowed = ~np.eye(len(apart), dtype=bool)
    if together is not None:
        allowed &= (together[:, None] == together) & (together >= 0)
    x, y = divmod(int(np.argmax(np.where(allowed, apart, -np.inf))), len(apart))
    return x, y


def losses(table: FloatArray) -> FloatArray:
    """Return the largest log p_x/p_x' at any output, for all pairs, from log-probabilities (inputs, outputs)."""
    with np.errstate(invalid="ignore"):
        return np.stack([np.where(np.isneginf(row), -np.inf, row - table).max(axis=1) for row in table])


def word_game(mechanism: Any, delta: float) -> Game:
    """Return the game of the two words whose stated probabilities differ most, by search over all pairs.

    A mechanism that states none gives the two words that lie farthest apart, with learned probabilities of outputs.
    """
    vocabulary, inputs = mechanism.vocabulary, np.arange(len(mechanism.vocabulary) + 1)
    try:
        table = mechanism.log_probs(inputs)
        apart = losses(table)
    except (AttributeError, NotImplementedError):
        table, apart = None, distances_of(mechanism)
    pair = worst_pair(apart, _together(mechanism))
    return finite_game(
        mechanism,
        inputs,
        delta,
        shown=" / ".join(_word(vocabulary, word) for word in pair),
        pair=pair,
        outcomes=inputs[:-1],
        table=table,
        distances=distances_of(mechanism) if mechanism.guarantee.metric == "euclidean" else None,
    )


def _together(mechanism: Any) -> IntArray:
    """Return a number for each word, (V + 1,): the theorem covers words of one number >= 0 together."""
    names, numbers = set(mechanism.guarantee.exposes), np.zeros(len(mechanism.vocabulary) + 1, dtype=np.int64)
    if "group" in names:
        numbers = mechanism.mapping.group.astype(np.int64)
    if "tag" in names:
        numbers = np.append(np.asarray(mechanism.vocabulary.tags, dtype=np.int64), -1)
    if "frequent-words" in names:
        numbers = np.where(mechanism.sensitive, numbers, -1)
    if "stop-words" in names:
        numbers = np.where(mechanism.vocabulary.kinds["stop_words"], -1, numbers)
    return numbers


def distances_of(mechanism: Any) -> FloatArray:
    """Return the distances of all inputs, (V + 1, V + 1), by the metric of the guarantee."""
    inputs = np.arange(len(mechanism.vocabulary) + 1)
    return metric_distances(mechanism, inputs, inputs)


def _word(vocabulary: Vocabulary, number: int) -> str:
    return vocabulary.words[number] if number < len(vocabulary) else "unknown word"


def label_game(mechanism: Any, delta: float) -> Game:
    """Return the game of two labels; with a prior, the two likeliest under one that leaves some labels out."""
    labels = np.arange(getattr(mechanism, "outputs", mechanism.classes))
    private: dict[str, Any] = {}
    if mechanism.needs_prior:
        prior = 0.6 ** np.arange(mechanism.classes)
        private = {"prior": [prior / prior.sum()] * 2}
    arguments = {key: _rows(values[0], len(labels)) for key, values in private.items()}
    table = [mechanism.log_prob(labels, np.full(len(labels), x), **arguments) for x in (0, 1)]
    return finite_game(mechanism, (0, 1), delta, shown="two labels", outcomes=labels, table=table, **private)


def model_game(mechanism: Any, delta: float) -> Game:
    """Return the game of logits at their bounds.

    One text's logits favour one word over all others, the other text's logits the reverse.
    """
    size = len(mechanism.vocabulary)
    favour = np.full(size, mechanism.low - 1.0)
    favour[0] = mechanism.high + 1.0
    logits = (favour, -favour + mechanism.high + mechanism.low)

    def answering(row: FloatArray) -> Callable[..., FloatArray]:
        return lambda positions, words, rows: np.broadcast_to(row, (len(rows), size))

    table, outcomes = [mechanism.log_probs(row[None])[0] for row in logits], np.arange(size)
    deletion = getattr(mechanism, "deletion", 0.0)
    if deletion:  # a text of one token is then empty, unless a word was added
        empty = deletion * (1 - mechanism.addition)
        outcomes = np.append(outcomes, NOTHING)
        table = [np.append(row + math.log1p(-empty), math.log(empty)) for row in table]
    return finite_game(
        mechanism,
        np.ones((2, 1), np.int64),
        delta,
        shown="opposite logits",
        outcomes=outcomes[:, None],
        table=table,
        scores=tuple(answering(row) for row in logits),
    )


def importance_game(mechanism: CusTextImportance, delta: float) -> Game:
    """Return the game of the worst two texts of two tokens of one group; another token may matter in each."""
    outcomes = np.array(list(product(mechanism.mapping.members[0], repeat=2)))
    inputs, importance = np.repeat(outcomes, 2, axis=0), np.tile(np.eye(2), (len(outcomes), 1))
    count = len(outcomes)
    rows = [(np.tile(x, (count, 1)), np.tile(w, (count, 1))) for x, w in zip(inputs, importance, strict=True)]
    table = np.stack([mechanism.log_prob(outcomes, x, importance=w) for x, w in rows])
    epsilon = 2 * max(mechanism.epsilon, mechanism.rest)
    return finite_game(
        mechanism,
        inputs,
        delta,
        shown="two tokens of one group",
        pair=worst_pair(losses(table)),
        outcomes=outcomes,
        table=table,
        loss=pure_loss(epsilon),
        worst=epsilon,
        importance=importance,
    )


def text_game(text: TextMechanism, delta: float) -> Game:
    """Return the game of the worst two texts of at most one word, with their lengths, by enumeration."""
    assert text.lengths is not None and text.tokens == 1
    inputs = np.array([*range(len(text.vocabulary) + 1), NOTHING])[:, None]
    outcomes, law = text_law(text)
    table = np.vstack([law(x) for x in inputs])
    pair = worst_pair(losses(table))
    shown = " / ".join("no word" if i == NOTHING else _word(text.vocabulary, int(i)) for i in inputs[list(pair), 0])
    words = np.where(inputs[:, 0] == NOTHING, text.vocabulary.unknown, inputs[:, 0])
    distances = distances_of(text.word)[np.ix_(words, words)]
    game = finite_game(text, inputs, delta, shown=shown, pair=pair, outcomes=outcomes, table=table, distances=distances)
    return replace(game, name="text")


def text_distance(text: TextMechanism, x: NDArray[Any], y: NDArray[Any]) -> float:
    """Return the distance of two texts (L,) over their places; a place without a word counts as an unknown word."""
    x, y = (np.where(i == NOTHING, text.vocabulary.unknown, i) for i in (x, y))
    return float(distances_of(text.word)[x, y].sum())


def text_law(text: TextMechanism) -> tuple[IntArray, Callable[[NDArray[Any]], FloatArray]]:
    """Return all outcomes of a text, (J, L), and a function from a text (L,) to their log-probabilities (J,).

    Outcomes are word ids and NOTHING after the end. J is the number of words to the power of L, so it suits few words
    and places.
    """
    lengths, word = text.lengths, cast(Any, text.word)
    assert lengths is not None
    words, places = range(len(text.vocabulary)), text.tokens
    ends = [(*sequence, *[NOTHING] * (places - n)) for n in range(places + 1) for sequence in product(words, repeat=n)]
    outcomes = np.array(ends, dtype=np.int64)
    token_mask = outcomes != NOTHING

    def law(x: NDArray[Any]) -> FloatArray:
        end = np.full(len(outcomes), (x != NOTHING).sum())
        table = word.log_probs(np.where(x == NOTHING, text.vocabulary.unknown, x))
        log_probs: FloatArray = np.where(token_mask, table[np.arange(places), outcomes], 0.0).sum(axis=1)
        return log_probs + lengths.log_prob(token_mask.sum(axis=1), end)

    return outcomes, law


def length_game(mechanism: Length, delta: float) -> Game:
    """Return the game of the two lengths whose exact probabilities differ most."""
    lengths = np.arange(mechanism.tokens + 1)
    table = np.vstack([mechanism.log_prob(lengths, np.full(len(lengths), x)) for x in lengths])
    x, y = worst_pair(losses(table))
    distances = np.abs(lengths[:, None] - lengths).astype(np.float64)
    return finite_game(
        mechanism,
        lengths,
        delta,
        shown=f"{x} / {y} tokens",
        pair=(x, y),
        outcomes=lengths,
        table=table,
        distances=distances,
    )


# --- by name


def words(size: int = 24) -> Vocabulary:
    """Return the audit's vocabulary: few words, near each other, so that every outcome occurs often."""
    rng = np.random.default_rng(6)
    names = ("the", "of", *(f"word{i}" for i in range(size - 2)))
    vectors = rng.normal(size=(size, 3)).astype(np.float32)
    return Vocabulary(names, vectors, np.arange(size, 0, -1), (np.arange(size) % 3).astype(np.int8))


#: Game of each mechanism of the catalogue. For others the worst pair is searched.
GAMES: dict[str, Callable[[Any, float], Game]] = {
    **dict.fromkeys(("identity", "purkayastha", "planar-laplace", "gaussian", "privunit"), sphere_game),
    **dict.fromkeys(("randomized-response", "randomized-response-prior"), label_game),
    **dict.fromkeys(("random", "santext", "santext+", "custext", "custext+", "madlib"), word_game),
    **dict.fromkeys(("madlib-syntax", "tem", "mahalanobis"), word_game),
    "custext-importance": importance_game,
    **dict.fromkeys(("dp-mlm", "dp-mlm-resized", "dp-prompt", "dp-paraphrase"), model_game),
}
#: Parameters of each audit of a mechanism, in place of the usual ones.
AUDITS: dict[str, tuple[dict[str, Any], ...]] = {
    "purkayastha": ({"dim": 2}, {"epsilon": 4.0}),
    "planar-laplace": ({"epsilon": 4.0}, {"epsilon": 4.0, "normalize": False}),
    "privunit": ({"epsilon": 2.0},),
    "randomized-response": ({}, {"epsilon": 0.5, "classes": 50}),  # rare true labels are visible if every label is rare
    "santext+": ({"w": 0.7},),
    "custext": ({"epsilon": 2.0, "k": 8},),
    "custext+": ({"epsilon": 2.0, "k": 8},),
    "custext-importance": ({"k": 4},),
    "madlib-syntax": ({}, {"k": 8, "mode": "paper"}),
    "tem": ({"gamma": 1.5},),
    "mahalanobis": ({"lam": 0.5},),
    **dict.fromkeys(("dp-mlm", "dp-mlm-resized", "dp-prompt", "dp-paraphrase"), ({"epsilon": 2.0},)),
}
#: Games of the parts of a text release beside its words.
TEXT_PARTS: dict[str, Callable[[float], list[Game]]] = {
    Length.name: lambda delta: [length_game(Length(0.5, 4), delta)],
    "text": lambda delta: [text_game(TextMechanism(SanText(1.0, words()), tokens=1), delta)],
}


#: Draws of each input in the pilot, and the seed of its streams, which no audit may have.
_PILOT, _PILOT_SEED = 4000, 2**62


def names() -> tuple[str, ...]:
    """Return the names that have games: those of the catalogue, also if added at run time, and parts of a text."""
    return (*CATALOGUE, *TEXT_PARTS)


def games_of(name: str, delta: float) -> list[Game]:
    """Return the games of one of `names`, or of an external mechanism, which is imported.

    Raises:
        UserError: The mechanism reads what the audit cannot give it.
        ValueError: There is no such mechanism, or nobody knows its parameters. The message is one line.
    """
    if name in TEXT_PARTS:
        return TEXT_PARTS[name](delta)
    kind = admit(name)
    game = GAMES.get(name)
    if game is None and (bool(getattr(kind, "reads", ())) or getattr(kind, "needs_prior", False)):
        raise UserError(
            f"{name}: the audit does not know what to give it beside its inputs; give it a game "
            "in sottovoce/adversary/audit/games.py"
        )
    games: list[Game] = []
    for arguments in AUDITS.get(name, ({},)):
        mechanism = instance(kind, usual(kind) | arguments, words())
        if game is not None:
            games.append(game(mechanism, delta))
        else:
            games += _of_numbers(mechanism, delta) if mechanism.grid is None else _of_vectors(mechanism, delta)
    return games


def _of_vectors(mechanism: Any, delta: float) -> Iterator[Game]:
    """Yield two antipodal pairs: along one coordinate, and along all of them, so that each coordinate is tested."""
    diagonal = np.full(mechanism.dim, mechanism.dim**-0.5)
    for direction, description in ((None, "antipodal"), (diagonal, "antipodal in all coordinates")):
        game = sphere_game(mechanism, delta, along=direction, shown=description)
        yield replace(game, fits=tuple(dict.fromkeys((*game.fits, learned))))


def _of_numbers(mechanism: Any, delta: float) -> Iterator[Game]:
    """Yield games of labels, answers or words, with the worst input pairs by stated probabilities and by the pilot."""
    texts = domain_of(mechanism) is Domain.TEXT
    outputs = len(mechanism.vocabulary) if texts else mechanism.classes
    inputs, all_outputs = np.arange(outputs + 1 if texts else outputs), np.arange(outputs)
    table = None
    if hasattr(mechanism, "log_prob"):
        laws = [np.asarray(mechanism.log_prob(all_outputs, np.full(outputs, x)), dtype=np.float64) for x in inputs]
        table = np.stack(laws)
    tables = [*([] if table is None else [table]), _pilot(mechanism, inputs, outputs)]
    distances = distances_of(mechanism) if mechanism.guarantee.metric == "euclidean" else None
    for pair in dict.fromkeys(worst_pair(losses(table)) for table in tables):
        game = finite_game(
            mechanism,
            inputs,
            delta,
            shown=f"{'words' if texts else 'labels'} {pair[0]} / {pair[1]}",
            pair=pair,
            outcomes=all_outputs,
            table=table,
            distances=distances,
        )
        yield replace(game, fits=tuple(dict.fromkeys((*game.fits, learned))))


def _pilot(mechanism: Any, inputs: IntArray, outputs: int) -> FloatArray:
    """Return log-frequencies (inputs, outputs) of the pilot, with one added to each count."""
    rows = []
    for x in inputs:
        rng = streams(f"pilot {mechanism.name}", int(x), _PILOT, _PILOT_SEED)
        draws = mechanism.sample(np.full(_PILOT, x), rng=rng)
        rows.append(np.log(np.bincount(draws, minlength=outputs)[:outputs] + 1.0))
    return np.stack(rows)


def _about(mechanism: Any) -> str:
    """Return a mechanism's public parameters, in short."""
    symbols = {"epsilon": "ε", "dim": "m'", "classes": "K", "sigma": "σ", "tokens": "L"}
    parts = [
        f"{symbols.get(key, key)}={value:g}" if isinstance(value, float) else f"{symbols.get(key, key)}={value}"
        for key, value in parameters(mechanism).items()
        if key in symbols or key in ("normalize", "mode", "k", "rest", "w", "p", "penalty", "size")
    ]
    return ", ".join(parts)
