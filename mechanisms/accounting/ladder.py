"""Ladder of budgets, one ε for each unit: token, text, embedding, label, record, user, and shuffled."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from typing import Any

from mechanisms import checks
from mechanisms.accounting.compose import Budget, compose
from mechanisms.accounting.shuffle import central_epsilon, json_ready
from mechanisms.channels import ANSWER, CHANNELS, EMBEDDING, LABEL, TEXT, VECTOR, Domain
from mechanisms.guarantee import EXPOSURES, Guarantee, exposed, metric_statement
from mechanisms.mechanism import Mechanism
from mechanisms.words.text import TextMechanism

#: Rungs, from the smallest unit up. Channels sent unprotected stand between label and record; if a user
#: vector or an answer is released, its channel replaces the others.
NAMES = ("token", TEXT.name, EMBEDDING.name, LABEL.name, "record", "user", "shuffled")


@dataclass(frozen=True)
class Rung:
    """Budget of one unit, with its assumptions.

    Attributes:
        name: One of NAMES, or a channel sent unprotected.
        epsilon: ε such that any two neighbours are (ε, δ)-indistinguishable. None if it does not apply (no such
            channel, declared public, no amplification), inf if nothing protects the unit.
        delta: δ of the same statement.
        unit: Protected unit.
        neighbours: Description of the two inputs.
        assumption: Condition under which the ε holds, or the reason why it is None.
        worst_case: ε of the theorems alone, added up (δ = 0; inf for Gaussian noise). None as for epsilon.
        statement: Metric bound on the loss, "10·d_angular + 2", or "" if there is none.
        unprotected: Channels that make epsilon inf.
        crowd: Size of the crowd of the shuffled rung, the user included. None without amplification.
        details: Bounds of the shuffled rung under their names.
    """

    name: str
    epsilon: float | None
    delta: float
    unit: str
    neighbours: str
    assumption: str
    worst_case: float | None = None
    statement: str = ""
    unprotected: tuple[str, ...] = ()
    crowd: int | None = None
    details: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready form. Infinity is the string "inf", and values that do not apply are None."""
        values = {f.name: json_ready(getattr(self, f.name)) for f in fields(self)}
        named = {"rung": values.pop("name")} | values | {"statement": self.statement or None}
        return named if self.details else {name: value for name, value in named.items() if name != "details"}


def ladder(
    embedding: Mechanism | None,
    label: Mechanism | None,
    *,
    records: int | None = 1,
    stages: int = 1,
    users: int | None,
    delta: float,
    crowd: int | None = None,
    text: TextMechanism | None = None,
    statistic: Mechanism | None = None,
    answer: Mechanism | None = None,
    draws: int = 1,
    public: Mapping[str, str] | None = None,
    unprotected: Mapping[str, str] | None = None,
) -> tuple[Rung, ...]:
    """Return the rungs of one user's releases, in the order of NAMES.

    Every ε is the smaller of the theorems' worst cases added (basic composition), and the exact loss distributions
    convolved. The shuffled ε is the least valid bound of `shuffle.amplify` for the linked release of one record. A user
    of k records pays (k·ε, δ'·(e^(kε) - 1)/(e^ε - 1)) by group privacy (Vadhan 2017, Lemma 2.2: k steps of one record
    each). Stages add up (Dwork and Roth 2014, Theorem 3.16) or compose as in `central_epsilon`.

    Args:
        embedding: Mechanism of the channel; None if the channel does not exist.
        label: As for embedding.
        records: Most records of a user. None if unknown; then no ε of a user is given.
        stages: Stages in which one user releases every record anew. Stages of disjoint users count as one.
        users: Users that the shuffler *delivered* (in each stage). None without a shuffler, 0 if it delivered nothing.
        delta: δ of every rung. Each rung's assumption names the samplers' distance from their mechanisms (total
            variation).
        crowd: Size of the smallest group of delivered users who agree in all that leaves in clear, the target included,
            whoever the target is. None if unknown. The n of amplification is the crowd, and `users` only if nothing
            leaves in clear: users who differ in what they send in clear have no common randomizer, and none of them
            hides another. Dishonest users hide nobody either.
        text: As for embedding. A text is composed from its parts: its word mechanism at each of its positions, and its
            length.
        statistic: Mechanism of a user vector. Its user releases nothing else in a stage, and one vector for all records
            together, so the number of records does not count.
        answer: Mechanism of the answer of a model on the device. Nothing else of the record is released.
        draws: Fresh draws of a record's embedding in a stage.
        public: Channel -> reason for which its data are declared public. Such a channel is None, and neighbours agree
            on it. Or a name of EXPOSURES -> reason; neighbours agree on it too. An exposure that is not declared makes
            every rung with the text inf.
        unprotected: Name -> description of what else leaves in clear. Its rung, and every one above it, is inf.

    Raises:
        ValueError: A number is out of range, or the mechanisms contradict each other.
    """
    delta = _checked(delta, records=records, stages=stages, draws=draws, users=users, crowd=crowd)
    public, clear = dict(public or {}), dict(unprotected or {})
    channels: list[tuple[str, Mechanism | None, int]] = [
        (TEXT.name, text, 1),
        (EMBEDDING.name, embedding, draws),
        (LABEL.name, label, 1),
    ]
    if answer is not None:
        if any((statistic, text, embedding, label, clear, public, draws > 1)):
            raise ValueError("ladder: an answer is all that is released of a record; give it alone")
        channels = [(ANSWER.name, answer, 1)]
    releases = [(mechanism, count) for _, mechanism, count in channels if mechanism is not None]
    in_clear = [name for name, m, _ in channels if m is not None and _is_unprotected(m, delta, public)] + list(clear)

    if statistic is not None:
        if releases or clear or public or draws > 1:
            raise ValueError("ladder: a statistic is all that a user releases in a stage; give it alone")
        return _of_statistic(statistic, stages, _Crowd(users, crowd, ""), delta)
    rungs = [] if answer is not None else [_token(text, delta, public)]
    rungs += [_channel(name, mechanism, count, delta, public, in_clear) for name, mechanism, count in channels]
    rungs += [
        Rung(name, math.inf, delta, "record", "any two records", why, math.inf, "inf", (name,))
        for name, why in clear.items()
    ]
    shared_channels = [name for name in public if name not in EXPOSURES]
    same = f", the same {' and '.join(shared_channels)} (public)" if shared_channels else ""
    passed, passes = [], ""
    if text is not None:
        passed, same = _passed(text.guarantee, public), same + _agreement(text.guarantee, public)
        passes = "".join(f"; the text {exposure}" for exposure in _exposures(text.guarantee, public))
    rungs.append(_composed("record", releases, 1, delta, f"any two records{same}", _RECORD + passes, in_clear, public))
    if records is None:
        unknown = "unknown how many records a user holds; say how many the largest may have"
        rungs += [Rung(name, None, delta, "user", "any two users' data", unknown) for name in ("user", "shuffled")]
        return tuple(rungs)
    many = f"{_plural(records, 'record')} in {_plural(stages, 'stage')} that the user takes part in; {_USER}{passes}"
    everyone = f"any two users' data{same}"
    rungs.append(_composed("user", releases, records * stages, delta, everyone, many, in_clear, public))
    among = _Crowd(users, crowd, " and ".join([*shared_channels, *passed]))
    rungs.append(_shuffled(releases, records, stages, among, delta, same, in_clear, rungs[-1], exposed(public)))
    return tuple(rungs)


def ladder_of(mechanisms: Sequence[Mechanism], **arguments: Any) -> tuple[Rung, ...]:
    """Return the `ladder` of a user whose records are released by all of the mechanisms, one a channel.

    Args:
        mechanisms: Mechanisms. A text is a `TextMechanism`, not a mechanism of words.
        arguments: Further arguments of `ladder`.

    Raises:
        ValueError: Two mechanisms are of one channel, or one draws words alone.
    """
    named: dict[str, Any] = {EMBEDDING.name: None, LABEL.name: None}
    for mechanism in mechanisms:
        if named.get(mechanism.channel) is not None:
            raise ValueError(f"ladder: two mechanisms are of the channel {mechanism.channel}; leave one out")
        if mechanism.channel == TEXT.name and not isinstance(mechanism, TextMechanism):
            raise ValueError(f"ladder: {mechanism.name} draws words; name a text, as santext:epsilon=5,tokens=20")
        named[mechanism.channel] = mechanism
    return ladder(named.pop(EMBEDDING.name), named.pop(LABEL.name), **named, **arguments)


def _of_statistic(mechanism: Mechanism, stages: int, among: _Crowd, delta: float) -> tuple[Rung, ...]:
    """Return the rungs of one user vector a stage, which any other data of the user could have given as well."""
    in_clear = [VECTOR.name] if _is_unprotected(mechanism, delta, ()) else []
    releases, anyone = [(mechanism, 1)], "any two users' data"
    note = f"{mechanism.name}, one vector for all the user's records and labels, drawn once and remembered"
    vector = _composed(VECTOR.name, releases, 1, delta, anyone, note, in_clear)
    within = "what its user releases bounds it, however many records there are beside it"
    took_part = "not hidden: that the user took part; hidden: how many records there are"
    many = f"{_plural(stages, 'stage')} that the user takes part in; {took_part}"
    user = _composed("user", releases, stages, delta, anyone, many, in_clear)
    shuffled = _shuffled(releases, 1, stages, among, delta, "", in_clear, user)
    record = _composed("record", releases, stages, delta, "any two records", within, in_clear)
    return vector, record, user, replace(shuffled, neighbours="data sets that differ in all that one user has")


def _checked(delta: float, **counts: int | None) -> float:
    """Check that 0 < δ < 1 and that each count that is given is in range. Return δ."""
    delta = checks.real("ladder", "delta", delta, 0, 1)
    if not 0 < delta < 1:
        raise ValueError(f"ladder: delta must be above 0 and below 1, got {delta:g}")
    for name, count in counts.items():
        if count is not None:
            checks.integer("ladder", name, count, 0 if name in ("users", "crowd") else 1, 10**12)
    return delta


def widest(ladders: Sequence[tuple[Rung, ...]], note: str) -> tuple[Rung, ...]:
    """Return, rung by rung, the largest ε of several ladders of the same rungs, for parameters not chosen yet.

    A rung that is None in one of them (no amplification) is None in the result. `note` is appended to the assumption of
    rungs that differ.
    """
    if len(ladders) == 1:
        return ladders[0]
    chosen = []
    for rungs in zip(*ladders, strict=True):
        none = [r for r in rungs if r.epsilon is None]
        top = none[0] if none else max(rungs, key=lambda r: r.epsilon or 0.0)
        same = all(r.epsilon == top.epsilon for r in rungs)
        chosen.append(top if same else replace(top, assumption=f"{top.assumption}; {note}"))
    return tuple(chosen)


def ledger_rung(
    name: str,
    guarantees: Iterable[Guarantee],
    *,
    delta: float,
    unit: str,
    neighbours: str,
    note: str,
    public: Mapping[str, str] | None = None,
) -> Rung:
    """Return a rung from theorems alone, as a ledger keeps them: worst cases at `delta` each, added (k·delta in all).

    `public` maps names of EXPOSURES to reasons for which they are declared public. Neighbours agree on them; the rung
    says that its ε is infinite otherwise.
    """
    listed, public = list(guarantees), public or {}
    if not listed:
        return Rung(name, None, 0.0, unit, neighbours, "the ledger has no such release")
    if passed := exposed(n for g in listed for n in g.exposes if n in public):
        agreed = " and ".join(EXPOSURES[n] for n in passed)
        neighbours += f", that agree in {agreed} (declared public; else ε = ∞)"
        note += "".join(f"; with {n} declared public ({public[n]})" for n in passed)
    pure = sum(g.worst_case(declared=public) for g in listed)
    costs = [g.worst_case(delta if g.sigma is not None else 0.0, declared=public) for g in listed]
    total = sum(costs)
    used = delta * sum(g.sigma is not None for g in listed)
    in_clear = tuple(dict.fromkeys(g.protects for g, e in zip(listed, costs, strict=True) if math.isinf(e)))
    note += _drawn(math.fsum(g.numeric_delta for g in listed))
    return Rung(name, total, min(1.0, used), unit, neighbours, note, pure, metric_statement(listed), in_clear)


_RECORD = "its channels are drawn independently"
_USER = "that the user took part, and with how many records, is not protected"


def _passed(guarantee: Guarantee, public: Mapping[str, str]) -> list[str]:
    """Return the words for the exposures that are declared public."""
    return [EXPOSURES[n] for n in guarantee.exposes if n in public]


def _agreement(guarantee: Guarantee, public: Mapping[str, str]) -> str:
    """Return the words for what neighbours agree on because the guarantee exposes it."""
    passed = _passed(guarantee, public)
    return f", that agree in {' and '.join(passed)} (public)" if passed else ""


#: Parts of the words of `_agreement`.
_AGREED = re.compile(r"(?:the same|that agree in) (.+?) \(public\)")


def shared(rung: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what the two inputs of a rung have in common because it is declared public; between others ε is ∞.

    rung: result of `Rung.to_dict`.
    """
    return tuple(_AGREED.findall(rung.get("neighbours", "")))


@dataclass(frozen=True)
class _Crowd:
    """Crowd in which a user hides. `users` and `crowd` are as in `ladder`; `common` is what its users share, or ""."""

    users: int | None
    crowd: int | None
    common: str

    @property
    def size(self) -> int | None:
        """Return the n of amplification, or None if unknown; then there is no amplification."""
        if self.crowd is None or self.users is None:
            return None if self.common else self.users
        return min(self.users, self.crowd)

    def __str__(self) -> str:
        delivered = f"{self.users:,} users delivered"
        if not self.common and self.size == self.users:
            return delivered
        shared = f" who agree in {self.common}, sent in clear," if self.common else ""
        return f"a crowd of {self.size:,} users{shared} of {delivered}"


def _token(text: TextMechanism | None, delta: float, public: Mapping[str, str]) -> Rung:
    nothing = "any two tokens"
    if text is None:
        return Rung("token", None, delta, "token", nothing, "no token leaves the device")
    word, guarantee = text.word, text.word.guarantee
    if guarantee.protects != "token":
        why = f"{word.name} reads the whole text for each token: it protects the {guarantee.protects}"
        return Rung("token", None, delta, "token", nothing, why)
    in_clear = ["token"] if _is_unprotected(word, delta, public) else []
    neighbours = nothing + _agreement(guarantee, public)
    notes = "; ".join([f"inputs: {guarantee.inputs}", *_exposures(guarantee, public)])
    return _composed("token", [(word, 1)], 1, delta, neighbours, notes, in_clear, public)


def _exposures(guarantee: Guarantee, public: Mapping[str, str]) -> list[str]:
    """Return notes on each exposure of a text beside its theorem, and on its declaration."""
    passed = guarantee.exposes
    notes = [f"passes {EXPOSURES[n]} through, declared public ({public[n].strip()})" for n in passed if n in public]
    undeclared = [f"{EXPOSURES[n]} ({n})" for n in passed if n not in public]
    if undeclared:
        notes.append(f"passes {' and '.join(undeclared)} through, which nobody has declared public")
    return notes


def _channel(
    name: str, mechanism: Mechanism | None, count: int, delta: float, public: Mapping[str, str], in_clear: Sequence[str]
) -> Rung:
    channel = CHANNELS[name]
    neighbours = channel.neighbours
    if mechanism is None:
        if name in public:
            why = f"declared public: sent in clear, ε = ∞ where it is secret ({public[name]})"
        else:
            why = "no text leaves the device" if channel.domain is Domain.TEXT else f"no {name} is released"
        return Rung(name, None, delta, name, neighbours, why)
    notes = [f"{mechanism.name}, " + ("drawn once and remembered" if count == 1 else f"{count} fresh draws")]
    if isinstance(mechanism, TextMechanism):
        neighbours += _agreement(mechanism.guarantee, public)
        notes = [f"{mechanism.name}, {mechanism.positions} positions, drawn once and remembered"]
        notes += _exposures(mechanism.guarantee, public)
    if channel.domain is Domain.SPHERE:
        notes.append("the metric bound is about mapped, normalized embeddings, the worst case about any two texts")
    if mechanism.guarantee.inputs != "all":
        notes.append(f"inputs: {mechanism.guarantee.inputs}")
    if getattr(mechanism, "needs_prior", False):
        notes.append("the prior comes from what is public or was released before")
    own = [c for c in in_clear if c == name]
    return _composed(name, [(mechanism, count)], 1, delta, neighbours, "; ".join(notes), own, public)


def _composed(
    name: str,
    releases: Sequence[tuple[Mechanism, int]],
    times: int,
    delta: float,
    neighbours: str,
    note: str,
    in_clear: Sequence[str],
    public: Iterable[str] = (),
) -> Rung:
    """Return the rung of all the parts, each `times` over: the smaller ε of basic and exact composition."""
    if in_clear:
        note = f"UNPROTECTED: {', '.join(in_clear)}; {note}"
        return Rung(name, math.inf, delta, name, neighbours, note, math.inf, "inf", tuple(in_clear))
    if not releases:
        return Rung(name, None, delta, name, neighbours, "nothing is released")
    counted = [(mechanism, count * times) for mechanism, count in releases]
    pure = sum(mechanism.guarantee.worst_case(declared=public) * count for mechanism, count in counted)
    exact = _exact(tuple(_taken_apart(counted)), delta, exposed(public))
    statement = _statement([m for m, _ in releases])
    if sum(count for _, count in counted) > len(releases) and statement != "inf":
        shares = [f"{count} × ({_statement([m])})" for m, count in counted]
        statement = " + ".join(shares)
    note += _drawn(exact.sampler_delta)
    return Rung(name, min(exact.epsilon, pure), exact.delta, name, neighbours, note, pure, statement)


def _drawn(distance: float) -> str:
    """Return the note on the distance of a rung's samplers from their mechanisms."""
    return f"; samplers within {min(1.0, distance):.1e} of their mechanisms, in total variation"


def _taken_apart(counted: Iterable[tuple[Mechanism, int]]) -> list[tuple[Mechanism, int]]:
    """Return texts as their words and lengths, whose losses compose more tightly than the text's theorem."""
    parts: list[tuple[Mechanism, int]] = []
    for mechanism, count in counted:
        if isinstance(mechanism, TextMechanism):
            parts += [(part, times * count) for part, times in mechanism.parts()]
        else:
            parts.append((mechanism, count))
    return parts


def _statement(mechanisms: Sequence[Mechanism]) -> str:
    """Return the metric bound of releases of one record: a text's own, then the others'."""
    texts = [m for m in mechanisms if isinstance(m, TextMechanism)]
    others = [m.guarantee for m in mechanisms if not isinstance(m, TextMechanism)]
    statements = [text_statement(text) for text in texts] + ([metric_statement(others)] if others else [])
    return "inf" if "inf" in statements else " + ".join(statements)


def text_statement(text: TextMechanism) -> str:
    """Return the bound on the loss of two texts that agree in what is exposed: "2·Σd_euclidean + 1·|Δlength|".

    Σd sums the words' distances, position by position. If a word mechanism reads the whole text, each position counts
    in full.
    """
    word = text.word.guarantee
    if math.isinf(word.epsilon) or math.isinf(word.offset):
        return "inf"
    if word.protects == "sequence":
        terms = [f"{word.epsilon * word.diameter * text.positions:g}"]
    else:
        terms = [f"{word.epsilon:g}·" + ("(tokens that differ)" if word.metric == "discrete" else f"Σd_{word.metric}")]
    if word.offset:
        terms.append(f"{word.offset * text.positions:.4g}")
    if text.lengths is not None and text.lengths.epsilon:
        terms.append(f"{text.lengths.epsilon:g}·" + ("|Δlength|" if text.sides == 1 else "Σ|Δlength|"))
    return " + ".join(terms)


@lru_cache(maxsize=256)
def _exact(counted: tuple[tuple[Mechanism, int], ...], delta: float, declared: tuple[str, ...]) -> Budget:
    return compose(counted, delta=delta, declared=declared)


def _shuffled(
    releases: Sequence[tuple[Mechanism, int]],
    records: int,
    stages: int,
    among: _Crowd,
    delta: float,
    same: str,
    in_clear: Sequence[str],
    user: Rung,
    declared: tuple[str, ...] = (),
) -> Rung:
    """Return the central guarantee against an adversary who sees the shuffled batch alone."""
    users, size = among.users, among.size

    def rung(epsilon: float | None, why: str, details: Mapping[str, Any] | None = None) -> Rung:
        neighbours = f"data sets that differ in one user's {_plural(records, 'record')}{same}"
        worst = user.worst_case if epsilon is not None else None
        crowd = size if epsilon is not None and not in_clear else None
        clear, details = tuple(in_clear), details or {}
        return Rung("shuffled", epsilon, delta, "user", neighbours, why, worst, "", clear, crowd, details)

    if users is None:
        return rung(None, "there is no shuffler")
    if in_clear:
        return rung(math.inf, f"UNPROTECTED: {', '.join(in_clear)}; shuffling hides no channel sent in clear")
    if not releases:
        return rung(None, "nothing is released")
    if users == 0:
        return rung(None, "no batch was delivered; whoever released stays charged")
    if size is None:
        return rung(
            None,
            f"a user hides only among users who agree in {among.common}, sent in clear, and nobody knows how many the "
            "smallest crowd of them has (smallest-crowd): no amplification",
        )
    if size <= 1:
        return rung(None, "one user alone has nobody to hide among: no amplification")
    mechanisms = tuple(mechanism for mechanism, count in releases for _ in range(count))
    epsilon, details = central_epsilon(
        mechanisms, users=size, delta=delta, records=records, stages=stages, declared=declared
    )
    trust = (
        f"a trusted shuffler, {among}{' in each stage' if stages > 1 else ''}, whose clients "
        "followed the protocol; the server sees the shuffled batch alone"
    )
    if epsilon is None or (user.epsilon is not None and epsilon >= user.epsilon):
        why = f": {details['reason']}" if details.get("reason") else ""
        return rung(None, f"no amplification is shown{why}; the user's own ε stands ({trust})", details)
    bounds = details.get("bounds", {})
    if (name := min((n for n in bounds if bounds[n] is not None), key=lambda n: bounds[n], default=None)) is not None:
        trust += "; by the release's own blanket" if name.startswith("blanket") else f"; by the generic bound {name}"
    if records > 1:
        trust += f"; {records} records by group privacy"
    drawn = sum(m.guarantee.numeric_delta for m in mechanisms) * size * records * stages
    trust += f"; δ holds all users' samplers, within {min(1.0, drawn):.1e} of their mechanisms in total variation"
    return rung(epsilon, trust, details)


def _is_unprotected(mechanism: Mechanism, delta: float, public: Iterable[str]) -> bool:
    declared = public if mechanism.channel == TEXT.name else ()  # neighbours agree in exposures of the text alone
    return math.isinf(mechanism.guarantee.worst_case(delta, declared=declared))


def _plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'s' * (count != 1)}"
