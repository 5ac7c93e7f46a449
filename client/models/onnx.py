"""How ONNX Runtime is started on a client: quiet, on so many threads, and without threads that spin while they wait."""

from __future__ import annotations

import os
from pathlib import Path

import onnxruntime


def cores() -> int:
    """The threads that a process may have at work: $OMP_NUM_THREADS where it is set, as in an actor that has one of the
    cores, and else as many as there are cores."""
    told = os.environ.get("OMP_NUM_THREADS", "")
    return int(told) if told.isdecimal() and int(told) > 0 else os.cpu_count() or 1


def session(path: Path, threads: int | None) -> onnxruntime.InferenceSession:
    """The graph in a file. threads: at work on one run; None takes `cores()`. Raises what the library raises."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = cores() if threads is None else threads
    # threads of several processes that spin beside each other take the cores from one another
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
