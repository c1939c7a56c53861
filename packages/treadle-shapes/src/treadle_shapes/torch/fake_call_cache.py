"""A cache of calls on fake tensors. A call that repeats an earlier one on the same metadata gets its result without running a kernel.

    cache = FakeCallCache(mode)
    result = cache.call(torch.nn.functional.linear, run, (x, weight, bias), {})       # the first such call is `run()`

Layers repeat: in a model of eight layers, a fake kernel cannot tell seven eighths of the calls from earlier ones. A call through
FakeTensorMode costs 0.1 to 3 ms (a `linear` is up to 24 dispatches), a cached result 10 to 40 us. Needs torch.

The result of a fake kernel depends on its arguments' metadata, on a few settings and, with symbolic sizes, on the facts of their
environment. The key holds all of these. A call is not cached where one of these conditions fails:

- every result is None or a tensor of the mode: an argument itself, a view of one (where autograd does not see the call), or a tensor with
  memory of its own; autograd tracks none of them, and their sizes hold no symbol that the arguments do not have (as for `nonzero`);
- the call has a tensor among its arguments, or is one of an ATen operator;
- the call changed no argument, neither its version nor its metadata.

A new fact of the environment empties the cache.

Where arguments start in their memory is no part of the key for operators whose results do not depend on it (`reads_offsets`): the steps
of a loop compute with one slice after the other.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor, in_kernel_invocation_manager

from treadle_shapes.nodes import free_symbols
from treadle_shapes.torch.made_fakes import made_fake
from treadle_shapes.torch.operators import Kind, operator
from treadle_shapes.torch.version_counters import share_version_counter

#: types whose values enter a key unchanged
# Types by their ids: a metaclass of the program may define `__hash__` and `__eq__`.
_PLAIN = frozenset(
    id(kind)
    for kind in (
        type(None),
        bool,
        int,
        float,
        complex,
        str,
        type(...),
        torch.dtype,
        torch.device,
        torch.layout,
        torch.memory_format,
    )
)
_SYMBOLIC = frozenset(map(id, (torch.SymInt, torch.SymFloat, torch.SymBool)))
_SEQUENCES = frozenset(map(id, (tuple, list, torch.Size)))
_NUMBERS = frozenset(map(id, (int, float, bool)))
# In the dispatch of a mode below autograd, the keys of all devices are excluded together.
_AUTOGRAD = torch._C.DispatchKey.AutogradFunctionality


@functools.cache
def _shape_inference() -> Any:
    """The module of the shape functions. It is imported with the first call: loading it takes 5 ms."""
    from treadle_shapes.torch import shape_inference

    return shape_inference


# Operators that compute new tensors, or change or return an argument.
_WITHOUT_OFFSETS = frozenset({Kind.POINTWISE, Kind.REDUCTION, Kind.SCAN, Kind.MATMUL, Kind.NORMALISATION})


def reads_offsets(target: Any) -> bool:
    """Whether the result of a call may depend on where an argument starts in its memory, as that of a view does."""
    record = operator(target)
    return record is None or record.kind not in _WITHOUT_OFFSETS


class Unknown(Exception):
    """An argument or result cannot be cached."""


class New(NamedTuple):
    """A tensor with memory of its own."""

    sizes: tuple[Any, ...]
    strides: tuple[Any, ...]
    dtype: torch.dtype
    device: torch.device


class View(NamedTuple):
    """A tensor in the memory of an argument."""

    argument: int
    sizes: tuple[Any, ...]
    strides: tuple[Any, ...]
    offset: Any


class Argument(NamedTuple):
    """An argument itself."""

    argument: int


class Several(NamedTuple):
    """A tuple or list of results."""

    kind: type
    items: tuple[Any, ...]


NOTHING = ("no tensor",)


class FakeCallCache:
    """Results of calls on the fake tensors of `mode`. Not thread-safe."""

    def __init__(self, mode: Any) -> None:
        self.mode = mode
        self._entries: dict[Any, Any] = {}
        self._facts: Any = None
        self._has_offsets = True  # whether the key that is being made holds offsets

    def call(self, target: Any, run: Callable[[], Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return the result of `run()`, which calls `target` (a function, or a method's name) with these arguments on fake tensors."""
        tensors: list[FakeTensor] = []
        try:
            key = self._key(target, args, kwargs, tensors) if settings_are_plain() else None
        except Unknown:
            key = None
        if key is None or not (tensors or isinstance(target, torch._ops.OpOverload)):
            return run()
        self._clear_if_facts_changed()
        found = self._entries.get(key)
        if found is None and tensors:
            found = self._from_shape_function(target, args, kwargs, tensors)
            if not isinstance(found, View) or reads_offsets(target):
                self._entries[key] = found
        if found is not None:
            return self._make(found, tensors)
        versions = [t._version for t in tensors]
        result = run()
        try:
            entry = self._entry_for(target, result, tensors)
            is_unchanged = versions == [t._version for t in tensors] and key == self._key(target, args, kwargs, [])
        except Unknown:
            return result
        if is_unchanged:
            self._clear_if_facts_changed()
            self._entries[key] = entry
        return result

    # -- keys ---------------------------------------------------------------------------------------------------------

    def _key(
        self,
        target: Any,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        tensors: list[FakeTensor],
        *,
        with_offsets: bool = False,
    ) -> Any:
        """Return all that the result depends on. Adds each tensor among the arguments to `tensors` once. Raises Unknown."""
        self._check(target, args)
        self._has_offsets = with_offsets or reads_offsets(target)
        parts = [self._part(arg, tensors) for arg in args]
        named = [(name, self._part(arg, tensors)) for name, arg in kwargs.items()]
        return target, self._settings(tensors), tuple(parts), tuple(named)

    def _check(self, target: Any, args: Sequence[Any]) -> None:
        """Raise Unknown for calls that a cache of this kind does not keep."""

    def _settings(self, tensors: list[FakeTensor]) -> Any:
        """The part of a key for what is set in this process, for a call with these tensors among its arguments."""
        return torch.is_grad_enabled(), is_differentiable(), None if tensors else torch.get_default_dtype()

    def _part(self, value: Any, tensors: list[FakeTensor]) -> Any:
        kind = type(value)
        if id(kind) in _PLAIN:
            return kind, value  # the type keeps 1, True and 1.0 apart
        if kind is FakeTensor:
            position = _position(value, tensors)
            if position is not None:
                return FakeTensor, position
            tensors.append(value)
            return self._metadata(value)
        if id(kind) in _SYMBOLIC:
            return kind, self._symbolic(value)
        if id(kind) in _SEQUENCES:
            return kind, tuple([self._part(item, tensors) for item in value])
        if kind is slice:
            return kind, tuple([self._part(part, tensors) for part in (value.start, value.stop, value.step)])
        raise Unknown

    def _symbolic(self, value: Any) -> Any:
        """The part of a key for a symbolic number. Raises Unknown."""
        return _value(value)

    def _metadata(self, t: FakeTensor) -> tuple[Any, ...]:
        if t.fake_mode is not self.mode or t.constant is not None or t.layout is not torch.strided or t.is_inference():
            raise Unknown
        sizes: Any = t.shape
        strides: Any = t.stride()
        offset: Any = t.storage_offset()
        if t._has_symbolic_sizes_strides:  # type: ignore[attr-defined]
            sizes, strides, offset = tuple(map(_value, sizes)), tuple(map(_value, strides)), _value(offset)
        if not self._has_offsets:
            offset = None
        # The dispatch keys tell conjugated, negated and other special tensors.
        keys = torch._C._dispatch_keys(t).raw_repr()
        return t.dtype, t.fake_device, keys, t.requires_grad, sizes, strides, offset

    def _clear_if_facts_changed(self) -> None:
        adapter = self.mode.shape_env
        facts = None if adapter is None else (adapter, adapter.env.learnt)
        if facts != self._facts:
            self._facts = facts
            self._entries.clear()

    # -- results ------------------------------------------------------------------------------------------------------

    def _from_shape_function(
        self, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], tensors: list[FakeTensor]
    ) -> Any:
        """Return the cache entry for the result that a shape function gives, or None where none answers."""
        shape_inference = _shape_inference()
        found = shape_inference.infer(target, args, kwargs)
        if found is None:
            return None
        origin = found if isinstance(found, torch.Tensor) else getattr(found, "tensor", tensors[0])
        position = _position(origin, tensors)
        assert position is not None, "a shape function returned a tensor that is no argument"
        if origin is found:
            return Argument(position)
        sizes, strides = (tuple(map(self._wrap, numbers)) for numbers in (found.sizes, found.strides))
        if isinstance(found, shape_inference.Fresh):
            return New(sizes, strides, found.dtype, origin.fake_device)
        return View(position, sizes, strides, self._wrap(found.offset))

    def _wrap(self, n: Any) -> Any:
        return n if type(n) is int else self.mode.shape_env.wrap(n)

    def _entry_for(self, target: Any, result: Any, tensors: list[FakeTensor]) -> Any:
        """Return the entry for the result of a call of `target`. Raises Unknown, also for a view where the key holds no offsets."""
        self._has_offsets = True
        entry = self._entry_of(result, tensors)
        if not reads_offsets(target) and any(
            isinstance(part, View) for part in (entry.items if isinstance(entry, Several) else (entry,))
        ):
            raise Unknown
        return entry

    def _entry_of(self, result: Any, tensors: list[FakeTensor]) -> Any:
        """Return the cache entry from which `_make` rebuilds such a result. Raises Unknown."""
        kind = type(result)
        if result is None:
            return NOTHING
        if kind in (tuple, list):
            items = tuple([self._entry_of(item, tensors) for item in result])
            # Two new results that share memory would be rebuilt in two storages.
            fresh = [storage_of(t) for t, item in zip(result, items, strict=True) if isinstance(item, New)]
            if not items or len(set(fresh)) < len(fresh) or any(isinstance(item, Several) for item in items):
                raise Unknown
            return Several(kind, items)
        if kind is not FakeTensor or result.layout is not torch.strided:
            raise Unknown
        position = _position(result, tensors)
        if position is not None:
            return Argument(position)
        if result.requires_grad:  # `_make` gives a tensor without a history
            raise Unknown
        entry = self._tensor_entry(result, tensors)
        if self._metadata(self._make(entry, tensors)) != self._metadata(result):
            raise Unknown
        return entry

    def _tensor_entry(self, result: FakeTensor, tensors: list[FakeTensor]) -> Any:
        sizes, strides, offset = tuple(result.shape), tuple(result.stride()), result.storage_offset()
        given = {
            s for t in tensors for n in (*t.shape, *t.stride(), t.storage_offset()) for s in free_symbols(_value(n))
        }
        if any(not free_symbols(_value(n)) <= given for n in (*sizes, *strides, offset)):
            raise Unknown
        storages = [storage_of(t) for t in tensors]
        own = storage_of(result)
        if own not in storages:
            if _value(offset) != 0 or _value(result.untyped_storage().nbytes()) != _bytes_needed(result):
                raise Unknown
            return New(sizes, strides, result.dtype, result.fake_device)
        argument = storages.index(own)
        is_plain = result.dtype == tensors[argument].dtype and not is_differentiable()
        # `x.data` counts its own writes, and what `_make` makes counts those of `x`, where PyTorch has views count.
        counts_alike = torch._C._dispatch_tls_is_dispatch_key_excluded(_AUTOGRAD) or share_version_counter(
            result, tensors[argument]
        )
        if not (is_plain and counts_alike) or len(set(storages)) < len(storages):
            raise Unknown
        return View(argument, sizes, strides, offset)

    def _make(self, entry: Any, tensors: list[FakeTensor]) -> Any:
        kind = type(entry)
        if kind is New:
            with torch._C._DisableTorchDispatch():  # the mode itself may be active
                made = torch.empty_strided(entry.sizes, entry.strides, dtype=entry.dtype, device="meta")
                return made_fake(self.mode, made, entry.device)
        if kind is View:
            source = tensors[entry.argument]
            with in_kernel_invocation_manager(self.mode):
                alias = torch.as_strided(source, entry.sizes, entry.strides, entry.offset)
            return made_fake(self.mode, alias, source.fake_device)
        if kind is Argument:
            return tensors[entry.argument]
        if entry is NOTHING:
            return None
        return entry.kind([self._make(item, tensors) for item in entry.items])


def settings_are_plain() -> bool:
    """Whether grad mode is the only setting that affects calls: no inference mode, autocast, or function mode is active."""
    return not (
        torch.is_inference_mode_enabled() or torch._C._is_any_autocast_enabled() or torch._C._len_torch_function_stack()
    )


def is_differentiable() -> bool:
    """Whether autograd sees calls, and so the relation of a view to what it views."""
    return torch.is_grad_enabled() and not torch._C._dispatch_tls_is_dispatch_key_excluded(_AUTOGRAD)


def _value(n: Any) -> Any:
    """Return a number, or the expression under a symbolic one. Raises Unknown."""
    if id(type(n)) in _NUMBERS:
        return n
    value = getattr(n.node, "value", None)
    if value is None:
        raise Unknown
    return value


def _position(tensor: torch.Tensor, tensors: Sequence[torch.Tensor]) -> int | None:
    for position, other in enumerate(tensors):
        if other is tensor:
            return position
    return None


def storage_of(t: torch.Tensor) -> int:
    """Equal for tensors that share memory."""
    return t.untyped_storage()._cdata


def _bytes_needed(t: torch.Tensor) -> Any:
    """Return the number of bytes that a tensor without offset needs."""
    sizes, strides = [_value(n) for n in t.shape], [_value(n) for n in t.stride()]
    if 0 in sizes:
        return 0
    last: Any = 0
    for size, stride in zip(sizes, strides, strict=True):
        last = last + (size - 1) * stride
    return (last + 1) * t.element_size()
