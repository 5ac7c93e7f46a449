"""A training server of the tests: asks for one stage after another, and takes each one's batch.

`python -m tests.support.rough_server FOLDER SHUFFLER` goes on until FOLDER/enough is there and four stages are, and
leaves FOLDER/stages/STAGE for each; a process that is started again takes the last four anew, which must be what they
were.
"""

from __future__ import annotations

import sys
from pathlib import Path

from mechanisms.messages.request import Request
from simulations.errors import UserError
from simulations.progress import lines_to
from sottovoce.deployment.shuffler_client import Shuffler
from sottovoce.deployment.training_server import RemoteShuffler
from tests.support.clients import request

STAGES = 4
#: Seconds that devices have for a stage: whatever happens in a test is over before.
TIMEOUT = 600.0


def stage_name(k: int) -> str:
    return f"stage-{k}"


def asked(k: int) -> Request:
    """What devices are asked in stage k. Another question each time, since they may be asked once each."""
    return request(arm="", stage=stage_name(k), minimum_users=10)


def main(folder: Path, shuffler: str) -> int:
    """Exit code 2 where the shuffler, or this one's own disk, cannot be used: a supervisor starts it again."""
    done = folder / "stages"
    done.mkdir(exist_ok=True)
    k = max(0, len(list(done.iterdir())) - STAGES)
    try:
        with (
            lines_to(say),
            Shuffler(
                shuffler,
                root_certificates=folder.parent / "ca" / "ca.pem",
                certificate=folder / "cert.pem",
                key=folder / "cert.key",
            ) as line,
        ):
            users = RemoteShuffler(line, seal_keys=[folder / "seal.key"], timeout=TIMEOUT)
            while k < STAGES or not (folder / "enough").exists():
                got = users.collect(asked(k))
                say(f"{stage_name(k)}: {got.batch.users} users, dropped {dict(got.dropped)}, errors {dict(got.errors)}")
                (done / stage_name(k)).touch()
                k += 1
    except (UserError, OSError) as error:
        say(str(error))
        return 2
    return 0


def say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
