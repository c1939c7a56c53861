"""Callables that are one known object: torch functions, built-in functions, descriptors used as functions, lru_cache wrappers."""

from __future__ import annotations

import functools
import logging
import struct
import types
import zlib
from typing import TYPE_CHECKING, Any

import torch

from treadle_tracer.by_identity import IdentitySet
from treadle_tracer.class_facts import is_subtype
from treadle_tracer.errors import Unsupported
from treadle_tracer.source import ConstSource
from treadle_tracer.values.arity import why_not_callable_with
from treadle_tracer.values.array_ufuncs import call_ufunc_method, is_ufunc
from treadle_tracer.values.arrays import is_numpy_function
from treadle_tracer.values.base import NONE, ConcreteValue, Method
from treadle_tracer.values.cached_functions import call_cached
from treadle_tracer.values.construct import call_new
from treadle_tracer.values.function_overrides import call_override, may_be_overridden
from treadle_tracer.values.functions import ClassValue
from treadle_tracer.values.graph_functions import goes_into_graph
from treadle_tracer.values.rules.table import rule_of
from treadle_tracer.values.tensor import TensorValue
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext

_DESCRIPTORS = (types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType)
_PURE_MODULES = frozenset(
    "math cmath re string unicodedata binascii _operator _statistics keyword _sre numbers fnmatch posixpath textwrap "
    "difflib colorsys".split()
)
"""Modules whose functions are called while tracing when their arguments are constants."""
_PURE_FUNCTIONS: IdentitySet[Any] = IdentitySet(
    (
        struct.pack,
        struct.unpack,
        struct.unpack_from,
        struct.calcsize,
        zlib.crc32,
        zlib.adler32,
        zlib.compress,
        zlib.decompress,
        str.maketrans,
        bytes.maketrans,
    )
)
"""Functions of other modules that are called so."""
_SLOTS = (types.GetSetDescriptorType, types.MemberDescriptorType)


class DisabledFunction(ConcreteValue):
    """A function that is excluded from compilation."""

    __slots__ = ()

    def call(self, tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
        raise Unsupported("disabled", self.describe())


class CallableValue(ConcreteValue):
    """A callable that is one known object, `obj`."""

    __slots__ = ()

    def truth(self, tx: TraceContext) -> bool:
        return True

    def call(self, tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
        obj = self.obj
        wrong = why_not_callable_with(obj, len(args), list(kwargs))
        if wrong is not None:
            return tx.raise_exception(TypeError, wrong)
        if tx.modes.are_active and (may_be_overridden(obj) or obj is torch._C._set_grad_enabled):
            return tx.call_by_modes(obj, functools.partial(self.call, tx), args, kwargs)
        override = call_override(tx, obj, args, kwargs) if may_be_overridden(obj) else None
        if override is not None:
            return override
        rule = rule_of(obj)
        if rule is not None:
            return rule.apply(tx, args, kwargs)
        if goes_into_graph(obj):
            return tx.run_in_graph("call_function", obj, args, kwargs)
        if isinstance(obj, _DESCRIPTORS):
            return self.call_descriptor(tx, args, kwargs)
        if isinstance(obj, functools._lru_cache_wrapper):
            if args and isinstance(getattr(args[0], "obj", None), logging.Logger):
                return self.log_once(args, kwargs)
            return call_cached(tx, self, args, kwargs)
        if getattr(obj, "__name__", None) == "__new__" and isinstance(getattr(obj, "__self__", None), type):
            return call_new(tx, obj, args, kwargs)
        if getattr(obj, "__module__", None) in _PURE_MODULES or obj in _PURE_FUNCTIONS:
            return tx.fold(obj, args, kwargs, may_warn=type(obj) is types.FunctionType)
        if is_numpy_function(obj):
            if tx.modes.ask:
                tx.modes.refuse(self.describe())
            return tx.numpy_call(obj, args, kwargs)
        owner = getattr(obj, "__self__", None)
        if isinstance(owner, type):
            return tx.class_method(ClassValue(owner), obj.__name__, args, kwargs)
        raise Unsupported("builtin-call", self.describe())

    def log_once(self, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """A cached method of a logger (transformers' `warning_once`): it logs once, and may as well do so now."""
        if kwargs or not all(arg.is_constant() for arg in args[1:]):
            raise Unsupported("output", self.describe())
        self.obj(args[0].obj, *(arg.constant() for arg in args[1:]))  # type: ignore[attr-defined]
        return NONE

    def call_descriptor(self, tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """`list.append(x, y)`: a method taken from the class."""
        if not args:
            tx.raise_exception(TypeError, f"unbound method {self.obj.__qualname__}() needs an argument")
        owner, *rest = args
        if isinstance(owner, TensorValue):
            return tx.tensor_method(owner, self.obj.__name__, rest, kwargs)
        if not is_subtype(owner.python_type(), self.obj.__objclass__):
            raise Unsupported("raises", f"{self.obj.__qualname__} of {owner.describe()}")
        return tx.call_builtin_method(owner, self.obj.__name__, self.obj, rest, kwargs)

    def get_attr(self, tx: TraceContext, name: str) -> Value:
        if name in ("__get__", "__set__") and isinstance(self.obj, (*_DESCRIPTORS, *_SLOTS)):
            return Method(self, name, getattr(self.obj, name))
        missing: list[Any] = []
        value = getattr(self.obj, name, missing)
        if value is missing:
            tx.raise_exception(AttributeError, f"{type(self.obj).__name__!r} object has no attribute {name!r}")
        return tx.wrap(value, ConstSource(value, is_made=True))

    def builtin_method(self, tx: TraceContext, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if name == "__get__" and isinstance(self.obj, _SLOTS):
            read = getattr(args[0], "slot_attr", None)
            if read is not None:
                return read(tx, self.obj, self.obj.__name__)
            if self.obj.__objclass__ is torch._C.TensorBase:
                return args[0].get_attr(tx, self.obj.__name__)
            raise Unsupported("attribute", f"{args[0].describe()}.{self.obj.__name__} by its descriptor")
        if name == "__set__" and isinstance(self.obj, types.MemberDescriptorType):
            args[0].set_attr(tx, self.obj.__name__, args[1])
            return NONE
        if name == "__get__":
            return tx.bind(args[0], self.obj, self.obj.__name__)
        if is_ufunc(self.obj):
            return call_ufunc_method(tx, self.obj, name, args, kwargs)
        if name == "__call__":
            return self.call(tx, args, kwargs)
        return super().builtin_method(tx, name, args, kwargs)
