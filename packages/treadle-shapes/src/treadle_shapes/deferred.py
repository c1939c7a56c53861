"""SymPy expressions that are built when somebody reads their structure.

PyTorch's fake tensors read the SymPy form of every size, and nearly always only its `free_symbols`. Building real sums and
products (with SymPy's assumptions and late imports) would cost more than all other arithmetic on sizes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sympy

#: methods that read the structure; they build the real expression
_LOOKING_INSIDE = (
    "__add__", "__radd__", "__sub__", "__rsub__", "__mul__", "__rmul__", "__truediv__", "__rtruediv__", "__floordiv__",
    "__rfloordiv__", "__mod__", "__rmod__", "__pow__", "__rpow__", "__neg__", "__abs__", "__lt__", "__le__", "__gt__", "__ge__",
    "subs", "xreplace", "replace", "has", "atoms", "simplify", "expand", "doit", "as_numer_denom", "as_coeff_Mul", "as_coeff_Add",
    "equals", "sort_key", "_sympystr", "_eval_subs",
)  # fmt: skip


class Deferred(sympy.Expr):
    """A stand-in for the SymPy expression that `make` returns. Equal only to itself."""

    is_integer = True
    is_commutative = True

    _make: Callable[[], Any]
    _symbols: frozenset
    _made: Any

    def __new__(cls, make: Callable[[], Any], symbols: frozenset) -> Deferred:
        self = sympy.Basic.__new__(cls)
        self._make, self._symbols, self._made = make, symbols, None
        return self

    @property
    def real(self) -> Any:
        """The expression itself, built on first access."""
        if self._made is None:
            self._made = self._make()
        return self._made

    @property
    def free_symbols(self) -> Any:
        return self._symbols

    @property
    def args(self) -> Any:
        return self.real.args

    @property
    def func(self) -> Any:
        return self.real.func

    def __hash__(self) -> int:
        return id(self) >> 4

    def __eq__(self, other: object) -> bool:
        return self is other

    def __ne__(self, other: object) -> bool:
        return self is not other

    def _hashable_content(self) -> tuple:
        return (id(self),)


def _look_inside(name: str) -> Callable[..., Any]:
    def method(self: Deferred, *args: Any, **kwargs: Any) -> Any:
        inner = [arg.real if isinstance(arg, Deferred) else arg for arg in args]
        return getattr(self.real, name)(*inner, **kwargs)

    method.__name__ = name
    return method


for _name in _LOOKING_INSIDE:
    setattr(Deferred, _name, _look_inside(_name))
