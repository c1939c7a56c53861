"""Convolutions of rows, volumes and transposed ones are packed where that gains more than converting layouts costs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from compiled_modules import compile_module
from torch import nn

_LONE = {
    "rows": (nn.Conv1d(16, 32, 1), (1, 16, 8000), 0),
    "points of a volume": (nn.Conv3d(64, 64, 1), (1, 64, 4, 16, 16), 0),
    "volumes": (nn.Conv3d(16, 16, 3, padding=1), (2, 16, 4, 16, 16), 0),
    "one volume": (nn.Conv3d(16, 16, 3, padding=1), (1, 16, 8, 16, 16), 1),
    "transposed": (nn.ConvTranspose2d(16, 16, 2, 2), (1, 16, 32, 32), 0),
    "heavy and transposed": (nn.ConvTranspose1d(512, 256, 4, 2, 1), (1, 512, 50), 1),
    "image": (nn.Conv2d(16, 32, 1), (1, 16, 80, 100), 1),
}


@torch.no_grad()
@pytest.mark.parametrize("name", _LONE)
def test_a_convolution_between_contiguous_tensors(name: str, tmp_path: Path) -> None:
    conv, shape, packed = _LONE[name]
    x = torch.randn(shape)
    compiled, state = compile_module(conv, x, tmp_path)
    assert compiled.ir_text.count("mkldnn._convolution") == packed
    (y,) = compiled(*state, x)
    assert y.stride() == conv(x).stride()
    torch.testing.assert_close(y, conv(x), rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_rows_that_only_loops_read_and_write(tmp_path: Path) -> None:
    module, x = nn.Sequential(nn.Tanh(), nn.Conv1d(16, 32, 1), nn.Tanh()), torch.randn(1, 16, 8000)
    compiled, state = compile_module(module, x, tmp_path)
    assert "mkldnn._convolution" in compiled.ir_text
    torch.testing.assert_close(compiled(*state, x)[0], module(x), rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_a_view_of_an_input_is_an_input(tmp_path: Path) -> None:
    module, x = nn.Sequential(nn.Flatten(2), nn.Conv1d(16, 32, 1)), torch.randn(1, 16, 80, 100)
    compiled, state = compile_module(module, x, tmp_path)
    assert "mkldnn" not in compiled.ir_text
    torch.testing.assert_close(compiled(*state, x)[0], module(x), rtol=1e-4, atol=1e-4)
