"""Decisions that a trace has made on numbers of outside tensors, and the guard that they come out the same at a later call.

    while t < t1: ...          # t, t1: tensors of one element on the CPU, from outside: the trace takes the path of this call

The guard reads the tensors. As long as their bytes are those of the last call that it accepted, nothing is computed. Else each decision is
computed again, by the calls that the graph makes for it, once for equal numbers. What the graph writes to an outside tensor before a
decision is written to a copy.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from . import tensor_abi
from .decision_programs import Calls, Decision, Line, Program, Row, key_of, number_key, programs_of
from .decisions_on_numbers import compiled_on_numbers
from .source import Source


class Outside(NamedTuple):
    """An outside object of the decisions.

    kind        what distinguishes it apart from its numbers; guards say that it stays the same
    size        bytes of a tensor whose elements are one block of memory; None for another tensor, or a number
    dtype       of a tensor without dimensions on the CPU; int for an int; None for what is neither
    is_leaf     a decision reads it
    is_written  the graph writes to it before some decision
    """

    kind: Any
    type: type
    size: int | None
    dtype: Any = None
    is_leaf: bool = False
    is_written: bool = False


class Decided:
    """Guard callable of the decisions of one trace. It is given the objects at `sources`.

    is_costly: making the decisions has cost more than they are worth (`weigh`). Then it holds no more.

    A tensor that the graph writes to before a decision must share no memory with what a decision reads, unless it is the same tensor.
    """

    def __init__(self) -> None:
        self.sources: list[Source] = []
        self.decisions: list[Decision] = []
        self.calls = Calls()
        self._outside: list[Outside] = []
        self._kinds: list[Any] = []
        self._written: list[tuple[Source, torch.Tensor]] = []  # since the last decision
        self._positions: dict[Source, int] = {}
        self._memory = KnownMemory()
        self._keys: set[Any] = set()
        self._programs: list[_ProgramGuard] | None = None
        self._apart: _ApartGuard | None = None
        self._stops: Callable[[], bool] | None = None
        self._worth: float | None = None
        self._asked = 0
        self.is_costly = False

    def stop_deciding(self, when: Callable[[], bool]) -> None:
        """Hold for all numbers, without making a decision, once `when` says so. It is asked at every call."""
        self._stops, self._worth, self.is_costly = when, None, False

    def weigh(self, worth: float) -> None:
        """From now on hold only until making the decisions has cost more than `worth` calls of operators a call."""
        self._worth = worth

    @property
    def lines(self) -> set[Line]:
        """The lines of all decisions."""
        return {decision.place[:3] for decision in self.decisions}

    def costly_lines(self) -> set[Line]:
        """The lines of the decisions that have been made again in at least every other call; of all that have been, if there are none."""
        made = [program for program in self._programs or () if program.runs]
        programs = [program for program in made if 2 * program.runs >= self._asked] or made
        return {
            self.decisions[number].place[:3] for program in programs for row in program.rows for number in row.decisions
        }

    def why_not_apart(
        self, leaves: Iterable[tuple[Source, Any]], written: Iterable[tuple[Source, torch.Tensor]]
    ) -> str | None:
        """Why a decision that reads these objects cannot be computed again on copies. written: since the last time that this was asked."""
        new = list(written)
        self._written += new
        return self._memory.why_not_write(new) or self._memory.why_not_read(leaves)

    def read(self, source: Source, obj: Any) -> int:
        """The position of the object at `source`, which the next decision reads, among those that the guard is given."""
        self._memory.read(source, obj)
        return self._note(source, obj, is_leaf=True)

    def add(self, decision: Decision) -> None:
        """Add a decision on results of `calls`."""
        for source, tensor in self._written:
            self._note(source, tensor, is_written=True)
        self._written = []
        self.decisions.append(decision)
        self._keys.add(key_of(self.calls.made, decision, self._kinds))

    def _note(self, source: Source, obj: Any, **role: bool) -> int:
        found = self._positions.get(source)
        if found is None:
            found = self._positions[source] = len(self.sources)
            self.sources.append(source)
            self._outside.append(_outside(obj))
            self._kinds.append(self._outside[found].kind)
        self._outside[found] = self._outside[found]._replace(**role)
        return found

    @property
    def leaves(self) -> Mapping[Source, bool]:
        """All sources, each with whether a decision reads what is there; the graph writes to the others before some decision."""
        return {source: self._outside[position].is_leaf for source, position in self._positions.items()}

    @property
    def distinct(self) -> int:
        """How many decisions there are, counting those as one that are computed in the same way from different objects."""
        return len(self._keys)

    @property
    def cost(self) -> float:
        """What it costs to make all decisions once, in calls of operators."""
        return sum(program.cost for program in self._made_programs())

    @property
    def spent(self) -> float:
        """What it has cost to make decisions so far, in calls of operators. Numbers that have not changed cost nothing."""
        return sum(program.cost * program.runs for program in self._programs or ())

    @property
    def text(self) -> str:
        """The decisions, by the lines that make them."""
        lines = dict.fromkeys(f"{file}:{line}" for file, line, _, _ in (d.place for d in self.decisions))
        return f"what is decided at {', '.join(lines)} comes out the same"

    def __call__(self, *given: Any) -> bool:
        if self._stops is not None and self._stops():
            return True
        self._asked += 1
        if self._worth is not None and self._asked % _TRIED == 0:
            self.is_costly = self.spent > self._asked * self._worth
        if self.is_costly:
            return False
        programs = self._made_programs()
        if self._apart is not None and not self._apart(given):
            return False
        try:
            return all(program.holds(given) for program in programs)
        except _FAILURES:
            return False

    def first_changed(self, given: Sequence[Any]) -> int | None:
        """The position of the first decision that comes out differently for these objects; later ones may follow from it.

        The number of decisions if there is none; None if one cannot be made.
        """
        found = unknown = len(self.decisions)
        for program in self._made_programs():
            for row in program.rows:
                try:
                    changed = program.first_changed(row, given)
                except _FAILURES:
                    unknown = min(unknown, row.decisions[0])
                    continue
                if changed < len(row.decisions):
                    found = min(found, row.decisions[changed])
        return None if unknown < found else found

    def _made_programs(self) -> list[_ProgramGuard]:
        """The programs, made when the trace has ended."""
        if self._programs is None:
            self.calls.forget_nodes()
            made = programs_of(self.calls.made, self.decisions, self._kinds)
            self._apart = _ApartGuard(self._outside) if any(o.is_written for o in self._outside) else None
            self._programs = [_ProgramGuard(program, self._outside) for program in made]
        return self._programs


# What the calls of a decision raise for other elements or sizes than those of the trace.
_FAILURES = (RuntimeError, ValueError, IndexError, TypeError, ArithmeticError, AttributeError)


def _outside(obj: Any) -> Outside:
    if not isinstance(obj, torch.Tensor):
        return Outside(type(obj), type(obj), None, int if type(obj) is int else None)
    metadata = (obj.dtype, obj.device, obj.layout, tuple(obj.shape), obj.requires_grad, obj.is_inference())
    if obj.layout is not torch.strided:
        return Outside((type(obj), *metadata), type(obj), None)
    kind = (type(obj), *metadata, tuple(obj.stride()), obj.is_conj(), obj.is_neg())
    size = obj.nbytes if obj.is_contiguous() and tensor_abi.handle_offset() is not None else None
    is_number = not obj.dim() and obj.device.type == "cpu" and not obj.is_neg()
    return Outside(kind, type(obj), size, obj.dtype if is_number else None)


# So many calls tell whether decisions are worth what they cost.
_TRIED = 8

# What a run of a program costs beside its calls: it reads the numbers, and switches gradients off and on. Arithmetic on Python's numbers
# costs less than one call.
_RUN = 3.0
_RUN_ON_NUMBERS = 0.8


class _ProgramGuard:
    """Whether the decisions of one program come out the same for all its rows.

    cost: of a run for one row, in calls of operators; runs: how many there have been.
    """

    def __init__(self, program: Program, outside: Sequence[Outside]):
        self.rows = program.rows
        self.runs = 0
        self._first_changed = program.compiled()
        first = [outside[position] for position in program.rows[0].inputs]
        self._on_numbers = compiled_on_numbers(program, [known.dtype for known in first])
        self.cost = _RUN + len(program.calls) if self._on_numbers is None else _RUN_ON_NUMBERS
        self._is_tensor = [known.dtype is not int for known in first]
        self._inputs = [position for row in program.rows for position in row.inputs]
        read = [outside[position] for position in self._inputs]
        self._read_blocks = _reader_of_blocks(read)
        self._seen: Any = None

    def holds(self, given: Sequence[Any]) -> bool:
        """May raise what the calls raise."""
        contents, width = self._contents(given)
        if contents == self._seen:
            return True
        if contents[:width] * len(self.rows) == contents:
            rows: Iterable[Row] = self.rows[:1]
        else:
            rows = {contents[n * width : (n + 1) * width]: row for n, row in enumerate(self.rows)}.values()
        if any(self.first_changed(row, given) != len(row.decisions) for row in rows):
            return False
        self._seen = contents
        return True

    def first_changed(self, row: Row, given: Sequence[Any]) -> int:
        """The position of the first decision of a row that comes out differently, among those of the row, or their number."""
        self.runs += 1
        numbers = [given[position] for position in row.inputs]
        if self._on_numbers is not None:
            read = [x.item() if is_tensor else x for x, is_tensor in zip(numbers, self._is_tensor, strict=True)]
            changed = self._on_numbers(*read)
            if changed is not None:
                return changed
        if not torch.is_grad_enabled():  # entering a context takes longer than some programs
            return self._first_changed(*numbers)
        with torch.no_grad():
            return self._first_changed(*numbers)

    def _contents(self, given: Sequence[Any]) -> tuple[bytes, int] | tuple[tuple[Any, ...], int]:
        """The numbers of all rows, one row after the other, and how long the part of a row is."""
        read = [given[position] for position in self._inputs]
        if self._read_blocks is None:
            return tuple(map(_contents, read)), len(read) // len(self.rows)
        contents = self._read_blocks(read)
        return contents, len(contents) // len(self.rows)


def _reader_of_blocks(objects: Sequence[Outside]) -> Callable[[Sequence[Any]], bytes] | None:
    """A function of objects like these that gives their bytes; None if they are not all tensors in one block of memory each."""
    sizes = tuple(known.size for known in objects if known.size is not None)
    offset = tensor_abi.handle_offset()
    if len(sizes) < len(objects) or offset is None:
        return None
    import treadle_frame

    types, data_ptr = _types_of(objects), tensor_abi.address_of("data_ptr")
    return lambda given: treadle_frame.native_memory(given, types, offset, data_ptr, sizes)


def _types_of(objects: Iterable[Outside]) -> tuple[type, ...]:
    return tuple(dict.fromkeys(known.type for known in objects))


def _contents(value: Any) -> Any:
    """The bytes of a tensor on the CPU; a number with its type."""
    if not isinstance(value, torch.Tensor):
        return (type(value), number_key(value))
    dense = value if value.is_contiguous() else value.contiguous()
    size = dense.nbytes
    return ctypes.string_at(dense.data_ptr(), size) if size else b""


# ---- memory that decisions read and the graph writes


class KnownMemory:
    """The memory of the outside tensors of a trace that decisions read, and of those that the graph writes to."""

    def __init__(self) -> None:
        self._read: dict[Source, tuple[int, int]] = {}
        self._written: dict[Source, tuple[int, int]] = {}
        self._conflict: str | None = None

    def why_not_write(self, tensors: Iterable[tuple[Source, torch.Tensor]]) -> str | None:
        """Why no more decisions can be made behind writes to these tensors: a guard on all decisions would never hold."""
        for source, tensor in tensors:
            if source not in self._written:
                memory = self._written[source] = _memory_of(tensor)
                if _meets_another(self._read, source, memory):
                    self._conflict = f"{source.text} is written to and shares memory with what has been read"
        return self._conflict

    def why_not_read(self, objects: Iterable[tuple[Source, Any]]) -> str | None:
        """Why these objects cannot be read behind the writes so far: another tensor may have changed them."""
        for source, obj in objects:
            if isinstance(obj, torch.Tensor) and source not in self._read:
                if self._written and _meets_another(self._written, source, _memory_of(obj)):
                    return f"{source.text} shares memory with what has been written to"
        return None

    def read(self, source: Source, obj: Any) -> None:
        """A decision reads this object."""
        if isinstance(obj, torch.Tensor) and source not in self._read:
            self._read[source] = _memory_of(obj)


def _meets_another(known: dict[Source, tuple[int, int]], source: Source, memory: tuple[int, int]) -> bool:
    start, end = memory
    return any(a < end and start < b and other != source for other, (a, b) in known.items())


def _memory_of(tensor: torch.Tensor) -> tuple[int, int]:
    """The addresses of the storage of a tensor: the first, and the one behind the last."""
    storage = tensor.untyped_storage()
    start = storage.data_ptr()
    return start, start + storage.nbytes()


class _ApartGuard:
    """Whether no tensor that the graph writes to before a decision shares memory with another one that a decision reads."""

    def __init__(self, outside: Sequence[Outside]):
        self._positions = [n for n, known in enumerate(outside) if issubclass(known.type, torch.Tensor)]
        self._roles = [(outside[n].is_leaf, outside[n].is_written) for n in self._positions]
        self._where = _reader_of_places([outside[n] for n in self._positions])
        self._seen: bytes | None = None

    def __call__(self, given: Sequence[Any]) -> bool:
        tensors = [given[position] for position in self._positions]
        where = self._where(tensors)
        if where is not None and where == self._seen:
            return True
        ranges = [(*_memory_of(tensor), *role) for tensor, role in zip(tensors, self._roles, strict=True)]
        if shares_memory(ranges):
            return False
        # An empty tensor has no address, so that nothing tells where its storage is.
        self._seen = where if all(tensor.numel() for tensor in tensors) else None
        return True


def _reader_of_places(objects: Sequence[Outside]) -> Callable[[Sequence[Any]], bytes | None]:
    """A function of tensors like these: numbers that say where their storages are, or None if none do."""
    offset = tensor_abi.handle_offset()
    if offset is None:
        return lambda tensors: None
    import treadle_frame

    types = _types_of(objects)
    functions = tuple(map(tensor_abi.address_of, ("data_ptr", "storage_offset", "storage_size")))

    def places(tensors: Sequence[Any]) -> bytes | None:
        try:
            return treadle_frame.native_numbers(tensors, types, offset, functions)
        except RuntimeError:
            return None

    return places


def shares_memory(ranges: Iterable[tuple[int, int, bool, bool]]) -> bool:
    """Whether a range that is written overlaps another one that is read. A range is (start, end, is read, is written)."""
    end_of_read = end_of_written = 0
    for start, end, is_read, is_written in sorted(ranges):
        if start == end:
            continue
        if (is_read and start < end_of_written) or (is_written and start < end_of_read):
            return True
        end_of_read = max(end_of_read, end) if is_read else end_of_read
        end_of_written = max(end_of_written, end) if is_written else end_of_written
    return False
