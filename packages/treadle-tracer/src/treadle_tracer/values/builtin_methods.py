"""Methods implemented in C, of values that the trace evaluates: special methods by name, and what each kind of value has of its own."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from treadle_tracer.by_identity import is_one_of
from treadle_tracer.class_facts import is_subtype
from treadle_tracer.errors import Unsupported
from treadle_tracer.tables import by_name
from treadle_tracer.values.arity import why_not_method_with
from treadle_tracer.values.base import NONE, ConcreteValue, Constant, LazyValue, boolean
from treadle_tracer.values.containers import init_container
from treadle_tracer.values.deferred_text import is_open_text, joined_text
from treadle_tracer.values.iteration import IteratorValue
from treadle_tracer.values.mappings import DictValue, DictView
from treadle_tracer.values.objects import ObjectValue
from treadle_tracer.values.protocol import BINARY, COMPARE, binary_op, compare, fold, unary_op
from treadle_tracer.values.sequences import ListValue, Sequence
from treadle_tracer.values.sets import SetValue
from treadle_tracer.values.tensor import TensorValue
from treadle_tracer.values.text import format_method, to_repr, to_str
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext

_Dunder = Callable[[Any, Value, "list[Value]"], Value]


def _none(_: None) -> Value:
    return NONE


def _comparison(text: str) -> _Dunder:
    return _own_or(COMPARE[text][1], lambda tx, v, args: compare(tx, text, v, args[0]))


def _forward(text: str) -> _Dunder:
    return _own_or(f"__{BINARY[text][1]}__", lambda tx, v, args: binary_op(tx, text, v, args[0]))


def _reflected(text: str) -> _Dunder:
    return _own_or(f"__r{BINARY[text][1]}__", lambda tx, v, args: binary_op(tx, text, args[0], v))


def _in_place(text: str) -> _Dunder:
    def call(tx: Any, v: Value, args: list[Value]) -> Value:
        if isinstance(v, SetValue) and not is_one_of(args[0].python_type(), _LIKE_SETS):
            raise Unsupported("builtin-method", f"`{text}` of {v.describe()}, which may be NotImplemented")
        return binary_op(tx, text, v, args[0])

    return call


def _own_or(name: str, operate: _Dunder) -> _Dunder:
    """The method of this name of two constants, which says NotImplemented where an operator asks the other operand; else `operate`."""

    def call(tx: Any, v: Value, args: list[Value]) -> Value:
        if isinstance(v, ConcreteValue) and isinstance(args[0], ConcreteValue):
            return fold(tx, getattr(v.python_type(), name), [v, args[0]], {})
        if not _takes_operand(v, name, args[0].python_type()) or (isinstance(v, DictValue) and name in _ORDERINGS):
            raise Unsupported(
                "builtin-method", f"{v.describe()}.{name} of {args[0].describe()}, which may be NotImplemented"
            )
        return operate(tx, v, args)

    return call


def _takes_operand(v: Value, name: str, other: type) -> bool:
    """Whether operators of a built-in value take an operand of this type themselves, rather than ask the operand."""
    if isinstance(v, (SetValue, DictView)):
        return is_one_of(other, _LIKE_SETS)
    if isinstance(v, Sequence) and is_one_of(other, (int, bool)):
        return name in ("__mul__", "__rmul__", "__imul__")
    return is_one_of(other, (v.python_type(),)) if isinstance(v, Sequence) else is_subtype(other, v.python_type())


_ORDERINGS = ("__lt__", "__le__", "__gt__", "__ge__")
_LIKE_SETS = (set, frozenset, type({}.keys()), type({}.items()))
_OPERATORS = [name for _, name in BINARY.values() if name != "pow"]  # which takes one or two
_COUNTS = {
    name: count
    for count, names in (
        (
            0,
            "__len__ __iter__ __next__ __bool__ __index__ __neg__ __pos__ __abs__ __invert__ __str__ __repr__ __hash__",
        ),
        (0, "__int__ __float__ __complex__ __reversed__ __length_hint__ __dir__ __sizeof__"),
        (
            1,
            "__getitem__ __delitem__ __contains__ __getattribute__ __delattr__ __eq__ __ne__ __lt__ __le__ __gt__ __ge__",
        ),
        (1, " ".join(f"__{kind}{name}__" for name in _OPERATORS for kind in ("", "r", "i"))),
        (2, "__setitem__ __setattr__"),
    )
    for name in names.split()
}
"""How many arguments special methods take, on every object that has them."""

_DUNDERS: dict[str, _Dunder] = by_name(
    ("__getitem__", lambda tx, v, args: v.get_item(tx, args[0])),
    ("__setitem__", lambda tx, v, args: _none(v.set_item(tx, args[0], args[1]))),
    ("__delitem__", lambda tx, v, args: _none(v.del_item(tx, args[0]))),
    ("__len__", lambda tx, v, args: v.length_value(tx)),
    ("__iter__", lambda tx, v, args: v.iterate(tx)),
    ("__contains__", lambda tx, v, args: boolean(v.contains(tx, args[0]))),
    ("__bool__", lambda tx, v, args: boolean(v.truth(tx))),
    ("__index__", lambda tx, v, args: Constant(v.as_index(tx))),
    ("__neg__", lambda tx, v, args: unary_op(tx, "-", v)),
    ("__pos__", lambda tx, v, args: unary_op(tx, "+", v)),
    ("__invert__", lambda tx, v, args: unary_op(tx, "~", v)),
    ("__str__", lambda tx, v, args: to_str(tx, v)),
    ("__repr__", lambda tx, v, args: to_repr(tx, v)),
    ("__reversed__", lambda tx, v, args: v.iterate_backwards(tx)),
    *[(name, _comparison(text)) for text, (_, name, _) in COMPARE.items()],
    *[(f"__{name}__", _forward(text)) for text, (_, name) in BINARY.items()],
    *[(f"__r{name}__", _reflected(text)) for text, (_, name) in BINARY.items()],
    *[(f"__i{name}__", _in_place(f"{text}=")) for text, (_, name) in BINARY.items()],
)

_DESCRIPTORS = (types.MethodDescriptorType, types.WrapperDescriptorType)
_PLAIN = (Constant, Sequence, DictValue, DictView, SetValue, IteratorValue)


def _text_method(tx: TraceContext, owner: str, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    """`str.format` and `str.join` with arguments that are not known yet; None for everything else."""
    if name == "format":
        return format_method(tx, owner, args, kwargs)
    if name == "join" and isinstance(args[0], Sequence):
        items = args[0].unpack(tx)
        if any(map(is_open_text, items)) and all(item.python_type() is str for item in items):
            return joined_text(tx, [piece for item in items for piece in (owner, item)][1:])
    return None


def call_builtin_method(
    tx: TraceContext, owner: Value, name: str, function: Any, args: list[Value], kwargs: dict[str, Value]
) -> Value:
    """Carry out a method implemented in C, `function` being the descriptor it was found as (None: unknown)."""
    if isinstance(owner, LazyValue):
        owner = owner.force(tx)
    if isinstance(owner, TensorValue):
        own_name = getattr(function, "__name__", name) if isinstance(function, _DESCRIPTORS) else name
        return tx.tensor_method(owner, own_name, args, kwargs)
    wanted = _COUNTS.get(name)
    if wanted is not None and (kwargs or len(args) != wanted):
        raise Unsupported("raises", f"{owner.describe()}.{name} of {len(args) + len(kwargs)} arguments")
    if name in ("__setattr__", "__delattr__", "__getattribute__") and args[0].python_type() is not str:
        raise Unsupported("raises", f"{owner.describe()}.{name} of {args[0].describe()}")
    cls = owner.container.python_type() if isinstance(owner, ObjectValue) and owner.container else owner.python_type()
    wrong = why_not_method_with(cls, name, len(args), list(kwargs))
    if wrong is not None:
        return tx.raise_exception(TypeError, wrong)
    if isinstance(owner, ObjectValue):
        defined_in = getattr(function, "__objclass__", None)
        if owner.container is not None and defined_in not in (object, None, BaseException) and name != "__init__":
            found = call_builtin_method(tx, owner.container, name, function, args, kwargs)
            return owner if found is owner.container else found  # in place
        return owner.builtin_method(tx, name, args, kwargs)
    if isinstance(owner, Constant) and type(owner) is Constant and isinstance(owner.obj, str):
        found = _text_method(tx, owner.obj, name, args, kwargs)
        if found is not None:
            return found
    if name in _DUNDERS and isinstance(owner, _PLAIN):
        return _DUNDERS[name](tx, owner, args)
    if name == "__init__" and isinstance(owner, (ListValue, DictValue, SetValue)):
        init_container(tx, owner, args, kwargs)
        return NONE
    if name == "__hash__":
        return Constant(hash(owner.hash_key(tx)))
    if name == "__class__":
        return tx.wrap_known(owner.python_type())
    return owner.builtin_method(tx, name, args, kwargs)
