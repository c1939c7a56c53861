"""Torch functions whose kernels read sizes as plain numbers, written with functions that take symbolic sizes.

They are traced in place of torch's own where such a size is symbolic. `values.rules.unbacked_sizes` selects the calls; arguments that it
does not pass on (`out`, `layout`) are left out. The formulas are those of PyTorch's documentation. Comments tell where a formula
follows a kernel at an edge: one step, nothing to count.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F


def linspace(start: Any, end: Any, steps: Any, *, dtype: Any = None, device: Any = None) -> torch.Tensor:
    """torch.linspace of a floating dtype: from both ends to the middle, as kernels do; one step gives `start`."""
    torch._check(steps >= 0)
    wanted = torch.get_default_dtype() if dtype is None else dtype
    if wanted is torch.float32:
        return _linspace_of_floats(start, end, steps, device)
    place = torch.arange(steps, dtype=wanted, device=device)
    step = (end - start) / max(steps - 1, 1)
    return torch.where(place < max(steps // 2, 1), place * step + start, end - (steps - 1 - place) * step)


def _linspace_of_floats(start: Any, end: Any, steps: Any, device: Any) -> torch.Tensor:
    """The numbers of the kernel, which computes with ends and a step of single precision and rounds once (RangeFactoriesKernel.cpp)."""
    first, last = (torch.full((), number, dtype=torch.float32, device=device) for number in (start, end))
    step = ((last - first) / max(steps - 1, 1)).double()
    place = torch.arange(steps, dtype=torch.float64, device=device)
    rising, falling = first.double() + place * step, last.double() - (steps - 1 - place) * step
    return torch.where(place < max(steps // 2, 1), rising, falling).float()


def logspace(start: Any, end: Any, steps: Any, base: float = 10.0, *, dtype: Any = None, device: Any = None) -> Any:
    """torch.logspace"""
    return torch.pow(base, linspace(start, end, steps, dtype=dtype, device=device))


def fftfreq(n: Any, d: Any = 1.0, *, dtype: Any = None, device: Any = None) -> torch.Tensor:
    """torch.fft.fftfreq of a floating dtype"""
    place = torch.arange(n, dtype=torch.get_default_dtype() if dtype is None else dtype, device=device)
    return torch.where(place < (n + 1) // 2, place, place - n) * (1.0 / (n * d))


def rfftfreq(n: Any, d: Any = 1.0, *, dtype: Any = None, device: Any = None) -> torch.Tensor:
    """torch.fft.rfftfreq of a floating dtype"""
    place = torch.arange(n // 2 + 1, dtype=torch.get_default_dtype() if dtype is None else dtype, device=device)
    return place * (1.0 / (n * d))


def kron(input: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """torch.kron of contiguous tensors with the same number of dimensions"""
    sizes = [size * factor for size, factor in zip(input.shape, other.shape, strict=True)]
    left, right = input, other
    for dim in range(input.dim()):
        left, right = left.unsqueeze(2 * dim + 1), right.unsqueeze(2 * dim)
    return (left * right).view(sizes)


def infer_size(size: Any, other: Any) -> torch.Size:
    """torch._C._infer_size of sizes that broadcast"""
    return torch.broadcast_shapes(size, other)


def tril_indices(row: Any, col: Any, offset: int = 0, *, dtype: Any = torch.int64, device: Any = None) -> Any:
    """torch.tril_indices"""
    return _indices(torch.ones(row, col, dtype=torch.bool, device=device).tril(offset), dtype)


def triu_indices(row: Any, col: Any, offset: int = 0, *, dtype: Any = torch.int64, device: Any = None) -> Any:
    """torch.triu_indices"""
    return _indices(torch.ones(row, col, dtype=torch.bool, device=device).triu(offset), dtype)


def _indices(mask: torch.Tensor, dtype: Any) -> torch.Tensor:
    return mask.nonzero().t().contiguous().to(dtype)


def one_hot_of_classes(input: torch.Tensor, num_classes: Any) -> torch.Tensor:
    """torch.nn.functional.one_hot with a number of classes. Kernels of CUDA check nothing before they write, nor does eager there."""
    if input.device.type == "cpu" and input.numel() != 0:
        torch._check(input.min().item() >= 0)
        torch._check(input.max().item() < num_classes)
    return _one_hot(input, num_classes)


def one_hot(input: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
    """torch.nn.functional.one_hot with the number of classes found in the data."""
    torch._check(input.min().item() >= 0)
    return _one_hot(input, input.max().item() + 1)


def _one_hot(input: torch.Tensor, num_classes: Any) -> torch.Tensor:
    torch._check(num_classes > 0)
    found = input.unsqueeze(-1).eq(torch.arange(num_classes, device=input.device))
    return found.to(torch.int64, memory_format=torch.contiguous_format)


def max_pool1d(
    input: torch.Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> torch.Tensor:
    """torch.nn.functional.max_pool1d without indices: pooling of an image with one row."""
    rows = input.unsqueeze(-2)
    pooled = F.max_pool2d(
        rows, _row(kernel_size), _row(stride or kernel_size), _row(padding, 0), _row(dilation), ceil_mode
    )
    return pooled.squeeze(-2)


def _row(number: Any, across: int = 1) -> tuple[int, Any]:
    return across, number[0] if isinstance(number, (tuple, list)) else number


def pad_sequence(
    sequences: Any, batch_first: bool = False, padding_value: float = 0.0, padding_side: str = "right"
) -> torch.Tensor:
    """torch.nn.utils.rnn.pad_sequence"""
    longest = max(sequence.shape[0] for sequence in sequences)
    padded = []
    for sequence in sequences:
        missing = longest - sequence.shape[0]
        ends = (0, missing) if padding_side == "right" else (missing, 0)
        padded.append(F.pad(sequence, (0, 0) * (sequence.dim() - 1) + ends, value=padding_value))
    return torch.stack(padded, 0 if batch_first else 1)


def equal(input: torch.Tensor, other: torch.Tensor) -> bool:
    """torch.equal of tensors of one dtype."""
    return input.shape == other.shape and bool(torch.eq(input, other).all())


def allclose(
    input: torch.Tensor, other: torch.Tensor, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> bool:
    """torch.allclose"""
    return bool(torch.isclose(input, other, rtol=rtol, atol=atol, equal_nan=equal_nan).all())


def linear(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """torch.nn.functional.linear of three dimensions, with a bias"""
    rows = torch.addmm(bias, input.reshape(-1, input.shape[-1]), weight.t())
    return rows.view(input.shape[0], input.shape[1], weight.shape[0])


def block_diag(*tensors: torch.Tensor) -> torch.Tensor:
    """torch.block_diag"""
    blocks = [torch.atleast_2d(tensor) for tensor in tensors]
    width, left, rows = sum(block.shape[1] for block in blocks), 0, []
    for block in blocks:
        rows.append(F.pad(block, (left, width - left - block.shape[1])))
        left = left + block.shape[1]
    return torch.cat(rows)


def masked_select(input: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """torch.masked_select"""
    tensor, mask = torch.broadcast_tensors(input, mask)
    return tensor[mask]


def gradient(
    input: torch.Tensor, *, spacing: Any = 1, dim: Any = None, edge_order: int = 1
) -> tuple[torch.Tensor, ...]:
    """torch.gradient with steps that are numbers"""
    dims = range(input.dim()) if dim is None else [dim] if isinstance(dim, int) else dim
    steps = spacing if isinstance(spacing, (tuple, list)) else [spacing] * len(dims)
    return tuple([_differences(input, d, step, edge_order) for d, step in zip(dims, steps, strict=True)])


def _differences(x: torch.Tensor, dim: int, step: Any, edge_order: int) -> torch.Tensor:
    """Differences of the neighbours on both sides, at the edges those of one side (aten/src/ATen/native/ReduceOps.cpp)."""
    count = x.shape[dim]
    torch._check(count > edge_order)
    inner = (x.narrow(dim, 2, count - 2) - x.narrow(dim, 0, count - 2)) / step
    if edge_order == 1:
        first = (x.narrow(dim, 1, 1) - x.narrow(dim, 0, 1)) / step
        last = (x.narrow(dim, count - 1, 1) - x.narrow(dim, count - 2, 1)) / step
    else:
        near, next_, far = -1.5 / step, 2.0 / step, -0.5 / step
        first = near * x.narrow(dim, 0, 1) + next_ * x.narrow(dim, 1, 1) + far * x.narrow(dim, 2, 1)
        last = (
            -far * x.narrow(dim, count - 3, 1)
            + -next_ * x.narrow(dim, count - 2, 1)
            + -near * x.narrow(dim, count - 1, 1)
        )
    return torch.cat([first, inner / 2, last], dim)


def affine_grid(theta: torch.Tensor, size: Any, align_corners: bool) -> torch.Tensor:
    """torch.nn.functional.affine_grid of two or three spatial dimensions"""
    places = [_image_axis(count, align_corners, theta) for count in size[2:]]
    axes = torch.meshgrid(*places, indexing="ij")
    base = torch.stack([*reversed(axes), torch.ones_like(axes[0])], -1).flatten(0, -2)
    points = base.expand(size[0], *base.shape).bmm(theta.transpose(1, 2))
    return points.view(size[0], *size[2:], len(places))


def _image_axis(count: Any, align_corners: bool, like: torch.Tensor) -> torch.Tensor:
    """The places of `count` pixels from -1 to 1. The only pixel is in the middle."""
    if count <= 1:
        return torch.zeros(1, dtype=like.dtype, device=like.device)
    places = linspace(-1.0, 1.0, count, dtype=like.dtype, device=like.device)
    return places if align_corners else places * (count - 1) / count
