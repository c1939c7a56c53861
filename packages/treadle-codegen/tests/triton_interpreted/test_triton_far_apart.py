"""Elements that lie further apart than 32-bit indices reach, of tensors with few elements: little of their memory is ever touched."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from aten_capture import capture

from treadle_codegen import compile_graph

FAR = 1 << 30  # the third row begins behind 2**31 elements
CASES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sums of columns": lambda x: x.sum(0),
    "largest of all": lambda x: x.amax(),
    "positions": lambda x: x.argmax(0),
    "running totals": lambda x: x.cumsum(0),
    "softmax": lambda x: x.float().softmax(0),
    "norm": lambda x: F.layer_norm(x.float().t(), (3,)),
    "transposed": lambda x: x.t().contiguous(),
    "point by point": lambda x: x + 1,
}


@pytest.mark.parametrize("name", CASES)
def test_rows_far_apart(name: str) -> None:
    x = torch.empty_strided((3, 8), (FAR, 1), dtype=torch.int8)
    x[:] = torch.arange(24, dtype=torch.int8).view(3, 8) * 5 % 17
    compiled = compile_graph(capture(CASES[name], [x]), [x])
    torch.testing.assert_close(compiled(x)[0], CASES[name](x))


@pytest.mark.parametrize("far", ["keys", "values"])
def test_attention_to_what_lies_far_apart(far: str) -> None:
    q, near, wide = torch.randn(1, 40, 16).half(), torch.randn(1, 65, 16).half(), torch.randn(1, 65, 16).half()
    strided = torch.empty_strided((1, 65, 16), (FAR * 2, FAR >> 5, 1), dtype=torch.float16)
    strided[:] = wide
    k, v = (strided, near) if far == "keys" else (near, strided)
    compiled = compile_graph(capture(_attend, [q, k, v]), [q, k, v])
    torch.testing.assert_close(compiled(q, k, v)[0], _attend(q, k, v), rtol=1e-2, atol=1e-2)
    assert "softmax_step(top" in compiled.source


def _attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return (q @ k.mT).softmax(-1) @ v
