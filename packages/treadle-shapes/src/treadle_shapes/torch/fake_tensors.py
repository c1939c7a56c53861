"""Treadle's fake tensors: PyTorch's, in a mode with kernels and a cache of its own. Needs torch.

    mode = fake_mode(shape_env=fake_shape_env(env))
    with mode:
        y = torch.relu(fake_like(mode, x))

PyTorch's fake kernels give some results another layout than eager, and raise for some calls that eager runs (`corrected_kernels`). Under
symbolic sizes they decompose some operators at a high price (`fast_kernels`). Treadle's mode has kernels of its own, in tables of its own,
so that the fake tensors of anybody else in the process, those of torch.compile among them, stay as they are.
"""

from __future__ import annotations

import builtins
import functools
import itertools
import types
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._subclasses import fake_impls
from torch._subclasses.fake_tensor import FakeTensorMode

from treadle_shapes.torch import corrected_kernels, dynamo_stand_in, fast_kernels, patches
from treadle_shapes.torch.ours import TreadleMode


def _rebound(method: Any, **names: Any) -> Any:
    """The same method, in whose code some global names mean something else."""
    scope = {**method.__globals__, **names}
    copy = types.FunctionType(method.__code__, scope, method.__name__, method.__defaults__, method.__closure__)
    copy.__kwdefaults__ = method.__kwdefaults__
    return copy


@functools.cache
def _fast_op_impls() -> dict[Any, Callable[..., Any]]:
    """PyTorch's table of implementations for symbolic sizes, with those of `fast_kernels` added."""
    return {**fake_impls.get_fast_op_impls(), **fast_kernels.kernels()}


@functools.cache
def _our_check() -> tuple[Any, ...]:
    """The (predicate, implementation) pair of the kernels of `corrected_kernels`; found at first use, which imports all declarations."""
    kernels = corrected_kernels.kernels()

    def run(mode: Any, func: Any, *args: Any, **kwargs: Any) -> Any:
        return kernels[func](mode, func, *args, **kwargs)

    return ((kernels.__contains__, run),)


class _Checks:
    """PyTorch's (predicate, implementation) pairs of fake kernels, after ours."""

    def __iter__(self) -> Iterator[Any]:
        return itertools.chain(_our_check(), fake_impls.op_implementations_checks)


class TreadleFakeMode(FakeTensorMode, TreadleMode):
    """A FakeTensorMode with Treadle's kernels. Make it with `fake_mode`."""

    # PyTorch's cache is one for all modes of the process: it would hand results of these kernels to other modes, and take theirs.
    cache: dict[Any, Any] = {}
    cache_hits = 0
    cache_misses = 0
    cache_bypasses: dict[str, int] = defaultdict(int)


TreadleFakeMode._cached_dispatch_impl = _rebound(  # type: ignore[method-assign]
    FakeTensorMode._cached_dispatch_impl, FakeTensorMode=TreadleFakeMode
)
TreadleFakeMode._dispatch_impl = _rebound(  # type: ignore[method-assign]
    FakeTensorMode._dispatch_impl, get_fast_op_impls=_fast_op_impls, op_implementations_checks=_Checks()
)


@functools.cache
def _light_init() -> Callable[..., None]:
    """``FakeTensorMode.__init__`` with the same code, whose ``import torch._dynamo.config`` finds the stand-in."""
    light_builtins = {**vars(builtins), "__import__": dynamo_stand_in.import_without_dynamo}
    return _rebound(FakeTensorMode.__init__, __builtins__=light_builtins)


def fake_mode(**options: Any) -> FakeTensorMode:
    """A mode with the options of ``FakeTensorMode`` whose making and use leave ``torch._dynamo`` out of ``sys.modules``."""
    patches.install()
    if dynamo_stand_in.is_imported():
        return TreadleFakeMode(**options)
    mode = TreadleFakeMode.__new__(TreadleFakeMode)
    _light_init()(mode, **options)
    return mode


def fake_like(mode: FakeTensorMode, tensor: torch.Tensor) -> torch.Tensor:
    """A fake tensor of `mode` with the sizes, strides, dtype and device of `tensor` (real or fake) and a storage of its own.

    ``mode.from_tensor`` would import ``torch._dynamo.source``; it also keeps views views, which `aot` handles itself.
    """
    with mode:
        return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=tensor.device)


__all__ = ["TreadleFakeMode", "fake_like", "fake_mode"]
