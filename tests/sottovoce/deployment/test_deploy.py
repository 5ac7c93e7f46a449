"""The commands `deploy`: a study's arm on real processes; every mistake one line, and no process left."""

from __future__ import annotations

import inspect
import re
import stat
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
from cryptography import x509

from client.device import fleet
from server.protocols.models import QUESTION
from simulations.errors import UserError
from simulations.experiment.result import ArmResult
from sottovoce.cli import main as cli
from sottovoce.deployment.local import _Deployment
from sottovoce.deployment.processes import LIST, free_port
from sottovoce.deployment.questions import ASKED
from tests.support.commands import complaint
from tests.support.paths import ROOT

STUDY = """
name = "small"
[data]
source = "built-in"
public-size = 90
test-size = 40
[population]
users = 60
[shuffle]
minimum-users = 10
[policy]
embedding = 40.0
label = 5.0
[[arm]]
name = "a"
embedding = { mechanism = "purkayastha", epsilon = 10.0, dim = 4 }
label = { mechanism = "randomized-response", epsilon = 2.0 }
[[arm]]
name = "b"
embedding = { mechanism = "planar-laplace", epsilon = 10.0, dim = 4 }
label = { mechanism = "randomized-response", epsilon = 2.0 }
[[arm]]
name = "clear"
reference = true
embedding = { mechanism = "identity", dim = 4 }
"""


FILES = STUDY.replace(
    'source = "built-in"\npublic-size = 90\ntest-size = 40',
    'source = "files"\npath = "missing"\ntrain = "train.tsv"\ntest = "test.tsv"\ntext = "text"\nlabel = "label"',
)


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a study in it; no cache is made elsewhere."""
    monkeypatch.chdir(tmp_path)
    for name in cli.QUIET:
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "study.toml").write_text(STUDY)
    (tmp_path / "files.toml").write_text(FILES)
    return tmp_path


ON_DEVICE = 'arm.0.answer={mechanism="randomized-response",epsilon=1.0}'
PAPER = 'training.protocol="paper"'
MISTAKES = [
    ("nowhere.toml", "nowhere.toml: there is no such file"),
    ("study.toml", '--arm: is missing; choose one of "a", "b"'),
    ("study.toml --arm c", '--arm "c": there is none; choose one of "a", "b"'),
    ("study.toml --arm clear", '--arm "clear": is a reference, or releases nothing'),
    ("study.toml --arm a --nodes 0", "--nodes 0: must be from 1 to population.users, 60"),
    ("study.toml --arm a --nodes 61", "--nodes 61: must be from 1 to population.users, 60"),
    ("study.toml --arm a --set population.late=0.1", "population.late: a deployment's users are as late as they are"),
    (
        f"study.toml --arm a --set {PAPER} --set training.acknowledge-not-private=true",
        '"paper" is a trusted simulation',
    ),
    (f"study.toml --arm a --stay --set policy.answer=1 --set {ON_DEVICE}", "--stay: serves the model to users who"),
    ("files.toml --arm a", "missing: there is no such folder; name the one that holds train.tsv"),
]


@pytest.mark.parametrize(("line", "said"), MISTAKES)
def test_a_mistake_is_one_line_and_leaves_nothing(line: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert said in complaint(capsys, "deploy", "up", *line.split(), "--out", "new/place")


def test_folders_that_are_not_for_this(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "full").mkdir()
    (place / "full" / "bundle").write_text("of another version")
    for taken in ("full", "study.toml"):
        line = complaint(capsys, "deploy", "up", "study.toml", "--arm", "a", "--out", taken)
        assert line == f"{taken}: is there already and not an empty folder; name another one"
        assert complaint(capsys, "deploy", "down", taken).startswith(f"{taken}: is no deployment's folder")
    (place / LIST).write_text("[]")
    assert cli.main(["deploy", "down", "."]) == 0
    assert capsys.readouterr().out == ".: nothing is running\n"


# --- the parties one by one, as on several machines


@pytest.fixture()
def keys(place: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """What `deploy keys` makes."""
    hosts = ["--host", "superlink=link.example", "--host", "shuffler=10.0.0.7"]
    assert cli.main(["deploy", "keys", "make", "keys", "--nodes", "2", *hosts]) == 0
    assert capsys.readouterr().out.startswith("keys: each party is given its own folder of these and no other")
    return place / "keys"


def test_keys_are_their_owners_alone(keys: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in (keys, *keys.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
    assert [path.parent.name for path in sorted(keys.rglob("node.key"))] == ["0", "1"]
    for party, hosts, addresses in (
        ("superlink", ["link.example"], []),
        ("shuffler", [], ["10.0.0.7"]),
        ("predict", [], []),
        ("server", [], []),
    ):
        certificate = x509.load_pem_x509_certificate((keys / party / "cert.pem").read_bytes())
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert names.get_values_for_type(x509.DNSName) == ["localhost", *hosts]
        assert [str(ip) for ip in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1", *addresses]
    said = "keys: is there already and not an empty folder; name another one"
    assert complaint(capsys, "deploy", "keys", "make", "keys") == said


def test_a_host_is_a_partys(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for host in ("link", "server=link", "superlink=", "superlink=[::1", "model=a b", "model=x:1"):
        line = complaint(capsys, "deploy", "keys", "make", "keys", "--host", host)
        assert line == f"--host {host}: must be PARTY=HOST, with a party of superlink, shuffler, model"
    assert not (place / "keys").exists()


def test_the_proxy_of_the_page_passes_what_a_device_calls() -> None:
    page = (ROOT / "docs" / "how-to" / "deploy.md").read_text(encoding="utf-8")
    (passed,) = re.findall(r"location ~ \^/v1/fleet/\(([a-z|-]+)\)\$", page)
    called = re.findall(r"_client\.([A-Z]\w+)", inspect.getsource(fleet))
    assert {re.sub(r"(?<!^)(?=[A-Z])", "-", name).lower() for name in called} == set(passed.split("|"))


ADDRESS = "x:65536"


def command(keys: Path, name: str, **changes: object) -> list[object]:
    """The command of a party whose keys are there, with other options."""
    own, place, more = {
        "shuffler": ("shuffler", "store", {"superlink": "127.0.0.1:1", "users": "nobody.jsonl", "port": 1}),
        "train": ("server", "study.toml", {"shuffler": "127.0.0.1:1", "arm": "a", "public": "none", "out": "run"}),
        "predict": ("predict", "nowhere", {"port": 1}),
    }[name]
    options: dict[str, object] = {"certificate": keys / own / "cert.pem", "key": keys / own / "cert.key"}
    options |= {"seal_key": keys / own / "seal.key"} | more
    if name != "predict":
        options["root_certificates"] = keys / "ca" / "ca.pem"
    if name == "shuffler":
        options |= {"secret": keys / "superlink" / "secret", "enrolment_key": keys / "enrolment" / "sign.pub"}
    words = (word for key, value in (options | changes).items() for word in (f"--{key.replace('_', '-')}", value))
    return ["deploy", name, place, *words]


def test_every_command_reads_addresses_alike(keys: Path, capsys: pytest.CaptureFixture[str]) -> None:
    register = ["deploy", "keys", "register", keys / "nodes" / "0" / "node.pub", "--superlink", ADDRESS]
    for words in (
        [*register, "--root-certificates", keys / "ca" / "ca.pem"],
        command(keys, "shuffler", superlink=ADDRESS),
        command(keys, "train", shuffler=ADDRESS),
    ):
        assert f"{ADDRESS}: must be HOST:PORT, without a scheme" in complaint(capsys, *words)
    assert f"--ray-address {ADDRESS}: must be HOST:PORT" in complaint(
        capsys, "simulate", "study.toml", "--ray-address", ADDRESS
    )


def test_a_superlink_that_is_not_there_is_one_line(keys: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--superlink", f"127.0.0.1:{free_port()}", "--root-certificates", keys / "ca" / "ca.pem"]
    register = ["deploy", "keys", "register"]
    assert ": cannot be reached: " in complaint(capsys, *register, keys / "nodes" / "0" / "node.pub", *where)
    line = complaint(capsys, *register, keys / "ca" / "ca.pem", *where)
    assert line.endswith("ca.pem: holds no SuperNode's public key")


def test_a_party_whose_files_are_missing_says_which(keys: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (keys / "short.key").write_text("ab" * 31)
    no_key = "is no key to seal or to sign with, which is 64 hexadecimal digits"
    for name, changes, said in (
        ("train", {"seal_key": keys / "ca" / "ca.pem"}, f"ca.pem: {no_key}"),
        ("train", {"seal_key": keys / "short.key"}, f"short.key: {no_key}"),
        ("train", {"seal_key": "none"}, "none: cannot be read"),
        ("shuffler", {}, "--users nobody.jsonl: cannot be read"),
        ("shuffler", {"enrolment_key": "none"}, "none: cannot be read"),
        ("predict", {}, "nowhere: holds no finished run"),
    ):
        assert said in complaint(capsys, *command(keys, name, **changes))


def test_training_on_what_nobody_delivered_ends_with_1(
    keys: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in (
        ("simulations.artifacts.public.load_public", None),
        ("sottovoce.deployment.shuffler_client.Shuffler", nullcontext()),
        ("sottovoce.deployment.training_server.train", ArmResult("a", users=60, delivered=0)),
    ):
        monkeypatch.setattr(name, lambda *_, result=value, **__: result)
    assert cli.main([*map(str, command(keys, "train", shuffler=ADDRESS))]) == 1
    assert "a: none of 60 users was delivered" in capsys.readouterr().err


def test_a_question_that_is_being_written_is_no_other_question(tmp_path: Path) -> None:
    """The publisher looks while the training server writes: a draft lies there for a moment."""
    (tmp_path / "questions").mkdir()
    place = SimpleNamespace(server=tmp_path, folder=tmp_path, publisher=tmp_path)
    (tmp_path / "questions" / f".draft.{QUESTION}{ASKED}").write_text("")
    _Deployment._publish(place)  # type: ignore[arg-type]
    (tmp_path / "questions" / f"other{ASKED}").write_text("")
    with pytest.raises(UserError, match="asks training users otherwise"):
        _Deployment._publish(place)  # type: ignore[arg-type]
