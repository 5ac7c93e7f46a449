"""A device that is served: it answers, ends when told to, and goes on after a kill; who is let in."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import zipfile
from contextlib import ExitStack, contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.cli.build import build_fab_from_files

from client.device.code import installed
from client.device.fleet import Fleet
from client.device.https import Unusable
from mechanisms.messages.refusals import REFUSALS
from mechanisms.messages.wire import reply_from_record, request_to_record
from sottovoce.deployment import superlink
from tests.support.answers import ledger_rows
from tests.support.clients import make_node, request
from tests.support.deployments import running, wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning:pathspec.*"),
    pytest.mark.xdist_group("superlink"),  # one for all of these
]


@contextmanager
def run_of(link, fab):
    """The Grid of a new run."""
    run = superlink.start_run(link.address, link.ca, fab)
    grid = superlink.acquire_grid(link.address, link.ca, link.secret, run_id=run)
    try:
        yield grid
    finally:
        superlink.finish(grid)


@contextmanager
def serving(link, node, key, grid, node_id):
    """The command that serves a device's folder, once the run knows of it. Its log is beside the folder."""
    command = [Path(sys.executable).with_name("sottovoce"), "device", "serve", node, "--superlink", link.address]
    command += ["--root-certificates", link.ca, "--key", key]
    with running([*map(str, command)], log=node.with_suffix(".log")) as process:
        wait_until(lambda: node_id in grid.get_node_ids(), process)
        yield process


def ask(grid, node_id):
    """The records of the one node's reply, or its error."""
    asked = request_to_record(request(arm=""))
    ((node, record, error),) = superlink.ask(grid, asked, {node_id: 2**26}, timeout=60)
    assert node == node_id
    return record if error is None else error


def listens(process):
    """Whether a process has a socket that listens."""
    sockets = {os.readlink(p) for p in Path(f"/proc/{process.pid}/fd").iterdir() if p.exists() or p.is_symlink()}
    lines = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()]
    return any(f"socket:[{line[9]}]" in sockets for line in lines if line[3] == "0A")


def test_a_served_device_answers_through_the_superlink(link, fab, tmp_path):
    key, node_id = link.node(tmp_path / "keys")
    node = make_node(tmp_path / "node", seed=None)
    with run_of(link, fab) as grid:
        with serving(link, node, key, grid, node_id) as process:
            record = ask(grid, node_id)
            reply, rows = reply_from_record(record), ledger_rows(node)
            assert len(reply) == 8 and len(rows) == 16
            for release in reply.releases:
                (payload,) = release.payload.values()
                assert payload.tobytes() == b"".join(row.payload for row in rows if row.channel == release.channel)
            assert ask(grid, node_id) == record and ledger_rows(node) == rows  # again: the same bytes
            assert not Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
            assert not listens(process)
            process.send_signal(signal.SIGINT)  # as Ctrl-C; the test below ends it by SIGTERM
            assert process.wait(30) == 0
        end = time.monotonic() + 40  # late on a busy machine; silent nodes stay for a minute
        wait_until(lambda: node_id not in grid.get_node_ids())
        assert time.monotonic() < end
    lines = node.with_suffix(".log").read_text().splitlines()
    assert len(lines) == 3 and re.search(f"node {node_id} at {link.address}$", lines[0])


def test_a_run_that_ships_other_code_is_refused_and_its_code_never_runs(link, fab, tmp_path):
    ran = tmp_path / "ran"
    evil = f"open({str(ran)!r}, 'w').close()\n".encode()
    files = {name: evil + content for name, content in installed().items()}
    about = superlink._APP.format(version=version("sottovoce")).encode()
    shipped = build_fab_from_files({"pyproject.toml": about, **files})[0]
    key, node_id = link.node(tmp_path / "keys")
    node = make_node(tmp_path / "node", seed=None)
    with run_of(link, shipped) as grid, serving(link, node, key, grid, node_id):
        assert ask(grid, node_id) == f"code {REFUSALS['code'][0]}"
        assert not ran.exists() and not (node / "ledger.sqlite").exists()
        with run_of(link, fab) as ours:
            assert len(reply_from_record(ask(ours, node_id))) == 8
    assert not ran.exists()
    zipfile.ZipFile(io.BytesIO(shipped)).extractall(tmp_path / "shipped")
    subprocess.run([sys.executable, "-c", "import client.app"], cwd=tmp_path / "shipped", check=False)
    assert ran.exists()  # or this test would show nothing


# --- the operator's side ---


def test_what_the_operator_cannot_have_is_one_line(link, fab, tmp_path):
    link.node(tmp_path / "taken")
    (tmp_path / "secret").write_bytes(bytes(32))
    run = superlink.start_run(link.address, link.ca, fab)
    for call, words in (
        (lambda: superlink.acquire_grid(link.address, link.ca, tmp_path / "secret", run_id=run), "refused"),
        (lambda: superlink.acquire_grid(link.address, link.ca, link.secret, run_id=1, seconds=0.1), "does not come"),
        (lambda: superlink.register(link.address, link.ca, tmp_path / "taken" / "node.pub"), "already in use"),
        (lambda: superlink.register(link.address, link.ca, link.ca), "holds no SuperNode's public key"),
    ):
        with pytest.raises(ValueError, match=words):
            call()
    with run_of(link, fab) as grid:  # the tasks that nobody took do not stand in the way
        assert grid.run.run_id


# --- a request of a node that somebody has recorded, and sends again ---


def test_nodes_that_are_not_there_are_no_answer_at_once(link, fab, tmp_path):
    _, registered = link.node(tmp_path)
    with run_of(link, fab) as grid:
        limits = {registered: 2**20, 5: 2**20}
        replies = sorted(superlink.ask(grid, request_to_record(request(arm="")), limits, timeout=60))
    assert replies == sorted([(registered, None, "no answer"), (5, None, "no answer")])


def test_no_node_can_name_the_message_of_another_and_answer_for_it(link, fab, tmp_path):
    """Flower takes a reply from whoever names the message, a hash of what it says. What it says is known to all nodes
    but for who is asked, and when: both can be guessed."""
    with ExitStack() as stack, run_of(link, fab) as grid:
        nodes, ids = [], []
        for name in ("a", "b"):
            key, node_id = link.node(tmp_path / name)
            nodes.append(Fleet(link.address, link.ca, key))
            nodes[-1].activate(None)
            stack.callback(nodes[-1].close)
            ids.append(node_id)
        answers = superlink.ask(grid, request_to_record(request(arm="")), dict.fromkeys(ids, 2**20), timeout=1)
        waiting = threading.Thread(target=lambda: list(answers))
        waiting.start()
        found = [receive(node).metadata for node in nodes]
        waiting.join()
    assert len({about.message_id for about in found}) == 2
    assert len({about.group_id for about in found}) == 2
    assert all(len(about.group_id) == 32 for about in found)


def reply_of(way):
    return RecordDict({"x": ArrayRecord({"y": Array(np.full(1000, len(way.__name__)))})})


def honest(node, run, about, parts):
    session, wanted = node.announce(about)
    for name in wanted:
        node.push(run, session, name, parts[name])


def silent(node, run, about, parts):
    node.announce(about)


def noise(node, run, about, parts):
    session, wanted = node.announce(about)
    for name in wanted:
        with suppress(Unusable):  # the SuperLink looks at some of it itself
            node.push(run, session, name, b"\xff" * 100)


def swollen(node, run, about, parts):
    """An array that grows to gigabytes, in a few bytes: it names its one chunk again and again."""
    session, wanted = node.announce(about)
    for name in wanted:
        head, _, body = parts[name].partition(b"\0")
        if head.startswith(b"Array "):
            body = json.dumps(json.loads(body) | {"arraychunk_ids": [0] * 2_000_000}).encode()
            head = b" ".join([*head.split(b" ")[:-1], str(len(body)).encode()])
        with suppress(Unusable):
            node.push(run, session, name, head + b"\0" + body)


def test_replies_that_cannot_be_read_do_not_stop_a_round(link, fab, tmp_path, monkeypatch):
    found, over = [], threading.Event()  # the stage lasts until the honest reply is there, however slow the machine
    clock = SimpleNamespace(sleep=time.sleep, monotonic=lambda: time.monotonic() + 1000 * over.is_set())
    monkeypatch.setattr(superlink, "time", clock)
    with ExitStack() as stack, run_of(link, fab) as grid:
        nodes = {}
        for way in (silent, noise, honest, swollen):
            key, node_id = link.node(tmp_path / way.__name__)
            nodes[node_id] = Fleet(link.address, link.ca, key), way
            nodes[node_id][0].activate(None)
            stack.callback(nodes[node_id][0].close)
        asked = request_to_record(request(arm=""))
        limits = dict.fromkeys(nodes, 2**20)
        asking = threading.Thread(target=lambda: found.extend(superlink.ask(grid, asked, limits, timeout=300)))
        asking.start()
        for node, way in nodes.values():
            way(node, grid.run.run_id, *node.parts(Message(reply_of(way), reply_to=receive(node))))
        wait_until(lambda: found)
        over.set()
        asking.join()
    said = {nodes[node_id][1]: (record, error) for node_id, record, error in found}
    assert said.pop(honest) == (reply_of(honest), None)
    # the SuperLink passes on nothing but what was announced: none of these is ever whole, as where a device was killed
    assert said == {way: (None, "no answer") for way in (silent, noise, swollen)}
    assert len(found) == 4


def receive(node):
    found = []
    wait_until(lambda: found.append(node.receive()) or found[-1])
    return found[-1][0]
