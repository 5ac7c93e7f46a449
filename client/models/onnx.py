"""How ONNX Runtime is started on a client: quiet, on so many threads, and without threads that spin while they wait.

Its builds for Linux keep an identity of the device and write down, for their makers, what they have run: how many
inferences of which batch sizes took how long, which errors there were. That is a function of private texts which no
ledger knows, so it is turned off before anything is loaded. Nothing else on a client imports the library.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from pathlib import Path

os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # read once, while the library is loaded; processes of this one inherit it

import onnxruntime

onnxruntime.disable_telemetry_events()  # for a process in which somebody else has loaded it before


def cores() -> int:
    """The threads that a process may have at work: $OMP_NUM_THREADS where it is set, as in an actor that has one of the
    cores, and else as many as there are cores."""
    told = os.environ.get("OMP_NUM_THREADS", "")
    return int(told) if told.isdecimal() and int(told) > 0 else os.cpu_count() or 1


def session(path: Path, threads: int | None) -> onnxruntime.InferenceSession:
    """The graph in a file, and in that file alone: one with weights in other files, which its hash says nothing of, is
    refused. threads: at work on one run; None takes `cores()`. Raises what the library raises."""
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
    """Options of a run that computes what its outputs need, and no more."""
    options = onnxruntime.RunOptions()
    options.only_execute_path_to_fetches = True
    return options


def _names_a_place(path: Path) -> bool:
    """Whether the word by which a graph names another file is in the file. It may be there by chance too: such a graph
    is read through memory, which takes its size once more."""
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_size == 0:  # which cannot be mapped, and is no graph
            return False
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return data.find(b"location") >= 0
