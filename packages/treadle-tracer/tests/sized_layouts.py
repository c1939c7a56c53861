"""Tensors of three given sizes in memory layouts that people meet; each keeps its kind when the sizes change."""

from __future__ import annotations

import torch

LAYOUTS = {
    "contiguous": lambda a, b, c: torch.randn(a, b, c),
    "transposed outside": lambda a, b, c: torch.randn(b, a, c).transpose(0, 1),
    "transposed inside": lambda a, b, c: torch.randn(a, c, b).transpose(1, 2),
    "columns": lambda a, b, c: torch.randn(a, b, c + 3)[:, :, :c],
    "every other row": lambda a, b, c: torch.randn(a, 2 * b, c)[:, ::2],
    "at an offset": lambda a, b, c: torch.randn(a + 2, b, c)[2:],
    "expanded outside": lambda a, b, c: torch.randn(1, b, c).expand(a, b, c),
    "expanded inside": lambda a, b, c: torch.randn(a, b, 1).expand(a, b, c),
}
