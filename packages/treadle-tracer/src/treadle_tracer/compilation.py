"""The pipeline of one compile: trace a frame, place the break, call the backend, make the entry.

trace               `trace.root.trace_frame`, checked against what the user has declared (`constraints`)
plan                `output.break_placement`: the values that the rest of the frame needs, the finished graph
check               a trace that used larger sizes in place of 1 must be right for this call (`output.size_one`)
backend             `backend_call`
entry               `output.entry`: replacement code, guard program, fast path
"""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import CodeType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

import treadle_frame
from treadle_shapes import paused

from .backend_call import Backend, call_backend, lacks_numbers, promises_to_raise_early, raises_before_writing
from .by_identity import IdentityDict
from .class_facts import is_subtype
from .code_state import CodeState
from .computed_source import ComputedSource
from .constraints import Declared, check_given, check_still_dynamic, declared_in
from .dynamic import DynamicSources
from .errors import BackendError, ChosenBreak, Empty, OtherPath, Unsupported, without_frames
from .observer import Observer
from .options import TracerOptions
from .output.break_placement import place_break
from .output.call_changes import follow
from .output.deferred_asserts import asserts_of
from .output.dropped_entries import References
from .output.entry import FramePlan, Payload, finish_entry, program_of_original, with_accepted_sizes
from .output.graph_writes import may_raise_by_value, why_not_deoptimise
from .output.inherited_changes import Inherited, inherited
from .output.left_frames import can_watch
from .output.outdated import overwritten_numbers, why_outdated
from .output.outside_devices import without_devices
from .output.profitability import profit_of
from .output.size_one import check_size_one, why_not_served
from .output.size_ranges import size_program
from .skips import Skip, SkipKind
from .source import LocalSource
from .trace.root import program_of, trace_frame
from .values.finalizers import MadeWithFinalizer
from .values.random_numbers import is_foreseen
from .values.shadows import retire_shadows

if TYPE_CHECKING:
    from .trace.result import TraceResult

# Breaks that a size larger than the real one may cause: two sizes that do not fit together.
_CAUSED_BY_SIZES = ("raises", "torch-call-raises")
# Breaks at what shows when Python frees an object, or which object it is: one made while tracing is the same at every call. Where the
# object has a finalizer, its end is watched (`trace.watched_arguments`) if the frame itself holds it.
_TELL_OBJECTS = ("weak-reference", "identity-of-made", "frame-read")
# So many calls of a code object that hold objects weakly run in Python and are traced anew: the first ones may set up what later ones find.
_MOST_LEFT = 2
# After so many calls that set something up, those that break for this reason break the graph.
_MOST_INITIALISED = {"lazy-module": 8, "outside-lock": 2, "not-cached": 4}
# So many traces of a code object decide on random numbers that they foresee. Where calls keep deciding differently, each needs a trace.
_MOST_FORESEEN = 4
# After so many traces in which no tensor was computed, a code object is left alone for good.
_EMPTY_TRACES = 4
# After so many traces in which calls nest too deeply, a code object is left alone for good: each level would be a trace as long.
_DEEP_TRACES = 2
# After so many calls that took a path that a graph had ruled out, graphs rule out none; after as many more, they defer nothing.
_MOST_FAILURES = 3


class Wait(NamedTuple):
    """Python runs this call, which outdates its own trace. The entry has no graph; `guard` is what does not hold behind the call."""

    entry: treadle_frame.Entry
    guard: str


class Leave(NamedTuple):
    """Python runs this call, with all that it calls; the next one is traced again."""

    skip: Skip


Answer = treadle_frame.Entry | Skip | Wait | Leave


class _CannotRunAgain(Exception):
    """The backend has left a graph to eager that Python may have to run the program after."""


class Compilation:
    """One compile of one frame. `state` is the record of the frame's code. was_here: Python has run a call like this one (`Wait`)."""

    def __init__(
        self,
        frame: treadle_frame.FrameInfo,
        state: CodeState,
        backend: Backend,
        options: TracerOptions,
        observer: Observer,
        was_here: bool = False,
    ):
        self.frame = frame
        self.state = state
        self.backend = backend
        self.options = options
        self.observer = observer
        self.model = program_of(frame.code).model
        self.was_here = was_here
        self.caller_handles = sys.exception() is not None
        self.inherited = IdentityDict[CodeType, Inherited]()  # what is known of the calls of continuations
        self._traces: list[TraceResult] = []

    def run(self, dynamic: DynamicSources) -> Answer:
        """The entry for this frame; if possible one that also serves larger sizes where a dynamic size is 1.

        Raises Unsupported, ConstraintError, BackendError, and whatever a bug raises.
        """
        try:
            with without_devices():
                return self._answer(dynamic)
        finally:
            for trace in self._traces:
                trace.forget()
            retire_shadows()

    def _answer(self, dynamic: DynamicSources) -> Answer:
        answer = None
        try:
            answer = self._attempt(dynamic)
        except Unsupported as unsupported:
            if not dynamic.has_generalised or unsupported.code not in _CAUSED_BY_SIZES:
                raise
        if answer is None:
            answer = self._attempt(dynamic.specialising_size_one())
        assert answer is not None
        return answer

    def _attempt(self, wanted: DynamicSources) -> Answer | None:
        """One trace and what follows; None when the trace used larger sizes in place of 1 and is not right for this call."""
        with self._phase("trace"):
            result, dynamic = self._trace(wanted)
        generalised = wanted.has_generalised or dynamic.has_generalised
        reason = result.reason
        if generalised and reason is not None and reason.code in _CAUSED_BY_SIZES:
            return None
        if reason is not None and reason.code == "recursion" and not self.options.fullgraph:
            self.state.deep_traces += 1
            if self.state.deep_traces > _DEEP_TRACES:
                return Skip(SkipKind.UNSUPPORTED, "recursion: calls are nested too deeply")
        if (skip := self._left_whole(result)) is not None:
            return skip
        if self._tells_otherwise(result):
            return self._attempt(wanted)
        declared = self._check_declared(result)
        if reason is not None and reason.code == "raises":
            # Python itself raises with a better traceback, or not at all: it also runs what `is_compiling()` hides from a trace.
            self.observer.on_break(without_frames(reason))
            return self._left_to_raise(reason) or self._run_original(result)
        if (leave := self._left_below(result) or self._left_to_initialise(reason)) is not None:
            return leave
        try:
            plan, gm = self._plan(result, dynamic)
        except Unsupported:
            if reason is None or reason.code != "varying-items":
                raise
            self.state.may_split = False
            self.state.dynamic.unsteady.clear()
            wanted.unsteady.clear()
            return self._attempt(wanted)
        result = plan.result
        if (skip := self._left_whole(result)) is not None:
            return skip
        is_promised = self.state.trusts_backend and promises_to_raise_early(self.backend)
        if gm is not None and not is_promised and self._relies_on_too_much(gm, result):
            return self._attempt(wanted)
        if generalised and not self._serves_this_call(gm, result):
            return None
        try:
            return self._finish(plan, gm, declared, generalised)
        except Unsupported as error:
            if error.code != "write-under-handler" or self.options.fullgraph or self.state.must_separate:
                raise
            self.state.must_separate = True
        except _CannotRunAgain:
            self.state.trusts_backend = False
        except BackendError as error:
            if self._captures or not self.state.may_defer or not lacks_numbers(error):
                raise
            self.state.may_guess = self.state.may_defer = False
        return self._attempt(wanted)

    def _left_whole(self, result: TraceResult) -> Skip | Leave | None:
        """Leave the frame to Python where the program may tell when an object is freed, since a split frame holds it shorter or longer,
        which object it is, or which frames there are."""
        reason = result.reason
        if reason is None or self.options.fullgraph:
            return None
        is_lost = isinstance(reason, MadeWithFinalizer) and not can_watch(
            reason, self.model, result.index, result.stack
        )
        if reason.code not in _TELL_OBJECTS and not is_lost:
            return None
        skip = _skip_for(reason)
        if reason.code != "weak-reference" or self.state.left_whole >= _MOST_LEFT:
            return skip
        self.state.left_whole += 1
        return Leave(skip)

    def _tells_otherwise(self, result: TraceResult) -> bool:
        """Whether to trace once more, the program hearing that it is not compiled: the exception may belong to the path of compilers.

        if mask is None and not torch.compiler.is_compiling(): mask = torch.ones_like(x)
        mask.sum()
        """
        if result.reason is None or result.reason.code != "raises" or not result.told_of_compiling:
            return False
        self.state.tells_of_compiling = not self.state.tells_of_compiling  # as before where both paths raise
        return not self.state.tells_of_compiling

    def _left_to_raise(self, reason: Unsupported) -> Leave | None:
        """Leave the first call that raises to Python, with all that it calls: else each of those functions is traced for one exception.
        Where no call may break the graph, every such call."""
        if not self.options.fullgraph and (self.state.has_raised or not self.options.setup_in_eager):
            return None
        self.state.has_raised = True
        return Leave(_skip_for(reason))

    def _left_to_initialise(self, reason: Unsupported | None) -> Leave | None:
        """Leave a call to Python, with all that it calls, that sets up what later calls find: a lazy module makes its parameters, a lock
        guards what is done once, or a cache keeps what it is asked for. A split call would be judged by pieces that no later call has.

        A function that makes lazy modules itself, takes a lock, or asks for something else, in every call, breaks there instead.
        """
        if reason is None or self.state.left_to_initialise >= _MOST_INITIALISED.get(reason.code, 0):
            return None
        if reason.code == "outside-lock" and not self._sets_up_in_python:
            return None
        self.state.left_to_initialise += 1
        return Leave(_skip_for(reason))

    @property
    def _sets_up_in_python(self) -> bool:
        return self.options.setup_in_eager and not self.options.fullgraph

    def _left_below(self, result: TraceResult) -> Leave | None:
        """Leave a call to Python, with all that it calls, where an operator raises behind `is_compiling()`: in Python it may not.

        if not torch.compiler.is_compiling(): x.requires_grad_()
        torch.autograd.grad(energy(x), x)
        """
        reason = result.reason
        if (
            reason is None
            or reason.code != "torch-call-raises"
            or not result.told_of_compiling
            or self.options.fullgraph
        ):
            return None
        self.state.raised_in_trace += 1
        return Leave(_skip_for(reason))

    @property
    def _captures(self) -> bool:
        """Whether the user has asked for graphs that rely on asserts."""
        return self.options.fullgraph or bool(self.options.capture_scalars)

    def _relies_on_too_much(self, gm: torch.fx.GraphModule, result: TraceResult) -> bool:
        """Whether Python may have to run the program after the graph, and cannot. Then the next trace relies on less."""
        state = self.state
        assumes = state.may_assume and result.env is not None and bool(result.env.assumptions)
        outputs = state.may_defer and bool(result.mutations.outputs)
        stated = asserts_of(gm) if state.may_defer else []
        asserts = any(issubclass(a.raises, OtherPath) or not self._captures for a in stated)
        if not (assumes or outputs or asserts) or why_not_deoptimise(gm) is None:
            return False
        if assumes:
            state.may_assume = False
        elif any(a.raises is Empty for a in stated):
            state.may_expect_items = False
        elif asserts:
            _defer_less(state)
        elif may_raise_by_value(gm):  # what the program has printed before would be lost
            state.may_defer = False
        else:
            return False
        return True

    @contextlib.contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        """A phase of a compile that is this package's own work."""
        with paused(), self.observer.phase(name):
            yield

    # ---- tracing

    def _trace(self, wanted: DynamicSources) -> tuple[TraceResult, DynamicSources]:
        """The trace, and what was dynamic in it. It ends before the call that asks for items which differ from call to call."""
        result, dynamic = self._trace_numbers(wanted)
        varying = result.guards.varying
        if varying is None or varying.step is None or self.options.fullgraph:
            return result, dynamic
        reason = Unsupported("varying-items", "", varying.stack)
        shorter = self._trace_once(dynamic, reason=reason, break_at=varying.step)
        return (shorter if shorter.kind == "break" else result), dynamic

    def _trace_numbers(self, wanted: DynamicSources) -> tuple[TraceResult, DynamicSources]:
        """The trace, and what was dynamic in it. Numbers that the trace cannot have as symbols are constants from then on."""
        numbers = wanted.numbers
        if not numbers:
            return self._trace_once(wanted), wanted
        result: TraceResult | None = None
        with contextlib.suppress(Unsupported):
            result = self._trace_once(wanted)
        if result is not None:
            result, wanted = self._with_overwritten(result, wanted)
            numbers = wanted.numbers
        if result is not None and (result.reason is None or not result.guards.has_integers):
            return result, wanted
        if result is not None and self._breaks_anyway(result.reason):
            return result, wanted
        fewer = wanted.without_numbers()
        without = self._trace_once(fewer)
        if result is not None and without.reason is not None:  # the break has another cause
            if result.reason is not None and _place(result.reason) == _place(without.reason):
                self.state.breaks_anyway.add(_place(result.reason))
            return result, wanted
        self.state.constants |= numbers
        return without, fewer

    def _breaks_anyway(self, reason: Unsupported | None) -> bool:
        """Whether a trace that ends for this reason is known to end, too, where changing numbers are constants."""
        return reason is not None and (
            reason.code == "random-number"  # another seed at every call
            or type(reason) is ChosenBreak
            or _place(reason) in self.state.breaks_anyway
        )

    def _with_overwritten(self, result: TraceResult, wanted: DynamicSources) -> tuple[TraceResult, DynamicSources]:
        """The trace in which numbers that it overwrites by numbers that vary are symbols, too; the same one if that traces less."""
        found = overwritten_numbers(result) - self.state.constants if self.options.dynamic is not False else set()
        if not found:
            return result, wanted
        more, again = wanted.with_numbers(found), None
        with contextlib.suppress(Unsupported):
            again = self._trace_once(more)
        if again is None or (again.reason is not None and result.reason is None):
            self.state.constants |= found
            return result, wanted
        for source in found:
            self.state.dynamic.setdefault(source, {})
        return again, more

    def _trace_once(
        self,
        dynamic: DynamicSources,
        stop_at: int | None = None,
        reason: Unsupported | None = None,
        break_at: int | None = None,
    ) -> TraceResult:
        """A trace to the end, up to the first time that instruction `stop_at` is due, or up to step `break_at`."""
        # Nothing is assumed where Python could not run the program instead.
        options = replace(
            self.options,
            assume=self.options.assume and self.state.may_assume,
            guess=self.options.guess and self.state.may_guess,
            expect_items=self.options.expect_items and self.state.may_expect_items,
            defer=self.options.defer and self.state.may_defer,
            foresee=self.options.foresee and (self.options.fullgraph or self.state.foreseen < _MOST_FORESEEN),
            separate=self.state.must_separate,
            tells_of_compiling=self.state.tells_of_compiling,
        )
        handles = self.caller_handles
        result = trace_frame(self.frame, self.model, options, dynamic, stop_at, reason, handles, break_at)
        self._traces.append(result)
        return result

    def _check_declared(self, result: TraceResult) -> Declared:
        """What the user has declared about the inputs of this trace. Raises ConstraintError when this call contradicts it."""
        guards = result.guards.tensors
        tensors = [(guard, follow(guard.source.path, self.frame)) for guard in guards if guard.identity is None]
        declared = declared_in(tensors, self.state.declared)
        if declared:
            check_given(declared, {guard.source: guard.sizes for guard, _ in tensors})
            self.state.declared.update(declared)
        return declared

    # ---- from a trace to an entry

    def _plan(self, result: TraceResult, dynamic: DynamicSources) -> tuple[FramePlan, torch.fx.GraphModule | None]:
        """How the frame goes on after the graph, and the graph; None when there is nothing to compute."""

        def again(stop_at: int | None, reason: Unsupported, break_at: int | None = None) -> TraceResult:
            with self._phase("trace"):
                return self._trace_once(dynamic, stop_at, reason, break_at)

        with self._phase("codegen"):
            plan = place_break(self.frame.code, self.model, result, again)
            graph = plan.result.graph
            if self._may_wait(plan.result):
                plan.outdated = why_outdated(plan.result, self.state.made_anew)
            return plan, graph.finish(plan.outputs) if graph.has_calls else None

    def _may_wait(self, result: TraceResult) -> bool:
        """Whether Python may run this call: one that is not compiled in pieces, since it may last, and not one that was here before."""
        is_whole = result.kind == "return" and result.graph.has_calls
        if not is_whole or not self.options.setup_in_eager or self.was_here:
            return False
        return not (self.options.fullgraph and self.state.has_waited(module_argument(self.frame)))

    def _serves_this_call(self, gm: torch.fx.GraphModule | None, result: TraceResult) -> bool:
        numbers = result.guards.dynamic_numbers(result.env)
        with self._phase("trace"):
            return numbers is not None and (why_not_served(gm, result.graph.input_sources, numbers, self.frame) is None)

    def _finish(
        self, plan: FramePlan, gm: torch.fx.GraphModule | None, declared: Declared, generalised: bool
    ) -> Answer | None:
        result = plan.result
        names = {guard.source: guard.name for guard in result.guards.tensors}
        check_still_dynamic(declared, result.env, names)
        if result.reason is not None:
            if self.options.fullgraph:
                raise result.reason
            self.observer.on_break(without_frames(result.reason))
        if gm is None and result.kind == "return":
            return self._run_original(result)
        if plan.outdated is not None:
            return Wait(self._entry_of_original(result), plan.outdated)
        compiled = None
        if gm is not None:
            self.observer.on_graph(gm)
            with self.observer.phase("backend"):
                compiled = call_backend(self.backend, gm, result.graph.example_inputs)
            if not raises_before_writing(compiled) and self._relies_on_too_much(gm, result):
                raise _CannotRunAgain
            check_still_dynamic(declared, result.env, names)
        with self._phase("codegen"):
            payload = Payload.of(gm, result, owner_of(self.frame, self.state.dynamic))
            if self.options.leave_unprofitable:
                is_eager = getattr(compiled, "why_eager", None) is not None
                grad = torch.is_grad_enabled()
                payload.profit = profit_of(gm, grad, is_eager)
                payload.grad_mode = None if profit_of(gm, not grad, is_eager) == payload.profit else grad
                if payload.profit is not None:
                    payload.profit -= _cost_of_numbers(result)
                payload.goes_on = plan.goes_on
                payload.inlined = tuple([weakref.ref(code) for code in result.inlined])
            entry = finish_entry(
                plan,
                compiled,
                payload,
                raise_internal_errors=self.options.raise_internal_errors,
                on_other_path=_stops_deferring(self.frame.code, self.state),
                warns=self._captures,
            )
            payload.references = References(result.guards.weakly_held, self.frame.code, self.state)
        if generalised:
            if not (payload.dynamic and check_size_one(gm, payload.inputs, payload.dynamic, self.frame)):
                return None  # the backend has made a decision of its own
            entry = with_accepted_sizes(entry)
        if plan.leaving is not None and self.options.dynamic is not False:
            self.inherited = inherited(plan.leaving, result, self.state.dynamic, self.state.made_anew)
        self.state.foreseen += result.guards.decides_on(result.env, is_foreseen)
        self.observer.on_entry(entry)
        return entry

    def _run_original(self, result: TraceResult) -> Answer:
        """There is nothing to compile under these guards: the original code is its own replacement."""
        if not self.state.is_root:
            self.state.empty_traces += 1
            if self.state.empty_traces > _EMPTY_TRACES:
                return Skip(SkipKind.NO_TENSOR, "a function in which no tensor is computed")
        return self._entry_of_original(result, asks_less=not self.state.is_root and result.reason is None)

    def _entry_of_original(self, result: TraceResult, asks_less: bool = False) -> treadle_frame.Entry:
        """An entry with the guards of a trace that runs the original code."""
        payload = Payload.of(None, result, owner_of(self.frame, self.state.dynamic))
        program = payload.take_guards(result)
        if payload.dynamic is not None:
            check_size_one(None, (), payload.dynamic, self.frame)
        payload.references = References(result.guards.weakly_held, self.frame.code, self.state)
        if asks_less:
            program = program_of_original(program, payload, decides=True)
        if payload.dynamic is not None:
            program = size_program(program.checks, payload.dynamic)
        return treadle_frame.Entry(self.frame.code, program, payload)


def _place(reason: Unsupported) -> tuple[Any, ...]:
    """What broke a trace, and where in the program. Where a symbol has a part in it, the context shows it."""
    return reason.code, reason.context, reason.user_stack


def _skip_for(reason: Unsupported) -> Skip:
    return Skip(SkipKind.UNSUPPORTED, f"{reason.code}: {reason.context}")


def _cost_of_numbers(result: TraceResult) -> float:
    """What it costs to foresee random numbers, for each guard and each input anew, in calls of operators."""
    places = [*(guard.source for guard in result.guards), *result.graph.input_sources]
    return sum(getattr(place.root.function, "cost", 0.0) for place in places if isinstance(place.root, ComputedSource))


def _defer_less(state: CodeState) -> None:
    """Take no path for granted any more; if that is so already, defer nothing."""
    if state.may_guess:
        state.may_guess = False
    else:
        state.may_defer = False


def _stops_deferring(code: CodeType, state: CodeState) -> Callable[[type[Exception]], None]:
    """A function that counts the calls in which an assert of a graph failed, given its exception. After some of them the code gets graphs
    that defer less, or do without the kind of assert that failed.

    It keeps neither the code object nor anything of the present call alive.
    """
    code_ref = weakref.ref(code)

    def count(raises: type[Exception]) -> None:
        is_empty = raises is Empty
        state.empties += is_empty
        state.failures += not is_empty
        found = code_ref()
        if (state.empties if is_empty else state.failures) % _MOST_FAILURES or found is None:
            return
        if is_empty:
            state.may_expect_items = False
        else:
            _defer_less(state)
        for entry in treadle_frame.entries(found):
            if any(a.raises is Empty or not is_empty for a in asserts_of(entry.payload.graph_module)):
                treadle_frame.remove_entry(found, entry)

    return count


def module_argument(frame: treadle_frame.FrameInfo) -> int | None:
    """Identity of the first argument if it is a module: entries of different instances do not count against each other."""
    first = next(iter(frame.locals.values()), None)
    return id(first) if is_subtype(type(first), torch.nn.Module) else None


def owner_of(frame: treadle_frame.FrameInfo, dynamic: DynamicSources) -> int | None:
    """Id of the instance that an entry for this frame is made for; None if there is none, or the entry serves other instances too."""
    name = next(iter(frame.locals), None)
    return None if name is None or dynamic.is_structural(LocalSource(name)) else module_argument(frame)


__all__ = ["Compilation", "module_argument", "owner_of"]
