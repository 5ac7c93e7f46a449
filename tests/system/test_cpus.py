"""One request has one digest on every CPU, and a ledger that has moved to another machine repeats its releases.

NumPy and OpenBLAS choose code by the CPU. A program that may not use some of its features computes as on another one.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
from numpy._core._multiarray_umath import __cpu_dispatch__ as FEATURES

from mechanisms.messages.wire import record_from_bytes, reply_from_record
from server.validation import validate
from tests.support.answers import ask, ledger_rows
from tests.support.clients import make_node, request
from tests.support.paths import ROOT

OLD_CPU = {"NPY_DISABLE_CPU_FEATURES": " ".join(FEATURES), "OPENBLAS_CORETYPE": "Nehalem"}
PROGRAM = """
import json, sys
from pathlib import Path
from mechanisms.messages.wire import record_to_bytes, reply_to_record
from tests.support.answers import ask
from tests.support.clients import request
from tests.system.test_golden import FILE, current

golden, here = json.loads(FILE.read_text(encoding="utf-8")), current()
for kind, digests in golden.items():
    assert {name for name in digests if here[kind].get(name) != digests[name]} == set(), kind
assert here == golden
Path(sys.argv[2]).write_bytes(record_to_bytes(reply_to_record(ask(Path(sys.argv[1]), request()))))
"""


def test_another_cpu(tmp_path: Path) -> None:
    """It has the golden digests, repeats this CPU's half of a stage, and draws the rest, which this CPU accepts."""
    first = ask(make_node(tmp_path / "here"), request(part=(0, 2)))
    there, message = shutil.copytree(tmp_path / "here", tmp_path / "there"), tmp_path / "reply"
    subprocess.run(
        [sys.executable, "-c", PROGRAM, str(there), str(message)], cwd=ROOT, env=os.environ | OLD_CPU, check=True
    )
    reply, dropped = validate(reply_from_record(record_from_bytes(message.read_bytes())), request(), enrolled=range(8))
    assert not dropped and len(reply) == 8
    for new, old in zip(reply.releases, first.releases, strict=True):
        assert new.digest == old.digest
        np.testing.assert_array_equal(new.values[np.isin(reply.users, first.users)], old.values)
    assert len(ledger_rows(there)) == 16
    ask(tmp_path / "there", request())
    assert len(ledger_rows(there)) == 16
