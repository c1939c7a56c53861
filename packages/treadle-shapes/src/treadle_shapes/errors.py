"""Every exception this package raises, each saying which symbol, which source line and what to write instead."""

from __future__ import annotations

from typing import Any


class ShapesError(Exception):
    """Base class of the errors of treadle_shapes."""


class UsageError(ShapesError, TypeError):
    """An argument of a kind the function cannot work with."""


class DivisionByZeroError(ShapesError, ZeroDivisionError):
    """A division or modulus whose divisor is zero, or can be zero and must not."""


class NegativeCountError(UsageError, ValueError):
    """A power or a shift by a negative count, which gives no integer."""


class SizeOverflowError(ShapesError, OverflowError):
    """A size or index that leaves the 64 bits of an `int64_t`."""


class ConstraintError(ShapesError, ValueError):
    """A decision or a value contradicts what the user declared about a symbol."""


class ContradictionError(ShapesError, ValueError):
    """Two declared facts that cannot hold at once."""


class UnbackedError(ShapesError, ValueError):
    """An answer was demanded about a value that is known only at run time: the condition or number is `expr`."""

    def __init__(self, message: str, expr: Any = None) -> None:
        super().__init__(message)
        self.expr = expr


class UndecidedError(ShapesError, ValueError):
    """Inside `ShapeEnv.refusing_guards`: the facts do not settle a question, and its answer must not be recorded."""


class ExpressionTooLargeError(ShapesError, ValueError):
    """An expression whose text or value cannot be worked out because it is too long or nested too deeply."""


class MissingValueError(ShapesError, KeyError):
    """`evaluate` met a symbol that has no value."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""
