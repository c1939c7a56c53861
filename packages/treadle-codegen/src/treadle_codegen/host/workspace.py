"""Workspaces: the memory of one call in flight, fitted to the sizes of the call.

A workspace holds the arena with all planned temporaries, tensor views of them for extern calls, and the table that the
kernels read. It serves calls of any size: for other sizes the temporaries are laid out again in the same arena, which
grows where it must (`host.memory_planner`). What depends on the sizes alone is a `Fit`, shared by all workspaces of a graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from operator import le
from typing import Any

import torch

from treadle_codegen.schedule.memory import ArenaPlan
from treadle_codegen.targets.target import Allocation, EntryABI, Table

Sizes = tuple[int, ...]
Entries = tuple[Callable[[Any], None], ...]  # entry points; each takes the table's `argument`


def outside_inference_mode() -> AbstractContextManager[Any]:
    """Around the making of tensors that outlive a call: operators do not write to those made in inference mode outside of it.

    Where the mode is off it stays untouched, because turning it off also undoes `torch._C._AutoDispatchBelowADInplaceOrView`.
    """
    return torch.inference_mode(False) if torch.is_inference_mode_enabled() else nullcontext()


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """Where temporaries lie at all sizes at which they need no more room than this.

    room: bytes for the temporaries of each kind (those of equal shape, strides and dtype); places: their table slots, offsets in bytes
    and dtypes; starts: for each view that the host uses, the elements of its dtype before its buffer.
    """

    plan: ArenaPlan
    room: tuple[int, ...]
    places: tuple[tuple[int, int, torch.dtype], ...]
    starts: tuple[int, ...]

    def why_not_for(self, needed: Sequence[int]) -> str | None:
        """Why temporaries of so many bytes are laid out anew."""
        if not all(map(le, needed, self.room)):
            return "a temporary does not fit into its place"
        return "most of the arena would be left empty" if 2 * sum(needed) < sum(self.room) else None


NO_MEMORY = Layout(ArenaPlan({}, 0), (), (), ())


class Fit:
    """What all calls of a graph at the same sizes share.

    layout: where temporaries lie; table: slots of the kernels' numbers and their values. `state` is one tuple that the host
    function begins with, so that it changes for all threads at once: first `head` (what the inputs are compared with, numbers and
    tuples made of the sizes), then the entry points (`use`). `spent`: seconds spent in kernels, as far as they were counted.
    """

    __slots__ = ("_head", "layout", "sizes", "spent", "state", "table")

    def __init__(
        self,
        sizes: Sizes,
        layout: Layout,
        head: tuple[Any, ...],
        table: Sequence[tuple[int, int | float]] = (),
        entries: Entries = (),
    ) -> None:
        self.sizes = sizes
        self.layout = layout
        self.table = table
        self.spent = 0.0
        self._head = head
        self.state = head + entries

    def use(self, entries: Entries) -> None:
        """Let all calls from now on run these entry points."""
        self.state = self._head + entries


class Workspace:
    """The memory of one call in flight.

    `table`, `floats`, `argument` and `error` are those of the target's table, `views` the tensors that externs use, and
    `fitted` is the Fit for whose sizes all of it is laid out; `placed` is the layout by which temporaries have their places in the own
    arena, or where and for whom they lie in a borrowed one; `typed` are views of the own arena by dtype.
    """

    __slots__ = (
        *("arena", "argument", "error", "fitted", "floats", "known_views", "placed", "pool", "pool_entries"),
        *("_abi", "_empty", "pool_rooms", "table", "typed", "views"),
    )

    def __init__(
        self, table: Table, fitted: Fit, pool: Sequence[torch.dtype], abi: EntryABI, allocation: Allocation
    ) -> None:
        self.table, self.floats, self.argument, self.error = table.slots, table.floats, table.argument, table.error
        self._abi, self._empty = abi, allocation.empty
        self.arena = self._empty(0, dtype=torch.uint8)
        self.fitted = fitted
        self.views: tuple[torch.Tensor, ...] = ()
        # By sizes; behind the arena's address, where it is borrowed.
        self.known_views: dict[tuple[int, ...], tuple[Layout, tuple[torch.Tensor, ...]]] = {}
        self.typed: dict[torch.dtype, torch.Tensor] = {}
        self.placed: Layout | tuple[int, Fit] | None = None
        # Memory for temporaries whose sizes are known only during a call; it is kept and grows from call to call.
        self.pool = [self._empty(0, dtype=dtype) for dtype in pool]
        self.pool_rooms = [0] * len(pool)  # elements
        self.pool_entries = [abi.pool_entry(piece) for piece in self.pool]

    def room(self, k: int, elements: int) -> Any:
        """The table entry of the pool's `k`-th piece, with room for so many elements; its content is lost when it grows."""
        if self.pool_rooms[k] < elements:
            grown = elements + elements // 8
            self.pool[k] = self._empty(grown, dtype=self.pool[k].dtype)
            self.pool_rooms[k], self.pool_entries[k] = grown, self._abi.pool_entry(self.pool[k])
        return self.pool_entries[k]

    def reserve(self, size: int) -> None:
        """Make the arena at least `size` bytes long."""
        if self.arena.numel() < size:
            self.known_views.clear()
            self.typed.clear()
            self.views, self.placed = (), None
            with outside_inference_mode():
                self.arena = self._empty(size, dtype=torch.uint8)
