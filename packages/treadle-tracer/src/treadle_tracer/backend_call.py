"""The call of a backend, and the boundary between what it returns and the frame hook."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

import treadle_frame
from treadle_shapes.torch import operator

from .errors import BackendError, InternalError
from .room import is_out_of_room
from .skips import SkipKind, why_not_trace_file

Backend = Callable[[torch.fx.GraphModule, Sequence[Any]], Callable[..., Sequence[Any]]]


def call_backend(backend: Backend, gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Sequence[Any]]:
    """The compiled graph, which runs with the hook off. Raises BackendError when the backend fails; InternalError passes."""
    name = getattr(backend, "__name__", type(backend).__name__)
    try:
        compiled = backend(gm, inputs)
    except InternalError:
        raise
    except Exception as error:
        if is_out_of_room(error):
            raise
        raise BackendError(f"backend {name!r} raised {type(error).__name__}: {error}") from error
    if not callable(compiled):
        raise BackendError(f"backend {name!r} must return a callable, it returned {compiled!r}")
    return compiled if runs_only_treadle(compiled) and not calls_custom_operators(gm) else outside_the_hook(compiled)


def lacks_numbers(error: BackendError) -> bool:
    """Whether a backend has failed because its own fake tensors have no numbers that are known only at run time."""
    return isinstance(error.__cause__, (DataDependentOutputException, DynamicOutputShapeException))


def runs_only_treadle(compiled: Any) -> bool:
    """Whether a compiled graph runs nothing but treadle's own runtime, whose code the hook skips anyway."""
    function = compiled if hasattr(compiled, "__code__") else type(compiled).__call__
    code = getattr(function, "__code__", None)
    skip = None if code is None else why_not_trace_file(code.co_filename)
    return skip is not None and skip.kind is SkipKind.TREADLE


def calls_custom_operators(gm: torch.fx.GraphModule) -> bool:
    """Whether the graph calls operators that PyTorch does not define. Their bodies may be Python code, none of which is traced."""
    overloads = (torch._ops.OpOverload, torch._ops.OpOverloadPacket)
    return any(isinstance(node.target, overloads) and operator(node.target) is None for node in gm.graph.nodes)


def outside_the_hook(compiled: Callable[..., Any]) -> Callable[..., Any]:
    """`compiled`, run with the hook off, so that its functions are not traced."""

    def run(*args: Any) -> Any:
        state = treadle_frame.set_handler(None)
        try:
            return compiled(*args)
        finally:
            treadle_frame.set_handler(state)

    treadle_frame.skip(run.__code__)
    run.raises_before_writing = raises_before_writing(compiled)  # type: ignore[attr-defined]
    return run


def raises_before_writing(compiled: Any) -> bool:
    """Whether a call of a compiled graph that raises an exception without the attribute `has_written` has changed nothing."""
    return getattr(compiled, "raises_before_writing", False) is True


def promises_to_raise_early(backend: Backend) -> bool:
    """Whether the graphs that a backend compiles raise before they write, but for those that it leaves to eager."""
    return getattr(backend, "raises_before_writing", False) is True


def promises_to_draw_nothing(backend: Backend) -> bool:
    """Whether a backend draws no numbers from default generators while it compiles."""
    return getattr(backend, "draws_nothing", False) is True


__all__ = ["Backend", "call_backend", "lacks_numbers", "outside_the_hook", "runs_only_treadle"]
