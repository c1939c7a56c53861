"""The two operators that attention becomes in graphs for GPUs (`targets.triton.attention_graph`), with what they mean in ATen."""

from __future__ import annotations

import functools
from typing import Any

import torch

_libraries: list[torch.library.Library] = []  # what they define lives as long as they


@functools.cache
def operators() -> Any:
    """The namespace of the operators, which the first call defines.

    scores(q, k, dtype)              q: [b, m, e], k: [b, e, n] of 16-bit floats; their product [b, m, n], of `dtype`
    attend(s, v, terms, is_safe)     s: [*, m, n], v: [*, n, d]; softmax(s) @ v; terms: the e above; is_safe: a row of -inf gives 0, not NaN
    """
    library = torch.library.Library("treadle_codegen", "DEF")
    library.define("scores(Tensor q, Tensor k, ScalarType dtype) -> Tensor")
    library.define("attend(Tensor s, Tensor v, int terms, bool is_safe) -> Tensor")
    library.impl("scores", _scores, "CompositeExplicitAutograd")
    library.impl("attend", _attend, "CompositeExplicitAutograd")
    _libraries.append(library)
    return torch.ops.treadle_codegen


def _scores(q: torch.Tensor, k: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return torch.bmm(q.to(dtype), k.to(dtype))


def _attend(s: torch.Tensor, v: torch.Tensor, terms: int, is_safe: bool) -> torch.Tensor:
    weights = torch._safe_softmax(s, -1) if is_safe else torch.softmax(s, -1)
    return torch.matmul(weights.to(v.dtype), v)
