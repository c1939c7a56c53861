"""Floats known only at run time: one kernel for all values, eager's bits for each of them."""

from __future__ import annotations

import functools
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import fx

import treadle_codegen
from treadle_codegen.lower.lowerings import LOWERINGS
from treadle_codegen.lower.symbolic_floats import TAKE_FLOATS, why_not_float
from treadle_shapes import ShapeEnv
from treadle_shapes.floats import float_fn, float_symbol
from treadle_shapes.torch import expr_of, fake_mode, fake_shape_env, sym_float, symbolic_dispatch

aten = torch.ops.aten
X, F = "x", "f"  # stand for the tensor and the float in the tables below
ANY_FLOAT = st.floats(allow_nan=True, allow_infinity=True, allow_subnormal=True)
SPECIAL = [0.5, -2.0, 0.0, -0.0, math.inf, -math.inf, math.nan, 5e-324, 1e300, 1.0, 3.0]
DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
]


def compile_call(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], x: torch.Tensor, expr: Any = None) -> Any:
    """The compiled graph of one call of `op`; X in the arguments is the tensor, F a float symbol (or `expr(symbol)`)."""
    env = ShapeEnv()
    mode = fake_mode(shape_env=fake_shape_env(env), static_shapes=False)
    symbol = sym_float(env, env.create_float(0.75, "f"))
    with mode:
        fake = torch.empty(x.shape, dtype=x.dtype)
    graph = fx.Graph()
    nodes = {X: graph.placeholder("x"), F: graph.placeholder("f")}
    nodes[X].meta["val"], nodes[F].meta["val"] = fake, symbol
    fakes = {X: fake, F: symbol}
    if expr is not None:
        fakes[F] = expr(symbol)
        nodes[F] = graph.call_function(expr, (nodes[F],))
        nodes[F].meta["val"] = fakes[F]

    def put(value: Any, by: dict[str, Any]) -> Any:
        return by[value] if isinstance(value, str) and value in by else value

    node = graph.call_function(op, tuple(put(a, nodes) for a in args), {k: put(v, nodes) for k, v in kwargs.items()})
    with mode, symbolic_dispatch():
        node.meta["val"] = op(*[put(a, fakes) for a in args], **{k: put(v, fakes) for k, v in kwargs.items()})
    assert all("==" not in str(guard.expr) for guard in env.guards), "the fake kernel has fixed the float"
    graph.output((node,))
    compiled = treadle_codegen.compile_graph(fx.GraphModule(torch.nn.Module(), graph), [x, 0.75])
    return compiled, lambda x, f: op(*[put(a, {X: x, F: f}) for a in args],
                                     **{k: put(v, {X: x, F: f}) for k, v in kwargs.items()})  # fmt: skip


def values_of(dtype: torch.dtype) -> torch.Tensor:
    small = [0.0, -0.0, 1e-40, 1e-3, 0.1, 1.0, -1.5, 2.5, 3.0]
    floats = torch.tensor([*small, 6.0, -7.25, 20.0, 100.0, 65504.0, math.inf, -math.inf, math.nan])
    return floats.to(dtype) if dtype.is_floating_point else torch.arange(17).to(dtype)


@functools.cache
def compiled_call(name: str, dtype: torch.dtype) -> Any:
    op, args, kwargs = CALLS[name]
    return compile_call(op, args, kwargs, values_of(dtype))


CALLS: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any]]] = {
    "mul": (aten.mul.Tensor, (X, F), {}),
    "add": (aten.add.Tensor, (X, F), {}),
    "sub": (aten.sub.Tensor, (X, F), {}),
    "rsub": (aten.rsub.Scalar, (X, F), {}),
    "div": (aten.div.Tensor, (X, F), {}),
    "gt": (aten.gt.Scalar, (X, F), {}),
    "ne": (aten.ne.Scalar, (X, F), {}),
    "full_like": (aten.full_like.default, (X, F), {}),
    "fill": (aten.fill.Scalar, (X, F), {}),
}  # fmt: skip
FLOAT_CALLS: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any]]] = {
    "alpha": (aten.add.Tensor, (X, X), {"alpha": F}),
    "clamp": (aten.clamp.default, (X, None, F), {}),
    "clamp_min": (aten.clamp_min.default, (X, F), {}),
    "addcmul": (aten.addcmul.default, (X, X, X), {"value": F}),
    "leaky_relu": (aten.leaky_relu.default, (X, F), {}),
    "threshold": (aten.threshold.default, (X, F, F), {}),
    "hardshrink": (aten.hardshrink.default, (X, F), {}),
    "softshrink": (aten.softshrink.default, (X, 0.5), {}),
    "where": (aten.where.ScalarOther, (X, X, F), {}),
    "pow": (aten.pow.Tensor_Scalar, (X, F), {}),
    "rpow": (aten.pow.Scalar, (F, X), {}),
    "remainder": (aten.remainder.Scalar, (X, F), {}),
    "elu": (aten.elu.default, (X, F), {}),
    "hardtanh": (aten.hardtanh.default, (X, -1.0, F), {}),
    "lerp": (aten.lerp.Scalar, (X, X, F), {}),
}  # fmt: skip
del FLOAT_CALLS["softshrink"], FLOAT_CALLS["where"]
CALLS |= FLOAT_CALLS


def same(got: torch.Tensor, want: torch.Tensor, **close: float) -> None:
    assert got.dtype == want.dtype and got.shape == want.shape
    if close:
        torch.testing.assert_close(got, want, equal_nan=True, **close)
        return
    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}.get(got.dtype.itemsize)
    if got.dtype.is_floating_point:
        assert torch.equal(got.isnan(), want.isnan())
        got, want = got.nan_to_num(), want.nan_to_num()
        got, want = got.view(bits), want.view(bits)
    assert torch.equal(got, want), (got, want)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ["mul", "add", "sub", "rsub", "div", "gt", "ne", "full_like", "fill"])
def test_all_dtypes_are_eagers(name, dtype):
    if name in ("sub", "rsub") and dtype == torch.bool:
        return  # eager refuses
    compiled, eager = compiled_call(name, dtype)
    x = values_of(dtype)
    for f in SPECIAL:
        try:
            want = eager(x, f)
        except RuntimeError:
            continue  # a number that does not fit into the dtype
        same(compiled(x, f)[0], want)


@settings(max_examples=60, deadline=None)
@given(ANY_FLOAT, st.sampled_from(["mul", "add", "div", "gt"]), st.sampled_from(DTYPES[:5]))
def test_any_float_is_eagers(f, name, dtype):
    compiled, eager = compiled_call(name, dtype)
    x = values_of(dtype)
    same(compiled(x, f)[0], eager(x, f))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", FLOAT_CALLS)
def test_other_calls(name, dtype):
    compiled, eager = compiled_call(name, dtype)
    x = values_of(dtype)
    # Eager contracts products and sums to fma on some machines, and has transcendental functions of its own.
    rounded = name in ("rpow", "elu", "alpha", "addcmul", "lerp")
    close = {"rtol": 1e-5 if dtype == torch.float32 else 1e-12, "atol": 1e-7} if rounded else {}
    for f in SPECIAL:
        if name == "remainder" and f == 5e-324:
            continue  # eager's vector code gives nan where fmod gives 0
        try:
            want = eager(x, f)
        except RuntimeError:
            continue  # a number that does not fit into the dtype
        torch.testing.assert_close(compiled(x, f)[0], want, equal_nan=True, **(close or {"rtol": 0, "atol": 0}))


@pytest.mark.parametrize("args", [(), (-2.0,), (-1.0, 1.0), (-3.0, 1.0), (F, 1.0), (-1.0, F)])
def test_bounds_that_are_the_defaults_are_left_out_of_a_call(args):
    """The dispatcher drops arguments that equal their defaults."""
    x = torch.linspace(-3, 3, 17)
    dropped = (X, *args) if args[1:] != (1.0,) else (X, args[0])
    compiled, eager = compile_call(aten.hardtanh.default, dropped, {}, x)
    same(compiled(x, 0.5)[0], eager(x, 0.5))


def test_the_kernel_does_not_hold_the_value():
    x = torch.randn(8)
    first, _ = compile_call(aten.mul.Tensor, (X, F), {}, x)
    assert "double d0" in first.source
    call = next(line for line in first.source.splitlines() if "double d0" in line)
    assert "1.5" not in first.source[first.source.index(call) :]
    shifted, _ = compile_call(aten.mul.Tensor, (X, F), {}, x, expr=_shifted)
    assert shifted.source == first.source, "the host computes f * 0.5 + 1"
    assert torch.equal(shifted(x, 3.0)[0], x * 2.5)


def _shifted(f: Any) -> Any:
    return f * 0.5 + 1.0


def test_a_number_computed_on_the_host_is_pythons():
    compiled, _ = compile_call(
        aten.mul.Tensor, (X, F), {}, torch.ones(3, dtype=torch.float64), expr=lambda f: (f / 3.0) * 0.1
    )
    for f in (0.7, 1e308, -5e-324, math.nan):
        same(compiled(torch.ones(3, dtype=torch.float64), f)[0], torch.full((3,), (f / 3.0) * 0.1, dtype=torch.float64))


def test_every_name_in_the_table_has_a_lowering():
    unknown = {"aten.floor_divide.Tensor", "aten.remainder.Scalar_Tensor"}
    missing = {name for name in TAKE_FLOATS if name not in LOWERINGS}
    assert all(name.rsplit(".", 1)[1] in ("Tensor", "Scalar") for name in missing - unknown)
    for name in TAKE_FLOATS & LOWERINGS.keys():
        assert why_not_float(name, (float_symbol("f"),), {}) is None
    assert why_not_float("aten.pow.Tensor_Scalar", (None, float_symbol("f")), {}) is not None
    assert why_not_float("aten.sum.default", (None,), {"x": [float_fn("fneg", float_symbol("f"))]}) is not None
    assert expr_of(1.5) == 1.5
