"""Decisions on numbers of small outside tensors on the CPU: made while tracing, and guarded by their outcome (`decided`).

    def step(x, count):        # count: a tensor of one element
        if count > 5: ...      # the trace takes the path of this call; a guard compares `count > 5` at the next one

What is decided on may be computed in the graph, as long as it follows from such tensors alone by few calls that compute nothing else. The
graph may write to the tensors before (`step += 1`). A number that must be a constant (`range(int(n))`) is a decision with more than two
outcomes, and so is a size that data tells (`repeat_interleave`, `nonzero`) where it must be a constant. A place where calls keep differing
decides no more: there the graph breaks, or checks what it relies on.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from treadle_shapes import ContradictionError, ExpressionTooLargeError, Guard, GuardFunction
from treadle_shapes.expr import Eq, Not
from treadle_shapes.floats import same
from treadle_shapes.torch import operator as operator_record
from treadle_shapes.torch import outside_transforms, raw_expr
from treadle_tracer.decision_programs import Decision, Place, copy_of
from treadle_tracer.made_calls import is_plain, is_small, make_calls
from treadle_tracer.values.call_effects import computes_numbers, is_number, only_computes, storages, written_arguments

if TYPE_CHECKING:
    from treadle_tracer.decided import Decided
    from treadle_tracer.source import Source
    from treadle_tracer.values.value import TraceContext

_MOST_ELEMENTS = 256
_MOST_ELEMENTS_OF_CONSTANTS = 65536  # of what follows from constants alone, which no guard computes again
_MOST_CALLS = 128
# Where floats are read: what solvers compute differs in every call, and deciding takes as long as computing. Lengths often stay.
_MOST_CALLS_ON_FLOATS = 24
_MOST_DECISIONS = 256  # those that are computed alike count as one


def truth_of_tensor(tx: TraceContext, value: Any) -> bool | None:
    """`bool(value)` of a TensorValue with one element, guarded; None where it cannot be decided now."""
    if not _has_few_numbers(value.fake) or value.fake.numel() != 1:
        return None
    return _decided(tx, [value.node(tx)], bool)


def index_of_tensor(tx: TraceContext, value: Any) -> int | None:
    """`operator.index(value)` of a TensorValue with one element, guarded; None where it cannot be decided now."""
    if not _has_few_numbers(value.fake) or value.fake.numel() != 1:
        return None
    return decided_index(tx, value.node(tx))


def decided_index(tx: TraceContext, node: fx.Node) -> int | None:
    """`operator.index` of the tensor that a node gives, guarded; None where it cannot be decided now."""
    return _decided(tx, [node], operator.index)  # type: ignore[no-any-return]


def index_of_buffers(tx: TraceContext, value: Any) -> int | None:
    """`index_of_tensor` of what follows from sizes and constants of the graph alone: buffers and parameters of modules that stay the same.
    These seldom change, so that their numbers are known before anything depends on them."""
    calls = _calls_behind(tx.graph, [value.node(tx)], functools.partial(_outside_of, tx))
    if calls is None or any(tx.graph.input_of(node) is not None and node.op != "get_attr" for node in calls):
        return None
    return index_of_tensor(tx, value)


def truth_of_condition(tx: TraceContext, condition: Any) -> bool | None:
    """The truth of a condition on numbers that were read from tensors, guarded; None where it cannot be decided now."""
    symbols = tuple(sorted(condition.free_symbols, key=attrgetter("order")))
    nodes = _nodes_of(tx, symbols)
    if nodes is None:
        return None
    for truth, stated in ((True, condition), (False, Not(condition))):
        if _decided(tx, nodes, _Test(GuardFunction(symbols, (Guard(stated),)))) is True:
            return truth
    return None


class _Test:
    """A condition on numbers as a decision that has only one outcome: None where the condition does not hold.

    key: equal for tests of one condition, whatever the names of its symbols.
    """

    def __init__(self, function: GuardFunction):
        self.check = function.check
        try:
            self.key: Any = function.source
        except ExpressionTooLargeError:
            self.key = id(self)

    def __call__(self, *numbers: Any) -> bool | None:
        return self.check(*(int(n) if isinstance(n, bool) else n for n in numbers)) or None


def number_of(tx: TraceContext, value: Any) -> Any:
    """A SymbolicValue that was read from tensors, guarded, as a constant from here on; None where it cannot be decided now."""
    if tx.speculation is not None or not isinstance(value.sym, (torch.SymInt, torch.SymFloat)):
        return None
    found = _decided(tx, [value.node(tx)], value.python_type())
    if found is not None:
        expr = raw_expr(value.sym)
        try:
            tx.symbols.env.add_fact(same(expr, found) if isinstance(found, float) else Eq(expr, found))
        except ContradictionError:  # the program has stated what does not hold in this call
            return None
    return found


def _nodes_of(tx: TraceContext, symbols: Iterable[Any]) -> list[fx.Node] | None:
    found = [tx.symbols.unbacked.number_node(tx, symbol) for symbol in symbols]
    return None if None in found else found  # type: ignore[return-value]


def _decided(tx: TraceContext, nodes: list[fx.Node], read: Callable[..., Any]) -> Any:
    """The outcome of a decision on what these nodes give, with its guard."""
    place = place_of_decision(tx)
    decided = tx.guards.decided
    if why_not_decide(tx, place) is not None or decided.distinct >= _MOST_DECISIONS:
        return None
    outside = functools.partial(_outside_of, tx)
    calls = _calls_behind(tx.graph, nodes, outside)
    if calls is None:
        return None
    inputs = {node: found for node in calls if (found := outside(node)) is not None}
    if len(calls) > _MOST_CALLS_ON_FLOATS and any(_is_float_tensor(obj) for _, obj in inputs.values()):
        return None
    others = [node for node in calls if node not in inputs]
    if decided.why_not_apart(inputs.values(), tx.graph.writes().take_written()) is not None:
        return None
    outcome = _computed(inputs, others, nodes, read)
    if outcome is None or not inputs:
        return outcome  # what follows from constants alone needs no guard
    places = {node: decided.read(*found) for node, found in inputs.items()}
    results, needed = decided.calls.add(places, others, nodes, writes=any(map(written_arguments, others)))
    decided.add(Decision(place, results, read, outcome, needed))
    return outcome


def decision_after_writes(graph: Any, decided: Decided) -> str | None:
    """The place of a decision that comes out differently once the graph, a GraphBuilder, has written to what the decisions read.

    None if there is none, or it cannot be told.
    """
    if not decided.decisions:
        return None
    found: dict[Source, Any] = {}
    is_read = decided.leaves
    for node in graph.nodes:
        outside = graph.input_of(node)
        if outside is None or outside[0] not in is_read:
            continue
        if not is_read[outside[0]]:
            found[outside[0]] = outside[1]
            continue
        calls = _calls_behind(graph, [node])
        if calls is None:
            return None
        inputs = {n: given for n in calls if (given := graph.input_of(n)) is not None}
        others = [n for n in calls if n not in inputs]
        found[outside[0]] = _computed(inputs, others, [node], lambda value: value) if others else outside[1]
    if any(found.get(source) is None for source in decided.sources):
        return None
    position = decided.first_changed([found[source] for source in decided.sources])
    if position is None or position == len(decided.decisions):
        return None
    file, line, *_ = decided.decisions[position].place
    return f"what is decided at {file}:{line} comes out the same"


def _computed(
    inputs: Mapping[fx.Node, tuple[Source, Any]],
    others: Sequence[fx.Node],
    results: Sequence[fx.Node],
    read: Callable[..., Any],
) -> Any:
    """The outcome at this call; None where a call raises: the program raises it where it makes the call."""
    try:
        # A kernel of fake tensors may be asking.
        with torch.no_grad(), outside_transforms(), torch._C._DisableTorchDispatch():
            values = {node: copy_of(obj) for node, (_, obj) in inputs.items()}
            make_calls(others, values)
            if inputs and not all(map(_has_few_numbers, values.values())):  # a size that data tells is large
                return None
            return read(*(values[node] for node in results))
    except (RuntimeError, ValueError, IndexError, TypeError, ArithmeticError):
        return None


def place_of_decision(tx: TraceContext) -> Place:
    """Where the program is now."""
    frame = tx.frames[-1]
    file, line, function = tx.user_stack()[-1]
    return file, line, function, frame.at


def why_not_decide(tx: TraceContext, place: Place) -> str | None:
    """Why nothing is decided here."""
    if not tx.symbols.decides_at(place):
        return "calls have kept differing here, or the option is off"
    if tx.speculation is not None:
        return "a path is followed that may not be taken"
    if not tx.runs_in_order:
        return "it runs in a backward pass, in a transform, or in a state of PyTorch of its own"
    return None


def _outside_of(tx: TraceContext, node: fx.Node) -> tuple[Source, Any] | None:
    """The outside object that a node stands for, and where calls find it. A number that follows from sizes is one of its own."""
    found = tx.graph.input_of(node)
    size = node.meta.get("example_value")
    if found is not None or not isinstance(size, torch.SymInt) or tx.symbols.uses_larger_sizes:
        return found
    return tx.symbols.outside_number(tx, size)


_Outside = Callable[[fx.Node], "tuple[Source, Any] | None"]


def _calls_behind(graph: Any, results: Sequence[fx.Node], outside: _Outside | None = None) -> list[fx.Node] | None:
    """The inputs and calls that the results follow from, in order, calls that write to them included; None if one may not be made now.

    outside: the outside object that a node stands for, and where calls find it.
    """
    outside = outside or graph.input_of
    numbers = all(not isinstance(node.meta.get("example_value"), torch.Tensor) for node in results)
    end = max(results) if numbers else None  # a number has been read; a tensor is read now
    writers = graph.writes()
    found: set[fx.Node] = set()
    memory: set[int] = set()
    pending = list(results)
    while pending:
        node = pending.pop()
        if node not in found:
            known = outside(node)
            if len(found) > _MOST_CALLS or not _may_be_made_now(node, known):
                return None
            found.add(node)
            memory |= storages(node.meta.get("example_value"))
            pending += node.all_input_nodes if known is None else ()
        if not pending:
            pending = [w for w in writers.to(memory) if w not in found and (end is None or w < end)]
    if any(outside(node) is not None for node in found):
        if not all(_may_have_few_numbers(node.meta.get("example_value"), _MOST_ELEMENTS) for node in found):
            return None
    return sorted(found)


def _may_be_made_now(node: fx.Node, found: tuple[Source, Any] | None) -> bool:
    value = node.meta.get("example_value")
    if found is not None:
        return not isinstance(found[1], torch.Tensor) or (_has_few_numbers(value) and _has_memory(found[1]))
    if node.op[:5] != "call_" or not _may_have_few_numbers(value, _MOST_ELEMENTS_OF_CONSTANTS):
        return False
    if is_number(value) and all(is_number(given.meta.get("example_value")) for given in node.all_input_nodes):
        return computes_numbers(node.target)
    record = operator_record(node.target)
    if record is None or record.is_random or record.hides_writes or record.is_uninitialised:
        return False
    return only_computes(node) or bool(written_arguments(node))


def _has_few_numbers(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return all(map(_has_few_numbers, value))
    if not isinstance(value, torch.Tensor):
        return value is None or is_number(value) or isinstance(value, torch.Size)
    return is_small(value, _MOST_ELEMENTS)


def _may_have_few_numbers(value: Any, most: int) -> bool:
    """Whether what a call gives are few numbers, as far as the trace knows: sizes that data tells are known when the call is made."""
    if isinstance(value, (tuple, list)):
        return all(_may_have_few_numbers(item, most) for item in value)
    if not isinstance(value, torch.Tensor):
        return _has_few_numbers(value)
    return is_plain(value) and math.prod(size for size in value.shape if isinstance(size, int)) <= most


def _is_float_tensor(obj: Any) -> bool:
    return isinstance(obj, torch.Tensor) and (obj.is_floating_point() or obj.is_complex())


def _has_memory(obj: torch.Tensor) -> bool:
    """Whether the elements of an outside tensor can be read as bytes."""
    try:
        return not obj.numel() or obj.data_ptr() != 0
    except RuntimeError:
        return False
