"""Training protocols by name. One is a file of its own, and a line of `PROTOCOLS`.

It is a `TrainingProtocol`: its name, what it needs, its options and its steps. The steps are a generator with the
following signature. It knows public data and the batches that it receives, and nothing else.

    def steps(public, channels, training, *, folder) -> Conversation

It yields requests, and receives the shuffled batch of each request. It yields `Publish` if users need an encoder that
it has trained, and receives that encoder in the form that users run. It returns a model, or None if nothing arrived to
train one on. It is deterministic in what it receives. The driver of a protocol (`server.protocols.drive`) has the
users: a simulation, a deployment, an attack's shadow models, a test.

Experiment files are checked by the declarations. A protocol's file therefore imports torch inside its functions.
"""

from __future__ import annotations

from server.protocols.declaration import CENTRALISED, PAPER, PUBLIC_ONLY, TrainingProtocol
from server.protocols.release_once import RELEASE_ONCE
from server.protocols.sanitized_text import SANITIZED_TEXT
from server.protocols.statistics import STATISTICS

PROTOCOLS: dict[str, TrainingProtocol] = {
    protocol.name: protocol for protocol in (PUBLIC_ONLY, RELEASE_ONCE, SANITIZED_TEXT, STATISTICS, CENTRALISED, PAPER)
}


def releases(name: str, channel: str) -> bool:
    """Return True if training users of a protocol release a channel; False for a name that another version wrote."""
    return name in PROTOCOLS and channel in PROTOCOLS[name].trains_on


def described(name: str) -> str:
    """Return a protocol's name and summary; the name alone if another version wrote it."""
    return f"{name}: {PROTOCOLS[name].summary}" if name in PROTOCOLS else name
