"""Small programs whose sizes and numbers only the data can tell, a few operators each, with data for none, one, some, and all rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F


def _random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape) + len(shape)))


X, V = _random(6, 4), _random(8)
ROWS = [(X,), (X.abs() + 1,), (-X.abs() - 1,), (torch.cat([torch.ones(1, 4), -torch.ones(5, 4)]),)]
ITEMS = [
    (V,),
    (V.abs() + 1,),
    (-V.abs() - 1,),
    (torch.tensor([1.0] + [-1.0] * 7),),
    (torch.tensor([1.0] * 2 + [-1.0] * 6),),
]
NUMBERS = [(V, torch.tensor(n)) for n in (3, 5, 0, 1, 8)]
ROW_NUMBERS = [(X, torch.tensor(n)) for n in (3, 2, 0, 1, 4)]
SLICED = [(torch.cat([torch.ones(4, 4), -torch.ones(2, 4)]), torch.tensor(n)) for n in (4, 1, 3, -2, 6, 2, -9, 0)]
KEPT = [
    (_random(5, 2, 6, 6), torch.tensor(kept).bool()) for kept in ([1, 0, 1, 0, 1], [0] * 5, [1] * 5, [0, 0, 1, 0, 0])
]
IMAGE_SIZES = [(_random(1, 2, 6, 6), torch.tensor(n)) for n in (3, 5, 1, 12, 0)]
LABELS = [(torch.tensor(ids),) for ids in ([0, 2, 1, 4], [0, 0, 0, 0], [1, 1, 3, 1])]
LENGTHS = [(X, torch.tensor(n)) for n in ([3, 2, 1], [0, 0, 6], [6, 0, 0])]
PAIRS = [(V, -V), (V.abs() + 1, V), (-V.abs() - 1, V), (torch.tensor([1.0] + [-1.0] * 7), V)]
KERNEL, TABLE = _random(3, 2, 3, 3), _random(5, 3)

Program = tuple[Callable[..., Any], list[tuple[torch.Tensor, ...]]]


def rows(x: torch.Tensor) -> torch.Tensor:
    """Those whose first number is positive."""
    return x[x[:, 0] > 0]


def _attention(x: torch.Tensor, **options: Any) -> torch.Tensor:
    heads = rows(x).view(1, -1, 2, 2).transpose(1, 2)
    return F.scaled_dot_product_attention(heads, heads, heads, **options)


def _written(x: torch.Tensor, write: Callable[..., None]) -> torch.Tensor:
    x = x.clone()
    write(x, x > 0)
    return x


def _set(x: torch.Tensor, key: Any, value: Any) -> None:
    x[key] = value


def _add(x: torch.Tensor, key: Any, value: Any) -> None:
    x[key] += value


def _tokens_back(x: torch.Tensor) -> torch.Tensor:
    places = (x[:, 0] > 0).nonzero().flatten()
    out = torch.zeros_like(x)
    out[places] = F.layer_norm(x[places] @ torch.ones(4, 4), (4,))
    return out


def _detection(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    kept = x[:, 0].sigmoid() > 0.5
    boxes, scores = x[kept], x[kept, 0].sigmoid()
    order = scores.argsort(descending=True)
    return boxes[order], boxes.argmax(1), torch.cat([boxes, scores[:, None]], 1)


def _largest(x: torch.Tensor) -> torch.Tensor:
    chosen = rows(x)
    return torch.take_along_dim(chosen, chosen.argmax(1, keepdim=True), 1)


def _last_channels(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    """Rows of the images resampled as a vision tower does it: the result is viewed as rows, which takes channels that come last."""
    size = n + 1
    images = x[:, 0].reshape(-1)[: size * 2].view(1, size, 2, 1).expand(-1, -1, -1, 3).contiguous().permute(0, 3, 1, 2)
    return F.interpolate(images, size=(size // 2 + 1, 4), mode="bilinear").permute(0, 2, 3, 1).view(-1, 3)


def _cached(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    position = n.item()
    keys = x[None, : position + 1]
    return F.scaled_dot_product_attention(x[None, position:], keys, keys)


def _best(x: torch.Tensor) -> torch.Tensor:
    scores = x.sum(1)
    values, places = scores.topk((scores > 0).sum().item())
    return x[places] * values[:, None]


def _scatter_mean(x: torch.Tensor) -> torch.Tensor:
    groups = (x > 0).sum(1)
    n = groups.max().item() + 1
    counts = torch.zeros(n).index_add(0, groups, torch.ones(6))
    return torch.zeros(n, 4).index_add(0, groups, x) / counts.clamp(min=1)[:, None]


def _checked(x: torch.Tensor, n: torch.Tensor) -> tuple[torch.Tensor, ...]:
    k = n.item()
    torch._check(k >= 0)
    torch._check(k <= 8)
    return x.narrow(0, 0, k).sum(), x[:k].mean()


def _filled_in_two_parts(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    """A static tensor of which each part is written, as positions of an image padded to a fixed number."""
    k = n.item()
    torch._check(k >= 0)
    torch._check(k <= 8)
    out = torch.zeros(2, 8)
    for row in range(2):
        out[row, :k] = x[:k] * 2
        out[row, k:] = x[0]
    return out


def _sorted_by_sums(x: torch.Tensor, group: torch.Tensor) -> torch.Tensor:
    """As many groups as the data tells: added to two rows, so that they are two; their order is written with the number of groups."""
    sums = x.new_zeros(int(group.max()) + 1, 4).index_add(0, group, x) + x[:2]
    return x[:2][sums.sum(1).sort().indices]


PROGRAMS: dict[str, Program] = {
    # ---- operators that ask whether there is nothing, or one
    "roll": (lambda x: torch.roll(rows(x), 1, 0), ROWS),
    "roll of all": (lambda x: torch.roll(rows(x), 1), ROWS),
    "roll by n": (lambda x, n: torch.roll(x, n.item(), 0), ROW_NUMBERS),
    "attention": (lambda x: _attention(x), ROWS),
    "causal attention": (lambda x: _attention(x, is_causal=True), ROWS),
    "logsumexp": (lambda x: rows(x).logsumexp(0), ROWS),
    "cdist": (lambda x: torch.cdist(rows(x), rows(x)), ROWS),
    "diff": (lambda x: rows(x).diff(dim=0), ROWS),
    "unfold": (lambda x: F.unfold(rows(x)[None, None], (1, 2)), ROWS),
    "batch_norm": (lambda x: F.batch_norm(rows(x), torch.zeros(4), torch.ones(4)), ROWS),
    "batch_norm in training": (lambda x: F.batch_norm(rows(x), None, None, training=True), ROWS),
    "cosine_similarity": (lambda x: F.cosine_similarity(rows(x)[:, None], rows(x)[None], dim=-1), ROWS),
    "squeeze": (lambda x: (rows(x).squeeze(), rows(x).squeeze(0), torch.squeeze(rows(x), dim=0), rows(x)[:, :1].squeeze(1)), ROWS),
    "the first place": (lambda x: (x > 0).nonzero()[0], ROWS),
    "a write beside places": (lambda x: (torch.nonzero(x > 0) * 2, torch.zeros(4).add_(x[:, 0].sum())), ROWS),
    # ---- functions of a number of steps, classes or pixels
    "linspace": (lambda x, n: torch.linspace(0, 1, n.item()), NUMBERS),
    "linspace to a number": (lambda x, n: torch.linspace(-2.0, x[0].item(), n.item()), NUMBERS),
    "logspace": (lambda x, n: torch.logspace(0, 1, n.item()), NUMBERS),
    "one_hot": (lambda i: F.one_hot(i), LABELS),
    "one_hot of n classes": (lambda i: F.one_hot(i, i.max().item() + 2), LABELS),
    "tril_indices": (lambda x, n: torch.tril_indices(n.item(), n.item()), NUMBERS),
    "triu_indices": (lambda x: torch.triu_indices(rows(x).shape[0], rows(x).shape[0], 1), ROWS),
    "interpolate": (lambda x, n: F.interpolate(x, size=(n.item(), n.item()), mode="bilinear"), IMAGE_SIZES),
    "interpolate nearest": (lambda x, n: F.interpolate(x, size=(n.item(), 4), mode="nearest"), IMAGE_SIZES),
    "interpolate to tensors": (lambda x, n: F.interpolate(x, size=(n + 1, n), mode="bilinear"), IMAGE_SIZES),
    "interpolate channels-last": (_last_channels, IMAGE_SIZES),
    "interpolate a found length": (lambda x: F.interpolate(rows(x).t()[None], size=7, mode="linear"), ROWS),
    "interpolate images": (lambda x, kept: F.interpolate(x[kept], scale_factor=2.0), KEPT),
    "pad_sequence": (lambda x, n: torch.nn.utils.rnn.pad_sequence(x.split(n.tolist()), batch_first=True), LENGTHS),
    "take_along_dim": (_largest, ROWS),
    # ---- pooling, convolutions, norms
    "max_pool1d": (lambda x: F.max_pool1d(x[x > 0][None], 2, padding=1), ITEMS),
    "avg_pool1d": (lambda x: F.avg_pool1d(x[x > 0][None], 2, padding=1), ITEMS),
    "adaptive_avg_pool1d": (lambda x: F.adaptive_avg_pool1d(x[x > 0][None], 2), ITEMS),
    "max_pool2d": (lambda x, kept: F.max_pool2d(x[kept], 2), KEPT),
    "conv2d": (lambda x, kept: F.conv2d(x[kept], KERNEL, padding=1), KEPT),
    "conv1d of a found length": (lambda x: F.conv1d(rows(x)[:, :2].t()[None], KERNEL[..., 0], padding=1), ROWS),
    "layer_norm": (lambda x: F.layer_norm(rows(x), (4,)), ROWS),
    "group_norm": (lambda x: F.group_norm(rows(x), 2), ROWS),
    "instance_norm": (lambda x: F.instance_norm(rows(x).t()[None]), ROWS),
    "grid_sample": (lambda x: F.grid_sample(rows(x)[None, None], torch.zeros(1, 2, 2, 2), align_corners=False), ROWS),
    # ---- padding, repeating, making tensors
    "pad by n": (lambda x, n: F.pad(x, (0, n.item()), value=1.5), NUMBERS),
    "pad to a length": (lambda x: F.pad(x[x > 0], (0, x.shape[0] - x[x > 0].shape[0])), ITEMS),
    "pad replicate": (lambda x: F.pad(x[x > 0][None], (1, 1), mode="replicate"), ITEMS),
    "pad circular": (lambda x: F.pad(rows(x).t()[None], (1, 1), mode="circular"), ROWS),
    "repeat": (lambda x, n: (x.repeat(n.item()), x.repeat(n.item(), 1), x.tile((n.item(),))), NUMBERS),
    "expand": (lambda x, n: x.expand(n.item(), 8) + 0, NUMBERS),
    "new tensors": (lambda x, n: (x.new_zeros(n.item(), 3), x.new_full((n.item(),), 2.0), torch.eye(n.item())), NUMBERS),
    "full": (lambda x, n: (torch.full((n.item(),), 7), torch.full((3,), n.item())), NUMBERS),
    "arange": (lambda x, n: (torch.arange(1, n.item(), 2), torch.arange(n.item(), dtype=torch.float32)), NUMBERS),
    "a causal mask": (lambda x, n: torch.full((n.item(), n.item()), float("-inf")).triu(1), NUMBERS),
    "a mask of lengths": (lambda x, n: torch.arange(n.max().item())[None] < n[:, None], LENGTHS),
    "tril": (lambda x: torch.tril(rows(x) @ rows(x).t()), ROWS),
    "view": (lambda x, n: torch.ones(n.item() * 2, 3).view(n.item(), 2, 3), NUMBERS),
    # ---- sorting, counting, scattering
    "sort": (lambda x: (x[x > 0].sort(), x[x > 0].argsort(descending=True)), ITEMS),
    "topk of n": (lambda x, n: x.topk(n.item()), NUMBERS),
    "the best": (_best, ROWS),
    "cumsum": (lambda x: (x[x > 0].cumsum(0), rows(x[:, None]).cumprod(0)), ITEMS),
    "bincount": (lambda i: (torch.bincount(i), torch.bincount(i, minlength=6)), LABELS),
    "histc": (lambda x: torch.histc(x[x > 0], 4, 0.0, 2.0), ITEMS),
    "unique_consecutive": (lambda i: torch.unique_consecutive(i, return_counts=True), LABELS),
    "nonzero_static": (lambda x: torch.nonzero_static(x > 0, size=10), ROWS),
    "where": (lambda x: torch.where(x > 0), ROWS),
    "scatter": (lambda x: torch.zeros(6, 4).scatter(0, torch.zeros(rows(x).shape, dtype=torch.int64), rows(x)), ROWS),
    "scatter mean": (_scatter_mean, ROWS),
    "masked_scatter": (lambda x: torch.zeros(8).masked_scatter(x > 0, x[x > 0] * 2), ITEMS),
    "embedding_bag": (lambda i: F.embedding_bag(i[i != 0][None], TABLE), LABELS),
    # ---- several masked results together, masks that are written to
    "cat": (lambda x: torch.cat([x[x[:, 0] > 0], x[x[:, 1] > 0], x[x[:, 0] <= 0]]), ROWS),
    "sum of two of one mask": (lambda x, y: x[x > 0] + y[x > 0], PAIRS),
    "a selection and a slice": (lambda x, n: rows(x) - x[: n.item()], SLICED),
    "a slice and a selection": (lambda x, n: x[n.item() :] * rows(x), SLICED),
    "two slices": (lambda x, n: x[: n.item()] + x[-n.item() :] * 2, SLICED),
    "broadcasting": (lambda x: (rows(x) + torch.ones(4), rows(x) - rows(x)[:1], rows(x).sum(0) + rows(x)), ROWS),
    "write a number": (lambda x: _written(x, lambda y, m: _set(y, m, 0.25)), ITEMS),
    "write a tensor": (lambda x: _written(x, lambda y, m: _set(y, m, y[m] * 2)), ITEMS),
    "write a sum": (lambda x: _written(x, lambda y, m: _add(y, m, 1)), ITEMS),
    "write rows": (_tokens_back, ROWS),
    "one item": (lambda x: x[x > 0].item() + x, [(torch.tensor(v),) for v in ([-1.0, 2.0], [1.0, 2.0], [-1.0, -2.0])]),
    "first and last": (lambda x: (x[x > 0][0], x[x > 0][-1], x[x > 0][:3], x[x > 0][::2]), ITEMS),
    # ---- reductions and what models do
    "reductions": (lambda x: (x[x > 0].mean(), x[x > 0].sum(), rows(x[:, None]).norm()), ITEMS),
    "max": (lambda x: x[x > 0].max(), ITEMS),
    "max of columns": (lambda x: rows(x).max(0), ROWS),
    "softmax": (lambda x: (rows(x).softmax(0), rows(x).log_softmax(1)), ROWS),
    "cross_entropy": (lambda x: F.cross_entropy(rows(x), rows(x).argmax(1)), ROWS),
    "products": (lambda x: (rows(x) @ rows(x).t(), torch.einsum("ij,kj->ik", rows(x), rows(x))), ROWS),
    "split": (lambda x, n: torch.stack([part.sum(0) for part in x.split(n.tolist())]), LENGTHS),
    "segments": (lambda x, n: torch.zeros(3, 4).index_add(0, torch.repeat_interleave(torch.arange(3), n), x), LENGTHS),
    "sorted by sums": (_sorted_by_sums, [(X, torch.tensor(g)) for g in ([0, 1, 0, 1, 1, 0], [1, 1, 1, 0, 1, 1], [0, 2, 2, 1, 1, 0])]),
    "a cache": (_cached, ROW_NUMBERS),
    "two parts of a static tensor": (_filled_in_two_parts, NUMBERS),
    "detection": (_detection, ROWS),
    "stated bounds": (_checked, NUMBERS),
}  # fmt: skip
"""Name -> (program, arguments of its calls). All are one graph."""

SINCE_2_12 = frozenset({"pad circular", "cross_entropy"})
"""What torch 2.11 asks of sizes that nobody knows then: right there, too, but not one compiled graph."""


def _loop(x: torch.Tensor) -> torch.Tensor:
    for i in range(rows(x).shape[0]):
        x = x + i
    return x


DECIDED: dict[str, Program] = {"a loop": (_loop, ROWS)}
"""Name -> programs that need a size as a constant: a graph for each size, while there are few of them."""

BREAKS: dict[str, Program] = {
    "a branch": (lambda x: torch.zeros(4) if rows(x).shape[0] > 2 else rows(x).mean(0), ROWS),
    "a number of parts": (lambda x: torch.chunk(x[x > 0], 2), ITEMS),
    "a write before": (lambda x: torch.roll(rows(x.mul_(2)), 1, 0), ROWS),
}
"""Name -> programs that cannot be one graph: how many values there are, or which way is taken, only the data can tell; or an assumption
of an operator could not be given up any more, for something has been written to."""
