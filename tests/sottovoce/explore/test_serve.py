"""How the page is started: on the loopback alone, of a run, of a bundle, on a device's own ledger; and mistakes."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from client.device.bundle import Bundle
from client.policy import Policy
from mechanisms.messages.sealed import generate_keys
from sottovoce.cli import main as cli
from sottovoce.explore.explorer import Explorer
from sottovoce.explore.serve import explorer, serving
from sottovoce.explore.settings import MECHANISMS, Settings
from sottovoce.explore.study import read_study
from sottovoce.explore.world import World, settings_of
from tests.support.devices import POLICY, PUBLISHER, make_bundle, make_text_bundle
from tests.support.exploring import TEXT
from tests.support.paths import ROOT


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """Whose question alone its policy allows, among 100 users."""
    place = tmp_path_factory.mktemp("bundle")
    asked = make_bundle(place).request
    listed = tuple(asked.digest(channel) for channel in asked.channels)
    return make_bundle(place, "listed", policy=replace(POLICY, questions=listed, minimum_users=100))


def of_bundle(world: World, bundle: Bundle) -> World:
    return replace(world, asked=bundle.request, encoder=bundle.encoder)


def test_the_page_is_served_on_the_loopback_alone(shown: Explorer) -> None:
    with serving(shown, token="t") as address:
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/t/", address)
        assert httpx.get(f"{address}api/state").json()["ready"]
        assert httpx.get(address.replace("/t/", "/")).status_code == 404


def test_a_bundles_question_is_answered_and_no_other(world: World, bundle: Bundle) -> None:
    with explorer(bundle=bundle.folder, make=lambda: of_bundle(world, bundle)) as shown:
        assert shown.first.channel == "embedding" and shown.first.epsilon == 10.0 and shown.first.dim == 4
        assert shown.first.label_epsilon == 2.0 and shown.first.users == 100
        assert shown.device.policy == bundle.policy
        assert shown.send(shown.first, TEXT, 1, 1)["refused"] is None
        few = shown.send(replace(shown.first, users=99), TEXT, 1, 2)
        assert few["refused"]["reason"] == "minimum-users"
        other = shown.send(shown.first.at(9.0), TEXT, 1, 2)
        assert other["refused"]["reason"] == "question" and "none of them" in other["refused"]["why"]


def test_of_a_text_bundle_its_words_are_shown(tmp_path: Path) -> None:
    asked = Settings(channel="text", mechanism="santext", epsilon=2.0, tokens=6, length=1.0)
    assert settings_of(make_text_bundle(tmp_path).request) == asked


def test_a_devices_own_ledger_is_charged(world: World, bundle: Bundle, tmp_path: Path) -> None:
    node = tmp_path / "device"
    open_policy = Policy(embedding=32.0, label=3.0, total=40.0, mechanisms=POLICY.mechanisms)
    made = make_bundle(tmp_path, policy=open_policy, seal=generate_keys()[1])
    made.install(node, PUBLISHER)
    for again in (False, True):  # what it has charged is there when it is opened anew
        with explorer(bundle=made.folder, node=node, make=lambda: of_bundle(world, made)) as shown:
            assert not shown.device.scratch
            sent = shown.send(shown.first, TEXT, 1, 1)
            assert [channel["repeated"] for channel in sent["channels"]] == [again, again] and sent["sealed"]
    with shown.device.node.ledger("") as ledger:
        assert sorted(row.channel for row in ledger.rows()) == ["embedding", "label"]


def test_what_was_charged_for_the_page_is_gone_with_it(world: World) -> None:
    with explorer(make=lambda: world) as shown:
        shown.send(Settings(), TEXT, 1, 1)
        folder = shown.device.folder
        assert (folder / "ledger.sqlite").exists()
    assert not folder.exists()


def test_while_it_loads_the_page_answers_and_what_fails_is_said(world: World) -> None:
    def slow() -> World:
        time.sleep(0.3)
        raise ValueError("the encoder\nis gone")

    with explorer(make=slow) as shown:
        assert not shown.state()["ready"] and shown.price(Settings(), TEXT, 1)["words"]
        with pytest.raises(ValueError, match="the encoder is gone"):
            shown.send(Settings(), TEXT, 1, 1)
        assert shown.state()["failed"] == "the encoder is gone"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--run", "a", "--bundle", "b"], "give --run RUN_DIR or --bundle DIR, not both"),
        (["--device", "n"], "--device goes with --bundle DIR"),
        (["--run", "nowhere"], "holds no"),
        (["--bundle", "nowhere"], "holds no bundle"),
        (["--port", "70000"], "70000 is not in the range"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["explore", *arguments]) == 2
    complaint = capsys.readouterr().err
    assert said in complaint and complaint.count("\n") == 1


def test_a_node_that_is_none_is_one_line(bundle: Bundle, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explore", "--bundle", str(bundle.folder), "--device", str(tmp_path)]) == 2
    assert "is no device's folder" in capsys.readouterr().err


@pytest.mark.slow
def test_the_command_answers_within_seconds_and_ends_on_ctrl_c() -> None:
    program = [sys.executable, "-m", "sottovoce.cli.main", "explore"]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None and process.stderr is not None
        address = process.stdout.readline().strip()
        assert httpx.get(f"{address}api/state").json()["mechanisms"]
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0 and "Traceback" not in process.stderr.read()


@pytest.mark.slow
def test_of_the_built_in_reviews_every_channel_leaves() -> None:
    with explorer() as shown:
        words = shown.loading.world().vocabulary
        assert words is not None and {"loved", "doctor", "soup", "."} <= set(words.words)
        for channel in MECHANISMS:
            asked = Settings.of({"channel": channel, "epsilon": 2.0})
            sent = shown.send(asked, "I loved the soup, but the doctor was late.", 1, 1)
            assert sent["refused"] is None
            left = sent["channels"][0]
            released = [word["number"] for word in left.get("words", ())]
            assert left["inferred"] or len(shown.guesses(asked, released)["guesses"]) == len(released) > 0


def test_a_study_shows_its_accuracies(tmp_path: Path) -> None:
    from tests.sottovoce.report.test_report import folder, results

    run = folder(tmp_path / "run", results())
    study = read_study(run)
    assert study.first.channel == "embedding" and study.first.dim == 16
    arms = {arm["name"]: arm for arm in study.told["arms"]}
    assert all(0 < arm["accuracy"] < 1 for arm in arms.values()) and len(arms) >= 3
