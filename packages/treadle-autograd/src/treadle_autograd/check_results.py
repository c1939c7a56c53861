"""Check what a compiled graph returns against the graph: a compiler is not ours alone, and autograd trusts its results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from treadle_shapes.torch import operator

from .errors import WrongResult


def check_callable(compiled: Any, name: str) -> None:
    """Raise WrongResult if a compiler has returned something that cannot be called."""
    if not callable(compiled):
        raise WrongResult(f"the compiler of the {name} graph returned {type(compiled).__name__}, which is not callable")


def check_results(results: Any, expected: Sequence[fx.Node | None], name: str) -> None:
    """Raise WrongResult if `results` are not a sequence of what the nodes say: tensors of their sizes, strides and dtypes, and numbers.

    Symbolic sizes and strides are not compared, and strides only where they count: not of empty tensors nor of sizes of 1.
    """
    where = f"the compiled {name} graph"
    if not isinstance(results, (list, tuple)):
        raise WrongResult(f"{where} returned {type(results).__name__}, not a list or tuple of {len(expected)} results")
    if len(results) != len(expected):
        raise WrongResult(f"{where} returned {len(results)} results, the graph has {len(expected)} outputs")
    for position, (result, node) in enumerate(zip(results, expected, strict=True)):
        value = None if node is None else node.meta.get("val")
        if not isinstance(value, torch.Tensor) or _is_opaque(node):
            continue
        if not isinstance(result, torch.Tensor):
            raise WrongResult(f"{where} returned {type(result).__name__} as result {position}, not a tensor")
        for what, mine, theirs in (
            ("dtype", result.dtype, value.dtype),
            ("shape", tuple(result.shape), tuple(value.shape)),
            ("strides", result.stride(), value.stride()),
        ):
            if not _agree(what, mine, theirs, result):
                raise WrongResult(
                    f"{where} returned a tensor with {what} {mine} as result {position} ({node.name}), expected {theirs}"  # type: ignore[union-attr]
                )


def _is_opaque(node: fx.Node | None) -> bool:
    """Whether the node is an item of a call whose fake results do not have the sizes of the real ones."""
    calls = [node, *node.all_input_nodes[:1]] if node is not None else []
    records = [operator(call.target) for call in calls if isinstance(call.target, torch._ops.OpOverload)]
    return any(record is not None and record.has_opaque_result for record in records)


def _agree(what: str, mine: Any, theirs: Any, result: torch.Tensor) -> bool:
    if what == "dtype":
        return bool(mine == theirs)
    if len(mine) != len(theirs):
        return False
    sizes = result.shape if what == "strides" else (2,) * len(mine)
    if what == "strides" and result.numel() == 0:
        return True
    pairs = zip(sizes, mine, theirs, strict=True)
    return all(size == 1 or not isinstance(t, int) or m == t for size, m, t in pairs)
