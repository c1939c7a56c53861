"""What functions were compiled to before, so that `treadle.compile(f)(x)` in a loop compiles once.

Of each function the handler and the copied code object are kept, which has the entries; not the callable, which would keep the function
alive. Only for one and the same function object: closures made anew, and methods of other instances, are compiled for themselves.
"""

from __future__ import annotations

import types
import weakref
from typing import NamedTuple

from treadle_tracer import FrameCompiler


class Compiled(NamedTuple):
    handler: FrameCompiler
    source: types.CodeType
    copy: types.CodeType


_made: weakref.WeakKeyDictionary[types.FunctionType, dict[str, Compiled]] = weakref.WeakKeyDictionary()


def found(function: types.FunctionType, options: str) -> Compiled | None:
    """What the function was compiled to under these options; None if it was not, or has other code by now."""
    known = _made.get(function, {}).get(options)
    return known if known is not None and known.source is function.__code__ else None


def keep(function: types.FunctionType, options: str, compiled: Compiled) -> None:
    _made.setdefault(function, {})[options] = compiled
