"""Programs of a compiled program's gradients, which are differentiable themselves: for `create_graph=True`.

    (g,) = torch.autograd.grad(f(x).sum(), x, create_graph=True)      ==>    program (x, t) -> g, compiled forward and backward
    g.square().sum().backward()

PyTorch's autograd makes the history of the gradients while they are traced, as it does for the joint graph; a second differentiation
behind the first gives the second joint graph. Programs are compiled when they are first needed. What the first forward pass has saved
is not computed again: the program takes it as it takes its arguments (`Classes.known`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from treadle_shapes.torch import undisturbed

from .ambient import Ambient
from .contract import CallInput, Contract
from .decompositions import Decompositions
from .effects import is_random
from .errors import UnsupportedGraph
from .functional_trace import mode_of
from .joint import Gradients, JointTrace, trace_joint
from .partition import Classes, FindParts, Partition, classify, is_view, saved_by_eager, split, viewed
from .same_values import same_values
from .second_runs import SecondRuns
from .traced_run import Traced
from .training import ProgramFacts, TrainingProgram
from .unbacked import shape_env_of
from .wrapper import wrap_compiled

if TYPE_CHECKING:
    from .kept.program import KeptHalves, KeptTrace
    from .partition import Halves

# (primals of the call that is differentiated, tangents, tensors that it has saved) -> gradients
GradientProgram = Callable[[Sequence[Any], Sequence[torch.Tensor], Sequence[torch.Tensor]], Sequence[Any]]


@dataclass(frozen=True)
class Recipe:
    """How the programs are made.

    compile: compiles the halves; late: runs what makes a program (`aot`); ambient: the settings under which the graph was traced;
    again: finds parts of forward that backward computes again; second_runs: counts those of all programs that are made in this way.
    """

    decompositions: Decompositions
    partition: Partition
    compile: Callable[[fx.GraphModule, Sequence[Any]], Any]
    late: Callable[[Callable[[], Any]], Any]
    ambient: Ambient
    again: FindParts | None = None
    second_runs: SecondRuns = field(default_factory=SecondRuns)


class GradientPrograms:
    """The programs of gradients of one training program."""

    def __init__(self, traced: Traced, recipe: Recipe) -> None:
        self.traced = traced
        self.recipe = recipe
        self._programs: dict[tuple[Gradients, bool], GradientProgram | None] = {}

    def find(
        self,
        joint: JointTrace | KeptTrace,
        wanted: Gradients,
        primals: Sequence[Any],
        halves: Halves | KeptHalves | None,
    ) -> GradientProgram | None:
        """The gradients that are `wanted` as a program; None where there is none.

        joint, halves: of the program that is differentiated; without halves what it has saved is not at hand. primals: of the call at
        hand.
        """
        key = wanted, halves is None
        if key not in self._programs:
            self._programs[key] = self.recipe.late(lambda: self._compile(joint, wanted, primals, halves))
        return self._programs[key]

    def _compile(
        self,
        joint: JointTrace | KeptTrace,
        wanted: Gradients,
        primals: Sequence[Any],
        first: Halves | KeptHalves | None,
    ) -> GradientProgram | None:
        traced = Traced(self.traced.gm, (*self.traced.orders, (joint.contract, wanted)))
        orders = [gradients for _, gradients in traced.orders]
        contract = traced.orders[0][0]
        n_static = len(contract.static_tensors)
        n_inputs = len(contract.inputs) - n_static
        start = len(joint.contract.static_tensors)
        examples = primals[start : start + n_inputs]
        try:
            with self.recipe.ambient.in_force(), _without_new_facts(traced.gm):
                second = trace_joint(traced.gm, examples, self.recipe.decompositions, orders)
        except UnsupportedGraph:
            return None
        if second is None:  # the gradients depend on nothing
            return None
        classes, places = classify(second), dict[fx.Node, int]()
        if first is not None:
            classes, places = _known(first.whole(), classes)
        halves = split(classes, self.recipe.partition(classes))
        examples = [node.meta["val"] for node in halves.forward.graph.find_nodes(op="placeholder")]
        with torch.inference_mode(False), torch.no_grad(), undisturbed():
            compiled = self.recipe.compile(halves.forward, examples)
        facts, programs = ProgramFacts.of(second, halves), GradientPrograms(traced, self.recipe)
        program = TrainingProgram(second, halves, facts, compiled, self.recipe.compile, programs)
        return _called_with_primals(program, joint.contract, [places[node] for node in halves.known])


def _known(first: Halves, classes: Classes) -> tuple[Classes, dict[fx.Node, int]]:
    """`classes`, of a program of gradients, with what the program that is differentiated has computed; and the positions, among the tensors
    that `first` saves, of those that are known by that.

    Nothing where random numbers are drawn: they depend on how many have been drawn before. The user can change the outputs of the first
    program: they are known only if eager would save them, too.
    """
    before = first.classes
    if before.joint.custom or classes.joint.custom or any(map(is_random, classes.joint.graph.nodes)):
        return classes, {}
    same = same_values(before.joint, classes.joint)
    by_eager, n_primals = saved_by_eager(classes), before.joint.n_primals
    position = {
        n: k for k, (n, place) in enumerate(zip(first.saved, first.primals, strict=True)) if _is_made(place, n_primals)
    }
    places = {
        node: position[other]
        for node, other in same.items()
        if other in position and not is_view(node) and (node in by_eager or viewed(other) not in before.visible)
    }
    computed = frozenset(before.order)
    done = frozenset(node for node, other in same.items() if other in computed)
    return replace(classes, known=frozenset(places), done=done), places


def _is_made(place: int | None, n_primals: int) -> bool:
    """Whether a saved tensor is no primal, but computed by the forward graph or by one before it. place: as in `Halves.primals`."""
    return place is None or place >= n_primals


def _called_with_primals(program: TrainingProgram, first: Contract, places: Sequence[int]) -> GradientProgram:
    """`program`, which computes gradients of the one with the contract `first`, as a function of what that one has read and saved.

    Parameters and buffers come from its primals, too: those that it has changed in place are read as they were before. places: the
    positions, among the saved tensors, of those that `program` is given.
    """
    contract = program.contract
    passed = replace(contract, inputs=tuple(map(CallInput, range(len(contract.inputs)))))
    assert not contract.mutations  # so nothing runs in eager
    run = wrap_compiled(program, passed, program.joint.input_values, program)
    given = {id(tensor): place for place, tensor in enumerate(first.static_tensors)}
    static = [(tensor, given.get(id(tensor))) for tensor in contract.static_tensors]
    n_static = len(first.static_tensors)

    def call(primals: Sequence[Any], tangents: Sequence[torch.Tensor], saved: Sequence[torch.Tensor]) -> Sequence[Any]:
        values = [tensor if place is None else primals[place] for tensor, place in static]
        return run(*values, *primals[n_static:], *tangents, *[saved[place].detach() for place in places])

    return call


def _without_new_facts(gm: fx.GraphModule) -> contextlib.AbstractContextManager[None]:
    """Inside, sizes answer from the facts that guards have established: nothing will check new ones."""
    mode = mode_of(gm.graph.nodes)
    shape_env = None if mode is None else shape_env_of(mode)
    return contextlib.nullcontext() if shape_env is None else shape_env.env.refusing_guards()
