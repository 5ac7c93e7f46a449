"""BERT-family checkpoints: the one a package carries, a local folder, or a hub name."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModel, AutoTokenizer
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME, WEIGHTS_INDEX_NAME, WEIGHTS_NAME, logging

from server.checkpoint_files import resolve
from server.hub import reachable

#: Weights that an encoder may lack, since what it gives does not depend on them.
_UNUSED = "pooler."
#: What configurations call their numbers of layers, and the most that are built.
_DEPTHS = ("num_hidden_layers", "num_layers", "num_decoder_layers", "n_layer", "encoder_layers", "decoder_layers")
_DEEPEST = 512
#: A weight of one of an encoder's layers, and of a layer of any model, with its number.
_LAYER = re.compile(r"encoder\.(?:layers?|block)\.\d+\.")
_NUMBERED = re.compile(r"(?:^|\.)(?:layers?|block|h)\.(\d+)\.")
#: Beside a base model's place, changes to its weights.
_ADAPTER = "adapter_config.json"


def load(checkpoint: str | Path) -> tuple[Any, Any]:
    """(model, tokenizer) of a checkpoint, as `read_model` reads it.

    Raises ValueError, one line, for a folder that cannot be read, for a hub name where no hub answers, and where the
    checkpoint lacks weights of the encoder.
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
    if not is_fast(tokenizer):
        raise ValueError(f"encoder: {source} has no tokenizer.json nor a vocabulary to make it from")
    refuse_unknown_token("encoder", source, model, tokenizer)
    return model, tokenizer


def read_model(what: str, checkpoint: str | Path, kind: Any, **given: Any) -> tuple[Any, Any, frozenset[str]]:
    """(model, tokenizer, names of weights that the checkpoint lacks, which are random), in float32 and evaluation mode
    (`_weights`).

    what: begins the errors. kind: a class of `transformers`, or a function that gives one for the configuration. given:
    more for its `from_pretrained`. Raises ValueError, one line, where the checkpoint cannot be read.
    """
    source = resolve(checkpoint)
    try:
        with _quietly():
            cached = not Path(source).is_absolute() and not reachable()
            if not isinstance(kind, type):
                given["config"] = _config_of(source, cached=cached)
                kind = kind(given["config"])
            tokenizer = _tokenizer_of(source, cached=cached)
            model, missing = _weights(kind, source, cached=cached, **given)
    except Exception as error:  # of many kinds: OSError, ValueError, JSON, safetensors, HTTP
        raise ValueError(f"{what}: {checkpoint} cannot be read: {_first_line(error)}") from error
    return model.float().eval(), tokenizer, missing


def is_fast(tokenizer: Any) -> bool:
    """Whether a tokenizer is one that a tokenizer.json can be written of."""
    return bool(getattr(tokenizer, "is_fast", False))


def cut_and_pad_nothing(tokenizer: Any) -> None:
    """Turn a tokenizer's truncation and padding off: they are the client's."""
    tokenizer.backend_tokenizer.no_padding()
    tokenizer.backend_tokenizer.no_truncation()


@contextmanager
def _quietly() -> Iterator[None]:
    """Inside, `transformers` shows no bars, since the caller shows progress, and no warnings: what is missing is ours
    to report."""
    level = logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)


def _config_of(source: str, *, cached: bool) -> Any:
    """The configuration. ValueError where it is of a kind that `transformers` does not have, which code of the
    checkpoint's own could tell, and that is never run; and of no layers, or too many to build."""
    config = AutoConfig.from_pretrained(source, local_files_only=cached, trust_remote_code=False)
    for name in _DEPTHS:
        depth = getattr(config, name, None)
        if depth is not None and not (isinstance(depth, int) and 1 <= depth <= _DEEPEST):
            raise ValueError(f"its config.json says {name} = {depth!r}; 1 to {_DEEPEST} can be built")
    return config


def _tokenizer_of(source: str, *, cached: bool) -> Any:
    """The tokenizer. ValueError where its vocabulary is missing: `transformers` then makes one that knows no word."""
    tokenizer = AutoTokenizer.from_pretrained(source, local_files_only=cached, trust_remote_code=False)
    if set(tokenizer.get_vocab()) <= set(tokenizer.all_special_tokens):
        raise ValueError("its tokenizer knows no word; the file with its vocabulary is missing, or empty")
    if is_fast(tokenizer):
        tokenizer.split_special_tokens = tokenizer.backend_tokenizer.encode_special_tokens = True  # text is text
    return tokenizer


def _weights(kind: Any, source: str, *, cached: bool, **given: Any) -> tuple[Any, frozenset[str]]:
    """(model, names of weights that the checkpoint lacks, which are random), by a class of `transformers`.

    Weights are read from safetensors, and only where a checkpoint has none of them, as older ones do, from
    pytorch_model.bin by torch's reader that makes tensors and runs nothing (`weights_only`). Nothing is read from
    outside a folder. source: of `resolve`. cached: whether a hub's name is looked up on this machine alone. given:
    more for `from_pretrained`, the `config` where it has been read. Raises whatever `from_pretrained` does, and
    ValueError for weights that are not finite or of layers that the configuration does not have, and for an adapter.
    """
    _refuse_what_lies_elsewhere(Path(source))
    given |= {"local_files_only": cached, "output_loading_info": True, "trust_remote_code": False}
    if "config" not in given:
        given["config"] = _config_of(source, cached=cached)
    try:
        try:
            model, found = kind.from_pretrained(source, use_safetensors=True, **given)
        except OSError:
            model, found = kind.from_pretrained(source, use_safetensors=False, weights_only=True, **given)
    except OSError:
        if not Path(source).is_absolute() or (Path(source) / WEIGHTS_INDEX_NAME).is_file():
            raise
        raise OSError(f"there are no weights; it needs a {SAFE_WEIGHTS_NAME} or a {WEIGHTS_NAME}") from None
    except RuntimeError as error:
        if "ignore_mismatched_sizes" not in str(error):
            raise
        raise ValueError("its weights are of other sizes than its config.json says") from None
    deepest = max((getattr(given["config"], name, None) or 0 for name in _DEPTHS), default=0)
    more = [
        name for name in found["unexpected_keys"]
        if _LAYER.search(name) or any(0 < deepest <= int(number) for number in _NUMBERED.findall(name))
    ]  # fmt: skip
    if more:
        raise ValueError(f"its config.json has fewer layers than its weights: {min(more)} is of none")
    broken = [name for name, value in model.named_parameters() if not bool(torch.isfinite(value).all())]
    if broken:
        raise ValueError(f"its weights {broken[0]} are not finite")
    return model, frozenset(found["missing_keys"])


def _refuse_what_lies_elsewhere(folder: Path) -> None:
    """ValueError where weights, in parts or as changes to a base, are to be read from outside a local folder."""
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
    """ValueError, one line that begins with `what` and names a checkpoint, where the tokenizer has a token for which
    the model has no embedding. A text with it would be one that a device cannot encode."""
    known = model.get_input_embeddings().num_embeddings
    beyond = [(number, token) for token, number in tokenizer.get_vocab().items() if number >= known]
    if beyond:
        raise ValueError(f"{what}: {name} has a token that its model does not know: {min(beyond)[1]!r}")


def positions(model: Any) -> int | None:
    """How many tokens of a text the model has positions for; None where there is no end. RoBERTa's and its kin count
    from behind their padding token's number, which takes places off the table."""
    longest = getattr(model.config, "max_position_embeddings", None)
    if longest is None:
        return None
    table = getattr(getattr(model.base_model, "embeddings", None), "position_embeddings", None)
    behind = getattr(table, "padding_idx", None)
    return int(longest) - (0 if behind is None else int(behind) + 1)


def _first_line(error: Exception) -> str:
    """What an error of a library says first, cut at 200 characters; its kind where it says nothing."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
