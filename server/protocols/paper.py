"""Protocol paper: the published procedure, simulated in one process without a ledger.

Its gradients depend on raw text, so it has no steps: `train_paper` trains it on the simulated users' data.
"""

from __future__ import annotations

from mechanisms.channels import EMBEDDING, LABEL
from server.protocols.declaration import TrainingProtocol

PROTOCOL = TrainingProtocol(
    "paper",
    "a trusted simulation of the published procedure; gradients depend on raw text: NOT private",
    trains_on=frozenset({EMBEDDING.name, LABEL.name}),
    queried=frozenset({EMBEDDING.name}),
    checkpoint=True,
    private=False,
)
