"""`flex_attention` through all of Treadle: the ranges of keys that a mask leaves to blocks of queries are found while the graph runs."""

import warnings

import pytest
import torch

import treadle

flex = pytest.importorskip("torch.nn.attention.flex_attention")
from torch.nn.attention.flex_attention import create_block_mask, flex_attention  # noqa: E402

SLOPES = torch.rand(2)


@pytest.fixture(autouse=True)
def without_torch_compile(monkeypatch):
    monkeypatch.setattr(flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


def causal(b, h, q, k):
    return q >= k


def window(b, h, q, k):
    return (q >= k) & (q - k < 100)


def slopes(score, b, h, q, k):
    return score + SLOPES[h] * (k - q)


def inputs(length, dtype=torch.float32):
    return [torch.randn(1, length, 2, 16, dtype=dtype).transpose(1, 2) for _ in range(3)]


@pytest.mark.parametrize("mask", [causal, window, None])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_long_sequence(mask, dtype):
    seen = None if mask is None else create_block_mask(mask, None, None, 1100, 1100, device="cpu")

    def run(*args):
        return flex_attention(*args, score_mod=slopes, block_mask=seen)

    fn = treadle.compile(run, fullgraph=True)
    for _ in range(2):
        args = inputs(1100, dtype)
        made, expected = fn(*args), run(*args)
        assert made.stride() == expected.stride()
        wide = run(*[t.double() for t in args])
        error = (expected - wide).abs().max()
        assert (made - wide).abs().max() <= 2 * error + 1e-6


def test_lengths_that_change():
    def run(*args):
        length = args[0].shape[2]
        seen = create_block_mask(window, None, None, length, length, device="cpu", _compile=True)
        return flex_attention(*args, score_mod=slopes, block_mask=seen)

    plain = flex_attention
    fn = treadle.compile(run, fullgraph=True)
    before = treadle.stats().graphs
    for length in (64, 100, 260, 800, 1000, 1300, 37):
        args = inputs(length)
        mask = create_block_mask(window, None, None, length, length, device="cpu")
        expected = plain(*args, score_mod=slopes, block_mask=mask)
        torch.testing.assert_close(fn(*args), expected, rtol=1e-5, atol=1e-5)
    assert treadle.stats().graphs - before <= 4  # one block, a size, several blocks, long


def test_the_function_itself_compiled():
    fn = treadle.compile(flex_attention)
    seen = create_block_mask(causal, None, None, 128, 128, device="cpu")
    for _ in range(2):
        args = inputs(128)
        torch.testing.assert_close(fn(*args, block_mask=seen), flex_attention(*args, block_mask=seen))


def test_torch_compile_of_it_inside():
    seen = create_block_mask(causal, None, None, 128, 128, device="cpu")
    fn = treadle.compile(lambda *args: torch.compile(flex_attention)(*args, block_mask=seen) * 2, fullgraph=True)
    args = inputs(128)
    torch.testing.assert_close(fn(*args), flex_attention(*args, block_mask=seen) * 2)
