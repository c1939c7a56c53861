"""Cut the backward graph into stages, so that gradients that are ready early are given out early.

joint backward:  dW3 = ...; g2 = ...; dW2 = ...; g1 = ...; dW1 = ...
    stage 1:   saved, t   ->  dW3, and for later stages g2
    stage 2:   saved, g2  ->  dW2, and for later stages g1
    stage 3:   saved, g1  ->  dW1

Data-parallel training sends the gradients of the last layers to the other processes while those of the first layers are computed. A hook
may change a parameter as soon as it has its gradient, as optimizers inside of backward do: no later stage reads it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from treadle_shapes.torch import HooklessGraphModule

from ..ancestors import InputsOf, ancestors
from ..effects import changes_something, has_effect, is_random
from ..node_sizes import is_number, size_in_bytes
from .classify import is_view, viewed, why_not_recompute
from .split import Halves, graph_between, tangents_of

MOST_STAGES = 8
"""Each one costs a call, and what is fused across its borders."""


@dataclass(frozen=True, eq=False)
class Stage:
    """One stage of a backward graph.

    graph      inputs -> results
    inputs     the joint graph's nodes of what the stage reads: saved tensors and numbers, tangents, results of earlier stages
    results    the joint graph's nodes of what it computes: its gradients, and what later stages read
    gradients  (position among the joint graph's gradients, node) of its gradients
    """

    graph: fx.GraphModule
    inputs: tuple[fx.Node, ...]
    results: tuple[fx.Node, ...]
    gradients: tuple[tuple[int, fx.Node], ...]


def why_not_cut(halves: Halves) -> str | None:
    """Why the backward graph must stay in one piece. What may raise runs in the first stage that needs it, as all else."""
    needed = ancestors(_gradients(halves).values())
    backward = (node for node in halves.classes.joint.graph.nodes if node in halves.classes.backward)
    for node in backward:
        if node.op != "call_function":
            continue
        if is_random(node) or changes_something(node) or (has_effect(node) and node not in needed):
            return f"{node.name} has an effect in backward, and the order of effects counts"
    return None


def group_gradients(halves: Halves) -> tuple[tuple[int, ...], ...]:
    """The positions of the gradients by stage, in the order in which they are ready. Stages have about the same bytes of gradients.

    One group holds all where the graph must not be cut, or has too few gradients."""
    gradients = _gradients(halves)
    if why_not_cut(halves) is not None:
        return (tuple(gradients),)
    order = {node: place for place, node in enumerate(halves.classes.joint.graph.nodes)}
    by_memory: dict[fx.Node, list[int]] = {}
    for k, node in sorted(gradients.items(), key=lambda item: order[item[1]]):
        by_memory.setdefault(viewed(node), []).append(k)
    share = sum(map(size_in_bytes, by_memory)) / MOST_STAGES
    groups: list[list[int]] = [[]]
    filled = 0
    for memory, positions in by_memory.items():
        if groups[-1] and filled >= share:
            groups.append([])
            filled = 0
        groups[-1] += positions
        filled += size_in_bytes(memory)
    return tuple(map(tuple, _not_read_later(halves, groups)))


def cut(
    halves: Halves, groups: Sequence[Collection[int]], wanted: Collection[int], absent: Collection[int] = ()
) -> list[Stage]:
    """The stages that compute the gradients at the positions `wanted`, one for each of `groups`; a stage may have none.

    absent: numbers of the tangents that are not defined and that the graph does without (`Halves.why_not_without`)."""
    joint = halves.classes.joint
    nodes = list(joint.graph.nodes)
    gradients = _gradients(halves)
    gone = halves.without(absent)
    inputs_of = _inputs_without(halves, gone)
    given = {node: None for node in _given(halves) if node not in gone}
    late = frozenset(halves.classes.order)
    stages: list[Stage] = []
    for number, group in enumerate(groups):
        mine = tuple((k, gradients[k]) for k in group if k in wanted)
        rest = [gradients[k] for later in groups[number + 1 :] for k in later if k in wanted]
        carried = _carried(halves, given, [k for k, _ in mine], rest, inputs_of)
        results = tuple(node for node in dict.fromkeys((*[n for _, n in mine], *carried)) if node not in given)
        used = ancestors(results, frozenset(given), inputs_of)
        inputs = tuple(node for node in given if node in used)
        graph = graph_between(inputs, results, nodes, (), late, replayed=halves.classes, gone=gone)
        stages.append(
            Stage(HooklessGraphModule(torch.nn.Module(), graph, class_name="BackwardGraph"), inputs, results, mine)
        )
        given.update(dict.fromkeys(carried))
    return stages


def _gradients(halves: Halves) -> dict[int, fx.Node]:
    joint = halves.classes.joint
    results: Any = joint.graph.output_node().args[0]
    return {k: node for k, node in enumerate(results[joint.n_outputs :]) if isinstance(node, fx.Node)}


def _given(halves: Halves) -> dict[fx.Node, None]:
    """What the first stage may read, as an ordered set."""
    return dict.fromkeys((*halves.saved, *halves.numbers, *tangents_of(halves.classes.joint)))


def _inputs_without(halves: Halves, gone: frozenset[fx.Node]) -> InputsOf:
    """What computing a node takes where the nodes `gone` are left out."""
    inputs_of = halves.classes.inputs_of
    return (lambda node: [used for used in inputs_of(node) if used not in gone]) if gone else inputs_of


def _carried(
    halves: Halves, given: Collection[fx.Node], group: Collection[int], rest: Sequence[fx.Node], inputs_of: InputsOf
) -> list[fx.Node]:
    """What the stage of the gradients in `group` computes, and later stages read for `rest`, where it would cost something to compute it
    again, or reads a primal that has got its gradient."""
    gradients, known = _gradients(halves), frozenset(given)
    last_reads = _last_reads(halves, group, ancestors(rest, known, inputs_of) - known)
    computed = ancestors([*[gradients[k] for k in group], *last_reads], known, inputs_of) - known
    kept = frozenset(node for node in computed if node in last_reads or _is_kept(node, halves))
    read = ancestors(rest, known | kept, inputs_of)
    return [node for node in halves.classes.joint.graph.nodes if node in read and node in kept]


def _last_reads(halves: Halves, group: Collection[int], later: Collection[fx.Node]) -> set[fx.Node]:
    """The tensors among `later` that are computed from the memory of a primal whose gradient is in `group`."""
    joint = halves.classes.joint
    primals = joint.graph.find_nodes(op="placeholder")
    released = {primals[joint.gradients[k]] for k in group}
    found = [
        node
        for node in later
        if not (is_view(node) or is_number(node)) and any(viewed(n) in released for n in halves.classes.inputs_of(node))
    ]
    tensors = [[node] if isinstance(node.meta.get("val"), torch.Tensor) else list(node.users) for node in found]
    return {node for nodes in tensors for node in nodes if node in later}


def _is_kept(node: fx.Node, halves: Halves) -> bool:
    """Whether later stages get the node's tensor. They compute views, numbers and what fuses for free again."""
    if not isinstance(node.meta.get("val"), torch.Tensor) or is_view(node):
        return False
    return node in halves.classes.backward or why_not_recompute(node) is not None


def _not_read_later(halves: Halves, groups: list[list[int]]) -> list[list[int]]:
    """The groups, after gradients whose memory a later stage reads have been moved there: whoever gets a gradient may write to it."""
    gradients = _gradients(halves)
    given, inputs_of = _given(halves), halves.classes.inputs_of
    for number, group in enumerate(groups[:-1]):
        rest = [gradients[k] for later in groups[number + 1 :] for k in later]
        given.update(dict.fromkeys(_carried(halves, given, group, rest, inputs_of)))
        read = ancestors(rest, frozenset(given), inputs_of)
        moved = [k for k in group if viewed(gradients[k]) in given and viewed(gradients[k]) in read]
        groups[number] = [k for k in group if k not in moved]
        groups[number + 1] += moved
    return [group for group in groups if group]
