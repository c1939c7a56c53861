"""Python's object protocols over values: operators, comparison, truth, hashing, special methods, folding of constant calls."""

from __future__ import annotations

import collections
import operator
import types
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from treadle_tracer.by_identity import IdentitySet
from treadle_tracer.class_facts import is_subtype, name_in_messages
from treadle_tracer.errors import Unsupported
from treadle_tracer.values import array_methods, floats, numpy_numbers, ragged_lengths, tensor_numbers
from treadle_tracer.values.arrays import ArrayValue
from treadle_tracer.values.backwards_view import BackwardsView
from treadle_tracer.values.base import ConcreteValue, Constant, Method, boolean
from treadle_tracer.values.class_lookup import MISSING, lookup
from treadle_tracer.values.constant_objects import ConstantObject, has_python_method, special_methods_are_built_in
from treadle_tracer.values.constants import is_numpy_scalar, is_numpy_type
from treadle_tracer.values.container_operators import Operation, container_operator
from treadle_tracer.values.deferred_text import DeferredText, is_open_text, joined_text
from treadle_tracer.values.exceptions import interpreter_exception
from treadle_tracer.values.functions import BoundMethod
from treadle_tracer.values.identity import is_identical
from treadle_tracer.values.identity_numbers import IDENTITY_NUMBERS
from treadle_tracer.values.joined import SymbolicBool, is_same
from treadle_tracer.values.made_natives import NativeObject
from treadle_tracer.values.mapping_proxy import MappingProxyValue
from treadle_tracer.values.mappings import DictValue, DictView
from treadle_tracer.values.numpy_numbers import NumpyNumber
from treadle_tracer.values.objects import ObjectValue
from treadle_tracer.values.originals import replaced_method
from treadle_tracer.values.outside_identity import IdentityNumber, OutsideIdentityNumber
from treadle_tracer.values.ragged_lengths import RaggedLength
from treadle_tracer.values.sequences import ListValue, TupleValue, compare_sequences, look_up_items, parts_of_slice
from treadle_tracer.values.sets import SetValue, entries_of
from treadle_tracer.values.stand_ins import is_of_program, result_type
from treadle_tracer.values.symbolic_arithmetic import counted, operator_in_graph
from treadle_tracer.values.symbolic_ranges import SymbolicRange
from treadle_tracer.values.tensor import SymbolicValue, TensorValue
from treadle_tracer.values.text import percent_format
from treadle_tracer.values.value import NotConstant, Raised, Value, call_special
from treadle_tracer.values.varying_text import OpenText, answer
from treadle_tracer.values.weak_references import WeakReference

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext

# ---- exceptions of the traced program


def raise_exception(tx: TraceContext, cls: type[BaseException], *args: Any) -> NoReturn:
    """Raise `cls(*args)` in the traced program."""
    raise_exception_value(tx, cls, [Constant(arg) for arg in args])


def raise_exception_value(tx: TraceContext, cls: type[BaseException], args: list[Value]) -> NoReturn:
    raise Raised(interpreter_exception(cls, args))


# ---- folding


def fold(
    tx: TraceContext,
    function: Callable[..., Any],
    args: list[Value],
    kwargs: dict[str, Value],
    may_warn: bool = False,
) -> Value:
    """Call a pure function of constants now. An exception of the call is one of the traced program. What NumPy's scalars do may warn."""
    for arg in (*args, *kwargs.values()):
        look_up_items(tx, arg)
    if not kwargs and any(isinstance(arg, OpenText) for arg in args):
        found = answer(tx, function, args)
        if found is not None:
            return found
    try:
        plain = [arg.constant() for arg in args]
        named = {name: arg.constant() for name, arg in kwargs.items()}
        for obj, arg in zip((*plain, *named.values()), (*args, *kwargs.values()), strict=True):
            if not special_methods_are_built_in(tx, obj, function):
                raise Unsupported("call", f"{function!r} of {arg.describe()}, whose class has special methods")
    except NotConstant as error:
        if any(isinstance(arg, NumpyNumber) for arg in (*args, *kwargs.values())):
            if not kwargs:
                return numpy_numbers.operate(tx, function, args)
            named = dict(zip(kwargs, numpy_numbers.fix_all(tx, [*kwargs.values()]), strict=True))
            return fold(tx, function, numpy_numbers.fix_all(tx, args), named, may_warn)
        symbolic = [arg for arg in (*args, *kwargs.values()) if isinstance(arg, SymbolicValue)]
        if any(map(floats.is_float, symbolic)) and not kwargs:
            return floats.operate(tx, function, args)
        if symbolic:
            plain = [tx.specialise(arg) if isinstance(arg, SymbolicValue) else arg.constant() for arg in args]
            named = {
                k: tx.specialise(arg) if isinstance(arg, SymbolicValue) else arg.constant() for k, arg in kwargs.items()
            }
        else:
            name = getattr(function, "__qualname__", None) or getattr(function, "__name__", repr(function))
            raise Unsupported("call", f"{name} of {error.value.describe()}") from None
    try:
        may_warn |= any(map(is_numpy_scalar, (*plain, *named.values(), getattr(function, "__self__", None))))
        result = _call_quietly(function, plain, named) if may_warn else function(*plain, **named)
    except Unsupported:
        raise
    except Exception as error:
        tx.raise_real(error)
    return tx.from_constant(result)


def _call_quietly(function: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Call a function that may warn. What it warns of, the program is to see when it runs, and nothing is to be kept of this call."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            return function(*args, **kwargs)
        except Warning as warning:
            raise Unsupported("builtin-call", f"{getattr(function, '__name__', function)} warns: {warning}") from None


# ---- identity


def same_or_equal(tx: TraceContext, a: Value, b: Value) -> bool:
    """Identical or equal: the question of `in`, `list.index` and dict lookup."""
    if isinstance(a, SymbolicValue) and isinstance(b, SymbolicValue) and a.python_type() is b.python_type() is int:
        return compare(tx, "==", a, b).truth(tx)  # one object or not, equal ints count as the same
    return is_same(tx, a, b) or compare(tx, "==", a, b).truth(tx)


# ---- operators

BINARY: dict[str, tuple[Callable[..., Any], str]] = {
    "+": (operator.add, "add"),
    "-": (operator.sub, "sub"),
    "*": (operator.mul, "mul"),
    "/": (operator.truediv, "truediv"),
    "//": (operator.floordiv, "floordiv"),
    "%": (operator.mod, "mod"),
    "**": (operator.pow, "pow"),
    "@": (operator.matmul, "matmul"),
    "&": (operator.and_, "and"),
    "|": (operator.or_, "or"),
    "^": (operator.xor, "xor"),
    "<<": (operator.lshift, "lshift"),
    ">>": (operator.rshift, "rshift"),
}
IN_PLACE: dict[str, Callable[..., Any]] = {
    f"{text}=": getattr(operator, "i" + name) for text, (_, name) in BINARY.items()
}
COMPARE: dict[str, tuple[Callable[..., Any], str, str]] = {
    "<": (operator.lt, "__lt__", "__gt__"),
    "<=": (operator.le, "__le__", "__ge__"),
    "==": (operator.eq, "__eq__", "__eq__"),
    "!=": (operator.ne, "__ne__", "__ne__"),
    ">": (operator.gt, "__gt__", "__lt__"),
    ">=": (operator.ge, "__ge__", "__le__"),
}
REFLECTED = {"<": ">", "<=": ">=", "==": "==", "!=": "!=", ">": "<", ">=": "<="}
UNARY: dict[str, tuple[Callable[..., Any], str]] = {
    "-": (operator.neg, "__neg__"),
    "+": (operator.pos, "__pos__"),
    "~": (operator.invert, "__invert__"),
}
_SYMBOLIC = (TensorValue, SymbolicValue, NumpyNumber)
_ARRAYS = (ArrayValue, BackwardsView)
_GRAPH_OPERANDS = (Constant, TensorValue, SymbolicValue, NumpyNumber)


def binary_op(tx: TraceContext, text: str, a: Value, b: Value) -> Value:
    """`a <text> b`, in place when the text ends in '='."""
    if a.__class__ is Constant and b.__class__ is Constant:
        return fold(tx, BINARY[text][0] if text in BINARY else IN_PLACE[text], [a, b], {})
    if a.__class__ in _ARRAYS or b.__class__ in _ARRAYS:
        return array_methods.binary(tx, text, a, b)
    if a.__class__ is RaggedLength or b.__class__ is RaggedLength:
        return ragged_lengths.operate(tx, BINARY[text.rstrip("=")][0], a, b)
    operation = _operation(text, a, b)
    combined = _combined_text(tx, operation.text, a, b)
    if combined is not None:
        return combined
    _refuse_deferred_text(a, b)
    if _has_plain_result(tx, operation):
        return fold(tx, operation.function, [a, b], {})
    for kind in (
        _replaced_operator,
        _count_of_truths,
        _operator_of_numbers,
        _operator_of_a_class,
        container_operator,
        _operator_of_constants,
    ):
        result = kind(tx, operation)
        if result is not None:
            return result
    return _by_special_methods(tx, operation)


def divmod_of_objects(tx: TraceContext, a: Value, b: Value) -> Value:
    """`divmod(a, b)` of two values of which one at least is an object: no operator, and asked for as one."""
    return _by_special_methods(tx, Operation("divmod()", divmod, ("__divmod__", "__rdivmod__", ""), False, (a, b)))


def _operation(text: str, a: Value, b: Value) -> Operation:
    in_place = text not in BINARY
    plain = text[:-1] if in_place else text
    function, name = BINARY[plain]
    names = (f"__{name}__", f"__r{name}__", f"__i{name}__")
    return Operation(plain, IN_PLACE[text] if in_place else function, names, in_place, (a, b))


def _count_of_truths(tx: TraceContext, operation: Operation) -> Value | None:
    """`count += a > b` of ints that are not known yet: the count varies, and not the path of the program."""
    count, truth = operation.operands
    if not operation.in_place or operation.text != "+" or not isinstance(truth, SymbolicBool):
        return None
    is_symbolic = isinstance(count, SymbolicValue) and count.python_type() is int
    if not is_symbolic and not (count.__class__ is Constant and type(count.constant()) is int):
        return None
    number = counted(tx, truth)
    return None if number is None else binary_op(tx, "+", count, number)


def _operator_of_numbers(tx: TraceContext, operation: Operation) -> Value | None:
    """An operator of which one operand is a tensor, or a number that is not known yet; None for everything else."""
    a, b = operation.operands
    if not _are_graph_operands(a, b):
        return None
    if any(has_python_method(tx, x, operation.names) for x in (a, b)):
        if isinstance(a, SymbolicValue) or isinstance(b, SymbolicValue):
            a, b = (Constant(tx.specialise(x)) if isinstance(x, SymbolicValue) else x for x in (a, b))
            return binary_op(tx, operation.shown, a, b)
        if not isinstance(a, TensorValue):
            return _by_special_methods(tx, operation)
    if isinstance(a, Constant) and isinstance(a.obj, str):
        raise Unsupported("format", b.describe())
    function = operation.function if isinstance(a, TensorValue) else BINARY[operation.text][0]
    if tx.modes.ask and (isinstance(a, TensorValue) or isinstance(b, TensorValue)):
        return tx.call_by_modes(function, lambda given, named: binary_op(tx, operation.shown, *given), [a, b], {})
    if function is operator.pow and isinstance(a, Constant):  # a graph prints `-3 ** x`, which is another number
        function = torch.pow if isinstance(b, TensorValue) else pow
    return operator_in_graph(tx, function, [a, b])


def _operator_of_a_class(tx: TraceContext, operation: Operation) -> Value | None:
    """An operator that the program defines for a constant object, or for a class by its metaclass; None for everything else."""
    is_defined = any(has_python_method(tx, x, operation.names) for x in operation.operands)
    return _by_special_methods(tx, operation) if is_defined else None


def _has_plain_result(tx: TraceContext, operation: Operation) -> bool:
    """Whether one of two constants is of a subclass of a built-in type, and no class of the program says what the operator does."""
    a, b = operation.operands
    are_constants = isinstance(a, Constant) and isinstance(b, Constant)
    if not are_constants or not any(isinstance(x, ConstantObject) for x in (a, b)):
        return False
    return not any(has_python_method(tx, x, operation.names) for x in (a, b))


def _combined_text(tx: TraceContext, text: str, a: Value, b: Value) -> Value | None:
    """`a + b` and `a % b` of strings of which some are not known yet; None for everything else."""
    if text == "%":
        return percent_format(tx, a, b)
    if text == "+" and (is_open_text(a) or is_open_text(b)) and a.python_type() is b.python_type() is str:
        return joined_text(tx, [a, b])
    return None


def _refuse_deferred_text(*operands: Value) -> None:
    for value in operands:
        if isinstance(value, DeferredText):
            raise Unsupported("format", value.describe())


def _by_special_methods(tx: TraceContext, operation: Operation) -> Value:
    """Python's rule for two operands: the method in place, then of the other two the right one's first if its class is a proper subclass
    of the left one's and has its own."""
    (a, b), (forward, backward, _) = operation.operands, operation.names
    left, right = a.python_type(), b.python_type()
    what = f"{operation.shown} of {a.describe()} and {b.describe()}"
    if is_numpy_type(left) or is_numpy_type(right):  # its operators ask the other object what it holds
        raise Unsupported("builtin-method", what)
    order = [(a, forward, b), (b, backward, a)]
    if left is not right and is_subtype(right, left) and lookup(tx, right, backward) is not lookup(tx, left, backward):
        order.reverse()
    if left is right:
        order = order[:1]
    for owner, name, other in (*_in_place_first(tx, operation), *order):
        raw = lookup(tx, owner.python_type(), name)
        if raw is MISSING or not _has_method_of_its_own(tx, owner, name, raw):
            continue
        result = call_special(tx, owner, name, [other])
        if not _is_not_implemented(result):
            return result
    if not is_of_program(tx, operation.names, a, b):
        result_type(tx, operation.function, operation.names, a, b)
        raise Unsupported("builtin-method", what)
    if any(_may_answer_last(tx, owner.python_type(), name) for owner, name, _ in order):
        raise Unsupported("builtin-method", f"{what}: a built-in type is asked last")
    names = f"{name_in_messages(left)!r} and {name_in_messages(right)!r}"
    shown = {"**": "** or pow()"}.get(operation.shown, operation.shown)
    raise_exception(tx, TypeError, f"unsupported operand type(s) for {shown}: {names}")


def _in_place_first(tx: TraceContext, operation: Operation) -> list[tuple[Value, str, Value]]:
    """What is asked before all else of an operator in place. PyTorch's own of a tensor is a call of the graph."""
    a, b = operation.operands
    is_asked = operation.in_place and (not isinstance(a, TensorValue) or _is_replaced(tx, operation))
    return [(a, operation.names[2], b)] if is_asked else []


def _has_method_of_its_own(tx: TraceContext, owner: Value, name: str, raw: Any) -> bool:
    """Whether a special method is called as such: those of built-in containers are `container_operator`'s."""
    if isinstance(owner, ObjectValue):
        return owner.container is None or isinstance(raw, types.FunctionType)
    return isinstance(owner, TensorValue | ConstantObject | NativeObject) or has_python_method(tx, owner, (name,))


def _may_answer_last(tx: TraceContext, cls: type, name: str) -> bool:
    """Whether a built-in type has the operator for what is not a number, or as a sequence, which is asked last."""
    raw = lookup(tx, cls, name)
    is_asked = raw is not MISSING and not isinstance(raw, types.FunctionType) and cls not in _NUMBERS
    return is_asked or is_numpy_type(cls) or any(is_subtype(cls, base) for base in _CONCATENATED)


_NUMBERS = IdentitySet((bool, int, float, complex, types.NoneType))
_CONCATENATED = (list, tuple, str, bytes, bytearray, collections.deque)  # abstract.c, PyNumber_Add: asked after numbers


def _is_not_implemented(value: Value) -> bool:
    return isinstance(value, Constant) and value.obj is NotImplemented


def _operator_of_constants(tx: TraceContext, operation: Operation) -> Value | None:
    """`"%s" % (1,)`, `int | None` and other operators of classes; None for everything else."""
    a, b = operation.operands
    if operation.text == "%" and isinstance(a, Constant):
        return fold(tx, operation.function, [a, b], {})
    if isinstance(a, ConcreteValue) and isinstance(b, ConcreteValue):
        return fold(tx, operation.function, [a, b], {})
    return None


def _replaced_operator(tx: TraceContext, operation: Operation) -> Value | None:
    """An operator of a tensor whose class has a method in place of PyTorch's own; None: there is none."""
    return _by_special_methods(tx, operation) if _is_replaced(tx, operation) else None


def _is_replaced(tx: TraceContext, operation: Operation) -> bool:
    names = operation.names if operation.in_place else operation.names[:2]
    tensors = [x for x in operation.operands if isinstance(x, TensorValue)]
    return any(replaced_method(tx, x.python_type(), name) is not None for x in tensors for name in names)


def _are_graph_operands(a: Value, b: Value) -> bool:
    """Whether an operator of these is one of numbers and tensors: not of two constants."""
    both = isinstance(a, _GRAPH_OPERANDS) and isinstance(b, _GRAPH_OPERANDS)
    return both and not (isinstance(a, Constant) and isinstance(b, Constant) and ConstantObject in (type(a), type(b)))


def unary_op(tx: TraceContext, text: str, a: Value) -> Value:
    function, name = UNARY[text]
    if isinstance(a, _ARRAYS):
        return array_methods.unary(tx, text, a)
    if isinstance(a, Constant):
        return fold(tx, function, [a], {})
    if isinstance(a, TensorValue) and replaced_method(tx, a.python_type(), name) is not None:
        return call_special(tx, a, name, [])
    if text == "~" and isinstance(a, SymbolicValue) and a.python_type() is int:
        return binary_op(tx, "-", operator_in_graph(tx, operator.neg, [a]), Constant(1))  # a SymInt has no operator `~`
    if isinstance(a, (TensorValue, SymbolicValue, NumpyNumber)):
        return operator_in_graph(tx, function, [a])
    return call_special(tx, a, name, [])


def not_(tx: TraceContext, a: Value) -> Value:
    found = tensor_numbers.truth_value(tx, a)
    if isinstance(found, SymbolicValue):
        return operator_in_graph(tx, torch.sym_not, [found])
    return a.negated() if isinstance(a, SymbolicBool) else boolean(not a.truth(tx))


def compare(tx: TraceContext, text: str, a: Value, b: Value) -> Value:
    """`a <text> b` for the six comparisons."""
    function, forward, backward = COMPARE[text]
    a, b = (x.fixed(tx) if isinstance(x, SymbolicRange) else x for x in (a, b))
    if isinstance(a, _ARRAYS) or isinstance(b, _ARRAYS):
        return array_methods.binary(tx, text, a, b)
    if isinstance(a, RaggedLength) or isinstance(b, RaggedLength):
        return ragged_lengths.operate(tx, function, a, b)
    if has_python_method(tx, a, (forward, "__eq__")) or has_python_method(tx, b, (backward, "__eq__")):
        return _compare_objects(tx, text, a, b, forward, backward)
    if isinstance(a, ConcreteValue) and isinstance(b, ConcreteValue):
        if isinstance(a, OutsideIdentityNumber) and isinstance(b, OutsideIdentityNumber) and text in ("==", "!="):
            return boolean(_plainly_equal(tx, a, b) == (text == "=="))
        return fold(tx, function, [a, b], {})
    if isinstance(a, NativeObject) or isinstance(b, NativeObject):
        found = _compare_natives(tx, a, b, forward, backward)
        if found is not None:
            return found
    _refuse_deferred_text(a, b)
    if text not in ("==", "!=") and (isinstance(a, MappingProxyValue) or isinstance(b, MappingProxyValue)):
        raise Unsupported("builtin-method", f"{a.describe()} {text} {b.describe()}")
    for owner, name, other in ((a, forward, b), (b, backward, a)):
        if isinstance(owner, TensorValue) and replaced_method(tx, owner.python_type(), name) is not None:
            result = call_special(tx, owner, name, [other])
            if not _is_not_implemented(result):
                return result
    if isinstance(a, _SYMBOLIC) or isinstance(b, _SYMBOLIC):
        if isinstance(a, _GRAPH_OPERANDS) and isinstance(b, _GRAPH_OPERANDS):
            return _compare_in_graph(tx, text, function, a, b)
    if any(is_numpy_type(x.python_type()) for x in (a, b)):  # its operators ask the other object what it holds
        raise Unsupported("builtin-method", f"{a.describe()} {text} {b.describe()}")
    is_instance = isinstance(a, ObjectValue) or isinstance(b, ObjectValue)
    if not is_instance or not is_of_program(tx, (forward, backward, "__eq__"), a, b):
        found = _compare_contents(tx, text, a, b)
        if found is not None:
            return found
    if is_instance:
        return _compare_objects(tx, text, a, b, forward, backward)
    if text in ("==", "!="):
        return boolean(_plainly_equal(tx, a, b) == (text == "=="))
    result_type(tx, function, (forward, backward), a, b)
    raise Unsupported("builtin-method", f"{a.describe()} {text} {b.describe()}")


def _compare_natives(tx: TraceContext, a: Value, b: Value, forward: str, backward: str) -> Value | None:
    """Comparison of objects that compare by what they hold; None where they do so by identity."""
    for owner, name, other in ((a, forward, b), (b, backward, a)):
        if isinstance(owner, NativeObject) and owner.compares:
            result = owner.builtin_method(tx, name, [other], {})
            if _is_not_implemented(result):
                raise Unsupported("builtin-method", f"{name} of {a.describe()} and {b.describe()}")
            return result
    return None


def _compare_contents(tx: TraceContext, text: str, a: Value, b: Value) -> Value | None:
    """Comparison of two built-in containers of one kind, or instances of their subclasses; None where their types do not compare."""
    if (
        a.python_type() is b.python_type() is slice
    ):  # as tuples of their parts (Objects/sliceobject.c, slice_richcompare)
        return compare_sequences(tx, text, parts_of_slice(a), parts_of_slice(b))
    left, right = (x.container if isinstance(x, ObjectValue) and x.container is not None else x for x in (a, b))
    both_lists = isinstance(left, ListValue) and isinstance(right, ListValue) and left.cls is right.cls
    if both_lists or (isinstance(left, TupleValue) and isinstance(right, TupleValue)):
        cls, other = a.python_type(), b.python_type()
        if other is not cls and is_subtype(other, cls):  # the right operand is asked first
            text, left, right = REFLECTED[text], right, left
        return compare_sequences(tx, text, left, right)  # type: ignore[arg-type]
    if all(isinstance(x, SetValue) or (isinstance(x, DictView) and x.kind != "values") for x in (left, right)):
        return boolean(COMPARE[text][0](entries_of(tx, left).keys(), entries_of(tx, right).keys()))
    if text in ("==", "!=") and not isinstance(left, ObjectValue) and not isinstance(right, ObjectValue):
        mine, others = left.as_dict(tx), right.as_dict(tx)
        if mine is not None and others is not None:
            return boolean(_dicts_equal(tx, mine, others) == (text == "=="))
    return None


def _plainly_equal(tx: TraceContext, a: Value, b: Value) -> bool:
    if isinstance(a, IDENTITY_NUMBERS) and isinstance(b, IDENTITY_NUMBERS):
        return is_identical(tx, a.target, b.target)
    for number in (a, b):
        if isinstance(number, IdentityNumber) and number.is_of_constant and a.python_type() is b.python_type():
            number.refuse()  # the other one may have been kept from an earlier call
    if isinstance(a, BoundMethod) and isinstance(b, BoundMethod):
        return is_same(tx, a.instance, b.instance) and same_or_equal(tx, a.function, b.function)
    if isinstance(a, Method) and isinstance(b, Method):
        return is_same(tx, a.owner, b.owner) and a.name == b.name
    if isinstance(a, WeakReference) and isinstance(b, WeakReference):
        # They compare as their objects, if these are alive.
        return same_or_equal(tx, a.call(tx, [], {}), b.call(tx, [], {}))
    return is_same(tx, a, b)


def _compare_in_graph(tx: TraceContext, text: str, function: Callable[..., Any], a: Value, b: Value) -> Value:
    """Comparison with a tensor; `tensor == "text"` and `tensor == None` are plain identity comparisons."""
    for one in (a, b):
        if (
            isinstance(one, Constant)
            and not isinstance(one.obj, (int, float, complex))
            and not is_numpy_scalar(one.obj)
        ):
            if text in ("==", "!="):
                return boolean(text == "!=")
    for one, other in ((a, b), (b, a)):
        # Tensors do not know a SymBool.
        if isinstance(one, SymbolicValue) and one.python_type() is bool and isinstance(other, TensorValue):
            raise Unsupported("graph-argument", f"{a.describe()} {text} {b.describe()}")
    return operator_in_graph(tx, function, [a, b])


def _dicts_equal(tx: TraceContext, a: DictValue, b: DictValue) -> bool:
    if a.length(tx) != b.length(tx):
        return False
    if is_subtype(a.cls, collections.OrderedDict) and is_subtype(b.cls, collections.OrderedDict):
        if not all(same_or_equal(tx, x, y) for x, y in zip(a.key_values(tx), b.key_values(tx), strict=True)):
            return False
    others = {key.hash_key(tx): value for key, value in b.items(tx)}
    for key, value in a.items(tx):
        hashed = key.hash_key(tx)
        if hashed not in others or not same_or_equal(tx, value, others[hashed]):
            return False
    return True


def _compare_objects(tx: TraceContext, text: str, a: Value, b: Value, forward: str, backward: str) -> Value:
    left, right = a.python_type(), b.python_type()
    order = [(a, forward, b, text), (b, backward, a, REFLECTED[text])]
    if left is not right and is_subtype(right, left):
        order.reverse()
    for owner, name, other, asked in order:
        if not isinstance(owner, ObjectValue | ConstantObject) and not has_python_method(tx, owner, (name, "__eq__")):
            continue
        raw = lookup(tx, owner.python_type(), name)
        if isinstance(owner, ObjectValue) and owner.container is not None and not isinstance(raw, types.FunctionType):
            found = _compare_contents(tx, asked, owner, other)
            if found is not None:
                return found
            continue
        if raw is object.__ne__ and text == "!=":
            result = call_special(tx, owner, "__eq__", [other])
            if not _is_not_implemented(result):
                return boolean(not result.truth(tx))
            continue
        result = call_special(tx, owner, name, [other])
        if not _is_not_implemented(result):
            return result
    if text in ("==", "!="):
        return boolean(is_same(tx, a, b) == (text == "=="))
    if not is_of_program(tx, (forward, backward), a, b):
        result_type(tx, COMPARE[text][0], (forward, backward), a, b)
        raise Unsupported("builtin-method", f"{a.describe()} {text} {b.describe()}")
    names = f"{name_in_messages(left)!r} and {name_in_messages(right)!r}"
    raise_exception(tx, TypeError, f"{text!r} not supported between instances of {names}")
