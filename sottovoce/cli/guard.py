"""Command `sottovoce guard`: run a Flower node's apps in a sandbox, under the operator's policy."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Annotated

import typer

from sottovoce.cli.device import ends_on_signal
from sottovoce.cli.options import show_progress

# This file must not import Flower, because `--help` and the error for a mistyped file must come fast.


def command(
    policy: Annotated[Path, typer.Argument(metavar="POLICY.toml", help="The policy of the node's operator.")],
    secret: Annotated[
        Path,
        typer.Option("--secret", metavar="FILE", help="The secret of the SuperNode's --superexec-auth-secret-file."),
    ],
    supernode: Annotated[
        str, typer.Option("--supernode", metavar="HOST:PORT", help="The SuperNode's Runtime API on this machine.")
    ] = "127.0.0.1:9094",
) -> None:
    """Run a Flower node whose apps send charged releases only."""
    with ends_on_signal():
        from simulations.transport.quiet import hush_flower
        from sottovoce.guard.guard import Guard
        from sottovoce.guard.policy import hidden, load_policy
        from sottovoce.guard.supernode import SuperNode

        show_progress()
        hush_flower(40)
        loaded = load_policy(policy)
        hidden(loaded.sandbox, secret)
        node = SuperNode(supernode, secret, loaded.sandbox.limits.request)
        try:
            Guard(loaded, node, threading.Event()).serve()
        finally:
            node.close()
