"""Make the forward and the backward graph of a joint graph once it is known which values are saved.

joint (x, w, t): mm, gelu, backward...        saved: x, mm
    forward (x, w):       mm, gelu            output (gelu, x, mm)
    backward (x, mm, t):  gelu_backward, ...  output (dx, dw)
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from treadle_shapes.expr import Symbol, free_symbols
from treadle_shapes.torch import HooklessGraphModule, expr_of

from ..ancestors import ARGUMENTS, InputsOf, ancestors
from ..custom_gradients import CustomCall, insert_custom_calls
from ..effects import has_effect
from ..graph_nodes import copy_node
from ..joint import JointTrace
from ..node_sizes import is_number
from ..random_replay import replay
from .absent import append_copy, computed_from, insert_zeros, left_operand, why_not_left_out
from .asked_results import ask_for_used_results
from .classify import Classes, classify, is_truth_of_tensor
from .from_statistics import compute_again
from .mincut import Partition
from .parts import FindParts, computing_again


@dataclass(frozen=True)
class Halves:
    """The two graphs: forward, (*primals, *known) -> (*outputs, *saved tensors, *saved numbers), and backward,
    (*saved tensors, *saved numbers, *tangents) -> gradients.

    saved      the joint graph's nodes of the saved tensors; numbers: those of the saved numbers
    primals    of each saved tensor, the position of the input that it is, or None: such tensors are no outputs of the forward graph
    reads      for every gradient of the joint graph, the tangents that it depends on, by number; None for a gradient that is always zero
    known      the joint graph's nodes of the tensors that the forward graph takes behind the primals
    saved_for  for every tangent the places among the saved tensors of what is read in a pass from it alone; empty where nobody asks
    """

    classes: Classes
    forward: fx.GraphModule
    saved: tuple[fx.Node, ...]
    numbers: tuple[fx.Node, ...]
    primals: tuple[int | None, ...]
    reads: tuple[frozenset[int] | None, ...]
    known: tuple[fx.Node, ...] = ()
    saved_for: tuple[frozenset[int], ...] = ()

    def whole(self) -> Halves:
        """The halves themselves; `kept.program.KeptHalves` makes them."""
        return self

    @functools.cached_property
    def reference(self) -> fx.GraphModule:
        """The forward graph without what is saved: primals -> outputs."""
        joint = self.classes.joint
        nodes = list(joint.graph.nodes)
        outputs: Any = nodes[-1].args[0][: joint.n_outputs]  # type: ignore[index]
        primals = [node for node in nodes if node.op == "placeholder"][: joint.n_primals]
        graph = graph_between(primals, outputs, nodes, _effects(self.classes), custom=joint.custom)
        return HooklessGraphModule(torch.nn.Module(), graph, class_name="ReferenceGraph")

    def backward(self, wanted: Sequence[int], absent: Collection[int] = ()) -> fx.GraphModule:
        """The backward graph that computes the gradients at the positions `wanted`, in that order, without the tangents `absent`."""
        joint = self.classes.joint
        nodes = list(joint.graph.nodes)
        gradients: Any = nodes[-1].args[0][joint.n_outputs :]  # type: ignore[index]
        given = [tangent for k, tangent in enumerate(tangents_of(joint)) if k not in absent]
        inputs = [*self.saved, *self.numbers, *given]
        gone = self.without(absent)
        effects = [
            node
            for node in nodes
            if node in self.classes.backward and node.op != "placeholder" and node not in gone and has_effect(node)
        ]
        late = frozenset(self.classes.order)
        graph = graph_between(
            inputs, [gradients[k] for k in wanted], nodes, effects, late, replayed=self.classes, gone=gone
        )
        return HooklessGraphModule(torch.nn.Module(), graph, class_name="BackwardGraph")

    def why_not_without(self, absent: Collection[int]) -> str | None:
        """Why `backward` cannot do without these tangents, or None."""
        joint = self.classes.joint
        gone = self.without(absent)
        reasons = (call.why_not_without(absent, gone) for call in joint.custom)
        return next(filter(None, reasons), None) or why_not_left_out(joint.graph.nodes, gone)

    def without(self, absent: Collection[int]) -> frozenset[fx.Node]:
        """The nodes that are computed from these tangents alone."""
        if not absent:
            return frozenset()
        joint = self.classes.joint
        tangents = tangents_of(joint)
        gone = [tangent for k, tangent in enumerate(tangents) if k in absent]
        return computed_from(joint.graph.nodes, gone, [tangent for tangent in tangents if tangent not in gone])


def divided(joint: JointTrace, partition: Partition, again: FindParts | None = None) -> Halves:
    """The halves of a joint graph, what is saved between them being the partition's choice. again: finds parts to compute again."""
    classes = classify(joint)
    if again is not None:
        classes = computing_again(classes, again)
    return split(classes, partition(classes))


def split(classes: Classes, saved: Sequence[fx.Node]) -> Halves:
    """Divide the joint graph at `saved`. Numbers that backward needs are saved beside the tensors, as leaves of their arithmetic."""
    joint = classes.joint
    _read_sizes_of_inputs(classes, saved)
    nodes = list(joint.graph.nodes)
    results: Any = nodes[-1].args[0]
    _mark_rounded(classes, saved, results[joint.n_outputs :])
    primals = [node for node in nodes if node.op == "placeholder"][: joint.n_primals]
    numbers = _numbers_of_backward(classes, saved)
    outputs = results[: joint.n_outputs]
    known = _used_known(classes, [*outputs, *numbers], saved)
    position = {node: k for k, node in enumerate([*primals, *known])}
    places = tuple(position.get(node) for node in saved)
    given = [node for node, place in zip(saved, places, strict=True) if place is None]
    forward = graph_between([*primals, *known], [*outputs, *given, *numbers], nodes, _effects(classes))
    forward.output_node().meta["saved_results"] = range(len(outputs), len(outputs) + len(given))
    return Halves(
        classes,
        HooklessGraphModule(torch.nn.Module(), forward, class_name="ForwardGraph"),
        tuple(saved),
        tuple(numbers),
        places,
        _reads(joint, results[joint.n_outputs :]),
        tuple(known),
        find_saved_for(classes, saved) if joint.freed_by else (),
    )


def _mark_rounded(classes: Classes, saved: Sequence[fx.Node], gradients: Sequence[Any]) -> None:
    """Set `meta["rounded"]` of the numbers in a low precision that backward reads or computes again.

    A compiler may leave such numbers in float32 between two operators, which it does where none of them goes through memory. Forward and
    backward differ in that, so backward would compute others than those that saved statistics are of.
    """
    if not any(_is_low(node) for node in classes.needed):
        return
    read = ancestors(
        [*saved, *[node for node in gradients if isinstance(node, fx.Node)]],
        frozenset(saved),
        classes.inputs_of,
    )
    for node in classes.order:
        if node in read and node.op == "call_function" and _is_low(node):
            node.meta["rounded"] = True


def _is_low(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.dtype in (torch.float16, torch.bfloat16)


def _used_known(classes: Classes, results: Sequence[Any], saved: Sequence[fx.Node]) -> list[fx.Node]:
    """The known tensors, in graph order, that the forward graph reads or hands on."""
    if not classes.known:
        return []
    roots = [*_effects(classes), *[node for node in results if isinstance(node, fx.Node)], *saved]
    read = ancestors(roots, classes.known)
    return [node for node in classes.order if node in read and node in classes.known]


def _effects(classes: Classes) -> list[fx.Node]:
    """The nodes of the forward part that must run even if nobody uses their results."""
    return [
        node for node in classes.order if node.op == "call_function" and has_effect(node) and node not in classes.done
    ]


def tangents_of(joint: JointTrace) -> list[fx.Node]:
    """The placeholders of the tangents."""
    return [node for node in joint.graph.nodes if node.op == "placeholder"][joint.n_primals :]


def _reads(joint: JointTrace, gradients: Sequence[Any]) -> tuple[frozenset[int] | None, ...]:
    """The numbers of the tangents below each gradient: it is defined where one of them is."""
    tangents = tangents_of(joint)
    # Sets of numbers as ints, of the nodes below tangents.
    bits = {node: 1 << k for k, node in enumerate(tangents)}
    for call in joint.custom:  # whose gradients need not be computed from those it is given
        for gradient in call.gradients:
            bits[gradient] = bits.get(gradient, 0) | sum(1 << k for k in call.tangents)
    for node in joint.graph.nodes:
        found = bits.get(node, 0)
        for used in node.all_input_nodes:
            found |= bits.get(used, 0)
        if found:
            bits[node] = found

    def numbers(node: fx.Node) -> frozenset[int]:
        found = bits.get(node, 0)
        return frozenset(k for k in range(len(tangents)) if found >> k & 1)

    return tuple(numbers(node) if isinstance(node, fx.Node) else None for node in gradients)


def find_saved_for(classes: Classes, saved: Sequence[fx.Node]) -> tuple[frozenset[int], ...]:
    """The places of the saved tensors that what depends on each tangent is computed from, and what depends on none."""
    joint = classes.joint
    nodes, boundary = list(joint.graph.nodes), frozenset(saved)
    tangents = tangents_of(joint)
    below = set(tangents)
    for node in nodes:
        if any(used in below for used in node.all_input_nodes):
            below.add(node)
    gradients: Any = nodes[-1].args[0][joint.n_outputs :]  # type: ignore[index]
    always = [node for node in classes.backward if has_effect(node)]
    always += [node for node in gradients if isinstance(node, fx.Node) and node not in below]
    found = []
    for number, tangent in enumerate(tangents):
        # Custom functions need not compute gradients from those they are given.
        given = {gradient for call in joint.custom if number in call.tangents for gradient in call.gradients}
        depends, reads = {tangent, *given}, {*always, *given}
        for gradient in given:
            reads.update(classes.inputs_of(gradient))
        for node in nodes:
            if node.op != "output" and any(used in depends for used in node.all_input_nodes):
                depends.add(node)
                reads.update(classes.inputs_of(node))
        read = ancestors(reads - below, boundary, classes.inputs_of)
        found.append(frozenset(place for place, node in enumerate(saved) if node in read))
    return tuple(found)


def _is_leaf(node: fx.Node) -> bool:
    """Whether a number comes from a tensor or is an input, rather than from other numbers. Truths are read from their tensors again."""
    return (
        is_number(node)
        and not is_truth_of_tensor(node)
        and not (node.all_input_nodes and all(map(is_number, node.all_input_nodes)))
    )


def _numbers_of_backward(classes: Classes, saved: Sequence[fx.Node]) -> list[fx.Node]:
    """The leaves of the arithmetic on sizes that backward needs, each once, in graph order."""
    nodes = list(classes.joint.graph.nodes)
    leaves = frozenset(filter(_is_leaf, nodes))
    if not leaves:
        return []
    used = _used_by_backward(classes, saved, leaves)
    needed = leaves.intersection(used).union(_untold(used, [*saved, *tangents_of(classes.joint)], leaves))
    return [node for node in nodes if node in needed]


def _used_by_backward(classes: Classes, saved: Sequence[fx.Node], leaves: frozenset[fx.Node]) -> set[fx.Node]:
    """What backward computes, and what it reads of `saved` and `leaves`."""
    gradients: Any = classes.joint.graph.output_node().args[0][classes.joint.n_outputs :]  # type: ignore[index]
    checked = [node for node in classes.backward if node.op != "placeholder" and has_effect(node)]
    return ancestors([*checked, *[node for node in gradients if isinstance(node, fx.Node)]], leaves.union(saved))


def _read_sizes_of_inputs(classes: Classes, saved: Sequence[fx.Node]) -> None:
    """Add leaves for the sizes of inputs that backward needs and nothing in the joint graph asks for.

    The convolution of an input with n columns has (n + 1) // 2 of them, which do not tell n. Backward may read it without the input.
    """
    nodes = list(classes.joint.graph.nodes)
    primals = [node for node in nodes if node.op == "placeholder"][: classes.joint.n_primals]
    places = {size: (primal, dim) for primal in primals for dim, size in _named_sizes(primal)}
    if not places:
        return
    leaves = frozenset(filter(_is_leaf, nodes))
    used = _used_by_backward(classes, saved, leaves)
    asked = {expr_of(leaf.meta["val"]) for leaf in leaves}
    untold = _untold_symbols(used, [*saved, *tangents_of(classes.joint)], {})
    before = next(node for node in nodes if node.op != "placeholder")
    for symbol in sorted(untold & places.keys() - asked, key=str):
        primal, dim = places[symbol]
        with classes.joint.graph.inserting_before(before):
            leaf = classes.joint.graph.call_function(torch.ops.aten.sym_size.int, (primal, dim))
        leaf.meta["val"] = primal.meta["val"].size(dim)


def _named_sizes(primal: fx.Node) -> Iterator[tuple[int, Any]]:
    """The dimensions of an input whose size is a symbol, and the symbol."""
    value = primal.meta.get("val")
    for dim, size in enumerate(value.size() if isinstance(value, torch.Tensor) else ()):
        if isinstance(size, torch.SymInt) and isinstance(expr_of(size), Symbol):
            yield dim, expr_of(size)


def _untold(used: Iterable[fx.Node], given: Sequence[fx.Node], leaves: Iterable[fx.Node]) -> Iterator[fx.Node]:
    """The leaves of numbers in sizes of tensors that neither a size of the `given` tensors nor a used leaf is.

    Such a size is computed from numbers of forward, like the `2*n` elements of `torch.arange(2 * n)`.
    """
    places = {expr_of(leaf.meta["val"]): leaf for leaf in leaves if isinstance(leaf.meta.get("val"), torch.SymInt)}
    for symbol in _untold_symbols(set(used), given, places):
        if symbol in places:
            yield places[symbol]


def _untold_symbols(used: set[fx.Node], given: Sequence[fx.Node], places: Mapping[Any, fx.Node]) -> set[Any]:
    """The symbols in sizes of tensors that no size of the `given` tensors is, nor a leaf in `places` that is used."""
    symbols = {symbol for node in used.union(given) for size in _sizes(node) for symbol in free_symbols(size)}
    told = {size for node in given for size in _sizes(node)}
    told.update(number for number, leaf in places.items() if leaf in used)
    return symbols - told


def _sizes(node: fx.Node) -> list[Any]:
    """The symbolic sizes and strides of a node's tensor, as expressions."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return []
    return [expr_of(number) for number in (*value.size(), *value.stride()) if isinstance(number, torch.SymInt)]


def graph_between(
    inputs: Sequence[fx.Node],
    outputs: Sequence[Any],
    order: Sequence[fx.Node],
    effects: Sequence[fx.Node],
    late: frozenset[fx.Node] = frozenset(),
    custom: Sequence[CustomCall] = (),
    replayed: Classes | None = None,
    gone: frozenset[fx.Node] = frozenset(),
) -> fx.Graph:
    """A graph of its own that computes `outputs` from `inputs` with the nodes of the joint graph in between; it runs `effects` as well.

    The nodes in `late` have no effects and stand right in front of the first other node that needs them. Calls in `custom` are put back.
    `replayed`: random numbers are drawn again, from the states of the generator that stand in the joint graph, and results of batch norms
    are computed from the statistics. `gone`: what there is no gradient of (`absent`).
    """
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in inputs:
        copies[node] = graph.placeholder(node.name)
        copies[node].meta.update({key: value for key, value in node.meta.items() if key in ("val", "stack_trace")})
    given, pending = frozenset(inputs), list(custom)
    roots = [
        *effects,
        *[node for node in outputs if isinstance(node, fx.Node)],
        *[n for c in custom for n in c.nodes()],
    ]
    inputs_of, states, rules = ARGUMENTS, {}, {}
    if replayed is not None:
        inputs_of, states, rules = replayed.inputs_of, replayed.joint.states, replayed.from_statistics
    needed = ancestors(roots, given | gone, inputs_of) - gone
    insert_custom_calls(graph, copies, pending)
    for node in _just_in_time([node for node in order if node in needed], late, copies, inputs_of):
        if node in states:
            copies[node] = replay(graph, node, copies[states[node]], copies)
        elif node in rules:
            copies[node] = compute_again(graph, node, rules[node], copies)
        elif gone and (left := left_operand(node, gone)) is not None:
            copies[node] = append_copy(graph, node, copies[left])
        else:
            copies[node] = copy_node(
                graph, node, insert_zeros(graph, node, gone, copies) if gone else copies.__getitem__
            )
        if pending:
            insert_custom_calls(graph, copies, pending)
    graph.output(tuple(copies[node] if isinstance(node, fx.Node) else node for node in outputs))
    for node in graph.nodes:
        ask_for_used_results(node)
    return graph


def _just_in_time(
    nodes: Sequence[fx.Node], late: frozenset[fx.Node], done: Container[fx.Node], inputs_of: InputsOf
) -> Iterator[fx.Node]:
    """`nodes` in order, those in `late` only when another node needs them: what is computed again must not wait in memory."""
    placed: set[fx.Node] = set()
    members = set(nodes)
    for node in nodes:
        if node in late:
            continue
        pending = [node]
        while pending:
            top = pending[-1]
            if top in placed or top in done:
                pending.pop()
                continue
            first = [n for n in inputs_of(top) if n in members and n not in placed and n not in done]
            if first:
                pending += reversed(first)
            else:
                placed.add(pending.pop())
                yield top
    for node in nodes:
        if node not in placed and node not in done:
            yield node
