"""What a model's folder says of the model, and whether it is so: read and tried once, before a private text is.

What cannot be read or run is refused here. Later it would be a text that decides whether a device answers, and that is
an answer which nobody has charged for.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from client.models.onnx import session
from mechanisms.checks import is_whole

#: Tokens that any model here is asked to take at once.
LONGEST = 2**14
_ROWS = 5


def fields(kind: str, path: Path, names: Sequence[str], **absent: Any) -> dict[str, Any]:
    """The fields of a JSON object in a file, and those of `absent`, each as it is there where the file has none.
    ValueError, one line that begins with `kind`, where one of `names` is missing."""
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
        return {name: about[name] for name in names} | {name: about.get(name, value) for name, value in absent.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ValueError(f"{kind}: {path} lacks one of {', '.join(names)}") from None


def load_checked(kind: str, folder: Path, *graphs: str, threads: int | None) -> tuple[Tokenizer, list[Any]]:
    """A folder's tokenizer, which cuts and pads nothing, and its graphs by the names of their files. threads: see
    `client.models.onnx.session`. ValueError, one line that begins with `kind`, where one cannot be loaded."""
    try:
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        tokenizer.no_padding()
        tokenizer.no_truncation()
        return tokenizer, [session(folder / name, threads) for name in graphs]
    except Exception:  # both libraries raise bare exceptions of their own
        raise ValueError(f"{kind}: {folder} holds a model or tokenizer that cannot be loaded") from None


def numbers(value: object, below: int) -> bool:
    """Whether a value is a list of whole numbers from 0 to below `below`."""
    return isinstance(value, list) and all(is_whole(each, 0, below - 1) for each in value)


def bounds(low: object, high: object) -> bool:
    """Whether these are numbers, the first below the second, and as floats too: a whole number may be too large."""
    return isinstance(low, int | float) and isinstance(high, int | float) and -1e300 < low < high < 1e300


def longest(kind: str, folder: Path, what: str, run: Callable[[NDArray[np.int64]], object]) -> None:
    """Run row 0 of the longest input that a folder says its model takes. ValueError, one line, where it does not."""
    try:
        run(np.zeros(1, np.int64))
    except Exception:  # as in `tried`
        raise ValueError(f"{kind}: {folder}: {what} does not run") from None


def last_token(kind: str, folder: Path, tokenizer: Tokenizer, run: Callable[[int], object]) -> None:
    """Run the largest number of a token that a text may have: a model's table of tokens has to reach that far.
    ValueError, one line, where it does not."""
    own = tokenizer.encode("").ids  # what is put around each text, which may be no token of the vocabulary
    last = max([*tokenizer.get_vocab(with_added_tokens=True).values(), *own], default=0)
    longest(kind, folder, f"its tokenizer's token {last}", lambda _: run(last))


def tried(kind: str, folder: Path, run: Callable[[NDArray[np.int64]], NDArray[np.float32]]) -> NDArray[np.float32]:
    """What `run` makes of rows 0 to 4 at once, (5, ...), which has to be what it makes of each alone, to the last bit.

    Else, as with dynamic quantization, whose scale is that of a whole batch, one user's text would move another's
    release. This finds kernels and graphs that are careless of rows; of one that is made to deceive it says nothing.
    ValueError, one line, where they differ or the model does not run.
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
