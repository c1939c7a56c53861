"""Code prepared for evaluation: instructions with their handlers, exception handlers, and what the flow of control tells."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from treadle_tracer.bytecode import CodeModel, ExceptionEntry, joins, live_names, same_tails


class Program:
    """A code model with its handlers looked up: what the loop of a frame runs."""

    __slots__ = ("_cells_passed", "_joins", "_live", "_tails", "handled_at", "model", "steps")

    def __init__(self, model: CodeModel, handlers: Mapping[str, Callable[..., Any]]):
        self.model = model
        self.steps = [(handlers[i.opname], i) for i in model.instructions]
        self.handled_at: list[ExceptionEntry | None] = [None] * len(self.steps)
        self._live: list[frozenset[str]] | None = None
        self._joins: list[int | None] | None = None
        self._tails: list[int] | None = None
        self._cells_passed: tuple[str, ...] | None = None
        for entry in model.exceptions:
            for index in range(entry.start, entry.end + 1):
                self.handled_at[index] = entry

    def live_at(self, index: int) -> frozenset[str]:
        """Variables that instruction `index` or a later one may read."""
        if self._live is None:
            self._live = live_names(self.model)
        return self._live[index]

    def join_of(self, index: int) -> int | None:
        """The instruction at which all paths from instruction `index` come together again, or None."""
        if self._joins is None:
            self._joins = joins(self.model)
        return self._joins[index]

    def tail_at(self, index: int) -> int:
        """An instruction that stands for `index` and its copies: those from which the function goes on in the same way."""
        if self._tails is None:
            self._tails = same_tails(self.model)
        return self._tails[index]

    @property
    def cells_passed(self) -> tuple[str, ...]:
        """Cell variables whose cells are arguments, as those of a continuation are: it jumps over the prologue of its function."""
        if self._cells_passed is None:
            made = _cells_made_at_entry(self.model) if self.model.cellvars else set()
            self._cells_passed = tuple(
                name for name in self.model.cellvars if name not in made and name in self.model.arguments
            )
        return self._cells_passed

    def outer(self, entry: ExceptionEntry) -> ExceptionEntry | None:
        """The entry that covers the handler of `entry`, other than the handler's own cleanup."""
        found = self.handled_at[entry.target]
        return None if found is None or found.target >= entry.target and found.lasti else found

    def raises_again(self, handler: int) -> bool:
        """Whether the handler at this instruction catches nothing: it is that of a `finally` whose body does not leave the handler."""
        for instruction in self.model.instructions[handler:]:
            if instruction.opname == "RERAISE":
                return True
            if instruction.opname in _ENDS_OF_HANDLERS or (instruction.target or handler) < handler:
                return False
        return False


_ENDS_OF_HANDLERS = frozenset(
    {"CHECK_EXC_MATCH", "CHECK_EG_MATCH", "POP_EXCEPT", "WITH_EXCEPT_START", "RETURN_VALUE", "RETURN_CONST"}
)


def _cells_made_at_entry(model: CodeModel) -> set[str]:
    """Cell variables whose cells the prologue makes."""
    made: set[str] = set()
    at = 0
    while (instruction := model.instructions[at]).opname in ("MAKE_CELL", "COPY_FREE_VARS", "NOP", "JUMP_FORWARD"):
        if instruction.opname == "MAKE_CELL":
            made.add(instruction.argval)
        at = instruction.argval if instruction.opname == "JUMP_FORWARD" else at + 1
    return made
