"""Numbers of the graph: sizes, and what is only known while it runs (`item`, the size of `nonzero`), with the checks on them.

graph    n = aten._local_scalar_dense(x);  ok = n >= 0;  aten._assert_scalar(ok, "n < 0");  y = aten.full([n], 1.0)
program  extern item(x) binds u0;  check u0 >= 0 "n < 0";  loop y [i0:u0]

The value of such a node is an int, float or bool, or an expression over symbols of treadle_shapes.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from treadle_codegen.ir.loops import Bind, Check, Define, IntLike, NumberLike, symbols_of
from treadle_codegen.lower.context import Lowering
from treadle_codegen.lower.extern import lower_extern, why_not_extern
from treadle_codegen.lower.indexing import SYMBOLIC, as_intlike, as_shape, is_symbolic, raw_number
from treadle_codegen.lower.overwrite import select_scatter
from treadle_codegen.lower.registry import name_of
from treadle_codegen.lower.tensor_expr import TensorExpr, normalize_dim
from treadle_codegen.lower.view import select, slice_of
from treadle_shapes import ShapeEnv
from treadle_shapes.expr import (
    And,
    BoolExpr,
    Expr,
    Ge,
    Le,
    Lt,
    Ne,
    Not,
    Or,
    Symbol,
    linear_coefficients,
    maximum,
    minimum,
    symbol,
    where,
)
from treadle_shapes.floats import FLOAT_OPS, FloatExpr, float_fn, to_float
from treadle_shapes.torch import BOOL_BINARY, BOOL_UNARY, FLOAT_BINARY, FLOAT_UNARY, INT_BINARY, INT_UNARY, env_of

NUMBERS = (bool, int, float, *SYMBOLIC)
_TABLES = {int: (INT_BINARY, INT_UNARY), float: (FLOAT_BINARY, FLOAT_UNARY), bool: (BOOL_BINARY, BOOL_UNARY)}


def number_of(lowering: Lowering, value: Any) -> NumberLike:
    """The value of a number's `meta["val"]`. Integers are simplified by the facts of their environment, which hold from
    the definition of a symbol on: the checks that establish them stand right behind it."""
    if not isinstance(value, SYMBOLIC):
        return value
    raw = raw_number(value)
    if not isinstance(raw, Expr):
        return lowering.as_traced(value)
    simple = as_intlike(value)
    return simple if symbols_of(simple) <= lowering.symbols else raw


def new_symbols(lowering: Lowering, node: torch.fx.Node) -> frozenset[Any]:
    """The symbols in a node's fake result that nothing defined before, so that this node does."""
    val = node.meta.get("val")
    symbolic = [v for v in (val if isinstance(val, (list, tuple)) else (val,)) if is_symbolic(v)]
    if not symbolic:
        return frozenset()
    tags = getattr(node.target, "tags", ())
    defines = torch.Tag.data_dependent_output in tags or torch.Tag.dynamic_output_shape in tags
    return frozenset().union(*[_new_symbols(lowering, v, defines) for v in symbolic])


def _new_symbols(lowering: Lowering, val: Any, defines: bool) -> frozenset[Any]:
    if isinstance(val, SYMBOLIC):
        return _unknown(lowering, val, defines) - lowering.offsets
    fresh = frozenset().union(*[_unknown(lowering, n, defines) for n in val.shape if isinstance(n, torch.SymInt)])
    if val.layout == torch.strided and isinstance(val.storage_offset(), torch.SymInt):
        # Where a view starts in memory is ours to know; a tracer may have a symbol for it.
        lowering.offsets |= symbols_of(raw_number(val.storage_offset())) - lowering.symbols - fresh
    return fresh


def _unknown(lowering: Lowering, value: Any, defines: bool) -> frozenset[Any]:
    """Unknown symbols of a number; those that its environment can write with known ones only count where they can be read from a value.

    ``b[order]`` may have ``u + 1`` elements, of which a check before it says that they are 4; its operator would define the length
    of ``b[mask]``.
    """
    unknown = symbols_of(raw_number(value)) - lowering.symbols
    if not unknown:
        return unknown
    tells = defines and _symbol_and_factor(raw_number(value), whole=not isinstance(value, torch.SymInt)) is not None
    if not tells and symbols_of(number_of(lowering, value)) <= lowering.symbols:
        return frozenset()
    env = env_of(value)
    return unknown if env is None else frozenset(s for s in unknown if s not in env.hints)


# -- arithmetic --------------------------------------------------------------------------------------------------------


def compute(target: Callable[..., Any], args: Sequence[Any]) -> NumberLike:
    """The result of a function that graphs compute numbers with (`treadle_shapes.torch.NUMBER_FUNCTIONS`)."""
    if not any(isinstance(a, (Expr, FloatExpr, BoolExpr)) for a in args):
        return target(*args)
    if target is torch.sym_ite:
        return _if_then_else(*args)
    kind: type = float if any(isinstance(a, (float, FloatExpr)) for a in args) else int
    if all(isinstance(a, (bool, BoolExpr)) for a in args):
        kind = bool
    if kind is float and target in (op := _float_operations()):
        return float_fn(op[target], *[a if i and op[target] == "fround" else _as_float(a) for i, a in enumerate(args)])
    name = _ROUNDING.get(target, target.__name__)
    table = _TABLES[kind][len(args) == 1]
    if name not in table:
        raise TypeError(f"{target} on {', '.join(type(a).__name__ for a in args)} is not known")
    return table[name](*(map(_as_float, args) if kind is float else args))


_ROUNDING = {math.floor: "floor", math.ceil: "ceil", math.trunc: "trunc", int: "trunc"}


@functools.cache
def _float_operations() -> dict[Any, str]:
    """Function -> the float operation that it is on floats."""
    from treadle_shapes.torch import NUMBER_FUNCTIONS  # needs torch's symbolic functions: for graphs with numbers only

    return {
        fn: op for op, fn in NUMBER_FUNCTIONS.items() if op in FLOAT_OPS and op not in ("float", "truediv", "fwhere")
    }


def _as_float(value: Any) -> Any:
    return to_float(value) if isinstance(value, Expr) else float(value) if isinstance(value, int) else value


def _if_then_else(condition: Any, a: Any, b: Any) -> NumberLike:
    if isinstance(condition, bool):
        return a if condition else b
    if any(isinstance(x, (float, FloatExpr)) for x in (a, b)):
        return float_fn("fwhere", condition, _as_float(a), _as_float(b))
    if any(isinstance(x, (bool, BoolExpr)) for x in (a, b)):
        return Or(And(condition, a), And(Not(condition), b))
    return where(condition, a, b)


def size_of(lowering: Lowering, node: torch.fx.Node, args: Any) -> NumberLike | None:
    """The value of a node that is a number: a size or stride of a tensor, or arithmetic on such; None for others."""
    val = node.meta.get("val")
    if isinstance(val, NUMBERS):
        symbolic_args = any(isinstance(a, (Expr, FloatExpr, BoolExpr)) for a in args)
        if not (isinstance(val, bool) and symbolic_args):
            value = number_of(lowering, val)
            if symbols_of(value) <= lowering.symbols or not symbolic_args:
                return value
    if isinstance(node.target, torch._ops.OpOverload):
        name = name_of(node.target)
        if name == "aten.sym_stride.int" and args[0].storage is not None:
            return args[0].storage.strides[args[1]]  # of an input: others' strides are ours to choose
        return args[0].shape[args[1]] if name == "aten.sym_size.int" else None
    if isinstance(val, torch.Tensor) or not callable(node.target):
        return None
    # A condition that tracing took for true holds because of a check; the check itself must ask. And a value in the
    # symbols of an earlier trace follows from the arguments as well.
    return compute(node.target, args)


# -- definitions -------------------------------------------------------------------------------------------------------


def lower_definition(
    lowering: Lowering, node: torch.fx.Node, args: Sequence[Any], kwargs: dict[str, Any], fresh: frozenset[Any]
) -> Any:
    """A node whose result has sizes, or is a number, that only running it tells."""
    name = name_of(node.target)
    if name in DEFINITIONS:
        result = DEFINITIONS[name](lowering, fresh, *args, **kwargs)
        if result is not None:
            lowering.symbols |= fresh
            _define_equals(lowering, [node.meta["val"]], fresh)
            return result
    if not isinstance(node.target, torch._ops.OpOverload):
        raise TypeError(f"{node.target} gives a number that nothing defines")
    if (reason := why_not_extern(node.target)) is not None:
        raise TypeError(reason)
    val = node.meta["val"]
    results = list(val) if isinstance(val, (list, tuple)) else [val]
    binds = bindings(results, fresh)
    if missing := fresh - {bind.symbol for bind in binds}:
        raise TypeError(f"no size of the result tells {', '.join(map(describe(results), missing))}")
    lowering.symbols |= fresh
    result = lower_extern(lowering, node.target, tuple(args), kwargs, binds=tuple(binds))
    _define_equals(lowering, results, fresh)
    if isinstance(result, tuple):
        return tuple(
            number_of(lowering, v) if isinstance(v, SYMBOLIC) else x for x, v in zip(result, results, strict=True)
        )
    return number_of(lowering, val) if isinstance(val, SYMBOLIC) else result


def _define_equals(lowering: Lowering, results: Sequence[Any], fresh: Iterable[Any]) -> None:
    """Define what the environment writes for a new symbol: an earlier trace of the program may have called it otherwise."""
    env = environment(results)
    for own in fresh:
        equal = own if env is None or isinstance(own, FloatExpr) else env.simplify(own)
        if isinstance(equal, Symbol) and equal not in lowering.symbols:
            lowering.steps.append(Define(lowering.fresh(f"define_{equal.name}"), equal, own))
            lowering.symbols.add(equal)


def bindings(results: Sequence[Any], fresh: Iterable[Any]) -> list[Bind]:
    """Where each new symbol can be read from the results: a number that is the symbol, or a size that is a multiple of it."""
    found: dict[Any, Bind] = {}
    name = describe(results)
    for k, val in enumerate(results):
        sizes = [(d, size) for d, size in enumerate(val.shape)] if isinstance(val, torch.Tensor) else [(None, val)]
        for d, size in sizes:
            if not isinstance(size, SYMBOLIC):
                continue
            at = _symbol_and_factor(raw_number(size), whole=d is None)
            if at is not None and at[0] in fresh:
                found.setdefault(at[0], Bind(at[0], k, d, at[1], name(at[0])))
    return list(found.values())


def _symbol_and_factor(value: NumberLike, *, whole: bool) -> tuple[Any, int] | None:
    symbols = list(symbols_of(value))
    if len(symbols) != 1:
        return None
    if value is symbols[0] or isinstance(value, (BoolExpr, FloatExpr)):
        # A bool read from a tensor is `u != 0` of a symbol that is 0 or 1.
        return (symbols[0], 1) if whole or value is symbols[0] else None
    linear = linear_coefficients(value, symbols) if isinstance(value, Expr) else None
    if linear is None or linear[1] != 0 or not isinstance(linear[0][symbols[0]], int) or whole:
        return None
    return symbols[0], linear[0][symbols[0]]  # type: ignore[return-value]


def describe(results: Sequence[Any]) -> Callable[[Any], str]:
    """How the user's program writes a symbol, by the environment of the fake results."""
    env = environment(results)
    return lambda symbol: "a value read from a tensor" if env is None else env.source_of(symbol)


def environment(results: Sequence[Any]) -> ShapeEnv | None:
    """The environment of the symbols in fake results."""
    numbers = [n for v in results for n in (v.shape if isinstance(v, torch.Tensor) else (v,))]
    return next((env for env in map(env_of, numbers) if env is not None), None)


def defined(lowering: Lowering, value: NumberLike, name: str) -> IntLike:
    """A symbol, not negative, that stands for `value` from here on."""
    if isinstance(value, int):
        return value
    result = symbol(lowering.fresh(f"n_{name}"), 0)
    lowering.steps.append(Define(lowering.fresh(f"define_{name}"), result, value))
    lowering.symbols.add(result)
    return result


def _position(at: IntLike, size: IntLike) -> IntLike:
    """A slice's end as torch takes it: counted from the end if negative, and kept inside of the dimension."""
    if isinstance(at, int) and isinstance(size, int):
        return max(at + size, 0) if at < 0 else min(at, size)
    if isinstance(at, int):
        return maximum(at + size, 0) if at < 0 else minimum(at, size)
    return minimum(maximum(where(Lt(at, 0), at + size, at), 0), size)


def slice_unbacked(
    lowering: Lowering,
    fresh: frozenset[Any],
    x: TensorExpr,
    dim: int = 0,
    start: Any = None,
    end: Any = None,
    step: int = 1,
) -> TensorExpr | None:
    """A slice whose start or length follows from numbers known at run time; a symbol for its length is defined here."""
    d = normalize_dim(dim, x.dim)
    size = x.shape[d]
    first = _position(0 if start is None else as_intlike(start), size)
    last = size if end is None else _position(as_intlike(end), size)
    length: Any = maximum(last - first, 0)
    if step != 1:
        length = (length + step - 1) // step
    first = defined(lowering, first, "start")
    expected = raw_number(lowering.val.shape[d])
    if expected in fresh:
        lowering.steps.append(Define(lowering.fresh("define_length"), expected, length))
    elif fresh:
        return None
    return x.view(slice_of(x.shape, d, first, as_shape(lowering.val.shape)[d], step))


def select_unbacked(lowering: Lowering, x: TensorExpr, dim: int, index: Any) -> TensorExpr:
    """One position of a dimension, which is checked like eager's."""
    d = normalize_dim(dim, x.dim)
    return x.view(select(x.shape, d, _checked_position(lowering, "select", x, d, index)))


def select_scatter_unbacked(
    lowering: Lowering, x: TensorExpr, src: TensorExpr, dim: int, index: Any
) -> TensorExpr | None:
    """`x` with one position of a dimension replaced, which is checked like eager's."""
    d = normalize_dim(dim, x.dim)
    return select_scatter(lowering, x, src, d, _checked_position(lowering, "select_scatter", x, d, index))


def _checked_position(lowering: Lowering, function: str, x: TensorExpr, d: int, index: Any) -> IntLike:
    """The position in dimension `d` that a number known at run time stands for, which may count from the end."""
    at, size = as_intlike(index), x.shape[d]
    condition = And(Le(-size, at), Lt(at, size))
    message = f"{function}(): index out of range for dimension {d}"
    lowering.steps.append(Check(lowering.fresh("check_select"), condition, message, "IndexError"))
    return defined(lowering, where(Lt(at, 0), at + size, at), "index")


DEFINITIONS: dict[str, Callable[..., Any]] = {
    "aten.slice.Tensor": slice_unbacked,
    "aten.slice_copy.Tensor": slice_unbacked,
}

# -- checks ------------------------------------------------------------------------------------------------------------


def _check(lowering: Lowering, condition: Any, message: str) -> None:
    if isinstance(condition, Expr):
        condition = Ne(condition, 0)
    if condition is not True and lowering.offsets.isdisjoint(symbols_of(condition)):
        lowering.steps.append(Check(lowering.fresh("check"), condition, message))


def _assert_scalar(lowering: Lowering, condition: Any, message: str = "") -> None:
    _check(lowering, condition, message)


def _constrain_range(lowering: Lowering, value: Any, *, min: Any = None, max: Any = None) -> None:
    what = "a value read from a tensor"
    if min is not None:
        _check(lowering, Ge(value, min) if isinstance(value, Expr) else value >= min, f"{what} must be at least {min}")
    if max is not None:
        _check(lowering, Le(value, max) if isinstance(value, Expr) else value <= max, f"{what} must be at most {max}")


def _constrain_size(lowering: Lowering, value: Any, *, min: Any = None, max: Any = None) -> None:
    _constrain_range(lowering, value, min=0 if min is None else min, max=max)


CHECKS: dict[str, Callable[..., None]] = {
    "aten._assert_scalar.default": _assert_scalar,
    "aten.sym_constrain_range.default": _constrain_range,
    "aten.sym_constrain_range_for_size.default": _constrain_size,
}

# What the result of a call on run-time numbers needs that the ordinary lowering does not know about.
RUN_TIME: dict[str, Callable[..., Any]] = {
    "aten.select.int": select_unbacked,
    "aten.select_copy.int": select_unbacked,
    "aten.select_scatter.default": select_scatter_unbacked,
    "aten.slice.Tensor": lambda lowering, *args, **kwargs: slice_unbacked(lowering, frozenset(), *args, **kwargs),
}


def unbacked_numbers(lowering: Lowering, args: Any) -> bool:
    """Whether an argument is an integer expression over symbols that are not inputs."""
    if isinstance(args, (list, tuple)):
        return any(unbacked_numbers(lowering, a) for a in args)
    if isinstance(args, TensorExpr):
        return bool(symbols_of(args.shape) - lowering.input_symbols)
    return isinstance(args, Expr) and bool(args.free_symbols - lowering.input_symbols)


__all__ = [
    "CHECKS",
    "RUN_TIME",
    "lower_definition",
    "new_symbols",
    "number_of",
    "raw_number",
    "unbacked_numbers",
    "size_of",
]
