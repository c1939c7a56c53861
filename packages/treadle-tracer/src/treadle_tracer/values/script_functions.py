"""Functions compiled by `torch.jit.script`: the trace takes the Python function of which TorchScript has made them.

    @torch.jit.script
    def gate(a, b):
        return torch.tanh(a) * torch.sigmoid(b)      ==>      tanh, sigmoid and mul in the graph

TorchScript is not Python everywhere. It has read global names when it compiled, copies lists and dicts, and answers `is_scripting()` with
True. An int given for a parameter declared as a float becomes that float, a list given for a tuple becomes that tuple.
Where a call could differ otherwise, the graph breaks, and TorchScript runs it.
"""

from __future__ import annotations

import dis
import types
from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch

from treadle_tracer.class_facts import is_subtype
from treadle_tracer.errors import Unsupported
from treadle_tracer.source import ConstSource
from treadle_tracer.values.sequences import ListValue, TupleValue

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext, Value

_ASKS = frozenset({"is_scripting", "is_tracing", "_isinstance", "annotate", "ignore", "unused"})
# What a class defines that no function of TorchScript comes to ask for.
_UNASKED = frozenset(
    "__module__ __qualname__ __doc__ __dict__ __weakref__ __annotations__ __new__ __init__ __repr__ __reduce__ __reduce_ex__ "
    "__setstate__ __deepcopy__ __torch_function__".split()
)
_TYPES = {
    "TensorType": (torch.Tensor, torch.nn.Parameter),
    "IntType": (int,),
    "FloatType": (float,),
    "BoolType": (bool,),
    "StringType": (str,),
    "NoneType": (type(None),),
}


def call_script_function(
    tx: TraceContext, script: Value, obj: torch.jit.ScriptFunction, args: list[Value], kwargs: dict[str, Value]
) -> Value:
    """Trace the Python function of a script function. Breaks the graph where it could give something else."""
    function = vars(obj).get("_torchdynamo_inline")  # what torch.compile traces
    reason = _why_not_as_python(obj, function)
    if reason is not None:
        raise Unsupported("script-function", reason)
    assert function is not None
    args, kwargs = _as_taken(tx, obj, function, args, kwargs)
    if script.source is not None and not isinstance(script.source, ConstSource):
        tx.guards.add(script.source, "is", obj)
    return tx.wrap_known(function).call(tx, args, kwargs)


def _why_not_as_python(obj: torch.jit.ScriptFunction, function: Any) -> str | None:
    """Why a script function may not do what its Python function does. None: it does."""
    if not isinstance(function, types.FunctionType):
        return "it was not made of a Python function"
    scripted = torch.jit._state._try_get_jit_cached_function(function)
    if scripted is None or scripted.qualified_name != obj.qualified_name:
        return f"{function.__qualname__} was traced by torch.jit, not scripted"
    if not all(_is_kept(result.type) for result in obj.schema.returns):
        return f"{function.__qualname__} returns what TorchScript may convert"
    codes = list(_codes(function.__code__))
    for name in sorted(_ASKS.intersection(chain.from_iterable(code.co_names for code in codes))):
        return f"{function.__qualname__} calls {name}"
    read = chain.from_iterable(map(_global_names, codes))
    given = {name: function.__globals__[name] for name in read if name in function.__globals__}
    given.update(_cells(function))
    for name, value in sorted(given.items()):
        if not _is_fixed(value):
            return f"{function.__qualname__} reads {name}, which TorchScript has read when it compiled"
    return None


def _is_kept(returned: Any) -> bool:
    """Whether a result of this type is what the function returns: no int that becomes a float, no list that is copied."""
    kind = returned.kind()
    if kind == "TupleType":
        return all(map(_is_kept, returned.elements()))
    return kind in ("TensorType", "IntType", "BoolType", "NoneType")


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """The code of a function and of functions inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _global_names(code: types.CodeType) -> Iterator[str]:
    """The names that are read as globals: `x.norm` reads none, though co_names holds it and the module may have a `norm`."""
    return (i.argval for i in dis.get_instructions(code) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME"))


def _cells(function: types.FunctionType) -> dict[str, Any]:
    """What a function's own closure holds; an empty cell holds None, which is not fixed."""
    found: dict[str, Any] = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:
            found[name] = None
    return found


def _is_fixed(value: Any) -> bool:
    """Whether a global is nothing that TorchScript would compile or keep in another form: a module, a script function, PyTorch's own."""
    if isinstance(value, (types.ModuleType, torch.jit.ScriptFunction, torch.dtype, types.BuiltinFunctionType)):
        return True
    return str(getattr(value, "__module__", "")).partition(".")[0] in ("torch", "math", "typing")


def _as_taken(
    tx: TraceContext,
    obj: torch.jit.ScriptFunction,
    function: types.FunctionType,
    args: list[Value],
    kwargs: dict[str, Value],
) -> tuple[list[Value], dict[str, Value]]:
    """The arguments as TorchScript takes them. Breaks the graph where it may convert one otherwise, or refuse it."""
    parameters = obj.schema.arguments
    given = dict(zip([parameter.name for parameter in parameters], args, strict=False)) | kwargs
    defaults = function.__defaults__ or ()
    own = dict(zip([p.name for p in parameters][len(parameters) - len(defaults) :], defaults, strict=True))
    named = dict.fromkeys(kwargs)
    for parameter in parameters:
        name = parameter.name
        if name in given:
            taken = _taken(tx, given[name], parameter.type, function)
        elif name in own and repr(own[name]) == repr(parameter.default_value):
            continue
        else:
            taken = _default_taken(tx, own.get(name), parameter.default_value)
            named[name] = None
        if taken is not None:
            given[name] = taken
        else:
            raise Unsupported("script-function", f"{function.__qualname__} takes {name} as {parameter.type}")
    # The names of the arguments by position come first. A wrong name or number of arguments is the Python function's to refuse.
    return [given[parameter.name] for parameter in parameters[: len(args)]] + args[len(parameters) :], {
        name: given[name] for name in named
    }


def _default_taken(tx: TraceContext, own: Any, default: Any) -> Value | None:
    """A default as TorchScript takes it, where that is the float of an int: `eps: float = -1`. None: another one, or none at all."""
    if type(own) is int and type(default) is float and float(own) == default:
        return tx.from_constant(default)
    return None


def _taken(tx: TraceContext, value: Value, wanted: Any, function: types.FunctionType) -> Value | None:
    """A value as TorchScript takes it for a parameter of this type. None: as another one, or not at all."""
    kind, cls = wanted.kind(), value.python_type()
    if kind == "OptionalType":
        return value if cls is type(None) else _taken(tx, value, wanted.getElementType(), function)
    if kind == "TupleType":
        if not ((cls is tuple and isinstance(value, TupleValue)) or (cls is list and isinstance(value, ListValue))):
            return None
        items, types_ = list(value.unpack(tx)), wanted.elements()
        if len(items) != len(types_):
            return None
        taken = [_taken(tx, item, of, function) for item, of in zip(items, types_, strict=True)]
        if any(item is None for item in taken):
            return None
        if cls is tuple and all(new is old for new, old in zip(taken, items, strict=True)):
            return value
        return TupleValue([item for item in taken if item is not None])
    if kind == "FloatType" and cls is int and value.is_constant():
        return tx.from_constant(float(value.constant()))
    if kind == "TensorType" and _is_as_a_parameter(cls, function):
        return value
    return value if any(cls is allowed for allowed in _TYPES.get(kind, ())) else None


def _is_as_a_parameter(cls: type, function: types.FunctionType) -> bool:
    """Whether an instance of this class is to the function what it is to TorchScript, which takes it as a plain tensor.

    So it is where no class of the user's overrides an operator, or anything whose name the function reads.
    """
    if not is_subtype(cls, torch.nn.Parameter) or cls.__torch_function__ is not torch._C._disabled_torch_function_impl:
        return False
    own = {name for base in cls.__mro__ if base not in torch.nn.Parameter.__mro__ for name in vars(base)}
    read = frozenset(chain.from_iterable(code.co_names for code in _codes(function.__code__)))
    return not any(name in read or (name.startswith("__") and name not in _UNASKED) for name in own)
