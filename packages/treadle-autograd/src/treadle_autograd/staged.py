"""Run the backward graph in stages, each a node of its own in autograd's graph, while somebody waits for single gradients.

    run(primals)       outputs <- FirstStage <- LaterStage <- LaterStage        each leads to the primals whose gradients it computes
    loss.backward()    FirstStage: gradients of the last layers; autograd accumulates them and calls hooks, before the next stage runs

Tensors of no size connect the nodes. The gradient of such a tensor carries what the stage hands to the next one (`_Handed`), so that it
lives as long as the backward pass needs it, whatever interrupts the pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from .backward_pass import BackwardPass, begin_pass, gradients_elsewhere, laid_out
from .partition import Stage, cut, group_gradients, tangents_of
from .unpacked import layouts_to_restore, unpacked

if TYPE_CHECKING:
    from .training import Call, ForwardResults, TrainingProgram

_HOOKS = attrgetter("_post_accumulate_grad_hooks")
_IS_DISTRIBUTED = torch.distributed.is_available()


@dataclass
class Handed:
    """What one stage hands to the next.

    wanted     positions of the gradients that the pass computes
    absent     numbers of the tangents that it does without
    gradients  those that are known and not given to autograd yet
    values     what later stages read; None where the first one has found all gradients without the compiled backward graph
    """

    wanted: tuple[int, ...]
    absent: tuple[int, ...] = ()
    gradients: dict[int, Any] = field(default_factory=dict)
    values: dict[fx.Node, Any] | None = None

    def keep(self, stages: Sequence[Stage]) -> None:
        """Forget the values that none of these stages reads."""
        read = {node for stage in stages for node in (*stage.inputs, *[node for _, node in stage.gradients])}
        self.values = {node: value for node, value in (self.values or {}).items() if node in read}


class Stages:
    """The stages of the backward graph of one program. They are compiled when they first run.

    groups   positions of the gradients, by stage
    primals  positions of the primals that the gradients belong to, by stage
    saved    the saved tensors, by position, that the node of each stage keeps: the first stage that reads them
    """

    def __init__(self, program: TrainingProgram) -> None:
        self._program = program
        self._halves = program.halves.whole()
        self._joint = program.joint.whole()
        self.groups = group_gradients(self._halves)
        self.primals = tuple(tuple(self._joint.gradients[k] for k in group) for group in self.groups)
        self._plans: dict[tuple[tuple[int, ...], tuple[int, ...]], tuple[Stage, ...]] = {}
        self._functions: dict[Stage, Callable[..., Sequence[Any]]] = {}
        keepers = self._keepers()
        self.saved = tuple(
            tuple(place for place, keeper in enumerate(keepers) if keeper == number)
            for number in range(len(self.groups))
        )

    def plan(self, wanted: tuple[int, ...], absent: tuple[int, ...] = ()) -> tuple[Stage, ...]:
        """The stages that compute the gradients at these positions from the tangents that are not `absent`."""
        found = self._plans.get((wanted, absent))
        if found is None:
            found = self._plans[wanted, absent] = tuple(cut(self._halves, self.groups, wanted, absent))
        return found

    def functions(self, nodes: Sequence[Any]) -> dict[int, Any]:
        """The next function in autograd's graph of the primal of every gradient, where `nodes` are the stages' nodes."""
        found: dict[int, Any] = {}
        for number, (node, group) in enumerate(zip(nodes, self.groups, strict=False)):
            skipped = int(number < len(self.groups) - 1)  # the edge to the next stage
            found.update(zip(group, [function for function, _ in node.next_functions[skipped:]], strict=True))
        return found

    def begin(self, asked: BackwardPass, ctx: Any) -> Handed:
        """What the first stage begins with: the tangents and the saved numbers."""
        absent = self._program.absent(asked.given, asked.wanted)
        values = dict(zip(self._halves.numbers, ctx.numbers, strict=True))
        for k, node in enumerate(tangents_of(self._joint)):
            if k not in absent:
                values[node] = laid_out(asked.given[k], *ctx.layouts[k])
        return Handed(asked.wanted, absent, values=values)

    def run(self, number: int, handed: Handed, saved: Sequence[torch.Tensor]) -> list[Any]:
        """Run a stage; its gradients, in the order of its primals. saved: the tensors that its node keeps."""
        plan = self.plan(handed.wanted, handed.absent)
        stage, values = plan[number], handed.values
        if values is not None:
            nodes = self._halves.saved
            values.update(zip([nodes[place] for place in self.saved[number]], saved, strict=True))
            if stage.results:
                results = self._compiled(stage)(*[values[node] for node in stage.inputs])
                values.update(zip(stage.results, results, strict=True))
            handed.gradients.update((k, values[node]) for k, node in stage.gradients)
            handed.keep(plan[number + 1 :])
        return [handed.gradients.pop(k, None) for k in self.groups[number]]

    def _compiled(self, stage: Stage) -> Callable[..., Sequence[Any]]:
        if stage not in self._functions:
            self._functions[stage] = self._program.compile_backward(stage.graph, stage.results)
        return self._functions[stage]

    def _keepers(self) -> list[int]:
        """For every saved tensor the stage whose node keeps it. The first one keeps outputs, whose node it is."""
        halves = self._halves
        values: Any = self._joint.graph.output_node().args[0]
        outputs = set(values[: self._joint.n_outputs])
        readers: dict[fx.Node, int] = {}
        everything = tuple(k for group in self.groups for k in group)
        for number, stage in enumerate(self.plan(everything)):
            for node in stage.inputs:
                readers.setdefault(node, number)
        return [0 if node in outputs else readers.get(node, 0) for node in halves.saved]


def somebody_waits(primals: Sequence[Any], *, look_closely: bool) -> bool:
    """Whether the gradients of single primals are wanted as soon as they are ready: parameters have hooks, or a wrapper for data-parallel
    training, which has hooks on the nodes that accumulate gradients and holds on to them.

    look_closely: also look for somebody who holds on to those nodes, which takes longer.
    """
    leaves = [p for p in primals if p.requires_grad and p.is_leaf]
    if any(map(_HOOKS, leaves)):
        return True
    if not (_IS_DISTRIBUTED and torch.distributed.is_initialized()):
        return False
    is_wrapped = getattr(torch.nn.parallel.DistributedDataParallel, "_active_ddp_module", None) is not None
    return is_wrapped or (look_closely and any(map(_is_held, leaves)))


def _is_held(leaf: torch.Tensor) -> bool:
    """Whether somebody holds on to the node that accumulates the leaf's gradient: else autograd makes a new one each time."""
    mark = "treadle_has_seen_it"
    torch.autograd.graph.get_gradient_edge(leaf).node.metadata[mark] = True
    return bool(torch.autograd.graph.get_gradient_edge(leaf).node.metadata.pop(mark, False))


def run_in_stages(call: Call, values: dict[int, torch.Tensor], primals: Sequence[Any], stages: Stages) -> Any:
    """The forward graph's results, behind one node for each stage. `values` receives the outputs that get nodes of their own."""
    results = call.run_forward(primals)
    edge = None
    for number in range(len(stages.groups) - 1, 0, -1):
        kept = [results.saved[place] for place in stages.saved[number]]
        edge = LaterStage.apply(
            stages, number, kept, results.device, edge, *[primals[p] for p in stages.primals[number]]
        )
    first = [primals[p] for p in stages.primals[0]]
    return FirstStage.apply(call, stages, results, values, edge, *first)


class FirstStage(torch.autograd.Function):
    """The node of a call's outputs. Its backward pass finds out what is wanted, and runs the first stage."""

    @staticmethod
    def forward(
        ctx: Any,
        call: Call,
        stages: Stages,
        results: ForwardResults,
        values: dict[int, torch.Tensor],
        edge: Any,
        *primals: Any,
    ) -> Any:
        ctx.set_materialize_grads(False)
        ctx.call, ctx.stages, ctx.device = call, stages, results.device
        ctx.numbers, ctx.layouts = results.numbers, results.layouts
        kept = [results.saved[place] for place in stages.saved[0]]
        ctx.saved_layouts = layouts_to_restore(kept)
        ctx.save_for_backward(*results.behind_own_nodes(kept))
        ctx.mark_non_differentiable(*results.not_differentiable())
        return results.move_behind_own_nodes(values)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        stages: Stages = ctx.stages
        nodes = _nodes(ctx, len(stages.groups))
        functions = stages.functions(nodes)
        needed = tuple([functions.get(k) is not None for k in ctx.call.program.differentiated])
        asked = begin_pass(ctx.call, grad_outputs, needed, lambda: functions)
        if not asked.wanted:
            return (None,) * (5 + len(stages.primals[0]))
        # Raises what eager raises when they are gone, or have been changed.
        saved = unpacked(ctx.saved_tensors, ctx.saved_layouts)
        if asked.runs_compiled:
            handed = stages.begin(asked, ctx)
        else:
            for node in nodes[1:]:
                node.saved_tensors  # noqa: B018  (raises, too)
            found = gradients_elsewhere(ctx.call, asked, ctx.layouts)
            handed = Handed(asked.wanted, gradients=dict(zip(asked.wanted, found, strict=True)))
        gradients = stages.run(0, handed, saved)
        return (None, None, None, None, _carrier(handed, ctx.device), *gradients)


class LaterStage(torch.autograd.Function):
    """The node of a later stage. It leads to the primals whose gradients the stage computes, and to the stage behind it."""

    @staticmethod
    def forward(
        ctx: Any, stages: Stages, number: int, kept: list[torch.Tensor], device: torch.device, edge: Any, *primals: Any
    ) -> Any:
        ctx.set_materialize_grads(False)
        ctx.stages, ctx.number, ctx.device = stages, number, device
        ctx.saved_layouts = layouts_to_restore(kept)
        ctx.save_for_backward(*kept)
        return torch.empty(0, device=device)

    @staticmethod
    def backward(ctx: Any, carrier: Any) -> Any:
        stages: Stages = ctx.stages
        if carrier is None:
            return (None,) * (5 + len(stages.primals[ctx.number]))
        handed: Handed = carrier.handed
        gradients = stages.run(ctx.number, handed, unpacked(ctx.saved_tensors, ctx.saved_layouts))
        is_last = ctx.number == len(stages.groups) - 1
        return (None, None, None, None, None if is_last else _carrier(handed, ctx.device), *gradients)


def _carrier(handed: Handed, device: torch.device) -> torch.Tensor:
    """The gradient of the tensor that connects two stages."""
    carrier: Any = torch.empty(0, device=device)
    carrier.handed = handed
    return carrier  # type: ignore[no-any-return]


def _nodes(first: Any, n_stages: int) -> list[Any]:
    """The nodes of the stages in autograd's graph. It ends where nothing behind requires gradients."""
    nodes = [first]
    while len(nodes) < n_stages and (behind := nodes[-1].next_functions[0][0]) is not None:
        nodes.append(behind)
    return nodes
