"""Time that the guard adds to a round: `python -m benchmarks.guard [ROUNDS]`.

One small app answers the same messages in turn under the guard and under Flower's own SuperExec and `flwr-clientapp`,
each with a SuperNode's Runtime API on this machine. Prints medians in seconds, from the message to the whole reply.
Training time adds to both alike.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from sottovoce.deployment.processes import free_port
from tests.support.deployments import running
from tests.support.guarded import hostile, readable, recording, sent, write_policy

_BIN = Path(sys.executable).parent


def main(rounds: int) -> None:
    """Measure, and print one line each."""
    app = hostile("return answer(asked)")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        readable(folder, secret="nothing")
        policy = write_policy(folder, app, **{"statistic = 40.0": "statistic = 1e4", "total = 40.0": "total = 1e4"})
        ports = free_port(), free_port()
        secret = str(folder / "secret")
        plain = os.environ | {
            "FLWR_HOME": str(folder / "home"),
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
            "FLWR_TELEMETRY_ENABLED": "0",
            "PATH": f"{_BIN}:{os.environ['PATH']}",
        }
        commands = (
            [str(_BIN / "sottovoce"), "guard", str(policy), "--secret", secret, "--supernode", f"127.0.0.1:{ports[0]}"],
            [
                str(_BIN / "flower-superexec"),
                "--insecure",
                "--runtime-api-address",
                f"127.0.0.1:{ports[1]}",
                "--superexec-auth-secret-file",
                secret,
            ],
        )
        took: dict[str, list[float]] = {"guard": [], "flower": []}
        with (
            recording(ports[0]) as one,
            recording(ports[1]) as two,
            running(commands[0], log=folder / "one"),
            running(commands[1], log=folder / "two", env=plain),
        ):
            for i in range(rounds + 1):
                for label, node in (("guard", one), ("flower", two)):
                    start = time.monotonic()
                    node.put(app, sent(round=i), {"data-path": str(folder / "data")})
                    assert node.reply(120.0).has_content(), label
                    took[label] += [time.monotonic() - start] if i else []  # the first compiles modules
        for label, seconds in took.items():
            print(f"{label}: median {statistics.median(seconds):.2f} s of {rounds}, {min(seconds):.2f} at least")
        added = [a - b for a, b in zip(took["guard"], took["flower"], strict=True)]
        print(f"added: median {statistics.median(added) * 1000:.0f} ms")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 9)
