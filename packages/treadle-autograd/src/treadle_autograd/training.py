"""Run compiled forward and backward graphs inside PyTorch's autograd.

    run(primals)                     forward graph: outputs and saved values; autograd gets one node, CompiledBackward
    loss.backward()                  backward graph: saved values and tangents -> gradients of the primals

What surrounds the graphs (static inputs, inputs that are written back, outputs that are views) is the business of `wrapper`, whose
operations autograd records as it records eager's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx

from .joint import JointTrace
from .partition import Halves

Compiled = Callable[..., Sequence[Any]]
Compiler = Callable[[fx.GraphModule, Sequence[Any]], Compiled]


class TrainingProgram:
    """The compiled halves of one joint graph. Backward graphs are compiled when they are first needed, one for each set of gradients that
    is asked for: an output that the loss does not depend on has no tangent, and what follows from it no gradient."""

    def __init__(self, joint: JointTrace, halves: Halves, forward: Compiled, compile_backward: Compiler) -> None:
        outputs: Any = joint.graph.output_node().args[0][: joint.n_outputs]  # type: ignore[index]
        tensors = [k for k, node in enumerate(outputs) if isinstance(node, fx.Node) and _is_tensor(node)]
        self.joint = joint
        self.halves = halves
        self.forward = forward
        self.not_differentiable = tuple(k for k in tensors if k not in joint.tangents)
        self.why_not_twice = why_not_differentiable_again(joint)
        self.draws_random = any(map(is_random, halves.reference.graph.nodes))
        self._compile_backward = compile_backward
        self._backwards: dict[tuple[int, ...], Compiled] = {}

    def __call__(self, *primals: Any) -> Sequence[Any]:
        return CompiledBackward.apply(self, *primals)  # type: ignore[no-any-return]

    def backward(self, wanted: tuple[int, ...]) -> Compiled:
        """The compiled backward graph that computes the gradients at these positions."""
        found = self._backwards.get(wanted)
        if found is None:
            graph = self.halves.backward(wanted)
            examples = [node.meta["val"] for node in graph.graph.find_nodes(op="placeholder")]
            with torch.inference_mode(False), torch.no_grad():
                found = self._backwards[wanted] = self._compile_backward(graph, examples)
        return found


# Batch norm in training mode returns new running statistics; its result does not depend on the old ones (arguments 3 and 4).
_BATCH_NORM = torch.ops.aten._native_batch_norm_legit_functional.default


def why_not_differentiable_again(joint: JointTrace) -> str | None:
    """Why the forward graph must not run again for gradients of gradients: it has changed an input that its gradients depend on."""
    placeholders = [node for node in joint.graph.nodes if node.op == "placeholder"]
    written = {placeholders[mutation.input] for mutation in joint.contract.mutations}
    results: Any = joint.graph.output_node().args[0]
    pending = [node for node in results[joint.n_outputs :] if isinstance(node, fx.Node)]
    seen: set[fx.Node] = set()
    while pending:
        node = pending.pop()
        if node in written:
            return f"its gradients depend on {node.name}, which it changes in place"
        if node not in seen:
            seen.add(node)
            ignored = set(node.args[3:5]) if node.target is _BATCH_NORM else set()
            pending += [used for used in node.all_input_nodes if used not in ignored]
    return None


def is_random(node: fx.Node) -> bool:
    """Whether the node draws random numbers. The tag also tells of operators outside ATen, which have no record."""
    return isinstance(node.target, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in node.target.tags


def _is_tensor(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)


class CompiledBackward(torch.autograd.Function):
    """The node of one compiled graph in autograd's graph."""

    @staticmethod
    def forward(ctx: Any, program: TrainingProgram, *primals: Any) -> Any:
        ctx.set_materialize_grads(False)
        ctx.program = program
        ctx.primals = [(p, p._version) if isinstance(p, torch.Tensor) else (p, 0) for p in primals]
        ctx.random_state = torch.get_rng_state() if program.draws_random else None
        results = program.forward(*primals)
        n_outputs = program.joint.n_outputs
        outputs, given = tuple(results[:n_outputs]), iter(results[n_outputs:])
        tensors = [next(given) if place is None else primals[place] for place in program.halves.primals]
        ctx.numbers = tuple(given)
        ctx.layouts = [
            (outputs[k].size(), outputs[k].stride(), outputs[k].dtype, outputs[k].device)
            for k in program.joint.tangents
        ]
        ctx.save_for_backward(*tensors)
        ctx.mark_non_differentiable(*[outputs[k] for k in program.not_differentiable])
        return outputs

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        program = ctx.program
        joint: JointTrace = program.joint
        given = [grad_outputs[k] for k in joint.tangents]
        defined = frozenset(k for k, tangent in enumerate(given) if tangent is not None)
        wanted = tuple(
            k
            for k, (primal, reads) in enumerate(zip(joint.gradients, program.halves.reads, strict=True))
            if reads is not None and (not reads or reads & defined) and ctx.needs_input_grad[1 + primal]
        )
        gradients: list[Any] = [None] * (1 + joint.n_primals)
        if not wanted or not defined:
            return tuple(gradients)
        if torch.is_grad_enabled():
            found = _differentiable_gradients(ctx, program, given, wanted)
        else:
            tangents = [_laid_out(tangent, *data) for tangent, data in zip(given, ctx.layouts, strict=True)]
            found = program.backward(wanted)(*ctx.saved_tensors, *ctx.numbers, *tangents)
        for k, gradient in zip(wanted, found, strict=True):
            gradients[1 + joint.gradients[k]] = gradient
        return tuple(gradients)


def _differentiable_gradients(
    ctx: Any, program: TrainingProgram, given: Sequence[torch.Tensor | None], wanted: Sequence[int]
) -> Sequence[Any]:
    """The gradients by PyTorch's own formulas, which autograd records (`create_graph=True`): the forward graph runs again.

    Raises RuntimeError when an input that matters has been changed in place since the forward pass.
    """
    if program.why_not_twice is not None:
        raise RuntimeError(f"create_graph=True is not supported for this compiled graph: {program.why_not_twice}")
    primals = [value for value, _ in ctx.primals]
    written = {mutation.input for mutation in program.joint.contract.mutations}
    for place, (value, version) in enumerate(ctx.primals):
        if isinstance(value, torch.Tensor) and value._version != version and place not in written:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace operation: "
                f"an input of shape {list(value.shape)} is at version {value._version}; expected version {version} instead"
            )
    with _random_state(ctx.random_state):
        outputs = program.halves.reference(*primals)
    pairs = [
        (outputs[k], tangent) for k, tangent in zip(program.joint.tangents, given, strict=True) if tangent is not None
    ]
    return torch.autograd.grad(
        [output for output, _ in pairs],
        [primals[program.joint.gradients[k]] for k in wanted],
        [tangent for _, tangent in pairs],
        create_graph=True,
        allow_unused=True,
    )


@contextmanager
def _random_state(state: torch.Tensor | None) -> Iterator[None]:
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


def _laid_out(
    tangent: torch.Tensor | None, size: Sequence[int], strides: Sequence[int], dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """The tangent with the strides of its output, which backward was compiled for; zeros for an output without one."""
    if tangent is None:
        return torch.empty_strided(size, strides, dtype=dtype, device=device).zero_()
    # Autograd makes tensors of zeros without memory, and lazy conjugates and negatives; kernels read memory.
    is_plain = not (tangent._is_zerotensor() or tangent.is_neg() or tangent.is_conj())
    if is_plain and tangent.stride() == strides:
        return tangent
    return torch.empty_strided(size, strides, dtype=dtype, device=device).copy_(tangent)
