"""Writes to parameters that no version counter sees are noticed, whichever element they change."""

from __future__ import annotations

import pytest
import torch
from aten_capture import capture

from treadle_codegen import CodegenOptions, compile_graph


def doubled(weight):
    """A compiled graph with `weight * 2` done once for many calls, and its input."""
    x = torch.ones(1, dtype=weight.dtype)
    compiled = compile_graph(capture(lambda x, w: x + (w * 2), [x, weight], static=(1,)), [x, weight])
    assert compiled._prologue is not None
    return lambda: compiled(x, weight)[0], lambda: x + weight * 2


SMALL = {
    "floats": torch.zeros(30),
    "an odd number of bytes": torch.zeros(1003, dtype=torch.int8),
    "halves": torch.zeros(3, dtype=torch.float16),
    "one": torch.zeros(1, dtype=torch.int8),
    "4 KiB": torch.zeros(1024),
    "channels last": torch.zeros(2, 8, 3, 3).to(memory_format=torch.channels_last),
    "transposed": torch.zeros(20, 30).t(),
}


@pytest.mark.parametrize("name", SMALL)
def test_every_element_of_a_small_tensor_is_seen(name):
    weight = SMALL[name].clone(memory_format=torch.preserve_format)
    run, expected = doubled(weight)
    assert torch.equal(run(), expected())
    version = weight._version
    for at in {0, 1 % weight.numel(), weight.numel() // 2, weight.numel() - 1}:
        index = tuple(int(i) for i in torch.unravel_index(torch.tensor(at), weight.shape))
        weight.data[index] = 5
        assert torch.equal(run(), expected()), at
        weight.numpy()[index] = 3
        assert torch.equal(run(), expected()), at
    assert weight._version == version


@pytest.mark.parametrize("shape", [(100, 300), (64, 32, 3, 3), (7, 1031)])
def test_every_element_of_a_large_tensor_is_seen(shape):
    weight = torch.randn(shape)
    if len(shape) == 4:
        weight = weight.to(memory_format=torch.channels_last)
    run, expected = doubled(weight)
    for _ in range(5):  # then the kernel watches it, where it does
        assert torch.equal(run(), expected())
    version = weight._version
    generator = torch.Generator().manual_seed(0)
    for at in torch.randint(weight.numel(), (50,), generator=generator).tolist():
        weight.numpy()[tuple(int(i) for i in torch.unravel_index(torch.tensor(at), shape))] += 1
        assert torch.equal(run(), expected()), at
    weight.data[:2] = weight.data[:2].flip(0).clone()  # the same words in other places
    assert torch.equal(run(), expected())
    assert weight._version == version
    weight.detach()[0, 1] = 9  # shares the version counter
    assert torch.equal(run(), expected())


def test_frozen_weights_are_not_read():
    x, weight = torch.ones(1), torch.zeros(1000)
    options = CodegenOptions(frozen_weights=True)
    compiled = compile_graph(capture(lambda x, w: x + (w * 2), [x, weight], static=(1,)), [x, weight], options=options)
    assert "treadle_probe" not in compiled.source
    assert torch.equal(compiled(x, weight)[0], x + weight * 2)
    weight.add_(1)
    assert torch.equal(compiled(x, weight)[0], x + weight * 2)


@pytest.mark.parametrize("shape", [(100, 300), (64, 32, 3, 3)])
def test_writes_to_all_elements_or_the_last_of_a_large_tensor_are_seen(shape):
    weight = torch.randn(shape)
    if len(shape) == 4:
        weight = weight.to(memory_format=torch.channels_last)
    run, expected = doubled(weight)
    for _ in range(5):
        assert torch.equal(run(), expected())
    weight.data.mul_(1.5)
    assert torch.equal(run(), expected())
    weight.data[tuple(n - 1 for n in shape)] = 7
    assert torch.equal(run(), expected())
    weight.detach()[0, 1] = 9  # shares the version counter
    assert torch.equal(run(), expected())
