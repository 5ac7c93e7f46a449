"""Program inside the sandbox: it loads one Flower app, gives it one message, and writes numbers of a fixed form.

The operator's environment holds Flower, and nothing of Sottovoce: this file stands alone. Whatever it is made to
write is data of an unknown app to the guard, which reads a fixed number of bytes.
"""

from __future__ import annotations

import json
import os
import resource
import struct
import sys
from typing import Any

#: First byte that is written: the sandbox stands, and the app comes next.
READY = b"\x01"
#: User and group that the app runs as in the sandbox.
NOBODY = 65534


def main() -> None:
    """Run the app that standard input describes, and write its answer and its state to standard output."""
    spec = json.loads(_frame())
    _confine(spec)
    task, message, state = _frame(), _frame(), _frame()
    out, null = os.dup(1), os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    os.write(out, READY)
    values, kept = _answer(task, message, state, spec["values"])
    for part in (values, kept):
        while part:
            part = part[os.write(out, part) :]
    os._exit(0)  # threads that the app has left do not hold the answer up


def _frame() -> bytes:
    (size,) = struct.unpack("<Q", sys.stdin.buffer.read(8))
    return sys.stdin.buffer.read(size)


def _confine(spec: dict[str, Any]) -> None:
    """Set the limits, and stop being root where the guard is."""
    for name, limit in (
        (resource.RLIMIT_AS, spec["memory"]),
        (resource.RLIMIT_NPROC, spec["processes"]),
        (resource.RLIMIT_FSIZE, spec["scratch"]),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, 1024),
    ):
        resource.setrlimit(name, (limit, limit))
    if os.getuid() == 0:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    os.umask(0o077)


def _answer(task: bytes, message: bytes, state: bytes, values: list[Any]) -> tuple[bytes, bytes]:
    """Return the app's values, 8 bytes each, and its state as it wants it back."""
    from io import BytesIO
    from zipfile import ZipFile

    from flwr.app import RecordDict
    from flwr.clientapp.utils import get_load_client_app_fn
    from flwr.common.config import get_project_dir
    from flwr.common.serde import (
        context_from_proto,
        message_from_proto,
        recorddict_from_proto,
        recorddict_to_proto,
        run_from_proto,
    )
    from flwr.proto.message_pb2 import Message as ProtoMessage
    from flwr.proto.recorddict_pb2 import RecordDict as ProtoRecordDict
    from flwr.proto.runtime_pb2 import PullTaskInputResponse

    given = PullTaskInputResponse.FromString(task)
    run, context = run_from_proto(given.run), context_from_proto(given.context)
    context.state = recorddict_from_proto(ProtoRecordDict.FromString(state)) if state else RecordDict()
    # the guard has compared the bundle's digest; Flower's own installer does no more, and takes a second to import
    ZipFile(BytesIO(given.fab.content)).extractall(get_project_dir(run.fab_id, run.fab_version, given.fab.hash_str))
    load = get_load_client_app_fn(default_app_ref="", app_path=None, multi_app=True)
    app = load(run.fab_id, run.fab_version, given.fab.hash_str)
    content = app(message=message_from_proto(ProtoMessage.FromString(message)), context=context).content
    block = b"".join(_value(content, *each) for each in values)
    return block, recorddict_to_proto(context.state).SerializeToString()


def _value(content: Any, record: str, key: str, shape: list[int] | None) -> bytes:
    """Return an array as float64, or a label as int64, -1 where it is no whole number."""
    import numpy as np

    found = content[record][key]
    if shape is None:
        return struct.pack("<q", found if type(found) is int and abs(found) < 2**63 else -1)
    array = np.asarray(found.numpy(), "<f8")
    if array.shape != tuple(shape):
        raise ValueError("an array is not of the shape that was sent")
    return array.tobytes()


if __name__ == "__main__":
    main()
