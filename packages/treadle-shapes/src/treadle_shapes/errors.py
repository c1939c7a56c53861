"""The exceptions of this package. Each message names the symbol, the source line and what to write instead."""

from __future__ import annotations

from typing import Any


class ShapesError(Exception):
    """Base class of the errors of treadle_shapes."""


class UsageError(ShapesError, TypeError):
    """An argument has a type or value that the function does not accept."""


class DivisionByZeroError(ShapesError, ZeroDivisionError):
    """The divisor of a division or modulus is zero, or is unbacked and can be zero."""


class NegativeCountError(UsageError, ValueError):
    """A power or shift has a negative count, so that its result is no integer."""


class SizeOverflowError(ShapesError, OverflowError):
    """A size or index does not fit in an `int64_t`."""


class ConstraintError(ShapesError, ValueError):
    """A decision or a value contradicts what the user declared about a symbol."""


class ContradictionError(ShapesError, ValueError):
    """Two stated conditions cannot hold at once."""


class UnbackedError(ShapesError, ValueError):
    """Tracing needs a value that is known only at run time. `expr` is the condition or number."""

    def __init__(self, message: str, expr: Any = None) -> None:
        super().__init__(message)
        self.expr = expr


class UndecidedError(ShapesError, ValueError):
    """Inside `ShapeEnv.refusing_guards`, facts do not settle a question, and no guard may record its answer."""


class ExpressionTooLargeError(ShapesError, ValueError):
    """An expression is too long or nested too deeply for its text or value to be computed."""


class MissingValueError(ShapesError, KeyError):
    """`evaluate` met a symbol that has no value."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""
