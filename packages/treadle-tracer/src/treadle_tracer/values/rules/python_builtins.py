"""Rules of built-in functions and of the standard library's functions on types, attributes, iteration and inspection."""

from __future__ import annotations

import _thread
import builtins
import collections
import functools
import itertools
import math
import os
import sys
import types
import typing
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from treadle_tracer.by_identity import IdentityDict, is_one_of
from treadle_tracer.bytecode.opcodes import MINOR
from treadle_tracer.class_facts import is_subtype
from treadle_tracer.errors import PathEnds, Unsupported
from treadle_tracer.guard_callables import GuardCallable
from treadle_tracer.source import ConstSource
from treadle_tracer.values import int64
from treadle_tracer.values.base import FALSE, NONE, ConcreteValue, Constant, boolean, is_none
from treadle_tracer.values.class_lookup import MISSING, lookup
from treadle_tracer.values.constants import is_trusted_function
from treadle_tracer.values.generators import GeneratorValue
from treadle_tracer.values.grouping_iterators import CallIterator
from treadle_tracer.values.identity_numbers import identity_number
from treadle_tracer.values.iteration import IteratorValue
from treadle_tracer.values.itertools_iterators import chain_from_iterable
from treadle_tracer.values.keys import hash_result
from treadle_tracer.values.locks import new_lock
from treadle_tracer.values.mappings import dict_of
from treadle_tracer.values.module_attributes import loaded_module
from treadle_tracer.values.objects import ObjectValue
from treadle_tracer.values.rules.rule import Apply, Args, Effect, Kwargs, Rule, folds
from treadle_tracer.values.sequences import ListValue, TupleValue, sorted_values
from treadle_tracer.values.sets import SetValue
from treadle_tracer.values.symbolic_arithmetic import operator_in_graph
from treadle_tracer.values.teed_iterators import tee
from treadle_tracer.values.tensor import SymbolicValue, TensorValue, length_of
from treadle_tracer.values.tensor_numbers import truth_value
from treadle_tracer.values.tracebacks import RunTimeTraceback
from treadle_tracer.values.twins import Twins
from treadle_tracer.values.unbacked import is_unbacked
from treadle_tracer.values.value import Raised, Value, call_special
from treadle_tracer.weakly import reference_to, referent

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext

# ---- types and attributes


def _classes(tx: TraceContext, value: Value) -> tuple[Any, ...]:
    """The second argument of isinstance, flattened."""
    if isinstance(value, TupleValue):
        return tuple(cls for item in value.unpack(tx) for cls in _classes(tx, item))
    plain = value.constant()
    if type(plain) is types.UnionType:
        return plain.__args__
    return (plain,)


_TENSOR_CLASSES: IdentityDict[type, Callable[[type], bool]] = IdentityDict(
    {torch.Tensor: lambda cls: True, torch.nn.Parameter: lambda cls: issubclass(cls, torch.nn.Parameter)}
)


def _isinstance(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    value, classes = args
    return boolean(any(_is_instance_of(tx, value, cls) for cls in _classes(tx, classes)))


def _is_instance_of(tx: TraceContext, value: Value, cls: Any) -> bool:
    own = value.python_type()
    if isinstance(value, TensorValue):
        return _tensor_isinstance(tx, value, own, cls)
    if lookup(tx, own, "__class__") is not object.__dict__["__class__"] and own is not object:
        raise Unsupported("call", f"isinstance of {value.describe()}, which says what its class is")
    answer = class_is_below(tx, own, cls, "__instancecheck__", value)
    if not answer and isinstance(lookup(tx, own, "__getattribute__"), types.FunctionType):
        raise Unsupported("call", f"isinstance of {value.describe()}, which is asked for its class")
    return answer


def _tensor_isinstance(tx: TraceContext, value: TensorValue, own: type, cls: Any) -> bool:
    if (is_of := _TENSOR_CLASSES.get(cls)) is not None:
        return is_of(own)
    if type(cls).__name__ == "tensortype":  # torch.FloatTensor and its like
        return value.fake.type() == f"{cls.__module__}.{cls.__name__}"
    if type(cls) is type(torch.nn.Parameter) and value.obj is not None:
        return isinstance(value.obj, cls)
    if cls is torch.nn.Buffer:  # its metaclass asks for an attribute
        return _getattr(tx, [value, Constant("_is_buffer"), FALSE], {}).truth(tx)
    return class_is_below(tx, own, cls, "__instancecheck__", value)


def _issubclass(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    own = args[0].constant()
    if not isinstance(own, type):
        return tx.fold(issubclass, [args[0], Constant(_classes(tx, args[1]))], {})
    return boolean(any(class_is_below(tx, own, c, "__subclasscheck__", args[0]) for c in _classes(tx, args[1])))


def _refusal_of_isinstance(cls: Any) -> TypeError | None:
    """What `isinstance` raises for a second argument that is no class. It names the function, which may be another one here."""
    try:
        isinstance(None, cls)
    except TypeError as error:
        return error
    return None


def class_is_below(tx: TraceContext, own: type, cls: Any, method: str, value: Value) -> bool:
    """`isinstance` of a value of class `own`, or `issubclass` of `own`: by the special method of the metaclass of `cls`.

    The standard library's metaclasses (of abstract classes and protocols) ask for registrations and attributes: their answer is guarded.
    """
    check = lookup(tx, type(cls), method)
    if check is type.__dict__[method] or (method == "__instancecheck__" and own is cls):
        tx.guards.add_mro(own)
        return is_subtype(own, cls)
    if isinstance(check, types.FunctionType) and not is_trusted_function(check):
        return tx.inline(tx.wrap_known(check), [tx.wrap_known(cls), value], {}).truth(tx)
    obj = getattr(value, "obj", None)
    by_instance = method == "__instancecheck__" and obj is not None and value.source is not None
    function, subject = (isinstance, obj) if by_instance else (issubclass, own)
    try:
        answer = function(subject, cls)  # type: ignore[arg-type]
    except TypeError as error:
        tx.raise_real(_refusal_of_isinstance(cls) or error if method == "__instancecheck__" else error)
    except NameError as error:  # a method of a class made in the trace reads a variable of the frame
        raise Unsupported("class-definition", str(error)) from None
    source = value.source if by_instance else ConstSource(own)
    assert source is not None
    text = f"{function.__name__}({source.text}, {getattr(cls, '__name__', cls)}) is {answer}"
    tx.guards.add(source, "call", _Answer(function, cls, answer), text)
    return answer


class _Answer(GuardCallable):
    """`function(value, cls)` gives the recorded answer."""

    __slots__ = ("answer",)

    def __init__(self, function: Any, cls: Any, answer: bool):
        super().__init__((function, reference_to(cls)))
        self.answer = answer

    def __call__(self, value: Any) -> bool:
        function, reference = self.question
        cls = referent(reference)
        return cls is not None and function(value, cls) is self.answer


def _attribute_name(tx: TraceContext, args: Args) -> str:
    """The name that `getattr` and its like are given. What else they are given, Python refuses in its own words."""
    name = args[1].constant()
    if type(name) is not str:
        raise Unsupported("raises", f"an attribute name of type {type(name).__name__}")
    return name


def _getattr(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    owner, name = args[0], _attribute_name(tx, args)
    if len(args) < 3:
        return owner.get_attr(tx, name)
    try:
        return owner.get_attr(tx, name)
    except Raised as raised:
        if issubclass(raised.value.python_type(), AttributeError):
            return args[2]
        raise


def _hasattr(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    try:
        args[0].get_attr(tx, _attribute_name(tx, args))
    except Raised as raised:
        if issubclass(raised.value.python_type(), AttributeError):
            return boolean(False)
        raise
    return boolean(True)


def _setattr(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    args[0].set_attr(tx, _attribute_name(tx, args), args[2])
    return NONE


def _delattr(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    args[0].del_attr(tx, _attribute_name(tx, args))
    return NONE


def callable_value(tx: TraceContext, value: Value) -> bool:
    """`callable(value)`"""
    if isinstance(value, ConcreteValue):
        return callable(value.obj)
    return lookup(tx, value.python_type(), "__call__") is not MISSING


def _callable(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    return boolean(callable_value(tx, args[0]))


def _vars(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    if not args:
        return _locals(tx, args, kwargs)
    try:
        return args[0].get_attr(tx, "__dict__")
    except Raised as raised:
        if not is_subtype(raised.value.python_type(), AttributeError):
            raise
        return tx.raise_exception(TypeError, "vars() argument must have __dict__ attribute")


def _frame_dependent(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    raise Unsupported("call", "a function that looks at the frame or the outside world")


def _locals(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    frame = tx.frames[-1]
    if frame.namespace is not None:
        return frame.namespace
    bound = frame.named_locals()
    if MINOR >= 13 or frame.locals_dict is None:  # PEP 667: a new dict at every call
        frame.locals_dict = dict_of(bound)
        return frame.locals_dict
    for name in frame.local_names:
        key, known = Constant(name), frame.locals_dict
        if name in bound:
            known.set_item(tx, key, bound[name])
        elif known.contains(tx, key):
            known.del_item(tx, key)
    return frame.locals_dict


def _exc_info(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    if tx.exception is None:
        tx.guard_no_exception()
        return TupleValue((NONE, NONE, NONE))
    cls = tx.wrap_known(tx.exception.python_type())
    return TupleValue((cls, tx.exception, RunTimeTraceback(tx.frames[0].at)))


def _exception(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    if tx.exception is None:
        tx.guard_no_exception()
        return NONE
    return tx.exception


def _id(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    return identity_number(tx, args[0])


def _count_elements(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    return tx.inline(tx.wrap_known(_count), args, kwargs)


def _count(mapping: Any, iterable: Any) -> None:
    """What `collections.Counter` does in C."""
    for item in iterable:
        mapping[item] = mapping.get(item, 0) + 1


def _hash(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    if isinstance(args[0], ObjectValue) and isinstance(lookup(tx, args[0].cls, "__hash__"), types.FunctionType):
        return Constant(hash_result(tx, call_special(tx, args[0], "__hash__", [])))
    _read(tx, args[0])
    if not args[0].is_constant() and isinstance(args[0], (TupleValue, SetValue, SymbolicValue)):
        return Constant(hash(Twins(tx, "hash", "").of(args[0])))
    if not args[0].is_constant():
        raise Unsupported("hash", args[0].describe())
    return tx.fold(hash, args, kwargs)


def _read(tx: TraceContext, value: Value) -> None:
    """Look at the items of a tuple from outside, and at theirs."""
    if isinstance(value, TupleValue):
        for item in value.unpack(tx):
            _read(tx, item)


def _fspath(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    """`os.fspath(path)`"""
    path = args[0] if args else kwargs["path"]
    if is_subtype(path.python_type(), str) or is_subtype(path.python_type(), bytes):
        return path
    if lookup(tx, path.python_type(), "__fspath__") is MISSING:
        name = path.python_type().__name__
        tx.raise_exception(TypeError, f"expected str, bytes or os.PathLike object, not {name}")
    found = call_special(tx, path, "__fspath__", [])
    if not is_one_of(found.python_type(), (str, bytes)):
        raise Unsupported("builtin-call", "os.fspath of an object whose __fspath__ gives no plain string")
    return found


# ---- iteration


def _len(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    return length_of(tx, args[0])


def _iter(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    if len(args) == 2:
        if not callable_value(tx, args[0]):
            tx.raise_exception(TypeError, "iter(v, w): v must be callable")
        return CallIterator(*args)
    return args[0].iterate(tx)


def _next(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    iterator = args[0]
    if len(args) == 1:
        if isinstance(iterator, IteratorValue):
            return iterator.builtin_method(tx, "__next__", [], {})
        return call_special(tx, iterator, "__next__", [])
    item = iterator.next(tx)
    return args[1] if item is None else item


def _any(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    return _first_decisive(tx, args[0], True)


def _all(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    return _first_decisive(tx, args[0], False)


def _first_decisive(tx: TraceContext, iterable: Value, decisive: bool) -> Value:
    """`decisive` if an item has this truth.

    One item may have a truth that is known only at run time. It is the answer then, unless another item decides. The items behind it are
    looked at as well, which must have no effects. Nobody else may have the iterator, to go on where Python stops.
    """
    iterator = iterable.iterate(tx)
    if isinstance(iterator, GeneratorValue):
        is_own = iterator.is_temporary(tx)
    else:
        is_own = is_one_of(iterable.python_type(), (list, tuple))
    while (item := iterator.next(tx)) is not None:
        number = truth_value(tx, item) if is_own and tx.symbols.guesses else None
        if number is not None and is_unbacked(tx, number):
            return boolean(decisive) if _decides(tx, iterator, decisive) else number
        if item.truth(tx) is decisive:
            return boolean(decisive)
    return boolean(not decisive)


def _decides(tx: TraceContext, iterator: Value, decisive: bool) -> bool:
    """Whether one of the items left has this truth. Python may not get to them."""
    try:
        with tx.mutations.freezing():
            while (item := iterator.next(tx)) is not None:
                if item.truth(tx) is decisive:
                    return True
    except (PathEnds, Raised):
        raise Unsupported("unbacked-decision", "items behind one whose truth is known only at run time") from None
    return False


_NOT_SUMMED: IdentityDict[type, str] = IdentityDict(
    {
        str: "strings [use ''.join(seq)",
        bytes: "bytes [use b''.join(seq)",
        bytearray: "bytearray [use b''.join(seq)",
    }
)
"""What `sum` says of a start that it refuses (bltinmodule.c, builtin_sum_impl)."""


def _sum(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    total = kwargs.get("start", args[1] if len(args) > 1 else Constant(0))
    if total.python_type() in _NOT_SUMMED:
        tx.raise_exception(TypeError, f"sum() can't sum {_NOT_SUMMED[total.python_type()]} instead]")
    items = args[0].unpack(tx)
    ints = _count_first(total, items)
    total = _added(tx, total, items[:ints])
    floats = 0
    if MINOR >= 12 and total.python_type() is float:
        floats = sum(
            1 for _ in itertools.takewhile(lambda item: is_one_of(item.python_type(), (int, bool, float)), items[ints:])
        )
        total = _corrected_sum(tx, total, items[ints : ints + floats])
    return _added(tx, total, items[ints + floats :])


def _count_first(total: Value, items: list[Value]) -> int:
    """How many items `sum` adds to an int before it looks whether the total is a float: ints of 64 bits, and the item behind them."""
    if total.python_type() is not int:
        return 0
    known = total.constant() if total.is_constant() else 0
    for count, item in enumerate(items):
        if not -int64.LARGEST - 1 <= known <= int64.LARGEST:
            return count
        if not is_one_of(item.python_type(), (int, bool)):
            return count + 1
        known += item.constant() if item.is_constant() else 0
    return len(items)


def _added(tx: TraceContext, total: Value, items: list[Value]) -> Value:
    for item in items:
        total = tx.binary_op("+", total, item)
    return total


def _corrected_sum(tx: TraceContext, total: Value, items: list[Value]) -> Value:
    """`sum` behind its first float, in 3.12 and later (bltinmodule.c, builtin_sum_impl): it carries the rounding errors of adding floats
    along. One addition needs no correction."""
    if len(items) < 2 or not any(item.python_type() is float for item in items):
        return _added(tx, total, items)
    if not all(value.is_constant() for value in (total, *items)):
        raise Unsupported("call", "sum() of floats that are known only when it is called")
    return tx.from_constant(sum([item.constant() for item in items], total.constant()))


def _prod(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    total = kwargs.get("start", Constant(1))
    for item in args[0].unpack(tx):
        total = tx.binary_op("*", total, item)
    return total


def _is_number(item: Value) -> bool:
    return isinstance(item, SymbolicValue) or item.python_type() in (int, bool, float)


def _symbolic_extreme(tx: TraceContext, text: str, items: list[Value]) -> Value:
    """The greatest (">") or least of numbers, some of them symbolic."""
    if any(item.python_type() is float for item in items):
        return _extreme_of_floats(tx, text, items)
    function = torch.sym_max if text == ">" else torch.sym_min
    best = items[0]
    for item in items[1:]:
        best = operator_in_graph(tx, function, [best, item])
    return best


def _extreme_of_floats(tx: TraceContext, text: str, items: list[Value]) -> Value:
    """Python's min and max: the first among equals, which 0.0 and -0.0 are; nan is neither less nor greater."""
    best = items[0]
    for item in items[1:]:
        if best.python_type() is float and item.python_type() is float:
            best = operator_in_graph(tx, max if text == ">" else min, [best, item])
        elif tx.compare(text, item, best).truth(tx):
            best = item
    return best


def _extreme(text: str) -> Apply:
    def run(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
        items = args[0].unpack(tx) if len(args) == 1 else args
        key = kwargs.get("key", NONE)
        keyed = not is_none(key)
        if not items:
            if "default" in kwargs:
                return kwargs["default"]
            tx.raise_exception(ValueError, f"{'max' if text == '>' else 'min'}() {_NOTHING_TO_COMPARE}")
        is_symbolic = any(isinstance(item, SymbolicValue) for item in items)
        if is_symbolic and not keyed and all(map(_is_number, items)):
            return _symbolic_extreme(tx, text, items)
        best = items[0]
        best_key = key.call(tx, [best], {}) if keyed else best
        for item in items[1:]:
            item_key = key.call(tx, [item], {}) if keyed else item
            if tx.compare(text, item_key, best_key).truth(tx):
                best, best_key = item, item_key
        return best

    return run


def _sorted(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    in_any_order = isinstance(args[0], SetValue) and "key" not in kwargs and _has_one_sorting(args[0])
    items = list(args[0].entries.values()) if in_any_order else args[0].unpack(tx)
    return ListValue(sorted_values(tx, items, kwargs.get("key", NONE), kwargs.get("reverse", NONE)))


def _has_one_sorting(items: SetValue) -> bool:
    """Whether the items are in one order when they are sorted, whatever the order was before: not so with NaN, or for sets."""
    kinds = {item.python_type() for item in items.entries.values()}
    return any(kinds <= alike for alike in ({str}, {bytes}, {bool, int}))


def _reduce(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    items = args[1].unpack(tx)
    if len(args) > 2:
        items.insert(0, args[2])
    if not items:
        tx.raise_exception(TypeError, "reduce() of empty iterable with no initial value")
    total = items[0]
    for item in items[1:]:
        total = args[0].call(tx, [total, item], {})
    return total


# ---- classes, copies, typing


def _identity(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    return args[-1]


_NOTHING_TO_COMPARE = "iterable argument is empty" if MINOR >= 12 else "arg is an empty sequence"


def _import(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    name = args[0].constant() if args else ""
    if kwargs or not args or name not in sys.modules or (len(args) > 4 and args[4].constant()):
        raise Unsupported("import", name)
    return loaded_module(tx, name if len(args) > 3 and args[3].length(tx) else name.partition(".")[0])


RULES = (
    Rule(isinstance, _isinstance, Effect.NONE),
    Rule(issubclass, _issubclass, Effect.NONE),
    Rule(getattr, _getattr, Effect.NONE),
    Rule(hasattr, _hasattr, Effect.NONE),
    Rule(setattr, _setattr, Effect.WRITES_ARGUMENTS),
    Rule(delattr, _delattr, Effect.WRITES_ARGUMENTS),
    Rule(callable, _callable, Effect.NONE),
    Rule(vars, _vars),
    *[
        Rule(function, _frame_dependent, Effect.BREAKS)
        for function in (
            input,
            breakpoint,
            open,
        )
    ],
    Rule(locals, _locals, Effect.READS_STATE),
    Rule(sys.exc_info, _exc_info, Effect.READS_STATE),
    Rule(sys.exception, _exception, Effect.READS_STATE),
    Rule(id, _id, Effect.READS_STATE),
    Rule(collections._count_elements, _count_elements),  # type: ignore[attr-defined]
    Rule(hash, _hash),
    Rule(os.fspath, _fspath),
    Rule(len, _len, Effect.NONE),
    Rule(iter, _iter),
    Rule(next, _next, Effect.WRITES_ARGUMENTS),
    Rule(any, _any),
    Rule(all, _all),
    Rule(sum, _sum),
    Rule(math.prod, _prod),
    Rule(max, _extreme(">")),
    Rule(min, _extreme("<")),
    Rule(sorted, _sorted),
    Rule(functools.reduce, _reduce),
    Rule(itertools.chain.from_iterable, chain_from_iterable),
    Rule(itertools.tee, tee),
    Rule(_thread.allocate_lock, new_lock),
    Rule(typing.cast, _identity, Effect.NONE),
    Rule(typing.NewType.__call__, _identity, Effect.NONE),  # which is called without the type
    *map(folds, (typing.get_origin, typing.get_args)),
    *map(folds, (chr, ord, bin, hex, oct, sys.intern)),
    Rule(builtins.__import__, _import, Effect.READS_STATE),
)
