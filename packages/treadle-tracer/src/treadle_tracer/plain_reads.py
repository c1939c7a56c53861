"""Objects of which a function reads nothing that could be a tensor, though tensors hang on them.

    def plan(self, rows):                            # a method of a module
        if not self.training: ...                    # a bool
        return [self.row(n) for n in range(rows)]    # a method of which the same is true

Such a function computes with no tensor. The answer rests on what the bytecode loads from the object; no code of the program runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import CodeType, FunctionType
from typing import Any

from .bytecode import read
from .bytecode.opcodes import PAIR_PARTS
from .class_facts import mro_of, namespace_of, own_dict

_MOST_METHODS = 8
_READS = ("LOAD_ATTR", "LOAD_METHOD")
_MISSING = object()


class PlainReads:
    """Asks it of the methods that a function calls on the object, too. may_hold_tensors: of what it finds there, and of names."""

    def __init__(self, may_hold_tensors: Callable[[Any], bool]):
        self._may_hold_tensors = may_hold_tensors
        self._seen: set[CodeType] = set()

    def are_all(self, code: CodeType, name: str, obj: Any) -> bool:
        """Whether all that a function does with `obj`, its argument of this name, is to read what is no tensor from it."""
        attributes = _attributes_read(code, name)
        if attributes is None or len(self._seen) > _MOST_METHODS:
            return False
        return all(self._is_plain(obj, attribute) for attribute in attributes)

    def _is_plain(self, obj: Any, attribute: str) -> bool:
        found = (own_dict(obj) or {}).get(attribute, _MISSING)
        if found is not _MISSING:
            return not self._may_hold_tensors(found)
        spaces = map(namespace_of, mro_of(type(obj)))
        found = next((space[attribute] for space in spaces if attribute in space), _MISSING)
        if type(found) is staticmethod:
            return type(found.__func__) is FunctionType and self._is_plain_method(found.__func__, None)
        if type(found) is FunctionType:
            return self._is_plain_method(found, obj)
        return type(found) in (bool, int, float, str)

    def _is_plain_method(self, method: FunctionType, obj: Any) -> bool:
        """obj: what its first argument is; None for a method without."""
        code = method.__code__
        if code in self._seen:
            return True
        self._seen.add(code)
        names = [method.__globals__[name] for name in code.co_names if name in method.__globals__]
        if code.co_freevars or any(map(self._may_hold_tensors, names)):
            return False
        return obj is None or (code.co_argcount > 0 and self.are_all(code, code.co_varnames[0], obj))


def _attributes_read(code: CodeType, name: str) -> set[str] | None:
    """The attributes that a function reads of a local variable; None where it does something else with it."""
    if name in code.co_cellvars or "__class__" in code.co_freevars:  # `super()` finds the object by itself
        return None
    found = set[str]()
    steps = list(_steps(code))
    for (opname, variable), (reader, attribute) in zip(steps, [*steps[1:], ("", None)], strict=True):
        if variable != name or "_FAST" not in opname:
            continue
        if not opname.startswith("LOAD_FAST") or reader not in _READS:
            return None
        found.add(attribute)
    return found


def _steps(code: CodeType) -> Iterator[tuple[str, Any]]:
    """(name, operand) of each instruction, and of both parts of a superinstruction."""
    for instruction in read(code).instructions:
        parts = PAIR_PARTS.get(instruction.opname)
        if parts is None:
            yield instruction.opname, instruction.argval
        else:
            yield from zip(parts, instruction.argval, strict=True)


__all__ = ["PlainReads"]
