"""The host: the compiled graph's callable, and what it keeps between calls.

Workspaces (`host.workspace`) are taken from a free list and put back, so that concurrent and re-entrant calls each have
their own, and memory stays mapped from call to call; where work is queued on streams, each call borrows memory. A
temporary whose size is known only during the call (the size of `nonzero`) is allocated when its size is known and released
after its last use.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import torch

from treadle_codegen.errors import InternalError
from treadle_codegen.host.host_program import HostProgram
from treadle_codegen.host.memory_planner import MemoryPlanner
from treadle_codegen.host.shape_specialisation import ShapeSpecialisation
from treadle_codegen.host.workspace import NO_MEMORY, Fit, Sizes, Workspace
from treadle_codegen.targets.table_slots import OUT_OF_RANGE, slot_key
from treadle_codegen.targets.target import Allocation, Target

_SIZES_REMEMBERED = 256  # sets of sizes per dynamic graph, to recognise those that come back


def _as_it_is(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


class Host:
    """The compiled graph's callable body. `run(*inputs)` returns the list of outputs.

    entries: entry point of each segment by name; specialisation: if given, it has other entry points for some segments at sizes
    that calls come back to (`host.shape_specialisation`); verify: check every memory plan.
    """

    def __init__(
        self,
        program: HostProgram,
        target: Target,
        allocation: Allocation,
        entries: Mapping[str, Callable[..., Any]],
        specialisation: ShapeSpecialisation | None = None,
        *,
        verify: bool = False,
    ) -> None:
        self.program = program
        self.specialisation = specialisation
        self.free: list[Workspace] = []
        self.allocation = allocation
        self._nothing_seen = (None,) * program.compared
        self._met: set[Sizes] = set()
        self._number_slots = [program.slots[slot_key(number)] for number in program.numbers]
        self.planner = MemoryPlanner(
            program.buffers,
            program.spans,
            program.views,
            program.slots,
            program.symbols,
            program.pool,
            Fit((), NO_MEMORY, (None,) * program.state),
            target.abi,
            self.allocation,
            target.costs.alignment,
            verify,
        )
        if specialisation is not None:
            symbols = [symbol.name for symbol in self.planner.symbols]
            specialisation.belongs_to(self.planner.fits, symbols, program.numbers)
        self.source = program.source
        self.static_views: list[torch.Tensor | None] = [None] * len(program.statics)
        self.static_keys = program.statics
        self.static_pointers: list[int] = [-1] * len(program.inputs)  # of no tensor: those without elements are at 0
        self._names = self._scope(program, entries)
        self._code = program.compiled()
        scope = dict(self._names)
        exec(self._code, scope)
        self.run: Callable[..., list[Any]] = scope["run"]
        self._read_sizes: Callable[..., tuple[int, ...]] = scope.get("read_sizes", tuple)
        self._at_sizes: Callable[..., tuple[Any, ...]] = scope.get("at_sizes", tuple)
        self._seen: Callable[..., tuple[Any, ...]] = scope.get("seen", tuple)

    def _scope(self, program: HostProgram, entries: Mapping[str, Callable[..., Any]]) -> dict[str, Any]:
        """The names that the host function uses."""
        return {
            "c": program.constants,
            "math": math,
            "free": self.free,
            "make": self.planner.new,
            "borrow": self.planner.borrow,
            "refit": self.refit,
            "fail": self.fail,
            "recheck": self.recheck,
            "sv": self.static_views,
            "sp": self.static_pointers,
            "refresh": self.refresh,
            "with_layout": self.with_layout,
            "empty_strided": self.allocation.empty_strided,
            "large": self.allocation.large or _as_it_is,
            "as_strided": torch.as_strided,
            "t_constants": program.tensors,
            **entries,
        }

    def with_allocation(self, empty_strided: Callable[..., torch.Tensor]) -> Callable[..., list[Any]]:
        """The host function with another source of memory for outputs, and for all else that it allocates for one call alone."""
        scope = {**self._names, "empty_strided": empty_strided, "large": _as_it_is}
        exec(self._code, scope)
        return scope["run"]

    def refit(self, workspace: Workspace, *inputs: Any) -> tuple[Any, ...]:
        """Fit the workspace to the sizes of these inputs; returns the state that the host function begins with."""
        sizes = self._read_sizes(*inputs)
        fit = self.planner.fits.get(sizes) or self._new_fit(sizes, inputs)
        self.planner.fit(workspace, fit)
        if self.specialisation is not None:
            self.specialisation.last = fit
        return fit.state

    def _new_fit(self, sizes: Sizes, inputs: tuple[Any, ...]) -> Fit:
        """What follows from these sizes. It is kept from the second time on: sizes of a growing sequence never come back."""
        values, numbers = self._at_sizes(*sizes)
        table, generic = (
            tuple(zip(self._number_slots, numbers, strict=True)),
            self.specialisation.generic if self.specialisation else (),
        )
        if sizes not in self._met:
            if len(self._met) >= _SIZES_REMEMBERED:
                self._met.clear()
            self._met.add(sizes)
            return Fit(sizes, self.planner.layout(sizes), (*self._nothing_seen, *values), table, generic)
        fit = Fit(sizes, self.planner.layout(sizes), (*self._seen(*inputs), *values), table, generic)
        fit = self.planner.keep(fit)
        if self.specialisation is not None:
            fit.use(self.specialisation.entries_at(fit))
        return fit

    def fail(self, workspace: Workspace, error: str, message: str) -> NoReturn:
        """Raise what a check found; the workspace serves the next call."""
        workspace.error.value = 0
        self.free.append(workspace)
        raise getattr(builtins, error)(message)

    def recheck(self, workspace: Workspace, text: str) -> None:
        """Compute numbers in Python as `text` says, and check them, because a kernel was in doubt about them."""
        if workspace.error.value & OUT_OF_RANGE:
            self.fail(workspace, "IndexError", "index out of range in self")
        workspace.error.value = 0
        scope = {"math": math, "fail": self.fail, "w": workspace, "pf": workspace.floats}
        exec(compile(text, "<treadle numbers>", "exec"), scope)  # our own text, nothing of the user's

    def refresh(self, position: int, tensor: torch.Tensor) -> None:
        """Make the views of a static input, seen for the first time or with its memory replaced."""
        name = self.program.inputs[position]
        for k, key in enumerate(self.static_keys):
            if key.buffer == name:
                plain = tensor.detach()
                offset = plain.storage_offset() + key.offset  # type: ignore[operator]
                self.static_views[k] = plain.as_strided(key.shape, key.strides, offset)  # type: ignore[arg-type]
        self.static_pointers[position] = tensor.data_ptr()

    def with_layout(
        self, x: torch.Tensor, shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype
    ) -> torch.Tensor:
        """`x` with these strides: a copy, or another view of it if strides differ only along dimensions of size 1.

        Raises InternalError for a result of another shape or dtype than the plan counts on.
        """
        if x.dtype is not dtype or x.shape != shape:
            raise InternalError("run", f"an operator gave {x.dtype}{[*x.shape]}, planned was {dtype}{[*shape]}")
        x = x.resolve_conj()
        if all(n == 1 or a == b for n, a, b in zip(shape, x.stride(), strides, strict=True)):
            return x.as_strided(shape, strides)
        return torch.empty_strided(shape, strides, dtype=dtype, device=x.device).copy_(x)
