"""Functions of torch whose kernels ask for sizes of 1 only in order to take a short cut: their general code is right at 1, too.

    with answering_for(mode.shape_env, torch.nn.functional.scaled_dot_product_attention):
        ...    # the call on fake tensors; it asks whether the mask's batch is 1, which costs no guard

What belongs here is found by running the operator samples with dynamic sizes; each entry says which question it is.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch

GENERAL: frozenset[Any] = frozenset(
    {
        # asks whether the mask has one row, or one for all heads, in order to expand it; kernels broadcast all the same
        torch.nn.functional.scaled_dot_product_attention,
        torch.ops.aten.scaled_dot_product_attention,
        torch.ops.aten.scaled_dot_product_attention.default,
    }
)


def answering_for(shape_env: Any, target: Any) -> contextlib.AbstractContextManager[None]:
    """The context for a call of `target` on fake tensors. shape_env: a ShapeEnv, its FakeShapeEnv, or None; target: the function, or
    the name of a method."""
    env = getattr(shape_env, "env", shape_env)
    if env is None or isinstance(target, str) or target not in GENERAL:
        return contextlib.nullcontext()
    return env.general_answers()


__all__ = ["GENERAL", "answering_for"]
