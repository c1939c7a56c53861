"""What `treadle.explain` tells about sizes."""

from __future__ import annotations

import torch

import treadle


def program(x, y):
    if x.shape[0] > 3 and y.shape[1] == 2:
        return x.sum() + y.sum()
    return x.sum() * 2


def test_static_sizes_are_told():
    explanation = treadle.explain(program)(torch.ones(4, 8), torch.ones(5, 2))
    assert explanation.sizes == [
        "x.size()[0]: static, 4",
        "x.size()[1]: static, 8",
        "y.size()[0]: static, 5",
        "y.size()[1]: static, 2",
    ]
    assert str(explanation).splitlines()[-4:] == explanation.sizes
    assert explanation.result.item() == 42


def test_dynamic_sizes_and_the_lines_that_constrain_them():
    sizes = treadle.explain(program, dynamic=True)(torch.ones(4, 8), torch.ones(5, 2)).sizes
    x0 = sizes.index("x.size()[0]: dynamic, 4 or more")
    assert sizes[x0 + 1].startswith("    x.size()[0] >= 4, decided at ")
    assert "if x.shape[0] > 3 and y.shape[1] == 2:" in sizes[x0 + 1]
    assert any(text.startswith("x.size()[1]: dynamic, ") for text in sizes)
    y1 = sizes.index("y.size()[1]: static, it must be 2")
    assert "test_explain.py:" in sizes[y1 + 1]


def test_marked_ranges_and_ints():
    x = torch.ones(4, 8)
    treadle.mark_dynamic(x, 0, min=2, max=16)
    sizes = treadle.explain(lambda x: x * 2)(x).sizes
    assert sizes == ["x.size()[0]: dynamic, 2 to 16", "x.size()[1]: static, 8"]
