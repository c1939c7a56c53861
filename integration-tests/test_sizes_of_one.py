"""Sizes that are computed from inputs' sizes and happen to be 1 or 0: broadcasting, aliases and strides are eager's."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F

import treadle

CL = torch.channels_last

DERIVED = {
    "view": lambda x: x[: x.shape[0] // 4 * 4].view(-1, 4),
    "strided": lambda x: x[::4],
    "pooled": lambda x: F.avg_pool1d(x[None], 4)[0],
    "tail": lambda x: x[3:],
    "halves": lambda x: x[: x.shape[0] // 2 * 2].view(x.shape[0] // 2, 2)[:, 0],
    "chunk": lambda x: x.chunk(2)[-1],
    "joined": lambda x: torch.cat([x, x])[3:],
    "windows": lambda x: x.unfold(0, 3, 3)[..., 0],
}
COMBINED = {
    "product": lambda a, b: a * b,
    "choice": lambda a, b: torch.where(a > 1, a, b),
    "addcmul": lambda a, b: torch.addcmul(a, a, b),
    "expanded": lambda a, b: a.expand_as(b) + 0,
    "in place": lambda a, b: a.clone().add_(b),
    "copied": lambda a, b: torch.zeros_like(a).copy_(b),
    "written": lambda a, b: (a.t().contiguous().add_(1), a.sum(), b.reshape(-1).mul_(2)),
    "squeezed": lambda a, b: (a.squeeze(), b.squeeze(0)),
}
LENGTHS = [(8, 8), (8, 4), (4, 12), (12, 12), (5, 13), (4, 4), (3, 9), (6, 2), (16, 4)]


def _outcome(function, x, y):
    try:
        return function(x, y)
    except (RuntimeError, IndexError) as error:
        return type(error)


def _assert_same(got, want):
    if isinstance(want, (type, tuple)):
        assert type(got) is type(want)
        for one, other in zip(got, want, strict=True) if isinstance(want, tuple) else ():
            _assert_same(one, other)
        assert isinstance(want, tuple) or got is want
        return
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("combined", COMBINED)
@pytest.mark.parametrize("derived", DERIVED)
def test_computed_sizes_of_one(derived, combined, dynamic):
    derive, combine = DERIVED[derived], COMBINED[combined]

    def program(x, y):
        return combine(derive(x), derive(y))

    compiled = treadle.compile(program, dynamic=dynamic)
    for first, second in itertools.chain(LENGTHS, [(b, a) for a, b in LENGTHS]):
        given = [torch.arange(float(first)), torch.arange(float(second)) + 1]
        copies = [t.clone() for t in given]
        _assert_same(_outcome(compiled, *given), _outcome(program, *copies))
        _assert_same(tuple(given), tuple(copies))


@pytest.mark.parametrize("dynamic", [None, True])
def test_a_view_that_is_not_possible(dynamic):
    """Fake tensors leave sizes of 1 out when they compare strides, and take such a view for possible."""
    full = torch.arange(40.0).view(4, 2, 5)
    for x in (full[:2, :1], full[:3, :1], torch.ones(1, 1, 5).expand(2, 1, 5), full[:2].transpose(0, 2)[:, :1]):
        compiled = treadle.compile(lambda x: x.view(-1) + 1, dynamic=dynamic)
        for _ in range(2):
            with pytest.raises(RuntimeError, match="view size is not compatible"):
                compiled(x)
        reshaped = treadle.compile(lambda x: (x.reshape(-1) + 1, x.flatten(), x.contiguous().view(-1)), dynamic=dynamic)
        for have, want in zip(reshaped(x), (x.reshape(-1) + 1, x.flatten(), x.reshape(-1)), strict=True):
            assert torch.equal(have, want)


def test_layouts_behind_attention_over_one_image():
    """A decoder of images: the transposed result of attention is channels-last, but for the stride of its batch of one."""
    weight = torch.randn(3, 16, 3, 3)

    def program(tokens, residual):
        image = tokens.transpose(-1, -2).reshape(residual.shape)
        image = (image + residual) / 1.0
        normed = F.silu(F.group_norm(image, 4))
        decoded = F.conv2d(normed, weight, padding=1)
        scaled = F.batch_norm(image, torch.zeros(16), torch.ones(16))
        return image, normed, decoded, scaled, decoded.view(1, -1), F.group_norm(residual.to(memory_format=CL), 4)

    compiled = treadle.compile(program)
    for height, width in ((8, 8), (8, 12), (16, 24), (4, 6)):
        given = torch.randn(1, height * width, 16), torch.randn(1, 16, height, width)
        for have, want in zip(compiled(*given), program(*given), strict=True):
            assert have.stride() == want.stride()
            torch.testing.assert_close(have, want)
    assert not treadle.stats().breaks
