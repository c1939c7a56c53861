"""The arguments of a call as objects, for functions that are called while tracing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from treadle_tracer.errors import Unsupported
from treadle_tracer.values.value import NotConstant, Value

Plain = tuple[tuple[Any, ...], dict[str, Any]]


def plain_arguments(
    args: Sequence[Value],
    kwargs: Mapping[str, Value],
    plain: Callable[[Value], Any] = lambda value: value.constant(),
    code: str = "not-constant",
    call: str = "",
) -> Plain:
    """(arguments, named arguments), each made by `plain`. Raises Unsupported with this code where one is not known; call: what it is of."""
    try:
        return tuple(map(plain, args)), {name: plain(value) for name, value in kwargs.items()}
    except NotConstant as error:
        raise Unsupported(code, f"{call} of {error.value.describe()}" if call else error.value.describe()) from None
