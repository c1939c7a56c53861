"""Inference mode as two calls, in every nesting with grad mode."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from treadle_shapes.torch import (  # noqa: E402
    enter_inference_mode,
    inference_mode_depth,
    leave_inference_mode,
    leave_inference_modes,
)


def modes() -> tuple[bool, bool]:
    return torch.is_inference_mode_enabled(), torch.is_grad_enabled()


@pytest.mark.parametrize("grad", [True, False])
def test_each_call_is_undone(grad):
    with torch.set_grad_enabled(grad):
        enter_inference_mode(True)
        assert modes() == (True, False)
        enter_inference_mode(False)
        assert modes() == (False, True)
        torch._C._set_grad_enabled(False)
        leave_inference_mode()
        assert modes() == (True, False)
        leave_inference_mode()
        assert modes() == (False, grad)


def test_all_beyond_a_depth_are_undone():
    enter_inference_mode(True)
    depth = inference_mode_depth()
    enter_inference_mode(False)
    enter_inference_mode(True)
    leave_inference_modes(depth)
    assert modes() == (True, False) and inference_mode_depth() == depth
    leave_inference_modes(depth - 1)
    assert modes() == (False, True)
