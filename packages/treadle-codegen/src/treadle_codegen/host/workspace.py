"""Workspaces: the memory of one call in flight, fitted to the sizes of the call.

A workspace holds the arena with all planned temporaries, tensor views of them for extern calls, and the table that the
kernels read. It serves calls of any size: for other sizes the temporaries are laid out again in the same arena, which
grows where it must. What depends on the sizes alone is a `Fit`, shared by all workspaces of a graph.

Where the allocation says so (`Allocation.unowned`), a workspace keeps no memory: every call borrows an arena, and the
temporaries are laid out again if it is not where the last one was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from treadle_codegen.errors import InternalError
from treadle_codegen.ir.loops import Buffer, IntLike, View
from treadle_codegen.schedule.memory import ArenaPlan, Lifetime, plan_arena, verify_arena
from treadle_codegen.targets.target import Allocation, EntryABI, Table
from treadle_shapes.expr import evaluate

NO_MEMORY = ArenaPlan({}, 0)
_FITS_KEPT = 32  # per dynamic graph
_LAYOUTS_KEPT = 8  # plans that may serve other sizes, too; per dynamic graph
_SPARE = 4  # the second plan of a graph and later ones leave room for one part in so many more, ...
_MOST_SPARED = (
    1 << 22
)  # ... at most so many bytes: where temporaries are larger, computing them takes much longer than planning

Sizes = tuple[int, ...]
Entries = tuple[Callable[[Any], None], ...]  # entry points; each takes the table's `argument`


def outside_inference_mode() -> AbstractContextManager[Any]:
    """Around the making of tensors that outlive a call: operators do not write to those made in inference mode outside of it.

    Where the mode is off it stays untouched, because turning it off also undoes `torch._C._AutoDispatchBelowADInplaceOrView`.
    """
    return torch.inference_mode(False) if torch.is_inference_mode_enabled() else nullcontext()


def storage_elements(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Elements from the first to the last one of a strided tensor; 0 for an empty one."""
    if any(n == 0 for n in shape):
        return 0
    return 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))


class Fit:
    """What all calls of a graph at the same sizes share.

    layout: where temporaries lie; places: their slots, offsets and dtypes, once a workspace was fitted; table: slots of
    the kernels' numbers and their values. `state` is one tuple that the host function begins with, so that it changes for
    all threads at once: first `head` (what the inputs are compared with, numbers and tuples made of the sizes), then the
    entry points (`use`). `spent`: seconds spent in kernels, as far as they were counted.
    """

    __slots__ = ("_head", "layout", "places", "sizes", "spent", "state", "table")

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
        self.places: list[tuple[int, int, torch.dtype]] | None = None
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
    `fitted` is the Fit for whose sizes all of it is laid out; `laid_out` is where and for whom, if the arena is borrowed.
    """

    __slots__ = (
        *("arena", "argument", "error", "fitted", "floats", "known_views", "pool", "pool_entries", "pool_rooms"),
        *("_abi", "_empty", "laid_out", "table", "views"),
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
        self.known_views: dict[tuple[int, ...], tuple[ArenaPlan, tuple[torch.Tensor, ...]]] = {}
        self.laid_out: tuple[int, Fit] | None = None
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
            self.views = ()
            with outside_inference_mode():
                self.arena = self._empty(size, dtype=torch.uint8)


@dataclass(frozen=True, slots=True)
class _Layout:
    """A plan in which the temporaries have room for these bytes each, by kind (`MemoryPlanner._bytes`)."""

    plan: ArenaPlan
    room: tuple[int, ...]

    def why_not_for(self, needed: Sequence[int]) -> str | None:
        """Why the plan does not serve temporaries of so many bytes."""
        if any(n > room for n, room in zip(needed, self.room, strict=True)):
            return "a temporary does not fit into its place"
        return "most of the arena would be left empty" if 2 * sum(needed) < sum(self.room) else None


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
    _layouts: tuple[_Layout, ...] = ()  # the latest first
    _kinds: tuple[tuple[str, ...], ...] = field(init=False)  # temporaries of equal shape, strides and dtype

    def __post_init__(self) -> None:
        kinds: dict[Any, list[str]] = {}
        for name in self.spans:
            b = self.buffers[name]
            kinds.setdefault((tuple(b.shape), tuple(b.strides), b.dtype), []).append(name)
        self._kinds = tuple(map(tuple, kinds.values()))

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
            workspace.reserve(fit.layout.size)
            self._lay_out(workspace, fit, workspace.arena, fit.sizes)
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
        arena = self.allocation.empty(fit.layout.size, dtype=torch.uint8)
        place = (arena.data_ptr(), fit)
        if place != workspace.laid_out:
            workspace.laid_out = None  # in case what follows fails
            self._lay_out(workspace, fit, arena, (place[0], *fit.sizes))
            workspace.laid_out = place
        return arena

    def _lay_out(self, workspace: Workspace, fit: Fit, arena: torch.Tensor, key: tuple[int, ...]) -> None:
        """Enter the temporaries' places in the arena into the table, and make their views unless they are known by this key."""
        if fit.places is None:
            offsets = fit.layout.offsets.items()
            fit.places = [(self.slots[n], at, self.buffers[n].dtype) for n, at in offsets if n in self.slots]
        self.abi.place(workspace.table, arena, fit.places)
        if not self.keys:
            return
        known = workspace.known_views.get(key)
        # A Fit that was dropped and made again may have another plan.
        if known is None or known[0] is not fit.layout:
            if len(workspace.known_views) >= _FITS_KEPT:
                workspace.known_views.clear()
            unowned = self.allocation.unowned
            with outside_inference_mode():
                memory = arena if unowned is None else unowned(arena)
                known = workspace.known_views[key] = fit.layout, self._views(memory, fit.layout, fit.sizes)
        workspace.views = known[1]

    def layout(self, sizes: Sizes) -> ArenaPlan:
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
                return known.plan
        if self._layouts and sum(needed) // _SPARE <= _MOST_SPARED:
            needed = [size + size // _SPARE for size in needed]
        lives = self._lives(needed)
        plan = plan_arena(lives, self.alignment)
        if self.verify and (problems := verify_arena(plan, lives, self.alignment)):
            raise InternalError("memory plan", "; ".join(problems[:5]))
        self._layouts = (_Layout(plan, tuple(needed)), *self._layouts)[:_LAYOUTS_KEPT]
        return plan

    def _bytes(self, sizes: Sizes) -> list[int]:
        """The bytes of a temporary of each kind at these sizes."""
        numbers = self._numbers_at(sizes)
        found = []
        for name, *_ in self._kinds:
            b = self.buffers[name]
            found.append(storage_elements(numbers(b.shape), numbers(b.strides)) * b.dtype.itemsize)
        return found

    def _numbers_at(self, sizes: Sizes) -> Callable[[Sequence[IntLike]], tuple[int, ...]]:
        """A function of expressions: what they come to at these sizes. Layers halve sizes again and again: parts are computed once."""
        env, known = dict(zip(self.symbols, sizes, strict=True)), dict[Any, int]()

        def numbers(items: Sequence[IntLike]) -> tuple[int, ...]:
            return tuple([e if isinstance(e, int) else evaluate(e, env, known) for e in items])

        return numbers

    def _lives(self, needed: Sequence[int]) -> list[Lifetime]:
        size_of = {name: size for names, size in zip(self._kinds, needed, strict=True) for name in names}
        return [Lifetime(name, size_of[name], first, last) for name, (first, last) in self.spans.items()]

    def _views(self, arena: torch.Tensor, layout: ArenaPlan, sizes: Sizes) -> tuple[torch.Tensor, ...]:
        numbers = self._numbers_at(sizes)
        typed: dict[torch.dtype, torch.Tensor] = {}
        views = []
        for key in self.keys:
            buffer = self.buffers[key if isinstance(key, str) else key.buffer]
            view = View(key, buffer.shape, buffer.strides) if isinstance(key, str) else key
            size = buffer.dtype.itemsize
            whole = typed.get(buffer.dtype)
            if whole is None:
                whole = typed[buffer.dtype] = arena[: len(arena) // size * size].view(buffer.dtype)
            (within,) = numbers((view.offset,))
            offset = whole.storage_offset() + layout.offsets[buffer.name] // size + within
            views.append(whole.as_strided(numbers(view.shape), numbers(view.strides), offset))
        return tuple(views)
