"""Statement of a device's ledger for people: what left it, when, at what cost, and what its policy still allows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from client.node import NODE, load_device
from client.policy import Policy
from client.store.ledger import Ledger, LedgerError, LedgerRow
from client.store.questions import FIRST_RECORD
from mechanisms.accounting.privacy_filter import THEOREM, Account, concentrated_limit
from mechanisms.channels import CHANNELS, VECTOR
from mechanisms.guarantee import EXPOSURES, Guarantee, condition, metric_statement
from mechanisms.messages.request import Request

#: Largest number of records, and of users, that are listed individually; the costliest come first.
LISTED, LISTED_USERS = 20, 3
_NONE = "nothing has left this device"


def read_statement(folder: Path) -> dict[str, Any]:
    """Return the statement of a device, JSON-ready except for infinity.

    Returns:
        {"folder", "policy", "answers", "records", "users", "theorem", "clock_set_back"}.
        "answers": releases made together, in the order of their charges: time (UTC seconds), stage, channel, digest,
            records, statement, worst_case, delta, and what is public.
        "records": cost of each record by channel.
        "users": charges of each user that count, according to the policy's privacy filter: releases, worst_case (Σε),
            delta, rho, and rho_limit.
        "theorem": theorem by which the total holds.

    Raises:
        ValueError: There is no device, or its ledger cannot be trusted.
    """
    node = load_device(
        folder,
        missing=f"name the one that holds {NODE} and ledger.sqlite",
        simulated=", of many users; read its ledgers with sottovoce budget ladder --ledger FILE",
    )
    path = node.folder / "ledger.sqlite"
    policy = node.policy("")
    if not path.exists() and not path.with_name(f".{path.name}.made").exists():
        rows: list[LedgerRow] = []
    else:
        try:
            with node.ledger("") as ledger:
                rows = ledger.rows()
                spent = _spent(ledger, rows, policy)
        except LedgerError as error:
            raise ValueError(f"{folder}: {error}") from error
    times = [row.time for row in sorted(rows, key=lambda row: row.commit)]
    return {
        "folder": str(folder),
        "policy": policy.to_dict(),
        "answers": _answers(rows, policy),
        "records": _records(rows, policy),
        "users": spent if rows else [],
        "theorem": THEOREM,
        "clock_set_back": any(later < before for before, later in pairwise(times)),
    }


def format_statement(statement: dict[str, Any]) -> str:
    """Return the result of `read_statement` as lines for people."""
    policy = Policy.from_dict(statement["policy"])
    answers = statement["answers"]
    lines = [f"What left this device ({statement['folder']})"]
    if not answers:
        lines.append(f"  {_NONE}")
    for answer in answers:
        n, at = answer["records"], f" and δ = {answer['delta']:g}" if answer["delta"] else ""
        whose = "all records together" if n is None else f"{n:,} record{'s' if n > 1 else ''}"
        lines.append(
            f"  {_when(answer['time'])}  the {answer['channel']} of {whose}, to the stage {answer['stage']}: "
            f"{describe_cost(answer['worst_case'])}{at} each"
            f"{_condition([answer]) if math.isfinite(answer['worst_case']) else ''} ({answer['statement']})"
        )
    if statement["clock_set_back"]:
        lines.append("  The clock was set back in between; the order is that of the ledger, and nothing depends on it.")
    if answers:
        lines += ["", f"What it has cost{_condition(answers)}", *_cost_lines(statement)]
    return "\n".join([*lines, "", "What the policy still allows", *_allowed(statement, policy)])


def _spent(ledger: Ledger, rows: list[LedgerRow], policy: Policy) -> list[dict[str, Any]]:
    users = np.unique(np.array([row.user for row in rows], dtype=np.int64))
    account = policy.spent(ledger, users)
    return [{"user": user} | account_of(policy, account.take(np.array([i]))) for i, user in enumerate(users.tolist())]


def account_of(policy: Policy, spent: Account) -> dict[str, Any]:
    """Return a user's account, JSON-ready except for infinity: releases, worst_case (Σε), delta, rho, and rho_limit."""
    return {
        "releases": int(spent.releases[0]),
        "worst_case": float(spent.epsilon[0]),
        "delta": float(spent.delta[0]),
        "rho": float(spent.rho[0]),
        "rho_limit": concentrated_limit(policy.total, policy.total_delta / 2),
    }


def _answers(rows: list[LedgerRow], policy: Policy) -> list[dict[str, Any]]:
    together: dict[tuple[Any, ...], list[LedgerRow]] = {}
    for row in sorted(rows, key=lambda row: row.commit):
        together.setdefault((row.commit, row.stage, row.channel, row.digest), []).append(row)
    return [
        {
            "time": group[0].time,
            "stage": stage,
            "channel": channel,
            "digest": digest,
            "records": None if group[0].of_all else len(group),
            "statement": describe_guarantee(group[0].guarantee),
            "worst_case": policy.cost(group[0].guarantee).epsilon,
            "delta": policy.delta if group[0].guarantee.sigma is not None else 0.0,
            "public": _public(channel, group[0].guarantee, policy),
        }
        for (_, stage, channel, digest), group in together.items()
    ]


def _public(channel: str, guarantee: Guarantee, policy: Policy) -> list[str]:
    """Return what a release shows that the policy declares public, in words."""
    exposed = [EXPOSURES[name] for name in guarantee.exposes if name in policy.declared]
    return [channel] if channel in policy.declared else exposed


def _condition(answers: Sequence[Mapping[str, Any]]) -> str:
    """Return the condition under which the costs of these answers hold; "" if there is none."""
    return condition(dict.fromkeys(name for answer in answers for name in answer["public"]))


def describe_release(guarantee: Guarantee, policy: Policy) -> str:
    """Return the worst case of one release, as the policy prices it, with its condition."""
    cost = policy.cost(guarantee).epsilon
    exposed = [EXPOSURES[name] for name in guarantee.exposes if math.isfinite(cost)]
    return describe_cost(cost) + condition(exposed)


def describe_guarantee(guarantee: Guarantee) -> str:
    """Return a guarantee in the words of the statement."""
    text = f"σ = {guarantee.sigma:g}" if guarantee.sigma is not None else f"ε = {metric_statement([guarantee])}"
    if text == "ε = inf":
        text = "in clear"
    if guarantee.exposes:
        text += f"; shows {', '.join(EXPOSURES[name] for name in guarantee.exposes)}"
    return text


def _records(rows: list[LedgerRow], policy: Policy) -> list[dict[str, Any]]:
    """Return the costs by channel, by user and record, including channels declared public."""
    by_record: dict[tuple[int, int | None], dict[str, float]] = {}
    for row in rows:
        costs = by_record.setdefault((row.user, None if row.of_all else row.record), {})
        costs[row.channel] = costs.get(row.channel, 0.0) + policy.cost(row.guarantee).epsilon
    listed = [{"user": user, "record": record, "channels": costs} for (user, record), costs in by_record.items()]
    return sorted(listed, key=lambda row: -sum(row["channels"].values()))


def _cost_lines(statement: dict[str, Any]) -> list[str]:
    records, users = statement["records"], statement["users"]
    lines = []
    for row in records[:LISTED]:
        if row["record"] is None:
            whose = "all records together"
        elif row["record"] < FIRST_RECORD:
            whose = f"record {row['record']}"
        else:  # a sentence of an inference request is no record of its user
            whose = f"sentence {row['record'] - FIRST_RECORD + 1} that was asked about"
        whose += f" of user {row['user']}" if len(users) > 1 else ""
        costs = ", ".join(f"{c} {describe_cost(row['channels'][c])}" for c in CHANNELS if c in row["channels"])
        lines.append(f"  {whose}: {costs}")
    if len(records) > LISTED:
        lines.append(f"  and {len(records) - LISTED:,} records that cost no more than the last one above")
    by_cost = sorted(users, key=lambda row: (-row["worst_case"], -row["releases"], row["user"]))
    for row in by_cost[:LISTED_USERS]:
        whose = f"user {row['user']}" if len(users) > 1 else "all together"
        lines.append(
            f"  {whose}, without what is declared public: {describe_cost(row['worst_case'])}, δ = {row['delta']:.4g}; "
            f"{row['releases']:,} release{'s' * (row['releases'] != 1)} with it"
        )
    if len(users) > LISTED_USERS:
        lines.append(f"  and {len(users) - LISTED_USERS:,} users that cost no more than the last one above")
    return lines


def _allowed(statement: dict[str, Any], policy: Policy) -> list[str]:
    lines = []
    reasons = policy.declared
    at = f" at δ = {policy.total_delta:g}"
    for channel in CHANNELS:
        limit = policy.limit(channel)
        if channel in reasons:
            lines.append(f"  {channel}: anything, declared public ({reasons[channel]})")
        elif limit == 0:
            lines.append(f"  {channel}: nothing")
        else:
            spent = {False: 0.0, True: 0.0}  # of one record, and of all together, which counts for each
            for row in statement["records"]:
                together = row["record"] is None
                spent[together] = max(row["channels"].get(channel, 0.0), spent[together])
            remainder = "no limit is set"
            if math.isfinite(limit):
                remainder = f"the costliest one has {max(0.0, limit - sum(spent.values())):.4g} left"
            unit = "for all records together" if channel == VECTOR.name else "for each record"
            lines.append(f"  {channel}: {_upto(limit)}{at} {unit}; {remainder}")
    for name, why in reasons.items():
        if name in EXPOSURES:
            lines.append(f"  texts may show {EXPOSURES[name]} ({why})")
    most = max(statement["users"], key=lambda row: (row["worst_case"], row["releases"]), default=None)
    lines += [f"  {line}" for line in describe_account(policy, most)]
    lines.append(f"  mechanisms: {', '.join(policy.mechanisms) or 'none'}")
    if policy.questions is not None:
        n = len(policy.questions)
        lines.append(f"  {n:,} question{'' if n == 1 else 's'}, known by digest; any other is refused")
    if policy.minimum_users:
        lines.append(f"  only among at least {policy.minimum_users:,} users whose releases are shuffled")
    return lines


def describe_account(policy: Policy, account: Mapping[str, Any] | None) -> list[str]:
    """Return lines about the policy's total, its rest, and the theorem.

    Args:
        policy: Policy of the device.
        account: Result of `account_of`; None if nothing was charged.
    """
    figures = account or account_of(policy, Account.empty(1))
    spent = Account(*(np.array([figures[name]]) for name in ("worst_case", "delta", "rho", "releases")))
    lines = [
        f"in total: {_upto(policy.total)} at δ = {policy.total_delta:g}, and {policy.releases:,} releases",
        f"  left: {policy.left(spent)} (one half of δ is the filter's)",
    ]
    if math.isfinite(policy.total) and policy.total_delta:
        remainder = max(0.0, figures["rho_limit"] - figures["rho"])
        lines.append(f"  or, in place of ε: zCDP ρ = {remainder:.4g} of {figures['rho_limit']:.4g}")
    return [*lines, f"  {THEOREM}"]


def describe_question(request: Request, policy: Policy) -> list[str]:
    """Return lines about a request for the user: what a server would learn of each record, and the worst-case cost."""
    whose = "each user's records together" if request.of_users else "each record"
    lines = []
    for question in request.questions:
        guarantee = question.mechanism.guarantee
        lines.append(
            f"the {question.about.title} of {whose} of the split {request.split}: {question.content}; "
            f"{describe_release(guarantee, policy)} ({describe_guarantee(guarantee)})"
        )
    if request.encoder:
        chosen = "the maps, and the model," if any(question.has_model for question in request.questions) else "the maps"
        lines.append(
            f"{chosen} are the server's: it may have chosen them to learn one thing about you, a yes or no, as surely "
            "as the worst case allows"
        )
    return lines


def _upto(limit: float) -> str:
    return "any ε" if math.isinf(limit) else f"ε up to {limit:.4g}"


def describe_cost(epsilon: float) -> str:
    """Return a worst case in the words of the statement."""
    return "ε = ∞" if math.isinf(epsilon) else f"ε = {epsilon:.4g} at worst"


def _when(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
