"""Deoptimisation: after a graph has raised, Python runs the whole function from its start.

So the program's own exception comes from the user's line, and `except` clauses see it. The graph must have written to nothing outside
itself (`graph_writes.why_not_deoptimise`), or write nothing before it raises (`raises_before_writing`). The code of one deoptimisation:

    graph raises error
    state = turn_hook_off(error)
    try: result = original(*args, **kwargs)
    except as raised: on_exception(state, error, raised); raise raised
    on_return(state, error); return result
"""

from __future__ import annotations

import inspect
import traceback
import warnings
from collections.abc import Callable
from types import CodeType
from typing import Any

import torch

import treadle_frame

from ..errors import InternalError, OtherPath
from .deferred_asserts import AssertFailed
from .emit import FrameCode


def turn_hook_off(error: BaseException) -> Any:
    """Turn the hook off, because the run that follows is no reason to compile the functions it calls; gives the state before.

    Raises `error` itself if the program must not run because of it.
    """
    if not may_run_again(error):
        raise error
    return treadle_frame.set_handler(None)


def may_run_again(error: BaseException) -> bool:
    """Whether the program may run from its start because a graph has raised this.

    It must not if it is no Exception (KeyboardInterrupt and the like), or comes from a hook of the program that autograd has called
    (`raised_by_hook`, docs/contracts.md, section 4), or comes after a write (`has_written`, section 3).
    """
    is_final = not isinstance(error, Exception) or hasattr(error, "raised_by_hook") or hasattr(error, "has_written")
    return not is_final and not _is_of_saved_tensor_hook(error)


def _is_of_saved_tensor_hook(error: BaseException) -> bool:
    """Whether the hook that autograd calls for tensors to be saved has raised this, as checkpoint's does to end a recomputation.

    A backend that runs the graph's operators under autograd calls it in the midst of the graph.
    """
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    if hooks is None:
        return False
    code = getattr(hooks[0], "__code__", None)
    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    # What a hook without a code of its own has raised cannot be told from what an operator has.
    return code is None or any(frame.f_code is code for frame in frames)


class Deoptimisation:
    """What happens at the two ends of the program's own run, for the graph of the function `name`.

    A deferred assert of the graph that fails is one of three:

    - the program's own: its exception gets a note that says what was relied on;
    - a path that the program does not take (`trace.likely`): `on_other_path` is called with the assert's exception, and nobody is told;
    - an assumption of the trace that the program does not need: a warning, once. Without `warns`, `on_other_path` is called instead.

    A program with exception handlers may have caught what the graph raised. Any other exception that only the graph raises is a bug of the
    backend or of treadle.
    """

    def __init__(
        self,
        name: str,
        *,
        has_handlers: bool,
        raise_internal_errors: bool,
        on_other_path: Callable[[type[Exception]], None] = lambda raises: None,
        warns: bool = True,
    ):
        self._name = name
        self._on_other_path = on_other_path
        self._warns = warns
        self._raises = raise_internal_errors and not has_handlers
        self._has_warned = False

    def on_exception(self, state: Any, of_graph: Exception, of_program: BaseException) -> None:
        """Python has raised, too: note on its exception (PEP 678) what did not hold. state: of the hook before the run."""
        treadle_frame.set_handler(state)
        if not isinstance(of_graph, AssertFailed):
            return
        if issubclass(of_graph.raises, OtherPath):
            self._on_other_path(of_graph.raises)
        elif of_graph.message != str(of_program):  # the program's message needs no repetition
            of_program.add_note(f"treadle: {of_graph.message}")

    def on_return(self, state: Any, of_graph: Exception) -> None:
        """Python has run the function without an exception; its result is used. state: of the hook before the run."""
        treadle_frame.set_handler(state)
        failed = of_graph if isinstance(of_graph, AssertFailed) else None
        if failed is not None and (issubclass(failed.raises, OtherPath) or not self._warns):
            self._on_other_path(failed.raises)
            return
        kind = type(of_graph) if failed is None else failed.raises
        what = f"the compiled graph of {self._name} raised {kind.__name__}: {of_graph}"
        if self._raises and failed is None:
            raise InternalError("run", f"{what}; Python itself runs the function without an error") from of_graph
        if self._has_warned and failed is not None:
            return
        self._has_warned = True
        warnings.warn(
            f"treadle: {what}; Python itself runs the function without an error, and its result was used",
            RuntimeWarning,
            stacklevel=2,
        )


def emit_deoptimisation(cb: FrameCode, code: CodeType, deoptimisation: Deoptimisation) -> None:
    """Run the original code with the frame's arguments; the graph's exception is on the stack."""
    start, end, handler = cb.label("deoptimise"), cb.label("deoptimise end"), cb.label("deoptimise failed")
    error, state = cb.temp(), cb.temp()
    cb.store_fast(error)
    cb.call_constant(turn_hook_off, [error], cb.load_fast)
    cb.store_fast(state)
    original = code.replace()  # a code object of its own, so that it has no entries
    treadle_frame.skip(original)
    result = cb.temp()
    cb.place(start)
    cb.begin_call()
    cb.load_function(original)
    cb.callable_done()
    _push_arguments(cb)
    cb.call_ex(keywords=True)
    cb.store_fast(result)
    cb.place(end)
    cb.protect(start, end, handler, depth=0)
    cb.call_constant(deoptimisation.on_return, [state, error], cb.load_fast)
    cb.pop_top()
    cb.load_fast(result)
    cb.return_value()
    cb.place(handler)
    raised = cb.temp()
    cb.store_fast(raised)
    cb.call_constant(deoptimisation.on_exception, [state, error, raised], cb.load_fast)
    cb.pop_top()
    cb.load_fast(raised)
    cb.emit("RERAISE", 0)


def _push_arguments(cb: FrameCode) -> None:
    """Push the frame's own arguments as a tuple and a dict."""
    shape = cb.shape
    names = list(shape.arguments)
    keywords = names.pop() if shape.flags & inspect.CO_VARKEYWORDS else None
    rest = names.pop() if shape.flags & inspect.CO_VARARGS else None
    positional, keyword_only = names[: shape.argcount], names[shape.argcount :]
    for name in positional:
        cb.load_fast(name)
    cb.build_list(len(positional))
    if rest is not None:
        cb.load_fast(rest)
        cb.emit("LIST_EXTEND", 1)
    _list_to_tuple(cb)
    for name in keyword_only:
        cb.load_const(name)
        cb.load_fast(name)
    cb.build_map(len(keyword_only))
    if keywords is not None:
        cb.load_fast(keywords)
        cb.emit("DICT_UPDATE", 1)


def _list_to_tuple(cb: FrameCode) -> None:
    """Turn the list on the stack into a tuple, in a way that every version has."""
    items = cb.temp()
    cb.store_fast(items)
    cb.call_constant(tuple, [items], cb.load_fast)
