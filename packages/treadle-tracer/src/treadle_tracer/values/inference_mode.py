"""Inference mode that the program enters: `torch.inference_mode(...)`, whose Python code is traced, and the guard in C that it is made of.

Operators on fake tensors run in the mode that the program is in, so that their results are inference tensors where eager's are, and what
PyTorch refuses is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from treadle_shapes.torch import enter_inference_mode, leave_inference_mode
from treadle_tracer.errors import Unsupported
from treadle_tracer.values.base import NONE, Method
from treadle_tracer.values.objects import ObjectValue
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext

_GUARD: Any = torch._C._InferenceMode  # type: ignore[attr-defined]
_NAME = "torch.inference_mode"
_SET_GRAD = torch._C._set_grad_enabled


class InferenceGuard(ObjectValue):
    """`torch._C._InferenceMode(enabled)`. states: torch's state where the program has entered it."""

    __slots__ = ("enabled", "grad", "states")

    def __init__(self, enabled: bool):
        super().__init__(_GUARD)
        self.enabled = enabled
        self.grad = False
        self.states: dict[Any, Any] = {}

    def get_attr(self, tx: TraceContext, name: str) -> Value:
        if name in ("__enter__", "__exit__"):
            return Method(self, name, vars(_GUARD)[name])
        return super().get_attr(tx, name)

    def builtin_method(self, tx: TraceContext, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if name == "__enter__" and not args:
            self.enter(tx)
            return self
        if name == "__exit__":
            self.leave(tx)
            return NONE
        return super().builtin_method(tx, name, args, kwargs)

    def enter(self, tx: TraceContext) -> None:
        """Enter the mode, here and in the graph. Grad mode becomes the opposite, whatever it was."""
        tx.contexts.require_enterable(tx, _NAME)
        if tx.began_in_inference_mode and not self.enabled:
            raise Unsupported("global-state", f"{_NAME}(False) in inference mode")
        self.grad, self.states = torch.is_grad_enabled(), tx.states_set()
        tx.grad_mode_uses += 1
        enter_inference_mode(self.enabled)
        tx.contexts.enter(tx, self, _NAME, leave_inference_mode)
        tx.contexts.around_fakes = None if tx.began_in_inference_mode else _outside
        tx.graph.call("call_function", enter_inference_mode, (self.enabled,), {}, None, tx.stack_trace())
        tx.note_state(_SET_GRAD, self.grad, torch.is_grad_enabled())

    def leave(self, tx: TraceContext) -> None:
        """Leave the mode. PyTorch restores grad mode, and what of autocast the program has switched inside."""
        tx.contexts.require_innermost(self)
        if _but_for_grad_mode(tx.states_set()) != _but_for_grad_mode(self.states):
            raise Unsupported("global-state", f"{_NAME} with a switch of torch that is not restored inside")
        tx.contexts.leave(tx, self)
        tx.graph.call("call_function", leave_inference_mode, (), {}, None, tx.stack_trace())
        tx.note_state(_SET_GRAD, self.grad, self.grad)

    def reconstruct(self, cg: Any) -> None:
        cg.cb.push_null()
        cg.const(_GUARD)
        cg.const(self.enabled)
        cg.cb.call(1)


@contextmanager
def _outside() -> Iterator[None]:
    """Outside of inference mode, in the present grad mode."""
    grad = torch.is_grad_enabled()
    enter_inference_mode(False)
    try:
        torch._C._set_grad_enabled(grad)
        yield
    finally:
        leave_inference_mode()


def _but_for_grad_mode(states: dict[Any, Any]) -> dict[Any, Any]:
    return {key: now for key, now in states.items() if key[0] is not _SET_GRAD}


def inference_guard(tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`torch._C._InferenceMode(enabled)`"""
    if kwargs or len(args) != 1:
        raise Unsupported("global-state", _NAME)
    return InferenceGuard(bool(args[0].constant()))
