"""Fake tensors made without their constructor are those that it makes."""

from __future__ import annotations

import gc
import weakref

import pytest

torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensor, FakeTensorConfig  # noqa: E402

from treadle_shapes.torch import fake_mode  # noqa: E402
from treadle_shapes.torch.made_fakes import made_fake  # noqa: E402

CPU = torch.device("cpu")


def meta(*sizes: int) -> torch.Tensor:
    return torch.empty(sizes, device="meta")


def test_attributes_keys_and_answers_are_those_of_the_constructor() -> None:
    mode = fake_mode()
    elem = meta(2, 3).t()
    made_fake(mode, elem, CPU)
    theirs, ours = FakeTensor(mode, elem, CPU), made_fake(mode, elem, CPU)
    assert vars(ours) == vars(theirs) and type(ours) is FakeTensor
    assert torch._C._dispatch_keys(ours) == torch._C._dispatch_keys(theirs)
    assert (ours.shape, ours.stride(), ours.device, ours.requires_grad) == ((3, 2), (1, 3), CPU, False)
    assert ours.untyped_storage()._cdata == elem.untyped_storage()._cdata
    assert ours.nonzero_memo is None and ours.item_memo is None
    with mode:
        assert (ours @ ours.t()).shape == (3, 3)


def test_tensors_do_not_share_their_attributes() -> None:
    mode = fake_mode()
    first, second = (made_fake(mode, meta(2), CPU) for _ in range(2))
    first.constant = torch.ones(2)
    third = made_fake(mode, meta(2), CPU)
    assert second.constant is None and third.constant is None


def test_a_mode_is_freed_with_its_tensors() -> None:
    gc.disable()
    try:
        mode = fake_mode()
        tensors = [made_fake(mode, meta(2), CPU) for _ in range(3)]
        found = weakref.ref(tensors[-1])
        alive = weakref.ref(mode)
        del tensors, mode
        assert found() is None
        gc.collect()
        assert alive() is None
    finally:
        gc.enable()


def test_under_the_debug_setting_the_constructor_makes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    mode = fake_mode()
    made_fake(mode, meta(2), CPU)
    monkeypatch.setattr(FakeTensorConfig, "debug", True)
    assert hasattr(made_fake(mode, meta(2), CPU), "_debug_trace")
