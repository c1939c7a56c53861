"""What eager refuses by its arguments, fake tensors refuse with the same words."""

from __future__ import annotations

import pytest

from treadle_shapes import ShapeEnv

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402, N812 (the name everybody knows)

from treadle_shapes.torch.fake_tensors import fake_mode  # noqa: E402
from treadle_shapes.torch.shape_env import fake_shape_env, fake_tensor  # noqa: E402

REFUSED = {
    "slice_scatter": lambda x: torch.slice_scatter(x, x, 0, 1, 3),
    "slice_scatter of what would broadcast": lambda x: torch.slice_scatter(x, x[:1], 0, 1, 3),
    "slice_scatter from the end": lambda x: torch.slice_scatter(x, x[:, 1:], -1, start=-2),
    "select_scatter": lambda x: torch.select_scatter(x, x, 0, 1),
    "diagonal_scatter": lambda x: torch.diagonal_scatter(x, x),
    "smooth_l1_loss": lambda x: F.smooth_l1_loss(x, x * 2, beta=-1.0),
    "celu": lambda x: F.celu(x, 0.0),
    "celu_": lambda x: torch.celu_(x.clone(), 0.0),
    "logsumexp": lambda x: x.logsumexp(()),
    "index_put": lambda x: x.index_put((torch.arange(2), torch.arange(3)), x[0, 0]),
    "index_put_": lambda x: x.clone().index_put_((torch.arange(2), torch.arange(3)), x[0, 0]),
}
TAKEN = {
    "slice_scatter": lambda x: torch.slice_scatter(x, x[:2], 0, 1, 3),
    "slice_scatter of nothing": lambda x: torch.slice_scatter(x, x[:0], 0, 3, 1),
    "select_scatter": lambda x: torch.select_scatter(x, x[0], 0, 1),
    "diagonal_scatter": lambda x: torch.diagonal_scatter(x, x.diagonal()),
    "smooth_l1_loss": lambda x: F.smooth_l1_loss(x, x * 2, beta=0.0),
    "celu": lambda x: F.celu(x, -1.0),
    "logsumexp": lambda x: x.logsumexp((), keepdim=True),
    "logsumexp of a number": lambda x: x[0, 0].logsumexp(()),
    "logsumexp of nothing": lambda x: x[:0].logsumexp(()),
    "index_put": lambda x: x.index_put((torch.arange(2)[:, None], torch.arange(3)), x[0, 0]),
}


def fakes():
    """(mode, tensor) with constant sizes, and with symbolic ones."""
    mode = fake_mode()
    yield mode, mode.from_tensor(torch.zeros(5, 4))
    env = ShapeEnv()
    mode = fake_mode(shape_env=fake_shape_env(env))
    symbols = [env.create_symbol(size, name) for size, name in ((5, "rows"), (4, "columns"))]
    yield mode, fake_tensor(mode, torch.zeros(5, 4), symbols)


def outcome(function, x):
    try:
        function(x)
    except (RuntimeError, IndexError) as error:
        return type(error), str(error)
    return None


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    expected = outcome(REFUSED[name], torch.zeros(5, 4))
    assert expected is not None
    for mode, x in fakes():
        with mode:
            found = outcome(REFUSED[name], x)
        assert found is not None
        if all(type(size) is int for size in x.shape):
            assert found == expected


@pytest.mark.parametrize("name", TAKEN)
def test_taken(name):
    shape = TAKEN[name](torch.zeros(5, 4)).shape
    for mode, x in fakes():
        with mode:
            assert tuple(int(size) for size in TAKEN[name](x).shape) == tuple(shape)
