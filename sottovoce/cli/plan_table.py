"""Plan as lines for people: each split of a budget, and its assumptions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sottovoce.cli.ladder_table import number


def lines(answer: Mapping[str, Any]) -> list[str]:
    """Return the results of `simulations.analysis.plan` as lines for people."""
    from mechanisms.guarantee import condition

    if "mechanisms" in answer:
        none = "no number of users up to 10^10 suffices: raise --epsilon, or take more noise"
        needed = none if answer["users"] is None else f"{answer['users']:,} users delivered, of one crowd"
        return [
            *answer["mechanisms"],
            f"central budget ε = {answer['epsilon']:g} at δ = {answer['delta']:g}",
            "",
            needed,
        ]
    shuffled, of_text = "no shuffler", "tokens" in answer
    if answer["users"] is not None:
        shuffled = f"{answer['users']:,} users invited, planned for {answer['delivered']:,} delivered"
        if answer["crowd"] is None:
            shuffled += " (none hides another: give --crowd)"
        elif answer["crowd"] != answer["delivered"]:
            shuffled += f", a crowd of {answer['crowd']:,}"
    if "cap_probability" in answer:
        return _privunit_for_people(answer, shuffled)
    if of_text:
        shuffled += f"; texts of at most {answer['tokens']} tokens"
    largest = f"largest ε of {answer['mechanism']}"
    said = [
        f"central budget ε = {answer['epsilon']:g} at δ = {answer['delta']:g}: {shuffled}",
        "",
        f"{'label ε':>8}  {largest:>28}  {'its worst case':>14}  {'central ε':>9}",
    ]
    for split in answer["splits"]:
        best = split["text_epsilon" if of_text else "embedding_epsilon"]
        said.append(
            f"{number(split['label_epsilon']):>8}  {'none fits' if best is None else number(best):>28}  "
            f"{number(split['worst_case']):>14}  {number(split['central_epsilon']):>9}"
        )
    if all(split["worst_case"] is None for split in answer["splits"]):
        advice = answer.get("reason", "raise --epsilon, or hide among more users.")
        said.append(f"Nothing fits this budget: {advice}")
    if answer["mechanism"] == "gaussian":
        said.append(f"The worst cases of Gaussian noise are at δ = {answer['delta']:g}; it has none at 0.")
    said += [f"Every ε is{agreed.removeprefix(',')}."] if (agreed := condition(answer.get("public", ()))) else []
    return [*said, *([f"Drawn among {answer['among']}."] if of_text else [])]


def _privunit_for_people(answer: Mapping[str, Any], shuffled: str) -> list[str]:
    said = [f"central budget ε = {answer['epsilon']:g} at δ = {answer['delta']:g}: {shuffled}", ""]
    if answer["local_epsilon"] is None:
        return [*said, "no privunit fits"]
    n, dim = answer["delivered"], answer["dim"]
    return [
        *said,
        f"privunit of D = {dim}: ε = {answer['local_epsilon']:g}, cap probability p = {answer['cap_probability']:g}",
        f"central ε = {answer['central_epsilon']:.4g}",
        f"E cos = {answer['expected_cosine']:.4g}; a mean of {n:,} draws is off by at most {answer['noise']:.3g} (root",
        f"mean square length); a trusted curator's Gaussian noise at this (ε, δ): {answer['curator_noise']:.3g}",
    ]
