"""Training protocols, one file each. A file that defines `PROTOCOL` is a protocol; no other list names it.

`PROTOCOL` is a `TrainingProtocol`: its name, what it needs, its options and its steps. The steps are a generator with
the following signature. It knows public data and the batches that it receives, and nothing else.

    def steps(public, channels, training, *, folder) -> Conversation

It yields requests, and receives the shuffled batch of each request. It yields `Publish` if users need an encoder that
it has trained, and receives that encoder in the form that users run. It returns a model, or None if nothing arrived to
train one on. It is deterministic in what it receives. The driver of a protocol (`server.protocols.drive`) has the
users: a simulation, a deployment, an attack's shadow models, a test.

Experiment files are checked by the declarations. A protocol's file therefore imports torch inside its functions.
"""

from __future__ import annotations

import pkgutil
from importlib import import_module

from server.protocols.declaration import TrainingProtocol


def _found() -> dict[str, TrainingProtocol]:
    """Return the protocols of this package by name: private ones first, then by name."""
    modules = [import_module(f"{__name__}.{each.name}") for each in pkgutil.iter_modules(__path__)]
    found = [module.PROTOCOL for module in modules if hasattr(module, "PROTOCOL")]
    by_name = {each.name: each for each in sorted(found, key=lambda each: (not each.private, each.name))}
    if len(by_name) < len(found):
        raise ValueError(f"server.protocols: two protocols have the same name, among {sorted(p.name for p in found)}")
    return by_name


PROTOCOLS = _found()


def releases(name: str, channel: str) -> bool:
    """Return True if training users of a protocol release a channel; False for a name that another version wrote."""
    return name in PROTOCOLS and channel in PROTOCOLS[name].trains_on


def described(name: str) -> str:
    """Return a protocol's name and summary; the name alone if another version wrote it."""
    return f"{name}: {PROTOCOLS[name].summary}" if name in PROTOCOLS else name
