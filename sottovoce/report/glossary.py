"""Glossary of the field, in a sentence or two each, for tooltips of the report and docs/reference/glossary.md."""

from __future__ import annotations

import re

#: Entries as Markdown, by their headings.
ENTRIES = {
    "ε (epsilon)": (
        "Bound on what a message reveals: it is at most e^ε times likelier from one input than from another. "
        "At 0 every guess is as good as a coin's; at 1 at most 74 of 100 guesses are right, at 4 at most 99."
    ),
    "δ (delta)": (
        "Probability with which ε may fail. It should be far below one in the number of users. The default is "
        "10⁻⁶."
    ),
    "local differential privacy": (
        "ε holds for what leaves the device, against everybody. The server need not be trusted."
    ),
    "central differential privacy": (
        "ε holds for what is published after a trusted party has seen all data. Here that party is the "
        "shuffler, or the server of a reference arm."
    ),
    "metric privacy": (
        "ε·d for two inputs at distance d: similar inputs hide each other well. Its **worst case** is at the "
        "largest distance, and is what to compare with other mechanisms."
    ),
    "worst case": (
        "ε of the theorems alone, between any two inputs, with δ = 0, trusting only one's own device."
    ),
    "neighbours": (
        "The two inputs that an ε compares: two words, two records, or two users with all their data. One "
        "*replaces* the other."
    ),
    "user level, record level": (
        "The unit of an ε: everything that a user holds, or one of their records."
    ),
    "release": (
        "What leaves a client: numbers or words, drawn by a mechanism, with its guarantee. Nothing else "
        "leaves."
    ),
    "channel": (
        "Kind of a release: text, embedding, label, user vector or answer. Files call the user vector "
        "`vector`; older ones `statistic`."
    ),
    "user vector": (
        "One vector of length 1 about all texts and labels of a user. A user releases it once."
    ),
    "mechanism": (
        "Random function with a theorem: Purkayastha, planar Laplace, PrivUnit, randomized response, SanText "
        "and others."
    ),
    "exposure": (
        "What a text mechanism passes through beside its theorem, such as the number of words. A policy must "
        "accept each by name. Two texts agree in an exposure if it is the same at every place."
    ),
    "ledger, charge": (
        "The ledger is the device's durable list of releases. A release is charged on it before it leaves."
    ),
    "policy, budget": (
        "The policy limits what may be charged. The budget is the (ε, δ) that a user may spend in all."
    ),
    "request, stage": (
        "A request is a server's question with its public parameters. In a stage, each record is released "
        "once."
    ),
    "experiment, run, sweep": (
        "An experiment is one TOML file. A run executes it with one seed. A sweep is a grid of runs."
    ),
    "arm": (
        "One way to release and to train. Arms of an experiment share users, seeds and texts."
    ),
    "protocol": (
        "Way of training: who releases what, and what the server does with it."
    ),
    "reference": (
        "Arm without protection, marked †, to measure what privacy costs. Not for use on people."
    ),
    "ladder, rung": (
        "The ladder shows ε of one user for each unit: token, text, embedding, label, record, user, and "
        "shuffled."
    ),
    "shuffler, crowd": (
        "The shuffler removes names and order from a batch. The crowd is the number of delivered, honest "
        "users who agree in all that leaves in clear. The **central ε** holds for a reader of the shuffled "
        "batch, if the shuffler is honest."
    ),
    "maps": (
        "Linear functions, learned on public text, that take an embedding to the few dimensions of a release."
    ),
    "training, inference": (
        "Training needs a mean over users. Inference needs one user's answer."
    ),
    "sanitized inference": (
        "A user queries a model by a released embedding. The model sees no sentence."
    ),
    "bundle, publisher": (
        "The bundle is what a device installs: encoder, public parameters, policy. Its publisher signs it."
    ),
    "dummy release": (
        "Release of a random input, sent by a user whose budget is spent, so that the server cannot tell."
    ),
    "quantizer": (
        "Public grid to which released numbers are rounded."
    ),
    "guard file": (
        "File beside a ledger that names its last commit, so that an older copy is refused."
    ),
    "plugin, external": (
        "A plugin is a mechanism of another package. External software is audited through a program."
    ),
    "holdout": (
        "Public texts that choose hyperparameters and are not trained on."
    ),
    "blanket, clones, variation ratio": (
        "Proofs of a shuffled ε ([the ladder](../explanation/ladder.md))."
    ),
    "audit, attack": (
        "An audit measures a lower bound of ε and fails if a claim is violated. An attack measures what an "
        "adversary gets."
    ),
    "paired difference": (
        "Difference of two arms, text by text. Its error is smaller than that of two accuracies."
    ),
}

#: Headings of the report's names, where they differ.
_CALLED = {
    "ε": "ε (epsilon)", "δ": "δ (delta)", "crowd": "shuffler, crowd", "shuffler": "shuffler, crowd",
    "shuffled ε": "shuffler, crowd", "ledger": "ledger, charge",
    "attack": "audit, attack", "audit": "audit, attack", "rung": "ladder, rung", "ladder": "ladder, rung",
    "central ε": "central differential privacy", "exposed": "exposure", "worst case ε": "worst case",
}  # fmt: skip


def plain(heading: str) -> str:
    """Return an entry without Markdown.

    Raises:
        KeyError: There is no such entry.
    """
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", ENTRIES[heading])
    return re.sub(r"\*+([^*]+)\*+", r"\1", text)


def meaning(name: str) -> str:
    """Return the entry of a word that the report uses, without Markdown.

    Raises:
        KeyError: The glossary has no such word.
    """
    return plain(_CALLED.get(name, name))
