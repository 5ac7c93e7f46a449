"""BERT-family checkpoints: the one a package carries, a local folder, or a hub name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import AutoModel, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

from server.checkpoint_files import resolve
from server.hub import reachable


def load(checkpoint: str | Path) -> tuple[Any, Any]:
    """(model, tokenizer) of a checkpoint, in float32 and evaluation mode; weights from safetensors only.

    Raises ValueError, one line, for a folder that cannot be read and for a hub name where no hub answers.
    """
    source = resolve(checkpoint)
    disable_progress_bar()  # the caller shows progress; a bar for each read of a file is noise
    try:
        cached = not Path(source).is_absolute() and not reachable()
        tokenizer = AutoTokenizer.from_pretrained(source, local_files_only=cached)
        model = AutoModel.from_pretrained(source, use_safetensors=True, local_files_only=cached)
    except Exception as error:  # of many kinds: OSError, ValueError, JSON, safetensors, HTTP
        if Path(source).is_absolute():
            raise ValueError(f"encoder: {source} cannot be read: {first_line(error)}") from error
        raise ValueError(
            f"encoder: {source!r} is no folder here, and no model hub or cache gives it now; name a folder or minilm"
        ) from error
    if not getattr(tokenizer, "is_fast", False):
        raise ValueError(f"encoder: {source} has no tokenizer.json nor a vocabulary to make it from")
    return model.float().eval(), tokenizer


def first_line(error: Exception) -> str:
    """What an error of a library says first, cut at 200 characters; its kind where it says nothing."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
