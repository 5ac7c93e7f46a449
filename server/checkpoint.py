"""Checkpoints of sentence encoders and language models, from a package, a local folder, or a model hub."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from tokenizers import normalizers
from transformers import AutoConfig, AutoModel, AutoTokenizer, PreTrainedTokenizerFast
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, WEIGHTS_INDEX_NAME, logging

from server.checkpoint_files import SentenceLayout, read_layout, resolve
from server.hub import reachable

#: Weights that an encoder may lack: its output does not depend on them.
_UNUSED = "pooler."
#: Names of the number of layers in model configurations, and the largest number that is built.
_DEPTHS = ("num_hidden_layers", "num_layers", "num_decoder_layers", "n_layer", "encoder_layers", "decoder_layers")
_DEEPEST = 512
#: File of an adapter: changes to the weights of a base model.
_ADAPTER = "adapter_config.json"
#: Pattern of the names of weights of numbered layers.
_LAYER = re.compile(r"(?:^|\.)(?:layers?|block|h)\.(\d+)\.")


def load(checkpoint: str | Path) -> tuple[Any, Any]:
    """Return (model, tokenizer) of a sentence encoder, read by `read_model`.

    The tokenizer puts the checkpoint's prefix, if it has one, before each text: every later step then reads it.

    Args:
        checkpoint: "minilm", a named checkpoint, a local folder, or the name of a model on a hub.

    Raises:
        ValueError: The folder cannot be read, no hub answers for the name, or the checkpoint lacks weights of the
            encoder. The message is one line.
    """
    source = resolve(checkpoint)
    try:
        model, tokenizer, missing = read_model("encoder", source, AutoModel)
    except ValueError as error:
        if Path(source).is_absolute():
            raise
        raise ValueError(
            f"encoder: {source!r} is no folder here, and no model hub or cache gives it now; name a folder or minilm"
        ) from error.__cause__
    lacks = sorted(name for name in missing if not name.startswith(_UNUSED))
    if lacks:
        raise ValueError(f"encoder: {source} is no whole encoder: {lacks[0]} is not among its weights")
    refuse_unknown_token("encoder", source, model, tokenizer)
    return model, _with_layout(tokenizer, read_layout(checkpoint))


def read_model(what: str, checkpoint: str | Path, kind: Any, **more: Any) -> tuple[Any, Any, frozenset[str]]:
    """Return (model, tokenizer, missing), in float32 and evaluation mode.

    Args:
        what: First word of error messages.
        checkpoint: "minilm", a local folder, or the name of a model on a hub.
        kind: Class of `transformers`, or a function that returns one for a configuration.
        **more: More arguments for its `from_pretrained`.

    Returns:
        The model, its tokenizer, and the names of weights that the checkpoint lacks. These have random values.

    Raises:
        ValueError: The checkpoint cannot be read. The message is one line.
    """
    source = resolve(checkpoint)
    try:
        with _quietly():
            cached = not Path(source).is_absolute() and not reachable()
            # a type unknown to `transformers` is an error: a checkpoint's own code is never run
            given = {"local_files_only": cached, "trust_remote_code": False}
            config = AutoConfig.from_pretrained(source, **given)
            _refuse_depth(config)
            tokenizer = _tokenizer_of(source, **given)
            kind = kind if isinstance(kind, type) else kind(config)
            model, missing = _weights(kind, source, config=config, **given, **more)
    except Exception as error:  # of many types: OSError, ValueError, JSON, safetensors, HTTP
        raise ValueError(f"{what}: {checkpoint} cannot be read: {_first_line(error)}") from error
    return model.float().eval(), tokenizer, missing


def _with_layout(tokenizer: Any, layout: SentenceLayout) -> Any:
    """Return a tokenizer that reads texts as a layout states: behind its prefix, and in lower case. "" stays empty."""
    before: list[normalizers.Normalizer] = [normalizers.Prepend(layout.prefix)] if layout.prefix else []
    before += [normalizers.Lowercase()] if layout.lowercase else []
    if not before:
        return tokenizer
    backend = tokenizer.backend_tokenizer
    backend.normalizer = normalizers.Sequence([*before, *([backend.normalizer] if backend.normalizer else [])])
    # Classes of one architecture make their normalizer anew when they are read again; this one keeps it.
    read = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        model_input_names=tokenizer.model_input_names,
        model_max_length=tokenizer.model_max_length,
        split_special_tokens=True,
        **tokenizer.special_tokens_map,
    )
    read.backend_tokenizer.encode_special_tokens = True
    return read


@contextmanager
def _quietly() -> Iterator[None]:
    """Silence `transformers`: the caller shows progress and reports missing weights."""
    level = logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)


def _tokenizer_of(source: str, **given: Any) -> Any:
    """Return the tokenizer. One without a vocabulary file, which knows no word, is an error.

    It neither truncates nor pads by itself: the client does both.
    """
    tokenizer = AutoTokenizer.from_pretrained(source, **given)
    if not getattr(tokenizer, "is_fast", False):
        raise ValueError("it has no tokenizer.json nor a vocabulary to make it from")
    if set(tokenizer.get_vocab()) <= set(tokenizer.all_special_tokens):
        raise ValueError("its tokenizer knows no word; the file with its vocabulary is missing, or empty")
    tokenizer.split_special_tokens = tokenizer.backend_tokenizer.encode_special_tokens = True  # text is text
    tokenizer.backend_tokenizer.no_padding()
    tokenizer.backend_tokenizer.no_truncation()
    return tokenizer


def _weights(kind: Any, source: str, **given: Any) -> tuple[Any, frozenset[str]]:
    """Return (model, names of missing weights, which are random), by a class of `transformers`.

    Weights are read from safetensors. Older checkpoints have only pytorch_model.bin, which torch reads with
    `weights_only`: it makes tensors and runs no code. Nothing outside the folder is read.

    Raises:
        ValueError: Weights are not finite, belong to layers that the configuration lacks, are an adapter, or lie
            elsewhere. Other errors are those of `from_pretrained`.
    """
    _refuse_what_lies_elsewhere(Path(source))
    given["output_loading_info"] = True
    try:
        try:
            model, report = kind.from_pretrained(source, use_safetensors=True, **given)
        except OSError:
            model, report = kind.from_pretrained(source, use_safetensors=False, weights_only=True, **given)
    except RuntimeError as error:
        if "ignore_mismatched_sizes" not in str(error):
            raise
        raise ValueError("its weights are of other sizes than its config.json says") from None
    depth = getattr(model.config, "num_hidden_layers", None) or 1000
    more = [name for name in report["unexpected_keys"] if any(int(layer) >= depth for layer in _LAYER.findall(name))]
    if more:
        raise ValueError(f"its config.json has fewer layers than its weights: {min(more)} is of none")
    broken = [name for name, value in model.named_parameters() if not bool(torch.isfinite(value).all())]
    if broken:
        raise ValueError(f"its weights {broken[0]} are not finite")
    return model, frozenset(report["missing_keys"])


def _refuse_depth(config: Any) -> None:
    """Raise ValueError if a configuration's number of layers cannot be built."""
    for name in _DEPTHS:
        depth = getattr(config, name, None)
        if depth is not None and not (isinstance(depth, int) and 1 <= depth <= _DEEPEST):
            raise ValueError(f"its config.json says {name} = {depth!r}; 1 to {_DEEPEST} can be built")


def _refuse_what_lies_elsewhere(folder: Path) -> None:
    """Raise ValueError if a local folder takes weights from outside: from a base model, or parts in other folders."""
    if not folder.is_absolute():
        return
    if (folder / _ADAPTER).is_file():
        raise ValueError(f"it holds an adapter ({_ADAPTER}); merge it into its base model first")
    for index in (SAFE_WEIGHTS_INDEX_NAME, WEIGHTS_INDEX_NAME):
        if not (folder / index).is_file():
            continue
        try:
            parts = set(json.loads((folder / index).read_text(encoding="utf-8"))["weight_map"].values())
            outside = [part for part in parts if not isinstance(part, str) or Path(part).name != part]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise ValueError(f"its {index} names no parts of its weights") from None
        if outside:
            raise ValueError(f"its {index} names a part that is no file of this folder: {outside[0]!r}")


def refuse_unknown_token(what: str, name: str | Path, model: Any, tokenizer: Any) -> None:
    """Check that the model has an embedding for every token of the tokenizer.

    A device could not encode a text with such a token.

    Args:
        what: First word of the error message.
        name: Checkpoint named in the error message.
        model: Model of `transformers`.
        tokenizer: Its tokenizer.

    Raises:
        ValueError: A token has no embedding. The message is one line.
    """
    limit = model.get_input_embeddings().num_embeddings
    beyond = [(number, token) for token, number in tokenizer.get_vocab().items() if number >= limit]
    if beyond:
        raise ValueError(f"{what}: {name} has a token that its model does not know: {min(beyond)[1]!r}")


def positions(model: Any) -> int | None:
    """Return the number of tokens that the model has positions for; None if there is no limit.

    RoBERTa and related models start to count behind the padding token's number, so they have fewer positions than rows.
    """
    longest = getattr(model.config, "max_position_embeddings", None)
    if longest is None:
        return None
    table = getattr(getattr(model.base_model, "embeddings", None), "position_embeddings", None)
    behind = getattr(table, "padding_idx", None)
    return int(longest) - (0 if behind is None else int(behind) + 1)


def _first_line(error: Exception) -> str:
    """Return the first line of a library's error, at most 200 characters; its type if it has no text."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
