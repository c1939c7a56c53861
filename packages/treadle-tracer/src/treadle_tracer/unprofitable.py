"""Functions whose graphs cost more than they save are left to Python (`TracerOptions.leave_unprofitable`).

A function that breaks into small graphs pays for every piece: guards, the call of the graph, the continuation. `output.profitability`
estimates the profit of one run of each graph, entries count their runs.

    first call       compiles the function and its continuations. As soon as one of them has a negative profit, the function's entries are
                     taken out, so that its next call misses ("trial")
    next call        weighs each profit with the number of runs, and takes off what decisions on numbers have cost. Negative: if it
                     is so because of that cost, the function is compiled again without these decisions (`costly_decisions`);
                     else the entries are replaced by ones with the same guards that run the original code, and the entries of the
                     continuations are dropped. Not negative: the entries are put back
    some calls later the function that kept its graphs is judged once more, by what has run since (`second_trials`)
    another call     that these guards do not accept compiles again, and is judged again
    many calls       later, a function that the user has not asked to compile is skipped if nothing else has come. It is looked at again
                     when a function that the user has asked to compile is compiled again

A function that is one graph is judged when it is compiled. What breaks below a call that a trace has followed belongs to the function whose
entries have followed it: the continuations of the one that is called are pieces of the caller.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import CodeType
from typing import TYPE_CHECKING, Any

import treadle_frame

from .costly_decisions import give_up_deciding
from .output.continuations import continuations_of, original_of, starts_in_loop
from .output.entry import foresees, program_of_original
from .output.profitability import computing_operators, numbers_beside_tensors, work_of
from .output.size_ranges import size_program
from .second_trials import SecondTrial
from .skips import Skip, SkipKind
from .source import path_key

if TYPE_CHECKING:
    from .code_state import CodeState
    from .output.entry import Payload

# How often a loop turns, where that is not known.
_TURNS = 4
# What a turn costs in a continuation that has been given up: the graph before it was not what the loop needed.
_SKIPPED = 4.0
# For so many calls a function that is left to Python is asked which path it takes, since another one may be worth compiling.
_PATIENCE = 64
# A dynamic size may grow by this factor until the decision is made again.
_GROWTH = 8
# So many calls of a function that the user has not asked to compile are asked whether they are like one that was left to Python. Then the
# function is left alone, because the question costs as much as a small function.
_ASKED = 256
# In calls of operators: a function that is one graph is left alone if its profit is less. The first two are for functions that the user
# has asked to compile: asking what they do costs something, too, where they are left to Python. For more than
# a few operators the estimate is too low: of a mean, a difference and a relu at dynamic sizes -1.5, where compiled is 1.4 times as fast as
# eager. The third pays for the frame of all others.
_LEAST_OF_ROOT = -2.0
_LEAST_OF_FEW = -0.5
_FEW = 2
_LEAST = 1.0
# An operator that takes a number beside a tensor counts as one call, and takes as long as two or more: `x + 1` is as fast in a graph of its
# own as in eager, `x + y` takes 2.6 times as long.
_NUMBER = 1.5
# A function that the user has asked to compile stays compiled where it costs a smaller part of what its kernels take.
_SMALL_PART = 0.05
# Decisions are worth as much, in calls of operators, where their graph saves less: without them there would be a break.
_WORTH = 4.0


def judge(
    code: CodeType, entry: Any, is_root: bool, state_of: Callable[[CodeType], CodeState]
) -> tuple[Any, Skip | None]:
    """The entry to install for `code`, which has just been compiled to `entry`, and why that runs the original code, if it does.

    is_root: the user asked to compile it. state_of: the record of a code object.
    """
    original = original_of(code)
    profit = entry.payload.profit
    if profit is not None and entry.payload.decided.decisions:
        entry.payload.decided.weigh(max(profit, _WORTH))
    if original is code and not entry.payload.goes_on:
        is_whole = _computes_nothing(entry)
        if is_whole and not is_root and entry.payload.dynamic is None and _is_dearer_than_python(code, entry):
            program = treadle_frame.GuardProgram([*entry.guard.checks, _asked_at_most(code, state_of(code))])
            return treadle_frame.Entry(entry.code, program, entry.payload), None
        if profit is None or profit >= (_least_of_root(entry) if is_root else _LEAST) or is_whole:
            return entry, None
        skip = Skip(SkipKind.UNPROFITABLE, f"its graph is too small to gain anything ({_profit_text(profit)})")
        _leave_inlined([entry], state_of)
        return left_to_python(code, entry, state_of(code)), skip
    if original is None:
        return entry, None
    if original is code and any(map(treadle_frame.is_skipped, continuations_of(code))):
        # Where it goes on, nothing may miss an entry any more, and so put it on trial.
        skip = _why_leave([entry], _members(code, [entry]))
        if skip is not None:
            return left_to_python(code, entry, state_of(code)), skip
    _note_callers(original, entry, state_of)
    reconsider(code, state_of, [entry])
    return entry, None


def _least_of_root(entry: Any) -> float:
    graph = entry.payload.graph_module
    least = _LEAST_OF_FEW if computing_operators(graph) <= _FEW else _LEAST_OF_ROOT
    return min(least - _NUMBER * numbers_beside_tensors(graph), -_SMALL_PART * work_of(graph))


def reconsider(code: CodeType, state_of: Callable[[CodeType], CodeState], new: Sequence[Any] = ()) -> None:
    """Put a function on trial if one of its entries costs something. code: its continuation, which has got `new` entries or needs none."""
    original = original_of(code)
    if original is None or original is code:
        return
    entries = [entry for owner in _owners(original, state_of) for entry in treadle_frame.entries(owner)]
    profits = [entry.payload.least_profit for entry in (*entries, *new)]
    if profits and None not in profits and min(profits) < 0:
        put_on_trial(code, state_of)


def _note_callers(original: CodeType, entry: Any, state_of: Callable[[CodeType], CodeState]) -> None:
    """Remember at the functions that an entry of `original`, or of a continuation of it, has called in place that it has done so."""
    for inlined in _inlined(entry):
        if inlined is not original:
            state_of(inlined).called_in[original] = None


def _inlined(entry: Any) -> list[CodeType]:
    return [code for reference in entry.payload.inlined if (code := reference()) is not None]


def _owners(original: CodeType, state_of: Callable[[CodeType], CodeState]) -> list[CodeType]:
    """The functions with entries that are judged by the continuations of this one: itself, and those that call it in place."""
    found, pending, seen = list[CodeType](), [original], set[int]()
    while pending:
        code = pending.pop()
        if id(code) in seen:
            continue
        seen.add(id(code))
        if treadle_frame.entries(code) or state_of(code).on_trial:
            found.append(code)
        pending += list(state_of(code).called_in)
    return found


def put_on_trial(code: CodeType, state_of: Callable[[CodeType], CodeState]) -> None:
    """Have the next call of a function decide whether it is left to Python. code: a continuation of it that has cost something."""
    original = original_of(code)
    if original is None or original is code:
        return
    for owner in _owners(original, state_of):
        installed = [entry for entry in treadle_frame.entries(owner) if not entry.payload.is_left]
        state_of(owner).on_trial += [entry for entry in installed if treadle_frame.remove_entry(owner, entry)]


def end_trial(
    frame: treadle_frame.FrameInfo, state: CodeState, state_of: Callable[[CodeType], CodeState]
) -> tuple[Any, Skip | None]:
    """The entry that serves this call of a function on trial, None if there is none; and why the function is left to Python, if it is.

    All entries are put back, as they were or without their graphs.
    """
    code = frame.code
    entries, state.on_trial = state.on_trial, []
    watched, state.second_trial = state.second_trial, None
    second = watched if watched is not None and watched.is_due else None
    members = _members(code, entries)
    skip = _why_leave(entries, members, second)
    is_deciding = skip is not None and _decisions_cost_the_profit(entries, members, second)
    if watched is not None:
        watched.end()
        entries = [watched.unwatched(entry) for entry in entries]
    if skip is not None:
        pieces = _pieces(members)
        for member, piece in pieces:
            treadle_frame.remove_entry(member, piece)
        if is_deciding and give_up_deciding(code, [*entries, *[piece for _, piece in pieces]], state_of):
            return None, None
        _leave_inlined([*entries, *[piece for _, piece in pieces]], state_of)
        entries = [left_to_python(code, entry, state) for entry in entries]
    cells = dict(zip(code.co_freevars, frame.closure or (), strict=True))
    serving = None
    for entry in entries:
        if serving is None and entry.guard.check(frame.locals, frame.globals, cells, frame.builtins):
            serving = entry
        else:
            treadle_frame.add_entry(code, entry)
    if skip is None and second is None and serving is not None and serving.payload.goes_on:
        state.second_trial = SecondTrial(_running(entries, members), _spent_on_decisions(entries, members))
        serving = state.second_trial.watch(serving)
    return serving, skip


def begin_second_trial(code: CodeType, state: CodeState) -> None:
    """Put a function on trial, once more, if it is time to."""
    if state.second_trial is not None and state.second_trial.is_due and not state.on_trial:
        installed = [entry for entry in treadle_frame.entries(code) if not entry.payload.is_left]
        state.on_trial = [entry for entry in installed if treadle_frame.remove_entry(code, entry)]


def _leave_inlined(pieces: Sequence[Any], state_of: Callable[[CodeType], CodeState]) -> None:
    """Leave the functions alone that these entries have called in place: in smaller pieces they would cost more. Where another function
    that is compiled calls them, they are still traced as a part of it."""
    for code in [code for piece in pieces for code in _inlined(piece)]:
        if not (state_of(code).is_root or treadle_frame.entries(code)):
            treadle_frame.skip(code)


def left_to_python(code: CodeType, entry: Any, state: CodeState) -> Any:
    """An entry for the calls of `entry` that runs the original code. Sizes that are dynamic may not grow without end."""
    payload = replace(entry.payload, graph_module=None, inputs=(), profit=0.0, is_left=True)
    program = program_of_original(entry.guard, payload, decides=state.is_root)
    if not state.is_root:
        program = treadle_frame.GuardProgram([*program.checks, _asked_at_most(code, state)])
    if payload.decided.decisions:
        payload.decided.stop_deciding(_Patience(code))
    if payload.dynamic is not None:
        payload.dynamic = payload.dynamic._replace(box=_bounded(payload))
        if not any(
            foresees(source.path) for source in payload.dynamic.sources
        ):  # else a check would relate sizes to random numbers
            program = size_program(program.checks, payload.dynamic)
    return treadle_frame.Entry(code, program, payload)


def _asked_at_most(code: CodeType, state: CodeState) -> treadle_frame.Check:
    """A check that fails from one call on after many, which notes that the function has been `asked_enough`. It holds on where other calls
    are compiled."""
    references = weakref.ref(code), weakref.ref(state)  # both hold the entry that has this, perhaps
    asked = 0

    def check(_: Any) -> bool:
        nonlocal asked
        asked += 1
        if asked < _ASKED:
            return True
        known, known_state = (reference() for reference in references)
        if known is None or known_state is None or not _saves_nothing(known):
            asked = 0
            return True
        known_state.asked_enough = True
        return False

    return treadle_frame.Check((("const", None),), "call", check, f"it is asked {_ASKED} times")


def is_left_alone(code: CodeType, state: CodeState) -> bool:
    """Whether enough calls of a function have shown that compiling it saves nothing. Each answer is for the call that the handler is
    asked about: others may be unlike those."""
    asked_enough, state.asked_enough = state.asked_enough, False
    return asked_enough and _saves_nothing(code)


def _saves_nothing(code: CodeType) -> bool:
    return all(entry.payload.is_left or _computes_nothing(entry) for entry in treadle_frame.entries(code))


def _computes_nothing(entry: Any) -> bool:
    """Whether an entry has neither a graph nor a break."""
    payload = entry.payload
    return payload.graph_module is None and payload.reason is None and not payload.goes_on


def _is_dearer_than_python(code: CodeType, entry: Any) -> bool:
    """Whether the guards of an entry that computes nothing take about as long as the function itself."""
    return _computes_nothing(entry) and 2 * len(entry.guard.checks) >= len(code.co_code) // 2


class _Patience:
    """Whether to stop asking which path a function takes that is left to Python.

    Another path may be worth compiling, but the question costs as much as the operators that answer it. It is asked for good where another
    path is compiled.
    """

    def __init__(self, code: CodeType):
        self._code = weakref.ref(code)  # which has the entry that has this
        self._calls = 0

    def __call__(self) -> bool:
        self._calls += 1
        if self._calls < _PATIENCE:
            return False
        code = self._code()
        return code is not None and all(entry.payload.is_left for entry in treadle_frame.entries(code))


def _bounded(payload: Payload) -> tuple[tuple[int | None, int | None], ...]:
    """The intervals of an entry's dynamic numbers; those of sizes end at a multiple of what they were."""
    assert payload.dynamic is not None
    sizes = {
        path_key((*guard.source.path, ("attr", "shape"), ("tuple_item", dim))): guard.sizes[dim]
        for guard in payload.tensors
        for dim in guard.dynamic_dims
    }
    found = []
    for source, (lower, upper) in zip(payload.dynamic.sources, payload.dynamic.box, strict=True):
        size = sizes.get(path_key(source.path))
        most = upper if size is None else _GROWTH * max(size, lower or 0)
        found.append((lower, most if upper is None or most is None else min(upper, most)))
    return tuple(found)


def _members(code: CodeType, entries: Sequence[Any]) -> list[CodeType]:
    """The continuations of a function with these entries, and those of the functions that they call in place and that have no entries."""
    found = continuations_of(code)
    pending, seen = [*entries, *[piece for _, piece in _pieces(found)]], {id(code)}
    while pending:
        for inlined in _inlined(pending.pop()):
            if id(inlined) not in seen and not treadle_frame.entries(inlined):
                members = continuations_of(inlined)
                found += members
                pending += [piece for _, piece in _pieces(members)]
            seen.add(id(inlined))
    return found


def _pieces(members: Sequence[CodeType]) -> list[tuple[CodeType, Any]]:
    """The entries of continuations, each with its continuation."""
    return [(member, entry) for member in members for entry in treadle_frame.entries(member)]


def _why_leave(entries: Sequence[Any], members: Sequence[CodeType], second: SecondTrial | None = None) -> Skip | None:
    """Why a function with these entries and continuations is left to Python; None if it is not. second: judge what has run since."""
    pieces = _running(entries, members)
    profit = _profit(entries, members, second)
    if profit is None or profit >= 0:
        return None
    graphs = sum(piece.payload.graph_module is not None for piece in pieces)
    what = "graph that is" if graphs == 1 else "graphs that are"
    text = f"it breaks into {graphs} {what} too small to gain anything ({_profit_text(profit)})"
    return Skip(SkipKind.UNPROFITABLE, text)


def _running(entries: Sequence[Any], members: Sequence[CodeType]) -> list[Any]:
    """The entries of a function and of its continuations. The graphs of a continuation that has been given up never run again."""
    return [*entries, *[piece for member, piece in _pieces(members) if not treadle_frame.is_skipped(member)]]


def _profit(entries: Sequence[Any], members: Sequence[CodeType], second: SecondTrial | None = None) -> float | None:
    """What the entries of a function with these continuations have saved, in calls of operators: so far, or since a second trial began.
    None if it is not known."""
    pieces = _running(entries, members)
    if any(piece.payload.profit is None for piece in pieces):
        return None
    runs_of = second.runs_of if second is not None else _runs_of
    calls = sum(map(runs_of, entries))
    # The runs of a continuation that has reached the limit of entries are not counted.
    skipped = sum(_TURNS if starts_in_loop(member) else 1 for member in members if treadle_frame.is_skipped(member))
    saved = sum(piece.payload.profit * runs_of(piece) for piece in pieces)
    spent = _spent_on_decisions(entries, members) - (0.0 if second is None else second.spent)
    return saved - spent - _SKIPPED * calls * skipped


def _runs_of(piece: Any) -> int:
    """How often a piece has run. The call that has compiled it is no hit."""
    return int(piece.hits + 1)


def _spent_on_decisions(entries: Sequence[Any], members: Sequence[CodeType]) -> float:
    return sum(piece.payload.decided.spent for piece in _running(entries, members))


def _decisions_cost_the_profit(entries: Sequence[Any], members: Sequence[CodeType], second: SecondTrial | None) -> bool:
    """Whether a function with these continuations would save something if deciding had cost nothing."""
    profit = _profit(entries, members, second)
    before = 0.0 if second is None else second.spent
    return profit is not None and profit + _spent_on_decisions(entries, members) - before >= 0


def _profit_text(profit: float) -> str:
    return f"estimated to cost as much as {-profit:.0f} more calls of operators"


__all__ = ["begin_second_trial", "end_trial", "is_left_alone", "judge", "left_to_python", "put_on_trial", "reconsider"]
