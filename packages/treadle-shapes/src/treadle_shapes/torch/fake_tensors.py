"""Treadle's fake tensor mode: PyTorch's FakeTensorMode with kernels and a cache of its own. Needs torch.

    mode = fake_mode(shape_env=fake_shape_env(env))
    with mode:
        y = torch.relu(fake_like(mode, x))

PyTorch's fake kernels give some results another layout than eager, and raise for some calls that eager runs (`corrected_kernels`). Under
symbolic sizes they decompose some operators, which is slow (`fast_kernels`). Treadle's mode keeps its kernels in tables of its own, so that
other fake tensors in the process, such as torch.compile's, do not change.
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
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, in_kernel_invocation_manager

from treadle_shapes.torch import (
    corrected_kernels,
    direct_kernels,
    dynamo_stand_in,
    fast_kernels,
    light_imports,
    patches,
    refused_arguments,
    result_layouts,
)
from treadle_shapes.torch.constants import LightConverter
from treadle_shapes.torch.made_fakes import made_fake
from treadle_shapes.torch.operators import operator
from treadle_shapes.torch.ours import TreadleMode
from treadle_shapes.torch.static_calls import forget_all, static_calls, why_not_static

_DEVICE = torch.ops.prim.device.default


def _rebound(method: Any, **names: Any) -> Any:
    """Copy a method. In the copy, `names` replace global names of its code."""
    scope = {**method.__globals__, **names}
    copy = types.FunctionType(method.__code__, scope, method.__name__, method.__defaults__, method.__closure__)
    copy.__kwdefaults__ = method.__kwdefaults__
    return copy


@functools.cache
def _fast_op_impls() -> dict[Any, Callable[..., Any]]:
    """Return PyTorch's table of implementations for symbolic sizes, with those of `fast_kernels` added."""
    return {**fake_impls.get_fast_op_impls(), **fast_kernels.kernels()}


@functools.cache
def _our_check() -> tuple[Any, ...]:
    """Return the (predicate, implementation) pair for `corrected_kernels`. The first call imports all operator declarations."""
    kernels = corrected_kernels.kernels()

    def run(mode: Any, func: Any, *args: Any, **kwargs: Any) -> Any:
        return kernels[func](mode, func, *args, **kwargs)

    return ((kernels.__contains__, run),)


@functools.cache
def _fake_kernel(func: Any) -> Callable[..., Any] | None:
    """Return the implementation that answers in place of PyTorch's kernel (`Operator.fake_kernel`)."""
    if not isinstance(func, torch._ops.OpOverload) or func._schema.is_mutable:
        return None
    record = operator(func)
    return None if record is None else record.fake_kernel


class _Checks:
    """Iterates Treadle's (predicate, implementation) pairs of fake kernels, then PyTorch's."""

    def __iter__(self) -> Iterator[Any]:
        return itertools.chain(_our_check(), fake_impls.op_implementations_checks)


class TreadleFakeMode(FakeTensorMode, TreadleMode):
    """A FakeTensorMode with Treadle's kernels. Make it with `fake_mode`."""

    # PyTorch's modes share one cache. This mode has its own, so that its results do not reach other modes, nor theirs this one.
    cache: dict[Any, Any] = {}
    cache_hits = 0
    cache_misses = 0
    cache_bypasses: dict[str, int] = defaultdict(int)
    _replaced: Any = None
    """The operator whose `fake_kernel` runs: PyTorch's kernel answers where that calls the operator."""

    @classmethod
    def cache_clear(cls) -> None:
        """Forget the results of earlier calls in this process."""
        super().cache_clear()
        forget_all()

    def dispatch(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Answer a call. What depends on constant metadata alone is taken from, and kept in, the cache of all modes."""
        kwargs = kwargs or {}
        if func is _DEVICE and type(args[0]) is FakeTensor:
            return args[0].device
        kernel = _fake_kernel(func)
        if kernel is not None and func is not self._replaced and not self.asks_real_tensors():
            outer, self._replaced = self._replaced, func
            try:
                with self:
                    return kernel(*args, **kwargs)
            finally:
                self._replaced = outer
        if why_not_static(func) is not None or self.asks_real_tensors():
            return super().dispatch(func, types, args, kwargs)

        def run(is_kept: bool) -> Any:
            # PyTorch's own cache takes as long as a kernel to fill, and is needed only where ours is not.
            return (
                self._dispatch_impl(func, types, args, kwargs)
                if is_kept
                else self._cached_dispatch_impl(func, types, args, kwargs)
            )

        return static_calls(self).call(func, run, args, kwargs)

    def asks_real_tensors(self) -> bool:
        """Whether the user has asked PyTorch to compute with real tensors beside the fake ones, or not to cache."""
        return self.propagate_real_tensors or not self.cache_enabled or self.cache_crosscheck_enabled


TreadleFakeMode._cached_dispatch_impl = _rebound(  # type: ignore[method-assign]
    FakeTensorMode._cached_dispatch_impl, FakeTensorMode=TreadleFakeMode
)
_LIGHT = {**vars(builtins), "__import__": light_imports.import_lazily}
TreadleFakeMode._make_cache_entry = _rebound(  # type: ignore[method-assign]
    FakeTensorMode._make_cache_entry, __builtins__=_LIGHT
)
_dispatch_with_our_tables = _rebound(
    FakeTensorMode._dispatch_impl,
    get_fast_op_impls=_fast_op_impls,
    op_implementations_checks=_Checks(),
    __builtins__=_LIGHT,
)


def _dispatch_impl(mode: Any, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
    """Check what PyTorch does not check, then try the direct kernels, then those of PyTorch with Treadle's added."""
    check = refused_arguments.checks().get(func)
    if check is not None:
        check(mode, *args, **kwargs)
    direct = direct_kernels.KERNELS.get(func)
    found = NotImplemented if direct is None else direct(mode, *args, **kwargs)
    if found is NotImplemented:
        found = _dispatch_with_our_tables(mode, func, types, args, kwargs)
        if type(found) is FakeTensor and found.requires_grad and not any(found is given for given in args):
            # PyTorch's reference of `constant_pad_nd` makes a tensor that requires gradients as its input does. Whether results do is
            # autograd's business, which has nothing to say under no_grad (torch 2.11 to 2.13).
            found.requires_grad_(False)
        found = result_layouts.in_eager_layout(mode, func, args, kwargs, found)
    return found


TreadleFakeMode._dispatch_impl = _dispatch_impl  # type: ignore[method-assign]


@functools.cache
def _light_init() -> Callable[..., None]:
    """Return a copy of ``FakeTensorMode.__init__`` whose ``import torch._dynamo.config`` finds the stand-in."""
    light_builtins = {**vars(builtins), "__import__": dynamo_stand_in.import_without_dynamo}
    return _rebound(FakeTensorMode.__init__, __builtins__=light_builtins)


def fake_mode(**options: Any) -> FakeTensorMode:
    """Return a mode with the options of ``FakeTensorMode``. Neither making nor using it imports ``torch._dynamo``."""
    patches.install()
    mode = TreadleFakeMode.__new__(TreadleFakeMode)
    initialise = FakeTensorMode.__init__ if dynamo_stand_in.is_imported() else _light_init()
    initialise(mode, **options)
    mode.fake_tensor_converter.__class__ = LightConverter
    return mode


def fake_like(mode: FakeTensorMode, tensor: torch.Tensor) -> torch.Tensor:
    """Return a fake tensor of `mode` with the sizes, strides, dtype and device of `tensor` (real or fake) and its own storage.

    ``mode.from_tensor`` would import ``torch._dynamo.source``. It would also make views of views, which treadle-autograd handles itself.
    """
    sizes, strides = tensor.size(), tensor.stride()
    if all(type(n) is int for n in (*sizes, *strides)):
        # What the mode's dispatch of `empty_strided` would give, at a fifth of its cost.
        with torch._C._DisableTorchDispatch():
            return made_fake(
                mode, torch.empty_strided(sizes, strides, dtype=tensor.dtype, device="meta"), tensor.device
            )
    with mode:
        return torch.empty_strided(sizes, strides, dtype=tensor.dtype, device=tensor.device)


def fake_view(mode: FakeTensorMode, source: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return a fake tensor of `mode` in the memory of `source`, a fake tensor, with the sizes, strides and offset of `like`."""
    with in_kernel_invocation_manager(mode):
        alias = torch.as_strided(source, like.size(), like.stride(), like.storage_offset())
    return made_fake(mode, alias, source.device)


__all__ = ["TreadleFakeMode", "fake_like", "fake_mode", "fake_view"]
