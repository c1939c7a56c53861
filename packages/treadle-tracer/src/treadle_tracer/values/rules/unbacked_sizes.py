"""Rules of torch functions whose kernels do not take symbolic sizes as they are.

Some kernels read a size as a plain number: `values.rules.substitutes` is traced instead. Some give another result at a size of 1 without a
decision. Some read memory that does not exist at a size of 0.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from treadle_shapes.torch import expr_of, is_transforming, raw_expr
from treadle_tracer.by_identity import is_one_of
from treadle_tracer.errors import Unsupported
from treadle_tracer.values import assumptions, tensor_numbers, unbacked
from treadle_tracer.values.base import NONE, Constant
from treadle_tracer.values.rules import substitutes
from treadle_tracer.values.rules.rule import Apply, Args, Effect, Kwargs, Rule
from treadle_tracer.values.sequences import Sequence, TupleValue
from treadle_tracer.values.tensor import SymbolicValue, TensorValue
from treadle_tracer.values.value import NotConstant, Value

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext

# ---- functions that read plain numbers


_Choice = tuple[Callable[[Any, Kwargs], bool], Callable[..., Any]]


def _replacing(function: Callable[..., Any], *choices: _Choice) -> Rule:
    """Trace the first substitute of `(fits(tx, named arguments), substitute)` that fits and takes all arguments given, else `function`."""

    def run(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
        for fits, substitute in choices:
            code = substitute.__code__
            names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
            named = {**dict(zip(names, args, strict=False)), **kwargs}
            if len(args) <= code.co_argcount and named.keys() <= set(names) and fits(tx, named):
                return tx.inline(tx.wrap_known(substitute), args, kwargs)
        return tx.run_in_graph("call_function", function, args, kwargs)

    return Rule(function, run, Effect.GRAPH)


def _counts_symbolic_steps(tx: TraceContext, named: Kwargs) -> bool:
    if not all(_is_number(named.get(name, NONE)) for name in ("start", "end")):
        return False
    dtype = named.get("dtype", NONE).constant()
    return _is_symbolic(named.get("steps", NONE)) and (dtype is None or dtype.is_floating_point)


def _has_symbolic_frequencies(tx: TraceContext, named: Kwargs) -> bool:
    dtype = named.get("dtype", NONE).constant()
    is_floating = dtype is None or dtype.is_floating_point
    return _is_symbolic(named.get("n", NONE)) and _is_number(named.get("d", Constant(1.0))) and is_floating


def _multiplies_symbolic_sizes(tx: TraceContext, named: Kwargs) -> bool:
    factors = [value.fake for value in named.values() if isinstance(value, TensorValue)]
    if len(factors) != 2 or factors[0].dim() != factors[1].dim():
        return False
    is_symbolic = any(isinstance(size, torch.SymInt) for factor in factors for size in factor.shape)
    return is_symbolic and all(factor.is_contiguous() for factor in factors)


def _maps_rows_in_a_transform(tx: TraceContext, named: Kwargs) -> bool:
    """Transforms have a kernel of their own for three dimensions, which reads the sizes."""
    source, bias = named.get("input"), named.get("bias", NONE)
    if not is_transforming() or not isinstance(source, TensorValue) or not isinstance(bias, TensorValue):
        return False
    return source.fake.dim() == 3 and bias.fake.dim() == 1 and _has_symbolic_size(source)


def _keeps_history_of_blocks(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    """torch.block_diag. Where gradients are recorded, PyTorch keeps the sizes of the blocks as plain numbers."""
    blocks = [arg for arg in args if isinstance(arg, TensorValue)]
    is_recorded = torch.is_grad_enabled() and any(block.fake.requires_grad for block in blocks)
    if kwargs or len(blocks) != len(args) or not is_recorded or not any(map(_has_symbolic_size, blocks)):
        return tx.run_in_graph("call_function", torch.block_diag, args, kwargs)
    if any(block.fake.dim() > 2 for block in blocks):  # eager says so
        return tx.run_in_graph("call_function", torch.block_diag, args, kwargs)
    return tx.inline(tx.wrap_known(substitutes.block_diag), args, kwargs)


def _selects_with_history(tx: TraceContext, named: Kwargs) -> bool:
    """PyTorch reads the sizes as plain numbers in the backward of masked_select."""
    source, mask = named.get("input"), named.get("mask")
    if not isinstance(source, TensorValue) or not isinstance(mask, TensorValue) or mask.fake.dtype is not torch.bool:
        return False
    return source.fake.requires_grad and torch.is_grad_enabled() and any(map(_has_symbolic_size, (source, mask)))


def _differs_along_symbolic_sizes(tx: TraceContext, named: Kwargs) -> bool:
    """Whether torch.gradient accepts the arguments, with steps that are numbers."""
    source, spacing, dim = named.get("input"), named.get("spacing", Constant(1)), named.get("dim", NONE)
    order = named.get("edge_order", Constant(1))
    if not isinstance(source, TensorValue) or not _has_symbolic_size(source) or not order.is_constant():
        return False
    rank, dtype = source.fake.dim(), source.fake.dtype
    try:
        dims, steps = dim.constant(), spacing.constant()
    except NotConstant:
        return False
    dims = list(range(rank)) if dims is None else [dims] if type(dims) is int else list(dims)
    steps = list(steps) if isinstance(steps, (tuple, list)) else [steps] * len(dims)
    if len(steps) != len(dims) or not all(type(step) in (int, float) for step in steps):
        return False
    if not all(type(d) is int and -rank <= d < rank for d in dims) or len({d % rank for d in dims}) != len(dims):
        return False
    least = order.constant() + 1
    is_long = least in (2, 3) and all(_is_at_least(tx, source.fake.shape[d], least) for d in dims)
    return is_long and (dtype.is_floating_point or dtype.is_complex)


def _has_symbolic_image(tx: TraceContext, named: Kwargs) -> bool:
    """Whether F.affine_grid accepts the arguments, and warns of nothing."""
    theta, size, align_corners = (named.get(name, NONE) for name in ("theta", "size", "align_corners"))
    if not isinstance(theta, TensorValue) or not isinstance(size, Sequence) or not align_corners.is_constant():
        return False
    sizes = [item.sym if isinstance(item, SymbolicValue) else item for item in size.unpack(tx)]
    sizes = [item.constant() if isinstance(item, Constant) else item for item in sizes]
    spatial, shape = len(sizes) - 2, theta.fake.shape
    if spatial not in (2, 3) or not all(type(n) is int or isinstance(n, torch.SymInt) for n in sizes):
        return False
    wanted = [_hint(tx, sizes[0]), spatial, spatial + 1]
    fits = None not in wanted and [_hint(tx, n) for n in shape] == wanted
    is_symbolic = any(isinstance(n, torch.SymInt) for n in sizes[2:])
    is_plain = type(align_corners.constant()) is bool and theta.fake.dtype in (torch.float32, torch.float64)
    return fits and is_symbolic and is_plain and all(_is_at_least(tx, n, 1) for n in sizes)


def _is_at_least(tx: TraceContext, size: Any, least: int) -> bool:
    """Whether a size is so large in this call, which is not guarded."""
    hint = _hint(tx, size)
    return hint is not None and hint >= least


def _hint(tx: TraceContext, size: Any) -> int | None:
    """A size in this call, which is not guarded; None where only data tell it."""
    return tx.symbols.env.hint(raw_expr(size)) if isinstance(size, torch.SymInt) else size  # type: ignore[no-any-return]


def _has_symbolic_size(value: TensorValue) -> bool:
    return any(isinstance(size, torch.SymInt) for size in value.fake.shape)


def _broadcast(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    """torch._C._infer_size. What it refuses is left to Python, for eager's message."""
    shapes = [arg.items for arg in args if isinstance(arg, Sequence) and arg.python_type() is torch.Size]
    pairs = zip(*map(reversed, shapes), strict=False)
    if len(shapes) != 2 or kwargs or not all(_may_broadcast(tx, one, other) for one, other in pairs):
        raise Unsupported("builtin-call", "torch._C._infer_size")
    return tx.inline(tx.wrap_known(substitutes.infer_size), args, kwargs)


def _may_broadcast(tx: TraceContext, one: Value, other: Value) -> bool:
    sizes = [value.sym if isinstance(value, SymbolicValue) else value.constant() for value in (one, other)]
    return not any(unbacked.is_unbacked(tx, value) for value in (one, other)) and (1 in sizes or sizes[0] == sizes[1])


def _einsum(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    """torch.einsum of three or more tensors: opt_einsum, where it is installed, asks for the sizes as plain numbers to choose an order.

    Any order is right. The graph takes the one for the sizes of this call.
    """
    order = None if kwargs else _order_of_contractions(tx, args)
    if order is None:
        return tx.run_in_graph("call_function", torch.einsum, args, kwargs)
    equation, *operands = args
    return tx.run_in_graph(
        "call_function", torch.ops.aten.einsum.default, [equation, TupleValue(operands)], {"path": Constant(order)}
    )


def _order_of_contractions(tx: TraceContext, args: Args) -> tuple[int, ...] | None:
    """The pairs of operands to contract, one after the other. None where PyTorch does not ask for them, or all sizes are known."""
    backend = torch.backends.opt_einsum
    equation, *operands = args
    if len(operands) < 3 or not equation.is_constant() or not backend.enabled or not backend.is_available():
        return None
    shapes = [operand.fake.shape for operand in operands if type(operand) is TensorValue]
    if len(shapes) != len(operands) or not any(isinstance(size, torch.SymInt) for shape in shapes for size in shape):
        return None
    hints = [[tx.symbols.env.hint(raw_expr(size)) for size in shape] for shape in shapes]
    if any(hint is None for shape in hints for hint in shape):
        return None
    contract_path = backend.get_opt_einsum().contract_path
    try:
        pairs = contract_path(equation.constant(), *map(tuple, hints), shapes=True, optimize=backend.strategy)[0]
    except (ValueError, TypeError, LookupError):  # an equation that does not fit the operands: torch.einsum says so
        return None
    return tuple(itertools.chain.from_iterable(pairs))


def _has_unbacked_sides(tx: TraceContext, named: Kwargs) -> bool:
    return tx.symbols.captures and any(unbacked.is_unbacked(tx, named.get(name, NONE)) for name in ("row", "col"))


def _compares_alike(tx: TraceContext, named: Kwargs) -> bool:
    a, b = named.get("input"), named.get("other")
    if not isinstance(a, TensorValue) or not isinstance(b, TensorValue) or not tx.symbols.takes_numbers:
        return False
    return a.fake.dtype == b.fake.dtype and a.fake.device == b.fake.device


def _infers_classes(tx: TraceContext, named: Kwargs) -> bool:
    labels, classes = named.get("input"), named.get("num_classes", Constant(-1))
    if not isinstance(labels, TensorValue) or labels.fake.dtype != torch.int64:
        return False
    return tx.symbols.captures and classes.is_constant() and classes.constant() == -1


def _has_classes(tx: TraceContext, named: Kwargs) -> bool:
    """Whether the number of classes is given. The kernel reads the labels to check them, which fake tensors cannot."""
    labels, classes = named.get("input"), named.get("num_classes", NONE)
    if not isinstance(labels, TensorValue) or labels.fake.dtype != torch.int64 or not tx.symbols.takes_numbers:
        return False
    return _is_symbolic(classes) or (is_one_of(classes.python_type(), (int,)) and classes.constant() > 0)


def _pools_symbolic_length(tx: TraceContext, named: Kwargs) -> bool:
    source = named.get("input")
    indices = named.get("return_indices", Constant(False))
    if not isinstance(source, TensorValue) or source.fake.dim() not in (2, 3) or indices.constant():
        return False
    return isinstance(source.fake.shape[-1], torch.SymInt) and not source.fake.requires_grad


def _pads_unbacked_lengths(tx: TraceContext, named: Kwargs) -> bool:
    sequences = named.get("sequences")
    if not isinstance(sequences, Sequence) or not sequences.items:
        return False
    parts = sequences.items
    return all(isinstance(part, TensorValue) and part.fake.dim() for part in parts) and any(
        _is_unbacked_size(tx, part.fake.shape[0]) for part in parts if isinstance(part, TensorValue)
    )


def _take_along_dim(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    """torch.take_along_dim: with equal sizes in all other dimensions it is `gather`."""
    named = {**dict(zip(("input", "indices", "dim"), args, strict=False)), **kwargs}
    source, indices, dim = (named.get(name, NONE) for name in ("input", "indices", "dim"))
    if isinstance(source, TensorValue) and isinstance(indices, TensorValue) and isinstance(dim.constant(), int):
        sizes = [list(t.fake.shape) for t in (source, indices)]
        if len(sizes[0]) == len(sizes[1]) and -len(sizes[0]) <= dim.constant() < len(sizes[0]):
            is_symbolic = any(isinstance(size, torch.SymInt) for shape in sizes for size in shape)
            for shape in sizes:
                del shape[dim.constant()]
            if is_symbolic and all(map(_are_same, *sizes)):
                return tx.run_in_graph("call_function", torch.gather, [source, dim, indices], {})
    return tx.run_in_graph("call_function", torch.take_along_dim, args, kwargs)


# ---- functions that do something else at a size of 1


def _squeeze(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    dims = [*args[1:], *(value for name, value in kwargs.items() if name == "dim")]
    assumptions.squeezed(tx, args[0] if args else kwargs.get("input"), dims)
    return tx.run_in_graph("call_function", torch.squeeze, args, kwargs)


# ---- functions that would read what is not there at a size of 0


def _sampling(function: Callable[..., Any]) -> Apply:
    """Interpolation of images: without a pixel there is nothing to read; eager raises a RuntimeError."""

    def run(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
        image = args[0] if args else kwargs.get("input")
        size = _with_numbers(tx, args[1] if len(args) > 1 else kwargs.get("size", NONE))
        if len(args) > 1:
            args = [args[0], size, *args[2:]]
        elif "size" in kwargs:
            kwargs = {**kwargs, "size": size}
        wanted = size.items if isinstance(size, Sequence) else [size]
        numbers = [number.sym for number in wanted if isinstance(number, SymbolicValue)]
        if isinstance(image, TensorValue):
            numbers += image.fake.shape[2:]
            for number in image.fake.shape[:2]:  # no image at all is fine, but fake kernels ask
                assumptions.assume_some(tx, number)
        for number in numbers:
            assumptions.state_positive(tx, number)
        return tx.run_in_graph("call_function", function, args, kwargs)

    return run


def _with_numbers(tx: TraceContext, size: Value) -> Value:
    """Sizes among which are tensors, as PyTorch's parser of arguments reads them: it takes integers without a dimension for numbers."""
    tensors = [item for item in size.items if isinstance(item, TensorValue)] if isinstance(size, Sequence) else []
    if not isinstance(size, Sequence) or not tensors or not all(map(_is_integer_tensor, tensors)):
        return size
    return TupleValue([tensor_numbers.read_number(tx, i) if isinstance(i, TensorValue) else i for i in size.items])


# ---- questions


def _is_number(value: Value) -> bool:
    return is_one_of(value.python_type(), (int, float))


def _is_integer_tensor(value: TensorValue) -> bool:
    dtype = value.fake.dtype
    return value.fake.dim() == 0 and dtype is not torch.bool and not (dtype.is_floating_point or dtype.is_complex)


def _is_symbolic(value: Value) -> bool:
    return isinstance(value, SymbolicValue) and value.python_type() is int


def _is_unbacked_size(tx: TraceContext, size: Any) -> bool:
    return isinstance(size, torch.SymInt) and unbacked.is_unbacked(tx, SymbolicValue(None, size))


def _are_same(one: Any, other: Any) -> bool:
    """Whether two sizes are one expression."""
    return expr_of(one) is expr_of(other) or expr_of(one) == expr_of(other)


RULES = (
    _replacing(torch.linspace, (_counts_symbolic_steps, substitutes.linspace)),
    _replacing(torch.logspace, (_counts_symbolic_steps, substitutes.logspace)),
    _replacing(torch.fft.fftfreq, (_has_symbolic_frequencies, substitutes.fftfreq)),
    _replacing(torch.fft.rfftfreq, (_has_symbolic_frequencies, substitutes.rfftfreq)),
    _replacing(torch.kron, (_multiplies_symbolic_sizes, substitutes.kron)),
    _replacing(F.linear, (_maps_rows_in_a_transform, substitutes.linear)),
    _replacing(torch.gradient, (_differs_along_symbolic_sizes, substitutes.gradient)),
    _replacing(torch.masked_select, (_selects_with_history, substitutes.masked_select)),
    _replacing(F.affine_grid, (_has_symbolic_image, substitutes.affine_grid)),
    Rule(torch.block_diag, _keeps_history_of_blocks, Effect.GRAPH),
    Rule(torch.einsum, _einsum, Effect.GRAPH),
    Rule(torch._C._infer_size, _broadcast, Effect.GRAPH),
    _replacing(torch.tril_indices, (_has_unbacked_sides, substitutes.tril_indices)),
    _replacing(torch.triu_indices, (_has_unbacked_sides, substitutes.triu_indices)),
    _replacing(F.one_hot, (_infers_classes, substitutes.one_hot), (_has_classes, substitutes.one_hot_of_classes)),
    _replacing(torch.max_pool1d, (_pools_symbolic_length, substitutes.max_pool1d)),
    _replacing(F.max_pool1d, (_pools_symbolic_length, substitutes.max_pool1d)),
    _replacing(torch._C._nn.pad_sequence, (_pads_unbacked_lengths, substitutes.pad_sequence)),
    _replacing(torch.equal, (_compares_alike, substitutes.equal)),
    _replacing(torch.allclose, (_compares_alike, substitutes.allclose)),
    Rule(torch.take_along_dim, _take_along_dim, Effect.GRAPH),
    Rule(torch.squeeze, _squeeze, Effect.GRAPH),
    *[
        Rule(function, _sampling(function), Effect.GRAPH)
        for function in (F.interpolate, F.grid_sample, torch.grid_sampler)
    ],
)
