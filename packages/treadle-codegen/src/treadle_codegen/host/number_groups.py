"""Which numbers that are read off tensors the kernels' language computes and checks, so that the host does not.

    segment_0(..)                        segment_0(..)       # and reads u0, checks it, computes sqrt(1 - u0) for segment_1
    u0 = item(t)                         if w.error.value: recheck(w, ..)
    if not (u0 >= 0): fail(..)    ==>    segment_1(..)
    pf[3] = math.sqrt(1 - u0)
    segment_1(..)

Steps that belong to one number are one group, so that the groups of an optimizer's parameters are calls of one function. Where the host
needs the number itself, it reads it from the table.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from treadle_codegen.ir.loops import Define, FloatExpr, Program, bound_symbols, step_symbols, symbols_of
from treadle_codegen.schedule.fuse import Node
from treadle_codegen.schedule.gather_numbers import is_number_step
from treadle_codegen.schedule.kernel import Kernel
from treadle_codegen.targets.renderer import NumberGroup, RenderedKernel, Renderer, Segment
from treadle_shapes.floats import FloatSymbol


@dataclass(slots=True)
class NumberRun:
    """Nodes `first` to `end - 1`, which kernels do the work of; in `groups`, a kernel for each."""

    first: int
    end: int
    groups: list[NumberGroup]
    kernels: list[RenderedKernel]


def number_runs(
    program: Program, nodes: Sequence[Node], kernels: Mapping[int, RenderedKernel], renderer: Renderer
) -> list[NumberRun]:
    """The runs of steps on float numbers that the renderer has functions for; `kernels`: those of the nodes by position."""
    found: list[NumberRun] = []
    known = {symbol for symbol in program.size_symbols if isinstance(symbol, FloatSymbol)}
    taken = dict.fromkeys(n for kernel in kernels.values() for n in kernel.numbers if isinstance(n, FloatExpr))
    for first, end in _runs(nodes):
        steps: list[Any] = [node.item for node in nodes[first:end]]
        own = {symbol for step in steps for symbol in bound_symbols(step)}
        if all(isinstance(symbol, FloatSymbol) for symbol in own) and not any(isinstance(s, Define) for s in steps):
            results = [n for n in taken if symbols_of(n) & own and symbols_of(n) <= known | own]
            groups = _groups(steps, results, own) if own else []
            rendered = [renderer.render_numbers(group, program) for group in groups]
            functions = [kernel for kernel in rendered if kernel is not None]
            if groups and len(functions) == len(groups):
                found.append(NumberRun(first, end, groups, functions))
        known |= own
    return found


def _runs(nodes: Sequence[Node]) -> list[tuple[int, int]]:
    """Where nodes that are steps on numbers follow each other: first, and behind the last."""
    found: list[tuple[int, int]] = []
    for k, node in enumerate(nodes):
        if is_number_step(node.item):
            found.append((found.pop()[0], k + 1) if found and found[-1][1] == k else (k, k + 1))
    return found


def _groups(steps: Sequence[Any], results: Sequence[FloatExpr], own: set[Any]) -> list[NumberGroup]:
    """The steps by the numbers that they have in common, with the results that are made of these."""
    parent: dict[Any, Any] = {symbol: symbol for symbol in own}

    def root(symbol: Any) -> Any:
        while parent[symbol] is not symbol:
            symbol = parent[symbol]
        return symbol

    def of(value: Any) -> Any:
        """The group of a step or a result: what represents it among the numbers; None for a check of other numbers alone."""
        symbols = symbols_of(value) if isinstance(value, FloatExpr) else step_symbols(value) | {*bound_symbols(value)}
        mine = sorted(symbols & own, key=lambda symbol: symbol.name)
        for symbol in mine[1:]:
            parent[root(symbol)] = root(mine[0])
        return root(mine[0]) if mine else None

    for value in (*steps, *results):
        of(value)
    groups: dict[Any, tuple[list[Any], list[FloatExpr]]] = {}
    for step in steps:
        groups.setdefault(of(step), ([], []))[0].append(step)
    for result in results:
        groups[of(result)][1].append(result)
    return [_group(steps, results) for steps, results in groups.values()]


def _group(steps: list[Any], results: list[FloatExpr]) -> NumberGroup:
    bound = dict.fromkeys(symbol for step in steps for symbol in bound_symbols(step))
    used = [symbols_of(result) for result in results] + [step_symbols(step) for step in steps]
    inputs = sorted(frozenset().union(*used) - bound.keys(), key=lambda symbol: symbol.name)
    return NumberGroup(tuple(steps), tuple(inputs), tuple(dict.fromkeys((*bound, *results))))


def needed_by_host(
    program: Program, nodes: Sequence[Node], segments: Sequence[Segment], covered: Container[int]
) -> frozenset[Any]:
    """The symbols that the host function mentions; `covered`: the positions of nodes that are none of its business."""
    computed = {result for segment in segments for group in segment.numbers for result in group.results}
    numbers = {n for segment in segments for kernel in segment.kernels for n in kernel.numbers} - computed
    steps = [node.item for k, node in enumerate(nodes) if k not in covered and not isinstance(node.item, Kernel)]
    extents = [(buffer.shape, buffer.strides, buffer.offset) for buffer in program.buffers.values()]
    found = symbols_of([*numbers, *extents, *program.outputs])
    return found.union(*[step_symbols(step) for step in steps])
