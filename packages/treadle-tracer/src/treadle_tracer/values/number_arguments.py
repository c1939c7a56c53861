"""Tensors from constants in the place of numbers: `x.narrow(0, torch.tensor(1), 2)`, `torch.arange(lengths.max())`.

PyTorch reads the element of such a tensor, which a graph cannot do. Where it follows from constants, the graph gets the number; where it
follows from buffers of modules (`F.pad(x, (self.padding, 0))`), that number is guarded.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch

from treadle_tracer.values.arrays import ArrayValue
from treadle_tracer.values.base import Constant, LazyValue
from treadle_tracer.values.known_elements import number_in
from treadle_tracer.values.outside_decisions import index_of_buffers
from treadle_tracer.values.sequences import ListValue, Sequence, TupleValue
from treadle_tracer.values.symbolic_elements import number_of_sizes
from treadle_tracer.values.tensor import INDEX_TYPES, TensorValue, symbol_at

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext, Value

_INT = frozenset({*INDEX_TYPES, torch.uint8})
_ANY = _INT | {torch.bool, torch.float32, torch.float64}
_DTYPES = {"int": _INT, "number": _ANY}


def with_known_numbers(
    tx: TraceContext, operation: str, args: list[Value], kwargs: dict[str, Value]
) -> tuple[list[Value], dict[str, Value]]:
    """The arguments of a torch function with numbers in place of tensors of which it takes the element alone."""
    positions, is_list, names = _numbers_of(operation)
    if not positions and not names:
        return args, kwargs
    found: list[Value] = []
    for index, arg in enumerate(args):
        kind = positions[index] if index < len(positions) else positions[-1] if positions and is_list else None
        found.append(arg if kind is None else _known(tx, arg, _DTYPES[kind]))
    return found, {
        name: _known(tx, arg, _DTYPES[names[name]]) if name in names else arg for name, arg in kwargs.items()
    }


def _known(tx: TraceContext, value: Value, dtypes: frozenset[torch.dtype]) -> Value:
    """A number, or sequence of numbers. A tensor without dimensions whose element follows from constants or buffers is that number."""
    value = value.force(tx) if isinstance(value, LazyValue) else value
    if type(value) in (ListValue, TupleValue) and isinstance(value, Sequence) and value.source is None:
        items = [_known(tx, item, dtypes) for item in value.items]
        is_same = all(new is old for new, old in zip(items, value.items, strict=True))
        return value if is_same else TupleValue(items)
    if isinstance(value, ArrayValue):
        return _known_scalar(tx, value, dtypes)
    if not isinstance(value, TensorValue) or value.fake.dim() or value.fake.dtype not in dtypes:
        return value
    number = number_in(tx, value.known_node)
    if isinstance(number, torch.fx.Node):
        return symbol_at(number)
    if number is None and value.fake.dtype in _INT:
        return known_index(tx, value) or value
    return value if number is None else Constant(number)


def known_index(tx: TraceContext, value: TensorValue) -> Value | None:
    """The integer of a tensor without dimensions that follows from sizes, constants and buffers of modules."""
    found = number_of_sizes(tx, value)
    if found is not None and found.python_type() is int:
        return found
    number = index_of_buffers(tx, value)
    return None if number is None else Constant(number)


def _known_scalar(tx: TraceContext, value: ArrayValue, dtypes: frozenset[torch.dtype]) -> Value:
    """A scalar of NumPy that the graph computes; the scalar itself where it follows from constants."""
    if not value.is_scalar or value.tensor.fake.dtype not in dtypes:
        return value
    number = number_in(tx, value.tensor.known_node)
    return value if number is None or isinstance(number, torch.fx.Node) else Constant(value.dtype.type(number))


def schemas_of(operation: str) -> list[Any]:
    """The schemas of all overloads of ATen's operator; none where there is no such operator."""
    packet = getattr(torch.ops.aten, operation, None)
    is_packet = isinstance(packet, torch._ops.OpOverloadPacket)
    return [getattr(packet, overload)._schema for overload in packet.overloads()] if is_packet else []  # type: ignore[union-attr]


@functools.cache
def _numbers_of(operation: str) -> tuple[list[str | None], bool, dict[str, str]]:
    """What a torch function takes as a number, "int" or "number": by position, whether more arguments belong to the last position
    (`x.view(2, 3)`), and by name.

    No overload may take a tensor there, except one that takes the same argument as an int (`start` of narrow).
    """
    schemas = schemas_of(operation)
    by_position: list[list[Any]] = []
    by_name: dict[str, list[Any]] = {}
    for schema in schemas:
        for index, argument in enumerate(a for a in schema.arguments if not a.kwarg_only):
            by_position += [[]] if index == len(by_position) else []
            by_position[index].append(argument)
        for argument in schema.arguments:
            by_name.setdefault(argument.name, []).append(argument)
    positions = [_number_kind(arguments) for arguments in by_position]
    names = {name: kind for name, arguments in by_name.items() if (kind := _number_kind(arguments)) is not None}
    is_list = bool(by_position) and any("List[int]" in str(a.type) for a in by_position[-1])
    return positions, is_list, names


def _number_kind(arguments: list[Any]) -> str | None:
    kinds = [_kind(argument) for argument in arguments]
    names = {argument.name for argument in arguments if _kind(argument) in ("int", "tensor")}
    if "tensor" in kinds:
        return "int" if "int" in kinds and len(names) == 1 else None
    return next((kind for kind in ("number", "int") if kind in kinds), None)


def _kind(argument: Any) -> str:
    text = str(argument.type)
    for kind, name in (("tensor", "Tensor"), ("int", "int"), ("number", "number")):
        if text in (name, f"Optional[{name}]", f"List[{name}]", f"Optional[List[{name}]]"):
            return kind
    return "other"
