"""Objects whose class has a `__del__` method of the program: Python makes them, so that it frees them where the program drops them."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING

from treadle_tracer.by_identity import IdentitySet
from treadle_tracer.class_facts import mro_of
from treadle_tracer.errors import Unsupported
from treadle_tracer.values.class_lookup import find_in_mro

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext


HOLDING_ITERATORS = IdentitySet((enumerate, zip, map, filter))
"""Classes of iterators that hold what they iterate over, which dies with them."""


class MadeWithFinalizer(Unsupported):
    """The break at an object that Python must make. Only the compiled frame is left: the arguments of continuations of called functions
    would live longer than the calls.

    is_result: the call in the compiled frame gives nothing but this object.
    """

    def __init__(self, tx: TraceContext, cls: type):
        super().__init__("finalizer", f"{cls.__qualname__}.__del__")
        self.most_frames = 1
        called = [frame for frame in tx.frames[1:] if frame.function_code.co_name != "__new__"]
        self.is_result = all(frame.next_opname == "RETURN_VALUE" for frame in called)


def has_finalizer(cls: type) -> bool:
    """Whether instances have a `__del__` written in Python. Guards nothing."""
    return isinstance(find_in_mro(mro_of(cls), "__del__")[0], types.FunctionType)
