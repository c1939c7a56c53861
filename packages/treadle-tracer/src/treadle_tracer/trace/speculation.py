"""Jumps on undecided conditions: both paths are followed without effects until they join, so that nothing is decided about sizes.

    is_causal = q_length > 1 and mask is None and is_causal      # with a mask: False, whatever q_length is

A path is followed on a copy of the frame's stack and variables. It ends before the first instruction that has an effect
(`trace.speculatable`), before the first question that needs a guard, or a few instructions past the point where all paths of the
function come together. The states of both paths are compared. Where two of them stand at the same instruction and `trace.join` finds
one state for both, the frame continues from that state. Otherwise the condition is decided at the jump.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from treadle_shapes import ShapesError
from treadle_shapes.expr import Ne, Not
from treadle_shapes.torch import raw_expr
from treadle_tracer.errors import PathEnds, Unsupported
from treadle_tracer.trace.join import Join
from treadle_tracer.trace.speculatable import is_speculatable, why_not_speculatable
from treadle_tracer.values.base import boolean
from treadle_tracer.values.joined import SymbolicBool
from treadle_tracer.values.value import NotConstant, Raised, Value

if TYPE_CHECKING:
    from torch import fx

    from treadle_tracer.trace.frame import Frame
    from treadle_tracer.trace.tracer import Tracer
    from treadle_tracer.values.tensor import SymbolicValue

_STEPS = 600  # instructions evaluated for one jump, both paths and their calls together
_DEPTH = 4  # undecided jumps inside one another
_PAST_THE_JOIN = (
    4  # instructions followed past the join: they may drop what still differs there, as a store to a dead variable does
)
_ATTEMPTS = 3  # failures after which a jump is decided at once; a loop that counts to a size would fail in every round

_ENDS = (PathEnds, Raised, Unsupported, NotConstant, ShapesError)
_HARMLESS_NODES = frozenset({torch.ops.aten.sym_size.int, operator.add, operator.sub, operator.mul, operator.neg})
_RETURNS = ("RETURN_VALUE", "RETURN_CONST")
_RETURNED = "returned"  # the key that all states before a return share
_LEAVES = -1  # the pc of a state whose function has returned the top of its stack


class Speculation:
    """The paths being followed. `assumptions` hold on the present one; if `computes`, it may make tensors."""

    def __init__(self, tx: Tracer):
        self.tx = tx
        self.assumptions: list[Any] = []
        self.computes = True
        self.steps = _STEPS
        self.nodes: list[fx.Node] = []

    def decide(self, condition: Any) -> bool:
        """The truth of a condition on the present path. Raises PathEnds where that would need a guard."""
        known = self.known(condition)
        if known is None:
            raise PathEnds(f"{condition} is undecided")
        return known

    def known(self, condition: Any) -> bool | None:
        """The same, None where it would need a guard."""
        env = self.tx.symbols.env
        known = env.prove(condition)
        return env.prove_under(self.assumptions, condition) if known is None else known

    def check_node(self, target: Any) -> None:
        """Raises PathEnds unless a node that calls `target` does no harm on a path that is not taken."""
        if target not in _HARMLESS_NODES and not (self.computes and is_speculatable(target)):
            raise PathEnds(f"{target} in the graph")

    def note_node(self, node: fx.Node) -> None:
        self.nodes.append(node)

    def step(self, frame: Frame) -> bool:
        """Evaluate the frame's next instruction. The result: whether that leaves the frame."""
        at = frame.pc
        handler, instruction = frame.program.steps[at]
        self.steps -= 1
        if self.steps < 0:
            raise PathEnds("too many instructions")
        why_not = why_not_speculatable(frame, instruction, self.computes)
        if why_not is not None:
            raise PathEnds(why_not)
        frame.at, frame.pc = at, at + 1
        return bool(handler(frame, instruction))

    def run(self, frame: Frame) -> None:
        """Evaluate the frame of a call to its return."""
        while not self.step(frame):
            pass

    def forget_nodes(self, since: int) -> None:
        """Erase those of the nodes made since then that nothing uses."""
        gone: set[fx.Node] = set()
        for node in reversed(self.nodes[since:]):
            if not node.users:
                self.tx.graph.erase(node)
                gone.add(node)
        del self.nodes[since:]
        self.tx.symbols.forget_nodes(gone)


class State(NamedTuple):
    """The state of a frame before an instruction; after a return, only what is returned."""

    pc: int
    stack: list[Value]
    locals: dict[str, Value]
    cells: dict[str, Any]
    keyword_names: tuple[str, ...]

    @classmethod
    def of(cls, frame: Frame) -> State:
        return cls(frame.pc, frame.stack, frame.locals, frame.cells, frame.keyword_names)

    def copy(self) -> State:
        return State(self.pc, list(self.stack), dict(self.locals), dict(self.cells), self.keyword_names)

    def install(self, frame: Frame) -> None:
        frame.pc, frame.stack, frame.locals, frame.cells, frame.keyword_names = self


class _Path:
    """One path from a jump, followed step by step. Each step borrows the frame."""

    def __init__(self, speculation: Speculation, frame: Frame, start: State, assumption: Any, is_taken: bool):
        self.speculation = speculation
        self.frame = frame
        self.assumption = assumption
        self.is_taken = is_taken
        self._state = start.copy()
        self._join = frame.program.join_of(frame.at)
        self._past = 0

    def states(self) -> Iterator[State]:
        """The state before each instruction, up to one that cannot be followed or need not be."""
        while True:
            yield self._state.copy()
            pc = self._state.pc
            if pc == self._join or self._past:
                self._past += 1
            if (
                self._past > _PAST_THE_JOIN
                or self.frame.program.steps[pc][1].opname in _RETURNS
                or pc == self.frame.stop_at
            ):
                return
            try:
                self._advance()
            except _ENDS:
                return

    def _advance(self) -> None:
        speculation, frame = self.speculation, self.frame
        kept, at, computes = State.of(frame), frame.at, speculation.computes
        self._state.install(frame)
        speculation.assumptions.append(self.assumption)
        speculation.computes = computes and self.is_taken
        try:
            if speculation.step(frame):
                raise PathEnds("both paths of an inner jump return")
            self._state = State.of(frame)
        finally:
            kept.install(frame)
            frame.at = at
            speculation.assumptions.pop()
            speculation.computes = computes


def branch(frame: Frame, condition: SymbolicBool, when: bool, target: int, keeps: bool) -> bool:
    """Carry out a jump to `target` if `condition`, the truth of the top of the stack, is `when`; a taken jump keeps the top if `keeps`.

    The result: whether that leaves the frame, because both paths return.
    """
    tx = frame.tx
    side = _sides(frame, when, target, keeps)
    known = tx.speculation.known(condition.condition) if tx.speculation else tx.symbols.env.prove(condition.condition)
    if known is None:
        joined = _join(frame, condition.condition, side)
        if joined is not None:
            joined.install(frame)
            frame.result = joined.stack[-1] if joined.pc == _LEAVES else None
            return joined.pc == _LEAVES
        known = condition.obj
    side(known).install(frame)
    return False


def branch_on_data(frame: Frame, number: SymbolicValue, when: bool, target: int, keeps: bool) -> bool | None:
    """`branch` on the truth of a number that only the data can tell, where both paths join before anything is computed; else None.

    is_causal = found.shape[0] > 1 and mask is None         # with a mask: False, however many are found
    """
    value = raw_expr(number.sym)
    kind = number.python_type()
    if kind not in (bool, int):
        return None
    joined = _join(frame, value if kind is bool else Ne(value, 0), _sides(frame, when, target, keeps))
    if joined is None:
        return None
    joined.install(frame)
    frame.result = joined.stack[-1] if joined.pc == _LEAVES else None
    return joined.pc == _LEAVES


def _sides(frame: Frame, when: bool, target: int, keeps: bool) -> Callable[[bool], State]:
    """The state behind a jump, by the truth of the top of the stack."""
    top = frame.stack[-1]

    def side(truth: bool) -> State:
        jumps = truth is when
        stack = frame.stack[:-1]
        if jumps and keeps:
            stack.append(boolean(truth) if top.python_type() is bool else top)
        return State(target if jumps else frame.pc, stack, frame.locals, frame.cells, frame.keyword_names)

    return side


def _join(frame: Frame, condition: Any, side: Callable[[bool], State]) -> State | None:
    """A state from which the frame continues without a decision about `condition`, or None."""
    tx = frame.tx
    place = (id(frame.program), frame.at)
    if tx.failed_joins[place] >= _ATTEMPTS:
        return None
    hint = tx.symbols.env.hint(condition)  # None where only the data can tell: then no path is computed on
    taken, other = (condition, Not(condition)) if hint else (Not(condition), condition)
    with _speculating(tx) as speculation:
        if len(speculation.assumptions) >= _DEPTH:
            return None
        before = len(speculation.nodes)
        others: dict[Any, list[State]] = {}
        for state in _Path(speculation, frame, side(not hint), other, is_taken=False).states():
            others.setdefault(_key(frame, state), []).append(state)
        for state in _Path(speculation, frame, side(bool(hint)), taken, is_taken=hint is not None).states():
            for candidate in others.get(_key(frame, state), ()):
                join = Join(tx, tuple(speculation.assumptions), taken, other)
                found = _joined(join, frame, state, candidate)
                if found is not None and join.allows(speculation.nodes[before:]):
                    join.commit()
                    return found
        speculation.forget_nodes(before)
    tx.failed_joins[place] += 1
    return None


def _key(frame: Frame, state: State) -> Any:
    """States with equal keys may be joined.

    The key of a state between the instructions of one call equals no other, because a break returns to the first of them.
    """
    instructions = frame.instructions
    if instructions[state.pc].opname in _RETURNS:
        return _RETURNED
    if state.pc and instructions[state.pc - 1].opname in ("KW_NAMES", "PRECALL"):
        return object()
    return frame.program.tail_at(state.pc), len(state.stack), state.keyword_names


def _joined(join: Join, frame: Frame, taken: State, other: State) -> State | None:
    """One state for both, or None if the rest of the function could tell them apart."""
    if _key(frame, taken) == _RETURNED:
        result = join.value(_returned(frame, taken), _returned(frame, other))
        return None if result is None else taken._replace(pc=_LEAVES, stack=[result])
    if taken.cells != other.cells:
        return None
    stack: list[Value] = []
    for one, two in zip(taken.stack, other.stack, strict=True):
        value = join.value(one, two)
        if value is None:
            return None
        stack.append(value)
    variables: dict[str, Value] = {}
    differing = [name for name in other.locals if name not in taken.locals]
    for name, one in taken.locals.items():
        two = other.locals.get(name)
        value = one if one is two else None if two is None else join.value(one, two)
        if value is not None:
            variables[name] = value
        else:
            differing.append(name)
    # Liveness is slow to compute, and in most joins no variable differs.
    if differing and not frame.program.live_at(taken.pc).isdisjoint(differing):
        return None
    return State(taken.pc, stack, variables, taken.cells, taken.keyword_names)


def _returned(frame: Frame, state: State) -> Value:
    instruction = frame.instructions[state.pc]
    return frame.tx.from_constant(instruction.argval) if instruction.opname == "RETURN_CONST" else state.stack[-1]


@contextlib.contextmanager
def _speculating(tx: Tracer) -> Iterator[Speculation]:
    """Nothing inside is recorded but guards on outside objects, which hold anyway."""
    if isinstance(tx.speculation, Speculation):
        yield tx.speculation
        return
    speculation = tx.speculation = Speculation(tx)
    tx.graph.watch = speculation
    tx.mutations.frozen = True
    try:
        with tx.symbols.env.refusing_guards():
            yield speculation
    finally:
        tx.speculation = tx.graph.watch = None
        tx.mutations.frozen = False
