"""Whether a call of one of Python's own functions, methods and types has arguments of the right number and names.

    [].append(1, 2)      ->  "list.append() takes exactly one argument (2 given)"

The function itself is asked. C functions check the number and the names of their arguments before they look at their values
(Python/getargs.c, and the code of Argument Clinic), so a call with objects that can do nothing raises the program's own TypeError. The
answer holds for all calls of that form.
"""

from __future__ import annotations

import collections
import functools
import itertools
import re
import types
from collections.abc import Callable, Sequence
from typing import Any

from treadle_tracer.by_identity import IdentitySet, is_one_of
from treadle_tracer.class_facts import mro_of, namespace_of, qualname_of
from treadle_tracer.errors import Unsupported

_WRONG = re.compile(r"(takes|expected|missing|must have at least|keyword).*argument|argument.*(given|got \d)")
_MODULES = frozenset({"builtins", "math", "_operator", "_functools"})
_WITH_EFFECTS = frozenset(
    "print input open exec eval compile breakpoint globals locals vars dir setattr delattr __import__ __build_class__".split()
)
_NOT_ASKED = {setattr: 3, delattr: 2}
"""How many arguments functions take that would do what they are asked."""
_TYPES: dict[type, Callable[[], Any]] = {
    kind: kind
    for kind in (
        list,
        tuple,
        dict,
        set,
        frozenset,
        str,
        bytes,
        int,
        float,
        complex,
        bool,
        collections.deque,
        collections.OrderedDict,
    )
}
"""Types whose methods are asked, on the instance that the type gives without arguments."""
_ITERTOOLS = frozenset(kind for kind in vars(itertools).values() if isinstance(kind, type) and kind.__name__[:1] != "_")
_CLASSES = IdentitySet(
    {*_TYPES, *_ITERTOOLS, range, slice, enumerate, zip, map, filter, reversed, property, object} - {dict}
)
_INSTANTIATED = IdentitySet(_TYPES)


def why_not_callable_with(function: Any, n_args: int, names: Sequence[str]) -> str | None:
    """The message of the TypeError that the call raises for its form, or None. `function` may be anything."""
    if isinstance(function, type):
        is_asked = function in _CLASSES
    else:
        is_asked = type(function) is types.BuiltinFunctionType and function.__module__ in _MODULES
        is_asked = is_asked and function.__name__ not in _WITH_EFFECTS
        if is_one_of(function, tuple(_NOT_ASKED)):
            return _why_not_taken(function, n_args, names)
    return _ask(function, n_args, tuple(names)) if is_asked else None


def _why_not_taken(function: Any, n_args: int, names: Sequence[str]) -> str | None:
    wanted = _NOT_ASKED[function]
    if names:
        return f"{function.__name__}() takes no keyword arguments"
    return None if n_args == wanted else f"{function.__name__} expected {wanted} arguments, got {n_args}"


def why_not_method_with(kind: type, name: str, n_args: int, names: Sequence[str]) -> str | None:
    """As `why_not_callable_with`, for the method `name` of an instance of `kind` that a type of Python's own defines.

    For a subclass, which the message would name, Unsupported is raised in its place.
    """
    if kind in _INSTANTIATED:
        return _ask_method(kind, name, n_args, tuple(names))
    base = next((base for base in mro_of(kind) if name in namespace_of(base)), None)
    if base is not None and base in _INSTANTIATED and _ask_method(base, name, n_args, tuple(names)) is not None:
        raise Unsupported("raises", f"{qualname_of(kind)}.{name} of {n_args + len(names)} arguments")
    return None


@functools.cache
def _ask_method(kind: type, name: str, n_args: int, names: tuple[str, ...]) -> str | None:
    method = getattr(_TYPES[kind](), name, None)
    is_own = type(method) in (types.BuiltinMethodType, types.MethodWrapperType) and name not in (
        "__init__",
        "__class__",
    )
    return _ask(method, n_args, names) if is_own else None


@functools.cache
def _ask(function: Any, n_args: int, names: tuple[str, ...]) -> str | None:
    try:
        function(*[object() for _ in range(n_args)], **{name: object() for name in names})
    except TypeError as error:
        return str(error) if _WRONG.search(str(error)) else None
    except Exception:
        return None
    return None


__all__ = ["why_not_callable_with", "why_not_method_with"]
