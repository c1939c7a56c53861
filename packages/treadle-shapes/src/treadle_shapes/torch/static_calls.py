"""A process-wide cache of what Treadle's fake modes answer to calls with constant sizes. Needs torch.

    StaticCalls(mode).call(aten.mm.default, run, (x, w), {})      # the first such call in any mode is `run(True)`

A fake kernel takes 0.1 to 3 ms the first time and, with PyTorch's own cache, 60 to 100 us from then on; a cached result 15 to 30 us.
Without symbolic sizes a result depends on nothing that a mode holds, so all modes share the results: tracing, functionalisation and code
generation make the same calls. `kept_calls` keeps them for later processes.

The key is that of `fake_call_cache`, the sizes of the arguments' memory, and those settings of the process that choose among kernels
(`fake_call_settings`). A call is not cached where `why_not_static` says so, where an argument or a result has symbolic sizes, and under
the conditions of `fake_call_cache`. In-place operators are answered by their first argument, which autograd's layers have counted up by
then.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor

from treadle_shapes.torch import kept_calls, static_kernels
from treadle_shapes.torch.fake_call_cache import FakeCallCache, Unknown, is_differentiable, settings_are_plain
from treadle_shapes.torch.operators import operator
from treadle_shapes.torch.ours import TreadleMode

aten = torch.ops.aten
# Entries are some hundred bytes each. A program of so many different calls compiles again and again.
_MOST_ENTRIES = 1 << 16
_MASKS = (torch.bool, torch.uint8, torch.int8)

_entries: dict[Any, Any] = {}


def forget_all() -> None:
    """Forget what this process has found. Kept results stay."""
    _entries.clear()
    static_kernels.forget_all()


class StaticCalls(FakeCallCache):
    """Results of calls in the dispatch of `mode`, kept for all modes. Not thread-safe, as modes are not."""

    def __init__(self, mode: Any) -> None:
        super().__init__(mode)
        self._entries = _entries

    def call(self, target: Any, run: Callable[[bool], Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return the mode's answer to a call of the overload `target`, which `run(is_kept)` computes; is_kept: it may be kept here."""
        tensors: list[FakeTensor] = []
        try:
            key = self._key(target, args, kwargs, tensors) if settings_are_plain() else None
        except Unknown:
            key = None
        if key is None:
            return run(False)
        found = self._entries.get(key)
        if found is None:
            found = static_kernels.answer(self.mode, target, args, kwargs, tensors)
            if found is None:
                return self._run(key, target, run, args, kwargs, tensors)
            self._add(key, found)
        return self._make(found, tensors)

    def _run(
        self,
        key: Any,
        target: Any,
        run: Callable[[bool], Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        tensors: list[FakeTensor],
    ) -> Any:
        """The result that an earlier process has found, or that of `run`, which is kept."""
        found = kept_calls.find(key)
        if found is not None:
            self._add(key, found)
            result = self._make(found, tensors)
        else:
            result = run(True)
            if key in self._entries:  # `run` has dispatched the call
                return result
            try:
                entry = self._entry_for(target, result, tensors)
                if key == self._key(target, args, kwargs, []):
                    self._add(key, entry)
                    kept_calls.note(key, entry)
            except Unknown:
                return result
        static_kernels.note(target, args, kwargs, tensors, result)
        return result

    def _add(self, key: Any, entry: Any) -> None:
        if len(self._entries) >= _MOST_ENTRIES:
            self._entries.clear()
        self._entries[key] = entry

    def _check(self, target: Any, args: Sequence[Any]) -> None:
        if target is aten.index.Tensor and any(t is not None and t.dtype in _MASKS for t in args[1]):
            raise Unknown  # how many elements a mask selects is the mode's business

    def _settings(self, tensors: list[FakeTensor]) -> Any:
        return fake_call_settings()

    def _symbolic(self, value: Any) -> Any:
        raise Unknown

    def _metadata(self, t: FakeTensor) -> tuple[Any, ...]:
        if t._has_symbolic_sizes_strides:  # type: ignore[attr-defined]
            raise Unknown
        rest = super()._metadata(t)
        memory = t.untyped_storage().nbytes()  # `as_strided` reads beyond its argument as far as there is memory
        if type(memory) is not int:
            raise Unknown
        return *rest, memory

    def _entry_of(self, result: Any, tensors: list[FakeTensor]) -> Any:
        # The dispatcher, which gets the result, makes a plain tuple of one with names.
        return super()._entry_of(tuple(result) if isinstance(result, tuple) else result, tensors)


def static_calls(mode: Any) -> StaticCalls:
    """Return the calls with constant sizes of `mode`, one of Treadle's."""
    found = mode.__dict__.get("_static_calls")
    if found is None:
        found = mode._static_calls = StaticCalls(mode)
    return found  # type: ignore[no-any-return]


def static_call_key(
    mode: Any, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Any, list[FakeTensor]] | None:
    """All that the answer to a call of an overload on fake tensors of `mode` depends on, and the tensors among the arguments, each of them
    once; None where that is more than metadata, sizes are symbolic, or an argument is of another mode."""
    tensors: list[FakeTensor] = []
    try:
        if not settings_are_plain():
            return None
        return static_calls(mode)._key(target, args, kwargs, tensors, with_offsets=True), tensors
    except Unknown:
        return None


class CallsOfMode(FakeCallCache):
    """Results of calls on the fake tensors of `mode`; those of ATen's operators with constant sizes are in the cache of all modes."""

    def call(self, target: Any, run: Callable[[], Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        call = super().call
        is_static = isinstance(self.mode, TreadleMode) and not self.mode.asks_real_tensors()  # type: ignore[attr-defined]
        if not (is_static and isinstance(target, torch._ops.OpOverload)) or why_not_static(target) is not None:
            return call(target, run, args, kwargs)

        def run_here(is_kept: bool) -> Any:
            return run() if is_kept else call(target, run, args, kwargs)

        return static_calls(self.mode).call(target, run_here, args, kwargs)


def fake_calls(mode: Any) -> FakeCallCache:
    """Return the cache that belongs to `mode`. It lives as long as the mode."""
    found = mode.__dict__.get("_treadle_calls")
    if found is None:
        found = mode._treadle_calls = CallsOfMode(mode)
    return found  # type: ignore[no-any-return]


def fake_call_settings() -> tuple[Any, ...]:
    """What is set in this process and thread that chooses among kernels, and so among layouts or dtypes of results."""
    core: Any = torch._C
    return (
        core.is_grad_enabled(),
        is_differentiable(),
        torch.get_default_dtype(),
        core._get_default_device(),
        core._get_deterministic_algorithms(),
        core._get_mkldnn_enabled(),
        core._get_nnpack_enabled(),
        core._get_cudnn_enabled(),
        core.get_num_threads(),
    )


@functools.cache
def why_not_static(target: Any) -> str | None:
    """Why results of the overload are not kept: they may depend on more than metadata, or the call does something."""
    if not isinstance(target, torch._ops.OpOverload):
        return "it is no overload"
    if target.namespace not in ("aten", "prims"):
        return "others than PyTorch have written its fake kernel"
    record = operator(target)
    if record is not None and record.fake_kernel is not None:
        return "a fake kernel of ours runs in its place"
    if target in fake_tensor._DISPATCH_META_HANDLERS or target in fake_tensor._DISPATCH_HANDLE_DIRECTLY:
        return "it asks a tensor about itself"
    if target._schema.is_mutable and not _writes_its_first_argument_only(target):
        return "it writes"
    if torch.Tag.data_dependent_output in target.tags:
        return "its result depends on elements"
    if torch.Tag.dynamic_output_shape in target.tags and target is not aten.index.Tensor:
        return "its sizes depend on elements"
    if target.overloadpacket in (aten.lift, aten.lift_fresh, aten.lift_fresh_copy):
        return "it takes real tensors"
    if torch._C._dispatch_has_kernel_for_dispatch_key(target.name(), "CompositeImplicitAutograd"):
        return "it chooses other operators by what is set"
    return None


def _writes_its_first_argument_only(target: torch._ops.OpOverload) -> bool:
    """Whether the overload writes elements of its first argument and returns it. `set_` and `resize_` change the argument itself."""
    if torch.Tag.inplace_view in target.tags or target.overloadpacket in (aten.set_, aten.resize_, aten.resize_as_):
        return False
    written = [a.alias_info is not None and a.alias_info.is_write for a in target._schema.arguments]
    return written[0] and not any(written[1:]) and len(target._schema.returns) == 1


__all__ = [
    "StaticCalls",
    "fake_call_settings",
    "fake_calls",
    "forget_all",
    "static_call_key",
    "static_calls",
    "why_not_static",
]
