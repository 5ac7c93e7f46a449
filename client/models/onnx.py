"""Configuration of ONNX Runtime on a client: quiet, with a set number of threads, and without spinning threads.

Its builds for Linux keep an identity of the device and record for their makers what they have run: how many inferences
of which batch sizes took how long, and which errors occurred. This is a function of private texts that no ledger
charges, so it is turned off before anything is loaded. Nothing else on a client imports the library.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from pathlib import Path

os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # read once, while the library is loaded; processes of this one inherit it

import onnxruntime

onnxruntime.disable_telemetry_events()  # for a process that has loaded it elsewhere before


def cores() -> int:
    """Return the number of threads that a process may use at once.

    It is $OMP_NUM_THREADS if that is set, as in an actor that has one of the cores, and else the number of cores.
    """
    told = os.environ.get("OMP_NUM_THREADS", "")
    return int(told) if told.isdecimal() and int(told) > 0 else os.cpu_count() or 1


def session(path: Path, threads: int | None) -> onnxruntime.InferenceSession:
    """Load the graph in a file, and in that file alone.

    A graph with weights in other files is refused, because its hash does not cover them.

    Args:
        path: File of the graph.
        threads: Threads of one run. None takes `cores()`.

    Raises:
        Exception: Any exception of the library.
    """
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = cores() if threads is None else threads
    # threads of several processes that spin beside each other take the cores from one another
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if not _names_a_place(path):
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    with tempfile.TemporaryDirectory(prefix="sottovoce-") as nothing:  # in which none of the other files is found
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", nothing)
        return onnxruntime.InferenceSession(path.read_bytes(), options, providers=["CPUExecutionProvider"])


def reached_alone() -> onnxruntime.RunOptions:
    """Return options of a run that computes only what its outputs need."""
    options = onnxruntime.RunOptions()
    options.only_execute_path_to_fetches = True
    return options


def _names_a_place(path: Path) -> bool:
    """Return whether the file contains the word by which a graph names another file.

    The word may also occur by chance: such a graph is read through memory, which takes its size once more.
    """
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_size == 0:  # which cannot be mapped, and is no graph
            return False
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return data.find(b"location") >= 0
