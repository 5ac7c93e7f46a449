"""diffpriv-pure: its private count and sum."""

import sys

from diffpriv_pure import private_count, private_sum
from speak import COUNT, NUMBER, each, rounded, speak

total = each(lambda x: private_sum([x], (0.0, 1.0), 1.0))
KINDS = {
    "count": (each(lambda x: private_count(x, 1.0)), {"epsilon": 1.0} | COUNT),
    "sum": (total, {"epsilon": 1.0} | NUMBER),
    "sum-rounded": (rounded(total), {"epsilon": 1.0} | NUMBER),
}
draws, claim = KINDS[sys.argv[1]]
speak(claim, draws)
