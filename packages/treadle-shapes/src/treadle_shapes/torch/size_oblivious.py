"""Size-oblivious calls on fake tensors. Their kernels ask about sizes of 1 only for a short cut; their general code is right at 1, too.

    with answer_size_obliviously(mode.shape_env, torch.nn.functional.scaled_dot_product_attention):
        ...    # the call on fake tensors; its question whether the mask's batch is 1 adds no guard

`Operator.size_one_question` marks these operators. They were found by running the operator samples with dynamic sizes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from treadle_shapes.torch.operators import operator


def answer_size_obliviously(shape_env: Any, target: Any) -> contextlib.AbstractContextManager[None]:
    """Return the context for a call of `target` on fake tensors. shape_env: a ShapeEnv, its FakeShapeEnv, or None. target: the
    function, or the name of a method."""
    env = getattr(shape_env, "env", shape_env)
    if env is None or isinstance(target, str) or not _asks_for_a_short_cut(target):
        return contextlib.nullcontext()
    return env.size_oblivious_answers()


def _asks_for_a_short_cut(target: Any) -> bool:
    record = operator(target)
    return record is not None and record.size_one_question is not None


def run_for_metadata(
    shape_env: Any, kernel: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], *, assume: bool = False
) -> Any:
    """Run `kernel(*args, **kwargs)` on fake tensors for the sizes and layouts of its result.

    Questions about sizes of 1 get the size-oblivious answer, so that no guard excludes 1. The caller must check the metadata at sizes of
    1. If the result consists of numbers and flags (`torch.is_same_size`), the kernel runs again with guards.
    shape_env as in `answer_size_obliviously`; assume as in `ShapeEnv.size_oblivious_answers`.
    """
    env = getattr(shape_env, "env", shape_env)
    if env is None:
        return kernel(*args, **kwargs)
    with env.size_oblivious_answers(assume):
        result = kernel(*args, **kwargs)
    return kernel(*args, **kwargs) if _is_plain(result) else result


def _is_plain(result: Any) -> bool:
    """Whether a result is a number, a flag, or a sequence of these."""
    if isinstance(result, (tuple, list)):
        return bool(result) and all(map(_is_plain, result))
    return isinstance(result, (bool, int, float))


__all__ = ["answer_size_obliviously", "run_for_metadata"]
