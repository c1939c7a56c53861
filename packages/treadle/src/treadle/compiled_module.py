"""The module that ``treadle.compile(module)`` returns: it shares everything with the original, but calling it runs compiled code.

Its class is a new subclass of the original's class with the same name. Its ``__dict__`` *is* the original's, so both share parameters,
buffers, ``training``, hooks and attributes, and have the same ``state_dict`` keys. Copies and pickles are made of the original.
"""

from __future__ import annotations

import copy
import copyreg
from collections.abc import Callable
from typing import Any

import torch

# Slots of the subclass, which are not in the shared __dict__.
_ORIGINAL = "_treadle_original"
_RUN = "_treadle_run"


def _call(self: Any, /, *args: Any, **kwargs: Any) -> Any:
    return self._treadle_run(self._treadle_original, *args, **kwargs)


def _reduce_ex(self: Any, protocol: Any) -> Any:
    """The original's reduction, in a form for which pickle does not compare the class with ours."""
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
    """The original of a compiled module, or `module` itself."""
    return getattr(module, _ORIGINAL) if is_compiled_module(module) else module


def compiled_module(original: torch.nn.Module, run: Callable[..., Any]) -> torch.nn.Module:
    """A module that shares everything with `original`, but whose call is ``run(original, *args, **kwargs)``."""
    cls = type(original)
    names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    metaclass: Any = type(cls)
    subclass = metaclass(cls.__name__, (cls,), {**_BEHAVIOUR, **names})
    compiled = torch.nn.Module.__new__(subclass)  # not the class's own, which may make something else (fully_shard)
    object.__setattr__(compiled, "__dict__", original.__dict__)
    object.__setattr__(compiled, _ORIGINAL, original)
    object.__setattr__(compiled, _RUN, run)
    return compiled
