"""A device that is served: it answers, ends when told to, and goes on after a kill; who is let in."""

from __future__ import annotations

import io
import re
import signal
import subprocess
import sys
import threading
import time
import zipfile
from importlib.metadata import version

import pytest
from flwr.cli.build import build_fab_from_files

from client.device.code import installed
from mechanisms.messages.refusals import REFUSALS
from mechanisms.messages.wire import reply_from_record, request_to_record
from sottovoce.deployment import certificates, superlink
from sottovoce.deployment.processes import free_port
from tests.support.clients import make_node, request
from tests.support.deployments import running, superlink_in, wait_until
from tests.support.serving import (
    ask,
    charged,
    children,
    listens,
    payloads,
    rows,
    run_of,
    serving,
    wait_for,
    wait_to_read,
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning:pathspec.*"),
    pytest.mark.xdist_group("superlink"),  # one for all of these
]


def test_a_served_device_answers_through_the_superlink(link, fab, tmp_path):
    key, node_id = link.node(tmp_path / "keys")
    node = make_node(tmp_path / "node", seed=None)
    with run_of(link, fab) as grid:
        with serving(link, node, key) as process:
            wait_for(grid, node_id, process)
            record = ask(grid, node_id)
            assert len(reply_from_record(record)) == 8
            assert charged(node) == payloads(record)
            assert ask(grid, node_id) == record  # again: the same bytes
            assert len(rows(node)) == 16
            assert not children(process)
            assert not listens(process)
            process.terminate()
            assert process.wait(30) == 0
        wait_until_gone(grid, node_id)
    lines = process.log.read_text().splitlines()
    assert len(lines) == 3
    assert re.search(f"node {node_id} at {link.address}, with the client [0-9a-f]{{16}}$", lines[0])


def wait_until_gone(grid, node_id):
    """A busy SuperLink hears it late; a node that has said nothing is there for a minute."""
    end = time.monotonic() + 40
    while node_id in grid.get_node_ids():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_ctrl_c_ends_it_too(link, fab, tmp_path):
    key, node_id = link.node(tmp_path / "keys")
    node = make_node(tmp_path / "node", seed=None)
    with run_of(link, fab) as grid, serving(link, node, key) as process:
        wait_for(grid, node_id, process)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
        wait_until_gone(grid, node_id)


def test_a_run_that_ships_other_code_is_refused_and_its_code_never_runs(link, fab, tmp_path):
    ran = tmp_path / "ran"
    evil = f"open({str(ran)!r}, 'w').close()\n".encode()
    files = {name: evil + content for name, content in installed().items()}
    about = superlink._APP.format(version=version("sottovoce")).encode()
    shipped = build_fab_from_files({"pyproject.toml": about, **files})[0]
    key, node_id = link.node(tmp_path / "keys")
    node = make_node(tmp_path / "node", seed=None)
    with serving(link, node, key) as process:
        with run_of(link, shipped) as grid:
            wait_for(grid, node_id, process)
            assert ask(grid, node_id) == f"code {REFUSALS['code'][0]}"
            assert not ran.exists()
            assert not (node / "ledger.sqlite").exists()
        with run_of(link, fab) as grid:
            assert len(reply_from_record(ask(grid, node_id))) == 8
    assert not ran.exists()
    zipfile.ZipFile(io.BytesIO(shipped)).extractall(tmp_path / "shipped")
    subprocess.run([sys.executable, "-c", "import client.app"], cwd=tmp_path / "shipped", check=False)
    assert ran.exists()  # or this test would show nothing


@pytest.mark.parametrize(
    "moment", ["charged", *(pytest.param(other, marks=pytest.mark.soak) for other in ("asked", "answered"))]
)  # every write and every send: tests/system/test_kills.py
def test_killed_at_any_moment_it_repeats_what_left_at_no_new_cost(link, fab, tmp_path, moment):
    key, node_id = link.node(tmp_path / "keys")
    node = make_node(tmp_path / "node", seed=None)
    before = []
    with run_of(link, fab) as grid:
        with serving(link, node, key) as process:
            wait_for(grid, node_id, process)
            asking = threading.Thread(target=lambda: before.append(ask(grid, node_id, timeout=3)))
            asking.start()
            if moment == "charged":
                wait_until((node / "ledger.sqlite").exists, process)
            if moment == "answered":
                asking.join()
            process.kill()
            process.wait()
            asking.join()
        held = charged(node) if (node / "ledger.sqlite").exists() else {}
        with serving(link, node, key) as process:  # it does not wait until Flower takes the dead one for gone
            wait_to_read(process, f"node {node_id}")
            record = ask(grid, node_id)
    assert before[0] in ("no answer", "unreadable reply", record)  # cut off before, or while it was sent
    assert moment != "answered" or before[0] == record
    assert not held or payloads(record) == held
    assert charged(node) == payloads(record)
    assert len(rows(node)) == 16


def test_it_waits_for_a_superlink_that_goes_away_until_told_to_end(fab, tmp_path):
    node = make_node(tmp_path / "node", seed=None)
    with superlink_in(tmp_path / "link") as link:
        key, node_id = link.node(tmp_path / "keys")
        with run_of(link, fab) as grid, serving(link, node, key) as process:
            wait_for(grid, node_id, process)
            link.process.kill()
            link.process.wait()
            wait_to_read(process, "trying again")
            with pytest.raises(ValueError, match="cannot be reached"):
                ask(impatient(grid), node_id)
            process.terminate()
            assert process.wait(30) == 0


def test_it_waits_for_a_superlink_that_comes_later(link, tmp_path):
    key, _ = link.node(tmp_path / "keys")
    node = make_node(tmp_path / "node", seed=None)
    with serving(link, node, key, address=f"127.0.0.1:{free_port()}") as process:
        wait_to_read(process, "trying again")
        process.terminate()
        assert process.wait(30) == 0


def impatient(grid):
    grid._retry_invoker.max_time = 0.1
    return grid


# --- the operator's side ---


def test_the_wrong_secret_takes_no_task(link, fab, tmp_path):
    certificates.make_secret(tmp_path)
    run = superlink.start_run(link.address, link.ca, fab)
    with pytest.raises(ValueError, match="refused"):
        superlink.acquire_grid(link.address, link.ca, tmp_path / "secret", run_id=run)


def test_a_key_is_registered_once(link, tmp_path):
    link.node(tmp_path)
    with pytest.raises(ValueError, match="already in use"):
        superlink.register(link.address, link.ca, tmp_path / "node.pub")


def test_what_is_no_public_key_is_one_line(link):
    with pytest.raises(ValueError, match="holds no SuperNode's public key"):
        superlink.register(link.address, link.ca, link.ca)


def test_nodes_that_are_not_there_are_no_answer_at_once(link, fab, tmp_path):
    _, registered = link.node(tmp_path)
    with run_of(link, fab) as grid:
        asked = request_to_record(request(arm=""))
        found = sorted(superlink.ask(grid, asked, {registered: 2**20, 5: 2**20}, timeout=60))
    assert found == sorted([(registered, None, "no answer"), (5, None, "no answer")])


def test_tasks_that_nobody_took_do_not_stand_in_the_way(link, fab):
    superlink.start_run(link.address, link.ca, fab)
    with run_of(link, fab) as grid:
        assert grid.run.run_id


def test_a_task_that_does_not_come_is_one_line(link):
    with pytest.raises(ValueError, match="does not come"):
        superlink.acquire_grid(link.address, link.ca, link.secret, run_id=1, seconds=0.1)


def test_a_port_that_is_taken_is_one_line(link, tmp_path):
    port = int(link.address.rpartition(":")[2])
    with pytest.raises(ValueError, match="ended with code"), superlink_in(tmp_path, port=port):
        pass


def test_nothing_listens_and_it_does_not_come(tmp_path):
    certificates.make_authority(tmp_path)
    log = tmp_path / "log.txt"
    ca, address = tmp_path / "ca.pem", f"127.0.0.1:{free_port()}"
    sleeping = running([sys.executable, "-c", "import time; time.sleep(60)"], log=log)
    with sleeping as process, pytest.raises(ValueError, match="no answer in 0 s"):
        superlink.wait_until_up(address, ca, process=process, log=log, seconds=0.1)
