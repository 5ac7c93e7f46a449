"""Export of a masked language model as the three files that a client runs.

The files are model.onnx, tokenizer.json and masked_lm.json.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForMaskedLM

from server.accelerator import beside, lent, place
from server.checkpoint import positions, read_model, refuse_unknown_token
from server.export import example_inputs, in_one_step, write_about, write_graph
from server.text_batches import chosen, clip_bounds, padded, pieces_of

#: Public texts that decide the clipping bounds, as many as in the paper (Meisenbacher et al. 2024, section 5.1.1).
CALIBRATION = 1000
_BATCH = 32
#: Entry of a checkpoint's config.json: the model was trained with positions that start again in the second text.
ALIGNED = "sottovoce_aligned"


def load(checkpoint: str | Path) -> tuple[Any, Any]:
    """Return (model, tokenizer) of a masked language model. Raises ValueError as `read`, or for want of a head."""
    model, tokenizer, complete = read(checkpoint)
    if not complete:
        raise ValueError(
            f"masked-lm: {checkpoint} has no masked-LM head; train one with server.training.pretrain first"
        )
    return model, tokenizer


def read(checkpoint: str | Path) -> tuple[Any, Any, bool]:
    """Return (model, tokenizer, whole), in float32 and evaluation mode.

    Args:
        checkpoint: A local folder, or the name of a model on a hub.

    Returns:
        The model, its tokenizer, and whether the checkpoint has a prediction head. A missing head has random weights.

    Raises:
        ValueError: The checkpoint cannot be read, or its tokenizer has no mask. The message is one line.
    """
    model, tokenizer, missing = read_model("masked-lm", checkpoint, AutoModelForMaskedLM, attn_implementation="eager")
    if tokenizer.mask_token_id is None:
        raise ValueError(f"masked-lm: the tokenizer of {checkpoint} has no mask")
    refuse_unknown_token("masked-lm", checkpoint, model, tokenizer)
    complete = all(name.startswith(model.base_model_prefix) for name in missing)
    return model, tokenizer, complete


def export_masked_lm(
    checkpoint: str | Path, folder: str | Path, *, public_texts: Sequence[str], seed: int, max_length: int = 256
) -> None:
    """Write model.onnx (opset 17, float32, any batch and length), tokenizer.json and masked_lm.json.

    The graph takes input_ids, attention_mask and, if the model knows them, token_type_ids and (for an aligned model)
    position_ids: int64 (n, length). It also takes positions, int64 (n,). It returns:

    - logits, float32 (n, pieces), at the given position of each row alone. The output layer costs as much as the rest
      of a small encoder.
    - attention, float32 (n, length, length), the mean over layers and heads: the weight of each query (second axis) on
      each key (third axis).

    masked_lm.json holds the clipping bounds low and high: the mean and the mean + 4 standard deviations of logits. They
    are measured at a masked word of each of at most 1,000 *public* texts, beside the original, as DP-MLM asks. The file
    also holds max_length, the ids of mask, unknown and padding, the tokens before, between and after a pair of texts,
    and whether the second text has its own segment. The files appear only when all are complete.

    Args:
        checkpoint: A local folder, or the name of a model on a hub.
        folder: Folder for the files; it is created if missing.
        public_texts: Public texts that decide the clipping bounds.
        seed: Seed that picks texts and words.
        max_length: Tokens of an input, at most.

    Raises:
        ValueError: There is no masked-LM head, there are no public texts, or the model cannot take the length.
    """
    model, tokenizer = load(checkpoint)
    low, high = bounds_of(model, tokenizer, public_texts, seed=seed, max_length=max_length)
    write_masked_lm(model, tokenizer, folder, low=low, high=high, max_length=max_length)


def bounds_of(
    model: Any, tokenizer: Any, public_texts: Sequence[str], *, seed: int, max_length: int
) -> tuple[float, float]:
    """Return (low, high) for `masked_lm.json`: see `export_masked_lm`.

    Raises:
        ValueError: There are no public texts, or the model cannot take the length.
    """
    about = layout(model, tokenizer) | {"max_length": _checked_length(model, max_length)}
    return clip_bounds("masked-lm", _masked_logits(model, tokenizer, about, public_texts, seed))


def write_masked_lm(
    model: Any, tokenizer: Any, folder: str | Path, *, low: float, high: float, max_length: int
) -> None:
    """Write the three files of `export_masked_lm` from a loaded model, with known clipping bounds.

    Raises:
        ValueError: The model cannot take the length.
    """
    about = layout(model, tokenizer) | {"max_length": _checked_length(model, max_length)}
    example = example_inputs(model)
    if about["aligned"]:
        example["position_ids"] = torch.arange(8).repeat(2, 1)
    example["positions"] = torch.tensor([1, 2])

    def at_positions(positions: torch.Tensor, **inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with only_at(model, lambda hidden: (torch.arange(hidden.shape[0]), positions)):
            answer = model(**inputs, output_attentions=True, return_dict=True)
        attention = torch.stack([layer.mean(dim=1) for layer in answer.attentions]).mean(dim=0)
        return answer.logits[:, 0], attention

    with in_one_step(folder, "model.onnx", "tokenizer.json", "masked_lm.json") as scratch:
        write_graph(at_positions, scratch / "model.onnx", example, ["logits", "attention"], model=model)
        tokenizer.backend_tokenizer.save(str(scratch / "tokenizer.json"))
        write_about(scratch / "masked_lm.json", about | {"low": low, "high": high})


def _checked_length(model: Any, max_length: int) -> int:
    longest = positions(model) or max_length
    if not 8 <= max_length <= longest:
        raise ValueError(f"masked-lm: max-length must be between 8 and {longest}, got {max_length}")
    return max_length


def layout(model: Any, tokenizer: Any) -> dict[str, Any]:
    """Return the position of a pair of texts in the input, read from an encoded pair.

    "aligned" is True if the model was trained so (`pretrain`): the second text's positions start again at those of the
    first. Words at the same place then face each other.
    """
    pair = tokenizer.backend_tokenizer.encode("a", "a")
    side = pair.sequence_ids
    if 0 not in side or 1 not in side:
        raise ValueError("masked-lm: the tokenizer makes nothing of the letter a")
    first, second = side.index(0), side.index(1)
    last_first, last_second = len(side) - 1 - side[::-1].index(0), len(side) - 1 - side[::-1].index(1)
    return {
        "before": pair.ids[:first],
        "between": pair.ids[last_first + 1 : second],
        "after": pair.ids[last_second + 1 :],
        "segments": pair.type_ids[second] == 1 and "token_type_ids" in tokenizer.model_input_names,
        "mask": int(tokenizer.mask_token_id),
        "unknown": int(tokenizer.unk_token_id),
        "padding": int(tokenizer.pad_token_id or 0),
        "special": sorted(int(i) for i in tokenizer.all_special_ids),
        "aligned": bool(getattr(model.config, ALIGNED, False)),
    }


def inputs_of(
    about: dict[str, Any], pairs: Sequence[tuple[Sequence[int] | None, Sequence[int]]]
) -> tuple[dict[str, torch.Tensor], list[int]]:
    """Return padded inputs of pairs, and the start of each second text.

    Args:
        about: Result of `layout`.
        pairs: Piece ids of a first and a second text. If the first is None, the second stands alone.

    Returns:
        Tensors by name, int64 (n, length) each; and the column at which each second text starts.
    """
    rows, starts = [], []
    for first, second in pairs:
        head = about["before"] if first is None else [*about["before"], *first, *about["between"]]
        rows.append([*head, *second, *about["after"]])
        starts.append(len(head))
    ids, mask = padded(rows, about["padding"])
    types, places = torch.zeros_like(ids), torch.arange(ids.shape[1]).repeat(len(rows), 1)
    for i, (row, start, (first, _)) in enumerate(zip(rows, starts, pairs, strict=True)):
        types[i, start : len(row)] = int(about["segments"] and first is not None)
        places[i, start : len(row)] -= start - len(about["before"])
    inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
    return inputs | ({"position_ids": places} if about["aligned"] else {}), starts


def logits_at(model: Any, inputs: dict[str, torch.Tensor], rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """Return the logits (p, pieces) at p places of `inputs_of`, on the model's device.

    Args:
        model: Masked language model.
        inputs: Inputs of `inputs_of`; those that the model does not know are left out.
        rows: Row of each place, (p,).
        columns: Column of each place, (p,).
    """
    takes, where = inspect.signature(model.forward).parameters, place(model)
    arguments = beside(model, {name: value for name, value in inputs.items() if name in takes})
    at = rows.to(where), columns.to(where)
    with only_at(model, lambda hidden: at):
        logits: torch.Tensor = model(**arguments, return_dict=True).logits[:, 0]
    return logits


def _masked_logits(
    model: Any, tokenizer: Any, about: dict[str, Any], texts: Sequence[str], seed: int
) -> Iterator[torch.Tensor]:
    """Yield each batch of logits at a masked word of public texts."""
    texts, rng = chosen(texts, CALIBRATION, seed)
    room = (about["max_length"] - len(about["before"]) - len(about["between"]) - len(about["after"])) // 2
    encoded = [ids[:room] for ids in pieces_of(tokenizer, texts) if ids]
    with lent(model), torch.no_grad():
        for start in range(0, len(encoded), _BATCH):
            batch = encoded[start : start + _BATCH]
            at = [int(rng.integers(len(ids))) for ids in batch]
            masked = [[*ids[:i], about["mask"], *ids[i + 1 :]] for ids, i in zip(batch, at, strict=True)]
            inputs, starts = inputs_of(about, list(zip(batch, masked, strict=True)))
            columns = torch.tensor([s + i for s, i in zip(starts, at, strict=True)])
            yield logits_at(model, inputs, torch.arange(len(batch)), columns)


@contextmanager
def only_at(model: Any, places: Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]) -> Iterator[None]:
    """Limit the model's logits to p places inside the context: (p, 1, pieces).

    The places are picked before the head. All architectures name the body alike, but not the head.

    Args:
        model: Masked language model.
        places: Function from the hidden states to p places, as (rows, columns).
    """

    def pick(module: Any, given: Any, out: Any) -> Any:
        out["last_hidden_state"] = out.last_hidden_state[places(out.last_hidden_state)].unsqueeze(1)
        return out

    hook = model.base_model.register_forward_hook(pick)
    try:
        yield
    finally:
        hook.remove()
