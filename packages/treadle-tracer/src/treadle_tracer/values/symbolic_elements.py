"""Tensors of one element whose number follows from dynamic sizes and from buffers of modules: symbolic, as the sizes themselves.

    frames = torch.ceil((x.shape[-1] - self.kernel_size) / self.stride)     # kernel_size, stride: buffers
    extra = frames.to(torch.int64) * self.stride + self.kernel_size - x.shape[-1]
    x = F.pad(x, (0, extra))

    count = torch.as_tensor([sum(len(boxes) for boxes in targets)], dtype=torch.float)
    count = torch.clamp(count / processes, min=1).item()

Buffers of one integer on the CPU are constants, which are guarded: they seldom change. Floats are followed as quotients of integers, as
long as their rounding leaves them on the side of every integer on which the quotient is: `ceil`, `floor` and casts to integers are exact
then. That holds for numbers below a limit, which is guarded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, Union

import torch
from torch import fx

from treadle_tracer.values.base import Constant
from treadle_tracer.values.call_effects import name_of, storages
from treadle_tracer.values.outside_decisions import decided_index
from treadle_tracer.values.symbolic_arithmetic import convert, operator_in_graph
from treadle_tracer.values.tensor import SymbolicValue
from treadle_tracer.values.unbacked import is_unbacked
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext

_MOST_CALLS = 64
_INTEGERS = (torch.int64, torch.int32)

_SIGNIFICANDS = {torch.float32: 24, torch.float64: 53}
"""Bits of floats, with the one that is not stored."""

_MOST_FACTOR = 1 << 20
_MOST_ROUNDINGS = 3


class Quotient(NamedTuple):
    """A float computed for `dividend / divisor`: equal to it where that is an integer, and else between the same two integers.

    Each of `roundings` operations has rounded a number below 2**(p - 2) / divisor, p bits in the significand: by 2**-2 / divisor at most.
    Three of them move a number by less than 1 / divisor, which is how far it is from the next integer.
    """

    dividend: Value
    divisor: int = 1
    roundings: int = 0


Number: TypeAlias = Union["Value", Quotient]


def number_of_sizes(tx: TraceContext, value: Any) -> Value | None:
    """The integer or truth of a TensorValue without dimensions, which follows from dynamic sizes; None for any other."""
    node, fake = value.known_node, value.fake
    if node is None or fake.dim() or fake.dtype not in (torch.bool, *_INTEGERS) or not tx.runs_in_order:
        return None
    result = _followed(tx, node)
    return None if isinstance(result, Quotient) else result


def item_of_sizes(tx: TraceContext, value: Any) -> Value | None:
    """`value.item()` of a TensorValue of one element that is exactly an integer, which follows from dynamic sizes; None for any other."""
    node, dtype = value.known_node, value.fake.dtype
    if node is None or not _has_one_element(value.fake) or not tx.runs_in_order:
        return None
    if dtype not in (*_SIGNIFICANDS, *_INTEGERS):
        return None
    integer = _integer(_followed(tx, node))
    if integer is None or dtype in _INTEGERS:
        return integer
    if tx.compare("==", integer, Constant(0)).truth(tx):
        return None  # it may be -0.0
    return convert(tx, integer, float) if isinstance(integer, SymbolicValue) else tx.fold(float, [integer], {})


def _followed(tx: TraceContext, node: fx.Node) -> Number | None:
    """The number of a tensor, where it follows from dynamic sizes."""
    calls = _calls_behind(node)
    if calls is None or not any(isinstance(call.meta["example_value"], torch.SymInt) for call in calls):
        return None  # what follows from constants and buffers alone is decided by what comes of it
    if any(True for _ in tx.graph.writes().to(_memory_of(calls))):
        return None
    found: dict[fx.Node, Number] = {}
    for call in calls:
        number = _number(tx, call, found)
        if number is None:
            return None
        found[call] = number
    return found[node]


def _has_one_element(fake: torch.Tensor) -> bool:
    return all(type(size) is int and size == 1 for size in fake.shape)


def _calls_behind(result: fx.Node) -> list[fx.Node] | None:
    """Sizes, buffers and calls that the result follows from, in order; None if one of them is of another kind."""
    found: set[fx.Node] = set()
    pending = [result]
    while pending:
        node = pending.pop()
        if node in found:
            continue
        if len(found) >= _MOST_CALLS or not _is_followed(node):
            return None
        found.add(node)
        if isinstance(node.meta.get("example_value"), torch.Tensor):
            pending += node.all_input_nodes
    return sorted(found)


def _is_followed(node: fx.Node) -> bool:
    value = node.meta.get("example_value")
    if isinstance(value, torch.SymInt):
        return True
    if not isinstance(value, torch.Tensor) or not _has_one_element(value) or value.device.type != "cpu":
        return False
    if node.op == "get_attr":
        return not value.dim() and value.dtype in _INTEGERS
    return node.op in ("call_function", "call_method") and name_of(node.target) in _RULES


def _memory_of(nodes: Sequence[fx.Node]) -> set[int]:
    return set().union(*(storages(node.meta["example_value"]) for node in nodes))


def _number(tx: TraceContext, node: fx.Node, found: dict[fx.Node, Number]) -> Number | None:
    value = node.meta["example_value"]
    if isinstance(value, torch.SymInt):
        size = tx.number(value, node)
        return None if is_unbacked(tx, size) else size
    if node.op == "get_attr":
        index = decided_index(tx, node)
        return None if index is None else Constant(index)
    args = [_operand(arg, found) for arg in node.args]
    kwargs = {name: _operand(arg, found) for name, arg in node.kwargs.items()}
    result = _RULES[name_of(node.target)](tx, args, kwargs, value.dtype)
    return None if result is None else _within_limits(tx, result, value.dtype)


def _operand(arg: Any, found: dict[fx.Node, Number]) -> Any:
    """A number as a Value or Quotient; anything else as it is."""
    if isinstance(arg, fx.Node):
        return found.get(arg)
    if isinstance(arg, (list, tuple)) and any(isinstance(part, fx.Node) for part in arg):
        return [_operand(part, found) for part in arg]
    if isinstance(arg, float) and arg.is_integer():
        arg = int(arg)
    return Constant(arg) if isinstance(arg, int) and not isinstance(arg, bool) else arg


def _within_limits(tx: TraceContext, number: Number, dtype: torch.dtype) -> Number | None:
    """The number if its dtype has it, which is guarded; None if not."""
    if dtype is torch.bool:
        return None if isinstance(number, Quotient) else number
    if isinstance(number, Quotient) is not (dtype in _SIGNIFICANDS):
        return None
    if isinstance(number, Quotient):
        integer, limit = number.dividend, 1 << (_SIGNIFICANDS[dtype] - 2)
    elif dtype is torch.int32:
        integer, limit = number, 1 << 31
    else:  # sizes have far less than 63 bits, and factors are small
        return number if dtype is torch.int64 else None
    is_small = all(
        tx.compare("<", a, b).truth(tx) for a, b in ((integer, Constant(limit)), (Constant(-limit), integer))
    )
    return number if is_small else None


# ---- rules: what a call gives, by the numbers that it is given

_Rule: TypeAlias = Callable[["TraceContext", list[Any], dict[str, Any], torch.dtype], "Number | None"]


def _integer(number: Any) -> Value | None:
    """The number as an integer if it is one."""
    if isinstance(number, Quotient):
        return number.dividend if number.divisor == 1 else None
    return number if isinstance(number, Value) and number.python_type() is int else None


def _constant(number: Any) -> int | None:
    """A number that is known and small."""
    integer = _integer(number)
    if not isinstance(integer, Constant) or not -_MOST_FACTOR <= integer.obj <= _MOST_FACTOR:
        return None
    return integer.obj  # type: ignore[no-any-return]


def _typed(integer: Value, dtype: torch.dtype) -> Number:
    return Quotient(integer) if dtype in _SIGNIFICANDS else integer


def _sum(text: str) -> _Rule:
    def rule(tx: TraceContext, args: list[Any], kwargs: dict[str, Any], dtype: torch.dtype) -> Number | None:
        if kwargs or len(args) != 2:
            return None
        a, b = map(_integer, args)
        if a is not None and b is not None:
            return _typed(tx.binary_op(text, a, b), dtype)
        quotient = args[0]
        if text == "+" and b is None:
            quotient, b = args[1], a
        if b is None or not isinstance(quotient, Quotient):
            return None
        added = tx.binary_op(text, quotient.dividend, tx.binary_op("*", b, Constant(quotient.divisor)))
        return _rounded(added, quotient.divisor, quotient.roundings)

    return rule


def _rounded(dividend: Value, divisor: int, roundings: int) -> Quotient | None:
    return Quotient(dividend, divisor, roundings + 1) if roundings < _MOST_ROUNDINGS else None


def _product(tx: TraceContext, args: list[Any], kwargs: dict[str, Any], dtype: torch.dtype) -> Number | None:
    a, b = map(_integer, args) if len(args) == 2 and not kwargs else (None, None)
    if a is None or b is None or (_constant(a) is None and _constant(b) is None):
        return None
    return _typed(tx.binary_op("*", a, b), dtype)


def _quotient(tx: TraceContext, args: list[Any], kwargs: dict[str, Any], dtype: torch.dtype) -> Number | None:
    mode = kwargs.pop("rounding_mode", None)
    if kwargs or len(args) != 2 or dtype not in (_SIGNIFICANDS if mode is None else _INTEGERS):
        return None
    dividend, divisor = _integer(args[0]), _constant(args[1])
    if dividend is None or divisor is None or divisor <= 0:
        return None
    if mode is None:
        return _rounded(dividend, divisor, 0)
    return tx.binary_op("//", dividend, Constant(divisor)) if mode == "floor" else None


def _of_positive_divisor(text: str) -> _Rule:
    def rule(tx: TraceContext, args: list[Any], kwargs: dict[str, Any], dtype: torch.dtype) -> Number | None:
        if kwargs or len(args) != 2 or dtype not in _INTEGERS:
            return None
        dividend, divisor = _integer(args[0]), _constant(args[1])
        if dividend is None or divisor is None or divisor <= 0:
            return None
        return tx.binary_op(text, dividend, Constant(divisor))

    return rule


def _negative(tx: TraceContext, args: list[Any], kwargs: dict[str, Any], dtype: torch.dtype) -> Number | None:
    integer = None if kwargs else _integer(args[0])
    return None if integer is None else _typed(tx.binary_op("-", Constant(0), integer), dtype)


def _floor(tx: TraceContext, args: list[Any], kwargs: dict[str, Any], dtype: torch.dtype) -> Number | None:
    if kwargs or not isinstance(args[0], Quotient):
        return None
    return Quotient(_floor_of(tx, args[0]))


def _floor_of(tx: TraceContext, number: Quotient) -> Value:
    if number.divisor == 1:
        return number.dividend
    return tx.binary_op("//", number.dividend, Constant(number.divisor))


def _ceil(tx: TraceContext, args: list[Any], kwargs: dict[str, Any], dtype: torch.dtype) -> Number | None:
    if kwargs or not isinstance(args[0], Quotient):
        return None
    number = args[0]
    return Quotient(
        _floor_of(tx, number._replace(dividend=tx.binary_op("+", number.dividend, Constant(number.divisor - 1))))
    )


def _cast(tx: TraceContext, args: list[Any], kwargs: dict[str, Any], dtype: torch.dtype) -> Number | None:
    """`x.to(dtype)`, `x.long()`: floats lose what is behind the point."""
    number = args[0]
    if isinstance(number, Quotient):
        if dtype in _INTEGERS:
            is_positive = number.divisor == 1 or tx.compare(">=", number.dividend, Constant(0)).truth(tx)
            return _floor_of(tx, number) if is_positive else None
        return number if dtype in _SIGNIFICANDS and number.divisor == 1 else None
    integer = _integer(number)
    return None if integer is None or dtype is torch.bool else _typed(integer, dtype)


def _same(tx: TraceContext, args: list[Any], kwargs: dict[str, Any], dtype: torch.dtype) -> Number | None:
    return args[0] if not kwargs and len(args) == 1 else None


def _comparison(text: str) -> _Rule:
    def rule(tx: TraceContext, args: list[Any], kwargs: dict[str, Any], dtype: torch.dtype) -> Number | None:
        a, b = map(_integer, args) if len(args) == 2 and not kwargs else (None, None)
        mixed = {isinstance(arg, Quotient) for arg in args} == {True, False}
        if a is None or b is None or (mixed and _constant(a) is None and _constant(b) is None):
            return None  # a large integer is rounded beside a float
        return tx.compare(text, a, b)

    return rule


def _full(tx: TraceContext, args: list[Any], kwargs: dict[str, Any], dtype: torch.dtype) -> Number | None:
    """`torch.full((), n)`, which `torch.tensor(n)` is in the graph."""
    integer = _integer(args[1]) if len(args) == 2 and kwargs.keys() <= {"dtype", "device"} else None
    return None if integer is None or dtype is torch.bool else _typed(integer, dtype)


def _stack(tx: TraceContext, args: list[Any], kwargs: dict[str, Any], dtype: torch.dtype) -> Number | None:
    return args[0][0] if not kwargs and len(args) == 1 and isinstance(args[0], list) and len(args[0]) == 1 else None


def _clamp(*names: str) -> _Rule:
    def rule(tx: TraceContext, args: list[Any], kwargs: dict[str, Any], dtype: torch.dtype) -> Number | None:
        limits = {**dict(zip(names, args[1:], strict=False)), **kwargs}
        if not limits or not limits.keys() <= {"min", "max"}:
            return None
        integer = _integer(args[0])
        for name, function in (("min", torch.sym_max), ("max", torch.sym_min)):
            limit = limits.get(name)
            if integer is None or limit is None:
                continue
            constant = _constant(limit)
            if constant is None:
                return None
            integer = operator_in_graph(tx, function, [integer, Constant(constant)])
        return None if integer is None else _typed(integer, dtype)

    return rule


_RULES: dict[str, _Rule] = {
    "full": _full,
    "stack": _stack,
    "clamp": _clamp("min", "max"),
    "clamp_min": _clamp("min"),
    "clamp_max": _clamp("max"),
    **dict.fromkeys(("add", "__add__"), _sum("+")),
    **dict.fromkeys(("sub", "__sub__"), _sum("-")),
    **dict.fromkeys(("mul", "__mul__"), _product),
    **dict.fromkeys(("div", "truediv", "true_divide"), _quotient),
    **dict.fromkeys(("floordiv", "floor_divide"), _of_positive_divisor("//")),
    **dict.fromkeys(("mod", "remainder"), _of_positive_divisor("%")),
    "neg": _negative,
    "floor": _floor,
    "ceil": _ceil,
    **dict.fromkeys(("to", "long", "int", "float", "double"), _cast),
    **dict.fromkeys(("detach", "clone"), _same),
    **{name: _comparison(text) for name, text in (("lt", "<"), ("le", "<="), ("gt", ">"), ("ge", ">="), ("eq", "=="), ("ne", "!="))},
}  # fmt: skip
