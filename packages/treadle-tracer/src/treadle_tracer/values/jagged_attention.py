"""`scaled_dot_product_attention` of jagged tensors on CPUs, as Python code that is traced in place of PyTorch's.

PyTorch computes one product for each sequence there. Here the sequences are padded, and their ends masked.
"""

from __future__ import annotations

import torch

from treadle_tracer.values.jagged_padding import padded, without_padding


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    offsets: tuple[torch.Tensor, torch.Tensor],
    longest: tuple[int | None, int | None],
    scale: float | None,
) -> torch.Tensor:
    """Sequences (heads, total, head_dim), with the offsets and the greatest lengths of queries and of keys, to such sequences."""
    of_queries, of_keys = offsets
    for lengths, most in ((of_queries.diff(), longest[0]), (of_keys.diff(), longest[1])):
        if most is not None:  # PyTorch does not read it on CPUs, so that it may be wrong
            torch._check(bool((lengths <= most).all()))
    is_found = longest[0] is None or longest[1] is None
    most_queries = longest_of(of_queries) if longest[0] is None else longest[0]
    if longest[1] is not None:
        most_keys = longest[1]
    else:
        most_keys = most_queries if of_keys is of_queries else longest_of(of_keys)
    rows = padded(query.transpose(0, 1), of_queries, most_queries, 0.0, is_found).transpose(1, 2)
    keys = padded(key.transpose(0, 1), of_keys, most_keys, 0.0, is_found).transpose(1, 2)
    values = padded(value.transpose(0, 1), of_keys, most_keys, 0.0, is_found).transpose(1, 2)
    is_key = torch.arange(most_keys, device=query.device) < of_keys.diff()[:, None]
    found = torch.nn.functional.scaled_dot_product_attention(
        rows, keys, values, attn_mask=is_key[:, None, None], scale=scale
    )
    return without_padding(found.transpose(1, 2), of_queries, query.shape[1], is_found).transpose(0, 1)


def longest_of(offsets: torch.Tensor) -> int:
    """The greatest length of a sequence."""
    return int(offsets.diff().max().item())
