"""Which calls shape functions answer, and which they leave to the kernel."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from treadle_shapes.torch import fake_like, fake_mode  # noqa: E402
from treadle_shapes.torch.shape_inference import Alias, Fresh, infer  # noqa: E402

F = torch.nn.functional


@pytest.fixture
def fake():
    mode = fake_mode()
    return lambda *sizes, **options: fake_like(mode, torch.ones(*sizes, **options))


def test_a_new_tensor_a_view_and_an_argument(fake):
    x = fake(2, 3)
    assert infer(F.linear, (x, fake(5, 3)), {}) == Fresh([2, 5], torch.float32)
    with torch.no_grad():
        view = infer("transpose", (x, 0, 1), {})
    assert isinstance(view, Alias) and view.tensor is x and (view.sizes, view.strides) == ([3, 2], [1, 3])
    assert infer("contiguous", (x,), {}) is x


def test_what_is_left_to_the_kernel(fake):
    x = fake(2, 3)
    assert infer(torch.ops.aten.permute.default, (x, [1, 0]), {}) is None  # an overload
    assert infer(print, (x,), {}) is None  # no operator
    assert infer(torch.linalg.svd, (x,), {}) is None  # an operator without a shape function
    assert infer(F.linear, (x,), {"no_such_argument": 1}) is None  # a call that does not fit
    assert infer(F.linear, (x, fake(5, 4)), {}) is None  # sizes that do not fit


def test_results_that_autograd_records_are_left_to_the_kernel(fake):
    x, w = fake(2, 3), fake(5, 3)
    assert infer("transpose", (x, 0, 1), {}) is None
    w.requires_grad_()
    assert infer(F.linear, (x, w), {}) is None
    with torch.no_grad():
        assert infer(F.linear, (x, w), {}) is not None


def test_tensors_in_sequences_are_recorded_too(fake):
    x, y = fake(2, 3), fake(2, 3)
    assert infer(torch.cat, ([x, y],), {}) == Fresh([4, 3], torch.float32)
    y.requires_grad_()
    assert infer(torch.cat, ([x, y],), {}) is None and infer(torch.cat, (), {"tensors": (x, y)}) is None


def test_views_of_tensors_that_require_grad_are_left_to_autograd() -> None:
    """It gives them a base with gradients off, too."""
    mode = fake_mode()
    with mode:
        plain, weight = torch.empty(4), torch.empty(4, requires_grad=True)
    with torch.no_grad():
        assert infer("transpose", (plain, 0, 0), {}) is not None
        assert infer("transpose", (weight, 0, 0), {}) is None
        assert infer(torch.relu, (weight,), {}) is not None
