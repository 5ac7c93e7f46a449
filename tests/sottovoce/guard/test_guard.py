"""The guard's policy file, its sandbox's command line, its SuperNode, and when its answers leave."""

from __future__ import annotations

import hashlib
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from client.store.ledger import Ledger
from sottovoce.cli.main import main
from sottovoce.deployment.processes import free_port
from sottovoce.guard import guard as guards
from sottovoce.guard import sandbox as sandboxes
from sottovoce.guard.policy import hidden, load_policy
from sottovoce.guard.sandbox import Broken, Limits, Sandbox, size_of
from sottovoce.guard.supernode import SuperNode
from tests.support.guarded import bundle, guarding, readable, recording, sandboxed, sent, write_policy
from tests.support.paths import ROOT

APP = bundle("app = None\n")
OTHER = bundle("app = 1\n")


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    readable(tmp_path, secret="nothing")
    return write_policy(tmp_path, APP)


# --- the policy


def test_a_policy_is_read_with_paths_relative_to_it(tmp_path: Path) -> None:
    readable(tmp_path)
    relative = {f'"{tmp_path}/data"': '"data"', f'"{tmp_path}/ledger.sqlite"': '"ledger.sqlite"'}
    path = write_policy(tmp_path, APP, **relative)
    read = load_policy(path)
    assert read.accountant.ledger == tmp_path / "ledger.sqlite" and read.sandbox.data == (tmp_path / "data",)
    assert read.apps == (hashlib.sha256(APP).hexdigest(),) and read.window == 0 and read.publishers == {}
    assert set(read.accountant.releases) == {"train", "query", "evaluate"}


def test_the_page_shows_a_policy_that_is_read_and_the_limits_as_they_are(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "how-to" / "guard.md").read_text(encoding="utf-8")
    text = page.partition("```toml\n")[2].partition("```")[0]
    readable(tmp_path)
    text = text.replace("…64 hexadecimal digits…", "ab" * 32).replace("/srv/data", "data")
    (tmp_path / "guard.toml").write_text(text)
    read = load_policy(tmp_path / "guard.toml")
    assert [out.norm for out in read.accountant.releases["train"]] == [1.0]
    limits = read.sandbox.limits
    shown = dict(re.findall(r"\| `limits\.(\w+)`[^|]*\|[^|]*\| ([\d,]+)", page))
    units = {"memory": 2**30, "scratch": 2**20, "state": 2**20}
    assert {name: int(shown[name]) * units.get(name, 1) for name in shown if name != "request"} == {
        name: value for name, value in vars(limits).items() if name in shown and name != "request"
    }
    assert set(vars(limits)) == set(shown) | {"objects"} and "64 MiB, 1,024" in page
    assert (limits.request, limits.objects) == (64 * 2**20, 1024) and len(page.split()) <= 1000


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"[policy]": "extra = 1\n[policy]"}, "unknown key 'extra'"),
        ({"ledger = ": "# "}, "ledger must name a file"),
        ({"apps = [": "apps = []\n# ["}, "no app may run"),
        ({"apps = [": 'apps = ["latest"]\n# ['}, "SHA-256"),
        ({'/data"]': '/none"]'}, "no such file or folder"),
        ({"seconds = 20.0": "seconds = 0"}, "seconds must be a positive number"),
        ({"seconds = 20.0": "second = 20.0"}, "unknown key 'second'"),
        ({"[policy]": "[policy]\nwindow = 40.0"}, "in the first half of the window"),
        ({"total = 40.0": ""}, "finite total"),
        ({"norm = 1.0": ""}, "give the norm"),
        ({"ledger.sqlite": "data/ledger.sqlite"}, "which apps can read"),
        ({"[policy]": "[[policy]"}, "cannot be read as TOML"),
        ({"[instead]": "[instead]\nloss = 1"}, "record.key"),
    ],
)
def test_a_policy_that_does_not_hold_together_is_one_line(tmp_path: Path, change: dict[str, str], words: str) -> None:
    readable(tmp_path)
    with pytest.raises(ValueError, match=r"\A[^\n]+\Z") as error:
        load_policy(write_policy(tmp_path, APP, **change))
    assert words in str(error.value)


def test_no_app_sees_the_policy_the_ledger_or_the_secret(policy: Path) -> None:
    read = load_policy(policy)
    hidden(read.sandbox, policy, policy.parent / "secret")
    for place in (policy.parent / "data" / "secret", Path(sys.prefix) / "secret", Path("/usr/secret")):
        with pytest.raises(ValueError, match="which apps can read"):
            hidden(read.sandbox, place)


# --- the sandbox


def test_the_command_line_shares_nothing_and_shows_the_data_to_be_read_alone(tmp_path: Path) -> None:
    readable(tmp_path)
    made = Sandbox((tmp_path / "data",), Limits(scratch=1234))
    for root in (True, False):
        command = made.command(["program", "argument"], root=root, info=9)
        text = " ".join(command)
        for space in ("ipc", "pid", "net", "uts", "cgroup-try"):
            assert f"--unshare-{space}" in command
        assert command[0] == "bwrap" and command[-3:] == ["--", "program", "argument"]
        for option in ("--clearenv", "--die-with-parent", "--new-session"):
            assert option in command
        assert f"--ro-bind {tmp_path}/data {tmp_path}/data" in text
        assert "--perms 1777 --size 1234 --tmpfs /tmp --perms 1777 --size 1234 --tmpfs /dev/shm" in text
        assert "--remount-ro /dev --remount-ro /" in text
        assert not {"--bind", "--dev-bind", "--share-net", "--bind-try", "--dev-bind-try"} & set(command)
        shown = {command[i + 1] for i, word in enumerate(command) if word.startswith("--ro-bind")}
        assert shown <= {*map(str, made.visible), "/etc/ld.so.cache", "/etc/localtime", str(sandboxes._INSIDE)}
        assert ("--unshare-user" in command) == ("--disable-userns" in command) == (not root)
        assert ("--cap-drop ALL --cap-add CAP_SETUID --cap-add CAP_SETGID --" in text) == root


def test_without_bubblewrap_nothing_starts_and_it_is_said_what_to_install(
    policy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(policy.parent))
    with pytest.raises(ValueError, match="apt install bubblewrap"):
        load_policy(policy).sandbox.check()
    with pytest.raises(Broken):
        load_policy(policy).sandbox.run(b"", b"", b"", [])
    assert main(["guard", str(policy), "--secret", str(policy.parent / "secret")]) == 2
    said = capsys.readouterr().err
    assert "apt install bubblewrap" in said and "Traceback" not in said


@sandboxed
@pytest.mark.parametrize("kind", ["socket", "pipe"])
def test_data_that_holds_a_way_out_is_refused(kind: str, policy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = policy.parent / "data" / "inner"
    inner.mkdir()
    if kind == "pipe":
        os.mkfifo(inner / "pipe")
    else:
        with monkeypatch.context() as there:
            there.chdir(inner)  # an address has room for a short path alone
            socket.socket(socket.AF_UNIX).bind("socket")
    with pytest.raises(ValueError, match="a socket, a pipe or a device"):
        load_policy(policy).sandbox.check()


@sandboxed
def test_a_sandbox_that_cannot_be_made_is_no_sandbox(
    policy: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "bwrap").write_text("#!/bin/sh\necho '{\"child-pid\": 1}' >&$INFO; exit 1\n")
    (tmp_path / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ValueError, match="cannot make a sandbox here"):
        load_policy(policy).sandbox.check()
    with pytest.raises(Broken):
        load_policy(policy).sandbox.run(b"", b"", b"", [])


PROBE = r"""
printf '\001'; id -u; ls /; cat /proc/net/dev | wc -l
touch /usr/x 2>/dev/null && echo wrote; touch /x 2>/dev/null && echo wrote
unshare -U true 2>/dev/null && echo namespaces
mount -t tmpfs none /tmp 2>/dev/null && echo mounted
touch /tmp/mine && echo scratch
env | grep -v '^PWD\|^HOME\|^LANG\|^PATH\|^TMPDIR\|^FLWR\|^HF_\|^OLDPWD\|^_=\|^SHLVL'
"""


@sandboxed
def test_a_guard_that_is_not_root_makes_the_same_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here as nobody, and with the system's folders alone: this Python may lie where nobody can read."""
    folders = tuple(Path(each) for each in ("/usr", "/bin", "/lib", "/lib64") if Path(each).exists())
    monkeypatch.setattr(Sandbox, "visible", folders)
    monkeypatch.setattr(sandboxes, "_INSIDE", Path("/usr/bin/env"))
    command = Sandbox((), Limits()).command(["/bin/sh", "-c", PROBE], root=False, info=2)
    if os.geteuid() == 0:
        command = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *command]
    done = subprocess.run(command, capture_output=True, text=True, env={"PATH": os.environ["PATH"], "KEY": "value"})
    if "child-pid" not in done.stderr:
        pytest.skip(f"user namespaces are not allowed here: {done.stderr.strip()}")
    said = done.stdout.lstrip("\1").split()
    assert said[0] == "65534" and said[-2:] == ["3", "scratch"]  # two lines of head, and loopback
    assert set(said[1:-2]) <= {"bin", "dev", "etc", "inside.py", "lib", "lib64", "proc", "tmp", "usr"}


def test_what_is_read_of_an_app_has_a_size_and_no_form() -> None:
    values: list[guards.Value] = [("a", "w", (2, 3)), ("a", "b", ()), ("m", "label", None), ("a", "none", (0,))]
    assert size_of(values) == 8 * 8
    numbers = np.arange(7.0)
    block = numbers.astype("<f8").tobytes() + (-5).to_bytes(8, "little", signed=True)
    read = guards._read(block, values)
    assert read["m"] == {"label": -5} and read["a"]["none"].shape == (0,)
    np.testing.assert_array_equal(read["a"]["w"], numbers[:6].reshape(2, 3))
    assert read["a"]["b"] == 6.0 and read["a"]["b"].shape == ()


# --- the SuperNode


@pytest.mark.parametrize("address", ["0.0.0.0:9094", "10.1.2.3:9094", "example.org:9094", "127.0.0.1", "127.0.0.1:x"])
def test_the_supernode_is_on_this_machine(address: str, policy: Path) -> None:
    with pytest.raises(ValueError, match="on this machine"):
        SuperNode(address, policy.parent / "secret", 1000)


def test_a_supernode_that_gives_tasks_to_anybody_is_not_guarded(policy: Path) -> None:
    with recording(free_port(), secret=None) as node, pytest.raises(ValueError, match="gives tasks to anybody"):
        SuperNode(node.address, policy.parent / "secret", 1000).check()


def test_another_secret_is_told(policy: Path) -> None:
    with recording(free_port(), secret=b"cd" * 32) as node, pytest.raises(ValueError, match="another secret"):
        SuperNode(node.address, policy.parent / "secret", 1000).check()
    for content, words in ((b"", "is empty"), (None, "cannot be read")):
        path = policy.parent / "other"
        path.unlink(missing_ok=True)
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(ValueError, match=words):
            SuperNode("127.0.0.1:9094", path, 1000)


# --- what leaves, and when; the app's answer is made up


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], bytes]], None]:
    """Has a function say what an app writes."""
    monkeypatch.setattr(Sandbox, "check", lambda self: None)

    def put(what: Callable[[], bytes]) -> None:
        monkeypatch.setattr(Sandbox, "run", lambda self, task, message, state, values: what())

    return put


def test_an_app_that_writes_what_it_likes_is_charged_like_any_other(policy: Path, made_up: Any) -> None:
    with recording(free_port()) as node, guarding(policy, node):
        for n, block in enumerate((b"", b"\xff" * 55, b"\xff" * 56, b"\x00" * 56, os.urandom(56), os.urandom(30_000))):
            made_up(lambda block=block: block)
            node.put(APP, sent(round=n), {})
            assert {*node.reply().content} == {"arrays", "metrics"}
            with Ledger(policy.parent / "ledger.sqlite") as ledger:
                assert len(ledger.rows()) == n + 1
        made_up(lambda: pytest.fail("the app was run"))
        node.put(APP, sent(round=0), {})
        assert node.reply().has_content()


def test_a_message_that_comes_after_its_task_is_waited_for(policy: Path, made_up: Any) -> None:
    made_up(lambda: b"")
    with recording(free_port()) as node, guarding(policy, node):
        node.put(APP, sent(), {}, slow=0.5)
        assert node.reply().has_content()


def test_another_app_or_other_settings_make_another_request(tmp_path: Path, made_up: Any) -> None:
    policy = write_policy(tmp_path, APP, OTHER)
    made_up(lambda: b"")
    with recording(free_port()) as node, guarding(policy, node):
        for fab in (APP, OTHER, APP):
            node.put(fab, sent(), {})
            assert node.reply().has_content()
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        assert len({row.digest for row in ledger.rows()}) == len(ledger.rows()) == 2


def test_a_spent_budget_is_a_refusal_and_the_app_is_not_run(tmp_path: Path, made_up: Any) -> None:
    policy = write_policy(tmp_path, APP, **{"statistic = 40.0": "statistic = 4.0"})
    ran: list[int] = []
    made_up(lambda: ran.append(1) or b"")
    codes = []
    with recording(free_port()) as node, guarding(policy, node):
        for n in range(4):
            node.put(APP, sent(round=n), {})
            reply = node.reply()
            codes.append(reply.error.code if reply.has_error() else 0)
    assert codes == [0, 0, 106, 106] and len(ran) == 2


def test_labels_leave_by_randomized_response_whatever_an_app_writes(policy: Path, made_up: Any) -> None:
    with recording(free_port()) as node, guarding(policy, node):
        for n, label in enumerate((0, 1, 7, -1)):
            made_up(lambda label=label: label.to_bytes(8, "little", signed=True))
            node.put(APP, sent("query", label=n), {})
            reply = node.reply()
            if n < 3:  # of ε 3 in all, each of 1
                assert reply.content["metrics"]["label"] in (0, 1) and set(reply.content) == {"metrics"}
            else:
                assert reply.error.code == 106


def test_a_sandbox_that_does_not_start_charges_nothing(policy: Path, made_up: Any) -> None:
    def broken() -> bytes:
        raise Broken("no sandbox was made")

    made_up(broken)
    with recording(free_port()) as node, guarding(policy, node):
        node.put(APP, sent(), {})
        assert node.reply().error.code == 110
    with Ledger(policy.parent / "ledger.sqlite") as ledger:
        assert ledger.rows() == []


def test_an_answer_leaves_when_the_policy_says_however_long_the_app_took(
    policy: Path, made_up: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The moment is drawn before the request is read; here it is drawn as 3/4 of the window."""
    monkeypatch.setattr(guards.secrets, "randbelow", lambda n: n // 2)
    window, acquired, planned = 2.0, [], []
    with recording(free_port()) as node, guarding(policy, node) as guard:
        accountant = guard._policy.accountant
        waits = replace(accountant, policy=replace(accountant.policy, window=window))
        guard._policy = replace(guard._policy, accountant=waits)
        acquire, wait = guard._node.acquire, guard._stop.wait

        def acquiring() -> Any:
            task = acquire()
            if task is not None:
                acquired.append(time.monotonic())
            return task

        def waiting(seconds: float) -> bool:
            if seconds != guards._POLL:
                planned.append(time.monotonic() + seconds)
            return wait(seconds)

        monkeypatch.setattr(guard._node, "acquire", acquiring)
        monkeypatch.setattr(guard._stop, "wait", waiting)
        for n, seconds in enumerate((0.0, 0.7)):
            made_up(lambda seconds=seconds: time.sleep(seconds) or b"")
            node.put(APP, sent(round=n), {})
            assert node.reply().has_content()
    after = [leaves - at for leaves, at in zip(planned, acquired, strict=True)]
    assert after == pytest.approx([window * 3 / 4] * 2, abs=0.25)  # the machine is shared with other tests


def test_signed_bundles_of_a_listed_publisher_may_run_and_no_others(tmp_path: Path, made_up: Any) -> None:
    from flwr.supercore.fab import Fab
    from flwr.supercore.primitives.asymmetric_ed25519 import create_message_to_sign, sign_message

    key, stranger = ed25519.Ed25519PrivateKey.generate(), ed25519.Ed25519PrivateKey.generate()
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    policy = write_policy(tmp_path, APP, **{"[policy]": f'[publishers]\nfpk_ours = "{public}"\n[policy]'})
    made_up(lambda: b"")

    def signed(by: ed25519.Ed25519PrivateKey, name: str, content: bytes) -> dict[str, str]:
        import base64
        import json

        signature = sign_message(by, create_message_to_sign(hashlib.sha256(content).digest(), 1_700_000_000))
        text = base64.urlsafe_b64encode(signature).decode()
        return {name: json.dumps({"signed_at": 1_700_000_000, "signature": text}), "valid_license": "Apache-2.0"}

    cases = [
        (signed(key, "fpk_ours", OTHER), True),
        (signed(stranger, "fpk_ours", OTHER), False),
        (signed(key, "fpk_theirs", OTHER), False),
        (signed(key, "fpk_ours", APP), False),
        ({}, False),
        ({"fpk_ours": "no json"}, False),
    ]
    with recording(free_port()) as node, guarding(policy, node):
        digest = hashlib.sha256(OTHER).hexdigest()
        for n, (verifications, good) in enumerate(cases):
            node.put(OTHER, sent(round=n), {}, verifications=verifications)
            reply = node.reply()
            assert reply.has_content() == good and (good or reply.error.code == 114)
        node.put(OTHER, sent(round=9), {}, named=hashlib.sha256(APP).hexdigest())  # under the name of another
        assert node.reply().error.code == 114 and digest
        assert isinstance(Fab(digest, OTHER, {}), Fab)


def test_the_command_says_in_one_line_what_it_lacks(policy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, words in (
        ([str(policy), "--secret", str(policy.parent / "none")], "cannot be read"),
        ([str(policy), "--secret", str(policy.parent / "data" / "secret.txt")], "which apps can read"),
        ([str(policy.parent / "none.toml"), "--secret", "x"], "none.toml"),
        ([str(policy), "--secret", str(policy.parent / "secret"), "--supernode", "1.2.3.4:5"], "on this machine"),
    ):
        assert main(["guard", *arguments]) == 2
        said = capsys.readouterr().err
        assert words in said and said.count("\n") == 1
