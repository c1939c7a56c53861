"""What a run of a compiled graph is expected to save against eager: a cost model over facts of the graph.

The unit is one call of an operator in eager: what Python and PyTorch's dispatcher take for one operator on a small tensor, about a
microsecond. Both sides consist of such work, so the unit cancels differences between machines. A compiled graph saves the calls that it
fuses, and the memory traffic between them. It costs a call of its own, and more where autograd records it or where it writes to its
inputs.

The figures are measured on the CPU (`benchmarks/broken_programs.py`). For graphs on other devices the model knows nothing.
"""

from __future__ import annotations

import math
import operator as operator_module
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.types import py_sym_types

from treadle_shapes.torch import Cost, ElementUse, Kind, Operator, operator, raw_expr

from ..values.call_effects import storages, written_arguments
from ..values.function_transform import FunctionTransform, PullbackCall
from .deferred_asserts import asserts_of
from .graph_writes import draws_random_numbers, why_not_deoptimise

# Calls that eager makes for an operator and that a compiled graph does not.
_FUSED: dict[Kind, float] = {
    Kind.VIEW: 0.8,
    Kind.POINTWISE: 1.0,
    Kind.REDUCTION: 1.5,
    Kind.GATHER: 1.5,
    Kind.SCATTER: 1.5,
    Kind.NORMALISATION: 3.0,
    Kind.POOLING: 1.0,
    Kind.CREATION: 1.0,
    Kind.COPY: 1.0,
    Kind.LOSS: 3.0,
    Kind.SCAN: 0.5,
    Kind.QUERY: 0.5,
    Kind.RANDOM: 1.0,
}
# A transform of `torch.func`: what eager takes to enter its level and to leave it, and for every call in the body more than outside.
_TRANSFORM, _TRANSFORMED = 20.0, 3.0
# A function without a record is made of operators that have one. So is a composite operator of no kind, such as the cell of a GRU, which
# eager and the compiler split into others.
_UNKNOWN = 1.0
# NumPy takes less for an operator on a small array than PyTorch on a small tensor, and for one on its scalars next to nothing.
_NUMPY, _NUMPY_SCALAR = 0.4, 0.1
# A layer that eager computes in one operator and whose parts fuse: attention in eval mode, and the encoder layer around it.
_LAYER = 12.0
# An operator that autograd records is called again, as its derivative, and its node is made and freed: so much more for each fused call.
_RECORDED = 3.0
# What eager takes to begin a backward pass, and to give gradients to leaves.
_BACKWARD = 8.0
# Kernels of PyTorch that the graph calls: what that saves, first without a derivative. Products have short ways; others are called through
# the operator's overload, which takes longer than eager's binding, and so does each operator of their derivatives.
_KERNEL = {Kind.MATMUL: (0.0, 2.0), Kind.CONVOLUTION: (0.0, 2.0)}
# Products of small matrices are loops in generated kernels: of at most so many multiplications, or of so few terms and columns. The
# lowering decides in detail (`small_product` of treadle-codegen, which the tracer does not know).
_SMALL_PRODUCT = 1.5
_SMALL_PRODUCT_RECORDED = 12.0  # three products in eager, transposes, and the sum for the bias
_FEW_MULTIPLICATIONS = 1 << 17
_FEW_TERMS, _FEW_COLUMNS = 16, 64
# What a convolution and its derivative cost more in a graph that autograd records than in eager. Fitted to 26 networks, whose gains all
# have the right sign then. Convolutions empty the caches, so that the unit is about three times as long, in eager and compiled alike.
_RECORDED_CONVOLUTION = 5.0
_OTHER_KERNEL = (-1.0, -5.0)
# Kinds that are kernels of PyTorch where autograd records them, because it saves what only these return.
_KERNELS_IF_RECORDED = frozenset({Kind.POOLING})
# Bytes that are written and read in the time of one call. In training, fusing saves them where what an operator reads is computed in the
# same kernel: what stands alone behind a kernel of PyTorch moves as much memory as in eager, forward and backward. A normalisation reads
# its argument several times in eager.
_BYTES = 1 << 14
# Computing a transcendental function takes so many times as long as writing its results.
_FUNCTION = 6.0
# The traffic of a derivative, beside that of the operator.
_TRAFFIC_RECORDED = 1.0

# What a call of a compiled graph costs: guards, the host, the continuation; a node of autograd and its backward pass;
_CALL = 3.0
_CALL_RECORDED = 56.0
# where there are several recorded outputs, a node of its own for each, beside the result and the tangent: for the first, and for each more;
_SEVERAL_OUTPUTS = 20.0
_OUTPUT = 13.0
# without autograd, memory for each more result, and a view of it where the result is one;
_RESULT, _RESULT_VIEW = 0.85, 1.1
# a test whether the inputs share memory, and copies; states of random generators; a handler for failing asserts; guards of numbers.
_WRITES = 8.0
_WRITES_RECORDED = 40.0
# without autograd, a look whether weights are what they were when they were packed: those of convolutions and of large products;
_WEIGHTS = 6.0
_MANY_ROWS, _MANY_MULTIPLICATIONS = 128, 1 << 25
_LARGE_WEIGHT = 1 << 20  # bytes
_DRAWS = 3.0
# a draw from the state of a generator of the program's own: a generator is made, and states are copied.
_STATE = 8.0
# Sizes that change are read off the inputs, compared with those of the last call, and guarded.
_CHANGING_SIZES = 2.0
_ASSERTS = 1.0
_NUMBER = 1.0
# An array of NumPy from outside becomes a tensor in every call, twice: for the guard, and for the graph.
_ARRAY = 2.0
# Sizes that an operator finds when the graph runs: the host reads them and lays out what follows anew.
_FOUND_SIZES = 3.0
# A break where there is nothing to compute costs the continuation alone.
CONTINUATION = 1.0


def profit_of(gm: torch.fx.GraphModule | None, grad: bool, is_eager: bool = False) -> float | None:
    """The calls of operators that one run of the compiled graph saves, negative if it costs more; None where the model knows nothing.

    gm: None for a piece of a function that computes nothing. is_eager: the backend runs the graph as it is.
    grad: grad mode at the time of the call. The fake tensors in `meta["example_value"]` say the rest.
    """
    if gm is None:
        return -CONTINUATION
    if is_eager:
        return -2 * _CALL  # more than a function that the user has asked to compile may cost
    tensors = list(_tensors(gm))
    if any(tensor.device.type != "cpu" for _, tensor in tensors):
        return None
    recorded = _recorded(gm) if grad else set[torch.fx.Node]()
    backward = gm.graph.find_nodes(op="call_function", target=torch.autograd.grad)
    twice = recorded | _history(node for call in backward for node in call.all_input_nodes)
    saved = sum(_saved(node, node in twice) for node in gm.graph.nodes if node.op.startswith("call_"))
    return saved + _BACKWARD * len(backward) - _overhead(gm, recorded)


def _recorded(gm: torch.fx.GraphModule) -> set[torch.fx.Node]:
    """The calls that a backward pass from the outputs goes through."""
    writes = [node for node in gm.graph.nodes if node.op.startswith("call_") and _writes_history(node)]
    return _history([*gm.graph.output_node().all_input_nodes, *writes])


def _writes_history(node: torch.fx.Node) -> bool:
    """Whether the node may write what autograd records. A normalisation writes to its statistics what it does not."""
    written = [tensor for n in written_arguments(node) for tensor in _tensors_in(n.meta.get("example_value"))]
    return any(tensor.requires_grad for tensor in written)


def _history(results: Iterable[torch.fx.Node]) -> set[torch.fx.Node]:
    """The calls that a backward pass from these results goes through."""
    found: set[torch.fx.Node] = set()
    pending = list(results)
    while pending:
        node = pending.pop()
        if node not in found and node.op.startswith("call_") and _has_history(node):
            found.add(node)
            pending += node.all_input_nodes
    return found


def _overhead(gm: torch.fx.GraphModule, recorded: set[torch.fx.Node]) -> float:
    overhead = _CALL
    if recorded:
        outputs = recorded.intersection(gm.graph.output_node().all_input_nodes)
        convolutions = sum(_kind(node) is Kind.CONVOLUTION for node in recorded)
        overhead = (
            _CALL_RECORDED
            + _RECORDED_CONVOLUTION * convolutions
            + (_SEVERAL_OUTPUTS + _OUTPUT * (len(outputs) - 1) if len(outputs) > 1 else 0.0)
        )
    else:
        overhead += _cost_of_results(gm)
    inputs = [node.meta.get("example_value") for node in gm.graph.find_nodes(op="placeholder")]
    overhead += _NUMBER * sum(isinstance(value, py_sym_types) for value in inputs) + _ARRAY * len(_arrays(gm))
    if any(isinstance(value, torch.Tensor) and _has_symbols(value) for value in inputs):
        overhead += _CHANGING_SIZES
    if why_not_deoptimise(gm) is not None:
        overhead += _WRITES_RECORDED if recorded else _WRITES
    if not recorded and any(map(_has_weight, gm.graph.nodes)):
        overhead += _WEIGHTS
    if draws_random_numbers(gm):
        overhead += _DRAWS * (2 if recorded else 1)
    overhead += _STATE * sum(map(_draws_from_state, gm.graph.nodes))
    return overhead + (_ASSERTS if asserts_of(gm) else 0.0)


def _cost_of_results(gm: torch.fx.GraphModule) -> float:
    """What the results of a graph without autograd cost, beyond that of one in memory of its own."""
    results = [node for node in gm.graph.output_node().all_input_nodes if _computes_tensor(node)]
    views = sum(_kind(node) is Kind.VIEW for node in results)
    return _RESULT_VIEW * views + _RESULT * max(len(results) - views - 1, 0)


def _computes_tensor(node: torch.fx.Node) -> bool:
    return node.op.startswith("call_") and isinstance(node.meta.get("example_value"), torch.Tensor)


def _has_symbols(tensor: torch.Tensor) -> bool:
    return any(not isinstance(size, int) for size in tensor.size())


def _arrays(gm: torch.fx.GraphModule) -> set[torch.fx.Node]:
    """The inputs that are arrays of NumPy, as far as NumPy's own functions are called with them."""
    calls = [node for node in gm.graph.nodes if "numpy_calls" in node.meta]
    return {n for node in calls for n in node.all_input_nodes if n.op in ("placeholder", "get_attr")}


def _has_weight(node: torch.fx.Node) -> bool:
    """Whether the node is a kernel of PyTorch with a parameter or a buffer that is packed for it."""
    is_packed = _kind(node) is Kind.CONVOLUTION or _is_large_product(node)
    return is_packed and any(n.op == "get_attr" for n in node.all_input_nodes)


def _is_large_product(node: torch.fx.Node) -> bool:
    """Whether a product gains by a copy of its weight in another layout (`pack_linear` and `weight_layout` of treadle-codegen, roughly)."""
    value = node.meta.get("example_value")
    if _kind(node) is not Kind.MATMUL or not isinstance(value, torch.Tensor) or not value.dim():
        return False
    columns = max(_hint(value.shape[-1]), 1)
    multiplications = _terms(node) * _elements(value)
    has_many_rows = _elements(value) // columns >= _MANY_ROWS and multiplications >= _MANY_MULTIPLICATIONS
    return has_many_rows or _terms(node) * columns * value.element_size() >= _LARGE_WEIGHT


def _is_small_product(node: torch.fx.Node) -> bool:
    """Whether a product is so small that generated kernels compute it.

    The last dimension of the first factor tells how many terms it has, nearly always.
    """
    value = node.meta.get("example_value")
    if _kind(node) is not Kind.MATMUL or not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return False
    terms = _terms(node)
    columns = _hint(value.shape[-1]) if value.dim() else 1
    is_narrow = terms <= _FEW_TERMS and columns <= _FEW_COLUMNS
    return is_narrow or terms * _elements(value) <= _FEW_MULTIPLICATIONS


def _terms(node: torch.fx.Node) -> int:
    """How many terms an element of a product is the sum of."""
    factors = [tensor for n in node.all_input_nodes for tensor in _tensors_in(n.meta.get("example_value"))]
    return max((_hint(tensor.shape[-1]) for tensor in factors[:1] if tensor.dim()), default=1)


def _kind(node: torch.fx.Node) -> Kind | None:
    """The kind of what the node calls. `x[0]` is a view, although its operator takes positions, too."""
    record = operator(node.target) if node.op.startswith("call_") else None
    if record is None:
        return None
    return Kind.VIEW if record.kind is Kind.GATHER and _is_in_memory_of_argument(node) else record.kind


def _is_in_memory_of_argument(node: torch.fx.Node) -> bool:
    given = node.args[0] if node.args else None
    own = storages(node.meta.get("example_value"))
    return bool(own) and isinstance(given, torch.fx.Node) and own <= storages(given.meta.get("example_value"))


def _draws_from_state(node: torch.fx.Node) -> bool:
    record = operator(node.target) if node.op == "call_function" else None
    return record is not None and record.draws_from_state


def _saved(node: torch.fx.Node, is_recorded: bool) -> float:
    record = operator(node.target)
    kind = _kind(node) or Kind.OTHER
    calls = _UNKNOWN if record is None or _is_split(record) else _FUSED.get(kind, 0.0)
    if _is_small_product(node):
        calls = _SMALL_PRODUCT
    elif record is not None and record.kind is Kind.ATTENTION and record.decompose:
        calls = _LAYER
    values = list(_tensors_in(node.meta.get("example_value")))
    if not values or _is_part(node) or _is_element_of_number(node, record):
        return 0.0
    if _finds_sizes(node):
        return -_FOUND_SIZES
    if isinstance(node.target, (FunctionTransform, PullbackCall)):
        return _saved_by_transform(node.target) * (1 + _RECORDED if is_recorded else 1)
    if not calls or (is_recorded and kind in _KERNELS_IF_RECORDED):
        return _KERNEL.get(kind, _OTHER_KERNEL)[is_recorded]
    traffic = 0.0 if kind is Kind.VIEW else sum(map(_bytes, values)) / _BYTES
    if "numpy_calls" in node.meta:
        calls = node.meta["numpy_calls"] * (_NUMPY if values[0].dim() else _NUMPY_SCALAR)
    in_vectors = _saved_by_vectors(node, record)
    if not is_recorded:
        return calls + in_vectors + (0.0 if _leaves(node) else traffic)
    if kind is not Kind.NORMALISATION and not any(map(_is_fused, node.all_input_nodes)):
        traffic = 0.0
    recorded = _SMALL_PRODUCT_RECORDED if _is_small_product(node) else calls * (1 + _RECORDED)
    return recorded + in_vectors + traffic * (1 + _TRAFFIC_RECORDED)


def _saved_by_vectors(node: torch.fx.Node, record: Operator | None) -> float:
    """What a generated kernel saves where eager's reduction has few vectors."""
    if record is None or record.kind is not Kind.REDUCTION:
        return 0.0
    if not isinstance(node.meta["example_value"], torch.Tensor):  # `max` over a dimension gives positions, too
        record = operator(getattr(getattr(torch.ops.aten, record.family), "dim", None)) or record
    if not record.elements_per_saved_call:
        return 0.0
    read = [tensor for n in node.all_input_nodes for tensor in _tensors_in(n.meta.get("example_value"))]
    return sum(map(_elements, read)) / record.elements_per_saved_call


def _is_split(record: Operator) -> bool:
    """Whether eager or the compiler makes several operators of one whose kind does not say so."""
    return (record.kind is Kind.OTHER and record.is_composite) or (record.kind is Kind.LINALG and record.decompose)


def computing_operators(gm: torch.fx.GraphModule | None) -> int:
    """How many operators of a graph compute tensors, views aside."""
    if gm is None:
        return 0
    return sum(_computes_tensor(node) and _kind(node) is not Kind.VIEW for node in gm.graph.nodes)


def numbers_beside_tensors(gm: torch.fx.GraphModule | None) -> int:
    """How many operators of a graph take a tensor and a number: eager makes a tensor of it, and converts that to the other's dtype."""
    return 0 if gm is None else sum(map(_has_number_operand, gm.graph.nodes))


def _has_number_operand(node: torch.fx.Node) -> bool:
    operands = node.args[:2]
    is_one = len(operands) == 2 and len(node.all_input_nodes) == 1 and any(type(x) in (int, float) for x in operands)
    record = operator(node.target) if is_one and _computes_tensor(node) else None
    return record is not None and record.kind is Kind.POINTWISE and record.element_use is not ElementUse.IGNORED


def work_of(gm: torch.fx.GraphModule | None) -> float:
    """How long the kernels of a graph take at least, in calls of operators: what writing its results takes, and computing functions."""
    if gm is None:
        return 0.0
    return sum(_work(node) for node in gm.graph.output_node().all_input_nodes)


def _work(node: torch.fx.Node) -> float:
    record = operator(node.target) if node.op.startswith("call_") else None
    if record is None:
        return 0.0
    if _kind(node) is Kind.VIEW and node.all_input_nodes:
        return _work(node.all_input_nodes[0])
    each = _FUNCTION if record.cost is Cost.TRANSCENDENTAL else 1.0
    return each * sum(map(_bytes, _tensors_in(node.meta.get("example_value")))) / _BYTES


def _saved_by_transform(target: FunctionTransform | PullbackCall) -> float:
    bodies = target.calls if isinstance(target, FunctionTransform) else ()
    nodes = [node for body in bodies for node in body.graph.graph.nodes if node.op.startswith("call_")]
    inner = [node.target for node in nodes if isinstance(node.target, (FunctionTransform, PullbackCall))]
    return _TRANSFORM + _TRANSFORMED * (len(nodes) - len(inner)) + sum(map(_saved_by_transform, inner))


def _leaves(node: torch.fx.Node) -> bool:
    """Whether the graph returns what the node computes, or a view of it."""
    return any(user.op == "output" or (_kind(user) is Kind.VIEW and _leaves(user)) for user in node.users)


def _is_fused(node: torch.fx.Node) -> bool:
    """Whether the node, or what it is a view of, is computed by a generated kernel."""
    record = operator(node.target) if node.op.startswith("call_") else None
    if _kind(node) is Kind.VIEW and node.all_input_nodes:
        return _is_fused(node.all_input_nodes[0])
    return node.op.startswith("call_") and (record is None or record.kind in _FUSED or _is_small_product(node))


def _has_history(node: torch.fx.Node) -> bool:
    """Whether autograd records the call. It does not where an optimizer writes to a parameter, which requires gradients all the same.

    A view is not asked for its history: it may refuse to tell.
    """
    values = _tensors_in(node.meta.get("example_value"))
    return any(value.requires_grad and (value._is_view() or not value.is_leaf) for value in values)


def _is_part(node: torch.fx.Node) -> bool:
    """Whether the node takes one of several results of a call."""
    given = node.args[0] if node.target is operator_module.getitem else None
    return isinstance(given, torch.fx.Node) and isinstance(given.meta.get("example_value"), (tuple, list))


def _is_element_of_number(node: torch.fx.Node, record: Operator | None) -> bool:
    """Whether only numbers are read of a view: the host makes the view, too, and `tolist` makes none in eager."""
    if record is None or record.kind is not Kind.VIEW or not node.users:
        return False
    return all(isinstance(user.meta.get("example_value"), py_sym_types) for user in node.users)


def _finds_sizes(node: torch.fx.Node) -> bool:
    """Whether the node has sizes that only the run tells and that its arguments do not have."""
    found = _unknown_symbols(node)
    return bool(found) and not found <= set[Any]().union(*map(_unknown_symbols, node.all_input_nodes))


def _unknown_symbols(node: torch.fx.Node) -> set[Any]:
    """The symbols in the sizes of a node that have no value in this call."""
    values = _tensors_in(node.meta.get("example_value"))
    sizes = [size for value in values for size in value.size() if not isinstance(size, int)]
    return {s for size in sizes if _hint_of(size) is None for s in raw_expr(size).free_symbols}


def _bytes(tensor: torch.Tensor) -> int:
    return _elements(tensor) * tensor.element_size()


def _elements(tensor: torch.Tensor) -> int:
    return math.prod(map(_hint, tensor.size()))


def _hint(size: Any) -> int:
    """A size, or what a symbolic size is in this call; 1 where only the run tells."""
    if isinstance(size, int):
        return size
    hint = _hint_of(size)
    return 1 if hint is None else hint


def _hint_of(size: Any) -> int | None:
    hint = getattr(size.node, "hint", None)
    return hint if isinstance(hint, int) else None


def _tensors(gm: torch.fx.GraphModule) -> Iterator[tuple[torch.fx.Node, torch.Tensor]]:
    for node in gm.graph.nodes:
        for tensor in _tensors_in(node.meta.get("example_value")):
            yield node, tensor


def _tensors_in(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _tensors_in(part)


__all__ = ["CONTINUATION", "computing_operators", "numbers_beside_tensors", "profit_of", "work_of"]
