"""Run the traced graph again in eager, under autograd: its history is eager's, whatever the program does to its tensors.

    def f(x):
        h = x.exp()
        with torch.no_grad(): h.clamp_(min=1)       h keeps the history of exp(x)
        return h.sin()

The functional graph (`rerun`) holds `clamp` in the place of `h`, computed with gradients off, and cannot tell that it keeps a history.

Gradients can end at results that others are computed from, as in `rerun`, where the program does not write to these any more
(`results_to_cut`): the rest of the program is given views of them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import torch
from torch import fx

from .asserts import is_assert
from .contract import Contract, FreshOutput, InputDescription, Relation, StaticInput, ViewOfFresh
from .errors import UnsupportedGraph
from .graph_runner import GraphRunner
from .joint import Gradients, JointTrace
from .later_writes import next_write
from .rerun import Gates
from .returned_views import ReturnedView


@dataclass(frozen=True)
class Traced:
    """What a joint graph was made from: a traced graph and, where it computes gradients of that graph's results, these by order.

    orders: (contract of the functional graph, gradients of its results that are the next one's results).
    """

    gm: fx.GraphModule
    orders: tuple[tuple[Contract, Gradients], ...] = ()


class TracedRun:
    """One run of a traced graph, as `rerun.DifferentiableRun` is one of its functional graph.

    inputs: the primals that it ran with. outputs: the program's results by their positions among the functional graph's outputs.
    cuts, real: as in `DifferentiableRun`, `cuts` being those of the functional graph; empty where gradients are to end at inputs only.
    """

    def __init__(
        self,
        traced: Traced,
        joint: JointTrace,
        cuts: Mapping[int, str] | None = None,
        real: Mapping[int, torch.Tensor] | None = None,
    ) -> None:
        self.inputs: list[Any] = []
        self.outputs: dict[int, torch.Tensor] = {}
        self.ends: dict[str, torch.Tensor] = {}
        self._traced = traced
        self._joint = joint
        self._gates = Gates()
        self._cuts, self._real = cuts or {}, real or {}
        self._positions = {name: position for position, name in joint.results_to_cut.items()} if cuts else {}
        self._whole: dict[int, torch.Tensor] = {}

    def run(self, values: Sequence[Any]) -> None:
        """Run with `values` for the primals; what the program writes to is copied first.

        `why_not_found` tells whether the outputs can be used.
        """
        contracts = [*(contract for contract, _ in self._traced.orders), self._joint.contract]
        self.inputs = list(map(self._gates.gate, values))
        given = {_key(i): value for i, value in zip(contracts[-1].inputs, self.inputs, strict=True)}
        for mutation in contracts[0].mutations:
            key = _key(contracts[0].inputs[mutation.input])
            given[key] = copy_with_history(given[key])
        results = self._run_graph(contracts[0], given)
        self.outputs = {**_by_position(contracts[0], results), **self._whole}
        for mutation in contracts[0].mutations:
            if mutation.has_history:
                self.outputs[mutation.position] = given[_key(contracts[0].inputs[mutation.input])]
        for (contract, wanted), following in zip(self._traced.orders, contracts[1:], strict=True):
            if any(position not in self.outputs for position in wanted.outputs):
                self.outputs = {}
                return
            tangents = [given[_key(i)] for i in following.inputs[len(following.inputs) - len(wanted.outputs) :]]
            found = torch.autograd.grad(
                [self.outputs[position] for position in wanted.outputs],
                [given[_key(contract.inputs[place])] for place in wanted.inputs],
                tangents,
                create_graph=True,
                allow_unused=True,
            )
            self.outputs = _by_position(following, found)

    def _run_graph(self, contract: Contract, given: Mapping[tuple[bool, int], Any]) -> Sequence[Any]:
        gm = self._traced.gm
        attributes: dict[str, Any] = {}
        for node in gm.graph.find_nodes(op="get_attr"):
            found = attrgetter(str(node.target))(gm)
            attributes[str(node.target)] = given.get((True, id(found)), found)
        arguments = [given[_key(i)] for i in contract.inputs if not isinstance(i, StaticInput)]
        return GraphRunner(gm, attributes, self._call).run(*arguments, enable_io_processing=False)  # type: ignore[no-any-return]

    def _call(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        result = _call(node, args, kwargs)
        position = self._positions.get(node.name)
        if position is None:
            return result
        self._whole[position] = result
        ended = self.ends[self._cuts[position]] = self._gates.gate(result, self._real.get(position))
        return ended

    def why_not_found(self) -> str | None:
        """Why this run cannot stand for the functional graph's."""
        values: Any = self._joint.graph.output_node().args[0]
        for position in self._joint.tangents:
            found, expected = self.outputs.get(position), values[position].meta["val"]
            if found is None or found.dim() != expected.dim() or found.dtype != expected.dtype:
                return f"output {position} of the graph is no tensor that the program has at hand"
        return None

    def gate(self, value: Any) -> Any:
        """One more tensor behind which gradients end."""
        return self._gates.gate(value)

    def gradients(self, outputs: Sequence[Any], inputs: Sequence[Any], tangents: Sequence[Any]) -> Sequence[Any]:
        """Gradients that end at the inputs. They are differentiable in grad mode, all the way to what the inputs are computed from."""
        return self._gates.gradients(outputs, inputs, tangents)


def results_to_cut(
    gm: fx.GraphModule,
    contract: Contract,
    positions: Collection[int],
    cuts: Collection[int],
    views: Mapping[int, ReturnedView],
) -> dict[int, str]:
    """The names of the traced graph's calls whose results are the functional graph's outputs at `cuts`, or the `views` at these places.

    positions: of all outputs that are differentiated. Raises UnsupportedGraph where a run of the traced graph does not find one of them,
    or writes to one at which gradients are to end.
    """
    results: Any = gm.graph.output_node().args[0]
    nodes = {
        described.position: node
        for described, node in zip(contract.outputs, results, strict=True)
        if isinstance(described, FreshOutput) and isinstance(node, fx.Node)
    }
    nodes.update((place, results[view.output]) for place, view in views.items())
    if any(position not in nodes for position in positions):
        raise UnsupportedGraph("an output is computed from another, and not all of them are the program's own results")
    for position in cuts:
        node = nodes[position]
        writer = next_write(node) if node.op.startswith("call_") else node.name
        if writer is not None:
            raise UnsupportedGraph(f"an output is computed from another, which {writer} may change")
    return {position: nodes[position].name for position in cuts}


def copy_with_history(tensor: torch.Tensor) -> torch.Tensor:
    """A copy that keeps its value when `tensor` is changed in place. Autograd takes it for a function of `tensor` if it has a history."""
    return tensor.clone() if tensor.requires_grad else tensor.detach().clone()


def _key(described: InputDescription) -> tuple[bool, int]:
    return (True, id(described.tensor)) if isinstance(described, StaticInput) else (False, described.index)


def _call(node: fx.Node, args: Any, kwargs: Any) -> Any:
    if is_assert(node):
        return None  # it held when the graph ran
    if node.op == "call_method":
        return getattr(args[0], str(node.target))(*args[1:], **kwargs)
    target: Any = node.target
    return target(*args, **kwargs)


_VIEWS = (Relation.VIEW, Relation.UNRECORDED, Relation.UNRECORDED_OF_HISTORY)


def _shows_base(described: ViewOfFresh) -> bool:
    """Whether eager's output knows what it is a view of."""
    return described.detached is None and described.relation in _VIEWS


def _by_position(contract: Contract, results: Sequence[Any]) -> dict[int, torch.Tensor]:
    found: dict[int, torch.Tensor] = {}
    for described, result in zip(contract.outputs, results, strict=True):
        if isinstance(described, FreshOutput):
            found[described.position] = result
        elif isinstance(described, ViewOfFresh) and _shows_base(described) and result._base is not None:
            found.setdefault(described.position, result._base)
    return found
