"""Find the parts of a torch-level graph that repeat, such as the layers of a model.

    %h1 = linear(%x, %w1);   %y1 = relu(%h1)             one structure, two regions:
    %h2 = linear(%y1, %w2);  %y2 = relu(%h2)      ==>    [%h1, %y1] of (%x, %w1), result %y1
    output %y2                                           [%h2, %y2] of (%y1, %w2), result %y2

A layer follows the layer before it, so a repeat is a stretch of the sequence of calls with a period: each call in it is like the one a
period later. The regions of a stretch begin where the fewest values cross.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from treadle_shapes.torch import Kind, expr_of, operator

from .asserts import is_assert
from .inner_gradients import is_gradient_call

_LEAST_SAVED = 6  # calls of a stretch that need not be traced again
_LEAST_PARTS = 3  # to trace a part on its own and copy it twice costs what two traces cost
_PERIODS_TRIED = 12
_HOPS = 4  # how often a call may occur in a period of which each call occurs more than once

_CONSTANTS = (
    *(type(None), bool, int, float, complex, str, type(...)),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format),
)
_BODIES = ("bodies", "calls", "control_flow")


@dataclass(frozen=True)
class Stretch:
    """`count` parts of `period` items each, one behind the other, from `start` on."""

    start: int
    period: int
    count: int

    @property
    def end(self) -> int:
        return self.start + self.count * self.period

    @property
    def saved(self) -> int:
        """How many items are not in the first part."""
        return (self.count - 1) * self.period


@dataclass(frozen=True)
class Cuts:
    """Places where a sequence of calls can be cut: in front of each call, and behind the last one.

    crossing  for each of these places, how many values of calls before it are used behind it
    confined  calls whose values must not leave their part -> the place of the last call that uses them
    """

    crossing: Sequence[int]
    confined: Mapping[int, int]

    def is_possible(self, end: int, period: int) -> bool:
        """Whether a part of `period` calls may end in front of `end`."""
        return all(self.confined.get(k, -1) < end for k in range(end - period, end))


@dataclass(frozen=True)
class Region:
    """Consecutive calls of a graph that at least two others of the graph are isomorphic to.

    nodes      the calls, in order
    arguments  nodes outside that they use, each once, in the order of their use
    results    places in `nodes` of the values that are used outside, here or in an isomorphic region
    structure  equal for isomorphic regions; it tells everything but what the arguments are
    """

    nodes: tuple[fx.Node, ...]
    arguments: tuple[fx.Node, ...]
    results: tuple[int, ...]
    structure: Hashable


def find_regions(graph: fx.Graph) -> list[Region]:
    """The regions of a traced graph of which there are at least three of one structure. They do not overlap."""
    calls = [node for node in graph.nodes if node.op in ("call_function", "call_method")]
    place = {node: k for k, node in enumerate(calls)}
    stretches = cover([_signature(node) for node in calls], _cuts(calls, place), _LEAST_SAVED, _LEAST_PARTS)
    by_structure: dict[Hashable, list[Region]] = defaultdict(list)
    for stretch in stretches:
        for k in range(stretch.count):
            first = stretch.start + k * stretch.period
            region = _region(calls[first : first + stretch.period])
            by_structure[region.structure].append(region)
    found: list[Region] = []
    for structure, regions in by_structure.items():
        if len(regions) >= _LEAST_PARTS:
            results = tuple(sorted(set().union(*(region.results for region in regions))))
            if all(_is_tensor(regions[0].nodes[k]) for k in results):
                found += [replace(region, results=results, structure=(structure, results)) for region in regions]
    return found


def cover(signatures: Sequence[Hashable], cuts: Cuts, least_saved: int, least_parts: int = 2) -> list[Stretch]:
    """Stretches of `signatures` with at least `least_parts` equal parts, those that save the most items first. They do not overlap.

    An item whose signature is None is in no part. least_saved: items of a stretch behind its first part.
    """
    left = list(signatures)
    found: list[Stretch] = []
    while True:
        best: Stretch | None = None
        for period in _periods(left):
            for start, length in _runs(left, period):
                stretch = _aligned(start, period, length, cuts, least_parts)
                if stretch is not None and (best is None or _gain(stretch) > _gain(best)):
                    best = stretch
        if best is None or best.saved < least_saved:
            return found
        found.append(best)
        left[best.start : best.end] = [None] * (best.end - best.start)


def _gain(stretch: Stretch) -> tuple[int, int, int]:
    return stretch.saved, -stretch.period, -stretch.start


def _periods(signatures: Sequence[Hashable]) -> list[int]:
    """The distances at which items are repeated most often."""
    places: dict[Hashable, list[int]] = defaultdict(list)
    for k, signature in enumerate(signatures):
        if signature is not None:
            places[signature].append(k)
    distances = Counter(
        later - earlier
        for found in places.values()
        for hops in range(1, _HOPS + 1)
        for earlier, later in zip(found, found[hops:], strict=False)
    )
    return [distance for distance, _ in distances.most_common(_PERIODS_TRIED)]


def _runs(signatures: Sequence[Hashable], period: int) -> Iterator[tuple[int, int]]:
    """(start, length) of what repeats with this period, as far as it does, and at least twice the period long."""
    start = 0
    for k in range(len(signatures) - period + 1):
        is_equal = k + period < len(signatures) and signatures[k] == signatures[k + period] is not None
        if is_equal:
            continue
        if k - start >= period:
            yield start, k - start + period
        start = k + 1


def _aligned(start: int, period: int, length: int, cuts: Cuts, least_parts: int) -> Stretch | None:
    """The parts of such a run that begin where the fewest values cross, and among these the most parts; None where no cut is possible."""
    options: list[tuple[float, int, Stretch]] = []
    for first in range(start, start + min(period, length - least_parts * period + 1)):
        count = (start + length - first) // period
        ends = range(first + period, first + count * period + 1, period)
        if all(cuts.is_possible(end, period) for end in ends):
            crossing = sum(cuts.crossing[end] for end in ends[:-1]) / (count - 1)
            options.append((crossing, -count, Stretch(first, period, count)))
    return min(options, key=lambda option: (option[0], option[1], option[2].start))[2] if options else None


def why_not_shared(node: fx.Node) -> str | None:
    """Why the call cannot be part of a region, as far as the call alone tells."""
    record = operator(node.target)
    acts_on_history = is_gradient_call(node) or (record is not None and record.kind is Kind.EFFECT)
    if is_assert(node) or acts_on_history or any(hasattr(node.target, name) for name in _BODIES):
        return "its trace is more than the operators that it calls"
    if not _is_tensors(node.meta.get("example_value")):
        return "it returns something else than tensors"
    if not _is_plain((node.args, node.kwargs)):
        return "an argument is an object of its own"
    if _writes_to_input(node):
        return "it changes an input of the program, such as running statistics"
    return None


def _writes_to_input(node: fx.Node) -> bool:
    record = operator(node.target)
    if record is None or not record.writes:
        return False
    written = node.all_input_nodes if record.hides_writes else [a for a in node.args[:1] if isinstance(a, fx.Node)]
    return any(argument.op in ("get_attr", "placeholder") for argument in written)


def _signature(node: fx.Node) -> Hashable:
    """Equal for calls that may stand at the same place of two isomorphic regions; None where `why_not_shared`."""
    if why_not_shared(node) is not None:
        return None
    return _call(node, lambda used: _metadata(used.meta.get("example_value"))), _metadata(node.meta["example_value"])


def _metadata(value: Any) -> Hashable:
    """Of tensors, sizes and strides, symbolic ones as expressions, and what kind of tensor it is."""
    if isinstance(value, (tuple, list)):
        return type(value), tuple([_metadata(item) for item in value])
    if not isinstance(value, torch.Tensor):
        return type(value)
    sizes, strides = (
        tuple([n if type(n) is int else expr_of(n) for n in dims]) for dims in (value.shape, value.stride())
    )
    return value.dtype, value.device, sizes, strides


def _region(nodes: Sequence[fx.Node]) -> Region:
    place = {node: k for k, node in enumerate(nodes)}
    arguments: dict[fx.Node, int] = {}

    def position(node: fx.Node) -> Hashable:
        return place[node] if node in place else ("outside", arguments.setdefault(node, len(arguments)))

    structure = tuple([_call(node, position) for node in nodes])
    results = tuple(k for k, node in enumerate(nodes) if any(user not in place for user in node.users))
    return Region(tuple(nodes), tuple(arguments), results, structure)


def _call(node: fx.Node, position: Callable[[fx.Node], Hashable]) -> Hashable:
    """The call, with `position` of the nodes among its arguments."""

    def encode(value: Any) -> Hashable:
        if isinstance(value, fx.Node):
            return fx.Node, position(value)
        if isinstance(value, (tuple, list)):
            return type(value), tuple([encode(item) for item in value])
        if isinstance(value, dict):
            return dict, tuple([(name, encode(item)) for name, item in value.items()])
        if isinstance(value, slice):
            return slice, encode(value.start), encode(value.stop), encode(value.step)
        # The type keeps 1, True and 1.0 apart, the text 0.0 and -0.0.
        return type(value), repr(value) if isinstance(value, (float, complex)) else value

    return node.op, node.target, encode(node.args), encode(node.kwargs)


def _is_plain(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(map(_is_plain, value.values()))
    if isinstance(value, slice):
        return all(map(_is_plain, (value.start, value.stop, value.step)))
    return isinstance(value, fx.Node) or type(value) in _CONSTANTS


def _is_tensors(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return bool(value) and all(isinstance(item, torch.Tensor) and _is_tensors(item) for item in value)
    return isinstance(value, torch.Tensor) and value.layout is torch.strided


def _is_tensor(node: fx.Node) -> bool:
    return isinstance(node.meta.get("example_value"), torch.Tensor)


def _is_view(node: fx.Node) -> bool:
    """Whether the call returns a view of an argument."""
    record = operator(node.target)
    return record is not None and record.kind is Kind.VIEW


def _cuts(calls: Sequence[fx.Node], place: dict[fx.Node, int]) -> Cuts:
    changes = [0] * (len(calls) + 2)
    confined: dict[int, int] = {}
    for k, node in enumerate(calls):
        last = max((place.get(user, len(calls)) for user in node.users), default=k)
        changes[k + 1] += 1
        changes[last + 1] -= 1
        if not isinstance(node.meta.get("example_value"), torch.Tensor) or _is_view(node):
            confined[k] = last
    return Cuts(tuple(itertools.accumulate(changes[:-1])), confined)
