"""Saved-tensor hooks and anomaly mode of the program hear nothing of what happens inside, and are back afterwards."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from treadle_shapes.torch import undisturbed  # noqa: E402


def test_saved_tensor_hooks_are_not_called_inside() -> None:
    seen: list[torch.Tensor] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        seen.append(tensor)
        return tensor

    x = torch.randn(3, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        with undisturbed():
            (x * x).sum().backward()
        assert not seen
        (x * x).sum().backward()
        assert len(seen) == 2
    torch.testing.assert_close(x.grad, 4 * x.detach())


@pytest.mark.filterwarnings("ignore")
def test_anomaly_mode_is_off_inside() -> None:
    with torch.autograd.detect_anomaly(check_nan=False):
        with pytest.raises(ValueError), undisturbed():
            assert not torch.is_anomaly_enabled()
            raise ValueError
        assert torch.is_anomaly_enabled() and not torch.is_anomaly_check_nan_enabled()
    with undisturbed():
        assert not torch.is_anomaly_enabled()
