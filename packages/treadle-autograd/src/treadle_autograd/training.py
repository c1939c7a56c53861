"""Run compiled forward and backward graphs inside PyTorch's autograd.

    run(primals)                     forward graph: outputs and saved values; autograd gets one node, CompiledBackward
    loss.backward()                  backward graph: saved values and tangents -> gradients of the primals

What surrounds the graphs (static inputs, inputs that are written back, outputs that are views) is the business of `wrapper`, whose
operations autograd records as it records eager's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from treadle_shapes.torch import outside_transforms, undisturbed, unwrapped

from .check_results import check_callable, check_results
from .effects import is_random
from .joint import JointTrace
from .observed import Observers, connect, edge_for
from .partition import Halves
from .rerun import DifferentiableRun, random_state
from .wrapper import count_versions

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
        self._is_checked = False
        self._checked: set[tuple[int, ...]] = set()
        check_callable(forward, "forward")

    def __call__(self, *primals: Any) -> Sequence[Any]:
        call, values = Call(self, primals), dict[int, torch.Tensor]()
        try:
            results = _apply(call, values, primals)
        except Exception as error:
            # Behind the kernels, only the program's own saved-tensor hooks can raise (checkpoint ends a recomputation in this way).
            if call.has_run:
                error.raised_by_hook = True  # type: ignore[attr-defined]
            raise
        return connect(call, results, values) if values else results  # type: ignore[no-any-return]

    def run_forward(self, primals: Sequence[Any]) -> Sequence[Any]:
        """The forward graph's results, computed as eager's kernels compute: without a record, and in grad mode, which some of them look
        at to decide whether they return what only their backward pass needs (oneDNN's LSTM)."""
        grad = torch.is_grad_enabled()
        with torch._C._AutoDispatchBelowADInplaceOrView():
            torch._C._set_grad_enabled(True)  # a context manager of PyTorch's takes as long as an operator
            try:
                results = self.forward(*primals)
            finally:
                torch._C._set_grad_enabled(grad)
        if not self._is_checked:
            check_results(results, self.halves.forward.graph.output_node().args[0], "forward")  # type: ignore[arg-type]
            self._is_checked = True
        return results

    def run_backward(self, wanted: tuple[int, ...], arguments: Sequence[Any]) -> Sequence[Any]:
        """The gradients at these positions from saved values and tangents."""
        compiled = self.backward(wanted)
        with torch._C._AutoDispatchBelowADInplaceOrView():
            results = compiled(*arguments)
        if wanted not in self._checked:
            gradients: Any = self.joint.graph.output_node().args[0][self.joint.n_outputs :]  # type: ignore[index]
            check_results(results, [gradients[k] for k in wanted], "backward")
            self._checked.add(wanted)
        return results

    def backward(self, wanted: tuple[int, ...]) -> Compiled:
        """The compiled backward graph that computes the gradients at these positions."""
        found = self._backwards.get(wanted)
        if found is None:
            graph = self.halves.backward(wanted)
            examples = [node.meta["val"] for node in graph.graph.find_nodes(op="placeholder")]
            with torch.inference_mode(False), torch.no_grad(), undisturbed():
                found = self._compile_backward(graph, examples)
            check_callable(found, "backward")
            self._backwards[wanted] = found
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


def _is_tensor(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)


class Call:
    """One call of a program as its backward pass sees it: inputs, state of the random generator, observers of intermediate results."""

    def __init__(self, program: TrainingProgram, primals: Sequence[Any]) -> None:
        self.program = program
        self.primals = [(p, p._version) if isinstance(p, torch.Tensor) else (p, 0) for p in primals]
        self.random_state = torch.get_rng_state() if program.draws_random else None
        self.observers = Observers()
        self.has_run = False
        self._rerun: tuple[int, DifferentiableRun] | None = None

    def rerun(self, is_cut: bool) -> DifferentiableRun:
        """The forward graph, run once more under autograd. With `is_cut`, gradients end at outputs that others are computed from.

        Raises RuntimeError when an input that matters has been changed in place since the forward pass.
        """
        task = torch._C._current_graph_task_id()
        if is_cut and self._rerun is not None and self._rerun[0] == task:
            return self._rerun[1]
        self._raise_if_changed()
        cuts = self.program.joint.cuts if is_cut else {}
        twice = torch.is_grad_enabled()
        run = DifferentiableRun(self.program.halves.reference, cuts, self.observers.alive() if cuts and twice else {})
        with outside_transforms(), random_state(self.random_state), torch.enable_grad():
            run.run(*run.gated([value for value, _ in self.primals]), enable_io_processing=False)
        self._rerun = (task, run) if is_cut and not twice else None  # kept for the other outputs of this pass
        return run

    def forget_rerun(self) -> None:
        self._rerun = None

    def _raise_if_changed(self) -> None:
        joint = self.program.joint
        if self.program.why_not_twice is not None:
            what = "create_graph=True" if torch.is_grad_enabled() else "looking at gradients of intermediate outputs"
            raise RuntimeError(f"{what} is not supported for this compiled graph: {self.program.why_not_twice}")
        written = {mutation.input for mutation in joint.contract.mutations}
        for place, (value, version) in enumerate(self.primals):
            if isinstance(value, torch.Tensor) and value._version != version and place not in written:
                raise RuntimeError(
                    "one of the variables needed for gradient computation has been modified by an inplace operation: "
                    f"an input of shape {list(value.shape)} is at version {value._version}; expected version {version} instead"
                )


class CompiledBackward(torch.autograd.Function):
    """The node of one compiled graph in autograd's graph. `values` receives the outputs that get nodes of their own."""

    @staticmethod
    def forward(ctx: Any, call: Call, values: dict[int, torch.Tensor], *primals: Any) -> Any:
        ctx.set_materialize_grads(False)
        ctx.call = call
        program = call.program
        results = program.run_forward(primals)
        call.has_run = True
        n_outputs = program.joint.n_outputs
        outputs, given = list(results[:n_outputs]), iter(results[n_outputs:])
        # Before they are saved: a saved tensor must have the version that it had then.
        count_versions(outputs, program.joint.contract.versions)
        tensors = [next(given) if place is None else primals[place] for place in program.halves.primals]
        ctx.numbers = tuple(given)
        ctx.layouts = [
            (outputs[k].size(), outputs[k].stride(), outputs[k].dtype, outputs[k].device)
            for k in program.joint.tangents
        ]
        for position in program.joint.sources:
            values[position] = outputs[position]
            outputs[position] = edge_for(outputs[position])
        ctx.save_for_backward(*tensors)
        ctx.mark_non_differentiable(*[outputs[k] for k in program.not_differentiable])
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        call: Call = ctx.call
        program = call.program
        joint: JointTrace = program.joint
        given = [grad_outputs[k] for k in joint.tangents]
        defined = frozenset(k for k, tangent in enumerate(given) if tangent is not None)
        wanted = tuple(
            k
            for k, (primal, reads) in enumerate(zip(joint.gradients, program.halves.reads, strict=True))
            if reads is not None and (not reads or reads & defined) and ctx.needs_input_grad[2 + primal]
        )
        gradients: list[Any] = [None] * (2 + joint.n_primals)
        if not wanted or not defined:
            return tuple(gradients)
        is_cut = call.observers.were_there()
        is_computed = all(custom.is_computed(defined) for custom in joint.custom)
        is_plain = not (torch.is_grad_enabled() or torch.is_anomaly_enabled() or any(map(_is_wrapped, given)))
        if is_cut or not is_computed or not is_plain:
            saved = ctx.saved_tensors  # raises what eager raises when they are gone, or have been changed
            found = _rerun_gradients(call, given, wanted, is_cut)
            del saved
        else:
            tangents = [_laid_out(tangent, *data) for tangent, data in zip(given, ctx.layouts, strict=True)]
            found = program.run_backward(wanted, (*ctx.saved_tensors, *ctx.numbers, *tangents))
        for k, gradient in zip(wanted, found, strict=True):
            gradients[2 + joint.gradients[k]] = gradient
        return tuple(gradients)


_apply_node = super(torch.autograd.Function, CompiledBackward).apply
_unwrap = torch._C._functorch.unwrap_if_dead


def _apply(call: Call, values: dict[int, torch.Tensor], primals: Sequence[Any]) -> Sequence[Any]:
    """`CompiledBackward.apply`, without what it looks up in every call for functions that have `setup_context`.

    A tensor that a transform of `torch.func` has left behind is unwrapped, as there."""
    if torch._C._are_functorch_transforms_active():
        return CompiledBackward.apply(call, values, *primals)  # type: ignore[no-any-return]
    return _apply_node(call, values, *[_unwrap(p) if isinstance(p, torch.Tensor) else p for p in primals])  # type: ignore[no-any-return]


def _rerun_gradients(
    call: Call, given: Sequence[torch.Tensor | None], wanted: Sequence[int], is_cut: bool
) -> Sequence[Any]:
    """The gradients by PyTorch's own formulas, which autograd records under `create_graph=True`: the forward graph runs again."""
    joint = call.program.joint
    run = call.rerun(is_cut)
    call.forget_rerun()
    pairs = [(run.outputs[k], tangent) for k, tangent in zip(joint.tangents, given, strict=True) if tangent is not None]
    inputs = [run.inputs[joint.gradients[k]] for k in wanted]
    return run.gradients([output for output, _ in pairs], inputs, [tangent for _, tangent in pairs])


def _is_wrapped(tangent: torch.Tensor | None) -> bool:
    """Whether a transform of `torch.func`, or `is_grads_batched=True`, maps over the backward pass."""
    if tangent is None:
        return False
    return unwrapped(tangent) is not tangent or torch._C._functorch.is_legacy_batchedtensor(tangent)


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
