"""What several tests of treadle_frame use: a scope with a handler, a handler that takes notes, addresses of C functions."""

from __future__ import annotations

import ctypes
import os
from typing import Any

import treadle_frame
from treadle_frame import RUN_ONCE, Check, Entry, FrameInfo, GuardProgram

UNDER = os.environ.get("TREADLE_FRAME_UNDER")


def examples(n: int) -> int:
    """How many examples hypothesis tries: fewer under the sanitizers, where each takes ten times as long."""
    return n // 10 if UNDER else n


FOREIGN_EVALUATOR = """
#define Py_BUILD_CORE 1
#include <Python.h>
#include <internal/pycore_frame.h>
static PyObject *evaluate(PyThreadState *t, struct _PyInterpreterFrame *f, int throwflag)
{
    return _PyEval_EvalFrameDefault(t, f, throwflag);
}
void come(void) { _PyInterpreterState_SetEvalFrameFunc(PyInterpreterState_Get(), evaluate); }
void go(void) { _PyInterpreterState_SetEvalFrameFunc(PyInterpreterState_Get(), _PyEval_EvalFrameDefault); }
"""


class Recorder:
    """A handler that answers with entries by function name and notes who was asked about."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.asked: list[str] = []
        self.frames: list[FrameInfo] = []

    def __call__(self, frame: FrameInfo) -> Any:
        self.asked.append(frame.code.co_name)
        self.frames.append(frame)
        return self.answers.get(frame.code.co_name, RUN_ONCE)


def replacement(function: Any, *checks: Check) -> Entry:
    return Entry(function.__code__, GuardProgram(checks))


class handled:
    """Sets a handler for a while; its own frames are none of the handler's business."""

    def __init__(self, handler: Any) -> None:
        self.handler = handler

    def __enter__(self) -> None:
        treadle_frame.skip(handled.__exit__)
        self.previous = treadle_frame.set_handler(self.handler)

    def __exit__(self, *error: object) -> None:
        treadle_frame.set_handler(self.previous)


def address_of(library: ctypes.CDLL, name: str) -> int:
    """The address of a C function."""
    address = ctypes.cast(getattr(library, name), ctypes.c_void_p).value
    assert address is not None
    return address
