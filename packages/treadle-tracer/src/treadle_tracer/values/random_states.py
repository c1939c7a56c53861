"""Copying the state of a generator of Python's `random` within a microsecond: its methods would take ten.

The state of CPython's `_random.Random` stands in the object itself, a position and 624 words (Modules/_randommodule.c, RandomObject). Where
its size says otherwise, the methods copy it.
"""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable
from typing import Any

_BASE: Any = random.Random.__base__
_HEADER = object.__basicsize__
_SIZE = _BASE.__basicsize__ - _HEADER
_SIZE_OF_STATE = 4 + 4 * 624
# Under the lock of the interpreter: another thread may be drawing.
_move = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)(
    ctypes.cast(ctypes.memmove, ctypes.c_void_p).value or 0
)


def _copy_by_methods(target: random.Random, source: random.Random) -> None:
    _BASE.setstate(target, _BASE.getstate(source))


def _copy_memory(target: random.Random, source: random.Random) -> None:
    _move(id(target) + _HEADER, id(source) + _HEADER, _SIZE_OF_STATE)


def _is_in_the_object() -> bool:
    """Whether the state stands in the object, and nothing else does."""
    if not _SIZE_OF_STATE <= _SIZE < _SIZE_OF_STATE + 8:  # it is padded to 8 bytes
        return False
    source, target = random.Random(1), random.Random(2)
    source.random()
    _copy_memory(target, source)
    return target.getstate() == source.getstate() and target.random() == source.random()


copy_state: Callable[[random.Random, random.Random], None] = _copy_memory if _is_in_the_object() else _copy_by_methods
"""Give the first generator the state of the second, but for what `gauss` keeps."""


def copy_twister(target: Any, source: Any) -> None:
    """Give the first Mersenne twister of NumPy the state of the second. Its place is told by NumPy (`BitGenerator.ctypes`): 624 words and a
    position."""
    _move(target.ctypes.state_address, source.ctypes.state_address, _SIZE_OF_STATE)
