"""Where the tests find things that are not theirs."""

from pathlib import Path

#: Of the repository.
ROOT = Path(__file__).parents[2]
#: Real data, which are never committed; a test that needs them skips, saying so, where they are missing.
DATA = ROOT.parent / "shared" / "data"
