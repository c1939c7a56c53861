"""How long a trace goes on: evaluating an instruction takes hundreds of times as long as in Python.

A loop that computes with Python's numbers and objects alone is left to Python once it has taken a second or more, and so is one that
computes with tensors once its graph would take long to compile. A function that the compiled frame calls is called by Python from then on;
where the compiled frame itself takes that long, it is left as a whole.
"""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from types import CodeType
from typing import Protocol

from torch.utils.weak import WeakIdKeyDictionary

from treadle_tracer.errors import Unsupported

_STEPS = 100_000  # instructions in a row without a node of the graph
_NODES = 20_000  # of a graph

_long: MutableMapping[CodeType, bool] = WeakIdKeyDictionary()


class TakesTooLong(Unsupported):
    """The compiled frame itself takes too long to trace."""


class Lasting(Protocol):
    """What is asked of a frame: see `trace.frame`."""

    began: int
    function_code: CodeType


class Patience:
    """Of one trace. `ends_at`: the step at which to ask again."""

    __slots__ = ("_nodes", "ends_at")

    def __init__(self) -> None:
        self.ends_at = _STEPS
        self._nodes = 0

    def check(self, step: int, nodes: int, frames: Sequence[Lasting]) -> None:
        """Go on if the graph has grown since the last time. Raises Unsupported where not, TakesTooLong where the compiled frame lasts."""
        if self._nodes < nodes <= _NODES:
            self.ends_at, self._nodes = step + _STEPS, nodes
            return
        lasting = max(number for number, frame in enumerate(frames) if number == 0 or step - frame.began >= _STEPS)
        what = f"{nodes} operations" if nodes > _NODES else f"{_STEPS} instructions without an operation on tensors"
        if lasting == 0:
            raise TakesTooLong("long-trace", what)
        _long[frames[lasting].function_code] = True
        error = Unsupported("long-trace", what)
        error.most_frames = lasting
        raise error


def takes_long(code: CodeType) -> bool:
    """Whether calls of this code are not followed, because that took too long before."""
    return bool(_long) and code in _long
