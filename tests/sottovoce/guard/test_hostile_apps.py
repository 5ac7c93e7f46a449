"""Hostile apps under the guard: whatever an app does, what leaves is what the ledger holds, and constants.

Each app knows a secret, tries to get it out in one way, and writes into its own state, which never leaves the guard,
what it found. A SuperNode that records every byte is the only one that the guard speaks to.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, Message
from flwr.common.serde import recorddict_from_proto
from flwr.proto.recorddict_pb2 import RecordDict as ProtoRecordDict

from client.store.ledger import Ledger
from sottovoce.deployment.processes import free_port
from sottovoce.guard.guard import Guard
from tests.support.guarded import (
    NODE,
    RUN,
    RecordingNode,
    expected_arrays,
    guarding,
    hostile,
    readable,
    recording,
    sandboxed,
    sent,
)
from tests.support.guarded import write_policy as written

pytestmark = [sandboxed, pytest.mark.slow, pytest.mark.xdist_group("guard")]

SECRET = "diagnosis-HIV-positive-4711"
#: Writes what an app has found into its state.
FOUND = """
from flwr.app import ConfigRecord
def tried(name, do):
    try:
        said = str(do())
    except BaseException as error:
        said = "no: " + type(error).__name__
    context.state["found"] = ConfigRecord({**dict(context.state.get("found", {})), name: said[:500]})
"""
#: Files of the guard beside the data.
HIDDEN = ("ledger.sqlite", "guard.toml", "secret")
#: A program whose process shows that it lives.
LIVES = "sleep 4711.4711"

APPS: dict[str, bytes] = {
    "the data as arrays": hostile(
        "raw = np.frombuffer(secret.encode().ljust(32), '<f4')",
        "return answer(asked, {'weight': np.resize(raw, 6), 'bias': np.float32(raw[0]).reshape(())})",
    ),
    "in metrics": hostile(
        "more = MetricRecord({'train_loss': float(ord(secret[0])), 'num-examples': len(secret), secret: [1.0, 2.0]})",
        "return answer(asked, metrics=more)",
    ),
    "in the names of arrays and records": hostile(
        "arrays = moved(asked)",
        "arrays[secret] = np.zeros(3, np.float32)",
        "return answer(asked, arrays, **{secret: ConfigRecord({secret: secret})})",
    ),
    "in shapes": hostile("return answer(asked, {'weight': np.zeros([*map(ord, secret[:3])]), 'bias': np.zeros(3)})"),
    "in types": hostile(
        "odd = np.array([secret] * 6)", "return answer(asked, {'weight': odd, 'bias': np.zeros((), np.complex128)})"
    ),
    "in a type of an array that is none": hostile(
        "odd = Array(secret, (6,), secret, secret.encode())", "return answer(asked, {'weight': odd, 'bias': odd})"
    ),
    "in an exception": hostile("raise RuntimeError(secret)"),
    "in a code that it ends with": hostile("os._exit(ord(secret[0]))"),
    "in sys.exit": hostile("sys.exit(secret)"),
    "in what it prints and logs": hostile(
        "import logging",
        "print(secret, flush=True); print(secret, file=sys.stderr, flush=True)",
        "logging.getLogger('flwr').error(secret)",
        "os.write(1, secret.encode()); os.write(2, secret.encode())",
        "return answer(asked)",
    ),
    "into every open file": hostile(
        "for number in range(3, 1024):",
        "    try:\n        os.write(number, secret.encode() * 1000)\n    except OSError:\n        pass",
        "return answer(asked)",
    ),
    "through loopback": hostile(
        FOUND,
        "port = int(Path(context.node_config['data-path'], 'port.txt').read_text())",
        "tried('tcp', lambda: socket.create_connection(('127.0.0.1', port), 3).sendall(secret.encode()))",
        "tried('udp', lambda: socket.socket(type=socket.SOCK_DGRAM).sendto(secret.encode(), ('127.0.0.1', port)))",
        "tried('six', lambda: socket.create_connection(('::1', port), 3).sendall(secret.encode()))",
        "return answer(asked)",
    ),
    "through an abstract socket": hostile(
        FOUND,
        "port = Path(context.node_config['data-path'], 'port.txt').read_text()",
        "tried('abstract', lambda: socket.socket(socket.AF_UNIX).connect(chr(0) + 'sottovoce-' + port))",
        "return answer(asked)",
    ),
    "through names": hostile(
        FOUND,
        "tried('dns', lambda: socket.getaddrinfo(secret + '.example.org', 80))",
        "tried('resolver', lambda: socket.socket(type=socket.SOCK_DGRAM).sendto(secret.encode(), ('127.0.0.53', 53)))",
        "tried('netlink', lambda: len(socket.if_nameindex()))",
        "return answer(asked)",
    ),
    "through the ledger and the policy": hostile(
        FOUND,
        "place = Path(context.node_config['data-path']).parent",
        f"for name in {HIDDEN}:",
        "    tried('read ' + name, lambda: (place / name).read_bytes())",
        "    tried('write ' + name, lambda: (place / name).write_bytes(b'mine'))",
        "tried('data', lambda: (Path(context.node_config['data-path']) / 'secret.txt').write_text('mine'))",
        "tried('made', lambda: (Path(context.node_config['data-path']) / 'new').write_text('mine'))",
        "return answer(asked)",
    ),
    "through links out of its folder": hostile(
        FOUND,
        "place = Path(context.node_config['data-path']).parent",
        "os.symlink(place / 'ledger.sqlite', '/tmp/ledger')",
        "os.symlink('/proc/1/root', '/tmp/root')",
        "tried('link', lambda: open('/tmp/ledger', 'ab').write(b'mine'))",
        "tried('root', lambda: sorted(os.listdir('/tmp/root')))",
        "tried('hard', lambda: os.link('/inside.py', '/tmp/inside.py'))",
        "tried('up', lambda: sorted(os.listdir('/tmp/../..')))",
        "return answer(asked)",
    ),
    "by what it sees of the machine": hostile(
        FOUND,
        "tried('environment', lambda: sorted(os.environ))",
        "tried('processes', lambda: sorted(int(n) for n in os.listdir('/proc') if n.isdigit()))",
        "tried('first', lambda: Path('/proc/1/environ').read_bytes())",
        "tried('memory', lambda: open('/proc/1/mem', 'rb').read(1))",
        "tried('user', lambda: (os.getuid(), os.getgid(), os.getgroups()))",
        "tried('files', lambda: sorted(os.listdir('/proc/self/fd')))",
        "tried('tcp', lambda: Path('/proc/net/tcp').read_text().count(chr(10)))",
        "return answer(asked)",
    ),
    "by more rights": hostile(
        FOUND,
        "import ctypes, subprocess",
        "tried('root', lambda: os.setuid(0))",
        "tried('mount', lambda: ctypes.CDLL(None).mount(b'none', b'/tmp', b'tmpfs', 0, None))",
        "tried('sudo', lambda: subprocess.run(['su', '-c', 'id'], stdin=subprocess.DEVNULL).returncode)",
        "tried('trace', lambda: ctypes.CDLL(None).ptrace(16, 1, 0, 0))",
        "tried('hostname', lambda: socket.sethostname(secret))",
        "tried('sysctl', lambda: open('/proc/sys/kernel/hostname', 'w').write(secret))",
        "return answer(asked)",
    ),
    "by places to write": hostile(
        FOUND,
        "import subprocess",
        "find = ['find', '/', '-xdev', '-writable', '-not', '-type', 'l']",
        "tried('writable', lambda: subprocess.run(find, capture_output=True, text=True).stdout.split())",
        "for where in ('/usr/x', '/dev/x', '/x', os.path.join(sys.prefix, 'x'), '/proc/sys/x', '/inside.py'):",
        "    tried(where, lambda: open(where, 'w').write(secret))",
        "return answer(asked)",
    ),
    "by a process that outlives it": hostile(
        "import subprocess",
        "for _ in range(3):",
        f"    subprocess.Popen(['setsid', 'sh', '-c', 'trap true TERM HUP; {LIVES}'], start_new_session=True)",
        "if os.fork() == 0:",
        "    os.setsid(); time.sleep(600)",
        "return answer(asked)",
    ),
    "by a signal to everybody": hostile("os.kill(-1, 9)", "return answer(asked)"),
    "by ending the first process": hostile("os.kill(1, 9)", "time.sleep(1)", "return answer(asked)"),
    "for another node, run and message": hostile(
        "reply = answer(asked)",
        "for name in ('run_id', 'src_node_id', 'dst_node_id', 'group_id', 'message_type', 'ttl', 'created_at',",
        "             'message_id', 'reply_to_message_id', 'delivered_at'):",
        "    reply.metadata.__dict__['_' + name] = secret if name.endswith(('type', 'message_id', 'group_id')) else 99",
        "return reply",
    ),
    "with two answers": hostile("return [answer(asked), answer(asked)]"),
    "in float bits": hostile(
        "bits = np.frombuffer(secret.encode().ljust(32)[:28], '<u4') | np.uint32(0x7FC00000)",
        "floats = bits.view('<f4')",
        "return answer(asked, {'weight': floats[:6].copy(), 'bias': floats[6].reshape(())})",
    ),
    "in a thousand arrays": hostile(
        "arrays = moved(asked) | {f'{secret}-{i}': np.full(1000, i, np.float32) for i in range(1000)}",
        "return answer(asked, arrays)",
    ),
    "by a bomb of memory": hostile("kept = []", "while True:", "    kept.append(np.ones(2**27, np.uint8))"),
    "by a bomb of processes": hostile(
        FOUND,
        "def many():",
        "    n = 0",
        "    while n < 5000:",
        "        if os.fork() == 0:\n            time.sleep(600)",
        "        n += 1",
        "    return n",
        "tried('forks', many)",
        "tried('memory', lambda: 'fine')",
        "return answer(asked)",
    ),
    "by a full disk": hostile(
        FOUND,
        "def fill(where):",
        "    with open(where, 'wb') as file:",
        "        for _ in range(10_000):\n            file.write(bytes(2**20))",
        "tried('scratch', lambda: [fill(f'/tmp/{i}') for i in range(3)])",
        "tried('shm', lambda: [fill(f'/dev/shm/{i}') for i in range(3)])",
        "return answer(asked)",
    ),
    "in a huge state": hostile(
        "context.state['much'] = ConfigRecord({'much': secret * 10_000})", "return answer(asked)"
    ),
    "by never ending": hostile("while True:\n    time.sleep(1)"),
}


@dataclass
class Setting:
    """A node that is guarded, and ears on this machine which nothing may reach."""

    folder: Path
    node: RecordingNode
    guard: Guard
    heard: list[bytes]

    def rows(self) -> list[Any]:
        if not (self.folder / "ledger.sqlite").exists():
            return []
        with Ledger(self.folder / "ledger.sqlite") as ledger:
            return ledger.rows()

    def ask(self, fab: bytes, message: Message) -> Message:
        self.node.put(fab, message, {"data-path": str(self.folder / "data")})
        return self.node.reply()

    def found(self) -> dict[str, str]:
        """What the last app has written into its state."""
        state = recorddict_from_proto(ProtoRecordDict.FromString(self.guard._states.get(RUN, b"")))
        return {str(k): str(v) for k, v in state["found"].items()} if "found" in state else {}


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setting]:
    folder = tmp_path_factory.mktemp("guard")
    port, heard = free_port(), []
    readable(folder, secret=SECRET, port=str(port))
    ears = []
    for ear, where in (
        (socket.socket(type=socket.SOCK_STREAM), ("127.0.0.1", port)),
        (socket.socket(type=socket.SOCK_DGRAM), ("127.0.0.1", port)),
        (socket.socket(socket.AF_UNIX), f"\0sottovoce-{port}"),
    ):
        ear.bind(where)
        if ear.type == socket.SOCK_STREAM:
            ear.listen()
        threading.Thread(target=_hear, args=(ear, heard), daemon=True).start()
        ears.append(ear)
    rich = {"statistic = 40.0": "statistic = 1000.0", "total = 40.0": "total = 1000.0"}
    policy = written(folder, *APPS.values(), seconds=12.0, **rich)
    with recording(free_port()) as node, guarding(policy, node) as guard:
        yield Setting(folder, node, guard, heard)
    for ear in ears:
        ear.close()


def _hear(ear: socket.socket, heard: list[bytes]) -> None:
    while True:
        try:
            if ear.type == socket.SOCK_STREAM:
                ear.accept()
                heard.append(b"a connection")
            else:
                heard.append(ear.recv(1000))
        except OSError:
            return


def only_releases(asked: Message, reply: Message, row: Any) -> None:
    """A reply holds a release of the ledger and constants, and nothing else of it depends on the app."""
    assert reply.has_content(), reply.error
    content = reply.content
    assert set(content) == {"arrays", "metrics"} and dict(content["metrics"]) == {"num-examples": 1}
    leaving = {key: array.numpy() for key, array in content["arrays"].items()}
    for key, array in expected_arrays(row.payload, asked).items():
        np.testing.assert_array_equal(leaving.pop(key), array)
    assert leaving == {}
    for key, array in content["arrays"].items():
        sent_one = asked.content["arrays"][key]
        assert isinstance(array, Array) and array.dtype == sent_one.dtype and array.shape == sent_one.shape
        assert array.stype == "numpy.ndarray"
    about = reply.metadata
    assert (about.run_id, about.src_node_id, about.dst_node_id) == (RUN, NODE, asked.metadata.src_node_id)
    assert about.reply_to_message_id == asked.metadata.message_id and about.message_type == "train"
    assert about.group_id == asked.metadata.group_id and abs(about.created_at - time.time()) < 60


@pytest.mark.parametrize("name", APPS)
def test_nothing_leaves_but_a_release_that_is_on_the_ledger(name: str, setting: Setting) -> None:
    before, at = {row.digest for row in setting.rows()}, len(setting.node.received)
    setting.guard._states.clear()
    asked = sent()
    reply = setting.ask(APPS[name], asked)
    (row,) = [row for row in setting.rows() if row.digest not in before]
    assert row.epsilon == pytest.approx(2.0)
    only_releases(asked, reply, row)
    received = setting.node.received[at:]
    while "push-task-output" not in [path for path, _ in received]:
        time.sleep(0.02)
        received = setting.node.received[at:]
    repeated = ("acquire-task", "send-task-heartbeat", "pull-messages", "pull-object")
    once = [path for path, _ in received if path not in repeated]
    assert once[:3] == ["pull-task-input", "confirm-message-received", "push-messages"]
    assert once[-1] == "push-task-output" and set(once[3:-1]) == {"push-object"}
    assert {body for path, body in received if path == "push-task-output"} == {b"\x12\tcompleted"}
    told = b"".join(body for _, body in received)
    assert SECRET.encode() not in told and SECRET.encode().hex().encode() not in told
    assert setting.heard == []
    check = CHECKS.get(name)
    if check is not None:
        check(setting.found())


def _refused(*names: str) -> Any:
    def check(found: dict[str, str]) -> None:
        assert {name: said for name, said in found.items() if name in names and not said.startswith("no: ")} == {}
        assert set(names) <= set(found)

    return check


def _machine(found: dict[str, str]) -> None:
    assert "SOTTOVOCE" not in found["environment"] and found["user"] == "(65534, 65534, [])"
    assert max(eval(found["processes"])) < 100 and found["first"].startswith("no: ")
    assert found["memory"].startswith("no: ") and found["tcp"] == "1"
    assert len(eval(found["files"])) <= 8


def _rights(found: dict[str, str]) -> None:
    for name in ("root", "hostname", "sysctl"):
        assert found[name].startswith("no: "), (name, found[name])
    assert found["mount"] == found["trace"] == "-1" and found["sudo"] != "0"


def _places(found: dict[str, str]) -> None:
    assert all(said.startswith("no: ") for name, said in found.items() if name != "writable")


def _links(found: dict[str, str]) -> None:
    assert found["link"].startswith("no: ") and found["hard"].startswith("no: ")
    assert "ledger" not in found["root"] and "home" not in found["up"]


def _forks(found: dict[str, str]) -> None:
    assert found["forks"].startswith("no: ")


def _full(found: dict[str, str]) -> None:
    assert found["scratch"].startswith("no: ") and found["shm"].startswith("no: ")


def _none_lives(found: dict[str, str]) -> None:
    living = []
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            living.append(each.read_bytes())
        except OSError:
            continue
    assert not [line for line in living if b"4711.4711" in line]


CHECKS = {
    "through loopback": _refused("tcp", "six"),
    "through an abstract socket": _refused("abstract"),
    "through names": _refused("dns"),
    "through the ledger and the policy": _refused(
        "data", "made", *(f"{do} {what}" for do in ("read", "write") for what in HIDDEN)
    ),
    "through links out of its folder": _links,
    "by what it sees of the machine": _machine,
    "by more rights": _rights,
    "by places to write": _places,
    "by a process that outlives it": _none_lives,
    "by a bomb of processes": _forks,
    "by a full disk": _full,
}


def test_apps_that_are_not_listed_and_requests_out_of_bounds_are_refused_before_any_code_runs(setting: Setting) -> None:
    before, at = len(setting.rows()), len(setting.guard._states)
    unknown = hostile("return answer(asked, {})")
    listed = APPS["in metrics"]
    wrong = sent("evaluate.other")
    large = sent()
    large.content["more"] = _arrays(np.zeros(3_000_000, np.float32))
    many = sent()
    many.content["more"] = _arrays(*(np.full(1, i) for i in range(600)))
    for fab, message, code in ((unknown, sent(), 114), (listed, wrong, 118), (listed, large, 101), (listed, many, 101)):
        reply = setting.ask(fab, message)
        assert reply.has_error() and reply.error.code == code
    assert len(setting.rows()) == before and len(setting.guard._states) == at


def test_a_type_that_releases_nothing_is_answered_in_constants_and_the_app_is_not_run(setting: Setting) -> None:
    before = len(setting.rows())
    reply = setting.ask(APPS["by never ending"], sent("evaluate"))
    assert dict(reply.content["metrics"]) == {"num-examples": 1} and set(reply.content) == {"metrics"}
    assert len(setting.rows()) == before


def _arrays(*values: Any) -> Any:
    from flwr.app import ArrayRecord

    return ArrayRecord({str(i): Array(value) for i, value in enumerate(values)})


def test_a_repeated_request_is_the_same_bytes_at_no_cost(setting: Setting) -> None:
    fab = APPS["in what it prints and logs"]
    first, again = (setting.ask(fab, sent(round=77)) for _ in range(2))
    before = len(setting.rows())
    other = setting.ask(fab, sent(round=78))
    told = [{k: a.numpy().tobytes() for k, a in r.content["arrays"].items()} for r in (first, again, other)]
    assert told[0] == told[1] != told[2] and len(setting.rows()) == before + 1


def test_the_folder_is_empty_and_the_state_is_there_at_the_next_message(setting: Setting) -> None:
    fab = APPS["through links out of its folder"]
    setting.guard._states.clear()
    setting.ask(fab, sent(round=1))
    first = setting.found()
    assert first["up"]
    setting.ask(fab, sent(round=2))  # the links could be made again: the folder was empty
    assert setting.found() == first
