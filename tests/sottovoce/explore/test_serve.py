"""How the page is started: on the loopback alone, of a run; and mistakes."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time

import httpx
import pytest

from sottovoce.cli import main as cli
from sottovoce.explore.explorer import Explorer
from sottovoce.explore.serve import explorer, serving
from sottovoce.explore.settings import MECHANISMS, Settings
from sottovoce.explore.world import World
from tests.support.exploring import TEXT
from tests.support.paths import ROOT


def test_the_page_is_served_on_the_loopback_alone(shown: Explorer) -> None:
    with serving(shown, token="t") as address:
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/t/", address)
        assert httpx.get(f"{address}api/state").json()["ready"]
        assert httpx.get(address.replace("/t/", "/")).status_code == 404


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
        (["--run", "nowhere"], "nowhere"),
        (["--port", "70000"], "70000 is not in the range"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["explore", *arguments]) == 2
    complaint = capsys.readouterr().err
    assert said in complaint and complaint.count("\n") == 1


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
