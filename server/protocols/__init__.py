"""Ways of training, one file each: a generator that knows public data and what it is sent, and nothing else.

    def way(public, channels, training, *, folder, progress) -> Protocol

It yields requests and is sent the shuffled batch that came of each; it yields `Publish` where users need an encoder
that it has trained, and is sent that encoder as they run it; it returns a model, or None where nothing came to train
one on. It is deterministic in what it is sent. Whoever drives it (`server.protocols.drive`) has the users: a
simulation, a deployment, an attack's shadow models, a test.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

#: The ways by the name that experiments give them: "module:function", imported when one is run.
WAYS = {
    "release-once": "server.protocols.release_once:release_once",
    "sanitized-text": "server.protocols.sanitized_text:sanitized_text",
    "statistics": "server.protocols.statistics:statistics",
    "text-then-embeddings": "server.protocols.text_then_embeddings:text_then_embeddings",
}


def way_of_training(name: str) -> Any:
    """The generator function of a way. KeyError for a name that is not in WAYS."""
    module, _, function = WAYS[name].partition(":")
    return getattr(import_module(module), function)
