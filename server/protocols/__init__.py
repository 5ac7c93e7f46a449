"""Protocols, one file each: generators that know public data and the batches they receive, and nothing else.

A protocol is a function with the following signature.

    def way(public, channels, training, *, folder, progress) -> Protocol

It yields requests, and receives the shuffled batch of each request. It yields `Publish` if users need an encoder that
it has trained, and receives that encoder in the form that users run. It returns a model, or None if nothing arrived to
train one on. It is deterministic in what it receives. The driver of a protocol (`server.protocols.drive`) has the
users: a simulation, a deployment, an attack's shadow models, a test.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

#: Protocols by the name that experiments use: "module:function", imported when one runs.
WAYS = {
    "release-once": "server.protocols.release_once:release_once",
    "sanitized-text": "server.protocols.sanitized_text:sanitized_text",
    "statistics": "server.protocols.statistics:statistics",
    "text-then-embeddings": "server.protocols.text_then_embeddings:text_then_embeddings",
}


def way_of_training(name: str) -> Any:
    """Return the generator function of a protocol.

    Raises:
        KeyError: The name is not in WAYS.
    """
    module, _, function = WAYS[name].partition(":")
    return getattr(import_module(module), function)
