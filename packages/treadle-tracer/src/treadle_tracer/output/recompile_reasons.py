"""Recompile reasons: why the entries of a code object do not serve a call. They say what was expected, what was found, which line decided.

This runs only when a call misses, so it may be slow.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

import treadle_frame

from ..dynamic import DynamicSources, strides_by
from ..source import PathKeys
from .call_changes import follow
from .guard_kinds import KINDS, is_asked_last, short_found

if TYPE_CHECKING:
    from .entry import Payload
    from .guards import DynamicNumbers, TensorGuard

_SHOWN = 3  # differences that a reason lists
_AT_ONCE = 64  # checks that are tried together: nearly all of them hold


def recompile_reason(entries: Sequence[Any], frame: Any, dynamic: DynamicSources) -> str:
    """What the nearest entry expects and this call does not give. dynamic: the sizes and numbers that are symbols from now on."""
    found = [_differences(entry.payload, failing_checks(entry, frame), frame, dynamic) for entry in entries]
    # Of equally near entries take the one that serves most sizes.
    texts = min(zip(found, map(_generality, entries), strict=True), key=lambda pair: (_distance(pair[0]), -pair[1]))[0]
    shown = "; ".join(texts[:_SHOWN]) + (f"; and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else "")
    if not shown:
        return "no guard fails any more"
    return shown if len(entries) == 1 else f"{shown} (the nearest of {len(entries)} compiled versions)"


def differs_in_kind(entry: Any, frame: Any) -> bool:
    """Whether a call differs from an entry in more than sizes, strides and numbers: no entry would serve both."""
    payload, keys_of = entry.payload, PathKeys().of
    tensors = {keys_of(guard.source.path): guard for guard in payload.tensors}
    numbers = {keys_of(source.path) for source, _ in payload.numbers}
    for check in failing_checks(entry, frame):
        keys = _prefixes(keys_of(check.path))
        owner = next((tensors[key] for key in keys if key in tensors), None)
        if owner is not None and owner.identity is None:
            found = follow(owner.source.path, frame)
            if type(found) is not owner.kind or found.dtype != owner.dtype or found.dim() != len(owner.sizes):
                return True
        elif keys[0] not in numbers and not _is_about_numbers(payload, check):
            return True
    return False


def _is_about_numbers(payload: Payload, check: Any) -> bool:
    """Whether a check is one of the sizes and numbers of a dynamic entry."""
    return payload.dynamic is not None and (check.op == "native_tensor" or payload.dynamic.is_guarded_by(check))


def _distance(texts: Sequence[str]) -> int:
    """A different size counts less than a different dtype, type or object."""
    return sum(1 if ".size()[" in text else 2 for text in texts)


def _generality(entry: Any) -> int:
    return sum(len(guard.dynamic_dims) for guard in entry.payload.tensors)


def failing_checks(entry: Any, frame: Any) -> list[Any]:
    """The checks of an entry's guard that do not hold, in order, none below a path whose check does not hold: an object of another class
    than expected may run code when it is looked into. Checks that run code of the program are tried where all others hold.
    """
    cells = dict(zip(frame.code.co_freevars, frame.closure or (), strict=True))
    scope = (frame.locals, frame.globals, cells, frame.builtins)

    checks, keys = entry.guard.checks, PathKeys()

    def failing(checks: Sequence[Any]) -> list[Any]:
        found: list[Any] = []
        failed: set[Any] = set()

        def is_tried(check: Any) -> bool:
            if not failed:
                return True
            return failed.isdisjoint(_above(keys.of(check.path))) and not KINDS[check.op].on_several_paths

        for begin in range(0, len(checks), _AT_ONCE):
            part = list(filter(is_tried, checks[begin : begin + _AT_ONCE]))
            if treadle_frame.GuardProgram(part).check(*scope):
                continue
            for check in part:
                if is_tried(check) and not treadle_frame.GuardProgram([check]).check(*scope):
                    failed.add(keys.of(check.path))
                    found.append(check)
        return found

    first = [check for check in checks if not is_asked_last(check)]
    return failing(first) or failing(list(filter(is_asked_last, checks)))


def _differences(payload: Payload, checks: Sequence[Any], frame: Any, dynamic: DynamicSources) -> list[str]:
    """One text per difference, each once."""
    keys_of = PathKeys().of
    tensors = {keys_of(guard.source.path): guard for guard in payload.tensors}
    numbers = {keys_of(source.path) for source, dims in dynamic.items() if not dims}
    texts: dict[str, None] = {}
    for check in checks:
        keys = _prefixes(keys_of(check.path))
        kind = KINDS[check.op]
        owner = next((tensors[key] for key in keys if key in tensors), None)
        found: list[str] = []
        if owner is not None and owner.identity is None and not kind.on_numbers:
            strides = dynamic.strides.get(owner.source, ())
            found = _tensor_differences(owner, frame, dynamic.get(owner.source, {}), strides)
        numbers_of = payload.dynamic
        if not found and numbers_of is not None and _is_about_numbers(payload, check):
            found = _broken_decisions(numbers_of, frame)
        if not found:
            is_input = owner is not None and kind.is_identity and owner.source in dynamic.inputs
            found = [
                kind.failure(check.reason, check.arg, follow(check.path, frame))
                + (" (an input from now on)" if is_input else _from_now_on(keys[0] in numbers))
            ]
        texts.update(dict.fromkeys(found))
    return list(texts)


def _prefixes(key: tuple[Any, ...]) -> list[Any]:
    """The key of a path and of the paths above it, longest first."""
    return [key[:end] for end in range(len(key), 0, -1)]


def _above(key: tuple[Any, ...]) -> list[Any]:
    """The keys of the paths above a path."""
    return [key[:end] for end in range(1, len(key))]


def _from_now_on(is_dynamic: bool) -> str:
    return " (dynamic from now on)" if is_dynamic else ""


# ---- tensors


def _tensor_differences(
    guard: TensorGuard, frame: Any, dynamic: Mapping[int, Any], free_strides: Collection[int]
) -> list[str]:
    """The first that differs: type, dtype, device, layout, rank; sizes; strides and requires_grad."""
    text, found = guard.source.text, follow(guard.source.path, frame)
    if type(found) is not guard.kind:
        return [f"{text}: expected {_a_tensor(guard)}, found {short_found(found)}"]
    for name, expected in (("dtype", guard.dtype), ("device", guard.device), ("layout", guard.layout)):
        if getattr(found, name) != expected:
            return [f"{text}.{name}: expected {expected}, found {getattr(found, name)}"]
    if found.dim() != len(guard.sizes):
        return [f"{text}.dim(): expected {len(guard.sizes)}, found {found.dim()}"]
    sizes = [
        f"{text}.size()[{dim}]: expected {expected}, found {size}{_from_now_on(dim in dynamic and size > 0)}"
        for dim, (expected, size) in enumerate(zip(guard.sizes, found.shape, strict=True))
        if dim not in guard.dynamic_dims and size != expected
    ]
    if sizes:
        return sizes
    empty = [
        f"{text}.size()[{dim}] is 0, which is compiled on its own" for dim in guard.dynamic_dims if not found.shape[dim]
    ]
    return empty or _other_differences(guard, found, _from_now_on(bool(free_strides)))


def _other_differences(guard: TensorGuard, found: torch.Tensor, more: str) -> list[str]:
    text = guard.source.text
    if found.requires_grad != guard.requires_grad:
        return [f"{text}.requires_grad: expected {guard.requires_grad}, found {found.requires_grad}"]
    if guard.strides is None:
        return []
    strides = tuple(found.stride())
    if guard.rules is None:
        same = strides == guard.strides
        return [] if same else [f"{text}.stride(): expected {guard.strides}, found {strides}{more}"]
    if strides_by(guard.rules, found.shape, strides.__getitem__) == list(strides):
        return []
    return [
        f"{text} has strides {strides} at sizes {tuple(found.shape)}, another layout than strides {guard.strides} at sizes {guard.sizes}"
    ]


def _a_tensor(guard: TensorGuard) -> str:
    return f"a {guard.kind.__name__} of {str(guard.dtype).removeprefix('torch.')}"


# ---- decisions about sizes


def _broken_decisions(dynamic: DynamicNumbers, frame: Any) -> list[str]:
    """The recorded decisions that do not hold for this call, each with the line that needed it."""
    from treadle_shapes.floats import holds

    values = [follow(source.path, frame) for source in dynamic.sources]
    if not all(isinstance(value, (int, float)) for value in values):
        return []
    numbers = dict(zip(dynamic.symbols, values, strict=True))
    found = [
        f"{text} is {value}, outside {list(symbol.range)}"
        for symbol, value, text in zip(dynamic.symbols, values, dynamic.texts, strict=True)
        if isinstance(value, int) and value not in symbol.range
    ]
    for decision in dynamic.decisions:
        if not holds(decision.expr, numbers):
            named = [
                (text, numbers[s])
                for s, text in zip(dynamic.symbols, dynamic.texts, strict=True)
                if s in decision.expr.free_symbols
            ]
            but = (
                f"it is {named[0][1]}"
                if len(named) == 1
                else " and ".join(f"{text} is {value}" for text, value in named)
            )
            found.append(f"{dynamic.describe(decision.expr)} (decided at {decision.where}), but {but}")
    if not found:
        positions = dynamic.guard.positions_of_one(values)
        why = dynamic.guard.refused.get(positions)
        does = f"the graph does something else ({why})" if why else "the graph has not been tried"
        found = [f"{dynamic.texts[position]} is 1, and at that size {does}" for position in positions]
    return found
