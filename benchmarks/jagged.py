"""Jagged nested tensors: eager, Treadle and torch.compile side by side, and eager with padding in place of them.

    python benchmarks/jagged.py                                   all programs, to benchmarks/results/jagged.json
    python benchmarks/jagged.py --programs "encoder" --no-torch

Batches of 16 sequences whose lengths differ from call to call, between 8 and 256, float32. Every program runs on one thread in a process
of its own, in which the calls of the variants are interleaved. A figure is the median of the processor's microseconds of one call, of the
calls after those that compile; results are compared with eager's.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))

import single_programs  # noqa: E402

DEFAULT_OUTPUT = ROOT / "benchmarks" / "results" / "jagged.json"
UNTIMED, TIMED = 8, 16
FEATURES, HEADS = 256, 8


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(FEATURES, FEATURES) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = [f(x).unflatten(-1, [HEADS, -1]).transpose(1, 2) for f in (self.query, self.key, self.value)]
        return self.out(F.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(-2))  # type: ignore[no-any-return]


class FeedForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(FEATURES)
        self.layers = nn.Sequential(nn.Linear(FEATURES, 4 * FEATURES), nn.GELU(), nn.Linear(4 * FEATURES, FEATURES))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.layers(self.norm(x))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attention, self.rest = nn.LayerNorm(FEATURES), Attention(), FeedForward()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.rest(x + self.attention(self.norm(x)))  # type: ignore[no-any-return]


class Encoder(nn.Module):
    """Tokens to one vector for each sequence."""

    def __init__(self, block: Callable[[], nn.Module], pool: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.tokens, self.blocks = nn.Embedding(1000, FEATURES), nn.Sequential(*(block() for _ in range(4)))
        self.pool = pool

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.pool(self.blocks(self.tokens(tokens)))


class Gate(nn.Module):
    """Nothing but work on elements."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.ones(FEATURES)), nn.Parameter(torch.zeros(FEATURES))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.sigmoid(F.silu(x) * self.scale + self.shift) + x.tanh()


def mean_of_all(x: torch.Tensor) -> torch.Tensor:
    return x.values().mean(0)


def softmax_pool(x: torch.Tensor) -> torch.Tensor:
    return (torch.softmax(x, 1) * x).sum(1)


# A name, the blocks of the model, what pools it, and whether gradients are computed. Eager has none of attention on CPUs.
PROGRAMS: dict[str, tuple[type[nn.Module], Callable[[torch.Tensor], torch.Tensor], bool]] = {
    "encoder": (Block, lambda x: x.mean(1), False),
    "feed forward": (FeedForward, lambda x: x.mean(1), False),
    "feed forward, training": (FeedForward, mean_of_all, True),
    "elements": (Gate, mean_of_all, False),
    "elements, training": (Gate, mean_of_all, True),
    "softmax over sequences": (Gate, softmax_pool, False),
}


def batches() -> Any:
    """Batches of tokens without end."""
    source = torch.Generator().manual_seed(1)
    for _ in itertools.count():
        lengths = torch.randint(8, 257, (16,), generator=source).tolist()
        rows = [torch.randint(0, 1000, (length,), generator=source) for length in lengths]
        yield torch.nested.nested_tensor(rows, layout=torch.jagged)


def measure(name: str, with_torch: bool) -> dict[str, int]:
    """Microseconds of the variants. Raises AssertionError where results differ from eager's."""
    import treadle

    torch.set_num_threads(1)
    torch.manual_seed(0)
    block, pool, is_training = PROGRAMS[name]
    model = Encoder(block, pool)
    parameters = list(model.parameters())
    variants: dict[str, Callable[..., Any]] = {"eager": model, "treadle": treadle.compile(model)}
    if with_torch:
        variants["torch.compile"] = torch.compile(model)
    given = list(itertools.islice(batches(), UNTIMED + TIMED))
    calls = {variant: iter(given) for variant in variants}

    def call(forward: Callable[..., Any]) -> Any:
        variant = next(one for one, function in variants.items() if function is forward)
        result = forward(next(calls[variant]))
        if is_training:
            return torch.autograd.grad(result.square().sum(), parameters)
        return result

    with torch.set_grad_enabled(is_training):
        return single_programs.interleaved(variants, call, UNTIMED, TIMED, 1e-4)


if __name__ == "__main__":
    sys.exit(single_programs.run(__doc__, "jagged.py", PROGRAMS, DEFAULT_OUTPUT, measure, sys.argv[1:]))
