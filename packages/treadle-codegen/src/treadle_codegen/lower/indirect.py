"""One element of a computed tensor at a position that is data, without storing the tensor.

The element is recorded with a symbol in the place of the position; what then reads memory at an index with that symbol reads
it through the position instead, checked against the size of the dimension:

    log_softmax = x - m - s        x[i0, g] - m[i0] - s[i0]    ->    indirect_load x (g, 32000*i0) - m[i0] - s[i0]
"""

from __future__ import annotations

from typing import Any

from treadle_codegen.ir.loops import Instr, IntLike, Load, symbols_of
from treadle_codegen.ir.ops import FLOATS, LOW_FLOATS
from treadle_codegen.lower.context import Lowering
from treadle_codegen.lower.indexing import axis_symbol, linear, product
from treadle_codegen.lower.loop_builder import LoopBuilder
from treadle_codegen.lower.tensor_expr import Index, TensorExpr
from treadle_shapes.expr import Symbol, linear_coefficients


def why_not_indirect(lw: Lowering, x: TensorExpr, d: int, elements: IntLike) -> str | None:
    """Why `elements` elements of `x` at positions in dimension `d` should be read from memory and not computed."""
    total = product(x.shape)
    if x.storage is not None:
        return "it is in memory"
    if not (isinstance(total, int) and isinstance(elements, int) and 2 * elements <= total):
        return "most of it is read"
    if x.cost > lw.costs.recompute or x.dtype not in FLOATS | LOW_FLOATS:
        return "it is expensive"
    trial, position = LoopBuilder(), _position_symbol(x.shape[d])
    at = [axis_symbol(f"i{k}", size) for k, size in enumerate(x.shape)]
    x.element(trial, (*at[:d], position, *at[d + 1 :]))
    if not any(instr.op == "load" and position in symbols_of(instr.attr.index) for instr in trial.body):
        return "no read would check the position"
    return next((reason for instr in trial.body if (reason := _why_not_through(instr, position)) is not None), None)


def element_at(lw: Lowering, o: LoopBuilder, x: TensorExpr, at: Index, d: int, position: int) -> int:
    """The element of `x` at an index whose entry `d` is the int64 value `position` of `o`."""
    recorded, symbol = LoopBuilder(), _position_symbol(x.shape[d])
    result = x.element(recorded, (*at[:d], symbol, *at[d + 1 :]))
    o.origins.update(recorded.origins)
    moved: list[int] = []
    for instr in recorded.body:
        args = tuple([moved[a] for a in instr.args])
        if instr.op == "load" and symbol in symbols_of(instr.attr.index):
            moved.append(_load_through(lw, o, instr, symbol, position, x.shape[d]))
        else:
            moved.append(o.emit(instr.op, *args, dtype=instr.dtype, attr=instr.attr))
    return moved[result]


def _position_symbol(size: IntLike) -> Symbol:
    return axis_symbol("g0", size)


def _why_not_through(instr: Instr, position: Symbol) -> str | None:
    """Why an instruction cannot read through a position."""
    if instr.op == "load":
        is_linear = not symbols_of(instr.attr.index) or linear_coefficients(instr.attr.index, [position]) is not None
        return None if is_linear else "an index is not linear in the position"
    if instr.op in ("masked_load", "indirect_load", "index", "scalar", "reduce"):
        return None if position not in _all_symbols(instr.attr) else f"{instr.op} at the position"
    return None


def _all_symbols(attr: Any) -> frozenset[Any]:
    if isinstance(attr, tuple):
        return frozenset().union(*map(_all_symbols, attr))
    return symbols_of(attr.index if isinstance(attr, Load) else attr)


def _load_through(lw: Lowering, o: LoopBuilder, instr: Instr, symbol: Symbol, position: int, size: IntLike) -> int:
    split = linear_coefficients(instr.attr.index, [symbol])
    assert split is not None, "why_not_indirect has asked"
    step, rest = split[0].get(symbol, 0), split[1]
    buffer = lw.buffers[instr.attr.buffer]
    length = (
        linear([n - 1 for n in buffer.shape], buffer.strides) + 1
    )  # the rest of the index is below it by construction
    return o.emit(
        "indirect_load", position, o.index(rest), dtype=instr.dtype, attr=(buffer.name, (step, 1), (size, length))
    )
