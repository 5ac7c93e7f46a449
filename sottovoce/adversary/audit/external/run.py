"""Audit of an external mechanism: search on one half of the draws, test on the other, certificates."""

from __future__ import annotations

from typing import Any

from simulations.errors import UserError
from sottovoce.adversary.audit.external import one_run
from sottovoce.adversary.audit.external.certificate import certificate, certificate_of_one_run
from sottovoce.adversary.audit.external.drawer import Drawer
from sottovoce.adversary.audit.external.pairs import games_of
from sottovoce.adversary.audit.external.search import pair_of, worst_pair
from sottovoce.adversary.audit.external.source import Source
from sottovoce.adversary.audit.external.spaces import Pair
from sottovoce.adversary.audit.measure import FAMILY, Audit, entry, measure, results, tests
from sottovoce.adversary.estimators.audit import MIN_DRAWS

#: Limits of the draws of each input. A half of them is for the search, and a quarter of the rest for a pair of draws.
#: All draws of a game are in memory at once.
LEAST, MOST = 8 * MIN_DRAWS, 4_000_000


def check_seed(seed: int) -> None:
    """Check that a seed can be a root seed.

    Raises:
        UserError: It is negative.
    """
    if seed < 0:
        raise UserError(f"--seed {seed}: must be at least 0")


def audit_source(
    source: Source, *, draws: int, seed: int, family: float = FAMILY,
) -> dict[str, Any]:  # fmt: skip
    """Run an audit of a source.

    Args:
        source: Source of the draws.
        draws: Draws of each of two inputs. Half of them search for the worst pair, if the claim names more than one.
        seed: Seed of the draws.
        family: Probability of any false alarm.

    Returns:
        Results in the form of `adversary.audit.run.run`, and `certificates`, one of each violated entry.

    Raises:
        UserError: The draws or the seed are invalid, or the source does not follow its claim.
    """
    check_seed(seed)
    if not source.claim.one_run and not LEAST <= draws <= MOST:
        raise UserError(f"--draws {draws}: take from {LEAST:,} to {MOST:,} draws")
    if source.claim.one_run:
        return _in_one_run(source, seed=seed, family=family)
    claim, drawer = source.claim, Drawer(source, seed)
    alone = _only(source)
    pair = worst_pair(drawer, draws) if alone is None else alone
    left = draws if alone is not None else draws // 2
    games = games_of(drawer, pair)
    audited = Audit(draws=left, delta=claim.at, seed=seed)
    findings = measure(games, audited, family=family)
    certificates = [
        certificate(source, pair, finding, draws=draws, seed=seed) for finding in findings if finding.violations
    ]
    asked = Audit(draws=draws, delta=claim.at, seed=seed)
    found = results(asked, [entry(finding) for finding in findings], family=family, figures=tests(games))
    return found | {"certificates": certificates}


def _in_one_run(source: Source, *, seed: int, family: float) -> dict[str, Any]:
    found, evidence = one_run.audited(source, seed=seed, family=family)
    figures = len(one_run.guesses_of(one_run.canaries_of(source.claim)))
    sure = found["confidence"]
    kept = [] if evidence is None else [certificate_of_one_run(source, evidence, seed=seed, confidence=sure)]
    asked = Audit(draws=1, delta=source.claim.at, seed=seed)
    return results(asked, [found], family=family, figures=figures) | {"certificates": kept}


def _only(source: Source) -> Pair | None:
    """Return the one pair that a claim names; None if there are more."""
    pairs = source.claim.pairs
    if isinstance(pairs, list | tuple) and len(pairs) == 1:
        x, other = pair_of(source.claim, pairs[0])
        if not source.claim.distance(x, other):
            raise UserError(f"{source.claim.name}: there are no two neighbouring inputs that differ")
        return x, other
    return None
