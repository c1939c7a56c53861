"""Modes that see every call of torch: subclasses of `torch.overrides.TorchFunctionMode`, which the program enters and leaves.

    with Doubling(): y = torch.add(x, 1)     =>     Doubling.__torch_function__(mode, torch.add, (), (x, 1))

The stack of modes is the trace's own; modes and what they do are the program's Python, and traced. While a mode is asked, it is off the
stack (`mode_calls`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from torch.utils._device import DeviceContext

from treadle_tracer.errors import Unsupported

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext, Value


class _Pushed:
    """Stands for one mode on the stack among the contexts that the program has entered."""

    __slots__ = ()


class FunctionModes:
    """The modes that are active, outermost first: default devices from outside, and what the program has entered.

    settled: more than 0 where PyTorch's own code computes, which asks nobody.
    """

    def __init__(self, outside: Sequence[Value] = ()) -> None:
        self.stack: list[Value] = list(outside)
        self.settled = 0
        self._pushed: list[_Pushed] = []

    @property
    def are_active(self) -> bool:
        """Whether calls of torch at this place may go to a mode."""
        return bool(self.stack) and not self.settled

    @property
    def ask(self) -> bool:
        """The same, apart from default devices, which only functions that make tensors look at."""
        return self.are_active and not all(map(_is_device, self.stack))

    def push(self, tx: TraceContext, mode: Value) -> None:
        tx.contexts.require_enterable(tx, mode.describe())
        self._pushed.append(_Pushed())
        tx.contexts.enter(tx, self._pushed[-1], f"the mode {mode.describe()}")
        self.stack.append(mode)

    def pop(self, tx: TraceContext) -> Value:
        if not self.stack or not self._pushed:
            raise Unsupported("function-mode", "a mode is left that was entered outside")
        tx.contexts.leave(tx, self._pushed[-1])
        self._pushed.pop()
        return self.stack.pop()

    def enter_device(self, tx: TraceContext, device: Value) -> None:
        """`with torch.device(...)`"""
        self.push(tx, tx.wrap_known(DeviceContext).call(tx, [device], {}))

    def default_device(self, tx: TraceContext) -> Value | None:
        """The innermost default device that the program has set; None where it has set none."""
        mode = next(filter(_is_device, reversed(self.stack)), None)
        return None if mode is None else mode.get_attr(tx, "device")

    @contextlib.contextmanager
    def settle(self) -> Iterator[None]:
        """Inside, PyTorch's own code computes."""
        self.settled += 1
        try:
            yield
        finally:
            self.settled -= 1

    def refuse(self, what: str) -> None:
        """Raises Unsupported where the trace does something to a tensor about which modes may have to be asked."""
        if self.ask:
            raise Unsupported("function-mode", what)


def _is_device(mode: Value) -> bool:
    return mode.python_type() is DeviceContext
