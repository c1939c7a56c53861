"""What a partition saves and what it computes again, as a table for people.

saved     16.0 KiB  float32[64, 64]   aten.mm.default              model.py:12
computed again      float32[64, 64]   aten.gelu.default            model.py:13   pointwise: fuses into its readers
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from treadle_shapes.torch import operator as operator_of

from ..ancestors import ancestors
from ..graph_runner import user_line
from ..node_sizes import is_number, size_in_bytes
from .classify import is_view, why_not_recompute
from .split import Halves


@dataclass(frozen=True)
class _Value:
    """A tensor of the forward part. shape: sizes, symbolic ones as text; line: the user's."""

    name: str
    operator: str
    shape: tuple[int | str, ...]
    dtype: torch.dtype
    line: str


@dataclass(frozen=True)
class SavedValue(_Value):
    """A tensor that is kept from forward to backward. bytes: 0 for an input, which lives anyway."""

    bytes: int


@dataclass(frozen=True)
class RecomputedValue(_Value):
    """A tensor that backward computes again."""

    why: str


@dataclass(frozen=True)
class PartitionReport:
    """The saved and the recomputed values of one graph, both in graph order."""

    saved: tuple[SavedValue, ...]
    recomputed: tuple[RecomputedValue, ...]

    @property
    def saved_bytes(self) -> int:
        """The bytes of all saved values, inputs left out."""
        return sum(value.bytes for value in self.saved)

    def __str__(self) -> str:
        lines = [f"saved: {len(self.saved)} tensors, {_size(self.saved_bytes)} without inputs"]
        for value in self.saved:
            size = _size(value.bytes) if value.bytes else "input"
            lines.append(f"  {size:>10}  {_text(value):<28} {value.operator:<40} {value.line}".rstrip())
        lines.append(f"computed again: {len(self.recomputed)} tensors")
        for again in self.recomputed:
            lines.append(f"  {'':>10}  {_text(again):<28} {again.operator:<40} {again.line}: {again.why}")
        return "\n".join(lines)


def report(halves: Halves) -> PartitionReport:
    """The table of one partition."""
    saved = [
        SavedValue(*_described(node), 0 if node.op == "placeholder" else size_in_bytes(node)) for node in halves.saved
    ]
    needed = ancestors(halves.classes.needed, frozenset(halves.saved), halves.classes.inputs_of)
    again = [
        RecomputedValue(*_described(node), _why(node, halves))
        for node in halves.classes.order
        if node in needed and node not in halves.saved and node.op != "placeholder" and _is_tensor(node)
    ]
    return PartitionReport(tuple(saved), tuple(again))


_OF_COMPILER = "in a part that the compiler does not keep in memory"


def _is_tensor(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor) and not is_number(node)


def _described(node: fx.Node) -> tuple[str, str, tuple[int | str, ...], torch.dtype, str]:
    value: Any = node.meta["val"]
    call = node.all_input_nodes[0] if node.target is operator.getitem else node
    name = "input" if node.op == "placeholder" else str(call.target)
    shape = tuple(n if isinstance(n, int) else str(n) for n in value.shape)
    return node.name, name, shape, value.dtype, user_line(node.meta.get("stack_trace"))


def _why(node: fx.Node, halves: Halves) -> str:
    call = node.all_input_nodes[0] if node.target is operator.getitem else node
    if is_view(node):
        return "a view, which takes no computing"
    if node in halves.classes.from_statistics:
        return "pointwise, from the statistics"
    if call in halves.classes.joint.states:
        return "random numbers, drawn again from the generator's state"
    if node in halves.classes.interior or call in halves.classes.interior:
        return "in a checkpointed part" if call.meta.get("checkpoint") is not None else _OF_COMPILER
    reason = why_not_recompute(call)
    if reason is not None:
        return f"{reason}, the memory budget does not allow to keep it"
    found = operator_of(call.target)
    return f"{found.kind.name.lower()}, cheap or fused into its readers" if found is not None else "free"


def _text(value: _Value) -> str:
    return f"{str(value.dtype).removeprefix('torch.')}[{', '.join(map(str, value.shape))}]"


def _size(n_bytes: int) -> str:
    for unit, scale in (("MiB", 2**20), ("KiB", 2**10)):
        if n_bytes >= scale:
            return f"{n_bytes / scale:.1f} {unit}"
    return f"{n_bytes} B"
