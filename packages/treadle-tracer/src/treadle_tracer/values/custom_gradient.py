"""The history that a custom `autograd.Function` gives its outputs, as one node of a traced graph.

    class Double(torch.autograd.Function):                  %y = mul(%x, 2)                 the forward body, without gradients
        forward(ctx, x): return x * 2             ==>       %h = custom_gradient((%x,), (%y,), (), ())
        backward(ctx, g): return g * 2                      %out = %h[0]                    %y with a history

The node's target is a `CustomGradient`. It holds the graph of the backward body and runs it when autograd asks for gradients, inside
PyTorch's own `autograd.Function`: what PyTorch does around a backward body (zeros for undefined gradients, checks of the result, errors for
saved tensors that have been changed) is its own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch._prims_common
from torch import fx
from torch.autograd.function import once_differentiable

from treadle_tracer.values.called_again import CalledAgain

RunGraph = Callable[[fx.GraphModule, Sequence[Any]], Sequence[Any]]


def _run(graph: fx.GraphModule, arguments: Sequence[Any]) -> Sequence[Any]:
    return graph.forward(*arguments)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Body:
    """A backward body: graph of (*defined gradients, *saved, *inputs, *kept) -> one gradient or None for each input.

    reads_saved: whether the saved tensors are among the arguments. kept: which of the kept values are, by position. inputs: which of the
    inputs are, for their histories: what has changed their elements meanwhile does not matter.
    """

    graph: fx.GraphModule
    reads_saved: bool
    kept: tuple[int, ...]
    inputs: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class CustomGradient:
    """The target of a node that connects outputs with inputs in autograd's graph.

    name                the function's name, for messages
    bodies              by (which gradients are defined, grad mode); without an entry for grad mode on, that for grad mode off serves
    dirty               positions of the inputs that forward has changed in place
    not_differentiable  positions of the outputs without gradients
    materialises        whether gradients that are not defined are zeros
    is_once             whether the backward body may not be differentiated
    why_once            what to raise where it is; where this is empty, it is as in PyTorch's `once_differentiable`
    again               what gives gradients that are to be differentiated, instead of a body; None where a body does
    """

    name: str
    bodies: Mapping[tuple[tuple[bool, ...], bool], Body]
    dirty: tuple[int, ...]
    not_differentiable: tuple[int, ...]
    materialises: bool
    is_once: bool
    why_once: str = ""
    again: CalledAgain | None = None

    @property
    def __name__(self) -> str:  # FX prints the target of a call by these names
        return "custom_gradient"

    def __call__(
        self,
        inputs: Sequence[Any],
        outputs: Sequence[torch.Tensor],
        saved: Sequence[torch.Tensor | None],
        kept: Sequence[Any],
        run: RunGraph = _run,
    ) -> tuple[Any, ...]:
        """Return the outputs, the very objects, with a history of their own. Nothing happens where no gradient can be asked for.

        inputs: tensors among the function's arguments. saved: what the function has saved for backward, checked against changes in place.
        kept: whatever else the backward body reads, tensors and numbers. run: runs the graph of the backward body.
        """
        if not (torch.is_grad_enabled() and any(value.requires_grad for value in inputs)):
            return tuple(outputs)
        return self._node.apply(self, list(outputs), list(saved), kept, run, *inputs)  # type: ignore[no-any-return]

    @functools.cached_property
    def _node(self) -> Any:
        """The class of autograd's node, called as the program's own, because messages and `grad_fn` name it."""
        once = _Refusing if self.why_once else _OnceDifferentiable
        base = once if self.is_once else _Differentiable if self.again is None else _CalledAgain
        return type(self.name, (base,), {})


class _Differentiable(torch.autograd.Function):
    """The node in autograd's graph. Outputs and saved tensors come in lists, so that autograd does not take them for inputs."""

    @staticmethod
    def forward(ctx: Any, gradient: CustomGradient, outputs: Any, saved: Any, kept: Any, run: Any, *inputs: Any) -> Any:
        ctx.gradient, ctx.kept, ctx.run = gradient, kept, run
        ctx.inputs = inputs if any(body.inputs for body in gradient.bodies.values()) else ()
        ctx.layouts = [layout_of_gradient(output) for output in outputs]
        ctx.set_materialize_grads(gradient.materialises)
        ctx.mark_dirty(*[inputs[k] for k in gradient.dirty])
        ctx.mark_non_differentiable(*[outputs[k] for k in gradient.not_differentiable])
        ctx.save_for_backward(*saved)
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *tangents: Any) -> Any:
        gradient: CustomGradient = ctx.gradient
        defined = tuple(tangent is not None for tangent in tangents)
        body = gradient.bodies.get((defined, torch.is_grad_enabled())) or gradient.bodies[defined, False]
        given = [_laid_out(t, layout) for t, layout in zip(tangents, ctx.layouts, strict=True) if t is not None]
        saved = ctx.saved_tensors if body.reads_saved else ()  # where some have been changed, this raises
        edges = [ctx.inputs[k] for k in body.inputs]
        gradients = ctx.run(body.graph, [*given, *saved, *edges, *[ctx.kept[k] for k in body.kept]])
        return (None, None, None, None, None, *gradients)


class _OnceDifferentiable(_Differentiable):
    """A node whose gradients have none themselves."""

    backward = staticmethod(once_differentiable(_Differentiable.backward))


class _Refusing(_Differentiable):
    """A node whose gradients cannot be differentiated although eager's can: that raises, and is never taken for a gradient of zero.

    PyTorch's `once_differentiable` cuts the gradients off from what they were computed from, so that `autograd.grad` finds them unused.
    """

    @staticmethod
    def forward(ctx: Any, gradient: CustomGradient, outputs: Any, saved: Any, kept: Any, run: Any, *inputs: Any) -> Any:
        # Second derivatives go through what the first one reads. Saved inputs and outputs have their histories.
        known = {id(value) for value in (*inputs, *outputs)}
        ctx.others = inputs if any(id(value) not in known for value in saved) or kept else ()
        return _Differentiable.forward(ctx, gradient, outputs, saved, kept, run, *inputs)

    @staticmethod
    def backward(ctx: Any, *tangents: Any) -> Any:
        return _refused(ctx, tangents, ctx.gradient.why_once)


class _CalledAgain(_Refusing):
    """A node whose gradients are those of the function itself, called anew, where they are to be differentiated."""

    @staticmethod
    def forward(ctx: Any, gradient: CustomGradient, outputs: Any, saved: Any, kept: Any, run: Any, *inputs: Any) -> Any:
        ctx.called_with, ctx.versions = inputs, [value._version for value in inputs]
        return _Refusing.forward(ctx, gradient, outputs, saved, kept, run, *inputs)

    @staticmethod
    def backward(ctx: Any, *tangents: Any) -> Any:
        if not torch.is_grad_enabled():
            return _Differentiable.backward(ctx, *tangents)
        why_not = ctx.gradient.again.why_not(ctx.called_with, ctx.versions)
        if why_not is not None:
            return _refused(ctx, tangents, why_not)
        return (None, None, None, None, None, *ctx.gradient.again.gradients(ctx.called_with, tangents))


def _refused(ctx: Any, tangents: Sequence[Any], why: str) -> Any:
    """The gradients, whose own gradients raise."""
    with torch.no_grad():
        gradients = _Differentiable.backward(ctx, *tangents)
    if not torch.is_grad_enabled():
        return gradients
    read = [value for value in (*tangents, *ctx.saved_tensors, *ctx.others) if value is not None]
    if not any(value.requires_grad for value in read):
        return gradients
    given = [value for value in gradients if value is not None]
    joined = iter(_Refusal.apply(why, len(given), *given, *read))
    return tuple(None if value is None else next(joined) for value in gradients)


class _Refusal(torch.autograd.Function):
    """Gradients as results of what they were computed from. Their own gradients raise."""

    @staticmethod
    def forward(ctx: Any, message: str, count: int, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.message = message
        return tuple(tensor.view_as(tensor) for tensor in tensors[:count])

    @staticmethod
    def backward(ctx: Any, *tangents: Any) -> Any:
        raise RuntimeError(ctx.message)


def layout_of_gradient(output: torch.Tensor) -> tuple[Any, Any]:
    """Sizes and strides of the gradient that a backward body is given: the output's, or contiguous where those leave gaps or overlap."""
    if torch.ops.aten.is_non_overlapping_and_dense.default(output):
        return output.size(), output.stride()
    return output.size(), torch._prims_common.make_contiguous_strides_for(output.size())


def _laid_out(tangent: torch.Tensor, layout: tuple[Any, Any]) -> torch.Tensor:
    size, strides = layout
    if tuple(tangent.stride()) == tuple(strides):
        return tangent
    return torch.empty_strided(size, strides, dtype=tangent.dtype, device=tangent.device).copy_(tangent)
