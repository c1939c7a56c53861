"""Exception groups, and what `except*` does with them (Objects/exceptions.c, Python/ceval.c).

try: raise ExceptionGroup("g", [ValueError(1), KeyError(2)])
except* ValueError as e: ...    # e is a group with the ValueError; what is left, a group with the KeyError, is raised behind the handlers
"""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from treadle_tracer.by_identity import is_one_of
from treadle_tracer.bytecode.opcodes import MINOR
from treadle_tracer.class_facts import is_subtype
from treadle_tracer.errors import Unsupported
from treadle_tracer.values.base import NONE, Constant, is_none
from treadle_tracer.values.exceptions import ExceptionValue, built_in_base, caught_classes, is_one
from treadle_tracer.values.functions import ClassValue
from treadle_tracer.values.sequences import ListValue, TupleValue
from treadle_tracer.values.value import Raised, Value

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext

_Matcher = Callable[[Value], bool]


class GroupValue(ExceptionValue):
    """A group that the trace has made. `exceptions` are what it holds, whatever becomes of the list that it was made from."""

    __slots__ = ("exceptions",)

    def __init__(self, cls: type, args: Sequence[Value], exceptions: Sequence[Value]):
        super().__init__(cls, args)
        self.exceptions = TupleValue(exceptions)

    def args_after(self, tx: TraceContext, args: Sequence[Value]) -> list[Value]:
        return list(args)

    def member(self, tx: TraceContext, raw: Any, name: str) -> Value | None:
        members = {"message": self.given[0], "exceptions": self.exceptions}
        return members.get(name)

    def text(self, tx: TraceContext) -> Value:
        message, count = self.given[0], len(self.exceptions.items)
        if type(message) is not Constant:
            raise Unsupported("format", self.describe())
        return Constant(f"{message.obj} ({count} sub-exception{'s' if count > 1 else ''})")

    def builtin_method(self, tx: TraceContext, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if name == "split":
            return TupleValue([NONE if part is None else part for part in _split(tx, self, _matcher(tx, args[0]))])
        if name == "subgroup":
            return _split(tx, self, _matcher(tx, args[0]), with_rest=False)[0] or NONE
        if name == "derive":
            return tx.wrap_known(BaseExceptionGroup).call(tx, [self.given[0], *args], {})
        return super().builtin_method(tx, name, args, kwargs)

    def emit_new(self, cg: Any) -> None:
        given = self.given[1]
        if isinstance(given, ListValue) and [*given.items] != [*self.exceptions.items]:
            raise Unsupported("reconstruct", f"{self.describe()}, whose list has changed")
        super().emit_new(cg)


def new_group(tx: TraceContext, cls: type, args: Sequence[Value]) -> GroupValue:
    """What `BaseExceptionGroup.__new__` makes of these arguments. Raises in the program what that raises."""
    if len(args) == 2 and not isinstance(args[1], (ListValue, TupleValue)):
        raise Unsupported("raises", f"{cls.__qualname__} of {args[1].describe()}")
    items = list(args[1].items) if len(args) == 2 else []  # type: ignore[attr-defined]
    stand_ins: list[Any] = [_stand_in(args[0])] if args else []
    stand_ins += [[_stand_in(item) for item in items] if at == 0 else None for at, _ in enumerate(args[1:])]
    base: Any = cls if is_one_of(cls, _GROUPS) else built_in_base(cls)
    try:
        made = type(base(*stand_ins))
    except (TypeError, ValueError) as error:
        if cls is not base:  # which the message would name
            raise Unsupported("raises", f"{cls.__qualname__}: {error}") from None
        tx.raise_real(error)
    if (
        cls is not base
        and is_subtype(cls, Exception)
        and not all(is_subtype(i.python_type(), Exception) for i in items)
    ):
        tx.raise_exception(TypeError, f"Cannot nest BaseExceptions in {cls.__name__!r}")
    return GroupValue(made if cls is base else cls, args, items)


_GROUPS = (BaseExceptionGroup, ExceptionGroup)


def _stand_in(value: Value) -> Any:
    """An object of the kind that decides whether a group takes the value."""
    if type(value) is Constant:
        return value.obj
    kinds = (Exception, BaseException, str)
    return next((kind() for kind in kinds if is_subtype(value.python_type(), kind)), None)


# ---- except*


def match_group(tx: TraceContext, exception: Value, wanted: Value) -> tuple[Value, Value]:
    """(what a clause `except* wanted` handles, what is left for the next ones); None for nothing."""
    classes = caught_classes(tx, wanted)
    if any(is_subtype(cls, BaseExceptionGroup) for cls in classes):
        what = "catching ExceptionGroup with except* is not allowed. Use except instead."
        tx.raise_exception(TypeError, what)
    if is_none(exception):
        return NONE, NONE
    is_group = is_subtype(exception.python_type(), BaseExceptionGroup)
    if is_one(exception, classes):
        return exception if is_group else _wrapped(tx, exception), NONE
    if not is_group:
        return NONE, exception
    parts = exception.call_method(tx, "split", [wanted], {})
    if not isinstance(parts, TupleValue) or len(parts.items) != 2:
        raise Unsupported("raises", f"{exception.describe()}.split() of the program")
    return parts.items[0], parts.items[1]


def _wrapped(tx: TraceContext, exception: Value) -> Value:
    """The group that an `except*` sees of an exception that is none."""
    return tx.wrap_known(BaseExceptionGroup).call(tx, [Constant(""), ListValue([exception])], {})


def exception_behind_handlers(tx: TraceContext, original: Value, raised: Sequence[Value]) -> Value:
    """What is raised behind the clauses of an `except*`, or None. `raised`: what they have raised, and what is left, or None."""
    left = [exception for exception in raised if not is_none(exception)]
    if not is_subtype(original.python_type(), BaseExceptionGroup):
        return left[0] if left else NONE
    again = [exception for exception in left if _is_part_of(tx, exception, original)]
    new = [exception for exception in left if not any(exception is other for other in again)]
    leaves = [leaf for exception in again for leaf in _leaves(tx, exception)]
    kept = _split(tx, original, lambda value: any(value is leaf for leaf in leaves), with_rest=False)[0]
    if kept is not None:
        new.append(kept)
    if len(new) > 1:
        return tx.wrap_known(BaseExceptionGroup).call(tx, [Constant(""), ListValue(new)], {})
    return new[0] if new else NONE


def _is_part_of(tx: TraceContext, exception: Value, original: Value) -> bool:
    """Whether the exception is what `split` has made of the original, or the original itself, and has not been raised anew."""
    if not is_subtype(exception.python_type(), BaseExceptionGroup):
        return False
    if _traceback(tx, exception) is not _traceback(tx, original):
        return False
    names = ("__cause__", "__context__")
    return all(_same(exception.get_attr(tx, name), original.get_attr(tx, name)) for name in names)


def _same(a: Value, b: Value) -> bool:
    return a.identity() is b.identity() or is_none(a) and is_none(b)


def _traceback(tx: TraceContext, exception: Value) -> object:
    """A stand-in for the exception's traceback."""
    return tx.tracebacks.get(id(exception), (None, exception))[1]


def _leaves(tx: TraceContext, exception: Value) -> list[Value]:
    if not is_subtype(exception.python_type(), BaseExceptionGroup):
        return [exception]
    return [leaf for item in exception.get_attr(tx, "exceptions").unpack(tx) for leaf in _leaves(tx, item)]


# ---- split


def _matcher(tx: TraceContext, condition: Value) -> Callable[[Value], bool]:
    """Whether an exception meets the condition of `split`: a class, a tuple of classes, or a function."""
    if is_subtype(condition.python_type(), types.FunctionType):
        return lambda exception: condition.call(tx, [exception], {}).truth(tx)
    if MINOR >= 13 and not isinstance(condition, (ClassValue, TupleValue, Constant)):
        raise Unsupported("raises", f"split by {condition.describe()}, which may be callable")
    try:
        classes = caught_classes(tx, condition)
    except Raised:
        tx.raise_exception(TypeError, _REFUSAL)
    return lambda exception: is_one(exception, classes)


def _refusal() -> str:
    try:
        ExceptionGroup("", [ValueError()]).split(0)  # type: ignore[arg-type]
    except TypeError as error:
        return str(error)
    raise AssertionError


_REFUSAL = _refusal()


def _split(
    tx: TraceContext, exception: Value, meets: _Matcher, with_rest: bool = True
) -> tuple[Value | None, Value | None]:
    """The parts that meet the condition and those that do not, as groups of the same form."""
    if meets(exception):
        return exception, None
    if not is_subtype(exception.python_type(), BaseExceptionGroup):
        return None, exception
    items = exception.get_attr(tx, "exceptions").unpack(tx)
    parts = [_split(tx, item, meets, with_rest) for item in items]
    matched = _subset(tx, exception, [part for part, _ in parts if part is not None])
    rest = _subset(tx, exception, [part for _, part in parts if part is not None]) if with_rest else None
    return matched, rest


def _subset(tx: TraceContext, group: Value, exceptions: list[Value]) -> Value | None:
    """A group like this one with these exceptions; None without any."""
    if not exceptions:
        return None
    made = group.call_method(tx, "derive", [ListValue(exceptions)], {})
    if not is_subtype(made.python_type(), BaseExceptionGroup):
        tx.raise_exception(TypeError, "derive must return an instance of BaseExceptionGroup")
    if id(group) in tx.tracebacks:
        tx.tracebacks[id(made)] = (made, tx.tracebacks[id(group)][1])
        if isinstance(made, ExceptionValue) and isinstance(group, ExceptionValue):
            made.raised_at = group.raised_at
    for name in ("__context__", "__cause__"):
        tx.mutations.store_attr(made, name, group.get_attr(tx, name))
    notes = _notes(tx, group)
    if notes is not None:
        made.set_attr(tx, "__notes__", ListValue(notes.unpack(tx)))
    return made


def _notes(tx: TraceContext, group: Value) -> Value | None:
    try:
        return group.get_attr(tx, "__notes__")
    except Raised as raised:
        if not is_subtype(raised.value.python_type(), AttributeError):
            raise
        return None
