"""Where the temporaries of a graph lie in memory, at the sizes of each call.

Planning, making views and evaluating sizes are what a call at new sizes pays beside its kernels, so each is done as rarely as it can be:
a plan serves all sizes that fit into it, a workspace has views for sizes that come back, and numbers that follow from sizes are computed
by a function made for the purpose (`host.numbers_at_sizes`).

Where the allocation says so (`Allocation.unowned`), a workspace keeps no memory: every call borrows an arena, and the temporaries are laid
out again if it is not where the last one was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from treadle_codegen.errors import InternalError
from treadle_codegen.host.numbers_at_sizes import NumbersAtSizes
from treadle_codegen.host.workspace import NO_MEMORY, Fit, Layout, Sizes, Workspace, outside_inference_mode
from treadle_codegen.ir.loops import Buffer, IntLike, View
from treadle_codegen.schedule.memory import Lifetime, plan_arena, verify_arena
from treadle_codegen.targets.target import Allocation, EntryABI

_FITS_KEPT = 128  # per dynamic graph
_VIEWS_KEPT = 2048  # per workspace, ...
_LEAST_FITS_WITH_VIEWS = 32  # ... but for so many sets of sizes at least
_LAYOUTS_KEPT = 8  # per dynamic graph
_SPARE = 4  # the second plan of a graph and later ones leave room for one part in so many more, ...
_MOST_SPARED = (
    1 << 22
)  # ... at most so many bytes: where temporaries are larger, computing them takes much longer than planning


@dataclass(slots=True)
class MemoryPlanner:
    """What all workspaces of a graph share.

    spans: first and last step of every planned buffer; keys: the views of them that the host uses; slots: table positions;
    symbols: those whose values are the sizes; pool: dtypes of the pieces of memory for sizes known only during a call;
    unfitted: the Fit of a workspace that is not laid out yet; alignment: of buffers in the arena, in bytes.
    """

    buffers: Mapping[str, Buffer]
    spans: Mapping[str, tuple[int, int]]
    keys: Sequence[View | str]
    slots: Mapping[str, int]
    symbols: tuple[Any, ...]
    pool: Sequence[torch.dtype]
    unfitted: Fit
    abi: EntryABI
    allocation: Allocation
    alignment: int
    verify: bool = False
    fits: dict[Sizes, Fit] = field(default_factory=dict)
    _layouts: tuple[Layout, ...] = ()  # the latest first
    _kinds: tuple[tuple[str, ...], ...] = field(init=False)  # temporaries of equal shape, strides and dtype
    _bytes: NumbersAtSizes = field(init=False)  # of a temporary of each kind; negative for an empty one
    _geometry: NumbersAtSizes = field(init=False)  # shape, strides and offset of each view that the host uses
    _viewed: tuple[View, ...] = field(init=False)  # these views

    def __post_init__(self) -> None:
        kinds: dict[Any, list[str]] = {}
        for name in self.spans:
            b = self.buffers[name]
            kinds.setdefault((tuple(b.shape), tuple(b.strides), b.dtype), []).append(name)
        self._kinds = tuple(map(tuple, kinds.values()))
        self._bytes = NumbersAtSizes(self.symbols, tuple([_bytes_of(*kind) for kind in kinds]))
        self._viewed = tuple([self._as_view(key) for key in self.keys])
        self._geometry = NumbersAtSizes(
            self.symbols, tuple([(tuple(view.shape), tuple(view.strides), view.offset) for view in self._viewed])
        )

    def _as_view(self, key: View | str) -> View:
        if isinstance(key, View):
            return key
        buffer = self.buffers[key]
        return View(key, buffer.shape, buffer.strides)

    def new(self) -> Workspace:
        """A workspace; ready for use if the graph has static sizes only."""
        table = self.abi.new_table(len(self.slots) + 1)
        workspace = Workspace(table, self.unfitted, self.pool, self.abi, self.allocation)
        if not self.symbols:
            self.fit(workspace, self.fits.get(()) or self.keep(Fit((), self.layout(()), ())))
        return workspace

    def keep(self, fit: Fit) -> Fit:
        """The Fit for its sizes from now on, or another thread's if that was kept first.

        When many are kept, the half with the least accumulated kernel time is dropped.
        """
        if len(self.fits) >= _FITS_KEPT:
            latest_first = reversed(list(self.fits.values()))
            for dropped in sorted(latest_first, key=lambda fit: -fit.spent)[_FITS_KEPT // 2 :]:
                self.fits.pop(dropped.sizes, None)
        return self.fits.setdefault(fit.sizes, fit)

    def fit(self, workspace: Workspace, fit: Fit) -> None:
        """Lay the workspace's temporaries out for these sizes, and put the numbers that follow from them into its table."""
        workspace.fitted = self.unfitted  # in case what follows fails
        if self.allocation.unowned is None:
            workspace.reserve(fit.layout.plan.size)
            if workspace.placed != fit.layout:
                workspace.placed = None  # in case what follows fails
                self.abi.place(workspace.table, workspace.arena, fit.layout.places)
                workspace.placed = fit.layout
            self._use_views(workspace, fit, workspace.arena, fit.sizes)
        table = workspace.table
        for slot, value in fit.table:
            if isinstance(value, int):
                table[slot] = value
            else:
                workspace.floats[slot] = value
        workspace.fitted = fit

    def borrow(self, workspace: Workspace) -> torch.Tensor:
        """An arena for one call with a fitted workspace. The temporaries lie in it as long as the caller holds it."""
        fit = workspace.fitted
        arena = self.allocation.empty(fit.layout.plan.size, dtype=torch.uint8)
        address = arena.data_ptr()
        if workspace.placed != (address, fit):
            workspace.placed = None  # in case what follows fails
            self.abi.place(workspace.table, arena, fit.layout.places)
            self._use_views(workspace, fit, arena, (address, *fit.sizes))
            workspace.placed = address, fit
        return arena

    def _use_views(self, workspace: Workspace, fit: Fit, arena: torch.Tensor, key: tuple[int, ...]) -> None:
        """Make the views that the host uses, unless they are known by this key."""
        if not self.keys:
            return
        known = workspace.known_views.get(key)
        # A Fit that was dropped and made again may have another layout.
        if known is None or known[0] is not fit.layout:
            if len(workspace.known_views) >= max(_LEAST_FITS_WITH_VIEWS, _VIEWS_KEPT // len(self.keys)):
                workspace.known_views.clear()
            with outside_inference_mode():
                known = workspace.known_views[key] = fit.layout, self._views(workspace, arena, fit)
        workspace.views = known[1]

    def _views(self, workspace: Workspace, arena: torch.Tensor, fit: Fit) -> tuple[torch.Tensor, ...]:
        unowned = self.allocation.unowned
        typed = workspace.typed if unowned is None else {}
        memory = arena if unowned is None else unowned(arena)
        views = []
        geometry = self._geometry(fit.sizes)
        for view, start, (shape, strides, within) in zip(self._viewed, fit.layout.starts, geometry, strict=True):
            dtype = self.buffers[view.buffer].dtype
            whole = typed.get(dtype)
            if whole is None:
                whole = typed[dtype] = memory[: len(memory) // dtype.itemsize * dtype.itemsize].view(dtype)
            views.append(whole.as_strided(shape, strides, whole.storage_offset() + start + within))
        return tuple(views)

    def layout(self, sizes: Sizes) -> Layout:
        """Where the temporaries lie at these sizes.

        Planning takes time that grows with the square of the number of temporaries. So sizes at which all of them fit into the places of
        an earlier plan are served by that one: batches of graphs or of texts have other sizes on every call. Sizes that grow from call to
        call, as in generated texts, find room that was left for them.
        """
        if not self.spans:
            return NO_MEMORY
        needed = self._bytes(sizes)
        for known in self._layouts:
            if known.why_not_for(needed) is None:
                return known
        room = tuple([max(size, 0) for size in needed])
        if self._layouts and sum(room) // _SPARE <= _MOST_SPARED:
            room = tuple([size + size // _SPARE for size in room])
        made = self._planned(room)
        self._layouts = (made, *self._layouts)[:_LAYOUTS_KEPT]
        return made

    def _planned(self, room: tuple[int, ...]) -> Layout:
        size_of = {name: size for names, size in zip(self._kinds, room, strict=True) for name in names}
        lives = [Lifetime(name, size_of[name], first, last) for name, (first, last) in self.spans.items()]
        plan = plan_arena(lives, self.alignment)
        if self.verify and (problems := verify_arena(plan, lives, self.alignment)):
            raise InternalError("memory plan", "; ".join(problems[:5]))
        dtypes = {name: self.buffers[name].dtype for name in self.spans}
        return Layout(
            plan,
            room,
            tuple([(self.slots[n], at, dtypes[n]) for n, at in plan.offsets.items() if n in self.slots]),
            tuple([plan.offsets[view.buffer] // dtypes[view.buffer].itemsize for view in self._viewed]),
        )


def _bytes_of(shape: Sequence[IntLike], strides: Sequence[IntLike], dtype: torch.dtype) -> IntLike:
    """Bytes from the first to the last element."""
    last: IntLike = 0
    for n, s in zip(shape, strides, strict=True):
        last = last + (n - 1) * s
    return (last + 1) * dtype.itemsize
