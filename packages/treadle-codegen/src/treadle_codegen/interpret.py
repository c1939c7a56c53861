"""The reference interpreter: runs a program on tensors, one instruction at a time over the whole iteration space.

Slow and obvious; the oracle for everything downstream of lowering. Index expressions become int64 tensors over the
iteration space, every instruction is the torch function in `ir.ops.OPS`, loads are gathers from the buffers' memory.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Sequence
from typing import Any

import torch

from treadle_codegen.ir.loops import Bind, Buffer, BufferKind, Check, Define, Extern, Instr, Loop, Program, View
from treadle_codegen.ir.ops import ATTENTIONS, COMPLEX_PARTS, OPS, PRODUCTS, SCATTERS, reduced_dtype
from treadle_codegen.lower.dead_steps import step_writes
from treadle_shapes.expr import BoolExpr, Expr, Fn, Product, Sum, Symbol, evaluate
from treadle_shapes.floats import FloatExpr

Values = dict[str, torch.Tensor]  # buffer name -> flat memory, or a tensor with the buffer's strides


def interpret(program: Program, inputs: Sequence[Any]) -> list[Any]:
    """The results of a program for the given inputs (tensors and ints, in the order of `program.inputs`).

    Raises IndexError when a data-dependent index is out of range, as eager does, RuntimeError where a check fails.
    """
    sizes: dict[Any, Any] = {}
    memory: dict[str, torch.Tensor] = {}
    for name, value in zip(program.inputs, inputs, strict=True):
        if isinstance(value, torch.Tensor) and name in program.buffers:
            memory[name] = value.detach()
            _bind_sizes(program.buffers[name], value, sizes)
        elif isinstance(value, (int, float)):
            sizes.update({s: value for s in program.size_symbols if s.name == name})
    memory.update(program.constants)
    for step in program.steps:
        if isinstance(step, Check):
            if not evaluate(step.condition, sizes):
                raise getattr(builtins, step.error)(step.message)
        elif isinstance(step, Define):
            sizes[step.symbol] = evaluate(step.value, sizes)  # type: ignore[arg-type]
        elif isinstance(step, Loop):
            provide(program, step_writes(step), memory, sizes)
            run_loop(step, memory, sizes)
        else:
            _run_extern(step, program, memory, sizes)
    provide(program, {out.buffer for out in program.outputs if isinstance(out, View)}, memory, sizes)
    return [_argument(out, memory, sizes) for out in program.outputs]


def _bind_sizes(buffer: Buffer, value: torch.Tensor, sizes: dict[Any, Any]) -> None:
    strides = buffer.strides if buffer.opaque else value.stride()
    for expr, number in zip((*buffer.shape, *buffer.strides), (*value.shape, *strides), strict=True):
        if isinstance(expr, Symbol):
            sizes[expr] = number


def provide(program: Program, names: set[str], memory: Values, sizes: dict[Any, Any]) -> None:
    """Allocate the named temporaries and outputs that have no memory yet; their sizes are known once something writes them."""
    for name in names - memory.keys():
        if program.buffers[name].kind in (BufferKind.TEMP, BufferKind.OUTPUT):
            memory[name] = _allocate(program.buffers[name], sizes)


def _allocate(buffer: Buffer, sizes: dict[Any, Any]) -> torch.Tensor:
    shape = [int(value_of(s, sizes)) for s in buffer.shape]
    strides = [int(value_of(s, sizes)) for s in buffer.strides]
    tensor = torch.empty_strided(shape, strides, dtype=buffer.dtype)
    # Poison: an element that no step writes shows up in the results.
    return tensor.fill_(math.nan if buffer.dtype.is_floating_point else 1)


def value_of(expr: Any, symbols: dict[Symbol, Any]) -> Any:
    """An index expression or condition with numbers or int64 tensors for its symbols."""
    if isinstance(expr, Symbol):
        return symbols[expr]
    if isinstance(expr, Sum):
        total: Any = expr.const
        for monomial, coefficient in expr.coefficients.items():
            total = total + value_of(monomial, symbols) * coefficient
        return total
    if isinstance(expr, Product):
        result: Any = 1
        for atom, power in expr.powers.items():
            for _ in range(power):
                result = result * value_of(atom, symbols)
        return result
    if isinstance(expr, (Fn, BoolExpr)):
        if expr.op not in _APPLY:  # rounded from floats: mentions no axis
            return evaluate(expr, symbols)  # type: ignore[arg-type]
        return _APPLY[expr.op](*[value_of(arg, symbols) for arg in expr.args])
    return expr


def _tensor(x: Any) -> torch.Tensor:
    return x if isinstance(x, torch.Tensor) else torch.tensor(x)


def _fold(fn: Any) -> Any:
    def folded(*args: Any) -> torch.Tensor:
        result = _tensor(args[0])
        for arg in args[1:]:
            result = fn(result, _tensor(arg))
        return result

    return folded


_APPLY: dict[str, Any] = {
    "floordiv": lambda a, b: a // b,
    "mod": lambda a, b: a % b,
    "min": _fold(torch.minimum),
    "max": _fold(torch.maximum),
    "where": lambda c, a, b: torch.where(_tensor(c), a, b),
    "le0": lambda e: e <= 0,
    "eq0": lambda e: e == 0,
    "ne0": lambda e: e != 0,
    "and": _fold(torch.logical_and),
    "or": _fold(torch.logical_or),
    "not": lambda e: torch.logical_not(_tensor(e)),
}


class _Grid:
    """The iteration space of a loop: one int64 tensor per axis, broadcasting against each other."""

    def __init__(self, loop: Loop, sizes: dict[Any, Any]) -> None:
        axes = loop.axes + loop.reduce_axes
        self.shape = [int(value_of(axis.extent, sizes)) for axis in axes]
        self.outer = len(loop.axes)
        self.symbols: dict[Symbol, Any] = dict(sizes)
        for k, axis in enumerate(axes):
            view = [1] * len(axes)
            view[k] = self.shape[k]
            self.symbols[axis.symbol] = torch.arange(self.shape[k]).reshape(view)

    def index(self, expr: Any) -> torch.Tensor:
        """Its values, with size 1 along the axes that do not matter."""
        value = _tensor(value_of(expr, self.symbols))
        return value if value.dim() else value.reshape([1] * len(self.shape))


def run_loop(loop: Loop, memory: dict[str, torch.Tensor], sizes: dict[Any, Any]) -> None:
    """Run one loop on the memory of its buffers; `sizes` are the values of symbols."""
    grid = _Grid(loop, sizes)
    values: list[Any] = []
    for instr in loop.body:
        values.append(_run_instr(instr, [values[a] for a in instr.args], grid, memory))


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of a buffer from its first element on."""
    needed = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)) if tensor.numel() else 0
    flat = torch.as_strided(tensor, (needed,), (1,))
    return torch.view_as_real(flat).view(-1) if tensor.dtype in COMPLEX_PARTS else flat


def _run_instr(instr: Instr, args: list[torch.Tensor], grid: _Grid, memory: dict[str, torch.Tensor]) -> Any:
    op, attr, dtype = instr.op, instr.attr, instr.dtype
    if op == "load":
        return _take(_flat(memory[attr.buffer]), grid.index(attr.index))
    if op == "masked_load":
        load, condition, other = attr
        inside = grid.index(condition)
        index = torch.where(inside, grid.index(load.index), 0)
        flat = _flat(memory[load.buffer])
        if not flat.numel():
            return torch.full([1] * len(grid.shape), other, dtype=dtype)
        return torch.where(inside, _take(flat, index), torch.tensor(other, dtype=dtype))
    if op == "indirect_load":
        buffer, strides, extents = attr
        return _take(_flat(memory[buffer]), _checked(args, strides, extents, grid))
    if op == "store":
        _put(memory[attr.buffer], _outer(grid.index(attr.index), grid), _outer(args[0], grid), attr.mode)
        return None
    if op == "indirect_store":
        buffer, strides, extents = attr[:3]
        index = _outer(_checked(args[1:], strides, extents, grid), grid)
        mode = attr[3] if len(attr) > 3 else None
        put = _put if mode is None else _put_in_order
        put(memory[buffer], index, _outer(args[0], grid), mode)
        return None
    if op == "check_position":
        _checked(args, (1,), (attr,), grid)
        return None
    if op == "const":
        return torch.full([1] * len(grid.shape), attr, dtype=dtype)
    if op == "index":
        return grid.index(attr)
    if op == "scalar":
        return torch.full([1] * len(grid.shape), evaluate(attr, grid.symbols), dtype=dtype)
    if op == "cast":
        return args[0].to(dtype)
    if op == "inner_dot":
        return (args[0].double() * args[1].double()).sum(-1, keepdim=True).float()
    if op == "reduce" and attr in ATTENTIONS:
        return _weighted_sum(args[0], args[1], grid, is_safe=attr == "safe_softmax_dot")
    if op == "reduce" and attr in PRODUCTS:
        return _sum_of_products(args[0], args[1], grid)
    if op == "reduce":
        return _reduce(attr, args[0].broadcast_to(grid.shape), grid)
    if op == "scan":
        running = {"sum": torch.cumsum, "prod": torch.cumprod}[attr]
        return running(args[0].broadcast_to(grid.shape), grid.outer - 1, dtype=dtype)
    fn = OPS[op].torch
    assert fn is not None, op
    result = fn(*args)
    assert result.dtype == dtype, (instr, result.dtype)
    return result


def _take(flat: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    if index.numel() and (int(index.min()) < 0 or int(index.max()) >= flat.numel()):
        raise AssertionError(f"load outside of its buffer: {int(index.min())}..{int(index.max())} of {flat.numel()}")
    return flat[index]


def _checked(
    indices: Sequence[torch.Tensor], strides: Sequence[Any], extents: Sequence[Any], grid: _Grid
) -> torch.Tensor:
    total: Any = torch.zeros((), dtype=torch.int64)
    for index, stride, extent in zip(indices, strides, extents, strict=True):
        size = value_of(extent, grid.symbols)
        if index.numel() and (int(index.min()) < 0 or int(index.max()) >= size):
            raise IndexError(f"index out of range: {int(index.min())}..{int(index.max())} for size {size}")
        total = total + index * value_of(stride, grid.symbols)
    return total


def _outer(value: torch.Tensor, grid: _Grid) -> torch.Tensor:
    """One value per point of the outer axes; it must not depend on the reduced ones."""
    if any(n != 1 for n in value.shape[grid.outer :]):
        raise AssertionError(f"a value of shape {list(value.shape)} depends on reduced axes after the reduction")
    outer = grid.shape[: grid.outer]
    return value.reshape(value.shape[: grid.outer]).broadcast_to(outer)


def _put_in_order(tensor: torch.Tensor, index: torch.Tensor, value: torch.Tensor, mode: str) -> None:
    """One point after the other: with "overwrite", the last of several values for one element remains."""
    flat, combine = _flat(tensor), OPS[SCATTERS[mode]].torch if mode in SCATTERS else None
    for place, item in zip(index.reshape(-1).tolist(), value.reshape(-1), strict=True):
        flat[place] = item if combine is None else combine(flat[place], item)


def _put(tensor: torch.Tensor, index: torch.Tensor, value: torch.Tensor, mode: str | None) -> None:
    flat = _flat(tensor)
    flat.index_put_((index.reshape(-1),), value.reshape(-1), accumulate=mode == "add")
    if mode != "add" and index.numel() != index.unique().numel():
        raise AssertionError("two points of a loop store to the same element")


def _reduce(kind: str, value: torch.Tensor, grid: _Grid) -> torch.Tensor:
    """Over the reduce axes, which stay as axes of size 1."""
    count = math.prod(grid.shape[grid.outer :])
    flat = value.reshape([*grid.shape[: grid.outer], count])
    if count == 0 and kind in ("max", "min", "argmax", "argmin"):
        # Of no elements: the value that every other one replaces. No program lets it out.
        worst = {"max": 0, "min": 1}.get(kind, -1)
        fill = worst if value.dtype == torch.bool or worst == -1 else _extreme(value.dtype, highest=kind == "min")
        return torch.full(
            [*grid.shape[: grid.outer], *[1] * (len(grid.shape) - grid.outer)],
            fill,
            dtype=reduced_dtype(kind, value.dtype),
        )
    reduced = {
        "sum": lambda: flat.sum(-1, dtype=flat.dtype),
        "prod": lambda: flat.prod(-1, dtype=flat.dtype),
        "max": lambda: flat.amax(-1),
        "min": lambda: flat.amin(-1),
        "any": lambda: flat.any(-1),
        "all": lambda: flat.all(-1),
        "argmax": lambda: flat.max(-1).indices,
        "argmin": lambda: flat.min(-1).indices,
    }[kind]()
    return reduced.reshape([*grid.shape[: grid.outer], *[1] * (len(grid.shape) - grid.outer)])


def _sum_of_products(a: torch.Tensor, b: torch.Tensor, grid: _Grid) -> torch.Tensor:
    """Over the reduce axes, in float64, rounded once; the arguments have size 1 along the axes that do not matter to them."""
    letters = "abcdefghijklmnopqrstuvwxyz"[: len(grid.shape)]
    found = torch.einsum(f"{letters},{letters}->{letters[: grid.outer]}", a.double(), b.double()).float()
    return found.reshape([*found.shape, *[1] * (len(grid.shape) - grid.outer)])


def _weighted_sum(scores: torch.Tensor, values: torch.Tensor, grid: _Grid, *, is_safe: bool) -> torch.Tensor:
    """Over all reduce axes but the last, of size 1 here, in float64; weights are the softmax of the scores."""
    keys = grid.shape[grid.outer : -1]
    spread = [*scores.shape[: grid.outer], *keys, 1]
    flat = scores.broadcast_to(spread).reshape(*spread[: grid.outer], math.prod(keys)).double()
    weights = (torch._safe_softmax if is_safe else torch.softmax)(flat, -1).reshape(spread)
    return (weights * values.double()).sum(tuple(range(grid.outer, len(grid.shape))), keepdim=True).float()


def _extreme(dtype: torch.dtype, *, highest: bool) -> float:
    if dtype.is_floating_point:
        return math.inf if highest else -math.inf
    return torch.iinfo(dtype).max if highest else torch.iinfo(dtype).min


def _argument(value: Any, memory: dict[str, torch.Tensor], sizes: dict[Any, Any]) -> Any:
    if isinstance(value, View):
        tensor = memory[value.buffer]
        if tensor.layout != torch.strided:
            return tensor
        shape = [int(value_of(s, sizes)) for s in value.shape]
        strides = [int(value_of(s, sizes)) for s in value.strides]
        offset = tensor.storage_offset() + int(value_of(value.offset, sizes))
        return torch.as_strided(tensor, shape, strides, offset)
    if isinstance(value, (Expr, FloatExpr, BoolExpr)):
        return evaluate(value, sizes)  # type: ignore[arg-type]
    if isinstance(value, (list, tuple)):
        return type(value)([_argument(v, memory, sizes) for v in value])
    return value


def _run_extern(step: Extern, program: Program, memory: dict[str, torch.Tensor], sizes: dict[Any, Any]) -> None:
    args = [_argument(a, memory, sizes) for a in step.args]
    kwargs = {k: _argument(v, memory, sizes) for k, v in step.kwargs.items()}
    if step.out_variant:
        provide(program, set(step.outputs), memory, sizes)
        outs = [r.name for r in step.op._schema.arguments if r.is_out]
        kwargs.update({name: memory[buffer] for name, buffer in zip(outs, step.outputs, strict=True)})
        step.op(*args, **kwargs)
        return
    returned = step.op(*args, **kwargs)
    results = returned if isinstance(returned, (tuple, list)) else () if returned is None else (returned,)
    for bind in step.binds:
        value = results[bind.result]
        sizes[bind.symbol] = value.shape[bind.dim] // bind.factor if bind.dim is not None else _number(value, bind)
    for name, result in zip(step.outputs, results, strict=True):
        if name and not program.buffers[name].opaque:
            provide(program, {name}, memory, sizes)
            memory[name].copy_(result)  # into the planned strides
        elif name:
            memory[name] = result


def _number(value: Any, bind: Bind) -> Any:
    """What `item` returned, as the value of an integer or float symbol."""
    return float(value) if isinstance(bind.symbol, FloatExpr) else int(value)


__all__ = ["interpret", "provide", "run_loop", "value_of"]
