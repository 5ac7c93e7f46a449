"""All of client/ and mechanisms/ can be imported where torch, transformers, ray and datasets are not
installed."""

from __future__ import annotations

import subprocess
import sys

from tests.support.clients import without
from tests.support.paths import ROOT

BLOCKED = {"torch", "transformers", "ray", "datasets", "dp_accounting", "server", "simulations"}
PROGRAM = (
    without(BLOCKED)
    + """
import importlib, pkgutil

for folder in ("mechanisms", "client"):
    package = importlib.import_module(folder)
    for module in pkgutil.walk_packages(package.__path__, folder + "."):
        importlib.import_module(module.name)
        print(module.name)
assert not BLOCKED & {name.partition(".")[0] for name in sys.modules}
"""
)


def test_every_module_imports_without_the_server_side():
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(ROOT)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for folder in ("client", "mechanisms"):
        files = [p.relative_to(ROOT) for p in (ROOT / folder).rglob("*.py") if p.stem != "__init__"]
        assert {".".join(p.with_suffix("").parts) for p in files} <= set(done.stdout.split())
