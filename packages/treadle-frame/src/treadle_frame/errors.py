"""The exceptions and warnings of treadle_frame. Any other exception comes from code that it ran."""

from __future__ import annotations


class LayoutError(ValueError):
    """Replacement code whose arguments or free variables are not those of the code it replaces."""


class GuardError(ValueError):
    """A guard program that cannot be built: the message names the check, what was given and what is allowed."""


class EvaluatorError(RuntimeError):
    """Another PEP 523 frame evaluator is active, and this one does not install itself over it."""


class EvaluatorWarning(RuntimeWarning):
    """Another PEP 523 frame evaluator was active, so code ran without the hook."""


class StaleGuardWarning(RuntimeWarning):
    """A handler's fresh entry has a guard that does not hold for the very call it was made for; the original code ran."""
