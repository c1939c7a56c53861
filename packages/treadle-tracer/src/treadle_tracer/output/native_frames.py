"""Functions that carry out one instruction of a called frame, below functions that stand for the frames above it.

A graph break inside a call leaves all the frames from the compiled one inwards, and its instruction must run for real. It runs in a
function with the name, file, line and globals of the function it belongs to, which is called by one function for each frame in between. So
tracebacks, warnings and loggers show the program's own stack:

    def g(y): print(y)                  the compiled frame of f calls  carry_out(y), which shows as line 1 in g
    def f(x): g(x + 1)
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Sequence
from types import CodeType

import treadle_frame

from ..bytecode import CodeModel
from ..bytecode.assemble import CodeBuilder
from ..bytecode.model import Positions

_PLAIN = inspect.CO_OPTIMIZED | inspect.CO_NEWLOCALS


def function_like(code: CodeType, function: types.FunctionType) -> types.FunctionType:
    """A function of `code` that finds the globals and, if it has free variables, the cells of `function`."""
    cells = function.__closure__ if code.co_freevars else None
    return types.FunctionType(code, function.__globals__, function.__name__, None, cells)


class NativeCode(CodeBuilder):
    """A CodeBuilder for a function that looks like another one and has these parameters. The hook leaves it alone."""

    def __init__(self, model: CodeModel, positions: Positions, parameters: Sequence[str]):
        shape = model.replace(
            instructions=(),
            exceptions=(),
            flags=_PLAIN,
            argcount=len(parameters),
            posonlyargcount=0,
            kwonlyargcount=0,
            varnames=tuple(parameters),
            cellvars=(),
            freevars=(),
            consts=(None,),
            names=(),
        )
        super().__init__(shape, prologue=False)
        self.positions = positions
        self.prologue()

    def give(self, name: str) -> None:
        """Push a parameter, and let it go."""
        self.load_fast(name)
        self.delete_fast(name)

    def made(self) -> CodeType:
        """The code."""
        code = self.finish()
        treadle_frame.skip(code)
        return code


def passing_call(model: CodeModel, positions: Positions) -> CodeType:
    """The code of `def function(inner, args): return inner(*args)`, for a frame that waits for a call at this place."""
    cb = NativeCode(model, positions, ("inner", "args"))
    cb.begin_call()
    cb.give("inner")
    cb.callable_done()
    cb.give("args")
    cb.call_ex()
    cb.return_value()
    return cb.made()


def without_outer_entries(error: BaseException, count: int) -> BaseException:
    """The exception, with a traceback that begins at the frame that handles it, `count` frames further in."""
    traceback = error.__traceback__
    for _ in range(count):
        if traceback is not None:
            traceback = traceback.tb_next
    return error.with_traceback(traceback)


class Exhausted:
    """What stands for the item of a FOR_ITER where there is none left. No object of the program is this class."""
