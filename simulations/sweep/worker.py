"""One run of a sweep in its own process: `python -m simulations.sweep.worker EXPERIMENT.toml OUT ACTORS PARENT`.

The process starts or resumes the run, and ends with the process PARENT that started it. Ray, signals and a library that
crashes thus affect one run alone. Output goes to stderr. If the exit code is not 0, the last line that begins with
`WHY` gives the reason.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

from simulations.errors import TERMINATED, Interrupted, Terminated, comes_again, masked
from simulations.output import streams
from simulations.progress import progress_lines
from simulations.transport.quiet import QUIET
from simulations.transport.signals import handling

_SIGNAL_OF_PARENTS_DEATH = 1  # prctl(2)
#: Exit codes: an error that the run would meet again, a user's mistake, and an error that may be temporary.
BUG, MISTAKE, FAILURE = 1, 2, 3
#: Prefix of the line with the reason for a run's end: libraries print last lines of their own.
WHY = "sottovoce: "


def main(arguments: list[str]) -> int:
    """Run one experiment and return the exit code of the process."""
    file, out, actors, parent = arguments
    ctypes.CDLL(None).prctl(_SIGNAL_OF_PARENTS_DEATH, signal.SIGTERM)
    if os.getppid() != int(parent):  # it has ended already, and another may be at work on its runs
        return TERMINATED
    os.environ.update(QUIET)
    streams.prepare()
    with handling({signal.SIGTERM: _terminate, signal.SIGINT: signal.SIG_IGN}):
        try:
            _run(Path(file), out, int(actors))
        except (Interrupted, Terminated, KeyboardInterrupt) as error:
            return _say(str(error) or "interrupted", TERMINATED)
        except ValueError as error:
            return _say(str(error), MISTAKE)
        except Exception as error:  # a run that fails must not take the study with it
            traceback.print_exc()
            return _say(f"{type(error).__name__}: {error}", BUG if comes_again(error) else FAILURE)
    return 0


def _run(file: Path, out: str, actors: int) -> None:
    from simulations.run.simulate import gone_on

    with progress_lines():
        gone_on(file, out, actors=actors)


def _terminate(number: int, frame: Any) -> None:
    raise Terminated


def _say(line: str, code: int) -> int:
    print(f"{WHY}{' '.join(masked(line).split())}", file=sys.stderr, flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
