"""Glossary of the field, in a sentence or two each, for tooltips of the report and docs/glossary.md."""

from __future__ import annotations

import re

#: Entries as Markdown, by their headings.
ENTRIES = {
    "ε (epsilon)": (
        "How much likelier a message may be from one input than from another: at most e^ε times. 0 says nothing "
        "about the input; 1 is little; 10 means up to 22,000 times."
    ),
    "δ (delta)": (
        "The chance with which ε may fail. Far below one in the number of users; 10⁻⁶ where nothing else is said."
    ),
    "local differential privacy": (
        "ε holds of what leaves the device, against everybody: the server need not be trusted."
    ),
    "central differential privacy": (
        "ε holds of what is published after somebody trusted has seen all data and added noise."
    ),
    "metric privacy": (
        "ε·d for two inputs at distance d: alike ones hide each other well. Its **worst case** is at the largest "
        "distance, and is what to compare with other mechanisms."
    ),
    "worst case": (
        "The ε of the theorems alone, between any two inputs however different, and with nobody trusted but one's "
        "own device: what to plan with, and to compare."
    ),
    "neighbours": (
        "The two inputs that an ε is about: two words, two records, two users with all they hold. One *replaces* "
        "the other."
    ),
    "user level, record level": (
        "Whether ε is about everything that a user holds, or about one of their texts."
    ),
    "release": (
        "What leaves a client: numbers or words, drawn by a mechanism, with its guarantee. Nothing else leaves."
    ),
    "channel": (
        "What a release is about: text, embedding, label, statistic, or answer."
    ),
    "statistic, one vector": (
        "All that a user's texts and labels say to a linear model, in one vector of length 1, released once."
    ),
    "mechanism": (
        "A random function with a theorem: Purkayastha, planar Laplace, PrivUnit, randomized response, SanText "
        "and others."
    ),
    "exposure": (
        "What a text mechanism lets through beside its theorem, such as the number of words. A policy must accept "
        "each by name. Two texts agree in an exposure if it is the same at every place of the text."
    ),
    "charge, ledger, policy": (
        "Before a release leaves, its price is written into the device's ledger; the policy says how much may be "
        "written there."
    ),
    "request, stage": (
        "A server's question with its public parameters; and one round of asking, in which a record is released "
        "once."
    ),
    "arm, study": (
        "One way to release and to train; and several of them on the same users, seeds and texts."
    ),
    "reference": (
        "An arm without protection, run to see what protection costs; nothing to be used on people."
    ),
    "ladder, rung": (
        "The price of one protocol for each unit: token, text, embedding, label, record, user, and shuffled."
    ),
    "shuffler, crowd": (
        "Takes names and order off the releases of many. The crowd are those who could have sent what you sent: "
        "users who agree in all that leaves in clear. The **shuffled ε** holds for whoever sees the shuffled "
        "batch, if the shuffler is honest."
    ),
    "maps": (
        "Linear functions, learned on public text, that take an embedding to the few dimensions in which it is "
        "released."
    ),
    "sanitized inference": (
        "A user asks a model by a released embedding; the model sees no sentence."
    ),
    "blanket, clones, variation ratio": (
        "Ways to prove a shuffled ε ([crowds](crowds.md))."
    ),
    "audit, attack": (
        "The audit measures a lower bound of ε and fails where a claim is violated; an attack measures what an "
        "adversary gets."
    ),
    "paired difference": (
        "The difference of two arms on the same test texts, text by text: its error is far smaller than that of "
        "two accuracies."
    ),
}

#: Headings of the report's names, where they differ.
_CALLED = {
    "ε": "ε (epsilon)", "δ": "δ (delta)", "crowd": "shuffler, crowd", "shuffler": "shuffler, crowd",
    "shuffled ε": "shuffler, crowd", "arm": "arm, study", "ledger": "charge, ledger, policy",
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
