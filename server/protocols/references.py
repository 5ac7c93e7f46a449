"""Protocols without steps of their own: references, whose users send nothing, and public data alone."""

from __future__ import annotations

from mechanisms.channels import EMBEDDING, LABEL
from server.protocols.declaration import TrainingProtocol

#: `simulations.run.centralised` trains it on the simulated users' data.
CENTRALISED = TrainingProtocol(
    "centralised",
    "trained on all texts and labels as they are, by a server trusted with them: NOT private",
    some_labels=True,
    encoder=True,
    private=False,
    whole=False,
    beside=True,
)
#: The published procedure, simulated in one process without a ledger: its gradients depend on raw text.
PAPER = TrainingProtocol(
    "paper",
    "a trusted simulation of the published procedure; gradients depend on raw text: NOT private",
    trains_on=frozenset({EMBEDDING.name, LABEL.name}),
    queried=frozenset({EMBEDDING.name}),
    checkpoint=True,
    private=False,
)
#: It runs the steps of its experiment's protocol.
PUBLIC_ONLY = TrainingProtocol(
    "public-only", "public data alone; no user took part", some_labels=True, borrows=True, whole=False, beside=True
)
