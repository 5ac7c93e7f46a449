"""A device that is served: it answers, ends when told to, and goes on after a kill; who is let in."""

from __future__ import annotations

import datetime
import http.client
import io
import json
import re
import signal
import ssl
import subprocess
import sys
import threading
import time
import zipfile
from base64 import b64encode
from contextlib import ExitStack, suppress
from importlib.metadata import version

import httpx
import numpy as np
import pytest
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.cli.build import build_fab_from_files
from flwr.common.constant import TIMESTAMP_HEADER, TIMESTAMP_TOLERANCE
from flwr.proto.fleet_pb2 import ActivateNodeRequest, PullMessagesRequest, RegisterNodeFleetRequest
from flwr.proto.node_pb2 import Node as FlowerNode
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE

from client.device.code import installed
from client.device.fleet import Fleet, Unusable
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
    ended,
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
            process.send_signal(signal.SIGINT)  # as Ctrl-C; the tests below end it by SIGTERM
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


def test_killed_once_it_has_charged_it_repeats_what_left_at_no_new_cost(link, fab, tmp_path):
    """Every write and every send: tests/system/test_kills.py."""
    key, node_id = link.node(tmp_path / "keys")
    node = make_node(tmp_path / "node", seed=None)
    before = []
    with run_of(link, fab) as grid:
        with serving(link, node, key) as process:
            wait_for(grid, node_id, process)
            asking = threading.Thread(target=lambda: before.append(ask(grid, node_id, timeout=3)))
            asking.start()
            wait_until((node / "ledger.sqlite").exists, process)
            process.kill()
            process.wait()
            asking.join()
        kept = charged(node)
        with serving(link, node, key) as process:  # it does not wait until Flower takes the dead one for gone
            wait_to_read(process, f"node {node_id}")
            record = ask(grid, node_id)
    assert before[0] in ("no answer", "unreadable reply", record)  # cut off before, or while it was sent
    assert not kept or payloads(record) == kept
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


def test_what_the_operator_cannot_have_is_one_line(link, fab, tmp_path):
    link.node(tmp_path / "taken")
    certificates.make_secret(tmp_path)
    run = superlink.start_run(link.address, link.ca, fab)
    port = int(link.address.rpartition(":")[2])
    for call, words in (
        (lambda: superlink.acquire_grid(link.address, link.ca, tmp_path / "secret", run_id=run), "refused"),
        (lambda: superlink.acquire_grid(link.address, link.ca, link.secret, run_id=1, seconds=0.1), "does not come"),
        (lambda: superlink.register(link.address, link.ca, tmp_path / "taken" / "node.pub"), "already in use"),
        (lambda: superlink.register(link.address, link.ca, link.ca), "holds no SuperNode's public key"),
        (lambda: superlink_in(tmp_path / "link", port=port).__enter__(), "ended with code"),
    ):
        with pytest.raises(ValueError, match=words):
            call()
    with run_of(link, fab) as grid:  # the tasks that nobody took do not stand in the way
        assert grid.run.run_id


def test_nodes_that_are_not_there_are_no_answer_at_once(link, fab, tmp_path):
    _, registered = link.node(tmp_path)
    with run_of(link, fab) as grid:
        limits = {registered: 2**20, 5: 2**20}
        replies = sorted(superlink.ask(grid, request_to_record(request(arm="")), limits, timeout=60))
    assert replies == sorted([(registered, None, "no answer"), (5, None, "no answer")])


def test_nothing_listens_and_it_does_not_come(tmp_path):
    certificates.make_authority(tmp_path)
    log = tmp_path / "log.txt"
    ca, address = tmp_path / "ca.pem", f"127.0.0.1:{free_port()}"
    sleeping = running([sys.executable, "-c", "import time; time.sleep(60)"], log=log)
    with sleeping as process, pytest.raises(ValueError, match="no answer in 0 s"):
        superlink.wait_until_up(address, ca, process=process, log=log, seconds=0.1)


def test_an_unregistered_key_is_refused_in_one_line(link, tmp_path):
    certificates.node_keys(tmp_path)
    node = make_node(tmp_path / "node", seed=None)
    with serving(link, node, tmp_path / "node.key") as process:
        assert process.wait(60) == 2
    assert "does not accept this node's key" in ended(process.log)


def test_a_node_cannot_register_itself(link, tmp_path):
    certificates.node_keys(tmp_path)
    key = keys_of(tmp_path / "node.key")
    body = RegisterNodeFleetRequest(public_key=public_key_to_bytes(key.public_key())).SerializeToString()
    assert post(link, "register-node", body, signed(key)).status_code in (400, 403, 412)


def test_plaintext_against_the_tls_port_gets_nothing(link):
    host, _, port = link.address.partition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=10)
    connection.request("POST", "/v1/fleet/pull-messages", b"")
    with pytest.raises((http.client.HTTPException, OSError)):
        connection.getresponse()
    connection.close()


# --- a request of a node that somebody has recorded, and sends again ---


def keys_of(path):
    return load_ssh_private_key(path.read_bytes(), None)


def signed(key, age=0.0):
    """The headers of a request that was made `age` seconds ago."""
    at = (datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=age)).isoformat()
    return {
        FLEET_HTTP_PUBLIC_KEY_HEADER: b64encode(public_key_to_bytes(key.public_key())).decode(),
        TIMESTAMP_HEADER: at,
        FLEET_HTTP_SIGNATURE_HEADER: b64encode(sign_message(key, at.encode())).decode(),
    }


def post(link, name, body, headers):
    url = f"https://{link.address}/v1/fleet/{name}"
    kinds = {"content-type": PROTOBUF_MEDIA_TYPE, "accept": PROTOBUF_MEDIA_TYPE}
    with httpx.Client(verify=ssl.create_default_context(cafile=str(link.ca))) as client:
        return client.post(url, content=body, headers=kinds | headers)


def pulling(node_id):
    return PullMessagesRequest(node=FlowerNode(node_id=node_id)).SerializeToString()


@pytest.fixture
def known(link, tmp_path):
    """A node's key, its id, and the id of another node."""
    path, node_id = link.node(tmp_path / "mine")
    return keys_of(path), node_id, link.node(tmp_path / "other")[1]


def test_a_request_is_refused_unless_its_proof_is_its_own(link, known, tmp_path):
    """Stale, of the future, of another node, and without each part of the proof or with another's."""
    key, node_id, other = known
    certificates.node_keys(tmp_path / "third")
    mine, foreign = signed(key), signed(keys_of(tmp_path / "third" / "node.key"), age=1)
    assert post(link, "pull-messages", pulling(node_id), mine).status_code == 200
    refused = [(node_id, signed(key, age=TIMESTAMP_TOLERANCE + 10)), (node_id, signed(key, age=-60)), (other, mine)]
    for part in (FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER, TIMESTAMP_HEADER):
        without = {name: value for name, value in mine.items() if name != part}
        refused += [(node_id, without), (node_id, without | {part: foreign[part]})]
    for node, headers in refused:
        assert post(link, "pull-messages", pulling(node), headers).status_code == 401


def test_flower_takes_a_recorded_request_again_within_its_tolerance(link, known):
    """What Flower's proof does not cover: the request itself, and how often it came. Whoever could record one has read
    what TLS hides, so only the SuperLink's operator can; docs/how-to/deploy.md says so. Where Flower mends it, this
    test fails, and that page must change."""
    key, node_id, _ = known
    recorded = signed(key, age=TIMESTAMP_TOLERANCE - 60)
    assert post(link, "pull-messages", pulling(node_id), recorded).status_code == 200
    assert post(link, "pull-messages", pulling(node_id), recorded).status_code == 200
    other_body = ActivateNodeRequest(public_key=public_key_to_bytes(key.public_key()), heartbeat_interval=30)
    assert post(link, "activate-node", other_body.SerializeToString(), recorded).status_code == 200


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
    monkeypatch.setattr(superlink, "_PATIENCE", 1.0)
    found = []
    with ExitStack() as stack, run_of(link, fab) as grid:
        nodes = {}
        for way in (silent, noise, honest, swollen):
            key, node_id = link.node(tmp_path / way.__name__)
            nodes[node_id] = Fleet(link.address, link.ca, key), way
            nodes[node_id][0].activate(None)
            stack.callback(nodes[node_id][0].close)
        asked = request_to_record(request(arm=""))
        limits = dict.fromkeys(nodes, 2**20)
        asking = threading.Thread(target=lambda: found.extend(superlink.ask(grid, asked, limits, timeout=5)))
        asking.start()
        for node, way in nodes.values():
            way(node, grid.run.run_id, *node.parts(Message(reply_of(way), reply_to=receive(node))))
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
