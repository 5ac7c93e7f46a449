"""Protocol centralised: a reference arm, trained by a trusted server on all texts and labels in clear.

No user sends anything to this server, so it has no steps: `simulations.run.centralised` trains it on the simulated
users' data.
"""

from __future__ import annotations

from server.protocols.declaration import TrainingProtocol

PROTOCOL = TrainingProtocol(
    "centralised",
    "trained on all texts and labels as they are, by a server trusted with them: NOT private",
    some_labels=True,
    encoder=True,
    private=False,
    whole=False,
    beside=True,
)
