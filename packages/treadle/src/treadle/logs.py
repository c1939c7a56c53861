"""Logs of treadle: standard `logging` loggers ``treadle.<name>``, one per kind of message, all off by default.

``TREADLE_LOGS=guards,recompiles`` or `set_logs` turns logs on and prints them to standard error, each line as ``[treadle:guards] ...``.
``TREADLE_LOGS=help`` lists them. To send a log elsewhere, attach a handler to its logger and set its level:

    logger = logging.getLogger("treadle.recompiles")
    logger.addHandler(logging.FileHandler("recompiles.txt"))
    logger.setLevel(logging.INFO)
"""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Callable, Mapping, Set

from .errors import TreadleWarning, UnknownName, unknown_name

LOGS: Mapping[str, str] = {
    "graph_code": "Python code of every traced graph",
    "graph_sizes": "shape and dtype of every value in a traced graph",
    "graph_breaks": "why and where a graph ends before its function does",
    "aten_code": "Python code of every functional ATen graph",
    "partition": "what every training graph saves for backward, and what backward computes again",
    "output_code": "generated kernels and the host function that calls them",
    "autotune": "what autotuning measured, and which variant is the fastest",
    "guards": "the guards of every compiled entry, with the source text they come from",
    "bytecode": "replacement bytecode of every compiled entry",
    "recompiles": "why a compiled function is compiled again",
    "skips": "functions that are not compiled, and why",
    "eager": "graphs that run in eager, and why",
    "shape_specialisation": "sizes for which a dynamic graph has got specialised kernels",
    "cuda_graphs": "graphs that are launched kernel by kernel although CUDA graphs are asked for, and why",
    "timing": "seconds of every phase of a compile",
}

ENVIRONMENT = "TREADLE_LOGS"

_ROOT = logging.getLogger("treadle")
_LOGGERS = {name: logging.getLogger(f"treadle.{name}") for name in LOGS}


class _Formatter(logging.Formatter):
    """Begins every line with the name of its log."""

    def format(self, record: logging.LogRecord) -> str:
        prefix = f"[{record.name.replace('.', ':', 1)}] "
        return "\n".join(prefix + line for line in record.getMessage().splitlines())


class _StandardErrorHandler(logging.Handler):
    """Prints the records of the loggers `printed` to whatever `sys.stderr` is at the time."""

    printed: Set[str] = frozenset()

    def emit(self, record: logging.LogRecord) -> None:
        if record.name in self.printed:
            sys.stderr.write(self.format(record) + "\n")


_HANDLER = _StandardErrorHandler()
_HANDLER.setFormatter(_Formatter())


def set_logs(*names: str) -> None:
    """Print exactly these logs to standard error ("all": every one; no name: none). Raises UnknownName."""
    wanted = set(LOGS) if "all" in names else set(names)
    for name in wanted:
        if name not in LOGS:
            raise unknown_name("log", name, [*LOGS, "all"])
    for name, logger in _LOGGERS.items():
        logger.setLevel(logging.INFO if name in wanted else logging.NOTSET)
    _HANDLER.printed = {_LOGGERS[name].name for name in wanted}
    _ROOT.removeHandler(_HANDLER)
    if wanted:
        _ROOT.addHandler(_HANDLER)
    _ROOT.propagate = not wanted  # no second print by handlers of the root logger


def is_on(name: str) -> bool:
    """Whether the log has a reader: it was turned on, or somebody has set the level of its logger."""
    return _LOGGERS[name].isEnabledFor(logging.INFO)


def emit(name: str, text: str | Callable[[], str]) -> None:
    """Log `text` at level INFO. A function is called for its text only if the log is on."""
    if is_on(name):
        _LOGGERS[name].info("%s", (text() if callable(text) else text).rstrip())


def help_text() -> str:
    """One line per log: its name and what it contains."""
    width = max(map(len, LOGS)) + 2
    return "\n".join(f"{name:<{width}}{sentence}" for name, sentence in LOGS.items())


def read_environment() -> None:
    """Turn on the logs that ``$TREADLE_LOGS`` names. An unknown name is a warning, because the program itself did nothing wrong."""
    if _ROOT.level == logging.NOTSET:
        _ROOT.setLevel(logging.WARNING)  # the root logger's level, set for the program's own messages, turns on no log
    names = [name.strip() for name in os.environ.get(ENVIRONMENT, "").split(",") if name.strip()]
    if "help" in names:
        sys.stderr.write(help_text() + "\n")
        names.remove("help")
    try:
        set_logs(*names)
    except UnknownName as unknown:
        warnings.warn(f"${ENVIRONMENT}: {unknown}", TreadleWarning, stacklevel=2)
        set_logs(*[name for name in names if name in LOGS])
