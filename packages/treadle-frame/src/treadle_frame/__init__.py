"""The frame evaluation hook (PEP 523): per-code caches of guarded replacement code, checked and run in C."""

from __future__ import annotations

from treadle_frame.__about__ import __version__
from treadle_frame._core import (
    RUN_CACHED,
    RUN_ONCE,
    SKIP,
    SKIP_BELOW,
    Entry,
    FrameInfo,
    GuardProgram,
    add_entry,
    counters,
    dispatcher,
    entries,
    get_handler,
    is_installed,
    is_skipped,
    native_memory,
    native_numbers,
    remove_entry,
    reset,
    set_handler,
    skip,
    unskip,
)
from treadle_frame.errors import EvaluatorError, EvaluatorWarning, GuardError, LayoutError, StaleGuardWarning
from treadle_frame.guards import Check, EqualItems, NativeImage, NativeTensorCheck

__all__ = [
    "RUN_CACHED",
    "RUN_ONCE",
    "SKIP",
    "SKIP_BELOW",
    "Check",
    "Entry",
    "EqualItems",
    "EvaluatorError",
    "EvaluatorWarning",
    "NativeImage",
    "NativeTensorCheck",
    "FrameInfo",
    "GuardError",
    "GuardProgram",
    "LayoutError",
    "StaleGuardWarning",
    "__version__",
    "add_entry",
    "counters",
    "dispatcher",
    "entries",
    "get_handler",
    "is_installed",
    "is_skipped",
    "native_memory",
    "native_numbers",
    "remove_entry",
    "reset",
    "set_handler",
    "skip",
    "unskip",
]
