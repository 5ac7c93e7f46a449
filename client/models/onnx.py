"""ONNX Runtime on a client: quiet, with a set number of threads, and graphs checked before any private text is read.

Faults of a model are refused when it is loaded. Found later, a text would decide whether a device answers, and such an
answer is not charged.

Its builds for Linux keep an identity of the device and record for their makers what they have run: how many inferences
of which batch sizes took how long, and which errors occurred. This is a function of private texts that no ledger
charges, so it is turned off before anything is loaded. Nothing else on a client imports the library.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from client.store.durable import file_hash
from mechanisms.checks import is_whole

os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # read once, while the library is loaded; processes of this one inherit it

import onnxruntime

onnxruntime.disable_telemetry_events()  # for a process that has loaded it elsewhere before

#: Largest input of any model, in tokens.
LONGEST = 2**14
_ROWS = 5


def cores() -> int:
    """Return the number of threads that a process may use at once.

    It is $OMP_NUM_THREADS if that is set, as in an actor that has one of the cores, and else the number of cores.
    """
    setting = os.environ.get("OMP_NUM_THREADS", "")
    return int(setting) if setting.isdecimal() and int(setting) > 0 else os.cpu_count() or 1


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


def content_hash(folder: Path | str, names: Iterable[str], kind: str) -> str:
    """Return the SHA-256 (hex) over the names and contents of these files of a folder, in this order.

    Raises:
        ValueError: A file is missing. The message begins with `kind`.
    """
    digest = hashlib.sha256()
    for name in names:
        try:
            part = file_hash(Path(folder) / name)
        except OSError:
            raise ValueError(f"{kind}: {Path(folder) / name} cannot be read") from None
        digest.update(f"{name} {part}\n".encode())
    return digest.hexdigest()


def fields(kind: str, path: Path, rules: Mapping[str, Callable[[Any], bool]], **defaults: Any) -> dict[str, Any]:
    """Return fields of a JSON object in a file, each as its rule requires.

    Args:
        kind: First word of errors.
        path: The file.
        rules: For each field, whether a value is valid.
        defaults: Values of fields that may be missing.

    Raises:
        ValueError: A field is missing or invalid. The message is one line.
    """
    try:
        about = defaults | json.loads(path.read_text(encoding="utf-8"))
        values = {name: about[name] for name in rules}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise ValueError(f"{kind}: {path} lacks one of {', '.join(rules)}") from None
    for name, is_valid in rules.items():
        if not is_valid(values[name]):
            raise ValueError(f"{kind}: {path}: {name} is invalid: {values[name]!r:.80}")
    return values


def load_checked(kind: str, folder: Path, *graphs: str, threads: int | None = None) -> tuple[Tokenizer, list[Any]]:
    """Return a folder's tokenizer, without truncation or padding, and its graphs by the names of their files.

    Args:
        kind: First word of errors.
        folder: Folder of the model.
        graphs: Names of the files.
        threads: See `client.models.onnx.session`.

    Raises:
        ValueError: A file cannot be loaded. The message is one line that begins with `kind`.
    """
    try:
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        tokenizer.no_padding()
        tokenizer.no_truncation()
        return tokenizer, [session(folder / name, threads) for name in graphs]
    except Exception:  # both libraries raise bare exceptions of their own
        raise ValueError(f"{kind}: {folder} holds a model or tokenizer that cannot be loaded") from None


def numbers(value: object, below: int) -> bool:
    """Return whether a value is a list of whole numbers from 0 to below `below`."""
    return isinstance(value, list) and all(is_whole(number, 0, below - 1) for number in value)


def bounds(low: object, high: object) -> bool:
    """Return whether these are numbers, the first below the second, also as floats: a whole number may be too large."""
    return isinstance(low, int | float) and isinstance(high, int | float) and -1e300 < low < high < 1e300


def longest(kind: str, folder: Path, what: str, run: Callable[[NDArray[np.int64]], object]) -> None:
    """Run row 0 of the longest input that the model takes according to its folder.

    Raises:
        ValueError: It does not run. The message is one line.
    """
    try:
        run(np.zeros(1, np.int64))
    except Exception:  # as in `tried`
        raise ValueError(f"{kind}: {folder}: {what} does not run") from None


def last_token(kind: str, folder: Path, tokenizer: Tokenizer, run: Callable[[int], object]) -> None:
    """Run the largest token number that a text may have: a model's table of tokens has to reach that far.

    Raises:
        ValueError: It does not run. The message is one line.
    """
    own = tokenizer.encode("").ids  # the special tokens around each text may be outside the vocabulary
    last = max([*tokenizer.get_vocab(with_added_tokens=True).values(), *own], default=0)
    longest(kind, folder, f"its tokenizer's token {last}", lambda _: run(last))


def tried(kind: str, folder: Path, run: Callable[[NDArray[np.int64]], NDArray[np.float32]]) -> NDArray[np.float32]:
    """Return outputs (5, ...) of `run` for rows 0 to 4 together, which must equal those of each row alone bit by bit.

    Otherwise one user's text would change another's release, as with dynamic quantization, whose scale is that of a
    whole batch. This check finds kernels and graphs whose rows depend on each other by mistake. It does not find a
    graph that is made to deceive it.

    Raises:
        ValueError: The outputs differ, or the model does not run. The message is one line.
    """
    try:
        together = run(np.arange(_ROWS))
        alone = [run(np.array([row])) for row in range(_ROWS)]
        same = together.tobytes() == np.concatenate(alone).tobytes() and len(together) == _ROWS
    except Exception:  # the library raises bare exceptions of its own, and a graph of another form many others
        raise ValueError(f"{kind}: {folder} holds a model that does not run") from None
    if not same:
        raise ValueError(
            f"{kind}: {folder} reads a text otherwise alone than beside others (dynamic quantization does): "
            "one user's text would show in another's release"
        )
    return together
