"""The walk over the instructions of a section's loops, which the section writers of all languages share.

Equal values share a name while it is in scope. There are two scopes: the outer one, of a kernel's outer axes, whose values
the loops over a section's own axes may use; and the inner one, of those loops.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Protocol

from treadle_codegen.ir.loops import Instr, IntLike, Load, Loop
from treadle_codegen.targets.renderer import const_key

Element = tuple[str, IntLike]  # a buffer and an index


class OuterScope(Protocol):
    """What a kernel's text keeps between its sections: names of equal values, and of what was stored to an element."""

    outer_values: dict[Any, str]
    outer_stored: dict[Element, str]


class InstructionWriter(ABC):
    """Base of section writers. `outer` says in which scope an instruction stands.

    accumulators: what a language keeps of each reduction, by (member of the section, position in its body); results: the
    names of their results, once there are any.
    """

    def __init__(self, scope: OuterScope) -> None:
        self._scope = scope
        self.inner_values: dict[Any, str] = {}
        self.inner_stored: dict[Element, str] = {}
        self.accumulators: dict[tuple[int, int], Any] = {}
        self.results: dict[tuple[int, int], str] = {}

    def _instructions(self, m: int, loop: Loop, start: int, end: int, *, outer: bool) -> None:
        """Write instructions `start` to `end - 1` of member `m`, and what they need."""
        names: dict[int, str] = {}
        for k in range(start, end):
            self._value(m, loop, k, names, outer=outer)

    def _value(self, m: int, loop: Loop, k: int, names: dict[int, str], *, outer: bool) -> str:
        """The name of instruction k's value, written if it is not known yet; "" for a store and for a reduction in progress."""
        if k not in names:
            names[k] = self._written(m, loop, k, names, outer=outer)
        return names[k]

    def _written(self, m: int, loop: Loop, k: int, names: dict[int, str], *, outer: bool) -> str:
        instr = loop.body[k]
        if instr.op == "reduce" and outer:
            return self.results[(m, k)]
        if instr.op == "reduce":
            self._accumulate(self.accumulators[(m, k)], self._value(m, loop, instr.args[0], names, outer=False))
            return ""
        args = tuple([self._value(m, loop, a, names, outer=outer) for a in instr.args])
        if instr.op == "check_position":
            self._check_position(instr, args[0])
            return ""
        if instr.op in ("store", "indirect_store"):
            self._store(instr, args, outer=outer)
            return ""
        known = self._known(instr, args, outer=outer)
        if known is not None:
            return known
        name = self._define(loop, instr, args, outer=outer)
        values = self._scope.outer_values if outer else self.inner_values
        values[(instr.op, args, instr.dtype, const_key(instr))] = name
        return name

    def _known(self, instr: Instr, args: tuple[str, ...], *, outer: bool) -> str | None:
        """The name of an equal value that is in scope: at the outer level, values of the inner loops are not."""
        if instr.op == "load":
            stored = self._stored(instr.attr, outer=outer)
            if stored is not None:
                return stored
        key = (instr.op, args, instr.dtype, const_key(instr))
        return self._scope.outer_values.get(key) or (None if outer else self.inner_values.get(key))

    def _stored(self, load: Load, *, outer: bool) -> str | None:
        """The name of what was stored to the very element: it need not stand in memory."""
        element = (load.buffer, load.index)
        return self._scope.outer_stored.get(element) or (None if outer else self.inner_stored.get(element))

    @abstractmethod
    def _define(self, loop: Loop, instr: Instr, args: tuple[str, ...], *, outer: bool) -> str:
        """Write a new value; returns its name."""

    @abstractmethod
    def _store(self, instr: Instr, args: tuple[str, ...], *, outer: bool) -> None:
        """Write a store."""

    @abstractmethod
    def _check_position(self, instr: Instr, position: str) -> None:
        """Write a check of a position."""

    @abstractmethod
    def _accumulate(self, acc: Any, value: str) -> None:
        """Take a value into account in a reduction."""
