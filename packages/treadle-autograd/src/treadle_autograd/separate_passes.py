"""Backward passes through one output after another, where eager's history of one shares nothing with another's.

    d_loss, g_loss = f(real, noise)
    d_loss.backward()       autograd drops what CompiledBackward has saved, for both losses
    g_loss.backward()       reads what was kept for it

In eager each output has nodes of its own, and the first pass drops what these have saved. Here one node saves for all outputs of a graph.
What it has saved for outputs that a pass has not gone through is kept behind that pass by the nodes of these outputs
(`observed.OutputNode`), and so for as long as their histories live.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction

from .stand_ins import without_memory

CHANGED = -1  # for the version of a tensor that was changed before a first pass, which did not read it
_SAVED = "_saved_"  # begins the names of what autograd's own nodes have saved


def freed_by(functions: Sequence[Any]) -> tuple[frozenset[int], ...]:
    """For each of these nodes of outputs the numbers of those whose backward passes drop what a pass from it reads, itself among them.

    Empty where each pass drops what any other reads, so that there is nothing to keep.
    """
    masks = dict.fromkeys(top_down(functions), 0)
    for number, function in enumerate(functions):
        masks[function] |= 1 << number
    shared: set[int] = set()
    for function, mask in masks.items():
        for following, _ in function.next_functions:
            if following is not None:
                masks[following] |= mask
        if mask not in shared and _saves(function):
            shared.add(mask)
    together = [0] * len(functions)
    for mask in shared:
        for number in _numbers(mask):
            together[number] |= mask
    everything = (1 << len(functions)) - 1
    return () if all(mask == everything for mask in together) else tuple(frozenset(_numbers(m)) for m in together)


def top_down(functions: Sequence[Any]) -> list[Any]:
    """These nodes of autograd's graph and all behind them, each in front of those that gradients go on to."""
    order: list[Any] = []
    seen: set[Any] = set()
    pending = [(function, False) for function in functions]
    while pending:
        function, is_done = pending.pop()
        if is_done:
            order.append(function)
        elif function not in seen:
            seen.add(function)
            pending.append((function, True))
            pending += [(below, False) for below, _ in function.next_functions if below is not None]
    return order[::-1]


def _numbers(mask: int) -> Iterator[int]:
    return (number for number in range(mask.bit_length()) if mask >> number & 1)


@functools.cache
def names_of_saved(kind: type) -> tuple[str, ...]:
    """The names under which nodes of autograd's graph tell what they have saved, tensors and numbers."""
    return tuple(name for name in dir(kind) if name.startswith(_SAVED))


def _saves(function: Any) -> bool:
    """Whether a node keeps tensors for its backward pass, so that a second pass raises. Yes, where that is not known."""
    if isinstance(function, BackwardCFunction):
        return True
    try:
        saved = [getattr(function, name) for name in names_of_saved(type(function))]
    except RuntimeError:  # it has been changed in place since
        return True
    return any(isinstance(part, torch.Tensor) for value in saved for part in (value if _is_list(value) else (value,)))


def _is_list(value: Any) -> bool:
    return isinstance(value, (tuple, list))


class Kept:
    """What a backward pass through one output will read of what autograd has dropped: tensors with their versions, by place among all
    that was saved."""

    __slots__ = ("__weakref__", "tensors")

    def __init__(self) -> None:
        self.tensors: dict[int, tuple[torch.Tensor, int]] = {}


class SeparatePasses:
    """The backward passes through the outputs of one call.

    freed_by   as of `JointTrace`
    saved_for  as of `Halves`
    """

    def __init__(self, freed_by: Sequence[Collection[int]], saved_for: Sequence[Collection[int]]) -> None:
        self._freed_by = freed_by
        self._saved_for = saved_for
        self._kept: dict[int, weakref.ref[Kept]] = {}
        self._stand_ins: list[torch.Tensor] = []
        self._freed: frozenset[int] = frozenset()
        #: whether autograd has dropped what it had saved
        self.have_begun = False

    def keeper(self, number: int) -> Kept:
        """What keeps the tensors for the output of this tangent. The output's node holds it."""
        kept = Kept()
        self._kept[number] = weakref.ref(kept)
        return kept

    def let_go(self, given: Collection[int], saved: Sequence[torch.Tensor], changed: Collection[int] = ()) -> None:
        """Behind a pass that came with these tangents and does not keep the graph. saved: what it has read, but for what was `changed`."""
        before, self._freed = self._freed, self._freed.union(given)
        if not self.have_begun:
            self._stand_ins = list(map(without_memory, saved))
        for number, reference in self._kept.items():
            kept = reference()
            if kept is None or not before.isdisjoint(self._freed_by[number]):
                continue
            if not self._freed.isdisjoint(self._freed_by[number]):
                kept.tensors = {}
            elif not self.have_begun:
                versions = [CHANGED if k in changed else tensor._version for k, tensor in enumerate(saved)]
                kept.tensors = {place: (saved[place], versions[place]) for place in self._saved_for[number]}
        self.have_begun = True

    def saved(self, given: Collection[int]) -> list[torch.Tensor] | None:
        """What autograd had saved, for a pass that comes with these tangents; tensors without memory in the place of what it does not
        read. None where an earlier pass has dropped what it reads.

        Raises RuntimeError for what has been changed in place since.
        """
        found = list(self._stand_ins)
        for number in given:
            kept = self._kept[number]() if number in self._kept else None
            if kept is None or not self._freed.isdisjoint(self._freed_by[number]):
                return None
            for place, (tensor, version) in kept.tensors.items():
                if tensor._version != version:
                    now = (
                        ""
                        if version is CHANGED
                        else f" is at version {tensor._version}; expected version {version} instead"
                    )
                    raise RuntimeError(
                        "one of the variables needed for gradient computation has been modified by an inplace operation: a tensor "
                        f"of shape {list(tensor.shape)}{now}"
                    )
                found[place] = tensor
        return found


__all__ = ["Kept", "SeparatePasses", "freed_by", "names_of_saved", "top_down"]
