"""Fake tensors of tensors made of numbers: as PyTorch's own, without the import of torch._dynamo."""

from __future__ import annotations

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

from treadle_shapes.torch import fake_mode  # noqa: E402

MADE = (
    "torch.tensor(2.0)",
    "torch.tensor(3) + 1",
    "torch.tensor([1.0, 2.0])[1:]",
    "torch.tensor(2.0) * torch.tensor([1.0, 2.0])",
    "torch.tensor([[1, 2], [3, 4]]).t()",
    "torch.tensor([])",
    "torch.tensor(True)",
    "torch.tensor(1 + 2j).abs()",
    "torch.ones(3)[torch.tensor(1)]",
    "torch.where(torch.ones(3) > 0, torch.tensor(0.0), torch.ones(3))",
)


@pytest.mark.parametrize("text", MADE)
def test_metadata_is_pytorchs(text):
    with fake_mode():
        ours = eval(text)
    with FakeTensorMode():
        theirs = eval(text)
    real = eval(text)
    for expected in (theirs, real):
        assert (ours.shape, ours.stride(), ours.dtype, ours.device) == (
            expected.shape,
            expected.stride(),
            expected.dtype,
            expected.device,
        )


def test_the_element_is_known_until_it_is_written_to():
    with fake_mode():
        number = torch.tensor(2.0)
        doubled = number * 2
        assert (number.item(), doubled.item()) == (2.0, 4.0)
        view = number.view(1)
        number.add_(1)
        assert (number.item(), view.item(), doubled.item()) == (3.0, 3.0, 4.0)
        number.uniform_()
        with pytest.raises(RuntimeError):
            number.item()


def test_the_programs_tensor_is_not_written_to():
    real = torch.tensor(2.0)
    with fake_mode() as mode:
        lifted = torch.ops.aten.lift_fresh_copy(real)
        lifted.add_(1)
    assert mode is not None and real.item() == 2.0


def test_nothing_is_imported_for_it():
    program = (
        "import sys, torch\nfrom treadle_shapes.torch import fake_mode\n"
        "with fake_mode():\n    y = torch.tensor(2.0) * 3 + torch.tensor([1.0, 2.0]).sum()\n"
        "print(any(name.startswith('torch._dynamo') for name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]
