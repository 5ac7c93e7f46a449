"""Records added to a device that is killed at every write, with and without a power cut.

`python -m tests.support.record_kills FOLDER` prints at how many points it was killed, and how often the records were
there then ("replaced") and how often not ("kept"); anything in between is an error. It runs in a process of its own:
forks of one that has threads can stand still.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections import Counter
from pathlib import Path

from client.device.records import add_records
from client.node import write_node
from client.policy import Policy
from client.shard import Shard
from tests.support.kill_points import Points

OLD, NEW = ["one", "two books"], ["three", "", "four films"]


def main(folder: Path) -> Counter[str]:
    node, template = folder / "node", folder / "template"
    write_node(template, policy=Policy(embedding=100.0, total=1000.0))
    add_records(template, "train", OLD, None)
    found: Counter[str] = Counter()
    for power in (False, True):
        k, call = 0, "first"
        while call is not None:
            shutil.rmtree(node, ignore_errors=True)
            shutil.copytree(template, node)
            call = Points(lambda: add_records(node, "train", NEW, None) and None, node).kill(k, power=power)
            shard = Shard.load(node, "train")
            texts, k = list(shard.texts), k + 1
            assert texts in (OLD, OLD + NEW), texts
            assert shard.records.tolist() == list(range(len(texts)))
            assert call is not None or texts == OLD + NEW, "what was acknowledged is lost"
            found["points"] += call is not None
            found["kept" if texts == OLD else "replaced"] += 1
            add_records(node, "train", ["again"], None)
            assert list(Shard.load(node, "train").texts) == [*texts, "again"]
            assert not list(node.glob(".draft*")), "a draft is left"
    return found


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
