"""What ``TREADLE_LOGS=name,name`` prints to standard error, every name with a sentence of help.

``TREADLE_LOGS=help`` prints the table. `set_logs` does the same from Python.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Mapping

from .errors import TreadleWarning, UnknownName, unknown_name

LOGS: Mapping[str, str] = {
    "graph_code": "Python code of every traced graph",
    "aten_code": "Python code of every functional ATen graph",
    "graph_sizes": "shape and dtype of every value in a traced graph",
    "guards": "the guards of every compiled entry, with the source text they come from",
    "recompiles": "why a function that was compiled is compiled again",
    "graph_breaks": "why and where a graph ended before its function did",
    "skips": "functions that are left to Python, and why",
    "bytecode": "original and replacement bytecode of every entry",
    "output_code": "generated kernels and the host function that calls them",
    "eager": "graphs that run in eager, and why",
    "specialised_shapes": "sizes of dynamic graphs that have got kernels of their own",
    "timing": "seconds of every phase of a compile",
}

ENVIRONMENT = "TREADLE_LOGS"

_enabled: set[str] = set()


def set_logs(*names: str) -> None:
    """Turn exactly these logs on ("all": every one). Raises UnknownName."""
    wanted = set(LOGS) if "all" in names else set(names)
    for name in wanted:
        if name not in LOGS:
            raise unknown_name("log", name, [*LOGS, "all"])
    _enabled.clear()
    _enabled.update(wanted)


def is_on(name: str) -> bool:
    return name in _enabled


def emit(name: str, text: str | Callable[[], str]) -> None:
    """Print `text` (or what it returns, called only then) if the log is on."""
    if name in _enabled:
        body = text() if callable(text) else text
        prefix = f"[treadle:{name}] "
        sys.stderr.write("".join(f"{prefix}{line}\n" for line in body.rstrip().splitlines()))


def help_text() -> str:
    return "\n".join(f"{name:<14}{sentence}" for name, sentence in LOGS.items())


def read_environment() -> None:
    """Turn on what ``$TREADLE_LOGS`` names; an unknown name is a warning, since the program itself did nothing wrong."""
    names = [name.strip() for name in os.environ.get(ENVIRONMENT, "").split(",") if name.strip()]
    if "help" in names:
        sys.stderr.write(help_text() + "\n")
        names.remove("help")
    try:
        set_logs(*names)
    except UnknownName as unknown:
        warnings.warn(f"${ENVIRONMENT}: {unknown}", TreadleWarning, stacklevel=2)
        set_logs(*[name for name in names if name in LOGS])
