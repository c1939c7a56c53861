"""Values without a program: a tracer that stands in a frame of its own, and the guards it has added."""

from __future__ import annotations

from typing import Any

import torch

from treadle_tracer.source import LocalSource
from treadle_tracer.trace.driver import new_tracer
from treadle_tracer.trace.frame import Frame
from treadle_tracer.trace.root import program_of
from treadle_tracer.trace.tracer import Tracer
from treadle_tracer.values.value import Value


def _program():
    return None


def tracer(**dynamic: dict[int, int]) -> Tracer:
    """A tracer in the frame of a function; `x={0: 4}`: dimension 0 of the tensor at `x` is dynamic."""
    tx = new_tracer({LocalSource(name): dims for name, dims in dynamic.items()} or None)
    code = _program.__code__
    tx.frames.append(Frame(tx, program_of(code), code, {}))
    return tx


def wrapped(tx: Tracer, obj: Any, name: str = "x") -> Value:
    """The Value of an argument called `name`."""
    return tx.wrap(obj, LocalSource(name))


def guards(tx: Tracer) -> list[tuple[str, str, Any]]:
    """(source text, op, argument) of all guards but that on global state."""
    return [(guard.source.text, guard.op, guard.arg) for guard in tx.guards if guard.source.text != "global state"]


def size(tx: Tracer, length: int, name: str = "x") -> Value:
    """The symbolic size of a dynamic tensor of this length."""
    tensor = wrapped(tx, torch.ones(length), name)
    return tensor.get_attr(tx, "shape").items[0]
