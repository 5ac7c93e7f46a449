"""A causal or sequence-to-sequence language model as the files that a client generates texts by: model.onnx,
tokenizer.json, generator.json, and encoder.onnx of one in two parts."""

from __future__ import annotations

import json
import os
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM
from transformers.modeling_outputs import BaseModelOutput

from mechanisms.pieces import BYTE_LEVEL, SENTENCEPIECE, WORDPIECE
from server.accelerator import beside, lent
from server.checkpoint import cut_and_pad_nothing, is_fast, positions, read_model
from server.clipping import clip_bounds
from server.text_batches import pieces_of

PLACE = "{text}"
#: The prompt of Utpala et al. 2023, and none, for a model that was trained to paraphrase what precedes.
PROMPT = f"Document : {PLACE}\nParaphrase of the document :"
PARAPHRASE = f"{PLACE}\n"
#: Public texts whose logits say where to clip, and tokens of each.
CALIBRATION, _WRITTEN = 256, 32
#: Tokens of the prompt with its text where nobody says otherwise, and the fewest that may be drawn behind it.
MAX_LENGTH, _LEAST = 512, 8
_BATCH = 8
#: Bytes that one file of this form can hold.
_LARGEST = 2**31 - 2**24


def read_generator(checkpoint: str | Path) -> tuple[Any, Any]:
    """(model, tokenizer) of a checkpoint that generates text, in float32 and evaluation mode, weights from safetensors
    only. Raises ValueError, one line, where it cannot be read or has no tokenizer.json."""
    model, tokenizer, missing = read_model("generator", checkpoint, _kind, attn_implementation="eager")
    if missing:
        raise ValueError(f"generator: {checkpoint} does not generate text; {min(missing)} is not among its weights")
    if not is_fast(tokenizer):
        raise ValueError(f"generator: {checkpoint} has no tokenizer.json")
    cut_and_pad_nothing(tokenizer)  # a token that the model has no embedding for is padding to a client
    return model, tokenizer


def _kind(config: Any) -> Any:
    return AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM


def export_generator(
    checkpoint: str | Path, folder: str | Path, *, public_texts: Sequence[str], seed: int, prompt: str = PROMPT,
    max_length: int | None = None,
) -> None:  # fmt: skip
    """Write model.onnx (opset 17, float32, any batch and length), tokenizer.json and generator.json.

    The graph takes input_ids and attention_mask, int64 (n, length), and positions, int64 (n,). It gives logits, float32
    (n, pieces), of the token that follows that one position of each row. There is no cache of the passes before. Of a
    model in two parts encoder.onnx makes of input_ids and attention_mask the prompt's states, float32 (n, length, d),
    once; model.onnx takes these, attention_mask, decoder_input_ids, int64 (n, written), and positions, which are of the
    latter.

    prompt: in which the private text stands at "{text}". max_length: tokens of the prompt with its text, which is cut
    to fit; 512 where the model has room for as many, or half of its positions. generator.json: the prompt's tokens
    before and after the text; how many tokens may be drawn behind; and low and high, the mean and the mean + 4 standard
    deviations of the logits at each of the first 32 tokens of at most 256 *public* texts (picked by `seed`), each after
    a prompt with itself. The files appear when all are whole.

    Raises ValueError, one line, where the checkpoint cannot be read or is larger than a file of this form, the prompt
    has no place for the text or no room, and without public texts.
    """
    if prompt.count(PLACE) != 1:
        raise ValueError(f"generator: the prompt must name {PLACE} once, got {prompt!r}")
    model, tokenizer = read_generator(checkpoint)
    weights = [*model.parameters(), model.get_output_embeddings().weight]  # which the graph holds beside the input's
    if sum(each.numel() for each in weights) * 4 > _LARGEST:
        raise ValueError(f"generator: {checkpoint} has more than 2 GB of weights; take a smaller model")
    about = layout(model, tokenizer, prompt, max_length)
    low, high = clip_bounds("generator", _moments(model, tokenizer, about, public_texts, seed))
    out = Path(folder)
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out, prefix=".export-") as name:
        scratch = Path(name)
        _write_graphs(model, scratch, about["pieces"])
        tokenizer.backend_tokenizer.save(str(scratch / "tokenizer.json"))
        text = json.dumps(about | {"low": low, "high": high}, sort_keys=True)
        (scratch / "generator.json").write_text(text + "\n")
        first = [] if about["start"] is None else ["encoder.onnx"]
        for file in (*first, "model.onnx", "tokenizer.json", "generator.json"):  # the last one says that all are there
            os.replace(scratch / file, out / file)


def layout(model: Any, tokenizer: Any, prompt: str, max_length: int | None) -> dict[str, Any]:
    """How a prompt stands in the input, and what the tokenizer's pieces are. ValueError where there is no room."""
    # a prompt is the experimenter's, and may name special tokens
    before, after = (_own(tokenizer, part) for part in prompt.split(PLACE))
    own = tokenizer("")["input_ids"]  # what the tokenizer puts around a text by itself
    two = bool(model.config.is_encoder_decoder)
    pieces = min(len(tokenizer), model.get_input_embeddings().num_embeddings)
    end, first = tokenizer.eos_token_id, tokenizer.bos_token_id
    if end is not None and end >= pieces:  # never written then
        end = None
    # a token for padding may have been added without a place in the model's table; nobody looks at what stands there
    padding = next(token for token in (tokenizer.pad_token_id, end, 0) if token is not None and token < pieces)
    before = [*([first] if first is not None and first in own and first != end else []), *before]
    if two:
        after = [*after, *(i for i in own if i == end)]
    if not before and not after:  # a text may be empty, and the input never is
        before = [padding]
    longest = positions(model)
    if max_length is None:
        max_length = MAX_LENGTH if longest is None else min(MAX_LENGTH, longest if two else longest // 2)
    history = MAX_LENGTH if longest is None else longest - (1 if two else max_length)
    if not len(before) + len(after) < max_length <= (longest or max_length) or history < _LEAST:
        raise ValueError(f"generator: max-length {max_length} leaves no room for a text in the prompt, or behind it")
    start = model.config.decoder_start_token_id if two else None
    if two and not (isinstance(start, int) and 0 <= start < pieces):
        raise ValueError("generator: the checkpoint does not say which token its decoder starts with")
    beyond = [token for token in (*before, *after) if token >= pieces]
    if beyond:
        unknown = tokenizer.convert_ids_to_tokens(beyond[0])
        raise ValueError(f"generator: the prompt has a token that the model does not know: {unknown!r}")
    return {
        "before": before, "after": after, "start": start, "end": end, "padding": padding,
        "unknown": tokenizer.unk_token_id, "special": sorted(int(i) for i in tokenizer.all_special_ids),
        "spelling": _spelling(tokenizer), "max_length": max_length, "history": history,
        "pieces": pieces,
    }  # fmt: skip


def _spelling(tokenizer: Any) -> str:
    """How pieces spell a text (`mechanisms.pieces`); "" where each is a word."""
    kind = json.loads(tokenizer.backend_tokenizer.to_str())["model"]["type"]
    if kind in ("WordLevel", "WordPiece"):
        return "" if kind == "WordLevel" else WORDPIECE
    names = tokenizer.get_vocab()
    spaces = sum(name.startswith("▁") for name in names)
    return SENTENCEPIECE if spaces > sum(name.startswith("Ġ") for name in names) else BYTE_LEVEL


def _own(tokenizer: Any, part: str) -> list[int]:
    """The tokens of a part of a prompt, without those that the tokenizer puts around a text."""
    if not part:
        return []
    ids = list(tokenizer(part, add_special_tokens=False, split_special_tokens=False)["input_ids"])
    tokenizer.backend_tokenizer.encode_special_tokens = True
    return ids


def known(tokenizer: Any, about: dict[str, Any], text: str) -> list[int]:
    """A text's tokens that the model has, without those that the tokenizer puts around it."""
    return [i for i in pieces_of(tokenizer, [text])[0] if i < about["pieces"]]


def _moments(
    model: Any, tokenizer: Any, about: dict[str, Any], texts: Sequence[str], seed: int
) -> Iterator[tuple[int, float, float]]:
    """Of the logits of each token of public texts, given those before it: how many, their sum, the sum of squares."""
    rng = np.random.default_rng([seed, 0])
    texts = [texts[i] for i in np.sort(rng.permutation(len(texts))[:CALIBRATION])]
    room = about["max_length"] - len(about["before"]) - len(about["after"])
    encoded = [ids for ids in (known(tokenizer, about, text) for text in texts) if ids]
    with lent(model), torch.no_grad():
        for start in range(0, len(encoded), _BATCH):
            batch = encoded[start : start + _BATCH]
            prompts = [[*about["before"], *ids[:room], *about["after"]] for ids in batch]
            written = [ids[: min(_WRITTEN, about["history"])] for ids in batch]
            begin = [0 if about["start"] is not None else len(prompt) - 1 for prompt in prompts]
            given = beside(model, inputs_of(about, prompts, written))
            logits = model(**given, use_cache=False).logits[:, :, : about["pieces"]]
            for row, first, ids in zip(logits, begin, written, strict=True):
                each = row[first : first + len(ids)].double()
                yield each.numel(), float(each.sum()), float((each**2).sum())


def inputs_of(about: dict[str, Any], prompts: list[list[int]], written: list[list[int]]) -> dict[str, torch.Tensor]:
    """Padded inputs of a model: prompts, and what is written behind each."""
    two = about["start"] is not None
    shown = prompts if two else [[*a, *b] for a, b in zip(prompts, written, strict=True)]
    width = max(map(len, shown))
    ids = torch.tensor([[*row, *[about["padding"]] * (width - len(row))] for row in shown])
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in shown])
    given = {"input_ids": ids, "attention_mask": mask}
    if two:
        width = 1 + max(map(len, written))
        rows = [[about["start"], *row] for row in written]
        given["decoder_input_ids"] = torch.tensor([[*r, *[about["padding"]] * (width - len(r))] for r in rows])
    return given


class NextToken(torch.nn.Module):
    """Logits of the token that follows one position of each row; of a model in two parts, given the prompt's states."""

    def __init__(self, model: Any, pieces: int) -> None:
        super().__init__()
        self.model = model
        self.pieces = pieces

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        first, mask, *written, positions = tensors
        given: dict[str, Any] = {"attention_mask": mask}
        if written:
            given |= {"encoder_outputs": BaseModelOutput(last_hidden_state=first), "decoder_input_ids": written[0]}
        else:
            given["input_ids"] = first
        with _only_at(self.model, positions):
            answer = self.model(**given, use_cache=False, return_dict=True)
        logits: torch.Tensor = answer.logits[:, 0, : self.pieces]
        return logits


class States(torch.nn.Module):
    """What the first of two parts makes of a prompt."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.encoder = model.get_encoder()

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        states: torch.Tensor = self.encoder(input_ids=input_ids, attention_mask=attention_mask)[0]
        return states


@contextmanager
def _only_at(model: Any, positions: torch.Tensor) -> Iterator[None]:
    """Inside, the model's logits are (n, 1, pieces), of one position of each row: the product with all of the
    vocabulary is much of the work."""
    hook = model.get_output_embeddings().register_forward_pre_hook(
        lambda module, given: (given[0][torch.arange(given[0].shape[0]), positions].unsqueeze(1),)
    )
    try:
        yield
    finally:
        hook.remove()


def _write_graphs(model: Any, folder: Path, pieces: int) -> None:
    mask = torch.ones(2, 8, dtype=torch.int64)
    mask[1, 5:] = 0  # a mask of ones alone could be traced away
    example = {"input_ids": torch.ones(2, 8, dtype=torch.int64), "attention_mask": mask}
    if model.config.is_encoder_decoder:
        part = States(model).eval()
        with torch.no_grad():
            states = part(*example.values())
        _write_graph(part, folder / "encoder.onnx", example, "states")
        example = {"states": states, "attention_mask": mask}
        example["decoder_input_ids"] = torch.ones(2, 6, dtype=torch.int64)
    example["positions"] = torch.tensor([1, 2])
    _write_graph(NextToken(model, pieces).eval(), folder / "model.onnx", example, "logits")


def _write_graph(part: torch.nn.Module, path: Path, example: dict[str, torch.Tensor], output: str) -> None:
    length = {0: "batch", 1: "length"}
    free = {name: length for name in ("input_ids", "attention_mask", "states")} | {
        "decoder_input_ids": {0: "batch", 1: "written"}, "positions": {0: "batch"}, "logits": {0: "batch"}
    }  # fmt: skip
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # the tracer's remarks on constants that are constant
        torch.onnx.export(
            part, tuple(example.values()), str(path), input_names=list(example), output_names=[output],
            dynamic_axes={name: free[name] for name in (*example, output)}, opset_version=17, dynamo=False,
        )  # fmt: skip
