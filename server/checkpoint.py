"""BERT-family checkpoints: the one a package carries, a local folder, or a hub name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import AutoModel, AutoTokenizer
from transformers.utils import SAFE_WEIGHTS_NAME, WEIGHTS_INDEX_NAME, WEIGHTS_NAME, logging

from server.checkpoint_files import resolve
from server.hub import reachable

#: Weights that an encoder may lack, since what it gives does not depend on them.
_UNUSED = "pooler."


def load(checkpoint: str | Path) -> tuple[Any, Any]:
    """(model, tokenizer) of a checkpoint, in float32 and evaluation mode (`weights`).

    Raises ValueError, one line, for a folder that cannot be read, for a hub name where no hub answers, and where the
    checkpoint lacks weights of the encoder.
    """
    source = resolve(checkpoint)
    level = logging.get_verbosity()
    logging.disable_progress_bar()  # the caller shows progress; a bar for each read of a file is noise
    logging.set_verbosity_error()  # weights that are missing are ours to report
    try:
        cached = not Path(source).is_absolute() and not reachable()
        tokenizer = AutoTokenizer.from_pretrained(source, local_files_only=cached)
        model, missing = weights(AutoModel, source, cached=cached)
    except Exception as error:  # of many kinds: OSError, ValueError, JSON, safetensors, HTTP
        if Path(source).is_absolute():
            raise ValueError(f"encoder: {source} cannot be read: {first_line(error)}") from error
        raise ValueError(
            f"encoder: {source!r} is no folder here, and no model hub or cache gives it now; name a folder or minilm"
        ) from error
    finally:
        logging.set_verbosity(level)
    lacks = sorted(name for name in missing if not name.startswith(_UNUSED))
    if lacks:
        raise ValueError(f"encoder: {source} is no whole encoder: {lacks[0]} is not among its weights")
    if not getattr(tokenizer, "is_fast", False):
        raise ValueError(f"encoder: {source} has no tokenizer.json nor a vocabulary to make it from")
    stranger = unknown_token(model, tokenizer)
    if stranger is not None:
        raise ValueError(f"encoder: {source} has a token that its model does not know: {stranger!r}")
    return model.float().eval(), tokenizer


def weights(kind: Any, source: str, *, cached: bool, **given: Any) -> tuple[Any, frozenset[str]]:
    """(model, names of weights that the checkpoint lacks, which are random), by a class of `transformers`.

    Weights are read from safetensors, and only where a checkpoint has none of them, as older ones do, from
    pytorch_model.bin by torch's reader that makes tensors and runs nothing (`weights_only`). source: of `resolve`.
    cached: whether a hub's name is looked up on this machine alone. Raises whatever `from_pretrained` does.
    """
    given |= {"local_files_only": cached, "output_loading_info": True}
    try:
        model, found = kind.from_pretrained(source, use_safetensors=True, **given)
    except OSError:
        try:
            model, found = kind.from_pretrained(source, use_safetensors=False, weights_only=True, **given)
        except OSError:
            if not Path(source).is_absolute() or (Path(source) / WEIGHTS_INDEX_NAME).is_file():
                raise
            raise OSError(f"there are no weights; it needs a {SAFE_WEIGHTS_NAME} or a {WEIGHTS_NAME}") from None
    return model, frozenset(found["missing_keys"])


def unknown_token(model: Any, tokenizer: Any) -> str | None:
    """The first token of the tokenizer for which the model has no embedding; None where there is none. A text with it
    would be one that a device cannot encode."""
    known = model.get_input_embeddings().num_embeddings
    beyond = [(number, token) for token, number in tokenizer.get_vocab().items() if number >= known]
    return min(beyond)[1] if beyond else None


def positions(model: Any) -> int | None:
    """How many tokens of a text the model has positions for; None where there is no end. RoBERTa's and its kin count
    from behind their padding token's number, which takes places off the table."""
    longest = getattr(model.config, "max_position_embeddings", None)
    if longest is None:
        return None
    table = getattr(getattr(model.base_model, "embeddings", None), "position_embeddings", None)
    behind = getattr(table, "padding_idx", None)
    return int(longest) - (0 if behind is None else int(behind) + 1)


def first_line(error: Exception) -> str:
    """What an error of a library says first, cut at 200 characters; its kind where it says nothing."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
