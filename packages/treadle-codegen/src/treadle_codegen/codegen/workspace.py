"""Workspaces: the memory of one call in flight, fitted to the sizes of the call.

A workspace is the arena with all planned temporaries, tensor views of them for extern calls, and the table of pointers
and numbers that the kernels read. It serves calls of any size: at other sizes the temporaries are laid out anew in the
same arena, which grows where it must; the layouts of some sizes are kept.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from treadle_codegen.codegen.kernel import slot_key
from treadle_codegen.ir.loops import Buffer, IntLike, View, symbols_of
from treadle_codegen.schedule.memory import ArenaPlan, Lifetime, plan_arena
from treadle_shapes.expr import evaluate

_LAYOUTS_KEPT = 32  # of a dynamic graph, for as many different sizes

Sizes = tuple[int, ...]


def storage_elements(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Elements from the first to the last one of a strided tensor; 0 for an empty one."""
    if any(n == 0 for n in shape):
        return 0
    return 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))


class Workspace:
    """Memory of one call in flight; `views` hold the tensors that externs use, `table` the kernels' pointers and integers,
    `floats` is the same table seen as doubles. `sizes` are what it is fitted to, None at first."""

    __slots__ = (
        *("address", "arena", "error", "floats", "known_views", "pool", "pool_bases", "pool_rooms"),
        *("sizes", "table", "views"),
    )

    def __init__(self, table_size: int, pool: Sequence[torch.dtype] = ()) -> None:
        self.table = (ctypes.c_void_p * table_size)()
        self.floats = (ctypes.c_double * table_size).from_buffer(self.table)
        self.address = ctypes.addressof(self.table)
        self.error = ctypes.c_int64(0)
        self.table[0] = ctypes.addressof(self.error)
        self.arena = torch.empty(0, dtype=torch.uint8)
        self.sizes: Sizes | None = None
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

    spans: first and last step of every planned buffer; keys: the views of them that the host uses; slots: table positions.
    `symbols` are the inputs' symbols that their sizes depend on; pool: dtypes of the pieces of memory for sizes known later.
    """

    buffers: Mapping[str, Buffer]
    spans: Mapping[str, tuple[int, int]]
    keys: Sequence[View | str]
    slots: Mapping[str, int]
    symbols: tuple[Any, ...]
    pool: Sequence[torch.dtype]
    layouts: dict[Sizes, ArenaPlan]

    @classmethod
    def of(
        cls,
        buffers: Mapping[str, Buffer],
        spans: Mapping[str, tuple[int, int]],
        keys: Sequence[View | str],
        slots: Mapping[str, int],
        pool: Sequence[torch.dtype] = (),
    ) -> MemoryPlanner:
        symbols = symbols_of([(buffers[name].shape, buffers[name].strides) for name in spans])
        symbols |= symbols_of([key for key in keys if isinstance(key, View)])
        return cls(buffers, spans, keys, slots, tuple(sorted(symbols, key=lambda s: s.name)), pool, {})

    def new(self) -> Workspace:
        """A workspace, ready for use when the graph has static sizes only."""
        workspace = Workspace(len(self.slots) + 1, self.pool)
        if not self.symbols:
            self.fit(workspace, ())
        return workspace

    def fit(self, workspace: Workspace, sizes: Sizes) -> None:
        """Lay the temporaries out for these values of `symbols`."""
        layout = self.layouts.get(sizes)
        if layout is None:
            if len(self.layouts) >= _LAYOUTS_KEPT:
                self.layouts.clear()
            layout = self.layouts[sizes] = self._layout(dict(zip(self.symbols, sizes, strict=True)))
        workspace.sizes = None  # in case what follows fails
        workspace.reserve(layout.size)
        base, table = workspace.arena.data_ptr(), workspace.table
        for name, offset in layout.offsets.items():
            slot = self.slots.get(name)
            if slot is not None:
                table[slot] = base + offset
        for symbol, value in zip(self.symbols, sizes, strict=True):
            slot = self.slots.get(slot_key(symbol))
            if slot is not None:
                table[slot] = value
        views = workspace.known_views.get(sizes)
        if views is None:
            if len(workspace.known_views) >= _LAYOUTS_KEPT:
                workspace.known_views.clear()
            views = workspace.known_views[sizes] = self._views(workspace.arena, layout, sizes)
        workspace.views = views
        workspace.sizes = sizes

    def _layout(self, env: dict[Any, int]) -> ArenaPlan:
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
