"""Numbers that the program reads from tensors, and tensors indexed by such numbers."""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any

from torch import fx

from treadle_shapes.torch import raw_expr
from treadle_tracer.by_identity import is_one_of
from treadle_tracer.errors import Unsupported
from treadle_tracer.values.arrays import ArrayValue
from treadle_tracer.values.base import Constant, is_none
from treadle_tracer.values.known_elements import constant_elements, known_number, number_in
from treadle_tracer.values.number_arguments import known_index
from treadle_tracer.values.outside_decisions import number_of
from treadle_tracer.values.sequences import ListValue, Sequence, SliceValue, TupleValue, make_slice
from treadle_tracer.values.symbolic_arithmetic import convert, operator_in_graph
from treadle_tracer.values.symbolic_elements import item_of_sizes
from treadle_tracer.values.tensor import INDEX_TYPES, SymbolicValue, TensorValue, rows_of, shape_of, symbol_at
from treadle_tracer.values.unbacked import check, is_unbacked, result_name, symbols_of
from treadle_tracer.values.value import Raised, Value

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext


def truth_value(tx: TraceContext, value: Value) -> Value | None:
    """`bool(value)` as a number of the graph if it is unbacked, else None."""
    if isinstance(value, ArrayValue) and value.ndim == 0:
        value = value.tensor
    if isinstance(value, TensorValue) and tx.modes.ask:
        return None
    if isinstance(value, TensorValue) and tx.symbols.takes_numbers:
        return to_bool(tx, value)
    if not is_unbacked(tx, value):
        return None
    return value if value.python_type() is bool else tx.compare("!=", value, Constant(0))


# ---- reading numbers from tensors


def item(tx: TraceContext, owner: TensorValue) -> Value:
    """`owner.item()`: a constant or symbol from which the program has made the tensor, else a symbol of the graph."""
    exact = item_of_sizes(tx, owner)
    if exact is not None:
        return exact
    known = number_in(tx, owner.known_node)
    if known is not None:
        return value_of_number(tx, known)
    if not tx.symbols.takes_numbers and not tx.frames[-1].module_name.startswith("torch.optim."):
        raise Unsupported("data-dependent", owner.describe())
    return read_number(tx, owner)


def value_of_number(tx: TraceContext, number: Any) -> Value:
    """The Value of an element that `number_in` has found."""
    return symbol_at(number) if isinstance(number, fx.Node) else tx.from_constant(number)


def read_number(tx: TraceContext, owner: TensorValue) -> Value:
    """`owner.item()` where PyTorch itself reads the number and nothing is decided on it: a symbol of the graph, whatever the options."""
    if not tx.symbols.unbacked.allowed:
        tx.symbols.unbacked.allow(tx)
    return tx.run_in_graph("call_method", "item", [owner], {})


def to_bool(tx: TraceContext, owner: TensorValue) -> Value:
    """`bool(owner)`"""
    number = _only_number(tx, owner, None)
    return number if number.python_type() is bool else tx.compare("!=", number, Constant(0))


def to_number(tx: TraceContext, owner: TensorValue, cls: type) -> Value:
    """`int(owner)`, `float(owner)`"""
    if cls is complex or owner.fake.is_complex():
        raise Unsupported("data-dependent", f"{cls.__name__}() of {owner.describe()}")
    number = _only_number(tx, owner, cls)
    if number.python_type() is cls:
        return number
    if isinstance(number, SymbolicValue):
        return convert(tx, number, cls)
    return tx.fold(cls, [number], {})


def _only_number(tx: TraceContext, owner: TensorValue, cls: type | None) -> Value:
    """`owner.item()` for `cls(owner)`, None for bool, which have errors of their own for a tensor of several elements or of none."""
    try:
        return item(tx, owner)
    except Raised as raised:
        if not issubclass(raised.value.python_type(), RuntimeError):
            raise
    if cls is not None:
        return tx.raise_exception(ValueError, "only one element tensors can be converted to Python scalars")
    count = "no values" if 0 in owner.fake.shape else "more than one value"
    return tx.raise_exception(RuntimeError, f"Boolean value of Tensor with {count} is ambiguous")


_MOST_ITEMS = 64


def to_list(tx: TraceContext, owner: TensorValue) -> Value:
    """`owner.tolist()` of a tensor whose number of elements is known and small, or of one made from constants."""
    known = constant_elements(tx, owner.known_node)
    if known is not None:
        return tx.from_constant(known.tolist())
    shape = [_known_size(tx, owner, dim) for dim in range(owner.fake.dim())]
    if None in shape or math.prod(size or 0 for size in shape) > _MOST_ITEMS:
        raise Unsupported("data-dependent", owner.describe())
    if not shape:
        return item(tx, owner)
    parts = rows_of(tx, owner, shape[0]).items if shape[0] else ()
    items = [to_list(tx, part) for part in parts if isinstance(part, TensorValue)]
    names = [result_name(tx.frames[-1])] * len(items)
    for position, (part, name) in enumerate(zip(items, names, strict=True)):
        _name_item(tx, part, f"{name}[{position}]")
    return ListValue(items)


def _known_size(tx: TraceContext, owner: TensorValue, dim: int) -> int | None:
    """A size of a tensor; one that data tells is decided on. None where it is not known."""
    size = owner.fake.shape[dim]
    known = size if isinstance(size, int) else tx.symbols.env.simplify(raw_expr(size))
    if isinstance(known, int):
        return known
    number = tx.symbols.size_value(tx, owner, dim, size) if is_unbacked(tx, SymbolicValue(None, size)) else None
    return number_of(tx, number) if isinstance(number, SymbolicValue) else None


def _name_item(tx: TraceContext, value: Value, name: str) -> None:
    """Name the symbols of an item after its place in the list."""
    if isinstance(value, SymbolicValue) and is_unbacked(tx, value):
        env = tx.symbols.env
        for symbol in symbols_of(value.sym):
            env.symbols[symbol] = env.symbols[symbol]._replace(source=name)
    elif isinstance(value, Sequence):
        for position, part in enumerate(value.items):
            _name_item(tx, part, f"{name}[{position}]")


# ---- indexing with symbolic integers


def get_item(tx: TraceContext, owner: TensorValue, key: Value) -> Value | None:
    """`owner[key]` with a `select` for each symbolic integer among the keys. None for a key without such integers, or with one that is
    known to be out of range."""
    keys = [_without_tensors(tx, k) for k in (key.items if isinstance(key, TupleValue) else [key])]
    if not any(_is_position(tx, k) for k in keys) or not all(_is_basic(tx, k) for k in keys):
        if not any(isinstance(k, SliceValue) for k in keys):
            return None
        key = TupleValue(keys) if isinstance(key, TupleValue) else keys[0]
        return tx.run_in_graph("call_function", operator.getitem, [owner, key], {})
    selected = _selected(owner, keys, tx)
    if not all(
        is_unbacked(tx, k) or isinstance(k, TensorValue) or _is_in_range(tx, k, size) for _, k, size in selected
    ):
        return None
    kept = TupleValue([Constant(slice(None)) if _is_position(tx, k) else k for k in keys])
    found = owner if len(keys) == 1 else tx.run_in_graph("call_function", operator.getitem, [owner, kept], {})
    assert isinstance(found, TensorValue)
    for dim, position, _ in reversed(selected):
        found = _select(tx, found, dim, position)
    return found


def _selected(owner: TensorValue, keys: Any, tx: TraceContext) -> list[tuple[int, Value, Value]]:
    """(dimension of `owner[keys with slices instead]`, position, size of that dimension) of each symbolic integer among the keys."""
    consumed = sum(not _is_new_axis(k) and not _is_ellipsis(k) for k in keys)
    sizes = shape_of(tx, owner).items
    dim, of_owner, found = 0, 0, []
    for k in keys:
        if _is_position(tx, k):
            if of_owner >= len(sizes):
                return []  # too many keys
            found.append((dim, k, sizes[of_owner]))
            dim += 1
        elif _is_ellipsis(k):
            dim += owner.fake.dim() - consumed
            of_owner += owner.fake.dim() - consumed
        elif not isinstance(k, Constant) or not isinstance(k.obj, int):
            dim += 1
        of_owner += not _is_new_axis(k) and not _is_ellipsis(k)
    return found


def _is_in_range(tx: TraceContext, position: Value, size: Value) -> bool:
    """Whether a backed integer is a position in a dimension of this size; guarded."""
    if not tx.compare("<", position, size).truth(tx):
        return False
    is_negative = tx.compare("<", position, Constant(0)).truth(tx)
    return not is_negative or tx.compare(
        ">=", operator_in_graph(tx, operator.add, [position, size]), Constant(0)
    ).truth(tx)


def _is_position(tx: TraceContext, key: Value) -> bool:
    if isinstance(key, TensorValue):
        plain = key.fake.dtype in INDEX_TYPES
        return plain and key.fake.dim() == 0 and tx.symbols.takes_numbers
    return isinstance(key, SymbolicValue) and key.python_type() is int


def with_known_scalars(tx: TraceContext, key: Value) -> Value:
    """A key with ints in place of NumPy's integers, and of tensors that bound slices, where they follow from constants; arrays are tensors.

    PyTorch takes all of these for ints and tensors, and reads the numbers that bound slices when it makes the call.
    """
    if isinstance(key, TupleValue) and any(isinstance(part, (ArrayValue, SliceValue)) for part in key.items):
        return TupleValue([with_known_scalars(tx, part) for part in key.items])
    if isinstance(key, SliceValue) and any(isinstance(part, (ArrayValue, TensorValue)) for part in key.parts):
        return make_slice([_known_bound(tx, part) for part in key.parts])
    if not isinstance(key, ArrayValue):
        return key
    known = known_number(tx, key.tensor.known_node) if key.is_scalar and key.dtype.kind in "iu" else None
    return _index_of_array(tx, key) if known is None else Constant(known)


_SIGNED = ("int64", "int32", "int16", "int8")


def _index_of_array(tx: TraceContext, key: ArrayValue) -> Value:
    """A tensor of positions or truth values. All integers become int64 in torch, too (torch/csrc/autograd/python_variable_indexing.cpp)."""
    kind = key.dtype.name
    if (key.ndim == 0 and not (key.is_scalar and kind in _SIGNED)) or kind not in ("bool", *_SIGNED):
        return key
    return key.tensor if kind in ("bool", "int64") else tx.run_in_graph("call_method", "long", [key.tensor], {})


def _known_bound(tx: TraceContext, part: Value) -> Value:
    """A number in place of an integer tensor, or of NumPy's integer, that follows from constants, sizes and buffers."""
    if isinstance(part, ArrayValue) and part.ndim == 0 and part.dtype.kind in "iu":
        part = part.tensor
    if not isinstance(part, TensorValue) or part.fake.is_floating_point() or part.fake.is_complex():
        return part
    known = number_in(tx, part.known_node)
    if isinstance(known, fx.Node):
        return symbol_at(known)
    if known is not None:
        return Constant(operator.index(known))
    return part if part.fake.dim() else known_index(tx, part) or part


def _without_tensors(tx: TraceContext, key: Value) -> Value:
    """A slice with numbers in place of tensors."""
    if (
        not tx.symbols.takes_numbers
        or not isinstance(key, SliceValue)
        or not any(isinstance(part, TensorValue) for part in key.parts)
    ):
        return key
    return make_slice([item(tx, part) if isinstance(part, TensorValue) else part for part in key.parts])


def _is_new_axis(key: Value) -> bool:
    return is_none(key)


def _is_ellipsis(key: Value) -> bool:
    return isinstance(key, Constant) and key.obj is Ellipsis


def _is_basic(tx: TraceContext, key: Value) -> bool:
    """Whether it is a key of basic indexing."""
    if isinstance(key, Constant):
        return key.obj is None or key.obj is Ellipsis or is_one_of(type(key.obj), (int, slice))
    return isinstance(key, SliceValue) or _is_position(tx, key)


def _select(tx: TraceContext, owner: TensorValue, dim: int, position: Value) -> TensorValue:
    """`owner.select(dim, position)`; the graph checks that there is such a position."""
    number = item(tx, position) if isinstance(position, TensorValue) else position
    size = Constant(owner.fake.shape[dim]) if isinstance(owner.fake.shape[dim], int) else shape_of(tx, owner).items[dim]
    lowest = Constant(-size.obj) if isinstance(size, Constant) else operator_in_graph(tx, operator.neg, [size])
    for text, end in (("<", size), (">=", lowest)) if is_unbacked(tx, number) else ():
        check(tx, tx.compare(text, number, end), IndexError)
    found = tx.run_in_graph("call_method", "select", [owner, Constant(dim), number], {})
    assert isinstance(found, TensorValue)
    return found


def set_item(tx: TraceContext, owner: TensorValue, key: Value, value: Value) -> bool:
    """Store into the view that symbolic integers in the key select. False for a key without such integers."""
    keys = [_without_tensors(tx, k) for k in (key.items if isinstance(key, TupleValue) else [key])]
    key = TupleValue(keys) if isinstance(key, TupleValue) else keys[0]
    if not all(_is_basic(tx, k) for k in keys) or not any(
        _is_position(tx, k) or _is_unbacked_slice(tx, k) for k in keys
    ):
        return False
    number = is_one_of(value.python_type(), (int, float, bool))
    if not number and not isinstance(value, TensorValue):
        return False
    target = get_item(tx, owner, key) or tx.run_in_graph("call_function", operator.getitem, [owner, key], {})
    assert isinstance(target, TensorValue)
    if number:
        tx.run_in_graph("call_method", "fill_", [target, value], {})
        return True
    assert isinstance(value, TensorValue)
    if value.fake.dim() > target.fake.dim():  # leading sizes of 1, which `copy_` does not take
        raise Unsupported("data-dependent", f"{value.describe()} is stored at positions that are unbacked")
    tx.run_in_graph("call_method", "copy_", [target, value], {})
    return True


def _is_unbacked_slice(tx: TraceContext, key: Value) -> bool:
    return isinstance(key, SliceValue) and any(is_unbacked(tx, part) for part in key.parts)
