"""A GPU where there is none: torch's own computations on the CPU, with books kept on which tensors would lie on a GPU.

Inside `stand_in_gpu()` torch says that it has a GPU. What is moved there, or made there, is marked; what is computed
of it is marked too. What a real GPU refuses is refused: two tensors that lie in two places in one operation (a number
alone on the CPU may; indices on the CPU would be taken by a real one, and are refused here), and arrays of what lies
there. It has a generator of its own for dropout. What it cannot show: what a real one computes, in which order, how
fast, and in how much memory; nor what happens below Python, where no books are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils._pytree import tree_leaves, tree_map

GPU = torch.device("cuda", 0)
_CPU = torch.device("cpu")
_MARK = "_on_the_stand_in"
#: Of attributes; made anew whenever they are named, so that they are equal and not the same.
_DEVICE, _IS_CUDA, _SET_DATA = torch.Tensor.device.__get__, torch.Tensor.is_cuda.__get__, torch.Tensor.data.__set__
_MOVES = {torch.Tensor.to, torch.Tensor.cpu, torch.Tensor.cuda}
#: Which may take tensors from two places.
_ACROSS = {torch.Tensor.copy_, _SET_DATA, torch._has_compatible_shallow_copy_type}
_PRODUCTS = {torch.nn.functional.linear, torch.addmm, torch.Tensor.addmm, torch.Tensor.matmul, torch.Tensor.__matmul__}
_ARRAYS = {torch.Tensor.numpy, torch.Tensor.__array__}
_CHANCE = {torch.nn.functional.dropout, torch.nn.functional.scaled_dot_product_attention}


def _is_gpu(place: torch.device | str) -> bool:
    return torch.device(place).type == GPU.type


def on_gpu(tensor: torch.Tensor) -> bool:
    """Whether a tensor would lie on the GPU."""
    return getattr(tensor, _MARK, False)


class StandIn(TorchFunctionMode):
    """products: of matrices that lie there. chance: its generator's state."""

    def __init__(self) -> None:
        super().__init__()
        self.products = 0
        self.chance = torch.Generator().manual_seed(0).get_state()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        tensors = [leaf for leaf in tree_leaves((args, given)) if isinstance(leaf, torch.Tensor)]
        there = any(on_gpu(tensor) for tensor in tensors)
        if func == _DEVICE:
            return GPU if there else func(*args)
        if func == _IS_CUDA:
            return there
        if func in _MOVES:
            return self._moved(func, args, given)
        if func in _ARRAYS and there:
            raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor")
        if func not in _ACROSS:
            self._check(func, tensors, there)
        if given.get("device") is not None:
            there = _is_gpu(given["device"])
            given["device"] = _CPU if there else given["device"]
        self.products += there and func in _PRODUCTS
        with self._generator(func in _CHANCE and there):
            result = func(*args, **given)
        if func == _SET_DATA:
            setattr(args[0], _MARK, on_gpu(args[1]))
        elif func is torch.Tensor.copy_:
            setattr(result, _MARK, on_gpu(args[0]))
        else:
            _mark(result, there)
        return result

    def _check(self, func: Callable[..., Any], tensors: list[torch.Tensor], there: bool) -> None:
        here = [each for each in tensors if not on_gpu(each) and each.dim()]
        if there and here:
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu! "
                f"({resolve_name(func) or func}, {tuple(here[0].shape)})"
            )

    def _moved(self, func: Callable[..., Any], args: tuple[Any, ...], given: dict[str, Any]) -> torch.Tensor:
        """A copy where it is to go; itself where it lies there already. No copy shares its memory: what is changed on a
        GPU changes nothing on the CPU."""
        tensor, *rest = args
        there = on_gpu(tensor)
        if func is not torch.Tensor.to:
            there, rest = func is torch.Tensor.cuda, []
        for place, each in enumerate(rest):
            if isinstance(each, torch.Tensor):
                there = on_gpu(each)
            elif isinstance(each, torch.device | str):
                there = _is_gpu(each)
                rest[place] = _CPU if there else each
        if given.get("device") is not None:
            there = _is_gpu(given["device"])
            given["device"] = _CPU if there else given["device"]
        result = torch.Tensor.to(tensor, *rest, **given) if rest or given else tensor
        if there != on_gpu(tensor):
            result = result.clone() if result is tensor else result
        if result is not tensor:
            setattr(result, _MARK, there)
        return result

    @contextmanager
    def _generator(self, own: bool) -> Iterator[None]:
        if not own:
            yield
            return
        before = torch.get_rng_state()
        torch.set_rng_state(self.chance)
        yield
        self.chance = torch.get_rng_state()
        torch.set_rng_state(before)


def _mark(result: Any, there: bool) -> None:
    def mark(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            setattr(leaf, _MARK, there)
        return leaf

    tree_map(mark, result)


@contextmanager
def stand_in_gpu() -> Iterator[StandIn]:
    """Inside, torch has a GPU, which is none."""
    stand_in = StandIn()

    def seed(number: int) -> None:
        stand_in.chance = torch.Generator().manual_seed(number).get_state()

    def set_state(state: torch.Tensor, device: Any = None) -> None:
        stand_in.chance = state

    fakes = {
        "is_available": lambda: True,
        "current_device": lambda: 0,
        "manual_seed": seed,
        "get_rng_state": lambda device=None: stand_in.chance,
        "set_rng_state": set_state,
    }
    generator = torch.Generator
    with pytest.MonkeyPatch.context() as patch:
        for name, value in fakes.items():
            patch.setattr(torch.cuda, name, value)
        patch.setattr(torch, "Generator", lambda device=None: generator())  # one of the GPU's is a CPU's here
        with stand_in:
            yield stand_in
