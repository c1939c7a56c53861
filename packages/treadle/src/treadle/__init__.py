"""Treadle compiles PyTorch programs just in time: ``treadle.compile(model)``."""

from __future__ import annotations

from treadle_shapes import paused as _paused

with _paused():
    from treadle_shapes import ConstraintError

    from . import compiler
    from . import logs as _logs
    from .__about__ import __version__
    from .api import compile, disable, reset, set_logs  # noqa: A004
    from .backends import backend_names
    from .errors import OptionValue, TreadleWarning, UnknownName, WrongUse
    from .explain import Explanation, explain
    from .marks import mark_dynamic, mark_static, maybe_mark_dynamic
    from .options import config
    from .stats import Stats, stats

_logs.read_environment()

__all__ = [
    "ConstraintError",
    "Explanation",
    "OptionValue",
    "Stats",
    "TreadleWarning",
    "UnknownName",
    "WrongUse",
    "__version__",
    "backend_names",
    "compile",
    "compiler",
    "config",
    "disable",
    "explain",
    "mark_dynamic",
    "mark_static",
    "maybe_mark_dynamic",
    "reset",
    "set_logs",
    "stats",
]
