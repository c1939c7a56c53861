"""Run one operator sample of torch.testing._internal on fake tensors with dynamic sizes and compare with the real run."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)
from torch.utils import _pytree as pytree

from treadle_shapes.env import ShapeEnv
from treadle_shapes.expr import Expr, evaluate
from treadle_shapes.torch import expr_of, fake_mode, fake_shape_env, fake_tensor, symbolic_dispatch
from treadle_shapes.torch.size_oblivious import answer_size_obliviously

NO_FAKE = (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)


def op_db() -> list[Any]:
    """PyTorch's records of operators with their samples."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal import common_methods_invocations, common_utils
        from torch.testing._internal.opinfo import core
    # Every list of samples searches the stack three times for a method of unittest, by whose name it would draw them: 10 ms each.
    common_utils.extract_test_fn = core.extract_test_fn = lambda: None
    return common_methods_invocations.op_db


def layouts(out, env):
    """Shape and strides (None where the size is 1 or less) of every tensor, and the values of numbers."""
    found = []
    for leaf in pytree.tree_leaves(out):
        if isinstance(leaf, torch.Tensor):
            if leaf.layout is not torch.strided:
                found.append(("sparse", tuple(at(n, env) for n in leaf.shape)))
                continue
            shape = tuple(at(n, env) for n in leaf.shape)
            empty = 0 in shape
            stride = tuple(None if n <= 1 or empty else at(s, env) for n, s in zip(shape, leaf.stride(), strict=True))
            found.append((shape, stride, leaf.dtype))
    return found


def at(x, env):
    e = expr_of(x) if env is not None else int(x)
    return evaluate(e, env.hints) if isinstance(e, Expr) else e


def dynamic(value, mode, env):
    if isinstance(value, torch.Tensor):
        sizes = [env.create_symbol(n, f"size {n}") if n >= 2 else None for n in value.shape]
        return fake_tensor(mode, value.detach(), sizes)
    return value


def has_odd_tensors(sample):
    leaves = pytree.tree_leaves((sample.input, sample.args, sample.kwargs))
    return any(
        isinstance(t, torch.Tensor) and (t.layout is not torch.strided or t.is_nested or t.is_quantized or t.is_conj())
        for t in leaves
    )


def run(op, sample):
    """("same" | "skip" | "differs" | "raises", detail, guards)"""
    whole = (sample.input, sample.args, sample.kwargs)
    if has_odd_tensors(sample):
        return "skip", "not strided", []
    try:
        with torch.no_grad():
            real = op(sample.input.clone() if isinstance(sample.input, torch.Tensor) else sample.input, *sample.args,
                      **sample.kwargs)  # fmt: skip
    except Exception as error:  # the sample is not meant to work on this machine
        return "skip", f"real run: {type(error).__name__}", []
    want = layouts(real, None)
    env = ShapeEnv(duck_shape=True)
    mode = fake_mode(shape_env=fake_shape_env(env))
    args = pytree.tree_map(lambda v: dynamic(v, mode, env), whole)
    try:
        with mode, symbolic_dispatch(), torch.no_grad(), answer_size_obliviously(env, getattr(op, "op", op)):
            out = op(args[0], *args[1], **args[2])
        got = layouts(out, env)
    except NO_FAKE as error:
        return "skip", type(error).__name__, []
    except Exception as error:
        return "raises", f"{type(error).__name__}: {error}"[:300], env.guards
    if got == want:
        return "same", "", env.guards
    return "differs", f"got {got}, real {want}"[:300], env.guards


def static_layouts(op, sample):
    """What PyTorch's fake tensors say with constant sizes, None when they have no kernel or fail."""
    mode = FakeTensorMode()
    args = pytree.tree_map(
        lambda v: mode.from_tensor(v.detach()) if isinstance(v, torch.Tensor) else v,
        (sample.input, sample.args, sample.kwargs),
    )
    try:
        with mode, symbolic_dispatch(), torch.no_grad():
            return layouts(op(args[0], *args[1], **args[2]), None)
    except Exception:
        return None
