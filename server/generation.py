"""Export of a generative language model, causal or sequence-to-sequence, as the files that a client runs.

The files are model.onnx, tokenizer.json, generator.json, and encoder.onnx for an encoder-decoder model.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM
from transformers.modeling_outputs import BaseModelOutput

from mechanisms.pieces import BYTE_LEVEL, SENTENCEPIECE, WORDPIECE
from server.accelerator import beside, lent
from server.checkpoint import positions, read_model
from server.export import example_inputs, in_one_step, write_about, write_graph
from server.text_batches import chosen, clip_bounds, padded, pieces_of

PLACE = "{text}"
#: The prompt of Utpala et al. 2023, and an empty prompt for a model that was trained to paraphrase the preceding text.
PROMPT = f"Document : {PLACE}\nParaphrase of the document :"
PARAPHRASE = f"{PLACE}\n"
#: Public texts that decide the clipping bounds, and tokens read from each.
CALIBRATION, _WRITTEN = 256, 32
#: Most tokens of the prompt with its text, and the smallest number that may be drawn behind it.
MAX_LENGTH, _LEAST = 512, 8
_BATCH = 8
#: Largest size of one file of this form, in bytes.
_LARGEST = 2**31 - 2**24


def read_generator(checkpoint: str | Path) -> tuple[Any, Any]:
    """Return (model, tokenizer) of a checkpoint that generates text, in float32 and evaluation mode.

    Weights are read from safetensors only.

    Args:
        checkpoint: A local folder, or the name of a model on a hub.

    Raises:
        ValueError: The checkpoint cannot be read, or has no tokenizer.json. The message is one line.
    """
    model, tokenizer, missing = read_model("generator", checkpoint, _kind, attn_implementation="eager")
    if missing:
        raise ValueError(f"generator: {checkpoint} does not generate text; {min(missing)} is not among its weights")
    return model, tokenizer


def _kind(config: Any) -> Any:
    return AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM


def export_generator(
    checkpoint: str | Path,
    folder: str | Path,
    *,
    public_texts: Sequence[str],
    seed: int,
    prompt: str = PROMPT,
) -> None:
    """Write model.onnx (opset 17, float32, any batch and length), tokenizer.json and generator.json.

    The graph takes input_ids and attention_mask, int64 (n, length), and positions, int64 (n,). It returns logits,
    float32 (n, pieces), of the token that follows the given position of each row. It keeps no cache of earlier passes.

    For an encoder-decoder model, encoder.onnx runs once on input_ids and attention_mask. It returns the prompt's
    states, float32 (n, length, d). model.onnx then takes these states, attention_mask, decoder_input_ids, int64 (n,
    written), and positions in the latter.

    generator.json holds the prompt's tokens before and after the text, the number of tokens that may be drawn, and the
    clipping bounds low and high. The bounds are the mean and the mean + 4 standard deviations of logits. They are
    measured at each of the first 32 tokens of at most 256 *public* texts, each after a prompt that contains the same
    text. The files appear only when all are complete.

    Args:
        checkpoint: A local folder, or the name of a model on a hub.
        folder: Folder for the files; it is created if missing.
        public_texts: Public texts that decide the clipping bounds.
        seed: Seed that picks these texts.
        prompt: Prompt with "{text}" at the place of the private text, which is cut to fit. Both have 512 tokens, or
            half of the model's positions (all, if it is an encoder-decoder model) where these are fewer.

    Raises:
        ValueError: The checkpoint cannot be read or exceeds a file of this form, the prompt has no place or no room for
            the text, or there are no public texts. The message is one line.
    """
    if prompt.count(PLACE) != 1:
        raise ValueError(f"generator: the prompt must name {PLACE} once, got {prompt!r}")
    model, tokenizer = read_generator(checkpoint)
    weights = [*model.parameters(), model.get_output_embeddings().weight]  # the graph holds both embeddings
    if sum(weight.numel() for weight in weights) * 4 > _LARGEST:
        raise ValueError(f"generator: {checkpoint} has more than 2 GB of weights; take a smaller model")
    about = _layout(model, tokenizer, prompt)
    low, high = clip_bounds("generator", _logits(model, tokenizer, about, public_texts, seed))
    first = [] if about["start"] is None else ["encoder.onnx"]
    with in_one_step(folder, *first, "model.onnx", "tokenizer.json", "generator.json") as scratch:
        _write_graphs(model, scratch, about["pieces"])
        tokenizer.backend_tokenizer.save(str(scratch / "tokenizer.json"))
        write_about(scratch / "generator.json", about | {"low": low, "high": high})


def _layout(model: Any, tokenizer: Any, prompt: str) -> dict[str, Any]:
    """Return the position of a prompt in the input, and the tokenizer's pieces.

    Args:
        model: Model of `read_generator`.
        tokenizer: Its tokenizer.
        prompt: Prompt with "{text}" at the place of the private text.

    Raises:
        ValueError: There is no room for a text, or the model lacks a token of the prompt.
    """
    before, after = (_own(tokenizer, part) for part in prompt.split(PLACE))
    own = tokenizer("")["input_ids"]  # tokens that the tokenizer adds around a text
    two = bool(model.config.is_encoder_decoder)
    pieces = min(len(tokenizer), model.get_input_embeddings().num_embeddings)
    end, first = tokenizer.eos_token_id, tokenizer.bos_token_id
    if end is not None and end >= pieces:  # the model can never write this end token
        end = None
    # a padding token may lack a row in the model's table; no result depends on what stands there
    padding = next(token for token in (tokenizer.pad_token_id, end, 0) if token is not None and token < pieces)
    before = [*([first] if first is not None and first in own and first != end else []), *before]
    if two:
        after = [*after, *(i for i in own if i == end)]
    if not before and not after:  # a text may be empty, but an input may not
        before = [padding]
    longest = positions(model)
    max_length = MAX_LENGTH if longest is None else min(MAX_LENGTH, longest if two else longest // 2)
    history = MAX_LENGTH if longest is None else longest - (1 if two else max_length)
    if len(before) + len(after) >= max_length or history < _LEAST:
        raise ValueError("generator: the model has no room for a text in the prompt, or behind it")
    start = model.config.decoder_start_token_id if two else None
    if two and not (isinstance(start, int) and 0 <= start < pieces):
        raise ValueError("generator: the checkpoint does not say which token its decoder starts with")
    beyond = [token for token in (*before, *after) if token >= pieces]
    if beyond:
        unknown = tokenizer.convert_ids_to_tokens(beyond[0])
        raise ValueError(f"generator: the prompt has a token that the model does not know: {unknown!r}")
    return {
        "before": before,
        "after": after,
        "start": start,
        "end": end,
        "padding": padding,
        "unknown": tokenizer.unk_token_id,
        "special": sorted(int(i) for i in tokenizer.all_special_ids),
        "spelling": _spelling(tokenizer),
        "max_length": max_length,
        "history": history,
        "pieces": pieces,
    }


def _spelling(tokenizer: Any) -> str:
    """Return how pieces spell a text (`mechanisms.pieces`); "" if each piece is a word."""
    kind = json.loads(tokenizer.backend_tokenizer.to_str())["model"]["type"]
    if kind in ("WordLevel", "WordPiece"):
        return "" if kind == "WordLevel" else WORDPIECE
    names = tokenizer.get_vocab()
    spaces = sum(name.startswith("▁") for name in names)
    return SENTENCEPIECE if spaces > sum(name.startswith("Ġ") for name in names) else BYTE_LEVEL


def _own(tokenizer: Any, part: str) -> list[int]:
    """Return the tokens of a part of a prompt, without those that the tokenizer adds around a text."""
    if not part:
        return []
    ids = list(tokenizer(part, add_special_tokens=False, split_special_tokens=False)["input_ids"])
    tokenizer.backend_tokenizer.encode_special_tokens = True
    return ids


def _known(tokenizer: Any, about: dict[str, Any], text: str) -> list[int]:
    """Return a text's tokens that the model has, without those that the tokenizer adds around it."""
    return [i for i in pieces_of(tokenizer, [text])[0] if i < about["pieces"]]


def _logits(
    model: Any, tokenizer: Any, about: dict[str, Any], texts: Sequence[str], seed: int
) -> Iterator[torch.Tensor]:
    """Yield, for each public text, the logits of its tokens."""
    room = about["max_length"] - len(about["before"]) - len(about["after"])
    encoded = [ids for ids in (_known(tokenizer, about, text) for text in chosen(texts, CALIBRATION, seed)[0]) if ids]
    with lent(model), torch.no_grad():
        for start in range(0, len(encoded), _BATCH):
            batch = encoded[start : start + _BATCH]
            prompts = [[*about["before"], *ids[:room], *about["after"]] for ids in batch]
            written = [ids[: min(_WRITTEN, about["history"])] for ids in batch]
            begin = [0 if about["start"] is not None else len(prompt) - 1 for prompt in prompts]
            inputs = beside(model, _inputs(about, prompts, written))
            logits = model(**inputs, use_cache=False).logits[:, :, : about["pieces"]]
            yield from (row[at : at + len(ids)] for row, at, ids in zip(logits, begin, written, strict=True))


def _inputs(about: dict[str, Any], prompts: list[list[int]], written: list[list[int]]) -> dict[str, torch.Tensor]:
    """Return a model's padded inputs: prompts, and the text written behind each.

    Args:
        about: Result of `_layout`.
        prompts: Token ids of each prompt.
        written: Token ids behind each prompt.
    """
    two = about["start"] is not None
    shown = prompts if two else [[*a, *b] for a, b in zip(prompts, written, strict=True)]
    inputs = dict(zip(("input_ids", "attention_mask"), padded(shown, about["padding"]), strict=True))
    if two:
        inputs["decoder_input_ids"] = padded([[about["start"], *row] for row in written], about["padding"])[0]
    return inputs


@contextmanager
def _only_at(model: Any, positions: torch.Tensor) -> Iterator[None]:
    """Limit the model's logits to one position of each row, (n, 1, pieces): the output layer is much of the work."""
    hook = model.get_output_embeddings().register_forward_pre_hook(
        lambda module, inputs: (inputs[0][torch.arange(inputs[0].shape[0]), positions].unsqueeze(1),)
    )
    try:
        yield
    finally:
        hook.remove()


def _write_graphs(model: Any, folder: Path, pieces: int) -> None:
    example = {name: tensor for name, tensor in example_inputs(model).items() if name != "token_type_ids"}
    if model.config.is_encoder_decoder:
        encoder = model.get_encoder()

        def states_of(**inputs: torch.Tensor) -> Any:
            return encoder(**inputs)[0]

        with torch.no_grad():
            states = states_of(**example)
        write_graph(states_of, folder / "encoder.onnx", example, ["states"], encoder=encoder)
        written = torch.ones(2, 6, dtype=torch.int64)
        example = {"states": states, "attention_mask": example["attention_mask"], "decoder_input_ids": written}
    example["positions"] = torch.tensor([1, 2])

    def next_token(positions: torch.Tensor, **inputs: Any) -> torch.Tensor:
        if "states" in inputs:
            inputs["encoder_outputs"] = BaseModelOutput(last_hidden_state=inputs.pop("states"))
        with _only_at(model, positions):
            answer = model(**inputs, use_cache=False, return_dict=True)
        logits: torch.Tensor = answer.logits[:, 0, :pieces]
        return logits

    write_graph(next_token, folder / "model.onnx", example, ["logits"], model=model)
