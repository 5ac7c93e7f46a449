"""Export of a checkpoint as the three files that a client runs: model.onnx, tokenizer.json, encoder.json."""

from __future__ import annotations

import inspect
import json
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch

from server.checkpoint import load, positions
from server.checkpoint_files import POOLINGS
from server.quantize import Feeds, quantize, quantize_blocks

PRECISIONS = ("fp32", "int8", "int4")
#: Free axes of a graph's inputs and outputs; those of all others are batch and length.
_AXES = {
    "positions": {0: "batch"},
    "logits": {0: "batch"},
    "attention": {0: "batch", 1: "length", 2: "length"},
    "decoder_input_ids": {0: "batch", 1: "written"},
}


class _Graph(torch.nn.Module):
    """Function of named tensors, as the module that the tracer wants; modules by their names in the graph."""

    def __init__(self, compute: Callable[..., Any], names: Sequence[str], modules: Mapping[str, Any]) -> None:
        super().__init__()
        self.compute, self.names = compute, names
        for name, module in modules.items():
            self.add_module(name, module)

    def forward(self, *tensors: torch.Tensor) -> Any:
        return self.compute(**dict(zip(self.names, tensors, strict=True)))


def export_encoder(
    checkpoint: str | Path,
    out_folder: str | Path,
    *,
    pooling: str = "mean",
    max_length: int = 128,
    layers: Sequence[int] = (),
    precision: str = "fp32",
    calibration: Sequence[str] = (),
) -> None:
    """Write model.onnx (opset 17, any batch and length), tokenizer.json and encoder.json.

    The graph takes input_ids, attention_mask and, if the model knows it, token_type_ids: int64 (n, length). It returns
    last_hidden_state, float32 (n, length, dim). The client pools. The files appear only when all three are complete.

    Args:
        checkpoint: "minilm", a named checkpoint, a local folder, or the name of a model on a hub.
        out_folder: Folder for the files; it is created if missing.
        pooling: One of `POOLINGS`.
        max_length: Tokens of a text, at most; the client cuts the rest.
        layers: Layers whose hidden states are concatenated, 1 for the first transformer layer. () takes the last layer
            alone.
        precision: "fp32", "int8" or "int4". Each is another public function of a text, with other files and so another
            identity (`server.quantize`).
        calibration: Public texts from which int8 takes its ranges.

    Raises:
        ValueError: The pooling or precision is unknown, the model lacks the length or a layer, int8 has no calibration
            texts, or `load` raises it.
    """
    for name, value, choices in (("pooling", pooling, POOLINGS), ("precision", precision, PRECISIONS)):
        if value not in choices:
            raise ValueError(f"encoder: {name} {value!r} is not one of {', '.join(choices)}")
    if precision == "int8" and not len(calibration):
        raise ValueError("encoder: int8 needs public texts to take its ranges from")
    model, tokenizer = load(checkpoint)
    longest = positions(model) or max_length
    if not 3 <= max_length <= longest:
        raise ValueError(f"encoder: max-length must be between 3 and {longest}, got {max_length}")
    depth = int(model.config.num_hidden_layers)
    if not all(1 <= layer <= depth for layer in layers) or len(set(layers)) < len(layers):
        raise ValueError(f"encoder: layers must be different numbers from 1 to {depth}, got {list(layers)}")

    def hidden_states(**inputs: torch.Tensor) -> Any:
        if not layers:
            return model(**inputs).last_hidden_state
        states = model(**inputs, output_hidden_states=True).hidden_states
        return torch.cat([states[layer] for layer in layers], dim=-1)

    with in_one_step(out_folder, "model.onnx", "tokenizer.json", "encoder.json") as scratch:
        backend = tokenizer.backend_tokenizer
        backend.no_padding()  # the client pads and truncates: encoder.json states the length
        full = scratch / ("model.onnx" if precision == "fp32" else "fp32.onnx")
        write_graph(hidden_states, full, example_inputs(model), ["last_hidden_state"], model=model)
        if precision == "int8":
            backend.enable_truncation(max_length)
            names = [node.name for node in onnx.load(str(full)).graph.input]  # without those that the model ignores
            quantize(full, scratch / "model.onnx", _feeds(backend, names, calibration))
        elif precision == "int4":
            quantize_blocks(full, scratch / "model.onnx")
        backend.no_truncation()
        backend.save(str(scratch / "tokenizer.json"))
        width = int(model.config.hidden_size) * max(1, len(layers))
        about = {"pooling": pooling, "max_length": max_length, "dim": width, "precision": precision}
        write_about(scratch / "encoder.json", about | ({"layers": list(layers)} if layers else {}))


@contextmanager
def in_one_step(folder: str | Path, *files: str) -> Iterator[Path]:
    """Give a scratch folder, and move these files from it into a folder when the context ends without an error.

    Args:
        folder: Folder for the files; it is created if missing.
        *files: Names of the files. The last one appears last, which says that all are there.
    """
    out = Path(folder)
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out, prefix=".export-") as name:
        yield Path(name)
        for file in files:
            os.replace(Path(name) / file, out / file)


def write_about(path: Path, about: Mapping[str, Any]) -> None:
    """Write what a client must know of a model, as JSON."""
    path.write_text(json.dumps(about, sort_keys=True) + "\n")


def example_inputs(model: Any) -> dict[str, torch.Tensor]:
    """Return those inputs of two texts that a model takes, by name, to trace a graph with."""
    mask = torch.ones(2, 8, dtype=torch.int64)
    mask[1, 5:] = 0  # tracing could remove a mask of ones alone
    ids, types = torch.ones(2, 8, dtype=torch.int64), torch.zeros(2, 8, dtype=torch.int64)
    takes = inspect.signature(model.forward).parameters
    inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
    return {name: tensor for name, tensor in inputs.items() if name in takes}


def write_graph(
    compute: Callable[..., Any], path: Path, example: Mapping[str, torch.Tensor], outputs: Sequence[str], **modules: Any
) -> None:
    """Write a function as an ONNX graph in float32, opset 17, for any batch and length.

    Args:
        compute: Function of the inputs, by name. BertModel's order is not the tokenizer's.
        path: File to write.
        example: Inputs to trace it with, by name.
        outputs: Names of its outputs.
        **modules: Modules that it calls, by their names in the graph.
    """
    axes = {name: _AXES.get(name, {0: "batch", 1: "length"}) for name in (*example, *outputs)}
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # the tracer warns about values that are constant by intention
        torch.onnx.export(
            _Graph(compute, list(example), modules).eval(),
            tuple(example.values()),
            str(path),
            input_names=list(example),
            output_names=list(outputs),
            dynamic_axes=axes,
            opset_version=17,
            dynamo=False,
        )


def _feeds(tokenizer: Any, names: Sequence[str], texts: Sequence[str]) -> Iterator[Feeds]:
    """Yield the inputs of one text at a time: a range must not see padding."""
    for tokens in tokenizer.encode_batch(list(texts)):
        feeds = {"input_ids": tokens.ids, "attention_mask": tokens.attention_mask, "token_type_ids": tokens.type_ids}
        yield {name: np.array([feeds[name]], dtype=np.int64) for name in names}
