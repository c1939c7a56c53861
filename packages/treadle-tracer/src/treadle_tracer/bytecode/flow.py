"""Flow analysis over a ``CodeModel``: successors, stack depths, kinds of stack slots, live variables.

All functions take and return instruction indices. Exceptions count as edges: an instruction inside a protected range
may go on at the range's handler.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass

from treadle_tracer.bytecode.model import CodeModel, ExceptionEntry, Instruction
from treadle_tracer.bytecode.opcodes import NULL_AFTER_CALLABLE, OPS, ArgKind, stack_effect
from treadle_tracer.bytecode.read import BytecodeError


@dataclass(frozen=True, slots=True)
class Block:
    """Instructions ``start`` … ``end`` (both included) that run one after the other.

    ``successors`` are the starts of the blocks that may follow without an exception, ``handlers`` those entered by one.
    """

    start: int
    end: int
    successors: tuple[int, ...]
    handlers: tuple[int, ...]


class SlotKind(enum.Enum):
    """What a slot of the operand stack holds."""

    VALUE = "an object"
    NULL = "no object: the C null that PUSH_NULL leaves"
    HANDLED = "the exception handled outside, as PUSH_EXC_INFO saved it for POP_EXCEPT"
    EITHER = "an object or the C null, known at run time only"


def successors(model: CodeModel, index: int) -> tuple[int, ...]:
    """Instructions that may run after ``index`` without an exception: the next one, then the jump target."""
    instruction = model.instructions[index]
    target = instruction.target
    following = () if OPS[instruction.opname].ends else (index + 1,)
    return following if target is None else (*following, target)


def handlers(model: CodeModel) -> list[ExceptionEntry | None]:
    """For every instruction the exception table entry that covers it."""
    covering: list[ExceptionEntry | None] = [None] * len(model.instructions)
    for entry in model.exceptions:
        covering[entry.start : entry.end + 1] = [entry] * (entry.end + 1 - entry.start)
    return covering


def handler_depth(entry: ExceptionEntry) -> int:
    """Stack depth at which the handler of ``entry`` starts."""
    return entry.depth + entry.lasti + 1


def _depths(model: CodeModel) -> tuple[list[int | None], int]:
    instructions, covering = model.instructions, handlers(model)
    depths: list[int | None] = [None] * len(instructions)
    highest = 0
    work = [(0, 0)]
    while work:
        index, depth = work.pop()
        while True:
            if index >= len(instructions):
                raise BytecodeError(f"execution runs off the end of {model.qualname}")
            known = depths[index]
            if known is not None:
                if known != depth:
                    where = f"instruction {index} ({instructions[index].opname}) of {model.qualname}"
                    raise BytecodeError(f"{where} is reached with {known} and with {depth} values on the stack")
                break
            depths[index] = depth
            opname, arg, argval, _, _ = instructions[index]
            op = OPS[opname]
            entry = covering[index]
            if entry is not None and depths[entry.target] is None:
                work.append((entry.target, handler_depth(entry)))
            if op.jumps:
                jumped = depth + stack_effect(op, arg, jump=True)
                highest = max(highest, jumped)
                work.append((argval, jumped))
            effect = op.effect
            depth += effect if effect.__class__ is int else effect(arg or 0)  # type: ignore[operator]
            if depth < 0:
                raise BytecodeError(
                    f"instruction {index} ({opname}) of {model.qualname} takes more than the stack holds"
                )
            if depth > highest:
                highest = depth
            if op.ends:
                break
            index += 1
    handler_depths = [handler_depth(e) for e in model.exceptions if depths[e.target] is not None]
    return depths, max([highest, *handler_depths])


def stack_depths(model: CodeModel) -> list[int | None]:
    """Values on the operand stack before each instruction; None where no execution gets to.

    For the END_FOR that a FOR_ITER of 3.12 or 3.13 names, the compiler's count is given (iterator and one value),
    although the interpreter usually jumps past it with both gone. In 3.11 the count before CALL leaves out the
    arguments, which really stay on the stack: the compiler books them on PRECALL.
    Raises BytecodeError if two paths to an instruction disagree.
    """
    return _depths(model)[0]


def max_stack(model: CodeModel) -> int:
    """The stack size the code needs."""
    return _depths(model)[1]


def blocks(model: CodeModel) -> tuple[Block, ...]:
    """The basic blocks in order of their first instruction, unreachable ones included."""
    covering = handlers(model)
    starts = {0}
    for index, instruction in enumerate(model.instructions):
        if instruction.target is not None:
            starts.add(instruction.target)
        if instruction.target is not None or OPS[instruction.opname].ends:
            starts.add(index + 1)
        if index and covering[index] is not covering[index - 1]:
            starts.add(index)
    starts.update(entry.target for entry in model.exceptions)
    bounds = sorted(start for start in starts if start < len(model.instructions))
    result = []
    for start, following in zip(bounds, [*bounds[1:], len(model.instructions)], strict=True):
        entry = covering[start]
        after = successors(model, following - 1)
        result.append(Block(start, following - 1, after, () if entry is None else (entry.target,)))
    return tuple(result)


_STORES = frozenset({"STORE_FAST"})
_READS_AND_STORES: dict[str, tuple[bool, bool]] = {
    "STORE_FAST_STORE_FAST": (False, False),
    "STORE_FAST_LOAD_FAST": (False, True),
    "LOAD_FAST_LOAD_FAST": (True, True),
}
"""Of each superinstruction: whether it reads its first and its second variable (else it stores it)."""


def accesses(instruction: Instruction) -> Iterator[tuple[str, bool]]:
    """(variable, whether its slot is read) in order of execution; a slot that is not read is overwritten.

    Deleting counts as reading (an unbound variable raises), and so does everything done through a cell.
    """
    op = OPS[instruction.opname]
    if op.kind is ArgKind.LOCAL_PAIR:
        yield from zip(instruction.argval, _READS_AND_STORES[op.name], strict=True)
    elif op.kind is ArgKind.LOCAL or op.kind is ArgKind.FREE:
        yield instruction.argval, op.name not in _STORES


class _Liveness:
    """Live variables as bit sets: at block starts to a fixpoint, then inside a block on demand."""

    def __init__(self, model: CodeModel) -> None:
        self.bits: dict[str, int] = {}
        self._sets: dict[int, frozenset[str]] = {}
        self.masks = [self._masks(instruction) for instruction in model.instructions]
        self.blocks = blocks(model)
        self.at_start = dict.fromkeys((block.start for block in self.blocks), 0)
        summaries = [self._summary(block) for block in self.blocks]
        changed = True
        while changed:
            changed = False
            for block, (read, stored) in zip(reversed(self.blocks), reversed(summaries), strict=True):
                live = read | (self._after(block) & ~stored) | self._on_exception(block)
                if live != self.at_start[block.start]:
                    self.at_start[block.start] = live
                    changed = True

    def _masks(self, instruction: Instruction) -> tuple[int, int]:
        """Variables that an instruction reads (before it may store them), and those it stores."""
        read = stored = 0
        for name, reads in accesses(instruction):
            bit = self.bits.setdefault(name, 1 << len(self.bits))
            if reads:
                read |= bit & ~stored
            else:
                stored |= bit
        return read, stored

    def _summary(self, block: Block) -> tuple[int, int]:
        read = stored = 0
        for more_read, more_stored in self.masks[block.start : block.end + 1]:
            read |= more_read & ~stored
            stored |= more_stored
        return read, stored

    def _after(self, block: Block) -> int:
        live = 0
        for successor in block.successors:
            live |= self.at_start.get(successor, 0)
        return live

    def _on_exception(self, block: Block) -> int:
        """What the handler needs is live all through the block: any instruction may raise."""
        live = 0
        for handler in block.handlers:
            live |= self.at_start[handler]
        return live

    def inside(self, block: Block) -> Iterator[tuple[int, frozenset[str]]]:
        """(instruction, variables live before it) of a block, last one first."""
        live, on_exception = self._after(block), self._on_exception(block)
        for index in range(block.end, block.start - 1, -1):
            read, stored = self.masks[index]
            live = read | (live & ~stored) | on_exception
            yield index, self._names(live)

    def _names(self, live: int) -> frozenset[str]:
        found = self._sets.get(live)
        if found is None:
            found = self._sets[live] = frozenset(name for name, bit in self.bits.items() if live & bit)
        return found


def live_variables(model: CodeModel) -> list[frozenset[str]]:
    """For every instruction the variables (locals, cells, free variables) whose slots it or a later one may read.

    A cell counts as read wherever it is used, also to store into it: the cell itself is needed.
    """
    liveness = _Liveness(model)
    result: list[frozenset[str]] = [frozenset()] * len(model.instructions)
    for block in liveness.blocks:
        for index, live in liveness.inside(block):
            result[index] = live
    return result


_FRAME_READERS: dict[str, frozenset[str]] = {
    "LOAD_GLOBAL": frozenset({"locals", "vars", "dir", "eval", "exec", "_getframe", "currentframe"}),
    "LOAD_ATTR": frozenset({"_getframe", "currentframe"}),
    "LOAD_METHOD": frozenset({"_getframe", "currentframe"}),
}
"""Functions that see the variables of the frame that calls them, by how they are loaded."""


def _always_live(model: CodeModel) -> frozenset[str]:
    """Variables that may be read at any time: all of them if the code names a function that lists them, and the first argument of a
    method with a ``__class__`` cell, for ``super()`` looks it up in the frame."""
    if any(i.argval in _FRAME_READERS.get(i.opname, ()) for i in model.instructions):
        return frozenset(model.localsplus)
    return frozenset(model.arguments[:1]) if "__class__" in model.freevars else frozenset()


def live_names(model: CodeModel) -> list[frozenset[str]]:
    """For every instruction all variables whose values matter from there on: those of `live_variables`, and what the frame shows."""
    always = _always_live(model)
    return [live | always for live in live_variables(model)]


def joins(model: CodeModel) -> list[int | None]:
    """For every instruction the nearest later one that every way to a return or raise comes through (its immediate post-dominator),
    exceptions aside; None if there is none."""
    parts = blocks(model)
    number = {block.start: position for position, block in enumerate(parts)}
    after = [[number[s] for s in block.successors if s in number] for block in parts]
    everything = (1 << len(parts)) - 1
    through = [everything if after[position] else 1 << position for position in range(len(parts))]
    changed = True
    while changed:
        changed = False
        for position in reversed(range(len(parts))):
            common = everything
            for successor in after[position]:
                common &= through[successor]
            found = common | 1 << position if after[position] else 1 << position
            if found != through[position]:
                through[position], changed = found, True
    result: list[int | None] = []
    for position, block in enumerate(parts):
        later = [p for p in range(len(parts)) if through[position] >> p & 1 and p != position]
        nearest = max(later, key=lambda p: through[p].bit_count(), default=None)
        own = [index + 1 for index in range(block.start, block.end)]
        result += [*own, None if nearest is None else parts[nearest].start]
    return result


def same_tails(model: CodeModel) -> list[int]:
    """For every instruction one from which the function goes on in the same way: straight to a return, by the same instructions of the
    same place in the source, under the same handlers. It is the last such instruction, often the given one itself.

    CPython copies a short end of a function into the branches before it:

        if causal:                            if causal:
            mask = cut(mask)                      mask = cut(mask)
        return mask.contiguous()                  return mask.contiguous()
                                              return mask.contiguous()
    """
    result, covering = list(range(len(model.instructions))), handlers(model)
    seen: dict[object, int] = {}
    for index in reversed(range(len(result))):
        instruction = model.instructions[index]
        kind = OPS[instruction.opname]
        returns = instruction.opname in ("RETURN_VALUE", "RETURN_CONST")
        if kind.jumps or (kind.ends and not returns):
            continue
        operand = id(instruction.argval) if kind.kind is ArgKind.CONST else instruction.argval
        following = None if returns else result[index + 1]
        entry = covering[index]
        handler = entry and (entry.target, entry.depth, entry.lasti)
        same = (instruction.opname, instruction.arg, operand, instruction.positions, handler, following)
        result[index] = seen.setdefault(same, index)
    return result


def live_locals(model: CodeModel, index: int) -> tuple[str, ...]:
    """Locals and cells of the function itself (no free variables) live before instruction ``index``, in slot order.

    The first argument of a method with a ``__class__`` cell is always live: ``super()`` looks it up in the frame. All
    variables are if the code names a function that lists them.
    """
    liveness = _Liveness(model)
    (block,) = (block for block in liveness.blocks if block.start <= index <= block.end)
    live = next(names for at, names in liveness.inside(block) if at == index) | _always_live(model)
    own = model.localsplus[: len(model.localsplus) - len(model.freevars)]
    return tuple(name for name in own if name in live)


_Kinds = tuple[SlotKind, ...]
_VALUE, _NULL, _EITHER = SlotKind.VALUE, SlotKind.NULL, SlotKind.EITHER


def stack_kinds(model: CodeModel) -> list[tuple[SlotKind, ...] | None]:
    """What each stack slot holds before every instruction, bottom first; None where no execution gets to.

    EITHER: the two slots of a method load (``NULL, attribute`` or ``method, self``; 3.13 ``attribute, NULL`` or
    ``method, self``), and what LOAD_FAST_AND_CLEAR saved.
    """
    covering = handlers(model)
    known: list[_Kinds | None] = [None] * len(model.instructions)
    work: list[tuple[int, _Kinds]] = [(0, ())]
    unlikely: list[tuple[int, _Kinds]] = []  # keeps a handler that nothing raises to from being taken for unreachable
    while work or unlikely:
        expected = bool(work)
        index, kinds = work.pop() if work else unlikely.pop()
        before = known[index]
        merged = kinds if before is None else _merge(before, kinds)
        if merged == before or (before is not None and not expected):
            continue
        known[index] = merged
        instruction = model.instructions[index]
        entry = covering[index]
        if entry is not None:
            edge = entry.target, merged[: entry.depth] + (_VALUE,) * (entry.lasti + 1)
            (unlikely if instruction.opname in _NEVER_RAISE else work).append(edge)
        if instruction.target is not None:
            work.append((instruction.target, _kinds_after(instruction, merged, jump=True)))
        if not OPS[instruction.opname].ends:
            work.append((index + 1, _kinds_after(instruction, merged, jump=False)))
    return known


_NEVER_RAISE = frozenset(
    {"PUSH_EXC_INFO", "POP_EXCEPT", "NOP", "SWAP", "COPY", "LOAD_CONST", "PUSH_NULL", "STORE_FAST"}
)
"""Instructions that raise nothing, though exception ranges may begin or end with them in another state of the stack."""


def _merge(one: _Kinds, other: _Kinds) -> _Kinds:
    return tuple(a if a is b else _EITHER for a, b in zip(one, other, strict=True))


def _kinds_after(instruction: Instruction, kinds: _Kinds, *, jump: bool) -> _Kinds:
    opname, arg, _, _, _ = instruction
    op = OPS[opname]
    pushed = _pushed_kinds(instruction)
    depth = len(kinds) + stack_effect(op, arg, jump=jump)
    if opname == "SWAP":
        other = len(kinds) - (arg or 1)
        swapped = list(kinds)
        swapped[-1], swapped[other] = swapped[other], swapped[-1]
        return tuple(swapped)
    if opname == "COPY":
        return (*kinds, kinds[-(arg or 1)])
    if opname == "PUSH_EXC_INFO":
        return (*kinds[:-1], SlotKind.HANDLED, _VALUE)
    kept = min(len(kinds), depth - len(pushed))
    return kinds[:kept] + (_VALUE,) * (depth - kept - len(pushed)) + pushed


def _pushed_kinds(instruction: Instruction) -> _Kinds:
    """The kinds on top of the stack that differ from what stood there or would be taken for a plain value."""
    name, flags = instruction.opname, instruction.flag_bits
    if name == "PUSH_NULL":
        return (_NULL,)
    if name == "LOAD_FAST_AND_CLEAR":
        return (_EITHER,)
    if name == "LOAD_GLOBAL" and flags & 1:
        return (_VALUE, _NULL) if NULL_AFTER_CALLABLE else (_NULL, _VALUE)
    if name == "LOAD_METHOD" or (name in ("LOAD_ATTR", "LOAD_SUPER_ATTR") and flags & 1):
        return (_VALUE, _EITHER) if NULL_AFTER_CALLABLE else (_EITHER, _VALUE)
    if name in ("CALL", "CALL_KW", "CALL_FUNCTION_EX"):
        return (_VALUE,)
    return ()
