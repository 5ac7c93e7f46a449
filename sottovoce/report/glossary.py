"""Glossary of the field, in a sentence or two each, for tooltips of the report and docs/reference/glossary.md."""

from __future__ import annotations

import re

#: Entries as Markdown, by their headings.
ENTRIES = {
    "ε (epsilon)": (
        "A message is at most e^ε times likelier from one input than from another. Of 100 guesses at most 50 "
        "are right at 0, 74 at 1, 99 at 4."
    ),
    "δ (delta)": ("Probability with which ε may fail, far below one in the number of users; 10⁻⁶ here."),
    "local differential privacy": ("ε holds for what leaves the device, against everybody."),
    "central differential privacy": ("ε holds after a trusted party: the shuffler, or the server of a reference arm."),
    "metric privacy": ("ε·d for two inputs at distance d. Compare its **worst case**, at the largest distance."),
    "worst case": (
        "ε between any two inputs that agree in what is exposed, with δ = 0, trusting only one's own "
        "device. Between others it is ∞."
    ),
    "neighbours": ("The two inputs that an ε compares, words, records or users. One *replaces* the other."),
    "user level, record level": ("The unit of an ε: everything that a user holds, or one of their records."),
    "release": ("What leaves a client, drawn by a mechanism. Nothing else leaves."),
    "channel": ("Kind of a release: text, embedding, label, user vector (`vector`, formerly `statistic`) or answer."),
    "user vector": ("One vector of length 1 about all texts and labels of a user, released once."),
    "mechanism": ("Random function with a theorem, such as PrivUnit or SanText."),
    "exposure": (
        "What a text mechanism passes in clear, such as the number of words. A policy must accept each by name."
    ),
    "ledger, charge": ("The device's durable list of releases. A release is charged on it before it leaves."),
    "policy, budget": ("The policy limits charges. The budget is the (ε, δ) that a user may spend in all."),
    "request, stage": ("A server's question with its public parameters. In a stage, each record is released once."),
    "experiment, run, sweep": ("One TOML file; its execution with one seed; a grid of runs."),
    "arm": ("One way to release and to train; the arms of an experiment share users, seeds and texts."),
    "protocol": ("Who releases what for training, and what the server does with it."),
    "reference": ("Arm without protection, marked †. Not for use on people."),
    "ladder, rung": (
        "ε of a user for each unit: token, text, embedding, label, statistic (a user vector), record, user, shuffled."
    ),
    "shuffler, crowd": (
        "The shuffler removes names and order. The crowd is the number of delivered, honest users who agree "
        "in all that leaves in clear. The **central ε** holds if the shuffler is honest."
    ),
    "maps": ("Linear functions, learned on public text, from an embedding to the dimensions of a release."),
    "training, inference": ("Training needs a mean over users. Inference needs one user's answer."),
    "sanitized inference": ("A user queries a model by a released embedding."),
    "bundle, publisher": ("What a device installs: encoder, public parameters, policy. Its publisher signs it."),
    "quantizer": ("Public grid to which released numbers are rounded."),
    "guard file": ("File that names a ledger's last commit, so that an older copy is refused."),
    "plugin, external": ("A mechanism of another package; software that is audited through a program."),
    "holdout": ("Public texts that choose hyperparameters."),
    "blanket, clones, variation ratio": ("Proofs of a shuffled ε ([the ladder](../explanation/ladder.md))."),
    "audit, attack": (
        "An audit measures a lower bound of ε against a claim. An attack measures what an adversary gets."
    ),
    "paired difference": ("Difference of two arms, text by text, with a smaller error."),
}

#: Headings of the report's names, where they differ.
_CALLED = {
    "ε": "ε (epsilon)",
    "δ": "δ (delta)",
    "crowd": "shuffler, crowd",
    "shuffler": "shuffler, crowd",
    "shuffled ε": "shuffler, crowd",
    "ledger": "ledger, charge",
    "attack": "audit, attack",
    "audit": "audit, attack",
    "rung": "ladder, rung",
    "ladder": "ladder, rung",
    "central ε": "central differential privacy",
    "exposed": "exposure",
    "worst case ε": "worst case",
}


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
