"""What is said when a graph has raised and Python has run the program itself."""

from __future__ import annotations

import warnings
from typing import Any

import torch

import treadle_frame

from ..errors import InternalError
from .deferred_asserts import assert_messages


def begin(error: BaseException) -> Any:
    """Turn the hook off for the program's own run, which is no reason to compile the functions it calls; gives the state before.

    KeyboardInterrupt and its like go on.
    """
    if not isinstance(error, Exception):
        raise error
    return treadle_frame.set_handler(None)


class Deoptimisation:
    """The two ways in which the program's own run can end, for the graph of the function `name`.

    An assert of the graph that fails may be the program's own (its exception then carries a note of what was assumed), or an
    assumption of the trace that the program does not need. A program with exception handlers may have caught what the graph
    raised. Anything else that a graph raises where the program does not is a bug of the backend or of treadle.
    """

    def __init__(self, name: str, gm: torch.fx.GraphModule, *, has_handlers: bool, raise_internal_errors: bool):
        self._name = name
        self._asserts = assert_messages(gm)
        self._raises = raise_internal_errors and not has_handlers
        self._has_warned = False

    def raised(self, state: Any, of_graph: Exception, of_program: BaseException) -> None:
        """Python has raised, too: say in the program's words what does not hold (PEP 678). state: of the hook before."""
        treadle_frame.set_handler(state)
        if str(of_graph) in self._asserts and str(of_graph) != str(of_program):
            of_program.add_note(f"treadle: {of_graph}")

    def succeeded(self, state: Any, of_graph: Exception) -> None:
        """Python has run the function without an error; its result is used. state: of the hook before."""
        treadle_frame.set_handler(state)
        what = f"the compiled graph of {self._name} raised {type(of_graph).__name__}: {of_graph}"
        is_assumption = str(of_graph) in self._asserts
        if self._raises and not is_assumption:
            raise InternalError("run", f"{what}; Python itself runs the function without an error") from of_graph
        if is_assumption and self._has_warned:
            return
        self._has_warned = True
        warnings.warn(
            f"treadle: {what}; Python itself runs the function without an error, and its result was used",
            RuntimeWarning,
            stacklevel=2,
        )
