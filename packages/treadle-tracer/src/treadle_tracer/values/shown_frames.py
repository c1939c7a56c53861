"""The frames that a warning or a log record counts (`stacklevel=`), where they differ from those of the trace.

- A call of a module without hooks is traced as a call of its `forward`. In Python two frames of `torch.nn.Module` stand between.
- The root frame of a compiled module is Treadle's own. So is what calls it.
"""

from __future__ import annotations

import dis
import functools
import types
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from treadle_tracer.values.originals import MODULE_CALL_IMPL

if TYPE_CHECKING:
    from treadle_tracer.values.value import FrameView, TraceContext


class Place(NamedTuple):
    """A line of a running function."""

    file: str
    line: int
    function: str
    globals: dict[str, Any]


def shown_places(tx: TraceContext, frames: Sequence[FrameView] | None = None) -> list[Place]:
    """The places at which the traced program stands, innermost first, with the frames that Python has between those of the trace.

    frames: those of the trace that count, innermost last.
    """
    found: list[Place] = []
    for depth, frame in reversed([*enumerate(tx.frames)]):
        if frames is not None and frame not in frames:
            continue
        file, line, name = frame.position()
        if not _is_own(file, frame.globals):
            found.append(Place(file, line, name, frame.globals))
        if tx.module_calls.get(depth) == frame.began:
            found += _frames_of_module_call(frame.function_code)
    return found


def _frames_of_module_call(callee: types.CodeType) -> Iterator[Place]:
    if callee is not MODULE_CALL_IMPL.__code__:
        yield _place_of_call(MODULE_CALL_IMPL, first=True)
    yield _place_of_call(torch.nn.Module._wrapped_call_impl, first=False)


@functools.cache
def _place_of_call(function: Any, first: bool) -> Place:
    """The line of the first or last call in a function that passes all of its arguments on."""
    code = function.__code__
    calls = [i for i in dis.get_instructions(code) if i.opname.startswith("CALL_FUNCTION_EX")]
    positions = calls[0 if first else -1].positions
    assert positions is not None and positions.lineno is not None
    return Place(code.co_filename, positions.lineno, code.co_name, function.__globals__)


def _is_own(file: str, scope: dict[str, Any]) -> bool:
    """Whether the code of a frame is Treadle's."""
    return file.startswith("<compiled ") or str(scope.get("__name__")).partition(".")[0] in _OWN_PACKAGES


_OWN_PACKAGES = frozenset({"treadle", "treadle_tracer", "treadle_frame"})


def level_outside(root: types.FrameType, level: int, above: int, skipped: int) -> int:
    """The `stacklevel` of the frame that the program has `above` frames above the root frame, in which replacement code runs.

    level: that of the root frame. skipped: how many frames above it show as the program's and are not.
    """
    frame = root.f_back
    while frame is not None:
        level += not _is_internal(frame)
        if skipped:
            skipped -= 1
        elif not _is_own(frame.f_code.co_filename, frame.f_globals):
            above -= 1
            if not above:
                return level
        frame = frame.f_back
    return level + above


def _is_internal(frame: types.FrameType) -> bool:
    """Whether `warnings.warn` passes the frame over (Python/_warnings.c, is_internal_frame)."""
    file = frame.f_code.co_filename
    return "importlib" in file and "_bootstrap" in file
