"""The module that ``treadle.compile(module)`` returns: the same module in every respect, except that calling it runs compiled code.

Its class is a fresh subclass of the module's class with the same name, and its ``__dict__`` *is* the module's, so parameters, buffers,
``training``, hooks and attributes are one and the same whichever of the two is changed; ``isinstance`` and ``state_dict`` keys are the
original's. Copies and pickles are made of the original.
"""

from __future__ import annotations

import copy
import copyreg
from collections.abc import Callable
from typing import Any

import torch

# Slots of the subclass: kept out of the shared __dict__.
_ORIGINAL = "_treadle_original"
_RUN = "_treadle_run"


def _call(self: Any, /, *args: Any, **kwargs: Any) -> Any:
    return self._treadle_run(self._treadle_original, *args, **kwargs)


def _reduce_ex(self: Any, protocol: Any) -> Any:
    """What the original says of itself, in a form that does not have pickle compare the class with ours."""
    reduced = self._treadle_original.__reduce_ex__(protocol)
    if isinstance(reduced, tuple) and reduced[0] is getattr(copyreg, "__newobj__") and len(reduced[1]) == 1:
        return getattr(copyreg, "_reconstructor"), (reduced[1][0], object, None), *reduced[2:]
    return reduced


def _reduce(self: Any) -> Any:
    return self._treadle_original.__reduce__()


def _copy(self: Any) -> Any:
    return copy.copy(self._treadle_original)


def _deepcopy(self: Any, memo: dict[int, Any]) -> Any:
    return copy.deepcopy(self._treadle_original, memo)


_BEHAVIOUR: dict[str, Any] = {
    "__slots__": (_ORIGINAL, _RUN),
    "__call__": _call,
    "__reduce_ex__": _reduce_ex,
    "__reduce__": _reduce,
    "__copy__": _copy,
    "__deepcopy__": _deepcopy,
}


def is_compiled_module(value: object) -> bool:
    return isinstance(value, torch.nn.Module) and _ORIGINAL in vars(type(value))


def original_of(module: torch.nn.Module) -> torch.nn.Module:
    """The module that a compiled module was made of, or `module` itself."""
    return getattr(module, _ORIGINAL) if is_compiled_module(module) else module


def compiled_module(original: torch.nn.Module, run: Callable[..., Any]) -> torch.nn.Module:
    """A module that is `original` but for its call, which is ``run(original, *args, **kwargs)``."""
    cls = type(original)
    names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    metaclass: Any = type(cls)
    subclass = metaclass(cls.__name__, (cls,), {**_BEHAVIOUR, **names})
    compiled = subclass.__new__(subclass)
    object.__setattr__(compiled, "__dict__", original.__dict__)
    object.__setattr__(compiled, _ORIGINAL, original)
    object.__setattr__(compiled, _RUN, run)
    return compiled
