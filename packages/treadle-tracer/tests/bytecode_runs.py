"""Running functions whole and in parts, and comparing what they did."""

from __future__ import annotations

import types
from collections.abc import Callable

import bytecode_subjects
from bytecode_prefix import UNBOUND, Broken, prefix

from treadle_tracer.bytecode import (
    CodeModel,
    SlotKind,
    continuation,
    live_locals,
    restart_index,
    stack_kinds,
    why_not_cut,
)


def function_like(code: types.CodeType, original: types.FunctionType) -> types.FunctionType:
    function = types.FunctionType(
        code, original.__globals__, original.__name__, original.__defaults__, original.__closure__
    )
    function.__kwdefaults__ = original.__kwdefaults__
    return function


def chain(error: BaseException | None) -> list[object]:
    """An exception with all that it was raised in or from, as plain data."""
    if error is None:
        return []
    inner = [chain(e) for e in error.exceptions] if isinstance(error, BaseExceptionGroup) else []
    return [type(error).__name__, str(error), chain(error.__cause__), chain(error.__context__), inner]


def plain(value: object) -> object:
    """A value in a form that compares by contents."""
    if isinstance(value, bytecode_subjects.Base):
        return type(value).__name__, value.__dict__
    if isinstance(value, BaseException):
        return chain(value)
    return list(value) if isinstance(value, range) else value


def outcome(run: Callable[..., object], inputs: str) -> tuple[object, ...]:
    """What a call returns or raises, and what it did to its arguments."""
    arguments = eval(inputs, vars(bytecode_subjects))
    try:
        result = ("returned", plain(run(*arguments)))
    except Exception as error:
        result = ("raised", chain(error))
    return *result, [plain(a) for a in arguments]


def run_cut(model: CodeModel, index: int, original: types.FunctionType) -> tuple[Callable[..., object], list[int]]:
    """The function in two parts, cut before ``index``; the list counts how often the second part was needed."""
    first = function_like(prefix(model, index), original)
    start = restart_index(model, index)
    kinds = stack_kinds(model)[start]
    continued = [0]

    def run(*args: object) -> object:
        result = first(*args)
        if not isinstance(result, Broken):
            return result
        continued[0] += 1
        known = [
            SlotKind.NULL if value is UNBOUND else SlotKind.VALUE if kind is SlotKind.EITHER else kind
            for kind, value in zip(kinds, result.stack, strict=True)
        ]
        for kind, value in zip(known, result.stack, strict=True):
            assert (kind is SlotKind.NULL) == (value is UNBOUND)
        live = live_locals(model, start)
        values = dict(zip(live, result.variables, strict=True))
        bound = [name for name in live if values[name] is not UNBOUND]
        rest = continuation(model, index, variables=bound, stack=known)
        assert rest.variables == tuple(bound)
        second = function_like(rest.code, original)
        second.__defaults__ = second.__kwdefaults__ = None
        return second(*[values[name] for name in rest.variables], *[result.stack[slot] for slot in rest.stack])

    return run, continued


def cuts(model: CodeModel) -> list[int]:
    return [index for index in range(len(model.instructions)) if why_not_cut(model, index) is None]
