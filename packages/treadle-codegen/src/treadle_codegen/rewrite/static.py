"""Computations on parameters alone: they leave the graph, run once, and run again when a parameter changes.

before   graph(weight*, scale*, x): w = weight * scale; y = conv(x, w)         (* static input)
after    prologue(weight*, scale*): w = weight * scale
         graph(weight*, scale*, x, w*): y = conv(x, w)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import fx

from treadle_shapes.torch import operator as operator_record

Probe = Callable[[Sequence[torch.Tensor]], Callable[[], int]]
State = tuple[list[int], list[int]]
"""Addresses and versions of tensors."""

# Making values anew takes as long as they save in about eight calls: a linear layer of 1,024 by 1,024 is packed in 1.8 ms, which saves 0.2
# to 0.3 ms of each call with 8 or 32 rows (one thread of an EPYC).
_COST, _MOST_CREDIT = 8, 24
_REST = 32  # calls without a change after which values are worth making again


def _nothing() -> int:
    return 0


def _state(tensors: Sequence[torch.Tensor]) -> State:
    return [t.data_ptr() for t in tensors], [t._version for t in tensors]


class _Kept(NamedTuple):
    """Derived values, the state of the inputs that they were made of, what samples those, and its answer then."""

    state: State
    sample: Callable[[], int]
    bits: int
    values: tuple[Any, ...]


class Prologue:
    """Values derived from static inputs. `positions` are those inputs' positions among the graph's arguments.

    The values are kept until an input

    - lies elsewhere in memory (`weight.data = ...`, a new parameter), or
    - has another version: every in-place operation counts it up, through `detach()` and under `no_grad` as well, or
    - holds other bits, which `probe` knows on every call: writes through `.data`, NumPy, DLPack or C leave no trace but in memory.
      None: the user has promised that there are none (`frozen_weights`).

    Where inputs change from call to call (an agent that acts and learns in turn), making the values costs more than it saves: `pays`.
    """

    def __init__(self, graph: fx.GraphModule, positions: tuple[int, ...], probe: Probe | None) -> None:
        self.graph = graph
        self.positions = positions
        self.probe = probe
        self._kept = _Kept(([], []), _nothing, 0, ())  # replaced as a whole: other threads read it
        self._credit = _MOST_CREDIT + _COST  # the first values are for free
        self._seen: State = ([], [])
        self._rest = 0

    def __call__(self, args: Sequence[Any]) -> tuple[Any, ...]:
        """The derived values for these arguments of the graph."""
        tensors = [args[k] for k in self.positions]
        state, kept = _state(tensors), self._kept
        sample = kept.sample
        if state[0] != kept.state[0]:
            sample = _nothing if self.probe is None else self.probe(tensors)
        # Before the values are computed, so that the next call finds what another thread writes meanwhile.
        bits = sample()
        if state == kept.state and bits == kept.bits:
            self._credit = min(self._credit + 1, _MOST_CREDIT)
            return kept.values
        self._credit -= _COST
        with torch.no_grad():
            values = tuple(self.graph.forward(*[t.detach() for t in tensors]))
        self._kept = _Kept(state, sample, bits, values)
        return values

    def pays(self, args: Sequence[Any]) -> bool:
        """Whether the graph should run with derived values. To be asked before each call; where it says no, without them."""
        if self._credit > 0:
            return True
        seen = _state([args[k] for k in self.positions])
        self._rest = self._rest + 1 if seen == self._seen else 0
        self._seen = seen
        if self._rest < _REST:
            return False
        self._rest, self._credit = 0, _MOST_CREDIT // 2
        return True


def is_static_input(node: fx.Node) -> bool:
    """Whether a placeholder stands for a parameter or buffer (`static_input` holds the tensor itself, or True)."""
    given = node.meta.get("static_input")
    return given is not None and given is not False


def static_nodes(graph: fx.Graph) -> set[fx.Node]:
    """Static placeholders and the calls that depend on nothing else."""
    found: set[fx.Node] = set()
    for node in graph.nodes:
        if node.op == "placeholder":
            if is_static_input(node) and isinstance(node.meta.get("val"), torch.Tensor):
                found.add(node)
        elif node.op == "call_function" and node.all_input_nodes and all(n in found for n in node.all_input_nodes):
            if why_not_once(node) is None:
                found.add(node)
    return found


def why_not_once(node: fx.Node) -> str | None:
    """Why a call on static values cannot be done once for many calls of the graph."""
    record = operator_record(node.target)
    if record is not None and record.is_random:
        return "it draws random numbers"
    if record is not None and record.writes:
        return "it mutates its arguments"
    values = node.meta.get("val")
    if not all(isinstance(v, torch.Tensor) for v in (values if isinstance(values, (list, tuple)) else (values,))):
        return "it is a number, or a check"
    if record is not None and record.has_data_dependent_size:
        return "its size depends on what the parameter holds"
    return None


def is_view_of_input(node: fx.Node) -> bool:
    """Whether a static node is only a view of a parameter, which costs nothing to repeat."""
    while node.op == "call_function":
        record = operator_record(node.target)
        if record is None or not record.is_view or len(node.all_input_nodes) != 1:
            return False
        node = node.all_input_nodes[0]
    return node.op == "placeholder"


def static_frontier(graph: fx.Graph, static: set[fx.Node]) -> list[fx.Node]:
    """Static computations whose results the rest of the graph uses."""
    return [
        n
        for n in graph.nodes
        if n in static
        and n.op == "call_function"
        and any(u not in static for u in n.users)
        and not is_view_of_input(n)
        and isinstance(n.meta.get("val"), torch.Tensor)
    ]


def hoist_static(graph: fx.Graph) -> tuple[fx.Graph, list[int]] | None:
    """Take static computations out of the graph (changed in place, derived values become static placeholders at its end).

    Returns the prologue's graph and the positions of its inputs, or None when there is nothing to take out.
    """
    static = static_nodes(graph)
    frontier = static_frontier(graph, static)
    if not frontier:
        return None
    prologue = fx.Graph()
    placeholders = [n for n in graph.nodes if n.op == "placeholder"]
    copies: dict[fx.Node, fx.Node] = {}
    needed = _ancestors(frontier)
    for node in graph.nodes:
        if node in needed:
            copies[node] = prologue.node_copy(node, copies.__getitem__)
    prologue.output(tuple(copies[n] for n in frontier))
    positions = [k for k, n in enumerate(placeholders) if n in needed]
    last = placeholders[-1]
    for k, node in enumerate(frontier):
        with graph.inserting_after(last):
            last = graph.placeholder(f"derived_{k}_{node.name}")
        last.meta.update({key: node.meta[key] for key in ("val", "stack_trace", "opaque") if key in node.meta})
        last.meta["static_input"] = True
        node.replace_all_uses_with(last)
    for node in reversed(list(graph.nodes)):
        called_for_effect = node.meta.get("may_raise") and node not in needed
        if node in static and node.op == "call_function" and not node.users and not called_for_effect:
            graph.erase_node(node)
    return prologue, positions


def _ancestors(nodes: Sequence[fx.Node]) -> set[fx.Node]:
    found: set[fx.Node] = set()
    stack = list(nodes)
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            stack.extend(node.all_input_nodes)
    return found
