"""Numbers that a trace reads from tensors: symbols without a value while tracing, their names, and what must hold when the graph runs.

`n = t.item()` is a node whose result is a symbol that nobody can decide about. What operators need to know of it (`torch.zeros(n)`: n is
not negative) becomes a fact of the trace and an `aten._assert_scalar` node in front of the node that relies on it. Symbols carry the
user's names, for the messages of asserts and of decisions that cannot be made.
"""

from __future__ import annotations

import functools
import linecache
import operator
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch

from treadle_shapes import ShapesError, UnbackedError
from treadle_tracer.errors import PathEnds, Unsupported
from treadle_tracer.values import floats
from treadle_tracer.values.base import NONE, Constant, Value
from treadle_tracer.values.mappings import DictValue
from treadle_tracer.values.sequences import Sequence, SliceValue, TupleValue
from treadle_tracer.values.tensor import SymbolicValue, TensorValue

if TYPE_CHECKING:
    from torch import fx

    from treadle_tracer.trace.frame import Frame
    from treadle_tracer.trace.tracer import Tracer

aten = torch.ops.aten
_LONGEST_NAME = 60


class RunTimeNumbers:
    """The symbols without values of one trace: the node or size each is, and how far asserts have been written."""

    def __init__(self) -> None:
        self.allowed = False
        self._places: dict[Any, tuple[Value, int | None]] = {}
        self._inner: set[Any] = (
            set()
        )  # what stands in no result: offsets of views, and what calls make inside themselves and check there
        self._written = 0
        self._done: dict[Any, Any] = {}

    def allow(self, tx: Tracer) -> None:
        """From now on operators may give numbers and sizes that are known only at run time."""
        from treadle_shapes.torch import fake_shape_env

        tx.symbols.need_env()
        env = tx.symbols.env
        fake_shape_env(env, allow_scalar_outputs=True, allow_dynamic_output_shape_ops=True)
        self.allowed = True

    def naming(self, tx: Tracer) -> AbstractContextManager[None]:
        """What a call reads from tensors goes by the name of its result until it is known better."""
        return tx.symbols.env.adapter.naming(result_name(tx.frames[-1])) if self.allowed else nullcontext()

    def close_call(self, tx: Tracer, result: Value) -> None:
        """After a call has its node: name the symbols it has made, and write the asserts about them."""
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
        """These nodes have been taken back."""
        self._done = {expr: node for expr, node in self._done.items() if node not in gone}

    def _find(self, value: Value, fresh: set[Any]) -> None:
        """Note where each of the symbols stands in the result of a call."""
        if isinstance(value, SymbolicValue):
            for s in _symbols_of(value.sym) & fresh:
                self._places.setdefault(s, (value, None))
        elif isinstance(value, TensorValue):
            for dim, size in enumerate(value.fake.shape):
                if isinstance(size, torch.SymInt) and size.node.value in fresh:
                    self._places.setdefault(size.node.value, (value, dim))
        elif isinstance(value, Sequence):
            for item in value.items:
                self._find(item, fresh)
        elif isinstance(value, DictValue):
            for _, item in value.entries.values():
                self._find(item, fresh)

    # ---- asserts

    def write_asserts(self, tx: Tracer, complete: bool = False, error: type = RuntimeError) -> None:
        """Nodes for what was learnt since the last time. Unless `complete`, what is about symbols of the call at hand is left for later.

        error: what the program raises where it does not hold.
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

    def _write(self, tx: Tracer, condition: Any, message: str, error: type) -> None:
        from treadle_shapes.torch import build_calls, sym_float

        def call_float(function: Callable[..., Any], args: tuple[Any, ...], e: Any) -> fx.Node:
            return tx.graph.call("call_function", function, args, {}, sym_float(tx.symbols.env, e), tx.stack_trace())

        call = functools.partial(_number_call, tx)
        node = build_calls(condition, lambda s: self._node_of(tx, s), call, self._done, call_float)
        check = tx.graph.call("call_function", aten._assert_scalar.default, (node, message), {}, None, tx.stack_trace())
        check.meta["raises"] = error

    def _node_of(self, tx: Tracer, symbol: Any) -> fx.Node:
        place = self._places.get(symbol)
        if place is None:
            return tx.symbols.node_of_symbol(tx, symbol)
        value, dim = place
        if dim is None:
            assert isinstance(value, SymbolicValue)
            return value.node(tx)
        assert isinstance(value, TensorValue)
        return tx.symbols.size_value(tx, value, dim, value.fake.shape[dim]).node(tx)


def _number_call(tx: Tracer, function: Callable[..., Any], args: tuple[Any, ...]) -> fx.Node:
    from torch import fx

    from treadle_shapes.torch import call_on_symbolic

    examples = tuple(arg.meta["example_value"] if isinstance(arg, fx.Node) else arg for arg in args)
    return tx.graph.call("call_function", function, args, {}, call_on_symbolic(function, examples), tx.stack_trace())


def _symbols_of(number: Any) -> frozenset[Any]:
    return getattr(number.node.value, "free_symbols", frozenset())


# ---- names


def _rename(tx: Tracer, places: dict[Any, tuple[Value, int | None]]) -> None:
    """Call the symbols by what the program calls the values they stand in."""
    env, name = tx.symbols.env, result_name(tx.frames[-1])
    for symbol, (_, dim) in places.items():
        source = name if dim is None else f"{name}.shape[{dim}]"
        env.symbols[symbol] = env.symbols[symbol]._replace(source=source)


def result_name(frame: Frame) -> str:
    """The variable that takes the result of the instruction being evaluated, else the text of its expression."""
    following = frame.instructions[frame.at + 1]
    if following.opname in _STORES and isinstance(following.argval, str):
        return following.argval
    return expression_text(frame)


_STORES = ("STORE_FAST", "STORE_DEREF", "STORE_NAME", "STORE_GLOBAL")


def expression_text(frame: Frame) -> str:
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
    """`n is known only when the graph runs (t.item() at file:line)` for each symbol without a value."""
    told = {}
    for s in sorted((s for s in symbols if s not in env.hints), key=lambda s: s.name):
        info = env.symbols[s]
        told[info.source] = f"{info.source}, made at {info.stack[0]}" if info.stack else info.source
    return "; ".join(told.values())


def _assert_text(env: Any, found: Any) -> str:
    """The message of a failing assert."""
    text = env.describe(found.condition)
    said = "" if found.message in ("", text) else f"{found.message}: "
    place = f", needed at {found.stack[0]}" if found.stack else ""
    return f"{said}{text} does not hold{place}"


def refusal(tx: Tracer, error: UnbackedError) -> Unsupported:
    """The break for a decision about a value that is known only when the graph runs, in the user's words."""
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


def decide(tx: Tracer, value: SymbolicValue) -> bool:
    """The truth of a number. What an `assert` statement asks of a value known only at run time is checked there."""
    from treadle_shapes.expr import Ne
    from treadle_shapes.floats import compare

    sym, env = value.sym, tx.symbols.env
    expr = sym.node.value
    if not is_run_time(tx, value):
        return bool(sym)
    condition = {torch.SymBool: lambda: expr, torch.SymInt: lambda: Ne(expr, 0)}.get(
        type(sym), lambda: compare("ne", expr, 0.0)
    )()
    known = env.prove(condition)
    if known is not None:
        return known
    if _is_asserted(tx.frames[-1]):
        state_fact(tx, condition, f"assert {env.describe(condition)}", AssertionError)
        return True
    try:
        return env.decide(condition)
    except UnbackedError as error:
        raise refusal(tx, error) from None


def _is_asserted(frame: Frame) -> bool:
    """Whether the instruction is the jump of an `assert` statement."""
    return frame.instructions[frame.at + 1].opname == "LOAD_ASSERTION_ERROR"


def state_fact(tx: Tracer, condition: Any, message: str, error: type = RuntimeError) -> None:
    """Take a condition on run-time values as true from here on, and have the graph check it and raise `error` where it does not hold."""
    if tx.speculation is not None:
        raise PathEnds("a fact about numbers known only at run time")
    tx.symbols.env.expect(condition, message)
    tx.symbols.run_time.write_asserts(tx, complete=True, error=error)


def is_run_time(tx: Tracer, value: Value) -> bool:
    """Whether a number is known only when the graph runs."""
    if not isinstance(value, SymbolicValue):
        return False
    env = tx.symbols.env
    return any(s not in env.hints for s in _symbols_of(value.sym)) and env.is_unbacked(value.sym.node.value)


def truth_value(tx: Tracer, value: Value) -> Value | None:
    """`bool(value)` as a number of the graph, where it is one that is known only at run time."""
    if isinstance(value, TensorValue) and tx.symbols.captures:
        return to_bool(tx, value)
    if not is_run_time(tx, value):
        return None
    return value if value.python_type() is bool else tx.compare("!=", value, Constant(0))


def specialise(tx: Tracer, value: SymbolicValue) -> Any:
    """The number as a constant that is guarded; a break where it has no value yet."""
    try:
        return value.python_type()(value.sym)
    except UnbackedError as error:
        raise refusal(tx, error) from None


# ---- checks that the program states


def check(tx: Tracer, condition: Value, error: type) -> Value:
    """`torch._check(condition, ...)`: known now, or a fact that the graph checks. Where it fails Python runs the program, which raises."""
    if not is_run_time(tx, condition) and isinstance(condition, (Constant, SymbolicValue)):
        if not tx.truth(condition):
            tx.raise_exception(error, "a check of the program fails")
        return NONE
    if not isinstance(condition, SymbolicValue) or condition.python_type() is not bool:
        raise Unsupported("torch-call-raises", f"torch._check of {condition.describe()}")
    state_truth(tx, condition.sym.node.value, error)
    return NONE


def state_truth(tx: Tracer, expr: Any, error: type) -> None:
    """Have the graph check a condition, even one that cannot hold: then it raises whenever it is reached."""
    known = tx.symbols.env.prove(expr)
    if known is False:
        tx.raise_exception(error, f"{tx.symbols.env.describe(expr)} does not hold")
    if known is None:
        state_fact(tx, expr, "", error)


def constrain(tx: Tracer, number: Value, lower: Any, upper: Any) -> Value:
    """`torch.sym_constrain_range(number, min=lower, max=upper)`"""
    for comparison, end in ((">=", lower), ("<=", upper)):
        if end is not None:
            check(tx, tx.compare(comparison, number, Constant(end)), RuntimeError)
    return NONE


# ---- reading numbers from tensors


def item(tx: Tracer, owner: TensorValue) -> Value:
    """`owner.item()`"""
    if not tx.symbols.captures:
        raise Unsupported("data-dependent", owner.describe())
    return tx.run_in_graph("call_method", "item", [owner], {})


def to_bool(tx: Tracer, owner: TensorValue) -> Value:
    """`bool(owner)`"""
    if not tx.symbols.captures:
        raise Unsupported("branch-on-tensor", owner.describe())
    number = item(tx, owner)
    return number if number.python_type() is bool else tx.compare("!=", number, Constant(0))


def to_number(tx: Tracer, owner: TensorValue, cls: type) -> Value:
    """`int(owner)`, `float(owner)`"""
    if cls is complex or owner.fake.is_complex():
        raise Unsupported("data-dependent", f"{cls.__name__}() of {owner.describe()}")
    number = item(tx, owner)
    if number.python_type() is cls:
        return number
    if isinstance(number, SymbolicValue):
        return tx.convert_symbolic(number, cls)
    return tx.fold(cls, [number], {})


_MOST_ITEMS = 64


def to_list(tx: Tracer, owner: TensorValue) -> Value:
    """`owner.tolist()` of a tensor whose number of elements is known and small."""
    from treadle_tracer.values.sequences import ListValue

    shape = owner.fake.shape
    if not tx.symbols.captures or any(not isinstance(size, int) for size in shape) or owner.fake.numel() > _MOST_ITEMS:
        raise Unsupported("data-dependent", owner.describe())
    if not shape:
        return item(tx, owner)
    parts = tx.run_in_graph("call_method", "unbind", [owner, Constant(0)], {}).unpack(tx) if shape[0] else []
    items = [to_list(tx, part) for part in parts if isinstance(part, TensorValue)]
    names = [result_name(tx.frames[-1])] * len(items)
    for position, (part, name) in enumerate(zip(items, names, strict=True)):
        _name_item(tx, part, f"{name}[{position}]")
    return ListValue(items)


def _name_item(tx: Tracer, value: Value, name: str) -> None:
    """Call an item of a list by its place in it."""
    if isinstance(value, SymbolicValue) and is_run_time(tx, value):
        env = tx.symbols.env
        for symbol in _symbols_of(value.sym):
            env.symbols[symbol] = env.symbols[symbol]._replace(source=name)
    elif isinstance(value, Sequence):
        for position, part in enumerate(value.items):
            _name_item(tx, part, f"{name}[{position}]")


# ---- indexing with numbers known only at run time


def get_item(tx: Tracer, owner: TensorValue, key: Value) -> Value | None:
    """`owner[key]` where integers among the keys are known only at run time: a `select` for each; None for any other key."""
    keys = key.items if isinstance(key, TupleValue) else [key]
    if not any(_is_position(tx, k) for k in keys) or not all(_is_basic(tx, k) for k in keys):
        return None
    kept = TupleValue([Constant(slice(None)) if _is_position(tx, k) else k for k in keys])
    found = owner if len(keys) == 1 else tx.run_in_graph("call_function", operator.getitem, [owner, kept], {})
    assert isinstance(found, TensorValue)
    for dim, position in reversed(_selected(owner, keys, tx)):
        found = _select(tx, found, dim, position)
    return found


def _selected(owner: TensorValue, keys: Any, tx: Tracer) -> list[tuple[int, Value]]:
    """(dimension of `owner[keys with slices instead]`, position) of each run-time integer among the keys."""
    consumed = sum(not _is_new_axis(k) and not _is_ellipsis(k) for k in keys)
    dim, found = 0, []
    for k in keys:
        if _is_position(tx, k):
            found.append((dim, k))
            dim += 1
        elif _is_ellipsis(k):
            dim += owner.fake.dim() - consumed
        elif not isinstance(k, Constant) or not isinstance(k.obj, int):
            dim += 1
    return found


def _is_position(tx: Tracer, key: Value) -> bool:
    if isinstance(key, TensorValue):
        plain = key.fake.dtype in _INDEX_TYPES
        return plain and key.fake.dim() == 0 and tx.symbols.captures
    return is_run_time(tx, key) and key.python_type() is int


_INDEX_TYPES = (torch.int64, torch.int32, torch.int16, torch.int8)


def _is_new_axis(key: Value) -> bool:
    return isinstance(key, Constant) and key.obj is None


def _is_ellipsis(key: Value) -> bool:
    return isinstance(key, Constant) and key.obj is Ellipsis


def _is_basic(tx: Tracer, key: Value) -> bool:
    """Whether it is a key of basic indexing."""
    if isinstance(key, Constant):
        return key.obj is None or key.obj is Ellipsis or type(key.obj) in (int, slice)
    return isinstance(key, SliceValue) or _is_position(tx, key)


def _select(tx: Tracer, owner: TensorValue, dim: int, position: Value) -> TensorValue:
    """`owner.select(dim, position)`; the graph checks that there is such a position."""
    number = item(tx, position) if isinstance(position, TensorValue) else position
    size = Constant(owner.fake.shape[dim]) if isinstance(owner.fake.shape[dim], int) else tx.shape_of(owner).items[dim]
    for text, end in (("<", size), (">=", tx.unary_op("-", size))):
        check(tx, tx.compare(text, number, end), IndexError)
    found = tx.run_in_graph("call_method", "select", [owner, Constant(dim), number], {})
    assert isinstance(found, TensorValue)
    return found


def set_item(tx: Tracer, owner: TensorValue, key: Value, value: Value) -> bool:
    """`owner[key] = value` where the key has integers known only at run time: written into the view; False for any other key."""
    keys = key.items if isinstance(key, TupleValue) else [key]
    if not all(_is_basic(tx, k) for k in keys) or not any(_is_position(tx, k) or _is_open_slice(tx, k) for k in keys):
        return False
    number = value.python_type() in (int, float, bool)
    if not number and not isinstance(value, TensorValue):
        return False
    target = get_item(tx, owner, key) or tx.run_in_graph("call_function", operator.getitem, [owner, key], {})
    assert isinstance(target, TensorValue)
    if number:
        tx.run_in_graph("call_method", "fill_", [target, value], {})
        return True
    assert isinstance(value, TensorValue)
    if value.fake.dim() > target.fake.dim():  # leading sizes of 1, which `copy_` does not take
        raise Unsupported("data-dependent", f"{value.describe()} is stored at places known only at run time")
    tx.run_in_graph("call_method", "copy_", [target, value], {})
    return True


def _is_open_slice(tx: Tracer, key: Value) -> bool:
    return isinstance(key, SliceValue) and any(is_run_time(tx, part) for part in key.parts)


# ---- arithmetic

_COMPARISONS = frozenset({operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne})
_INTEGER = _COMPARISONS | {
    operator.add, operator.sub, operator.mul, operator.neg, operator.pos, operator.abs, torch.sym_min, torch.sym_max, torch.sym_float,
}  # fmt: skip
_DIVISIONS = frozenset({operator.floordiv, operator.mod, operator.truediv})
_LOGICAL = frozenset({operator.and_, operator.or_, operator.eq, operator.ne, torch.sym_not})
_MOST_POWER = 16


def operate(tx: Tracer, function: Callable[..., Any], args: list[Value]) -> Value:
    """A Python operator on numbers of which one is known only at run time: what stays symbolic with Python's own result."""
    is_float = any(floats.is_float(arg) for arg in args)
    if is_float and function not in _COMPARISONS:
        return floats.operate(tx, function, args)
    why_not = _why_not_symbolic(function, args)
    if why_not is not None:
        return tx.fold(function, [Constant(specialise(tx, a)) if isinstance(a, SymbolicValue) else a for a in args], {})
    if function in _DIVISIONS:
        _expect_divisor(tx, args[1])
    plain = [arg.sym if isinstance(arg, SymbolicValue) else arg.constant() for arg in args]
    if not all(_is_bool(arg) for arg in args):
        plain = [int(x) if isinstance(x, bool) else x for x in plain]
    try:
        result = function(*plain)
    except ShapesError as error:
        raise Unsupported("unbacked-decision", str(error)) from None
    if not isinstance(result, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return tx.from_constant(result)
    nodes = tuple(arg.node(tx) if isinstance(arg, SymbolicValue) else x for arg, x in zip(args, plain, strict=True))
    node = tx.graph.call("call_function", function, nodes, {}, result, tx.stack_trace())
    return tx.number(result, node)


def _is_bool(value: Value) -> bool:
    return value.python_type() is bool


def _why_not_symbolic(function: Callable[..., Any], args: list[Value]) -> str | None:
    """Why an operator needs the numbers themselves."""
    kinds = {arg.python_type() for arg in args}
    if not kinds <= {int, float, bool}:
        return "operands that are no real numbers"
    if kinds == {bool}:
        return None if function in _LOGICAL else "arithmetic of truth values"
    if bool in kinds and any(_is_bool(arg) and isinstance(arg, SymbolicValue) for arg in args):
        return "arithmetic of truth values"
    if function is operator.pow:
        exponent = args[1]
        plain = isinstance(exponent, Constant) and type(exponent.obj) is int and 0 <= exponent.obj <= _MOST_POWER
        return None if plain and float not in kinds else "a power that may be no integer"
    return None if function in _INTEGER or function in _DIVISIONS else "not an operator of symbolic numbers"


def _expect_divisor(tx: Tracer, divisor: Value) -> None:
    """The graph checks that it does not divide by zero; where it would, Python raises its own exception."""
    from treadle_shapes.expr import Ne

    if is_run_time(tx, divisor):
        condition = Ne(divisor.sym.node.value, 0)  # type: ignore[attr-defined]
        if tx.symbols.env.prove(condition) is False:
            tx.raise_exception(ZeroDivisionError, "integer division or modulo by zero")
        state_fact(tx, condition, "", ZeroDivisionError)
