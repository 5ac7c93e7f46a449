"""Conversion of an exported encoder to int8 or int4: a fixed public function of one text, like the float32 encoder.

int8: Each product of hidden states with a weight matrix W runs on integers. Weights have 7 bits per column:
round(W/s_j) within ±64. States have 8 bits per tensor. Their scale and zero point are *constants*, from the range of
the states on public text. Embedding tables have 8 bits a number, with a scale for each row. Everything else stays
float32.

- Some models have a few channels of states that are many times larger than the others, and one scale for all leaves
  the others few levels. The excess is moved into the weights: states are divided, and the rows of W multiplied, by a
  constant for each channel (SmoothQuant, Xiao et al. 2023, here for outliers alone). The product stays the same.

- Dynamic quantization would take the range of each batch, so a whole batch would share a scale. A text's embedding
  would then depend on its neighbours, who may be other users. Constants avoid that.
- Processors without VNNI add two 8-bit products in 16 bits with saturation. With 7 bits, 2·255·64 = 32,640 fits. So the
  integers, sums of int32, are the same on every machine.

int4: Weights, and tables of words, have 4 bits in blocks of 32 along the inputs, each with a scale, as GGUF's Q4_0.
States stay float32. It is for size, not for speed, and needs no texts. Weights that were rounded so before do not
change.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # the reason is in client/models/onnx.py

import onnxruntime

onnxruntime.disable_telemetry_events()

WEIGHT_LEVELS, STATE_LEVELS, TABLE_LEVELS = 64, 255, 127
#: A channel of states whose range is more than this many times the median channel's is divided down to it.
_OUTLIER = 4.0
#: Weights of a block in int4, and rows above which a table is one of words; smaller ones stay float32.
BLOCK, WORDS = 32, 4096

Feeds = Mapping[str, NDArray[np.int64]]
#: Least and largest number of each channel of a state, (k,) each.
Ranges = tuple[NDArray[np.float32], NDArray[np.float32]]


def quantize(graph: Path, out: Path, feeds: Iterable[Feeds]) -> None:
    """Write the graph in int8.

    Args:
        graph: File of the float32 graph.
        out: File to write.
        feeds: Inputs of public texts, which decide the ranges of the states.

    Raises:
        ValueError: No product is by a constant matrix, or no text is given.
    """
    model = onnx.load(str(graph))
    weights = {i.name: numpy_helper.to_array(i) for i in model.graph.initializer}
    products = [n for n in model.graph.node if n.op_type == "MatMul" and n.input[1] in weights]
    if not products:
        raise ValueError(f"encoder: {graph} has no product by a constant matrix to quantize")
    states = dict.fromkeys(node.input[0] for node in products)
    constants: dict[str, NDArray[Any]] = {}
    # for each state: names of its integers, scale and zero point, and the nodes that make them
    steps: dict[str, tuple[list[str], list[Any]]] = {}
    divided: dict[str, NDArray[np.float32]] = {}
    for i, (state, ranges) in enumerate(zip(states, _ranges(model, list(states), feeds), strict=True)):
        factors = divided[state] = _factors(ranges)
        low, high = min(float((ranges[0] / factors).min()), 0.0), max(float((ranges[1] / factors).max()), 0.0)
        scale = max((high - low) / STATE_LEVELS, float(np.finfo(np.float32).tiny))
        names = [f"state_{i}", f"state_{i}_scale", f"state_{i}_zero"]
        constants |= {names[1]: np.array(scale, np.float32), names[2]: np.array(round(-low / scale), np.uint8)}
        operators, read = [], state
        if (factors > 1).any():
            constants[f"state_{i}_factors"], read = np.float32(1) / factors, f"state_{i}_even"
            operators.append(helper.make_node("Mul", [state, f"state_{i}_factors"], [read], f"even_{i}"))
        operators.append(helper.make_node("QuantizeLinear", [read, *names[1:]], names[:1], f"quantize_{i}"))
        steps[state] = names, operators
    biases = _biases(model, weights)
    nodes: list[Any] = []
    merged = set()
    for i, node in enumerate(model.graph.node):
        if node.output[0] in merged:
            continue
        if node.op_type == "Gather" and node.input[0] in weights and weights[node.input[0]].ndim == 2:
            looked_up, tables = _looked_up(node, weights[node.input[0]], f"table_{i}")
            nodes += looked_up
            constants |= tables
            continue
        if node.op_type != "MatMul" or node.input[1] not in weights:
            nodes.append(node)
            continue
        stepped, before = steps[node.input[0]]
        nodes += before
        steps[node.input[0]] = stepped, []
        bias, output = biases.get(node.output[0], ("", node.output[0]))
        if bias:
            merged.add(output)
        values, scales = _columns(divided[node.input[0]][:, None] * weights[node.input[1]], WEIGHT_LEVELS)
        names = [f"weight_{i}", f"weight_{i}_scale", f"weight_{i}_zero"]
        constants |= zip(names, (values, scales, np.zeros(len(scales), np.int8)), strict=True)
        inputs = [stepped[0], names[0], stepped[1], names[1], stepped[2], names[2], bias]
        nodes.append(helper.make_node("MatMulIntegerToFloat", inputs, [output], node.name, domain="com.microsoft"))
    _replace(model, nodes, constants)
    onnx.save(model, str(out))


def quantize_blocks(graph: Path, out: Path) -> None:
    """Write the graph in int4.

    Args:
        graph: File of the float32 graph.
        out: File to write.

    Raises:
        ValueError: No product is by a constant matrix whose inputs fill blocks.
    """
    model = onnx.load(str(graph))
    weights = {i.name: numpy_helper.to_array(i) for i in model.graph.initializer}
    how = {"bits": 4, "block_size": BLOCK, "domain": "com.microsoft"}
    nodes: list[Any] = []
    constants: dict[str, NDArray[Any]] = {}
    products = 0
    for i, node in enumerate(model.graph.node):
        place = {"MatMul": 1, "Gather": 0}.get(node.op_type)
        matrix = None if place is None else weights.get(node.input[place])
        names = [f"block_{i}", f"block_{i}_scale"]
        if matrix is not None and matrix.ndim == 2 and place == 1 and len(matrix) % BLOCK == 0:
            values, scales = _blocks(np.ascontiguousarray(matrix.T))
            size = {"K": matrix.shape[0], "N": matrix.shape[1]}
            new = helper.make_node("MatMulNBits", [node.input[0], *names], node.output, node.name, **size, **how)
            scales, products = scales.ravel(), products + 1
        elif matrix is not None and matrix.ndim == 2 and len(matrix) > WORDS and matrix.shape[1] % BLOCK == 0:
            values, scales = _blocks(matrix)
            axes = {"gather_axis": 0, "quantize_axis": 1}
            inputs = [names[0], node.input[1], names[1]]
            new = helper.make_node("GatherBlockQuantized", inputs, node.output, node.name, **axes, **how)
            values = values.reshape(len(matrix), -1)
        else:
            nodes.append(node)
            continue
        nodes.append(new)
        constants |= zip(names, (values, scales), strict=True)
    if not products:
        raise ValueError(f"encoder: {graph} has no product by a constant matrix to quantize")
    _replace(model, nodes, constants)
    onnx.save(model, str(out))


def _blocks(rows: NDArray[np.float32]) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Return 4-bit weights, (n, blocks, BLOCK / 2) bytes of two, and scales (n, blocks), of rows (n, blocks·BLOCK).

    A weight is (q - 8) times the scale, with q = 0 for that of the largest magnitude.
    """
    blocks = rows.reshape(len(rows), -1, BLOCK)
    largest = np.take_along_axis(blocks, np.abs(blocks).argmax(axis=2)[..., None], axis=2)[..., 0]
    scales = (largest / -8).astype(np.float32)
    levels = np.rint(blocks / np.where(scales == 0, 1, scales)[..., None]) + 8
    q = np.clip(levels, 0, 15).astype(np.uint8)
    return q[..., ::2] | q[..., 1::2] << 4, scales


def _replace(model: Any, nodes: list[Any], constants: Mapping[str, NDArray[Any]]) -> None:
    """Replace a graph's nodes, in place, add constants by name, and remove those that no node reads."""
    used = {name for node in nodes for name in node.input}
    kept = [i for i in model.graph.initializer if i.name in used]
    del model.graph.node[:], model.graph.initializer[:]
    model.graph.node.extend(nodes)
    model.graph.initializer.extend([*kept, *(numpy_helper.from_array(a, name) for name, a in constants.items())])
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))


def _ranges(model: Any, states: list[str], feeds: Iterable[Feeds]) -> list[Ranges]:
    """Return the range of each channel of each state over the texts."""
    shown = onnx.ModelProto()
    shown.CopyFrom(model)
    shown.graph.output.extend(helper.make_tensor_value_info(s, onnx.TensorProto.FLOAT, None) for s in states)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    run = onnxruntime.InferenceSession(shown.SerializeToString(), options, providers=["CPUExecutionProvider"]).run
    ranges: list[Ranges] = []
    for f in feeds:
        rows = [v.reshape(-1, v.shape[-1]) for v in run(states, dict(f))]
        seen = [(v.min(axis=0), v.max(axis=0)) for v in rows]
        pairs = zip(ranges or seen, seen, strict=True)
        ranges = [(np.minimum(low, least), np.maximum(high, most)) for (low, high), (least, most) in pairs]
    if not ranges:
        raise ValueError("encoder: int8 needs public texts to take its ranges from")
    return ranges


def _factors(ranges: Ranges) -> NDArray[np.float32]:
    """Return what each channel of a state is divided by, (k,): 1, or more for a channel that is far larger than others.

    Only outliers are divided. Their rows of W grow in turn, and with them the steps of whole columns.
    """
    largest = np.maximum(np.abs(ranges[0]), np.abs(ranges[1]))
    most = _OUTLIER * float(np.median(largest))
    return np.maximum(largest / most, 1.0).astype(np.float32) if most > 0 else np.ones_like(largest)


def _looked_up(node: Any, table: NDArray[np.float32], name: str) -> tuple[list[Any], dict[str, NDArray[Any]]]:
    """Return nodes and constants that read a table's rows as integers times the scale of their row.

    The result is a function of each token alone. On a device the largest table is half of the model.
    """
    values, scales = _columns(table.T, TABLE_LEVELS)
    rows, ids = node.output[0], node.input[1]
    nodes = [
        helper.make_node("Gather", [name, ids], [f"{name}_rows"], f"{name}_gather", axis=0),
        helper.make_node("Gather", [f"{name}_scale", ids], [f"{name}_scales"], f"{name}_gather_scale", axis=0),
        helper.make_node("Cast", [f"{name}_rows"], [f"{name}_float"], f"{name}_cast", to=onnx.TensorProto.FLOAT),
        helper.make_node("Mul", [f"{name}_float", f"{name}_scales"], [rows], f"{name}_multiply"),
    ]
    return nodes, {name: np.ascontiguousarray(values.T), f"{name}_scale": scales[:, None]}


def _columns(weight: NDArray[np.float32], levels: int) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Return integers within ±levels, and a scale for each column."""
    scales = np.abs(weight).max(axis=0).astype(np.float64) / levels
    scales[scales == 0] = 1.0
    return np.rint(weight / scales).astype(np.int8), scales.astype(np.float32)


def _biases(model: Any, weights: Mapping[str, NDArray[Any]]) -> dict[str, tuple[str, str]]:
    """Map the output of a product to its bias: (constant vector, output of the sum)."""
    uses: dict[str, int] = {}
    for node in model.graph.node:
        for name in node.input:
            uses[name] = uses.get(name, 0) + 1
    biases = {}
    for node in model.graph.node:
        if node.op_type == "Add":
            for a, b in (node.input, node.input[::-1]):
                if b in weights and weights[b].ndim == 1 and len(weights[b]) > 1 and uses[a] == 1:
                    biases[a] = b, node.output[0]
    return biases
