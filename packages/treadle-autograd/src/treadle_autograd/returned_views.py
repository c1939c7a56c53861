"""Returned views that other results are computed from: they stand between these and what they are views of, as in eager.

    def f(x, w): h = (x @ w).t(); return h, h.tanh().sum()

    mm <- OutputNode <- h <- OutputNode <- loss         `h` is no part of the functional graph's results, `mm` is

The runtime wrapper would make `h` from the graph's result `mm` when everything else is done. Nothing would lead from the loss to `h`: a
hook on it would not be called, and ``torch.autograd.grad(loss, h)`` raise. So such views are made together with the nodes of the outputs
(`observed.connect`), each from what autograd makes it from. Their places follow behind the positions of the graph's outputs.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from treadle_shapes.torch import operator as operator_record

from .ancestors import ancestors
from .contract import Contract, FreshOutput, Geometry, OutputDescription, Relation, ViewOfFresh, ViewOfInput
from .describe import is_dense
from .errors import UnsupportedGraph
from .functionalise import grad_fn_of
from .readings import Elements, reading_of
from .separate_passes import names_of_saved, top_down

Edge = tuple[Any, int]  # a node of autograd's graph, and the number of one of its results


@dataclass(frozen=True)
class ReturnedView:
    """A view among the user's outputs.

    output    its number among these
    source    the place of what it is made from: the position of an output, or the place of an earlier view; None for an input
    input     the position of the input that it is made from, where it is one
    geometry  its own, the offset counted from the first element of what it is made from
    relation  what it is to autograd
    """

    output: int
    source: int | None
    input: int | None
    geometry: Geometry
    relation: Relation

    def with_input_at(self, moved: Callable[[int], int]) -> ReturnedView:
        """The same view of the same input, after inputs have moved."""
        return self if self.input is None else replace(self, input=moved(self.input))


def without_views(contract: Contract, n_outputs: int, views: Sequence[ReturnedView]) -> Contract:
    """The contract of a graph that returns `views` behind its `n_outputs` results."""
    if not views:
        return contract
    places = {view.output: FreshOutput(n_outputs + k) for k, view in enumerate(views)}
    return replace(contract, outputs=tuple(places.get(k, output) for k, output in enumerate(contract.outputs)))


def sources_of(edges: Mapping[Edge, int]) -> dict[int, tuple[int, ...]]:
    """For the place of each of these tensors, given by its edge in autograd's graph, the places of those that it is computed from."""
    masks: dict[Any, int] = {}
    for function in reversed(top_down([function for function, _ in edges])):
        mask = 0
        for edge in function.next_functions:
            if edge[0] is not None:
                mask |= masks[edge[0]] | (1 << edges[edge] if edge in edges else 0)
        masks[function] = mask
    return {place: tuple(_numbers(masks[function] & ~(1 << place))) for (function, _), place in edges.items()}


def _numbers(mask: int) -> list[int]:
    return [number for number in range(mask.bit_length()) if mask >> number & 1]


class ViewSearch:
    """The views among the results of a trace, before any gradient is computed.

    described, values: the user's outputs. wrappers: the functional tensors of the graph's outputs by position, those with a history.
    """

    def __init__(
        self,
        described: Sequence[OutputDescription],
        values: Sequence[Any],
        wrappers: Mapping[int, torch.Tensor],
        n_outputs: int,
    ) -> None:
        self._described, self._values, self._n_outputs = described, values, n_outputs
        self._edges: dict[Edge, int] = {}
        for position, wrapper in wrappers.items():
            self._edges[grad_fn_of(wrapper), wrapper.output_nr] = position
        self._positions = frozenset(self._edges.values())
        for number, value in enumerate(values):
            if _may_be_made(described[number], value):
                self._edges.setdefault((grad_fn_of(value), value.output_nr), n_outputs + number)
        self._sources = sources_of(self._edges) if len(self._edges) > 1 else {}

    def are_alone(self) -> bool:
        """Whether there are views of inputs that are computed from each other, and no other result has a history."""
        return not self._positions and any(self._sources.values())

    def found(self) -> tuple[tuple[ReturnedView, ...], dict[int, tuple[int, ...]]]:
        """The views to make beside the outputs, and for each place the places of what it is computed from.

        A single output that no view is a source of needs no node of its own, and has no entry. Raises UnsupportedGraph for a view that
        cannot be made from another one.
        """
        made = self._to_make()
        place = {self._n_outputs + number: self._n_outputs + k for k, number in enumerate(made)}
        views = tuple(self._view(number, place) for number in made)
        kept = {**{position: position for position in self._positions}, **place}
        sources = {
            kept[one]: tuple(sorted(kept[other] for other in below if other in kept))
            for one, below in self._sources.items()
            if one in kept
        }
        for k, view in enumerate(views):
            # Autograd's graph does not tell where a base has been given eager's size.
            if view.source is not None:
                below = {*sources[self._n_outputs + k], view.source}
                sources[self._n_outputs + k] = tuple(sorted(below))
        if len(self._positions) < 2 and not any(sources.get(position) for position in self._positions):
            sources = {one: below for one, below in sources.items() if one not in self._positions}
        return views, sources

    def _to_make(self) -> list[int]:
        """The numbers of the user's outputs that are views which something is computed from, or views of such."""
        used = {one for below in self._sources.values() for one in below if one not in self._positions}
        on_top = {one for one, below in self._sources.items() if not used.isdisjoint(below)} - self._positions
        return sorted(place - self._n_outputs for place in used | on_top)

    def _view(self, number: int, places: Mapping[int, int]) -> ReturnedView:
        described: Any = self._described[number]
        of_input = isinstance(described, ViewOfInput)
        source = self._nearest(self._values[number], places)
        geometry: Geometry = described.geometry
        if source is None:
            source, given = (None, described.input) if of_input else (described.position, None)
            return ReturnedView(number, source, given, geometry, described.relation)
        if source in self._positions:
            return ReturnedView(number, source, None, geometry, described.relation)
        geometry = self._relative(geometry, number, source - self._n_outputs)
        return ReturnedView(number, places[source], None, geometry, described.relation)

    def _relative(self, geometry: Geometry, number: int, other: int) -> Geometry:
        """The geometry of the user's output `number`, counted from the view at `other`."""
        below: Any = self._described[other]
        reading = reading_of(self._values[number], self._values[other])
        if reading is None or (reading.elements is Elements.PAIRS and not is_dense(self._values[other])):
            raise UnsupportedGraph("an output is a view of another one that reads its memory in another way")
        begin = reading.place(below.geometry.offset)
        if begin is None:
            raise UnsupportedGraph("an output has complex numbers that begin between two of another one")
        return replace(geometry, offset=geometry.offset - begin, reading=reading)

    def n_equal(self, value: torch.Tensor) -> int:
        """How many views equal to `value` the results are computed from, as autograd's graph tells: one, or more if the program makes the
        same view twice."""
        mine, end = grad_fn_of(value), grad_fn_of(value._base)
        links = _chain(mine, end)
        functions = top_down([function for function, _ in self._edges])
        return sum(function is mine or _chain(function, end, len(links)) == links for function in functions)

    def _nearest(self, value: torch.Tensor, places: Mapping[int, int]) -> int | None:
        """The place of what autograd makes a view from, if that is an output or a view with a place. Operators that make views have one
        input each."""
        function = grad_fn_of(value)
        end = grad_fn_of(value._base) if value._is_view() and value._base is not None else function
        while function is not None and function is not end and function.next_functions:
            edge = function.next_functions[0]
            if (place := self._edges.get(edge)) is not None and (place in self._positions or place in places):
                return place
            function = edge[0]
        return None


def _chain(function: Any, end: Any, length: int | None = None) -> list[Any]:
    """What tells the operators between a view's node in autograd's graph and that of what it is a view of; the last item is the latter."""
    found: list[Any] = []
    while function is not None and function is not end and function.next_functions:
        if len(found) == length:
            break
        found.append((function.name(), _numbers_saved_by(function)))
        function = function.next_functions[0][0]
    return [*found, function]


def _numbers_saved_by(function: Any) -> list[Any]:
    """The numbers that tell one view from another of the same operator."""
    found = []
    for name in names_of_saved(type(function)):
        with contextlib.suppress(RuntimeError):  # a tensor that has been changed since
            value = getattr(function, name)
            if not isinstance(value, torch.Tensor):
                found.append(value)
    return found


_RELATIONS = (Relation.VIEW, Relation.ONE_OF_SEVERAL)


def _may_be_made(described: OutputDescription, value: Any) -> bool:
    """Whether an output is a view that has its history from what it is a view of."""
    if not isinstance(described, (ViewOfFresh, ViewOfInput)) or described.detached is not None:
        return False
    return described.relation in _RELATIONS and value.requires_grad and grad_fn_of(value) is not None


def equal_views(graph: fx.Graph) -> dict[fx.Node, list[fx.Node]]:
    """For every node that is a view all that show the same part of the same node's result, in graph order."""
    of_key: dict[Any, list[fx.Node]] = {}
    found: dict[fx.Node, list[fx.Node]] = {}
    for node in graph.nodes:
        if _makes_view(node):
            arguments = fx.map_arg((node.args, node.kwargs), lambda used: found[used][0] if used in found else used)
            key = node.target, str(arguments), *[node.meta.get(name) for name in _KEPT_APART]
            found[node] = of_key.setdefault(key, [])
            found[node].append(node)
    return found


def in_one_place(view: fx.Node, equal: Sequence[fx.Node], n_made: int) -> fx.Node:
    """The node of a view of something that has been written to, after its readers have been made to read that one.

    Functionalisation makes such a view anew where a view of it is read. equal: all nodes that are equal to it. n_made: how many equal views
    autograd knows. Raises UnsupportedGraph where it is not known who reads which.
    """
    alive = [node for node in equal if node is view or node.users]
    if len(alive) == n_made:
        return view
    if n_made > 1:
        raise UnsupportedGraph("an output is a view, made twice, of a tensor that is written to")
    for node in alive[1:]:
        node.replace_all_uses_with(alive[0])
    return alive[0]


_KEPT_APART = ("no_grad", "inside_call", "checkpoint")


def _makes_view(node: fx.Node) -> bool:
    """Whether a node is a call that makes a view, or several, or one of these."""
    is_item = node.target is operator.getitem and isinstance(node.args[0], fx.Node)
    record = operator_record(node.args[0].target if is_item else node.target)  # type: ignore[union-attr]
    return node.op == "call_function" and record is not None and record.is_view


def why_not_cut(
    origins: Mapping[int, fx.Node],
    outputs: Sequence[fx.Node],
    sources: Mapping[int, Sequence[int]],
    views: Container[int],
) -> str | None:
    """Why gradients cannot end at the nodes in `origins`, by place: what autograd computes from one of them has to be computed from it in
    the functional graph, too, and nothing else.

    outputs: the graph's results. sources: as `ViewSearch.found` gives them. views: the places of views.
    """
    nodes = [node for place, node in origins.items() if place in views]
    if nodes and len(set(origins.values())) < len(origins):
        return "two outputs that others are computed from have one value"
    if any(node.op == "placeholder" for node in nodes):
        return "an output that others are computed from is an input with other sizes"
    for place, output in enumerate(outputs):
        below = [origins[source] for source in sources.get(place, ()) if source in views]
        if below and not ancestors([output]).issuperset(below):
            return "an output is computed from a view that is made anew afterwards"
    return None


__all__ = ["ReturnedView", "ViewSearch", "equal_views", "in_one_place", "sources_of", "why_not_cut", "without_views"]
