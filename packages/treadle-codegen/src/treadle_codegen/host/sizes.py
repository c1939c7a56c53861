"""What follows from the sizes of a call: computed once per set of sizes, not on every call.

def run(a0):                                        becomes        def run(a0):
    s0 = a0.size(0)                                                    ...
    ...                                                                (x0, k0, segment_0, ) = w.fitted.state
    t1 = empty_strided((2*s0, 8, ), (8, 1, ))                          if a0.shape != x0: (x0, ...) = refit(w, a0)
    segment_0(w.argument)                                              t1 = empty_strided(k0, (8, 1, ))
                                                                       segment_0(w.argument)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from treadle_codegen.host.plan import ExecutionPlan, lifetimes
from treadle_codegen.ir.loops import BoolExpr, Buffer, Expr, Extern, FloatExpr, NumberLike, Program, View, symbols_of
from treadle_shapes.expr import linear_coefficients, to_python


@dataclass(slots=True)
class SizeTexts:
    """Numbers and tuples made of sizes, as the host function names them.

    symbols: those that are sizes, which are known when a call starts and mostly stay the same from call to call; used: those
    that appear in a text; values: the variable that holds each text's value.
    """

    symbols: frozenset[Any]
    used: set[Any] = field(default_factory=set)
    values: dict[str, str] = field(default_factory=dict)

    def in_order(self) -> tuple[Any, ...]:
        """The symbols that are used. A workspace is fitted to their values."""
        return tuple(sorted(self.used, key=lambda symbol: symbol.name))

    def number(self, e: NumberLike) -> str:
        """The text of a number in the host function."""
        if self.covers(e):
            return self._variable(plain_text(e), e)
        for symbol in sorted(symbols_of(e) & self.symbols, key=lambda s: s.name):
            self._variable(symbol.name, symbol)
        return plain_text(e)

    def tuple_of(self, items: Sequence[NumberLike]) -> str:
        """The text of a tuple of numbers."""
        if self.covers(*items):
            return self._variable(f"({''.join(f'{plain_text(i)}, ' for i in items)})", *items)
        return f"({''.join(f'{self.number(i)}, ' for i in items)})"

    def covers(self, *values: Any) -> bool:
        """Whether the values are made of these symbols and of constants alone."""
        symbols = symbols_of(values)
        return bool(symbols) and symbols <= self.symbols

    def _variable(self, text: str, *made_of: Any) -> str:
        self.used |= symbols_of(made_of)
        return self.values.setdefault(text, text if text.isidentifier() else f"k{len(self.values)}")


def plain_text(e: NumberLike) -> str:
    """Python text of a number, by the names of its symbols."""
    return to_python(e) if isinstance(e, (Expr, FloatExpr, BoolExpr)) else repr(e)


def size_symbols(plan: ExecutionPlan) -> frozenset[Any]:
    """The symbols that are sizes: in the shape of an input tensor, or of temporaries that are planned ahead.

    Any other integer argument may change with every call.
    """
    if not plan.program.size_symbols:
        return frozenset()
    program, planned, known = plan.program, lifetimes(plan), frozenset(plan.program.size_symbols)
    inputs = [program.buffers[name] for name in program.inputs if name in program.buffers]
    found = known & {e for buffer in inputs for e in (*buffer.shape, *buffer.strides) if isinstance(e, Expr)}
    externs = [node.item for node in plan.nodes if isinstance(node.item, Extern)]
    views = [view for extern in externs for view in _views((extern.args, extern.kwargs))]
    views += [view for view in program.outputs if isinstance(view, View)]
    memory = [(program.buffers[name].shape, program.buffers[name].strides) for name in planned]
    return found | symbols_of(memory) | symbols_of([v for v in views if v.buffer in planned and symbols_of(v) <= known])


def size_numbers(plan: ExecutionPlan, sizes: SizeTexts) -> list[Any]:
    """The numbers of kernels that follow from the sizes alone."""
    taken = dict.fromkeys(n for segment in plan.segments for kernel in segment.kernels for n in kernel.numbers)
    return [number for number in taken if sizes.covers(number)]


def _views(value: Any) -> list[View]:
    if isinstance(value, View):
        return [value]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, (tuple, list)) else ()
    return [view for item in items for view in _views(item)]


Place = tuple[int, str, int]
"""Where a call reads a number: (input, "", 0) for a number among the inputs, else (input, "shape" or "stride", dimension)."""


@dataclass(frozen=True, slots=True)
class Solved:
    """A symbol that follows from a size, as u0 does from the size u0 + 1. text: computes it from the inputs."""

    text: str


def sources_of(program: Program, symbols: Sequence[Any]) -> dict[Any, Place | Solved]:
    """Where a call reads the values of symbols.

    The shapes of as few inputs as possible are read. Raises ValueError if a symbol does not follow from the inputs.
    """
    found: dict[Any, Place | Solved] = {}
    for symbol in symbols:
        if symbol.name in program.inputs:
            found[symbol] = (program.inputs.index(symbol.name), "", 0)
    tensors = [(k, program.buffers[name]) for k, name in enumerate(program.inputs) if name in program.buffers]
    for kind, extents in (("shape", "shape"), ("stride", "strides")):
        left = [symbol for symbol in symbols if symbol not in found]
        places = [{e: d for d, e in reversed(list(enumerate(getattr(b, extents)))) if e in left} for _, b in tensors]
        for at in sorted(range(len(tensors)), key=lambda at: -len(places[at])):
            for symbol, d in places[at].items():
                found.setdefault(symbol, (tensors[at][0], kind, d))
    _solve(symbols, tensors, found)
    missing = [symbol.name for symbol in symbols if symbol not in found]
    if missing:
        raise ValueError(f"no input has a size or stride {', '.join(missing)}")
    return found


def _solve(symbols: Sequence[Any], tensors: Sequence[tuple[int, Buffer]], found: dict[Any, Place | Solved]) -> None:
    """Find the symbols that sizes are linear in, one after the other: a size may hold several."""
    sizes = [(k, d, e) for k, buffer in tensors for d, e in enumerate(buffer.shape) if isinstance(e, Expr)]
    while True:
        known = {symbol: f"({reading(source)})" for symbol, source in found.items()}
        for k, d, size in sizes:
            unknown = symbols_of(size) - found.keys()
            if len(unknown) != 1 or not unknown <= set(symbols):
                continue
            (symbol,) = unknown
            split = linear_coefficients(size, [symbol])
            if split is None or not isinstance(factor := split[0].get(symbol), int):
                continue
            found[symbol] = Solved(f"({reading((k, 'shape', d))} - ({to_python(split[1], known)})) // {factor}")
            break
        else:
            return


def reading(source: Place | Solved) -> str:
    """The text that reads a symbol's value."""
    if isinstance(source, Solved):
        return source.text
    k, kind, d = source
    return {"": f"a{k}", "shape": f"a{k}.size({d})", "stride": f"a{k}.stride({d})"}[kind]


def comparing(source: Place | Solved) -> str:
    """The text that is compared with its value at the last call. Comparing a whole shape takes as long as one size (0.1 µs)."""
    if isinstance(source, Solved):
        return source.text
    k, kind, d = source
    return {"": f"a{k}", "shape": f"a{k}.shape", "stride": f"a{k}.stride()[{d}]"}[kind]
