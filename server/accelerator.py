"""Where torch computes: on a GPU where there is one. Models are lent to it, and are back afterwards.

What holds weights is lent: the encoder, language models, and heads that are trained with them. What is small stays on
the CPU, where it is done before a GPU has begun: maps and heads on embeddings that are there (`training.public_maps`,
`training.head`, `training.descent`, `training.statistic_head`, `attacks.attributes`). So do exports, whose graphs are
traced there, and the noise of mechanisms. What a client runs is none of this: ONNX Runtime, on its CPU, in a simulation
as on a device, so that what is released does not depend on the machine that simulates it.

The same arguments give other results on a GPU than on a CPU: sums there end in other last bits, and dropout follows its
seed by another generator. Nor are sums there always in the same order, so no two trainings on a GPU are promised to be
the same, as two on a CPU are.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch

#: The variable of the environment by which somebody says where; unset or empty, a GPU is taken where there is one.
VARIABLE = "SOTTOVOCE_DEVICE"
KINDS = ("cpu", "cuda")


def device() -> torch.device:
    """Where models compute here. ValueError, one line, where the environment names something else than KINDS, or a GPU
    that is not there. Of several GPUs torch's current one: CUDA_VISIBLE_DEVICES chooses."""
    asked = os.environ.get(VARIABLE, "")
    if asked not in ("", *KINDS):
        raise ValueError(f"{VARIABLE}: {asked!r} is not one of {', '.join(KINDS)}; unset it to take what is there")
    there = asked != "cpu" and torch.cuda.is_available()
    if asked == "cuda" and not there:
        raise ValueError(f"{VARIABLE}: torch finds no GPU here; unset it, or set it to cpu")
    return torch.device("cuda", torch.cuda.current_device()) if there else torch.device("cpu")


@contextmanager
def lent(*modules: torch.nn.Module) -> Iterator[None]:
    """Inside, the modules lie on `device()`; afterwards, whatever happens, where they were before: what is saved,
    exported, or read as arrays is on the CPU, and what is lent already stays so.

    An optimizer is made inside, or its state would lie elsewhere. ValueError, one line, where `device` raises it, and
    where the GPU's memory does not do.
    """
    there = device()
    away = [(module, where) for module in modules if (where := place(module)) != there]
    try:
        with memory_said():
            for module, _ in away:
                module.to(there)
            yield
    finally:
        for module, where in away:  # also one of which a part alone had room there
            module.to(where)


@contextmanager
def memory_said() -> Iterator[None]:
    """Inside, a GPU whose memory does not do is a ValueError of one line."""
    try:
        yield
    except torch.cuda.OutOfMemoryError as error:
        raise ValueError(
            f"{VARIABLE}: the GPU's memory does not do; take smaller batches or shorter texts, or set it to cpu"
        ) from error


def place(module: torch.nn.Module) -> torch.device:
    """Where a module lies."""
    return next(module.parameters()).device


def beside(module: torch.nn.Module, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A module's inputs, where it lies."""
    where = place(module)
    return {name: tensor.to(where) for name, tensor in tensors.items()}
