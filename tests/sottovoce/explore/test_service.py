"""The page's service: started on the loopback alone; other hosts, other pages, no token, long texts, nonsense."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient

from sottovoce.cli import main as cli
from sottovoce.explore.explorer import CHARACTERS
from sottovoce.explore.service import explorer, serving
from sottovoce.explore.settings import Settings
from sottovoce.explore.world import World
from tests.sottovoce.explore.conftest import TEXT, TOKEN
from tests.support.paths import ROOT

PAGE = ROOT / "sottovoce" / "explore" / "page"


def posted(client: TestClient, name: str, question: Any, **headers: str) -> Any:
    return client.post(f"/{TOKEN}/api/{name}", json=question, headers=headers)


def test_who_does_not_know_the_token_gets_nothing(client: TestClient) -> None:
    for path in ("/", "/api/state", "/wrong/", "/wrong/api/state", f"/{TOKEN}", f"/{TOKEN}x/", "/é/"):
        answer = client.get(path)
        assert answer.status_code == 404 and not answer.content, path


def test_loopback_hosts_alone_are_answered(client: TestClient) -> None:
    for host, status in (
        ("127.0.0.1", 200),
        ("localhost:8000", 200),
        ("[::1]:8000", 200),
        ("", 403),
        ("localhost.example.org", 403),
        ("127.0.0.1:x", 403),
    ):
        assert client.get(f"/{TOKEN}/", headers={"Host": host}).status_code == status, host


def test_another_page_is_not_answered(client: TestClient) -> None:
    own = {"Origin": "http://127.0.0.1:8000", "Sec-Fetch-Site": "same-origin"}
    assert posted(client, "cost", {}, **own).status_code == 200
    for other in (
        {"Origin": "http://example.org"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Origin": "http://127.0.0.1:9000"},
        {"Sec-Fetch-Site": "same-site"},
    ):
        assert posted(client, "cost", {}, **other).status_code == 403


def test_nothing_but_the_pages_own_files_may_run(client: TestClient) -> None:
    answer = client.get(f"/{TOKEN}/")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "script-src 'self'" in policy and "unsafe" not in policy
    assert answer.headers["referrer-policy"] == "no-referrer"  # or the token would travel
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=|https?://|javascript:", answer.text)
    for part in PAGE.iterdir():
        served = client.get(f"/{TOKEN}/{part.name}")
        assert served.content == part.read_bytes() and served.headers["content-security-policy"] == policy
    for part in PAGE.glob("*.js"):
        assert not re.search(r"innerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function", part.read_text())


def test_no_other_file_is_served(client: TestClient) -> None:
    for name in ("..%2fservice.py", "%2e%2e/service.py", "nothing.js", "api/nothing"):
        assert client.get(f"/{TOKEN}/{name}").status_code in (404, 405)


def test_a_sentence_of_100_000_characters_is_read_and_no_longer_one(client: TestClient) -> None:
    text = "good film \U0001f600" * (CHARACTERS // 11)
    answer = posted(client, "send", {"text": text, "settings": {"channel": "text", "epsilon": 2.0}})
    assert answer.headers["content-type"] == "application/json" and answer.json()["refused"] is None
    answer = posted(client, "send", {"text": "a" * (CHARACTERS + 1)})
    assert answer.status_code == 400 and "100,001 characters" in answer.json()["error"]
    assert client.post(f"/{TOKEN}/api/send", content=b"1" * (13 * CHARACTERS)).status_code == 400


def test_a_mistake_is_one_line(client: TestClient) -> None:
    for question, said in (
        ([], "must be a table"),
        ({"text": 1}, "text: must be a text"),
        ({"label": True}, "label: must be a whole number"),
        ({"label": 7}, "label: must be from 0 to 1"),
        ({"round": 0}, "round: must be a whole number"),
        ({"settings": 1}, "settings: must be a table"),
        ({"settings": {"eps": 1}}, "unknown key 'eps'"),
        ({"settings": {"channel": []}}, "channel must be one of"),
        ({"settings": {"mechanism": "santext"}}, "mechanism must be one of purkayastha"),
        ({"settings": {"epsilon": -1}}, "epsilon must be a number from 0 to 100"),
        ({"settings": {"dim": 2.5}}, "dim must be a whole number"),
        ({"settings": {"dim": 64}}, "the encoder has 32 coordinates"),
        ({"text": " "}, "type a sentence first"),
    ):
        whole = {"text": "a good film"} | question if isinstance(question, dict) else question
        answer = posted(client, "send", whole)
        assert answer.status_code == 400 and said in answer.json()["error"] and "\n" not in answer.json()["error"]


def test_what_is_no_json_is_one_line_too(client: TestClient) -> None:
    for content in (b"", b"{", b"\xff", b"[" * 100_000):
        assert client.post(f"/{TOKEN}/api/cost", content=content).status_code == 400
    lone = client.post(f"/{TOKEN}/api/send", content=b'{"text": "\\ud800 film"}')
    assert lone.json()["refused"] is None


# --- started by the command


def test_the_page_is_served_on_the_loopback_and_its_ledger_goes_with_it(world: World) -> None:
    with explorer(world) as shown, serving(shown) as address:
        token = address.split("/")[3]
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[\w-]{32}/", address)
        assert httpx.get(f"{address}api/state").json()["name"] == "small"
        assert httpx.get(address.replace(f"/{token}/", "/")).status_code == 404
        shown.send(Settings(), TEXT, 1, 1)
        folder = shown.device.folder
        assert (folder / "ledger.sqlite").exists()
    assert not folder.exists()


@pytest.mark.slow
def test_the_command_answers_within_seconds_and_ends_on_ctrl_c(capsys: pytest.CaptureFixture[str]) -> None:
    """On the built-in reviews. A wrong folder or port is one line."""
    for arguments in (["--run", "nowhere"], ["--port", "70000"]):
        assert cli.main(["explore", *arguments]) == 2
        complaint = capsys.readouterr().err
        assert arguments[1] in complaint and complaint.count("\n") == 1
    # whoever started the tests in the background may have had SIGINT ignored, which programs inherit
    starter = "import os, signal as s, sys; s.signal(s.SIGINT, s.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])"
    program = [sys.executable, "-c", starter, sys.executable, "-m", "sottovoce", "explore"]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None and process.stderr is not None
        address = process.stdout.readline().strip()
        assert address.startswith("http://127.0.0.1:")
        question = {"text": "I loved the soup.", "label": 1, "settings": {"channel": "text", "epsilon": 2.0}}
        sent = httpx.post(f"{address}api/send", json=question, timeout=60).json()
        assert sent["refused"] is None and sent["channels"][0]["bytes"]
        process.send_signal(signal.SIGINT)
        try:
            assert process.wait(30) == 0 and "Traceback" not in process.stderr.read()
        finally:
            process.kill()
