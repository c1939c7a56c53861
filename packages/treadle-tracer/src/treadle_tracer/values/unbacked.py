"""Unbacked symbols: numbers without a value while tracing, their names, and the asserts about them in the graph.

`n = t.item()` is a node whose result is an unbacked symbol, about which nothing can be decided. What operators need to know of it
(`torch.zeros(n)`: n is not negative) becomes a fact of the trace and an `aten._assert_scalar` node in front of the node that relies on
it. Symbols carry the user's names for the messages of asserts and of decisions that cannot be made.
"""

from __future__ import annotations

import functools
import linecache
import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch

from treadle_shapes import UnbackedError
from treadle_shapes.torch import raw_expr
from treadle_tracer.errors import PathEnds, Unsupported
from treadle_tracer.values.base import NONE, Constant
from treadle_tracer.values.mappings import DictValue
from treadle_tracer.values.outside_decisions import number_of
from treadle_tracer.values.sequences import Sequence
from treadle_tracer.values.tensor import SymbolicValue, TensorValue
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from torch import fx

    from treadle_shapes import Frame
    from treadle_tracer.values.value import FrameView, TraceContext

aten = torch.ops.aten
_LONGEST_NAME = 60


class UnbackedNumbers:
    """The unbacked symbols of one trace: the node or size that each stands for, and how far asserts have been written."""

    def __init__(self) -> None:
        self.allowed = False
        self._places: dict[Any, tuple[Value, int | None]] = {}
        # symbols that stand in no result: offsets of views, and those that a call makes and checks inside itself
        self._inner: set[Any] = set()
        self._written = 0
        self._done: dict[Any, Any] = {}

    def allow(self, tx: TraceContext) -> None:
        """From here on operators may give unbacked numbers, and unbacked sizes where the options say so."""
        from treadle_shapes.torch import fake_shape_env

        tx.symbols.need_env()
        env = tx.symbols.env
        fake_shape_env(env, allow_scalar_outputs=True, allow_dynamic_output_shape_ops=tx.symbols.captures)
        self.allowed = True

    def naming(self, tx: TraceContext) -> AbstractContextManager[None]:
        """A context in which new symbols are named after the result of the call, until `close_call` renames them."""
        return tx.symbols.env.adapter.naming(result_name(tx.frames[-1])) if self.allowed else nullcontext()

    def close_call(self, tx: TraceContext, result: Value) -> None:
        """Name the symbols that a call has made and write the asserts about them. The call has its node."""
        env = tx.symbols.env
        pending = env.adapter.pending_fresh_unbacked_symbols
        if pending:
            fresh = {env.adapter.from_sympy(s) for s in pending}
            pending.clear()
            self._find(result, fresh)
            self._inner |= fresh - self._places.keys()
            _rename(tx, {s: place for s, place in self._places.items() if s in fresh})
        self.write_asserts(tx, complete=True)

    def forget_nodes(self, gone: set[fx.Node]) -> None:
        """These nodes have been erased."""
        self._done = {expr: node for expr, node in self._done.items() if node not in gone}

    def _find(self, value: Value, fresh: set[Any]) -> None:
        """Note where each fresh symbol stands in the result of a call."""
        if isinstance(value, SymbolicValue):
            for s in symbols_of(value.sym) & fresh:
                self._places.setdefault(s, (value, None))
        elif isinstance(value, TensorValue):
            for dim, size in enumerate(value.fake.shape):
                if isinstance(size, torch.SymInt) and raw_expr(size) in fresh:
                    self._places.setdefault(raw_expr(size), (value, dim))
        elif isinstance(value, Sequence):
            for item in value.items:
                self._find(item, fresh)
        elif isinstance(value, DictValue):
            for _, item in value.entries.values():
                self._find(item, fresh)

    # ---- asserts

    def write_asserts(self, tx: TraceContext, complete: bool = False, error: type = RuntimeError) -> None:
        """Write nodes for the facts found since the last time. Unless `complete`, those about symbols of the present call wait.

        error: what the program raises where a fact does not hold.
        """
        env = tx.symbols.env
        while self._written < len(env.runtime_asserts):
            found = env.runtime_asserts[self._written]
            unknown = [s for s in found.condition.free_symbols if s not in env.hints and s not in self._places]
            if unknown and all(s in env.hints or s in self._inner for s in found.condition.free_symbols):
                if found.condition in env.assumptions:
                    raise Unsupported("data-dependent", f"{env.describe(found.condition)} cannot be checked")
                self._written += 1
                continue
            if unknown and not complete:
                return
            if unknown:
                sources = ", ".join(env.source_of(s) for s in unknown)
                raise Unsupported("data-dependent", f"{env.describe(found.condition)} cannot be checked: {sources}")
            self._written += 1
            self._write(tx, found.condition, _assert_text(env, found), error)

    def state(self, tx: TraceContext, condition: Any, message: str, error: type = RuntimeError) -> None:
        """Take a condition on unbacked numbers as true from here on. The graph checks it and raises `error` where it does not hold."""
        if tx.speculation is not None:
            raise PathEnds("a fact about unbacked numbers")
        tx.symbols.env.expect(condition, message)
        self.write_asserts(tx, complete=True, error=error)

    def _write(self, tx: TraceContext, condition: Any, message: str, error: type) -> None:
        self._find_bools(tx, condition)
        node = self._write_expression(tx, condition)
        # A later trace takes what stands here: a condition that is true already would check nothing.
        assert not isinstance(node.meta["example_value"], bool), condition
        check = tx.graph.call("call_function", aten._assert_scalar.default, (node, message), {}, None, tx.stack_trace())
        check.meta["raises"] = error

    def _find_bools(self, tx: TraceContext, condition: Any) -> None:
        """Note the nodes of `u != 0` and `u == 0` where a bool was read. Python asks a SymBool for its truth to compare it with 0."""
        from treadle_shapes.expr import Eq, Ne

        for symbol in condition.free_symbols:
            place = self._places.get(symbol)
            value = None if place is None else place[0]
            if isinstance(value, SymbolicValue) and isinstance(value.sym, torch.SymBool):
                node = value.node(tx)
                self._done.setdefault(Ne(symbol, 0), node)
                self._done.setdefault(Eq(symbol, 0), _number_call(tx, torch.sym_not, (node,)))

    def write_number(self, tx: TraceContext, number: Any) -> fx.Node:
        """The node that computes a SymInt, SymFloat or SymBool, behind others that compute its parts."""
        return self._write_expression(tx, raw_expr(number))

    def _write_expression(self, tx: TraceContext, expression: Any) -> fx.Node:
        from treadle_shapes.torch import build_calls, sym_float

        def call_float(function: Callable[..., Any], args: tuple[Any, ...], e: Any) -> fx.Node:
            return tx.graph.call("call_function", function, args, {}, sym_float(tx.symbols.env, e), tx.stack_trace())

        call = functools.partial(_number_call, tx)
        return build_calls(expression, lambda s: self._node_of(tx, s), call, self._done, call_float)

    def number_node(self, tx: TraceContext, symbol: Any) -> fx.Node | None:
        """The node that gives the number of a symbol; None for a size that the data tells."""
        place = self._places.get(symbol)
        if place is None:
            return tx.symbols.node_of_symbol(tx, symbol) if symbol in tx.symbols.env.hints else None
        value, dim = place
        return value.node(tx) if dim is None and isinstance(value, SymbolicValue) else None

    def is_size(self, symbol: Any) -> bool:
        """Whether the symbol stands for the size of a tensor that the data tells."""
        place = self._places.get(symbol)
        return place is not None and place[1] is not None

    def _node_of(self, tx: TraceContext, symbol: Any) -> fx.Node:
        place = self._places.get(symbol)
        if place is None:
            return tx.symbols.node_of_symbol(tx, symbol)
        value, dim = place
        if dim is None:
            assert isinstance(value, SymbolicValue)
            return value.node(tx)
        assert isinstance(value, TensorValue)
        return tx.symbols.size_value(tx, value, dim, value.fake.shape[dim]).node(tx)


def _number_call(tx: TraceContext, function: Callable[..., Any], args: tuple[Any, ...]) -> fx.Node:
    from torch import fx

    from treadle_shapes.torch import call_on_symbolic

    examples = tuple(arg.meta["example_value"] if isinstance(arg, fx.Node) else arg for arg in args)
    return tx.graph.call("call_function", function, args, {}, call_on_symbolic(function, examples), tx.stack_trace())


def symbols_of(number: Any) -> frozenset[Any]:
    """The symbols in a SymInt, SymFloat or SymBool."""
    return getattr(raw_expr(number), "free_symbols", frozenset())


# ---- names


def _rename(tx: TraceContext, places: dict[Any, tuple[Value, int | None]]) -> None:
    """Name the symbols after the variables of the program that hold them."""
    env, name = tx.symbols.env, result_name(tx.frames[-1])
    for symbol, (_, dim) in places.items():
        source = name if dim is None else f"{name}.shape[{dim}]"
        env.symbols[symbol] = env.symbols[symbol]._replace(source=source)


def result_name(frame: FrameView) -> str:
    """The variable that the result of the present instruction is stored in, else the text of its expression."""
    if frame.at + 1 == len(frame.instructions):  # the program returns
        return "result"
    following = frame.instructions[frame.at + 1]
    if following.opname in _STORES and isinstance(following.argval, str):
        return following.argval
    return expression_text(frame)


_STORES = ("STORE_FAST", "STORE_DEREF", "STORE_NAME", "STORE_GLOBAL")


def expression_text(frame: FrameView) -> str:
    """The source text of the expression being evaluated, on one line."""
    line, end_line, column, end_column = frame.instructions[frame.at].positions
    filename = frame.program.model.filename
    if line is None or end_line is None or column is None or end_column is None:
        return linecache.getline(filename, line or 0).strip() or "a value"
    lines = [linecache.getline(filename, n).encode() for n in range(line, end_line + 1)]
    lines[-1] = lines[-1][:end_column]
    lines[0] = lines[0][column:]
    text = " ".join(b" ".join(lines).decode(errors="replace").split())
    if not text:
        return "a value"
    return text if len(text) <= _LONGEST_NAME else text[: _LONGEST_NAME - 3] + "..."


def _origins(env: Any, symbols: Any) -> str:
    """`t.item(), made at file:line` for each unbacked symbol."""
    origins = {}
    for s in sorted((s for s in symbols if s not in env.hints), key=lambda s: s.name):
        info = env.symbols[s]
        origins[info.source] = f"{info.source}, made at {info.stack[0]}" if info.stack else info.source
    return "; ".join(origins.values())


def _assert_text(env: Any, found: Any) -> str:
    """The message of a failing assert."""
    text = env.describe(found.condition)
    said = "" if found.message in ("", text) else f"{found.message}: "
    place = f", needed at {_place(found.stack)}" if found.stack else ""
    return f"{said}{text} does not hold{place}"


def _place(stack: tuple[Frame, ...]) -> Frame:
    """The innermost line that is not part of PyTorch, such as the body of ``torch._check`` and what Treadle puts in its place."""
    of_torch = (os.path.dirname(torch.__file__) + os.sep, torch._check_with.__code__.co_filename)
    return next((frame for frame in stack if not frame.filename.startswith(of_torch)), stack[0])


def refusal(tx: TraceContext, error: UnbackedError) -> Unsupported:
    """The break for a decision about an unbacked number, in the user's words."""
    from treadle_shapes.expr import BoolExpr

    env, asked = tx.symbols.env, error.expr
    text = env.describe(asked)
    origin = _origins(env, getattr(asked, "free_symbols", ()))
    advice = (
        f"if it always holds, say so before: torch._check({text}); else compute both cases and choose with torch.where"
        if isinstance(asked, BoolExpr)
        else f"if it is always the same number, say so before: torch._check({text} == ...); else keep it in a tensor"
    )
    return Unsupported("unbacked-decision", f"`{text}` is asked, of {origin}; {advice}", tx.user_stack())


# ---- decisions


def decide(tx: TraceContext, value: SymbolicValue) -> bool:
    """The truth of a number. The condition of an `assert` statement on an unbacked number becomes an assert of the graph."""
    from treadle_shapes.expr import Ne
    from treadle_shapes.floats import compare

    sym, env = value.sym, tx.symbols.env
    expr = raw_expr(sym)
    if not is_unbacked(tx, value):
        return bool(sym)
    condition = {torch.SymBool: lambda: expr, torch.SymInt: lambda: Ne(expr, 0)}.get(
        type(sym), lambda: compare("ne", expr, 0.0)
    )()
    known = env.prove(condition)
    if known is None:
        known = env.ask_oracle(condition)
    if known is not None:
        return known
    if tx.symbols.captures and _is_asserted(tx.frames[-1]):
        tx.symbols.unbacked.state(tx, condition, f"assert {env.describe(condition)}", AssertionError)
        return True
    try:
        return env.decide(condition)
    except UnbackedError as error:
        raise refusal(tx, error) from None


def _is_asserted(frame: FrameView) -> bool:
    """Whether the instruction is the jump of an `assert` statement."""
    return frame.instructions[frame.at + 1].opname == "LOAD_ASSERTION_ERROR"


def is_unbacked(tx: TraceContext, value: Value) -> bool:
    """Whether the value is a number that depends on an unbacked symbol."""
    if not isinstance(value, SymbolicValue):
        return False
    env = tx.symbols.env
    return any(s not in env.hints for s in symbols_of(value.sym)) and env.is_unbacked(raw_expr(value.sym))


def specialise(tx: TraceContext, value: SymbolicValue) -> Any:
    """The number as a constant that is guarded. An unbacked number breaks the graph."""
    try:
        return value.python_type()(value.sym)
    except UnbackedError as error:
        number = number_of(tx, value)
        if number is None:
            raise refusal(tx, error) from None
        return number


# ---- checks that the program states


def check(tx: TraceContext, condition: Value, error: type) -> Value:
    """`torch._check(condition, ...)`: known now, or a fact that the graph checks. Where it fails, Python runs the program, which raises."""
    if not is_unbacked(tx, condition) and isinstance(condition, (Constant, SymbolicValue)):
        if not condition.truth(tx):
            tx.raise_exception(error, "a check of the program fails")
        return NONE
    if not isinstance(condition, SymbolicValue) or condition.python_type() is not bool:
        raise Unsupported("torch-call-raises", f"torch._check of {condition.describe()}")
    state_truth(tx, raw_expr(condition.sym), error)
    return NONE


def state_truth(tx: TraceContext, expr: Any, error: type) -> None:
    """Have the graph check a condition. One that cannot hold raises in the traced program."""
    known = tx.symbols.env.prove(expr)
    if known is False:
        tx.raise_exception(error, f"{tx.symbols.env.describe(expr)} does not hold")
    if known is None:
        tx.symbols.unbacked.state(tx, expr, "", error)
