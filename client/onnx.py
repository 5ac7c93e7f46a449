"""How ONNX Runtime is started on a client: quiet, on so many threads, and without threads that spin while they wait."""

from __future__ import annotations

import os
from pathlib import Path

import onnxruntime


def session(path: Path, threads: int | None) -> onnxruntime.InferenceSession:
    """The graph in a file. threads: None takes $OMP_NUM_THREADS where it is set, as in an actor that has one of the
    cores, and else leaves the choice to the library. Raises what the library raises."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    told = os.environ.get("OMP_NUM_THREADS", "")
    if threads is None and told.isdecimal() and int(told) > 0:
        threads = int(told)
    if threads is not None:
        options.intra_op_num_threads = threads
    # threads of several processes that spin beside each other take the cores from one another
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
