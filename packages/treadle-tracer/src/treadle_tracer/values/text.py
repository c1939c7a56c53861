"""Values as text: `str`, `repr`, `format`."""

from __future__ import annotations

import operator
import re
import string
import types
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from treadle_tracer.errors import Unsupported
from treadle_tracer.values import tensor_numbers
from treadle_tracer.values.base import Constant, LazyValue, settled
from treadle_tracer.values.class_lookup import lookup
from treadle_tracer.values.constant_objects import ConstantObject, has_python_method
from treadle_tracer.values.deferred_text import DeferredText, is_open_text, joined_text, text_of
from treadle_tracer.values.exceptions import ExceptionValue
from treadle_tracer.values.mappings import DictValue
from treadle_tracer.values.native_values import call_native
from treadle_tracer.values.numpy_numbers import NumpyNumber
from treadle_tracer.values.objects import ObjectValue
from treadle_tracer.values.originals import replaced_method
from treadle_tracer.values.plain_containers import DEEPEST, members_of
from treadle_tracer.values.sequences import TupleValue
from treadle_tracer.values.tensor import SymbolicValue, TensorValue
from treadle_tracer.values.value import Value, call_special
from treadle_tracer.values.varying_text import OpenText

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext


def to_str(tx: TraceContext, value: Value) -> Value:
    """`str(value)`."""
    return _text(tx, value, "__str__", str)


def to_repr(tx: TraceContext, value: Value) -> Value:
    """`repr(value)`."""
    return _text(tx, value, "__repr__", repr)


def to_ascii(tx: TraceContext, value: Value) -> Value:
    """`ascii(value)`"""
    return tx.fold(_escaped, [to_repr(tx, value)], {})


def _escaped(text: str) -> str:
    return text.encode("ascii", "backslashreplace").decode()


def _text(tx: TraceContext, value: Value, name: str, function: Callable[[Any], str]) -> Value:
    if isinstance(value, DeferredText) and name == "__str__":
        return value
    if isinstance(value, TensorValue) and replaced_method(tx, value.python_type(), name) is None:
        tx.modes.refuse("the text of a tensor")
        return text_of(tx, function, value)
    if isinstance(value, (ObjectValue, TensorValue)) or has_python_method(tx, value, (name, "__repr__")):
        raw = lookup(tx, value.python_type(), name)
        if raw is object.__str__:
            return _text(tx, value, "__repr__", repr)
        if isinstance(raw, types.FunctionType) and not isinstance(value, TensorValue):
            return tx.inline(tx.wrap_known(raw), [value], {})
        if isinstance(value, ObjectValue) and issubclass(value.cls, BaseException) and name == "__str__":
            return _exception_text(tx, value, raw)
        if raw is BaseException.__repr__:
            args = value.get_attr(tx, "args").unpack(tx)
            name = Constant(value.python_type().__name__)
            parts = ["(", to_repr(tx, args[0]), ")"] if len(args) == 1 else [to_repr(tx, TupleValue(args))]
            return joined_text(tx, [name, *parts])
        native = call_native(tx, value, name, [], {}) if isinstance(value, ObjectValue) else None
        if native is not None:
            return native
        raise Unsupported("format", value.describe())
    if isinstance(value, OpenText) and name == "__str__":
        return value
    if isinstance(value, SymbolicValue):
        return text_of(tx, function, value)
    try:
        return tx.fold(function, [value], {})
    except Unsupported:
        if _holds_objects(value, 0):
            return _container_text(tx, value)
        return text_of(tx, function, value)


_BRACKETS: dict[type, tuple[str, str]] = {list: ("[", "]"), tuple: ("(", ")"), dict: ("{", "}")}


def _holds_objects(value: Value, depth: int) -> bool:
    """Whether the text of a container is put together from those of instances in it."""
    members = members_of(value)
    if members is None:
        return isinstance(value, ObjectValue) and depth > 0
    if depth > DEEPEST:
        raise Unsupported("format", f"{value.describe()}, which may contain itself")
    return any(_holds_objects(settled(member), depth + 1) for member in members)


def _container_text(tx: TraceContext, value: Value) -> Value:
    """`repr` of a list, tuple or dict: Python asks its members."""
    members = [
        to_repr(tx, member.force(tx) if isinstance(member, LazyValue) else member) for member in members_of(value) or ()
    ]
    left, right = _BRACKETS[value.python_type()]
    signs = (": ", ", ") if isinstance(value, DictValue) else (", ", ", ")
    pieces = [piece for position, member in enumerate(members) for piece in (signs[(position + 1) % 2], member)][1:]
    comma = "," if value.python_type() is tuple and len(members) == 1 else ""
    return joined_text(tx, [left, *pieces, comma + right])


def _exception_text(tx: TraceContext, value: ObjectValue, method: Any) -> Value:
    if method not in (BaseException.__str__, KeyError.__str__, ImportError.__str__):
        if not isinstance(value, ExceptionValue):
            raise Unsupported("format", value.describe())
        return value.text(tx)
    args = value.get_attr(tx, "args").unpack(tx)
    if not args:
        return Constant("")
    if len(args) > 1:
        return to_str(tx, TupleValue(args))
    return to_repr(tx, args[0]) if issubclass(value.cls, KeyError) else to_str(tx, args[0])


def format_value(tx: TraceContext, value: Value, spec: Value) -> Value:
    """`format(value, spec)`."""
    if isinstance(value, TensorValue) and replaced_method(tx, value.python_type(), "__format__") is None:
        tx.modes.refuse("the text of a tensor")
        if value.fake.dim() == 0:
            value = tensor_numbers.item(tx, value)  # as Tensor.__format__ does
        elif spec.constant() != "":
            raise Unsupported("format", value.describe())
    elif isinstance(value, NumpyNumber):
        value = value.fixed(tx)
    if is_open_text(value) and spec.constant() == "":
        return value
    if isinstance(value, SymbolicValue) and not _formats_all(value.python_type(), spec.constant()):
        return tx.fold(format, [Constant(tx.specialise(value)), spec], {})
    if isinstance(value, SymbolicValue) or is_open_text(value):
        return text_of(tx, format, value, spec)
    if spec.constant() == "" and isinstance(value, ObjectValue):
        native = call_native(tx, value, "__str__", [], {})  # what `__format__` of these types gives
        if native is not None:
            return native
    own = isinstance(value, ObjectValue) and lookup(tx, value.cls, "__format__") is not object.__format__
    own = own or has_python_method(tx, value, ("__format__",))
    if spec.constant() == "" and not isinstance(value, Constant) and not own:
        return to_str(tx, value)
    special = ("__format__", "__str__", "__repr__") if isinstance(value, ConstantObject) else ("__format__",)
    if has_python_method(tx, value, special):
        raw = lookup(tx, value.python_type(), "__format__")
        return tx.bind(value, raw, "__format__").call(tx, [spec], {})
    if isinstance(value, ObjectValue):
        return call_special(tx, value, "__format__", [spec])
    try:
        return tx.fold(format, [value, spec], {})
    except Unsupported:
        raise Unsupported("format", value.describe()) from None


def _formats_all(kind: type, spec: str) -> bool:
    """Whether the specification formats all numbers of this type, or none: an error has its place in the program."""
    try:
        format(kind(1), spec)
    except (ValueError, OverflowError):
        return False
    return not spec.endswith("c")


# ---- `%` and str.format


def percent_format(tx: TraceContext, template: Value, values: Value) -> Value | None:
    """`template % values` with values that are known only after the graph, else None."""
    if not isinstance(template, Constant) or type(template.constant()) is not str or isinstance(values, Constant):
        return None
    items = values.items if isinstance(values, TupleValue) else [values]
    if not any(isinstance(item, _OPEN) for item in items):
        return None
    if _may_raise(template.constant(), items):
        return tx.fold(operator.mod, [template, values], {})
    return text_of(tx, operator.mod, template, values)


def _may_raise(template: str, items: Sequence[Value]) -> bool:
    """Whether `template % items` may raise for some of the numbers that open items may be: `"%d" % nan`, `"%c" % n`."""
    kinds = _CONVERSION.findall(template.replace("%%", ""))
    if len(kinds) != len(items):
        return True
    return any(
        kind == "c" or (kind in "diouxX" and item.python_type() is float)
        for kind, item in zip(kinds, items, strict=True)
    )


_CONVERSION = re.compile(r"%[^a-zA-Z]*([a-zA-Z])")


def format_method(tx: TraceContext, template: str, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    """`template.format(*args, **kwargs)` with arguments that are known only after the graph, else None."""
    given = {**kwargs}
    if not any(isinstance(item, _OPEN) for item in (*args, *kwargs.values())):
        return None
    try:
        fields = list(string.Formatter().parse(template))
    except ValueError:
        return None
    if all(how is None and (not name or name.isidentifier() or name.isdigit()) for _, name, _, how in fields):
        args = [_formatted_number(tx, item) for item in args]
        given = {name: _formatted_number(tx, item) for name, item in kwargs.items()}
    return text_of(tx, _Format(template, tuple(given)), *args, *given.values())


_OPEN = (TensorValue, SymbolicValue, DeferredText, OpenText)


def _formatted_number(tx: TraceContext, value: Value) -> Value:
    """What `Tensor.__format__` formats in place of a tensor of no dimensions."""
    if isinstance(value, TensorValue) and value.fake.dim() == 0:
        return tensor_numbers.item(tx, value)
    return value


class _Format:
    """Run-time helper: `template.format` with the last arguments by name."""

    def __init__(self, template: str, names: tuple[str, ...]):
        self.template, self.names = template, names

    def __call__(self, *values: Any) -> str:
        count = len(values) - len(self.names)
        return self.template.format(*values[:count], **dict(zip(self.names, values[count:], strict=True)))
