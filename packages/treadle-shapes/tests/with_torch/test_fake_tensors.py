"""Fake modes that leave PyTorch's own compiler out of the process."""

from __future__ import annotations

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

WITHOUT_DYNAMO = """
import sys, torch
from treadle_shapes.torch.fake_tensors import fake_like, fake_mode

mode = fake_mode()
with mode:
    x = fake_like(mode, torch.ones(2, 3))
    y = torch.nn.functional.softmax(x @ x.t(), -1) + torch.special.erfcx(torch.ones(2))
assert y.shape == (2, 2)
heavy = [name for name in ("torch._dynamo", "torch._inductor") if name in sys.modules]
assert not heavy, heavy
torch._dynamo.reset()
assert type(torch._dynamo).__name__ == "module"
with fake_mode() as mode:
    assert fake_like(mode, torch.ones(2)).shape == (2,)
"""


def test_fake_tensors_leave_dynamo_out_until_it_is_asked_for():
    subprocess.run([sys.executable, "-c", WITHOUT_DYNAMO], check=True, timeout=120)


def test_fake_like_copies_the_metadata():
    from treadle_shapes.torch.fake_tensors import fake_like, fake_mode

    real = torch.randn(2, 3, 4, dtype=torch.float64).transpose(0, 2)[1:]
    fake = fake_like(fake_mode(), real)
    assert (fake.shape, fake.stride(), fake.dtype, fake.storage_offset()) == (real.shape, real.stride(), real.dtype, 0)


def test_a_fake_view_has_the_memory_of_its_source():
    from treadle_shapes.torch.fake_tensors import fake_like, fake_mode, fake_view

    mode = fake_mode()
    source = fake_like(mode, torch.empty(4, 6))
    view = fake_view(mode, source, torch.empty(4, 6)[1:3, ::2])
    assert (tuple(view.shape), view.stride(), view.storage_offset()) == ((2, 3), (6, 2), 6)
    assert view.untyped_storage()._cdata == source.untyped_storage()._cdata
    assert view.device == source.device
