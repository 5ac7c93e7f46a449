"""No code of ours draws from a generator that others share."""

import ast
import re

import pytest

from tests.support.paths import ROOT

TORCH_GLOBAL = r"torch(\.\w+)*\.(manual_seed|manual_seed_all|seed|seed_all)"
EXPLICIT = {"default_rng", "Generator", "BitGenerator", "SeedSequence", "Philox", "PCG64"}


def global_randomness(source, *, explicit_allowed=True):
    """Uses of global (or, in the private folders, of any other) generators: (line, what)."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [(node.lineno, a.name) for a in node.names if a.name in ("random", "numpy.random")]
        elif isinstance(node, ast.ImportFrom) and node.module in ("random", "numpy.random"):
            allowed = EXPLICIT if explicit_allowed and node.module == "numpy.random" else set()
            found += [(node.lineno, a.name) for a in node.names if a.name not in allowed]
        elif isinstance(node, ast.Attribute):
            dotted = ast.unparse(node)
            parts = dotted.split(".")
            if len(parts) == 3 and parts[0] in ("np", "numpy") and parts[1] == "random":
                # a type alone draws nothing: mechanisms recognize the generator of a test or a simulation
                if parts[2] not in (EXPLICIT if explicit_allowed else {"Generator"}):
                    found.append((node.lineno, dotted))
            elif parts[-1] in ("set_seed", "rvs") or re.fullmatch(TORCH_GLOBAL, dotted):
                found.append((node.lineno, dotted))
    return found


@pytest.mark.parametrize("folder", ["mechanisms", "client", "server", "simulations"])
def test_library_code_uses_no_global_generator(folder):
    """The private side draws from row streams alone; the public side may also use generator objects."""
    files = sorted((ROOT / folder).rglob("*.py"))
    assert files
    explicit = folder in ("server", "simulations")
    found = {
        str(path.relative_to(ROOT)): uses
        for path in files
        if (uses := global_randomness(path.read_text(encoding="utf-8"), explicit_allowed=explicit))
    }
    assert not found


@pytest.mark.parametrize(
    "line",
    [
        "import random",
        "from random import choice",
        "np.random.rand(3)",
        "numpy.random.seed(1)",
        "torch.manual_seed(1)",
        "from numpy.random import rand",
        "torch.cuda.manual_seed_all(0)",
        "stats.norm.rvs()",
    ],
)
def test_the_search_for_global_generators_finds_them(line):
    assert global_randomness(line)
    assert not global_randomness("rng = np.random.default_rng(1)\ntorch.Generator().manual_seed(1)")
