"""Questions of PyTorch's backward formulas whose answer saves work and changes no result.

    y = torch.cumsum(x[mask], 0)            # CumsumBackward0: a gradient of at most one item is returned as it is,
                                            # others are flipped, summed up and flipped

    y = torch.var(x[mask])                  # VarBackward0: without degrees of freedom a gradient is nan, which 2 / 0 * (x - mean) is, too

A size that only the data can tell is taken to be larger.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from .unbacked import shape_env_of

# torch/csrc/autograd/FunctionsManual.cpp, torch 2.11 to 2.13. `ProdBackward` is none of these: its general code slices items off.
_WITH_SHORT_CUT = frozenset({"CumprodBackward0", "CumsumBackward0", "LogcumsumexpBackward0"})
# They ask whether as many items as `correction` are there. For corrections up to 1, these are one item or none.
_OF_VARIANCES = frozenset({"VarBackward0", "StdBackward0", "VarMeanBackward0", "StdMeanBackward0"})


@contextlib.contextmanager
def short_cuts_not_taken(mode: Any) -> Iterator[None]:
    """Inside, such questions about sizes of the fake mode get their answers."""
    shape_env = shape_env_of(mode)
    if shape_env is None:
        yield
        return
    env = shape_env.env
    before, env.asks_for_short_cut = env.asks_for_short_cut, _is_in_formula
    try:
        yield
    finally:
        env.asks_for_short_cut = before


def _is_in_formula() -> bool:
    node: Any = torch._C._current_autograd_node()  # type: ignore[attr-defined]
    if node is None:
        return False
    if node.name() in _OF_VARIANCES:
        correction = node._saved_correction
        return correction is None or (isinstance(correction, (int, float)) and correction <= 1)
    return node.name() in _WITH_SHORT_CUT


__all__ = ["short_cuts_not_taken"]
