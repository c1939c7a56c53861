"""Exceptions that the trace makes.

What their C members hold (`OSError.errno`, `SystemExit.code`) is asked of a real exception of the built-in base. That is made from the
arguments that are constants, and from stand-ins for the others.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from treadle_tracer.class_facts import flags_of, is_subtype, mro_of, own_dict
from treadle_tracer.errors import Unsupported
from treadle_tracer.values.base import NONE, Constant
from treadle_tracer.values.functions import ClassValue
from treadle_tracer.values.objects import ObjectValue
from treadle_tracer.values.sequences import TupleValue
from treadle_tracer.values.tracebacks import RunTimeTraceback
from treadle_tracer.values.value import Raised, Value

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext

    Args = list[Value]
    Kwargs = dict[str, Value]

_HEAP_TYPE = 1 << 9
_DEFAULTS = {"__cause__": None, "__context__": None, "__traceback__": None, "__suppress_context__": False}
_SET_BY_INTERPRETER = {
    AttributeError: ("name", "obj"),
    NameError: ("name",),
    ImportError: ("name", "path", "name_from"),
    OSError: ("filename", "filename2"),
}
"""Members that CPython sets, and no argument, when it raises the exception itself."""


class ExceptionValue(ObjectValue):
    """`new_args` are its `args`.

    given            the arguments of `__new__`
    initialised      those of `__init__` of the built-in base; None where it has not run
    by_interpreter   whether the interpreter has raised it, and not a call of its class made it
    raised_at        the instruction of the root frame at which it got its traceback; -1 where it has none
    """

    __slots__ = ("_real", "_stand_ins", "by_interpreter", "given", "initialised", "raised_at")

    def __init__(self, cls: type, args: Sequence[Value] = (), by_interpreter: bool = False):
        super().__init__(cls)
        self.given = list(args)
        self.new_args = list(args)
        self.initialised: list[Value] | None = None
        self.by_interpreter = by_interpreter
        self.raised_at = -1
        self._real: BaseException | None = None
        self._stand_ins: list[tuple[Any, Value]] = []

    def initialise(self, tx: TraceContext, args: Sequence[Value]) -> None:
        """Do what `__init__` of the built-in base does."""
        self.initialised = list(args)
        self._real = None
        self.new_args = self.args_after(tx, args)

    def args_after(self, tx: TraceContext, args: Sequence[Value]) -> list[Value]:
        """`self.args` after `__init__` of the built-in base has had these arguments."""
        if not _has_members(built_in_base(self.cls)):
            return list(args)
        return [self._value_of(tx, arg) for arg in self.real(tx).args]

    def real(self, tx: TraceContext) -> BaseException:
        """A real exception of the built-in base. Raises in the program what making one raises."""
        if self._real is None:
            base = built_in_base(self.cls)
            try:
                self._real = base.__new__(base, *map(self._stand_in, self.given))
                if self.initialised is not None:
                    base.__init__(self._real, *map(self._stand_in, self.initialised))
            except Exception as error:
                if self._stand_ins:
                    raise Unsupported("raises", f"{self.describe()} of these arguments") from None
                tx.raise_real(error)
        return self._real

    def text(self, tx: TraceContext) -> Value:
        """`BaseException.__str__` of a built-in class that has its own."""
        text = str(self.real(tx))
        if self._stand_ins:
            raise Unsupported("format", self.describe())
        return Constant(text)

    def _stand_in(self, value: Value) -> Any:
        if type(value) is Constant:
            return value.obj
        known = next((made for made, stood_for in self._stand_ins if stood_for is value), None)
        if known is None:
            known = object()
            self._stand_ins.append((known, value))
        return known

    def _value_of(self, tx: TraceContext, obj: Any) -> Value:
        """The Value of what a member of the real exception holds."""
        found = next((value for made, value in self._stand_ins if made is obj), None)
        if found is not None:
            return found
        given = next(
            (v for v in (*(self.initialised or ()), *self.given) if type(v) is Constant and v.obj is obj), None
        )
        return tx.from_constant(obj) if given is None else given

    def made_slot(self, tx: TraceContext, raw: Any, name: str) -> Value | None:
        owner = raw.__objclass__
        if owner is BaseException:
            return TupleValue(self.new_args) if name == "args" else self._set_by_raise(tx, name)
        if flags_of(owner) & _HEAP_TYPE:
            return None
        if self.by_interpreter and name in _SET_BY_INTERPRETER.get(owner, ()):
            raise Unsupported("raises", f"{self.describe()}.{name}, which Python sets where it raises the exception")
        return self.member(tx, raw, name)

    def _set_by_raise(self, tx: TraceContext, name: str) -> Value:
        """What an exception may have got from being raised."""
        _, context = tx.raised_while.get(id(self), (None, None))
        if name == "__traceback__" and id(self) in tx.tracebacks:
            return RunTimeTraceback(tx.frames[0].at)
        return context if name == "__context__" and context is not None else Constant(_DEFAULTS[name])

    def member(self, tx: TraceContext, raw: Any, name: str) -> Value | None:
        """What a member of the built-in base holds."""
        try:
            return self._value_of(tx, raw.__get__(self.real(tx)))
        except AttributeError:
            return None

    def builtin_method(self, tx: TraceContext, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        method = _METHODS.get(name)
        return super().builtin_method(tx, name, args, kwargs) if method is None else method(tx, self, args, kwargs)

    def reconstruct(self, cg: Any) -> None:
        if self.source is None and self.raised_at >= 0:
            what = f"{self.describe()}, whose traceback is known only at run time"
            raise Unsupported("reconstruct", what, (), self.raised_at)
        super().reconstruct(cg)

    def emit_new(self, cg: Any) -> None:
        cg.cb.push_null()
        cg.const(_new_exception)
        cg.const(self.cls)
        cg.value(TupleValue(self.given))
        cg.value(Constant(None) if self.initialised is None else TupleValue(self.initialised))
        cg.cb.call(3)


def _add_note(exception: Any, note: Any) -> None:
    """What `BaseException.add_note` does in C."""
    if not isinstance(note, str):
        raise TypeError(f"note must be a str, not '{type(note).__name__}'")
    if not hasattr(exception, "__notes__"):
        exception.__notes__ = []
    if not isinstance(exception.__notes__, list):
        raise TypeError("Cannot add note: __notes__ is not a list")
    exception.__notes__.append(note)


def _with_traceback(tx: TraceContext, exception: ExceptionValue, args: Args, kwargs: Kwargs) -> Value:
    exception.set_attr(tx, "__traceback__", args[0])
    return exception


def _init(tx: TraceContext, exception: ExceptionValue, args: Args, kwargs: Kwargs) -> Value:
    initialise_exception(tx, exception, args, kwargs)
    return NONE


_METHODS: dict[str, Callable[[TraceContext, ExceptionValue, Args, Kwargs], Value]] = {
    "__init__": _init,
    "add_note": lambda tx, exception, args, kwargs: tx.inline(tx.wrap_known(_add_note), [exception, *args], kwargs),
    "with_traceback": _with_traceback,
}


def _new_exception(cls: Any, given: tuple[Any, ...], initialised: tuple[Any, ...] | None) -> BaseException:
    """Run-time helper: an exception, past `__new__` and `__init__` of the program."""
    base = built_in_base(cls)
    made = base.__new__(cls, *given)
    if initialised is not None:
        base.__init__(made, *initialised)
    return made


def built_in_base(cls: type) -> Any:
    """The class implemented in C whose layout the instances of a class of exceptions have."""
    return next(base for base in mro_of(cls) if not flags_of(base) & _HEAP_TYPE)


@functools.cache
def _has_members(base: Any) -> bool:
    """Whether instances of a built-in class hold more than `args` and what all exceptions hold."""
    kinds = (types.MemberDescriptorType, types.GetSetDescriptorType)
    own = (cls for cls in base.__mro__ if cls not in (BaseException, object))
    return any(isinstance(raw, kinds) for cls in own for raw in vars(cls).values())


_NAMED = (ImportError, AttributeError, NameError)


def new_exception(tx: TraceContext, cls: type, args: Sequence[Value]) -> ExceptionValue:
    """What `__new__` of the built-in base makes of these arguments."""
    made = ExceptionValue(cls, args)
    if cls is OSError and len(args) > 1:
        if type(args[0]) is not Constant:
            raise Unsupported("raises", "OSError of a number that is not known while tracing")
        made.cls = type(made.real(tx))  # its first argument decides
    return made


def initialise_exception(tx: TraceContext, made: Value, args: Sequence[Value], kwargs: Mapping[str, Value]) -> None:
    """What `__init__` of the built-in base does."""
    if not isinstance(made, ExceptionValue):
        raise Unsupported("raises", f"{made.describe()}.__init__")
    made.initialise(tx, args)
    base = next((base for base in _NAMED if is_subtype(made.cls, base)), None)
    known = _SET_BY_INTERPRETER[base] if base is not None else ()
    if any(name not in known or not hasattr(base, name) for name in kwargs):
        raise Unsupported("raises", f"{made.describe()} with named arguments")
    for name, value in kwargs.items():
        tx.mutations.store_attr(made, name, value)


def interpreter_exception(cls: type[BaseException], args: Sequence[Value]) -> ExceptionValue:
    """An exception that the interpreter raises with these arguments."""
    made = ExceptionValue(cls, args, by_interpreter=True)
    made.initialised = list(args)
    return made


def exception_of(tx: TraceContext, error: BaseException) -> ExceptionValue:
    """The Value of an exception that a call has really raised."""
    made = interpreter_exception(type(error), [tx.from_constant(arg) for arg in error.args])
    for name, value in (own_dict(error) or {}).items():
        tx.mutations.store_attr(made, name, tx.from_constant(value))
    return made


def raise_for_stop_iteration(tx: TraceContext, kind: str, stop: Value) -> NoReturn:
    """Raise the RuntimeError that a StopIteration becomes which leaves a generator or coroutine (PEP 479)."""
    error = interpreter_exception(RuntimeError, [Constant(f"{kind} raised StopIteration")])
    for name in ("__cause__", "__context__"):
        tx.mutations.store_attr(error, name, stop)
    tx.mutations.store_attr(error, "__suppress_context__", Constant(True))
    raise Raised(error)


def raise_real(tx: TraceContext, error: BaseException) -> NoReturn:
    """Raise in the traced program the exception that a call has really raised."""
    raise Raised(exception_of(tx, error))


def matches(tx: TraceContext, exception: Value, wanted: Value) -> bool:
    """Whether an `except` of these classes catches the exception."""
    return is_one(exception, caught_classes(tx, wanted))


def is_one(exception: Value, classes: Sequence[type]) -> bool:
    """Whether the exception is an instance of one of the classes, as `except` asks."""
    return any(is_subtype(exception.python_type(), cls) for cls in classes)


def caught_classes(tx: TraceContext, wanted: Value) -> list[type]:
    """The classes of an `except`. Raises TypeError in the program where they are none of exceptions."""
    classes = wanted.unpack(tx) if isinstance(wanted, TupleValue) else [wanted]
    if not all(isinstance(cls, ClassValue) and is_subtype(cls.obj, BaseException) for cls in classes):
        tx.raise_exception(TypeError, "catching classes that do not inherit from BaseException is not allowed")
    return [cls.constant() for cls in classes]
