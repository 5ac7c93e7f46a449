"""Devices that are served by the command, and a run that asks them."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from pathlib import Path

from client.node import load_node
from mechanisms.messages.wire import reply_from_record, request_to_record
from sottovoce.deployment import superlink
from tests.support.clients import request
from tests.support.deployments import running, wait_until

SOTTOVOCE = str(Path(sys.executable).with_name("sottovoce"))


@contextmanager
def run_of(link, fab):
    """The Grid of a new run."""
    grid = superlink.acquire_grid(
        link.address, link.ca, link.secret, run_id=superlink.start_run(link.address, link.ca, fab)
    )
    try:
        yield grid
    finally:
        superlink.finish(grid)


@contextmanager
def serving(link, node, key, *, ca=None, address=None):
    """The command that serves a device's folder. Its log is beside the folder."""
    log = node.with_suffix(".log")
    command = [SOTTOVOCE, "device", "serve", str(node), "--superlink", address or link.address]
    command += ["--root-certificates", str(ca or link.ca), "--key", str(key)]
    with running(command, log=log) as process:
        process.log = log
        yield process


def wait_for(grid, node_id, process):
    wait_until(lambda: node_id in grid.get_node_ids(), process)


def ask(grid, node_id, timeout=60, **changes):
    """The records of the one node's reply, or its error."""
    asked = request_to_record(request(arm="", **changes))
    ((node, record, error),) = superlink.ask(grid, asked, {node_id: 2**26}, timeout=timeout)
    assert node == node_id
    return record if error is None else error


def rows(node):
    with load_node(node).ledger("") as ledger:
        return ledger.rows()


def payloads(record):
    return {r.channel: next(iter(r.payload.values())).tobytes() for r in reply_from_record(record).releases}


def charged(node):
    """What the ledger says left, by channel."""
    found: dict[str, bytes] = {}
    for row in rows(node):
        found[row.channel] = found.get(row.channel, b"") + row.payload
    return found


def ended(command_log):
    (line,) = command_log.read_text().splitlines()
    return line


def children(process):
    return Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()


def listens(process):
    """Whether a process has a socket that listens."""
    sockets = {os.readlink(p) for p in Path(f"/proc/{process.pid}/fd").iterdir() if p.exists() or p.is_symlink()}
    lines = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()]
    return any(f"socket:[{line[9]}]" in sockets for line in lines if line[3] == "0A")
