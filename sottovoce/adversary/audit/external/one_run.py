"""Audit of training in one run: its input is which canaries are in, and its draw a score of each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from mechanisms.guarantee import gaussian_epsilon
from simulations.errors import UserError
from sottovoce.adversary.audit.external.claim import Claim
from sottovoce.adversary.audit.external.source import Source
from sottovoce.adversary.estimators import one_run as adversary

ONE_RUN = "one run"
#: Shares of the canaries to guess; each share is a figure.
_SHARES = (0.005, 0.02, 0.1)
_LEAST = 20


def guesses_of(canaries: int) -> tuple[int, ...]:
    """Return the number of guessed canaries in each figure."""
    return tuple(dict.fromkeys(min(canaries, max(_LEAST, round(canaries * share))) // 2 * 2 for share in _SHARES))


def canaries_of(claim: Claim) -> int:
    """Return the number of canaries of a claim about one run.

    Raises:
        UserError: Its inputs are no coins of canaries.
    """
    stated = claim.inputs
    count = stated.get("count") if isinstance(stated, Mapping) and stated.get("records") == [0, 1] else None
    if claim.neighbours != "replace" or claim.releases != "vector" or not isinstance(count, int) or count < _LEAST:
        raise UserError(
            f'claim: one_run takes inputs {{"records": [0, 1], "count": m}} of m >= {_LEAST} canaries, neighbours '
            '"replace" and a vector of m scores'
        )
    return count


def right_of(source: Source, canaries: int, seed: int) -> dict[int, int]:
    """Return the right guesses of one new run, for each number of guesses.

    Args:
        source: Source of the run.
        canaries: Number of canaries.
        seed: Seed of the coins.

    Raises:
        UserError: The run does not score every canary.
    """
    coins = np.random.default_rng([seed, 3]).integers(0, 2, canaries)
    (scores,) = source.draws(coins.tolist(), 1, seed % 2**31)
    try:
        found = np.array(scores, dtype=np.float64)
    except (TypeError, ValueError):
        found = np.zeros(0)
    if found.shape != (canaries,) or not np.isfinite(found).all():
        raise UserError(f"{source.claim.name}: a draw is not {canaries:,} finite scores, one of each canary")
    return {n: adversary.right_guesses(found, coins == 1, n) for n in guesses_of(canaries)}


def lower(claim: Claim, canaries: int, guesses: int, right: int, alpha: float) -> tuple[float | None, float]:
    """Return lower bounds of μ (None if the claim has none) and of ε at the claim's δ.

    Args:
        claim: The claim.
        canaries: Number of canaries.
        guesses: Number of guesses.
        right: Number of right guesses.
        alpha: Error probability.
    """
    if claim.mu is None:
        return None, adversary.lower_epsilon(canaries, guesses, right, claim.delta, alpha)
    mu = adversary.lower_mu(canaries, guesses, right, alpha)
    return mu, gaussian_epsilon(mu, claim.at)


def audited(source: Source, *, seed: int, family: float) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Return the entry of an audit, and the evidence of a violation for a certificate.

    The entry has the form of `adversary.audit.measure.entry`.

    Args:
        source: Source of the run.
        seed: Seed of the coins.
        family: Probability of a false alarm.
    """
    claim = source.claim
    canaries = canaries_of(claim)
    alpha = family / len(guesses_of(canaries))
    found = [
        (*lower(claim, canaries, n, right, alpha), n, right) for n, right in right_of(source, canaries, seed).items()
    ]
    mu, epsilon, guesses, right = max(found, key=lambda each: each[1])
    claimed = gaussian_epsilon(claim.mu, claim.at) if claim.mu is not None else claim.epsilon
    broken = mu > claim.mu if mu is not None and claim.mu is not None else epsilon > (claim.epsilon or 0.0)
    entry = {
        "name": " ".join(part for part in (claim.name, claim.version) if part),
        "about": ONE_RUN,
        "pair": f"each of {canaries:,} canaries in or out; {right:,} of {guesses:,} guesses right",
        "worst_case": np.inf if claim.epsilon is None else claim.epsilon,
        "claimed": np.inf if claim.mu is not None or claim.delta else claim.epsilon,
        "exact": None,
        "measured": 0.0 if claim.mu is not None or claim.delta else epsilon,
        "claimed_at_delta": claimed,
        "exact_at_delta": None,
        "measured_at_delta": epsilon,
        "measured_mu": mu,
        "deltas": [],
        "draws": 1,
        "confidence": 1 - alpha,
        "reach": np.inf,
        "verdict": "violated" if broken else "no violation found",
    }
    evidence = {"canaries": canaries, "guesses": guesses, "right": right, "epsilon": epsilon, "mu": mu}
    return entry, evidence if broken else None
