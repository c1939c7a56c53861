"""Run a graph again under autograd: for gradients of gradients, for hooks on intermediate results, and for anomaly mode.

The compiled backward graph computes gradients but is not differentiable itself, gives the gradients of the inputs only, and is one node
to autograd. Where more is asked for, the recorded forward graph runs operator by operator, and PyTorch's own formulas differentiate it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx


def _copy(target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    return target.clone().copy_(source)


def _rrelu_with_noise(x: torch.Tensor, noise: torch.Tensor, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
    drawn = noise.clone()
    return torch.ops.aten.rrelu_with_noise.default(x, drawn, *args, **kwargs), drawn


def _as_strided_scatter(x: torch.Tensor, src: torch.Tensor, *place: Any, **options: Any) -> torch.Tensor:
    scatter = torch.ops.aten.as_strided_scatter.default
    outside = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device).zero_()
    inside = scatter(outside, torch.ones_like(src), *place, **options) != 0
    return torch.where(inside, scatter(x.detach(), src, *place, **options), x)


_DIFFERENTIABLE = {
    torch.ops.aten.as_strided_scatter.default: _as_strided_scatter,
    torch.ops.aten.copy.default: _copy,
    # PyTorch's derivative reads the noise that the operator is given, which nobody has written.
    torch.ops.aten.rrelu_with_noise_functional.default: _rrelu_with_noise,
}
"""The same result with its derivative, by the functional operator that has none or a wrong one."""


class DifferentiableRun(fx.Interpreter):
    """Runs a forward graph under autograd as the traced program ran: what it computed without gradients gets none.

    cuts: places of outputs (`JointTrace.sources`) -> names of nodes. Gradients end at what their users get in place of the results; after
    the run, `ends` holds these by name, and `outputs` the outputs, those at cuts as they were before. real: the program's own tensors for
    these outputs, as far as they are known. Gradients of gradients go to them, and so to their hooks.
    """

    def __init__(self, gm: fx.GraphModule, cuts: Mapping[int, str], real: Mapping[int, torch.Tensor]) -> None:
        super().__init__(gm)
        self.extra_traceback = False  # exceptions keep their own messages
        self.ends: dict[str, torch.Tensor] = {}
        self.inputs: list[Any] = []
        self._gates = Gates()
        self.outputs: list[Any] = []
        self._cuts = cuts
        self._names = frozenset(cuts.values())
        self._real = {cuts[position]: tensor for position, tensor in real.items()}
        self._whole: dict[str, torch.Tensor] = {}

    def gated(self, values: Sequence[Any]) -> list[Any]:
        """The values to run with. One may be computed from another, and its gradient must not flow on into the other's."""
        self.inputs = list(map(self._gates.gate, values))
        return self.inputs

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        return super().call_function(_DIFFERENTIABLE.get(target, target), args, kwargs)

    def run_node(self, n: fx.Node) -> Any:
        if n.op == "output":
            self.outputs = list(super().run_node(n))
            for position, name in self._cuts.items():
                if position < len(self.outputs):  # behind them stand views
                    self.outputs[position] = self._whole[name]
            return self.outputs
        with torch.set_grad_enabled(not n.meta.get("no_grad")):
            result = super().run_node(n)
        name = n.meta.get("replaces", n.name)
        if name in self._names:
            self._whole[name] = result
            result = self.ends[name] = self._gates.gate(result, self._real.get(name))
        return result

    def gate(self, value: Any) -> Any:
        """One more tensor behind which gradients end."""
        return self._gates.gate(value)

    def gradients(self, outputs: Sequence[Any], inputs: Sequence[Any], tangents: Sequence[Any]) -> Sequence[Any]:
        """Gradients in which nothing flows on behind a cut. They are differentiable in grad mode, all the way to the inputs."""
        return self._gates.gradients(outputs, inputs, tangents)


class Gates:
    """The state of all gates of one run. It knows nothing of the run, which would be a cycle through autograd's graph."""

    are_closed = False

    def gate(self, value: Any, real: torch.Tensor | None = None) -> Any:
        """A tensor that requires gradients behind a gate; any other value itself. real: where the gradients go instead, if not None."""
        return _Gate.apply(self, value, real) if isinstance(value, torch.Tensor) and value.requires_grad else value

    def gradients(self, outputs: Sequence[Any], inputs: Sequence[Any], tangents: Sequence[Any]) -> Sequence[Any]:
        """Gradients that end at the gates, differentiable in grad mode."""
        self.are_closed = True
        try:
            return torch.autograd.grad(
                outputs,
                inputs,
                tangents,
                retain_graph=True,
                create_graph=torch.is_grad_enabled(),
                allow_unused=True,
            )
        finally:
            self.are_closed = False


class _Gate(torch.autograd.Function):
    """Hands its argument on. Gradients pass backwards, to `real` if there is one, unless the gates of its run are closed."""

    @staticmethod
    def forward(ctx: Any, gates: Gates, value: torch.Tensor, real: torch.Tensor | None) -> torch.Tensor:
        ctx.gates, ctx.has_real = gates, real is not None
        ctx.set_materialize_grads(False)  # what has no gradient passes on none
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor | None) -> Any:
        if ctx.gates.are_closed:
            return None, None, None
        return (None, None, gradient) if ctx.has_real else (None, gradient, None)


@contextmanager
def random_state(state: torch.Tensor | None) -> Iterator[None]:
    """Inside, the CPU's generator draws what it drew from `state` on; afterwards it is where it was."""
    if state is None:
        yield
        return
    before = torch.get_rng_state()
    torch.set_rng_state(state)
    try:
        yield
    finally:
        torch.set_rng_state(before)


class RunWithLines(fx.Interpreter):
    """Runs the traced graph in eager and notes the user's lines where anomaly mode looks for them: at every node of autograd's graph."""

    def __init__(self, gm: fx.GraphModule) -> None:
        super().__init__(gm)
        self.extra_traceback = False
        self.noted: set[Any] = set()

    def run(self, *args: Any, **kwargs: Any) -> Any:
        self.noted = {x.grad_fn for x in args if isinstance(x, torch.Tensor) and x.grad_fn is not None}
        return super().run(*args, **kwargs)

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        trace = n.meta.get("stack_trace")
        if trace:
            lines = trace.splitlines(keepends=True)
            items = result if isinstance(result, (tuple, list)) else [result]
            pending = [item.grad_fn for item in items if isinstance(item, torch.Tensor)]
            while pending:
                grad_fn = pending.pop()
                if grad_fn is not None and grad_fn not in self.noted:
                    self.noted.add(grad_fn)
                    notes: Any = grad_fn.metadata
                    notes["traceback_"] = lines
                    pending += [function for function, _ in grad_fn.next_functions]
        return result


def run_with_lines(gm: fx.GraphModule, args: Sequence[Any]) -> Sequence[Any]:
    """`gm` in eager; an error of anomaly mode will name the user's lines."""
    return RunWithLines(gm).run(*args, enable_io_processing=False)  # type: ignore[no-any-return]
