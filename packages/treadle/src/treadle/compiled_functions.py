"""What functions, methods and modules were compiled to before, so that `treadle.compile(f)(x)` in a loop compiles once.

Of each the handler and the code object are kept, which has the entries; not the callable, which would keep the function or module alive.
Only for one and the same object: closures made anew, and methods of other instances, are compiled for themselves.
"""

from __future__ import annotations

import types
import weakref
from collections.abc import MutableMapping
from typing import Any, NamedTuple

from torch.utils.weak import WeakIdKeyDictionary

from treadle_tracer import FrameCompiler


class Compiled(NamedTuple):
    """source: the code that `copy` is a copy of; function: the function of a method."""

    handler: FrameCompiler
    source: types.CodeType
    copy: types.CodeType
    function: weakref.ref[types.FunctionType] | None = None


_Key = tuple[str, int]  # options; id of the function of a method

_made: MutableMapping[Any, dict[_Key, Compiled]] = WeakIdKeyDictionary()


def found(
    owner: Any, options: str, source: types.CodeType, method: types.FunctionType | None = None
) -> Compiled | None:
    """What a function, a module, or the `method` of an object was compiled to under these options; None if it was not, or has other
    code by now."""
    try:
        known = _made.get(owner, {}).get((options, id(method)))
    except TypeError:  # it cannot be referred to weakly
        return None
    if known is None or known.source is not source:
        return None
    return known if known.function is None or known.function() is method else None


def keep(owner: Any, options: str, compiled: Compiled) -> None:
    method = None if compiled.function is None else compiled.function()
    try:
        _made.setdefault(owner, {})[options, id(method)] = compiled
    except TypeError:  # it cannot be referred to weakly
        return
