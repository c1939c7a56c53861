"""Workspaces: the memory of one call in flight, fitted to the sizes of the call.

A workspace is the arena with all planned temporaries, tensor views of them for extern calls, and the table of pointers
and numbers that the kernels read. It serves calls of any size: at other sizes the temporaries are laid out anew in the
same arena, which grows where it must. What depends on the sizes alone is a `Fit`, shared by the workspaces of a graph.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from treadle_codegen.ir.loops import Buffer, IntLike, View
from treadle_codegen.schedule.memory import ArenaPlan, Lifetime, plan_arena
from treadle_shapes.expr import evaluate

NO_MEMORY = ArenaPlan({}, 0)
_FITS_KEPT = 32  # of a dynamic graph, for as many different sizes

Sizes = tuple[int, ...]
Entries = tuple[Callable[[int], None], ...]  # compiled functions of the host's table


def storage_elements(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Elements from the first to the last one of a strided tensor; 0 for an empty one."""
    if any(n == 0 for n in shape):
        return 0
    return 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))


class Fit:
    """What the calls of a graph at the same sizes have in common.

    layout: where temporaries lie; table: slots of the kernels' numbers and what they are. `state` is what the host function
    begins with, in one tuple, so that it changes at once for all threads: what tells that the sizes are the same, numbers and
    tuples made of the sizes (both `head`), and the entry points (`use`). `spent`: seconds spent in kernels as far as counted.
    """

    __slots__ = ("_head", "layout", "sizes", "spent", "state", "table")

    def __init__(
        self,
        sizes: Sizes,
        layout: ArenaPlan,
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
        """Let the calls from now on run these entry points."""
        self.state = self._head + entries


class Workspace:
    """Memory of one call in flight; `views` hold the tensors that externs use, `table` the kernels' pointers and integers,
    `floats` is the same table seen as doubles. `fitted` is what it is fitted to."""

    __slots__ = (
        *("address", "arena", "error", "fitted", "floats", "known_views", "pool", "pool_bases", "pool_rooms"),
        *("table", "views"),
    )

    def __init__(self, table_size: int, fitted: Fit, pool: Sequence[torch.dtype] = ()) -> None:
        self.table = (ctypes.c_void_p * table_size)()
        self.floats = (ctypes.c_double * table_size).from_buffer(self.table)
        self.address = ctypes.addressof(self.table)
        self.error = ctypes.c_int64(0)
        self.table[0] = ctypes.addressof(self.error)
        self.arena = torch.empty(0, dtype=torch.uint8)
        self.fitted = fitted
        self.views: tuple[torch.Tensor, ...] = ()
        self.known_views: dict[Sizes, tuple[torch.Tensor, ...]] = {}
        # Memory for temporaries of sizes known only during a call, kept and grown from call to call.
        self.pool = [torch.empty(0, dtype=dtype) for dtype in pool]
        self.pool_rooms = [0] * len(pool)  # elements
        self.pool_bases = [0] * len(pool)  # addresses

    def room(self, k: int, elements: int) -> int:
        """Address of at least so many elements in the pool's `k`-th piece; what was there is lost when it has to grow."""
        if self.pool_rooms[k] < elements:
            grown = elements + elements // 8
            self.pool[k] = torch.empty(grown, dtype=self.pool[k].dtype)
            self.pool_rooms[k], self.pool_bases[k] = grown, self.pool[k].data_ptr()
        return self.pool_bases[k]

    def reserve(self, size: int) -> None:
        """An arena of at least `size` bytes."""
        if self.arena.numel() < size:
            self.known_views.clear()
            self.views = ()
            self.arena = torch.empty(size, dtype=torch.uint8)


@dataclass(slots=True)
class MemoryPlanner:
    """What a graph's workspaces have in common.

    spans: first and last step of every planned buffer; keys: the views of them that the host uses; slots: table positions;
    `symbols` are those whose values are the sizes; pool: dtypes of the pieces of memory for sizes known only during a call.
    """

    buffers: Mapping[str, Buffer]
    spans: Mapping[str, tuple[int, int]]
    keys: Sequence[View | str]
    slots: Mapping[str, int]
    symbols: tuple[Any, ...]
    pool: Sequence[torch.dtype]
    unfitted: Fit
    fits: dict[Sizes, Fit] = field(default_factory=dict)

    def new(self) -> Workspace:
        """A workspace, ready for use when the graph has static sizes only."""
        workspace = Workspace(len(self.slots) + 1, self.unfitted, self.pool)
        if not self.symbols:
            self.fit(workspace, self.fits.get(()) or self.keep(Fit((), self.layout(()), ())))
        return workspace

    def keep(self, fit: Fit) -> Fit:
        """The Fit for its sizes from now on (another thread's, if that was earlier). Where there are many, those go on which
        the least time was spent."""
        if len(self.fits) >= _FITS_KEPT:
            latest_first = reversed(list(self.fits.values()))
            for dropped in sorted(latest_first, key=lambda fit: -fit.spent)[_FITS_KEPT // 2 :]:
                self.fits.pop(dropped.sizes, None)
        return self.fits.setdefault(fit.sizes, fit)

    def fit(self, workspace: Workspace, fit: Fit) -> None:
        """Lay the workspace's temporaries out for these sizes, and tell the kernels the numbers."""
        workspace.fitted = self.unfitted  # in case what follows fails
        workspace.reserve(fit.layout.size)
        base, table = workspace.arena.data_ptr(), workspace.table
        for name, offset in fit.layout.offsets.items():
            slot = self.slots.get(name)
            if slot is not None:
                table[slot] = base + offset
        for slot, value in fit.table:
            if isinstance(value, int):
                table[slot] = value
            else:
                workspace.floats[slot] = value
        if self.keys:
            views = workspace.known_views.get(fit.sizes)
            if views is None:
                if len(workspace.known_views) >= _FITS_KEPT:
                    workspace.known_views.clear()
                views = workspace.known_views[fit.sizes] = self._views(workspace.arena, fit.layout, fit.sizes)
            workspace.views = views
        workspace.fitted = fit

    def layout(self, sizes: Sizes) -> ArenaPlan:
        """Where the temporaries lie at these sizes."""
        if not self.spans:
            return NO_MEMORY
        env = dict(zip(self.symbols, sizes, strict=True))
        lives = []
        for name, (first, last) in self.spans.items():
            b = self.buffers[name]
            size = storage_elements(_numbers(b.shape, env), _numbers(b.strides, env)) * b.dtype.itemsize
            lives.append(Lifetime(name, size, first, last))
        return plan_arena(lives)

    def _views(self, arena: torch.Tensor, layout: ArenaPlan, sizes: Sizes) -> tuple[torch.Tensor, ...]:
        env = dict(zip(self.symbols, sizes, strict=True))
        views = []
        for key in self.keys:
            buffer = self.buffers[key if isinstance(key, str) else key.buffer]
            view = View(key, buffer.shape, buffer.strides) if isinstance(key, str) else key
            typed = arena[layout.offsets[buffer.name] :]
            typed = typed[: len(typed) // buffer.dtype.itemsize * buffer.dtype.itemsize].view(buffer.dtype)
            offset = typed.storage_offset() + _number(view.offset, env)
            views.append(typed.as_strided(_numbers(view.shape, env), _numbers(view.strides, env), offset))
        return tuple(views)


def _number(e: IntLike, env: dict[Any, int]) -> int:
    return e if isinstance(e, int) else evaluate(e, env)


def _numbers(items: Sequence[IntLike], env: dict[Any, int]) -> tuple[int, ...]:
    return tuple([_number(e, env) for e in items])
