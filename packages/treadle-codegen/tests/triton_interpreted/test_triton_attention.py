"""Attention as one Triton kernel, against eager in float64."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from aten_capture import capture
from hypothesis import given, settings
from hypothesis import strategies as st
from tuned_kernels import compiled_with

from treadle_codegen import CodegenOptions, compile_graph

Function = Callable[..., torch.Tensor]
FUSED = "softmax_step(top"
BFLOAT16, FLOAT16 = torch.bfloat16, torch.float16


def rand(*shape: int, dtype: torch.dtype = FLOAT16) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def check(function: Function, *args: torch.Tensor, fused: int = 1) -> str:
    """The unit's text, once results are as close to those in float64 as eager's are. fused: how many kernels are attentions."""
    compiled = compile_graph(capture(function, list(args)), list(args), options=CodegenOptions(verify=True))
    (found,) = compiled(*args)
    eager = function(*args)
    exact = function(*[x.double() if x.is_floating_point() else x for x in args])
    assert found.dtype == eager.dtype
    assert found.stride() == eager.stride()
    # Triton's interpreter rounds to bfloat16 towards zero.
    unit = torch.finfo(eager.dtype).eps * (2 if eager.dtype == BFLOAT16 else 1)
    allowed = (
        2 * (eager.double() - exact).abs().nan_to_num().max().item() + unit * exact.abs().nan_to_num().max().item()
    )
    torch.testing.assert_close(found.double(), exact, rtol=0, atol=allowed, equal_nan=True)
    assert compiled.source.count(FUSED) == fused
    return compiled.source


def plain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
    return (q @ k.transpose(-2, -1) * 0.125).softmax(-1) @ v


def _upcast(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    scores = torch.matmul(q, k.transpose(3, 2)) + bias
    return scores.float().softmax(-1).type_as(scores) @ v if q.dtype != torch.float64 else scores.softmax(-1) @ v


def _masked(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    scores = q @ k.transpose(-2, -1) + bias
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return (scores.masked_fill(hidden, -math.inf).softmax(-1) @ v).transpose(1, 2).flatten(2)


def _capped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    scores = 5 * torch.tanh(q @ k.mT / 5)
    return (scores * torch.sigmoid(scores) + scores.abs()).softmax(-1) @ v


def _grouped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    k, v = [x[:, :2, None].expand(-1, -1, 2, -1, -1).reshape(x.shape) for x in (k, v)]
    return (q @ k.mT).softmax(-1) @ v


def _added(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    b, h, m, e = q.shape
    flat = [x.reshape(b * h, -1, e) for x in (q, k, v)]
    added = bias.expand(b, h, -1, -1).reshape(b * h, m, -1)
    scores = torch.baddbmm(added, flat[0], flat[1].transpose(1, 2), beta=0.5, alpha=0.125)
    return torch.bmm(scores.softmax(-1), flat[2]).view(q.shape)


def _windows(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    scores = (q * 0.3) @ k.mT
    scores = scores.view(1, 2, 4, *scores.shape[-2:]) + bias.unsqueeze(0)
    return scores.view(2, 4, *scores.shape[-2:]).softmax(-1) @ v


CASES: dict[str, Function] = {
    "plain": plain, "converted before the softmax": _upcast, "masked": _masked, "capped": _capped, "heads that share keys": _grouped,
    "added to the product": _added, "viewed": _windows,
    "widths that are no powers of 2": lambda q, k, v, b: (q[..., :40] @ k[..., :40].mT).softmax(-1) @ v[..., :24],
    "one key for all heads": lambda q, k, v, b: (q @ k[:, :1].mT).softmax(-1) @ v[:, :1],
    "three dimensions": lambda q, k, v, b: (q[0] @ k[0].mT).softmax(-1) @ v[0],
    "terms along another axis": lambda q, k, v, b: (q.mT.contiguous().mT @ k.mT.contiguous()).softmax(-1) @ v,
    "in float32": lambda q, k, v, b: torch._safe_softmax(q.float() @ k.float().mT, -1).to(q.dtype) @ v,
}  # fmt: skip


@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16])
@pytest.mark.parametrize("name", CASES)
def test_attention_agrees_with_eager(name: str, dtype: torch.dtype) -> None:
    function = CASES[name]
    if name == "in float32":
        function = _exact_where_wide(function)
    m, n = (70, 70) if name == "masked" else (70, 139)
    args = [rand(2, 4, m, 64, dtype=dtype), rand(2, 4, n, 64, dtype=dtype), rand(2, 4, n, 64, dtype=dtype)]
    check(function, *args, rand(1, 4, m, n, dtype=dtype))


def _exact_where_wide(function: Function) -> Function:
    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return plain(q / 0.125, k, v) if q.dtype == torch.float64 else function(q, k, v, b)

    return run


def _with_weights(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    weights = (q @ k.mT).softmax(-1)
    return torch.cat([weights @ v, weights.sum(-1, keepdim=True)], -1)


def _scores_again(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scores = q @ k.mT
    return scores.softmax(-1) @ v + scores.amax(-1, keepdim=True)


APART: dict[str, Function] = {
    "the weights are needed": _with_weights,
    "the scores are needed": _scores_again,
    "a softmax along queries": lambda q, k, v: (q @ k.mT).softmax(-2) @ v,
    "few queries": lambda q, k, v: (q[:, :, :4] @ k.mT).softmax(-1) @ v,
    "no keys": lambda q, k, v: (q @ k[:, :, :0].mT).softmax(-1) @ v[:, :, :0],
    "few terms": lambda q, k, v: (q[..., :4] @ k[..., :4].mT).softmax(-1) @ v,
    "scores that move": lambda q, k, v: (q @ k.mT).cumsum(-1).softmax(-1) @ v,
    "transposed scores": lambda q, k, v: ((k[:, :, :70] @ q.mT).mT + q @ k[:, :, :70].mT).softmax(-1) @ v[:, :, :70],
    "scores in two places": lambda q, k, v: (s := q @ k.mT, (s + s.flip(-1)).softmax(-1) @ v)[1],
    "scores in two places, safe": lambda q, k, v: (s := q @ k.mT, torch._safe_softmax(s + s.flip(-1), -1) @ v)[1],
    "repeated weights": lambda q, k, v: (q[:1] @ k[:1].mT).softmax(-1).expand(2, -1, -1, -1) @ v,
}


@pytest.mark.parametrize("name", APART)
def test_other_products_stay_as_they_are(name: str) -> None:
    check(APART[name], rand(2, 4, 70, 32), rand(2, 4, 90, 32), rand(2, 4, 90, 32), fused=0)


def test_wide_numbers_stay_as_they_are() -> None:
    check(plain, *[rand(1, 2, 70, 32, dtype=torch.float32) for _ in range(3)], fused=0)


def _where(mask: Callable[[Any, Any], Any], *, is_safe: bool) -> Function:
    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        wide = torch.float64 if q.dtype == torch.float64 else torch.float32
        scores = q.to(wide) @ k.to(wide).transpose(-2, -1)
        rows, keys = torch.arange(scores.shape[-2])[:, None], torch.arange(scores.shape[-1])
        scores = torch.where(mask(rows, keys), scores, -math.inf)
        weights = torch._safe_softmax(scores, -1) if is_safe else scores.softmax(-1)
        return weights.to(q.dtype) @ v

    return run


MASKS: dict[str, tuple[Callable[[Any, Any], Any], str, str]] = {
    "causal": (lambda i, j: i >= j, "0", "v"),
    "window": (lambda i, j: (i >= j) & (i - j < 30), "v", "v"),
    "both sides": (lambda i, j: (i - j < 30) & (j - i < 50), "v", "v"),
    "negated": (lambda i, j: ~(j > i), "0", "v"),
    "shifted": (lambda i, j: j < i - 100, "0", "v"),
    "behind": (lambda i, j: j >= i, "v", "170"),
    "first keys": (lambda i, j: (j < 80) & (i >= 0), "0", "v"),
    "prefix": (lambda i, j: (i >= j) | (j < 20), "0", "170"),
    "backwards": (lambda i, j: i + j < 190, "0", "v"),
    "blocks": (lambda i, j: i // 16 == j // 16, "0", "170"),
}


@pytest.mark.parametrize("name", MASKS)
def test_keys_that_a_mask_of_positions_hides_are_left_out(name: str) -> None:
    mask, first, last = MASKS[name]
    source = check(_where(mask, is_safe=True), rand(1, 2, 200, 32), rand(1, 2, 170, 32), rand(1, 2, 170, 32))
    (line,) = [line.strip() for line in source.splitlines() if "for k_start" in line]
    begin, end = line.removeprefix("for k_start in range(").split(", ")[:2]
    assert (begin[:1] if first == "v" else begin, end[:1] if last == "v" else end) == (first, last)


def test_a_plain_softmax_reads_all_keys_and_gives_nan_where_eager_does() -> None:
    q, k, v = rand(1, 2, 200, 32), rand(1, 2, 170, 32), rand(1, 2, 170, 32)
    v[:, :, 150] = math.inf
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of NumPy
        source = check(_where(lambda i, j: j < i - 100, is_safe=False), q, k, v)
    assert "range(0, 170, KBLOCK)" in source
    check(_where(lambda i, j: j < i - 100, is_safe=True), q, k, rand(1, 2, 170, 32))


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, 60000.0])
def test_special_scores(value: float) -> None:
    bias = torch.zeros(1, 1, 70, 90)
    bias[..., 3, 5] = bias[..., 40, :] = bias[..., 41, 70:] = value
    q, k, v = rand(1, 2, 70, 32), rand(1, 2, 90, 32), rand(1, 2, 90, 32)

    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        wide = torch.float64 if q.dtype == torch.float64 else torch.float32
        return (q.to(wide) @ k.to(wide).mT + bias).softmax(-1).to(q.dtype) @ v

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of NumPy
        check(function, q, k, v, bias)


@pytest.mark.parametrize("label", ["128 keys", "32 queries", "64 queries, 64 keys"])
def test_a_measured_tiling_is_taken(label: str, tmp_path: Path) -> None:
    args = [rand(2, 2, 130, 64), rand(2, 2, 200, 64), rand(2, 2, 200, 64)]
    compiled = compiled_with(label, plain, args, tmp_path)
    exact = plain(*[x.double() for x in args])
    torch.testing.assert_close(compiled(*args)[0].double(), exact, rtol=0, atol=2e-3)
    (chosen,) = [trial.chosen for trial in compiled.trials]
    assert label in chosen


def test_several_in_one_graph() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        once = plain(x, y, y)
        return plain(once * 2, x, x).relu()

    check(function, rand(1, 2, 70, 64), rand(1, 2, 70, 64), fused=2)


@settings(max_examples=12, deadline=None)
@given(
    st.sampled_from([16, 24, 64]),
    st.sampled_from([16, 48, 64]),
    st.integers(32, 150),
    st.integers(64, 150),
    st.integers(-90, 90),
    st.integers(1, 120),
    st.sampled_from([(1, 1), (2, 1), (3, 2)]),
)
def test_random_windows(e: int, d: int, m: int, n: int, shift: int, width: int, leading: tuple[int, int]) -> None:
    def mask(i: Any, j: Any) -> Any:
        return (i + shift >= j) & (i + shift - j < width)

    check(_where(mask, is_safe=True), rand(*leading, m, e), rand(*leading, n, e), rand(*leading, n, d))
