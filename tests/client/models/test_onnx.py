"""ONNX Runtime tells nobody what it has run: neither its makers nor a file."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from server.export import export_encoder
from tests.support.paths import ROOT
from tests.support.tiny_models import tiny_bert

#: What is told to the library before it is loaded, and the only files that load it.
TOLD = "ORT_DISABLE_TELEMETRY"
LOADING = {Path("client/models/onnx.py"), Path("server/quantize.py")}

EMBED = """
import sys, time
from client.models.encoder import Encoder
for text in ("the film was good", "a long and tedious film that nobody will remember", "good"):
    Encoder(sys.argv[1]).encode([text] * 3)
time.sleep(0.5)
"""


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("encoder")
    export_encoder(tiny_bert(tmp_path_factory.mktemp("bert")), folder, max_length=16)
    return folder


def left_by(program: str, folder: Path, *arguments: object) -> tuple[list[Path], bytes]:
    """The files that a program leaves in a home and a place for temporary files of its own, and all that is in them."""
    home, temporary = folder / "home", folder / "tmp"
    home.mkdir()
    temporary.mkdir()
    environment = {"PATH": os.defpath, "HOME": str(home), "TMPDIR": str(temporary), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(  # told nothing else: the library is silent where it finds itself in a test of a known kind
        [sys.executable, "-c", program, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    files = [path for path in (*home.rglob("*"), *temporary.rglob("*")) if path.is_file()]
    return files, b"".join(path.read_bytes() for path in files)


#: What always ends up in the library's file is an error: others of its events are a sample of what happened.
FAIL = """
import onnxruntime, time
{before}
try:
    onnxruntime.InferenceSession(b"no graph")
except Exception:
    time.sleep(0.5)
"""


@pytest.fixture(scope="module")
def control(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The library by itself leaves an identity and an error, or what stands below would show nothing."""
    files, written = left_by(FAIL.format(before=""), tmp_path_factory.mktemp("control"))
    if not files:
        pytest.skip("this build of ONNX Runtime leaves nothing on this machine")
    assert any(path.name == "deviceid" for path in files) and b"RuntimeError" in written


def test_a_client_that_embeds_leaves_nothing_to_be_sent(control: None, encoder: Path, tmp_path: Path) -> None:
    files, _ = left_by(EMBED, tmp_path, encoder)
    assert files == []


def test_where_it_was_loaded_before_nothing_more_is_written(control: None, tmp_path: Path) -> None:
    """An app has loaded it for itself: what that has begun stays, and nothing that is run from then on is written."""
    _, written = left_by(FAIL.format(before="import client.models.onnx"), tmp_path)
    assert b"RuntimeError" not in written


def test_two_files_load_it_and_tell_it_first() -> None:
    loading = set()
    for package in ("client", "mechanisms", "server", "simulations", "sottovoce"):
        for path in (ROOT / package).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            if "onnxruntime" not in text:
                continue
            names = [
                alias.name if isinstance(node, ast.Import) else node.module or ""
                for node in ast.walk(ast.parse(text))
                if isinstance(node, ast.Import | ast.ImportFrom)
                for alias in node.names
            ]
            if any(name.partition(".")[0] == "onnxruntime" for name in names):
                loading.add(path.relative_to(ROOT))
                assert 0 < text.index(f'os.environ["{TOLD}"] = "1"') < text.index("\nimport onnxruntime\n")
    assert loading == LOADING
