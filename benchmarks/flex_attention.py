"""FlexAttention: eager, Treadle, torch.compile and, where it computes the same, the fused kernel of PyTorch side by side.

    python benchmarks/flex_attention.py                           all programs, to benchmarks/results/flex_attention.json
    python benchmarks/flex_attention.py --programs "causal 2048" --no-torch

One batch, 8 heads of 64 features, float32. Every program runs on one thread in a process of its own, in which the calls of the variants
are interleaved. A figure is the median of the processor's microseconds of one call; results are compared with eager's. The fused kernel
(`scaled_dot_product_attention`) knows no mask but the causal one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))

import single_programs  # noqa: E402

DEFAULT_OUTPUT = ROOT / "benchmarks" / "results" / "flex_attention.json"
UNTIMED, TIMED = 2, 7
HEADS, FEATURES = 8, 64
SLOPES = 2.0 ** -torch.arange(1.0, HEADS + 1)

Modification = Callable[..., torch.Tensor]


def causal(b: Any, h: Any, query: Any, key: Any) -> torch.Tensor:
    return query >= key  # type: ignore[no-any-return]


def window(b: Any, h: Any, query: Any, key: Any) -> torch.Tensor:
    return (query >= key) & (query - key < 256)  # type: ignore[no-any-return]


def documents(b: Any, h: Any, query: Any, key: Any) -> torch.Tensor:
    return (query >= key) & (query // 300 == key // 300)  # type: ignore[no-any-return]


def linear_biases(score: Any, b: Any, h: Any, query: Any, key: Any) -> torch.Tensor:
    return score + SLOPES[h] * (key - query)  # type: ignore[no-any-return]


def capped(score: Any, b: Any, h: Any, query: Any, key: Any) -> torch.Tensor:
    return 20 * torch.tanh(score / 20)


KINDS: dict[str, tuple[Modification | None, Modification | None]] = {
    "everything": (None, None),
    "causal": (None, causal),
    "window of 256": (None, window),
    "documents of 300": (None, documents),
    "linear biases, causal": (linear_biases, causal),
    "soft cap, causal": (capped, causal),
}
PROGRAMS = {f"{kind}, {length}": (kind, length) for kind in KINDS for length in (256, 1024, 4096)}


def measure(name: str, with_torch: bool) -> dict[str, int]:
    """Microseconds of the variants. Raises AssertionError where results differ from eager's."""
    import treadle

    torch.set_num_threads(1)
    torch.manual_seed(0)
    kind, length = PROGRAMS[name]
    modification, mask = KINDS[kind]
    seen = None if mask is None else create_block_mask(mask, None, None, length, length, device="cpu")
    given = [torch.randn(1, HEADS, length, FEATURES) for _ in range(3)]

    def program(*args: torch.Tensor) -> Any:
        return flex_attention(*args, score_mod=modification, block_mask=seen)

    variants: dict[str, Callable[..., Any]] = {"eager": program, "treadle": treadle.compile(program)}
    if with_torch:
        variants["torch.compile"] = torch.compile(program)
    if modification is None and mask in (None, causal):
        variants["fused kernel"] = lambda *args: scaled_dot_product_attention(*args, is_causal=mask is not None)
    with torch.no_grad():
        return single_programs.interleaved(variants, lambda forward: forward(*given), UNTIMED, TIMED, 1e-4)


if __name__ == "__main__":
    sys.exit(single_programs.run(__doc__, "flex_attention.py", PROGRAMS, DEFAULT_OUTPUT, measure, sys.argv[1:]))
