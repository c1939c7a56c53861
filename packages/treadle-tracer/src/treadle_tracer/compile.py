"""The handler that `treadle_frame` asks on a cache miss: what to do with a frame.

A frame is skipped (`skips`), run once without a decision, served by an existing entry that accepts one more size of 1, or compiled
(`compilation`). Errors of a compile are sorted here: unsupported code runs in Python, a bug of treadle becomes a warning, wrong use is
raised.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from types import CodeType
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

import treadle_frame
from treadle_shapes import ConstraintError, held_during_fork, paused, signals_held
from treadle_shapes.torch import undisturbed

from . import stance
from .backend_call import Backend, promises_to_draw_nothing
from .beyond_limit import BeyondLimit
from .changed_meanwhile import MOST_TIMES, is_changed_meanwhile
from .code_state import CodeState
from .compilation import Compilation, Leave, Wait, module_argument, owner_of
from .costly_decisions import drop_costly, undecided_lines
from .dynamic import DynamicSources
from .errors import BackendError, InternalError, RecompileRefused, Unsupported, without_frames
from .observer import Observer, SilentObserver
from .options import TracerOptions
from .output.call_changes import comes_to_another_end, is_outgrown
from .output.continuations import forget_continuations, original_of, starts_in_loop
from .output.dropped_entries import DroppedEntry
from .output.entry import with_accepted_sizes
from .output.recompile_reasons import recompile_reason
from .output.size_one import check_size_one
from .output.size_ranges import size_program
from .output.tensor_check import why_global_state_unfit
from .room import is_out_of_room, room_to_recurse
from .short_lived_code import ShortLivedCode
from .skips import Skip, SkipKind, skips_callees, why_no_tensors, why_not_trace
from .unprofitable import begin_second_trial, end_trial, is_left_alone, judge, put_on_trial, reconsider

# After so many calls without a tensor, a code object is left alone for good.
_TENSORLESS_CALLS = 16
# Entries of a continuation inside a loop: what differs from turn to turn (an index, a list that grows) would use up any limit. Those that
# have constants where later ones have symbols are not counted.
_LOOP_ENTRIES = 3
# After so many entries whose graphs were too small, a function that the user has not asked to compile is left alone for good.
_LEFT_ENTRIES = 3
# After so many traces that meet an operator that raises on a path that Python may not take, Python runs the code, with all below.
_MOST_RAISED_IN_TRACE = 3
# All entries of one code object together, over all module instances.
_TOTAL_ENTRIES = 64


# Taken before all other locks, so a fork takes it first.
_LOCK = held_during_fork(threading.RLock())


def compile_handler(
    backend: Backend, options: TracerOptions | None = None, observer: Observer | None = None
) -> FrameCompiler:
    """A handler for `treadle_frame.set_handler` / `dispatcher` that compiles frames with `backend`.

    Raises TypeError when `backend` is not callable.
    """
    if not callable(backend):
        raise TypeError(f"backend must be a callable (graph_module, example_inputs) -> callable, not {backend!r}")
    return FrameCompiler(backend, options or TracerOptions(), observer or SilentObserver())


def optimize(
    function: Callable[..., Any],
    backend: Backend,
    options: TracerOptions | None = None,
    observer: Observer | None = None,
) -> Callable[..., Any]:
    """`function`, compiled with a backend of one's own: `backend(graph_module, example_inputs) -> callable`.

    Raises TypeError when `function` is no Python function or bound method (a module's `forward`, say).
    """
    handler = compile_handler(backend, options, observer)
    code = getattr(function, "__code__", None)
    if code is None:
        raise TypeError(f"function must be a Python function or method, not {function!r}")
    handler.add_root(code)
    return treadle_frame.dispatcher(function, handler)


class FrameCompiler:
    """Compiles frames, one at a time. All handlers share a lock, because a compile changes caches of code objects and switches of torch."""

    def __init__(self, backend: Backend, options: TracerOptions, observer: Observer):
        self.backend = backend
        self.options = options
        self.observer = observer
        self._lock = _LOCK
        # By identity, because equal code objects are different places for entries. Weakly, because entries hold graphs and parameters.
        self._states: MutableMapping[CodeType, CodeState] = WeakIdKeyDictionary()
        self._short_lived = ShortLivedCode()
        # Functions that are skipped because many calls were like those that are left to Python.
        self._left_alone: MutableMapping[CodeType, None] = WeakIdKeyDictionary()
        stance.register(self)

    def add_root(self, code: CodeType) -> None:
        """Code the user asked to compile: traced whatever its arguments look like, and not skipped silently under `fullgraph`.

        Raises Unsupported under `fullgraph` when frames of this code are never traced.
        """
        self._state_of(code).is_root = True
        treadle_frame.unskip(code)  # another function that calls it may have been left to Python
        skip = why_not_trace(code, is_root=True)
        if skip is not None and self.options.fullgraph:
            raise _frame_skipped(code, skip)

    @staticmethod
    def expects_evaluator() -> bool:
        """Whether another frame evaluator is no surprise: torch.compile's, which then compiles our functions, too."""
        return "torch._dynamo" in sys.modules

    def reset(self) -> None:
        """Forget what earlier calls have shown (sizes that change, frames without tensors). `treadle_frame.reset` drops the entries."""
        with self._lock:
            for state in self._states.values():
                state.forget_calls()
            self._short_lived.forget()
            forget_continuations()

    def set_entries_aside(self) -> None:
        """Take the entries of all code objects away."""
        with self._lock:
            for code, state in list(self._states.items()):
                state.aside = list(treadle_frame.entries(code))
                for entry in tuple(state.aside):
                    treadle_frame.remove_entry(code, entry)

    def restore_entries(self) -> None:
        """Give them back."""
        with self._lock:
            for code, state in list(self._states.items()):
                while state.aside:
                    treadle_frame.add_entry(code, state.aside.pop(0))

    def _state_of(self, code: CodeType) -> CodeState:
        state = self._states.get(code)
        if state is None:
            state = self._states[code] = CodeState()
        return state

    def __call__(self, frame: treadle_frame.FrameInfo) -> Any:
        """What to do with a frame that has no entry: an Entry, SKIP or RUN_ONCE."""
        code = frame.code
        state = self._states.get(code)
        is_root = state is not None and state.is_root
        if why_not_trace(code, is_root) is not None:
            return treadle_frame.SKIP_BELOW if skips_callees(code) else treadle_frame.SKIP
        if why_global_state_unfit() is not None:
            return treadle_frame.RUN_ONCE
        if stance.current() == "force_eager":
            return treadle_frame.RUN_ONCE
        if state is None:
            if self._short_lived.holds(code):
                return treadle_frame.SKIP
            self._short_lived.watch(code)
        state = self._state_of(code)
        if not is_root and why_no_tensors(code, frame.locals, frame.globals, frame.closure or ()):
            state.tensorless_calls += 1
            if state.tensorless_calls < _TENSORLESS_CALLS:
                return treadle_frame.RUN_ONCE
            with self._lock:
                self._reconsider(code)
            return treadle_frame.SKIP
        with self._lock:
            try:
                return self._answer(frame, code, state)
            except (Unsupported, BackendError, ConstraintError, RecompileRefused, Warning):
                raise
            except Exception as error:
                return self._after_bug(code, state, error)

    def _answer(self, frame: treadle_frame.FrameInfo, code: CodeType, state: CodeState) -> Any:
        """What to do with a frame that is traced if no entry serves it."""
        if state.raised_in_trace >= _MOST_RAISED_IN_TRACE:
            return treadle_frame.RUN_ONCE_BELOW if treadle_frame.entries(code) else treadle_frame.SKIP_BELOW
        if state.beyond_limit is not None:
            return treadle_frame.SKIP if state.beyond_limit.miss(code) else treadle_frame.RUN_ONCE
        if is_left_alone(code, state):
            self._left_alone[code] = None
            for entry in treadle_frame.entries(code):
                treadle_frame.remove_entry(code, entry)
            return treadle_frame.SKIP
        if self.options.leave_unprofitable:
            drop_costly(code, self._state_of)
            begin_second_trial(code, state)
        if state.on_trial:
            entry, skip = end_trial(frame, state, self._state_of)
            if skip is not None:
                self.observer.on_skip(code, skip)
            if entry is not None:
                return entry
        if state.resting and state.rests(module_argument(frame)):
            return treadle_frame.RUN_ONCE
        with paused():  # keys of thousands of guards are compared
            answer = self._answer_without_trace(frame, code, state)
        if not isinstance(answer, DynamicSources):
            return answer
        with signals_held(), _torch_state_kept(promises_to_draw_nothing(self.backend)), room_to_recurse():
            return self._compile(frame, state, answer)

    def _answer_without_trace(self, frame: treadle_frame.FrameInfo, code: CodeType, state: CodeState) -> Any:
        """The answer where an entry serves this call, or none is made; else what the trace must not specialise."""
        dropped = tuple(state.dropped)
        state.learn_owners(frame, (*treadle_frame.entries(code), *dropped))
        existing = self._entries_like(frame, state, dropped)
        entry = self._accepting_one_more_size(frame, existing)
        if entry is not None:
            return entry
        serves_all = owner_of(frame, state.dynamic) is None
        missed = (*treadle_frame.entries(code), *dropped) if serves_all else existing
        missed = (*missed, *self._made_for(frame, state, state.waiting))
        known = state.dynamic.size
        state.learn_items(frame, missed)
        dynamic = state.learn_changes(frame, missed, self.options.dynamic)
        dynamic.undecided = undecided_lines(code, self._state_of)
        if existing and stance.current() != "default":
            reason = recompile_reason(existing, frame, dynamic)
            if not stance.check_recompile(code.co_qualname, str(reason)):
                return treadle_frame.RUN_ONCE
        outlived = sum(state.outlived[owner] for owner in self._owners(frame, state))
        state.note_dropped(dropped)  # these are among `existing`
        has_learnt = state.dynamic.size > known
        skip = self._why_no_more_entries(frame, existing, dynamic, state.in_vain + outlived, has_learnt)
        if skip is not None:
            if self.options.leave_unprofitable:
                put_on_trial(code, self._state_of)
            answer = self._skip(code, skip, warn=not starts_in_loop(code))
            # Whether the entries of a continuation are worth their cost is decided with those of its function.
            if not self.options.leave_unprofitable or original_of(code) is not code:
                return answer
            state.beyond_limit = BeyondLimit.begin(code)
            return treadle_frame.RUN_ONCE
        return dynamic

    # ---- entries that exist

    def _entries_like(
        self, frame: treadle_frame.FrameInfo, state: CodeState, dropped: Sequence[DroppedEntry]
    ) -> list[Any]:
        """Entries made for the same module instance, or for no certain one, also those dropped since: those that the limit counts."""
        return self._made_for(frame, state, (*treadle_frame.entries(frame.code), *dropped))

    def _made_for(self, frame: treadle_frame.FrameInfo, state: CodeState, entries: Iterable[Any]) -> list[Any]:
        owners = self._owners(frame, state)
        return [e for e in entries if getattr(e.payload, "owner", None) in owners]

    @staticmethod
    def _owners(frame: treadle_frame.FrameInfo, state: CodeState) -> set[int | None]:
        return {module_argument(frame), owner_of(frame, state.dynamic)}

    def _accepting_one_more_size(self, frame: treadle_frame.FrameInfo, existing: list[Any]) -> Any:
        """An entry that missed only because of a combination of sizes of 1 that has not been checked, and that is right there; or None."""
        for entry in existing:
            dynamic = entry.payload.dynamic
            if dynamic is None:
                continue
            cells = dict(zip(frame.code.co_freevars, frame.closure or (), strict=True))
            with dynamic.guard.accepting_all():
                program = size_program(entry.guard.checks, dynamic, any_size_one=True)
                holds = program.check(frame.locals, frame.globals, cells, frame.builtins)
            if not holds:
                continue
            with _torch_state_kept(promises_to_draw_nothing(self.backend)):
                accepted = check_size_one(entry.payload.graph_module, entry.payload.inputs, dynamic, frame)
            if accepted:
                treadle_frame.remove_entry(frame.code, entry)
                return with_accepted_sizes(entry)
        return None

    def _why_no_more_entries(
        self,
        frame: treadle_frame.FrameInfo,
        existing: list[Any],
        dynamic: DynamicSources,
        in_vain: int,
        has_learnt: bool,
    ) -> Skip | None:
        """has_learnt: the next entry will be more general than those that exist.

        The last turn of a loop has entries of its own.
        """
        existing = [entry for entry in existing if not comes_to_another_end(entry.payload, frame)]
        if not existing:
            total = len(treadle_frame.entries(frame.code))
            text = f"{total} entries for different modules"
            return Skip(SkipKind.ENTRY_LIMIT, text) if total >= _TOTAL_ENTRIES else None
        reason = recompile_reason(existing, frame, dynamic)
        self.observer.on_recompile(frame.code, reason)
        limit = self.options.recompile_limit
        counted = len(existing) + in_vain
        if starts_in_loop(frame.code) and not has_learnt:
            outgrown = sum(is_outgrown(entry.payload, frame, dynamic) for entry in existing)
            if counted - outgrown >= _LOOP_ENTRIES:
                limit = min(limit, _LOOP_ENTRIES)
        if counted < limit:
            return None
        return Skip(SkipKind.ENTRY_LIMIT, f"the limit of {limit} recompiles is reached; last misses: {reason}")

    # ---- the boundary of a compile

    def _skip(self, code: CodeType, skip: Skip, warn: bool = False) -> Any:
        if self.options.fullgraph and self._state_of(code).is_root:
            raise _frame_skipped(code, skip)
        self.observer.on_skip(code, skip)
        self._reconsider(code)
        if warn:
            warnings.warn(f"treadle: {_place(code)} runs uncompiled from now on: {skip}", RuntimeWarning, stacklevel=2)
        return treadle_frame.SKIP

    def _look_again(self) -> None:
        """A function that the user has asked to compile takes another way: those that it calls may get other arguments."""
        for code in list(self._left_alone):
            treadle_frame.unskip(code)
        self._left_alone.clear()

    def _reconsider(self, code: CodeType) -> None:
        """A continuation is left to Python: whether what comes before it is worth its cost is decided anew."""
        if self.options.leave_unprofitable:
            reconsider(code, self._state_of)

    def _after_bug(self, code: CodeType, state: CodeState, error: Exception) -> Any:
        """SKIP with a warning, or an InternalError, where a bug of treadle has raised; no fault where the program is too deep to follow or
        another thread has changed what was traced."""
        if is_out_of_room(error):
            return treadle_frame.RUN_ONCE  # the next call may come from less deep
        if is_changed_meanwhile(error) and state.changed_meanwhile < MOST_TIMES:
            state.changed_meanwhile += 1
            return treadle_frame.RUN_ONCE
        if isinstance(error, (RecursionError, MemoryError)):
            # The program's objects are too deep or too large to follow.
            return self._skip(code, Skip(SkipKind.UNSUPPORTED, f"{type(error).__name__} while it was traced"))
        failure = error
        if not isinstance(failure, InternalError):
            what = f"{code.co_qualname}: {type(error).__name__}: {error}"
            failure = InternalError("compile", what, f"{code.co_filename}:{code.co_firstlineno}")
        if self.options.raise_internal_errors:
            raise failure from (error.__cause__ if failure is error else error)
        return self._skip(code, Skip(SkipKind.INTERNAL_ERROR, f"a bug of treadle, {failure}"), warn=True)

    def _compile(self, frame: treadle_frame.FrameInfo, state: CodeState, dynamic: DynamicSources) -> Any:
        """The new entry, or SKIP."""
        code = frame.code
        if state.is_root:
            self._look_again()
        try:
            was_here = state.take_waiting(frame)
            compilation = Compilation(frame, state, self.backend, self.options, self.observer, was_here)
            answer = compilation.run(dynamic)
            for continuation, inherited in compilation.inherited.items():
                self._state_of(continuation).inherit(inherited, state.dynamic.made)
        except Unsupported as unsupported:
            if self.options.fullgraph:
                raise
            self.observer.on_break(without_frames(unsupported))
            return self._skip(code, Skip(SkipKind.UNSUPPORTED, str(unsupported)))
        if isinstance(answer, Skip):
            return self._skip(code, answer)
        if isinstance(answer, Leave):
            self.observer.on_skip(code, answer.skip)
            return treadle_frame.RUN_ONCE_BELOW
        if isinstance(answer, Wait):
            self.observer.on_wait(code, answer.guard)
            owner = module_argument(frame)
            is_single = state.wait(answer.entry, owner)
            if state.never_settles(owner):
                return self._skip(
                    code, Skip(SkipKind.ENTRY_LIMIT, f"every call ends what it relies on: {answer.guard}"), warn=True
                )
            return treadle_frame.RUN_ONCE_BELOW if is_single else treadle_frame.RUN_ONCE
        if not self.options.fullgraph:
            state.waited.pop(module_argument(frame), None)
        if self.options.leave_unprofitable:
            answer, skip = judge(code, answer, state.is_root, self._state_of)
            if skip is not None:
                self.observer.on_skip(code, skip)
            if not state.is_root and _left_entries(code) + (skip is not None) >= _LEFT_ENTRIES:
                return treadle_frame.SKIP
        return answer


@contextlib.contextmanager
def tracing_lock() -> Iterator[None]:
    """For a trace without a frame: one at a time, and torch's state is afterwards what it was."""
    with _LOCK, signals_held(), _torch_state_kept(draws_nothing=True):
        yield


def _frame_skipped(code: CodeType, skip: Skip) -> Unsupported:
    return Unsupported(
        "frame-skipped", f"{code.co_qualname}: {skip}", ((code.co_filename, code.co_firstlineno, code.co_name),)
    )


def _left_entries(code: CodeType) -> int:
    """How many entries run the original code because their graphs were too small."""
    return sum(entry.payload.is_left for entry in treadle_frame.entries(code))


def _place(code: CodeType) -> str:
    return f"{code.co_qualname} ({code.co_filename}:{code.co_firstlineno})"


@contextlib.contextmanager
def _torch_state_kept(draws_nothing: bool) -> Iterator[None]:
    """Grad mode and the random number generators are afterwards what they were before tracing and the backend.

    draws_nothing: the backend promises to draw no random numbers; a trace draws none. Where there are other threads, the generators, which
    they share, are left alone then: what they have drawn in the meantime would be drawn again.

    Fake tensors log an error for every call with bad arguments. In a trace that is the program's own exception, or a reason to break, so
    the log is off.
    """
    log = logging.getLogger("torch._subclasses.fake_tensor")
    was_disabled, log.disabled = log.disabled, True
    grad = torch.is_grad_enabled()
    is_put_back = threading.active_count() == 1 or not draws_nothing
    cpu = torch.random.get_rng_state()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() and torch.cuda.is_initialized() else None
    try:
        with undisturbed():
            yield
    finally:
        log.disabled = was_disabled
        torch._C._set_grad_enabled(grad)
        if is_put_back:
            torch.random.set_rng_state(cpu)
            if cuda is not None:
                torch.cuda.set_rng_state_all(cuda)
