"""The device on which torch computes: a GPU where there is one.

Models move to the device for one computation, and move back afterwards. The following models move: the encoder,
language models, and heads that are trained with them.

Everything else stays on the CPU:

- Maps and heads on existing embeddings are small, and done before a GPU has started (`training.public_maps`,
  `training.head`, `training.descent`, `training.statistic_head`, `attacks.attributes`).
- Exports stay there, because their graphs are traced on the CPU.
- Mechanisms draw their noise there.
- A client runs ONNX Runtime on its CPU, in a simulation as on a device. So a release does not depend on the machine
  that simulates it.

The same arguments give different results on a GPU and on a CPU. Sums differ in their last bits, and dropout uses
another random generator. A GPU does not always sum in the same order, so two trainings on a GPU may differ. Two
trainings on a CPU are the same.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch

#: Environment variable that selects the device. If it is unset or empty, a GPU is used where there is one.
VARIABLE = "SOTTOVOCE_DEVICE"
KINDS = ("cpu", "cuda")


def device() -> torch.device:
    """Return the device on which models compute.

    Of several GPUs, it is torch's current one: set CUDA_VISIBLE_DEVICES to choose.

    Raises:
        ValueError: The environment names something other than KINDS, or a GPU that is missing. The message is one line.
    """
    setting = os.environ.get(VARIABLE, "")
    if setting not in ("", *KINDS):
        raise ValueError(f"{VARIABLE}: {setting!r} is not one of {', '.join(KINDS)}; unset it to take what is there")
    available = setting != "cpu" and torch.cuda.is_available()
    if setting == "cuda" and not available:
        raise ValueError(f"{VARIABLE}: torch finds no GPU here; unset it, or set it to cpu")
    return torch.device("cuda", torch.cuda.current_device()) if available else torch.device("cpu")


@contextmanager
def lent(*modules: torch.nn.Module) -> Iterator[None]:
    """Move modules to `device()` inside the context, and back to their places afterwards.

    They move back also after an exception. So anything that is saved, exported, or read as arrays is on the CPU.
    Modules that are already on the device stay there.

    Create an optimizer inside the context: its state would otherwise lie elsewhere.

    Args:
        *modules: Modules to move.

    Raises:
        ValueError: `device` raises it, or the GPU's memory is too small. The message is one line.
    """
    target = device()
    away = [(module, where) for module in modules if (where := place(module)) != target]
    try:
        with one_line_memory_error():
            for module, _ in away:
                module.to(target)
            yield
    finally:
        for module, where in away:  # includes a module that only partly fitted on the GPU
            module.to(where)


@contextmanager
def one_line_memory_error() -> Iterator[None]:
    """Turn a GPU's out-of-memory error into a ValueError of one line."""
    try:
        yield
    except torch.cuda.OutOfMemoryError as error:
        raise ValueError(
            f"{VARIABLE}: the GPU's memory does not do; take smaller batches or shorter texts, or set it to cpu"
        ) from error


def place(module: torch.nn.Module) -> torch.device:
    """Return the device of a module."""
    return next(module.parameters()).device


def beside(module: torch.nn.Module, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return a module's inputs, moved to the module's device.

    Args:
        module: Module that will read the inputs.
        tensors: Inputs by name.
    """
    where = place(module)
    return {name: tensor.to(where) for name, tensor in tensors.items()}
