"""Tensors that share a version counter with one that the graph writes to: views of one tensor.

    a, b = x[0], x[1]
    a.mul_(2)               # counts for b, too
    return b.sin()          # saves b, at the version that it has now

A compiled program saves `b` before the new value of `a` is written back. What autograd saves must have the version that it has afterwards,
or backward takes the program's own write for one that came later.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import torch

from .contract import Mutation


class EarlyVersions:
    """Counts the writes of a program before they are made, for the time in which it saves and notes the versions of its inputs.

    saved: the inputs that it saves. Those it writes to as well keep the version that they have: backward must refuse their new values.
    """

    def __init__(self, mutations: Sequence[Mutation], saved: Collection[int | None]) -> None:
        counted = [mutation for mutation in mutations if mutation.bumps and mutation.input not in saved]
        self._places = [mutation.input for mutation in counted]
        # One by one, because targets that are views of one tensor share their counter.
        most = max((mutation.bumps for mutation in counted), default=0)
        self._rounds = [[mutation.input for mutation in counted if mutation.bumps >= n] for n in range(1, most + 1)]

    def __bool__(self) -> bool:
        return bool(self._places)

    @contextlib.contextmanager
    def in_force(self, primals: Sequence[Any]) -> Iterator[None]:
        """Inside, the writes have been counted."""
        targets = tuple([primals[place] for place in self._places])
        before = tuple([target._version for target in targets])
        for changed in self._rounds:
            torch._C._increment_version(tuple([primals[place] for place in changed]))
        try:
            yield
        finally:
            torch._C._autograd._unsafe_set_version_counter(targets, before)
