"""Protocol public-only: an arm that runs the steps of its experiment's protocol without training users."""

from __future__ import annotations

from server.protocols.declaration import TrainingProtocol

PROTOCOL = TrainingProtocol(
    "public-only", "public data alone; no user took part", some_labels=True, borrows=True, whole=False, beside=True
)
