"""What each node of a joint graph is to the partition: its half, its size, and whether backward may compute it again.

out = gelu(x @ w)        mm: forward, never recomputed (a matrix product)
loss = out.sum()         gelu: forward, recomputed for free (pointwise, fuses into its reader)
                         everything behind a tangent: backward
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from treadle_shapes.torch import Kind
from treadle_shapes.torch import operator as operator_of

from ..ancestors import ancestors
from ..effects import has_effect, is_random
from ..joint import JointTrace
from ..node_sizes import is_number
from ..random_replay import why_not_replay
from .from_statistics import FromStatistics, add_rules

# Kinds whose results are saved or computed in forward, and computed again only where a budget or a checkpoint asks for it.
_SAVED_BY_DEFAULT = frozenset(
    {
        Kind.MATMUL,
        Kind.CONVOLUTION,
        Kind.ATTENTION,
        Kind.RANDOM,
        Kind.SORT,
        Kind.SCAN,
        Kind.LINALG,
        Kind.FFT,
        Kind.SCATTER,
        Kind.POOLING,
        Kind.RESAMPLING,
        Kind.NORMALISATION,
        Kind.REDUCTION,
        Kind.SPARSE,
        Kind.EFFECT,
        Kind.OTHER,
    }
)
# Kinds whose results share memory with their argument, or are numbers: nothing is computed.
_FREE = frozenset({Kind.VIEW, Kind.QUERY})


@dataclass(frozen=True)
class Classes:
    """Facts about the nodes of one joint graph.

    backward   nodes that depend on a tangent, tangents included; effects of formulas of backward and what depends on them
    needed     nodes of the forward part that backward nodes or gradients read
    visible    inputs, and nodes whose memory the program gets as an output
    order      nodes that depend on no tangent, in graph order
    interior   nodes inside checkpointed parts of the program, or parts that their compiler asks for, that must be computed again
    results    the other nodes of such parts that depend on them: computing one of them again would enter the part from behind
    from_statistics   results of batch norms that backward can compute again
    known      tensors that the forward graph can be given behind the primals
    done       nodes that have been computed before the forward graph runs, `known` and others: what they check has been checked
    """

    joint: JointTrace
    backward: frozenset[fx.Node]
    needed: frozenset[fx.Node]
    visible: frozenset[fx.Node]
    order: tuple[fx.Node, ...]
    interior: frozenset[fx.Node] = frozenset()
    results: frozenset[fx.Node] = frozenset()
    from_statistics: Mapping[fx.Node, FromStatistics] = field(default_factory=dict)
    known: frozenset[fx.Node] = frozenset()
    done: frozenset[fx.Node] = frozenset()

    @functools.cached_property
    def states(self) -> frozenset[fx.Node]:
        """The nodes that read the state of a random generator."""
        return frozenset(self.joint.states.values())

    def inputs_of(self, node: fx.Node) -> Sequence[fx.Node]:
        """What computing the node again takes: its arguments, and for random numbers the state that the generator had."""
        if node in self.known:
            return ()
        if node in self.from_statistics:
            return self.from_statistics[node].inputs
        state = self.joint.states.get(node)
        return node.all_input_nodes if state is None else [*node.all_input_nodes, state]


def is_view(node: fx.Node) -> bool:
    """Whether the node's result, or each of its results (`unbind`), shares its argument's memory."""
    call = node.all_input_nodes[0] if node.target is operator.getitem else node
    found = operator_of(call.target) if isinstance(call.target, torch._ops.OpOverload) else None
    return found is not None and found.kind in _FREE and _is_tensors(node.meta.get("val"))


def _is_tensors(value: Any) -> bool:
    return all(isinstance(item, torch.Tensor) for item in (value if isinstance(value, (tuple, list)) else [value]))


def viewed(node: fx.Node) -> fx.Node:
    """The node whose memory a view shows; other nodes themselves."""
    while is_view(node) and (inputs := node.all_input_nodes):
        node = inputs[0]
    return node


def why_never_recompute(node: fx.Node) -> str | None:
    """Why backward must not compute the node again at any price."""
    if node.op == "placeholder":
        return "an input"
    if node.target is operator.getitem:
        return why_never_recompute(node.all_input_nodes[0])
    if is_number(node):
        return None
    found = operator_of(node.target)
    if found is None:
        return "an unknown operator"
    if found.is_random:
        return why_not_replay(node)
    return None if found.is_pure else "it has an effect"


def why_not_recompute(node: fx.Node) -> str | None:
    """Why backward does not compute the node again unless asked to; None where that costs next to nothing or is fused away."""
    if node.op == "placeholder":
        return "an input"
    if node.target is operator.getitem or is_number(node):
        return None
    never = why_never_recompute(node)
    if never is not None:
        return never
    if node.meta.get("may_raise"):
        return "it may raise"
    found = operator_of(node.target)
    return f"a {found.kind.name.lower()}" if found is not None and found.kind in _SAVED_BY_DEFAULT else None


def classify(joint: JointTrace) -> Classes:
    """The classes of the nodes of a joint graph."""
    nodes = list(joint.graph.nodes)
    output = nodes[-1]
    tangents = [node for node in nodes if node.op == "placeholder"][joint.n_primals :]
    backward: set[fx.Node] = set(tangents)
    for node in nodes[:-1]:
        if not backward.isdisjoint(node.all_input_nodes) or _is_effect_of_backward(node):
            backward.add(node)
    from_statistics = add_rules(joint.graph, backward)
    nodes = list(joint.graph.nodes)
    results: Any = output.args[0]
    gradients = [item for item in results[joint.n_outputs :] if isinstance(item, fx.Node)]
    readers = set[fx.Node]().union(*[node.all_input_nodes for node in nodes[:-1] if node in backward])
    needed = readers.union(gradients) - backward
    needed |= _read_for_truths(needed)
    order = tuple(node for node in nodes[:-1] if node not in backward)
    given = [node for node in results[: joint.n_outputs] if isinstance(node, fx.Node)]
    visible = {node for node in nodes if node.op == "placeholder"} | set(map(viewed, given))
    interior = frozenset(node for node in order if _is_interior(node, given))
    behind = results_of_parts(order, interior)
    return Classes(
        joint, frozenset(backward), frozenset(needed), frozenset(visible), order, interior, behind, from_statistics
    )


def results_of_parts(order: Sequence[fx.Node], interior: frozenset[fx.Node]) -> frozenset[fx.Node]:
    """The nodes of forward that depend directly on the interior of a part, and are none of it."""
    return frozenset(
        node
        for node in (order if interior else ())
        if node not in interior
        and not node.meta.get("of_backward")
        and not is_number(node)
        and not interior.isdisjoint(node.all_input_nodes)
    )


def is_truth_of_tensor(node: fx.Node) -> bool:
    """Whether the node reads a bool from a tensor (`flag.item()`)."""
    return isinstance(node.meta.get("val"), torch.SymBool) and not all(map(is_number, node.all_input_nodes))


def _read_for_truths(nodes: Iterable[fx.Node]) -> set[fx.Node]:
    """The tensors that bools among these numbers, or what these are computed from, are read from."""
    numbers = ancestors(filter(is_number, nodes), inputs_of=lambda node: [*filter(is_number, node.all_input_nodes)])
    return {used for node in numbers if is_truth_of_tensor(node) for used in node.all_input_nodes}


def _is_effect_of_backward(node: fx.Node) -> bool:
    """Whether the node is to happen when backward runs, although it depends on no tangent, such as a draw of random numbers."""
    return bool(node.meta.get("of_backward")) and node.op == "call_function" and (has_effect(node) or is_random(node))


def _is_interior(node: fx.Node, given: list[fx.Node]) -> bool:
    """Whether only the node's own checkpointed part uses it, and backward. What is computed from random numbers alone may be saved in their
    place: it can be smaller."""
    part = node.meta.get("checkpoint")
    if part is None or node in given or why_never_recompute(node) is not None:
        return False
    if node.all_input_nodes and all(why_never_recompute(used) is not None for used in node.all_input_nodes):
        return any(used.op == "placeholder" for used in node.all_input_nodes)
    return all(user.meta.get("of_backward") or user.meta.get("checkpoint") == part for user in node.users)
