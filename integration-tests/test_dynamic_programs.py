"""Short programs of the kind people write around models that were once wrong at changing sizes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import treadle


@pytest.fixture(autouse=True)
def fresh():
    torch.manual_seed(0)
    treadle.reset()
    with treadle.config.patch(raise_internal_errors=True), torch.no_grad():
        yield
    treadle.reset()


def compiles_over(program, *shapes) -> int:
    """Graphs compiled over calls with tensors of these shapes, every result compared with eager's, layout included."""
    compiled = treadle.compile(program)
    for shape in shapes:
        x = torch.randn(shape)
        got, want = compiled(x.clone()), program(x.clone())
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5, check_stride=True)
    return treadle.stats().graphs


def test_kernels_that_take_plain_sizes_after_a_write():
    """Where something is written to, the graph runs again by kernels of C++; some of them take no symbolic sizes."""

    def resized(x):
        y = F.relu(x + 1, inplace=True)
        return F.interpolate(y[None, None], size=(x.shape[0] + 1, x.shape[1]), mode="nearest")

    assert compiles_over(resized, (3, 8), (4, 9), (5, 6), (2, 7)) == 2


def test_squares_of_rounded_sizes():
    """A multiple of 4 in both dimensions: the sizes of the result are squares of remainders."""

    def padded(x):
        missing = -x.shape[0] % 4
        square = F.pad(x[:, : x.shape[0]], (0, missing, 0, missing))
        return square.flatten() + 1

    assert compiles_over(padded, (3, 8), (5, 9), (6, 6), (9, 10)) <= 3


def test_an_expanded_tensor_beside_a_write_admits_one():
    def biased(x):
        rows = torch.arange(x.shape[1])
        bias = (rows[:, None] - rows).float().unsqueeze(0).expand((x.shape[0], -1, -1))
        y = x.relu()
        y += bias.sum(-1)
        return y

    assert compiles_over(biased, (2, 8), (1, 17), (3, 5), (1, 9)) == 2


def test_pooling_of_sequences_admits_one():
    def pooled(x):
        hidden = torch.layer_norm(x[:, :, None] * torch.ones(4), (4,))
        return torch.nn.functional.adaptive_avg_pool1d(hidden.transpose(1, 2), 1).flatten(1)

    assert compiles_over(pooled, (2, 8), (1, 17), (3, 5), (1, 9)) == 2


def test_windows_of_a_padded_image_and_back():
    """What -1 stands for follows from divisibility: windows of 4 rows, put together again by image."""

    def windowed(x):
        channels = x.shape[-1]
        rows = F.pad(x, (0, 0, 0, 0, 0, -x.shape[1] % 4))
        height, width = rows.shape[1], rows.shape[2]
        windows = (
            rows.view(x.shape[0], height // 4, 4, width // 4, 4, channels).transpose(2, 3).reshape(-1, 4, 4, channels)
        )
        images = (
            windows.view(-1, height // 4, width // 4, 4, 4, channels)
            .transpose(2, 3)
            .reshape(-1, height, width, channels)
        )
        return images + 1

    assert compiles_over(windowed, (2, 7, 12, 3), (1, 10, 12, 3), (3, 9, 12, 3)) <= 3


def test_a_layout_chosen_by_the_stride_of_a_size_of_one():
    """At batch 1 eager's reshape gives strides by which an interpolation takes the image for contiguous."""

    def upsampled(x):
        image = x.transpose(1, 2).reshape(x.shape[0], -1, 5, 6)
        return F.interpolate(image, size=(10, 12), mode="bilinear"), image

    assert compiles_over(upsampled, (2, 30, 8), (1, 30, 8), (3, 30, 8)) <= 3


def test_a_number_that_is_compared_after_the_graph_has_used_another():
    """`at + 1 == end` lets sizes be written with `end`, of which the graph knows nothing."""

    def stored(x, end, at):
        if end > 100:
            return x, None
        row = x.select(0, at) * 2 + torch.ones(at).sum()
        return (row, True) if at + 1 == end else (row, False)

    compiled = treadle.compile(stored)
    for end, at in ((3, 2), (5, 4), (4, 3), (7, 3), (8, 2), (9, 8)):
        x = torch.randn(10, 3)
        torch.testing.assert_close(compiled(x, end, at), stored(x, end, at))
    assert len(treadle.stats().breaks) == 0


def test_part_of_a_product_of_batches_beside_a_write():
    """The result of `matmul` is the memory of `bmm`'s result, which has another size, in one of two runs only (masks of SAM)."""

    def masks(x):
        weights = x * 2
        weights[:, :, 0] += 1
        return (weights @ x.transpose(2, 3).contiguous())[:, :, 1:]

    assert compiles_over(masks, (1, 1, 4, 8), (2, 1, 4, 8), (3, 1, 4, 8), (5, 1, 4, 8)) == 2
    assert not treadle.stats().eager_graphs


def test_a_program_that_asks_for_strides_of_its_results():
    """Eager gives these results another layout than PyTorch's fake kernels do. Programs read strides, and decide by them."""

    def told(x):
        phases = torch.complex(x, x + 1).transpose(1, 2).angle()
        gates = F.logsigmoid(x.transpose(0, 1))
        if phases.is_contiguous() and gates.is_contiguous():
            phases = phases + 1
        y = x * 2
        y += 1
        return phases, gates.as_strided((2, 2), gates.stride()[1:]), y

    assert compiles_over(told, (2, 5, 6), (3, 5, 6), (3, 5, 7), (4, 5, 8)) <= 3
    assert not treadle.stats().eager_graphs


def test_the_layout_of_rolled_images():
    def rolled(x):
        return x.to(memory_format=torch.channels_last).roll((1, -2), (2, 3))

    with treadle.config.patch(leave_unprofitable=False):
        assert compiles_over(rolled, (2, 4, 6, 8), (3, 4, 6, 8), (3, 4, 7, 8)) <= 3
