"""`flex_attention` and attention written by hand, through `treadle.compile` to one Triton kernel each."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.nn.attention import flex_attention as flex
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import treadle

DOCUMENTS = torch.arange(200) // 70
SLOPES = torch.tensor([0.5, 0.25])
NEAR = torch.randn(2, 400)
MASKS: dict[str, Callable[..., Any] | None] = {
    "all": None,
    "causal": lambda b, h, q, k: q >= k,
    "window": lambda b, h, q, k: (q >= k) & (q - k < 40),
    "documents": lambda b, h, q, k: (DOCUMENTS[q] == DOCUMENTS[k]) & (q >= k),
    "by head": lambda b, h, q, k: q + h * 10 >= k,
}
SCORES: dict[str, Callable[..., Any] | None] = {
    "plain": None,
    "alibi": lambda s, b, h, q, k: s + SLOPES[h] * (k - q),
    "relative": lambda s, b, h, q, k: s + NEAR[h, q - k + 200],
    "capped": lambda s, b, h, q, k: 5 * torch.tanh(s / 5),
}


@pytest.fixture
def attentions(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The ranges of keys of the attentions that are rendered."""
    from treadle_codegen.targets.triton import attention

    found: list[str] = []
    plain = attention._key_range

    def key_range(*args: Any) -> tuple[str, str]:
        first, last = plain(*args)
        found.append(f"{'all' if first == '0' else 'from'} {'to' if last.startswith('v') else 'all'}")
        return first, last

    monkeypatch.setattr(attention, "_key_range", key_range)
    monkeypatch.setattr(flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)  # eager, without torch.compile
    with treadle.config.patch(leave_unprofitable=False), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield found


def rand(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).half()


@pytest.mark.parametrize(
    ("mask", "score", "keys"),
    [
        ("causal", "plain", "all to"), ("window", "plain", "from to"), ("documents", "plain", "all to"), ("by head", "plain", "all to"),
        ("causal", "alibi", "all to"), ("window", "relative", "from to"), ("all", "capped", "all all"), ("documents", "capped", "all to"),
    ],
)  # fmt: skip
def test_flex_attention_is_one_kernel(mask: str, score: str, keys: str, attentions: list[str]) -> None:
    rule, score_mod = MASKS[mask], SCORES[score]

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return flex_attention(q, k, v, score_mod=score_mod, block_mask=blocks, enable_gqa=True)  # type: ignore[return-value]

    q, k, v = rand(2, 2, 170, 32), rand(2, 1, 200, 32), rand(2, 1, 200, 32)
    blocks = None if rule is None else create_block_mask(rule, None, 2, 170, 200, device="cpu")
    with torch.no_grad():
        found, exact = treadle.compile(attend)(q, k, v), attend(q.double(), k.double(), v.double())
    torch.testing.assert_close(found.double(), exact, rtol=0, atol=4e-3)
    assert attentions == [keys]


def test_attention_with_growing_sequences(attentions: list[str]) -> None:
    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        scores = (q @ k.transpose(-2, -1)) / 32**0.5 + mask
        return torch.nn.functional.dropout(scores.softmax(-1), 0.1, training=False) @ v

    compiled = treadle.compile(attend)
    for length in (80, 100, 121):
        q, k, v = [rand(1, 2, length, 32) for _ in range(3)]
        mask = torch.zeros(1, 1, length, length).masked_fill(torch.ones(length, length).triu(1) > 0, -1e4).half()
        with torch.no_grad():
            found, exact = compiled(q, k, v, mask), attend(q.double(), k.double(), v.double(), mask.double())
        torch.testing.assert_close(found.double(), exact, rtol=0, atol=4e-3)
    assert attentions == ["all all"] * len(attentions) and len(attentions) >= 2


def test_attention_to_no_keys(attentions: list[str]) -> None:
    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return (q @ k.mT).softmax(-1) @ v

    compiled, q = treadle.compile(attend), rand(1, 2, 40, 32)
    for length in (80, 100, 0):
        k, v = rand(1, 2, length, 32), rand(1, 2, length, 32)
        with torch.no_grad():
            found, exact = compiled(q, k, v), attend(q.double(), k.double(), v.double())
        torch.testing.assert_close(found.double(), exact, rtol=0, atol=4e-3)
    assert attentions


def capped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return (4 * torch.tanh((q @ k.mT).float() / 4)).softmax(-1).to(v.dtype) @ v


def hidden(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    seen = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril()
    return (q @ k.mT).masked_fill(~seen, -torch.inf).softmax(-1) @ v


def shared_keys(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    k, v = [x[:, :1].expand(-1, 2, -1, -1) for x in (k, v)]
    return (q @ k.mT * 0.3).softmax(-1) @ v


def check_gradients(compiled: Callable[..., Any], attend: Callable[..., Any], args: list[torch.Tensor]) -> int:
    """The most elements of what is saved for backward, once results and gradients are those in float64."""
    exact_args = [x.detach().double().requires_grad_() for x in args]
    seen: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: seen.append(x.numel()) or x, lambda x: x):
        found = compiled(*args)
    exact = attend(*exact_args)
    torch.testing.assert_close(found.double(), exact, rtol=0, atol=4e-3)
    found.float().square().sum().backward()
    exact.square().sum().backward()
    for x, y in zip(args, exact_args, strict=True):
        torch.testing.assert_close(x.grad.double(), y.grad, rtol=2e-2, atol=2e-2)  # type: ignore[union-attr]
    return max(seen)


@pytest.mark.parametrize("attend", [capped, hidden, shared_keys])
def test_attention_with_gradients_keeps_no_weights(attend: Callable[..., Any], attentions: list[str]) -> None:
    compiled = treadle.compile(attend)
    for length in (70, 90, 101):
        args = [(rand(1, 2, length, 32) / 3).requires_grad_() for _ in range(3)]
        assert check_gradients(compiled, attend, args) == args[0].numel()
    assert len(attentions) >= 2


def test_weights_that_the_program_gets_are_kept(attentions: list[str]) -> None:
    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        weights = (q @ k.mT).softmax(-1)
        return weights @ v, weights

    args = [rand(1, 2, 70, 32).requires_grad_() for _ in range(3)]
    found, expected = treadle.compile(attend)(*args), attend(*args)
    gradients = [torch.autograd.grad(y.float().square().sum() + w.float().sum(), args) for y, w in (found, expected)]
    torch.testing.assert_close(gradients[0], gradients[1], rtol=2e-2, atol=2e-2)
    assert not attentions


@pytest.mark.parametrize(("mask", "score"), [("window", "relative"), ("documents", "alibi")])
def test_flex_attention_with_gradients(
    mask: str, score: str, attentions: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flex, "_validate_device", lambda *_: None)  # which refuses gradients of tensors on CPUs
    rule, score_mod = MASKS[mask], SCORES[score]

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return flex_attention(q, k, v, score_mod=score_mod, block_mask=blocks, enable_gqa=True)  # type: ignore[return-value]

    args = [rand(2, 2, 170, 32), rand(2, 1, 200, 32), rand(2, 1, 200, 32)]
    args = [(x / 2).requires_grad_() for x in args]
    blocks = None if rule is None else create_block_mask(rule, None, 2, 170, 200, device="cpu")
    assert check_gradients(treadle.compile(attend), attend, args) < 2 * 2 * 170 * 200
    assert len(attentions) == 1
