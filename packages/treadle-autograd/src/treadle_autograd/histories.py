"""Autograd's graph behind a tensor."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def functions_behind(functions: Iterable[Any]) -> set[Any]:
    """These nodes of autograd's graph, and all that gradients go on to from them. None, as the `grad_fn` of a leaf, is left out."""
    pending = list(functions)
    seen: set[Any] = set()
    while pending:
        function = pending.pop()
        if function is not None and function not in seen:
            seen.add(function)
            pending += [following for following, _ in function.next_functions]
    return seen


__all__ = ["functions_behind"]
