"""From a frame to an entry: the handler that `treadle_frame` asks on a cache miss.

The steps of a compile, in order: look whether the frame is to be traced at all (`skips`), say why earlier entries missed, trace, find the
values the rest of the frame needs, hand the graph to the backend, write the replacement code, make the guard program.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from types import CodeType
from typing import Any

import torch

import treadle_frame
from treadle_shapes import ConstraintError

from .bytecode import CodeModel, read
from .collector import paused
from .constraints import Declared, check_given, check_still_dynamic, declared_in
from .dynamic import DynamicSources
from .errors import InternalError, Unsupported
from .marks import Mark
from .observer import Observer, SilentObserver
from .options import TracerOptions
from .output.break_placement import place_break
from .output.entry import (
    Payload,
    changed_dimensions,
    exchanged_tensors,
    finish_entry,
    follow,
    why_not_deoptimise,
    with_size_one_accepted,
)
from .output.recompile_reasons import recompile_reason
from .output.resume import forget_continuations, starts_in_loop
from .output.size_one import check_size_one, why_not_served
from .output.size_ranges import size_program
from .output.tensor_check import why_global_state_unfit
from .skips import why_no_tensors, why_not_trace, why_not_trace_file
from .source import LocalSource, Source
from .trace.result import TraceResult
from .trace.root import trace_frame

Backend = Callable[[torch.fx.GraphModule, Sequence[Any]], Callable[..., Sequence[Any]]]
# Breaks that sizes larger than the real ones may be the cause of: two that do not fit together.
_REFUSED_SIZES = ("raises", "torch-call-raises")
# A code object whose frames showed no tensor this often is left alone for good.
_TENSORLESS_CALLS = 16
# A code object that was traced this often without a tensor being computed is left alone for good.
_EMPTY_TRACES = 4
# Entries of a continuation inside a loop: what differs from turn to turn (an index, a list that grows) would use up any limit.
_LOOP_ENTRIES = 3
# All entries of one code object together, over all module instances.
_TOTAL_ENTRIES = 64


_LOCK = threading.RLock()


class BackendError(RuntimeError):
    """The backend raised, or returned something that cannot be called."""


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
    """Compiles frames, one at a time: all handlers share a lock, for a compile changes caches of code objects and switches of torch."""

    def __init__(self, backend: Backend, options: TracerOptions, observer: Observer):
        self.backend = backend
        self.options = options
        self.observer = observer
        self._lock = _LOCK
        self._roots: set[CodeType] = set()
        self._tensorless: dict[CodeType, int] = {}
        self._dynamic: dict[CodeType, DynamicSources] = {}
        self._declared: dict[CodeType, dict[Source, dict[int, Mark]]] = {}
        self._constant: dict[CodeType, set[Any]] = {}
        self._empty: dict[CodeType, int] = {}
        self._cautious: set[CodeType] = set()
        self._models: dict[CodeType, CodeModel] = {}

    def add_root(self, code: CodeType) -> None:
        """Code the user asked to compile: traced whatever its arguments look like, and not skipped silently under `fullgraph`.

        Raises Unsupported under `fullgraph` when frames of this code are never traced.
        """
        self._roots.add(code)
        why = _why_not_trace_root(code)
        if why is not None and self.options.fullgraph:
            raise _frame_skipped(code, why)

    def reset(self) -> None:
        """Forget what earlier calls have shown (sizes that change, frames without tensors). Entries are `treadle_frame.reset`'s."""
        with self._lock:
            self._tensorless.clear()
            self._empty.clear()
            self._dynamic.clear()
            self._declared.clear()
            self._constant.clear()
            self._cautious.clear()
            forget_continuations()

    def __call__(self, frame: treadle_frame.FrameInfo) -> Any:
        """`treadle_frame`'s question what to do with a frame: an Entry, SKIP or RUN_ONCE."""
        code = frame.code
        why = why_not_trace(code) if code not in self._roots else _why_not_trace_root(code)
        if why is not None:
            return treadle_frame.SKIP
        if why_global_state_unfit() is not None:
            return treadle_frame.RUN_ONCE
        if code not in self._roots and why_no_tensors(code, frame.locals, frame.globals, frame.closure or ()):
            return self._without_tensors(code)
        with self._lock:
            existing = self._entries_like(frame)
            entry = self._admitting(frame, existing)
            if entry is not None:
                return entry
            why = self._why_no_more_entries(frame, existing)
            if why is not None:
                return self._skip(code, why, warn=not starts_in_loop(code))
            with _torch_state_kept():
                return self._guarded_compile(frame, existing)

    # ---- what to do with a frame that is not compiled

    def _skip(self, code: CodeType, why: str, warn: bool = False) -> Any:
        if self.options.fullgraph and code in self._roots:
            raise _frame_skipped(code, why)
        self.observer.on_skip(code, why)
        if warn:
            warnings.warn(f"treadle: {_place(code)} runs uncompiled from now on: {why}", RuntimeWarning, stacklevel=2)
        return treadle_frame.SKIP

    def _without_tensors(self, code: CodeType) -> Any:
        count = self._tensorless[code] = self._tensorless.get(code, 0) + 1
        return treadle_frame.RUN_ONCE if count < _TENSORLESS_CALLS else treadle_frame.SKIP

    def _entries_like(self, frame: treadle_frame.FrameInfo) -> list[Any]:
        """Entries made for the same module instance (or none at all, like this call), the ones the limit counts."""
        owner = _module_argument(frame)
        return [e for e in treadle_frame.entries(frame.code) if getattr(e.payload, "owner", None) == owner]

    def _why_no_more_entries(self, frame: treadle_frame.FrameInfo, existing: list[Any]) -> str | None:
        if not existing:
            total = len(treadle_frame.entries(frame.code))
            return f"{total} entries for different modules" if total >= _TOTAL_ENTRIES else None
        reason = recompile_reason(existing, frame, self._dynamic_numbers(frame, existing))
        self.observer.on_recompile(frame.code, reason)
        limit = self.options.recompile_limit
        if starts_in_loop(frame.code):
            limit = min(limit, _LOOP_ENTRIES)
        return None if len(existing) < limit else f"the limit of {limit} recompiles is reached; last misses: {reason}"

    # ---- compiling

    def _guarded_compile(self, frame: treadle_frame.FrameInfo, existing: list[Any]) -> Any:
        """The boundary where a bug of ours becomes a warning and eager execution, or an InternalError."""
        code = frame.code
        try:
            return self._compile(frame, existing)
        except Unsupported as unsupported:
            if self.options.fullgraph:
                raise
            self.observer.on_break(_without_frames(unsupported))
            return self._skip(code, str(unsupported))
        except (BackendError, ConstraintError):
            raise
        except Exception as error:
            failure = error
            if not isinstance(failure, InternalError):
                failure = InternalError(
                    f"compile of {code.co_qualname}", f"{type(error).__name__}: {error}", _place(code)
                )
            if self.options.raise_internal_errors:
                raise failure from error
            return self._skip(code, f"a bug of treadle: {failure}", warn=True)

    def _admitting(self, frame: treadle_frame.FrameInfo, existing: list[Any]) -> Any:
        """An entry that has missed only because a size is 1 and nobody has looked yet whether it serves that too; None if there is none."""
        for entry in existing:
            dynamic = entry.payload.dynamic
            if dynamic is None:
                continue
            cells = dict(zip(frame.code.co_freevars, frame.closure or (), strict=True))
            with dynamic.guard.admitting_all():
                program = size_program(entry.guard.checks, dynamic, any_ones=True)
                holds = program.check(frame.locals, frame.globals, cells, frame.builtins)
            if not holds:
                continue
            with _torch_state_kept():
                admitted = check_size_one(entry.payload.graph_module, entry.payload.inputs, dynamic, frame)
            if admitted:
                treadle_frame.remove_entry(frame.code, entry)
                return with_size_one_accepted(entry)
        return None

    def _compile(self, frame: treadle_frame.FrameInfo, existing: list[Any]) -> Any:
        """The entry for this frame: if possible one that also serves larger sizes where a dynamic one is 1."""
        known = self._dynamic_numbers(frame, existing)
        entry = None
        try:
            entry = self._attempt(frame, known)
        except Unsupported as unsupported:
            if not known.pretended or unsupported.code not in _REFUSED_SIZES:
                raise
        return entry if entry is not None else self._attempt(frame, known.without_pretending())

    @contextlib.contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        """A phase of a compile that is this package's own work."""
        with paused(), self.observer.phase(name):
            yield

    def _attempt(self, frame: treadle_frame.FrameInfo, known: DynamicSources) -> Any:
        """One trace and what follows; None when it has pretended sizes that are not the real ones, and so is not right for these."""
        code, observer = frame.code, self.observer
        model = self._model(code)
        with self._phase("trace"):
            result, dynamic = self._trace(frame, model, known)
        pretended = known.pretended or dynamic.pretended
        if pretended and result.reason is not None and result.reason.code in _REFUSED_SIZES:
            return None
        declared = self._check_given(frame, result)
        if result.reason is not None and result.reason.code == "raises" and not self.options.fullgraph:
            # Python itself raises better, or not at all: what `is_compiling()` guards off while tracing, it runs.
            observer.on_break(_without_frames(result.reason))
            return self._run_original(frame, result)

        def again(stop_at: int, reason: Unsupported) -> TraceResult:
            with self._phase("trace"):
                return trace_frame(frame, model, self._options(code), dynamic, stop_at, reason)

        gm = compiled = None
        with self._phase("codegen"):
            plan = place_break(code, model, result, again)
            result = plan.result
            if result.graph.has_calls:
                gm = result.graph.finish(plan.outputs)
        if gm is not None and result.env is not None and result.env.assumptions and code not in self._cautious:
            if why_not_deoptimise(gm) is not None:
                self._cautious.add(code)
                return self._attempt(frame, known)
        if pretended:
            numbers = result.guards.dynamic_numbers(result.env)
            with self._phase("trace"):
                if numbers is None or why_not_served(gm, result.graph.input_sources, numbers, frame) is not None:
                    return None
        check_still_dynamic(declared, result.env)
        if result.reason is not None:
            if self.options.fullgraph:
                raise result.reason
            observer.on_break(_without_frames(result.reason))
        if gm is None and result.kind == "return":
            return self._run_original(frame, result)
        if gm is not None:
            observer.on_graph(gm)
            with observer.phase("backend"):
                compiled = self._call_backend(gm, result)
            check_still_dynamic(declared, result.env)
        with self._phase("codegen"):
            payload = Payload(gm, result.guards.tensors, result.reason, _module_argument(frame))
            entry = finish_entry(plan, compiled, payload, raise_internal_errors=self.options.raise_internal_errors)
        if pretended:
            if not (payload.dynamic and check_size_one(gm, payload.inputs, payload.dynamic, frame)):
                return None  # the backend has made a decision of its own
            entry = with_size_one_accepted(entry)
        observer.on_entry(entry)
        return entry

    def _trace(
        self, frame: treadle_frame.FrameInfo, model: CodeModel, dynamic: DynamicSources
    ) -> tuple[TraceResult, DynamicSources]:
        """The trace, and what was dynamic in it; ints that it cannot have as symbols are constants from then on."""
        options = self._options(frame.code)
        ints = {source for source, dims in dynamic.items() if not dims}
        if not ints:
            return trace_frame(frame, model, options, dynamic), dynamic
        result: TraceResult | None = None
        with contextlib.suppress(Unsupported):
            result = trace_frame(frame, model, options, dynamic)
        if result is not None and (result.reason is None or not result.guards.has_integers):
            return result, dynamic
        fewer = DynamicSources(
            {source: dims for source, dims in dynamic.items() if dims}, dynamic.pretend, dynamic.inputs
        )
        without = trace_frame(frame, model, options, fewer)
        if result is not None and without.reason is not None:
            return result, dynamic  # the break has another cause
        self._constant.setdefault(frame.code, set()).update(ints)
        return without, fewer

    def _options(self, code: CodeType) -> TracerOptions:
        """Nothing is assumed where Python could not run the program instead."""
        return replace(self.options, assume=False) if code in self._cautious else self.options

    def _check_given(self, frame: treadle_frame.FrameInfo, result: TraceResult) -> Declared:
        """What the user has declared about the inputs of this trace. Raises ConstraintError when this call contradicts it."""
        tensors = [
            (guard, follow(guard.source.path, frame)) for guard in result.guards.tensors if guard.identity is None
        ]
        declared = declared_in(tensors, self._declared.get(frame.code, {}))
        if declared:
            check_given(declared, {guard.source: guard.sizes for guard, _ in tensors})
            self._declared.setdefault(frame.code, {}).update(declared)
        return declared

    def _run_original(self, frame: treadle_frame.FrameInfo, result: TraceResult) -> Any:
        """Nothing to compile under these guards: the original code is its own replacement."""
        if frame.code not in self._roots:
            count = self._empty[frame.code] = self._empty.get(frame.code, 0) + 1
            if count > _EMPTY_TRACES:
                return self._skip(frame.code, "a function in which no tensor is computed")
        payload = Payload(None, result.guards.tensors, result.reason, _module_argument(frame))
        if result.env is not None:
            payload.dynamic = result.guards.add_sizes(result.env)
            if payload.dynamic is not None:
                check_size_one(None, (), payload.dynamic, frame)
        payload.numbers = result.guards.numbers
        program = result.guards.program()
        if payload.dynamic is not None:
            program = size_program(program.checks, payload.dynamic)
        return treadle_frame.Entry(frame.code, program, payload)

    def _model(self, code: CodeType) -> CodeModel:
        if code not in self._models:
            self._models[code] = read(code)
        return self._models[code]

    def _dynamic_numbers(self, frame: treadle_frame.FrameInfo, existing: list[Any]) -> DynamicSources:
        """Sources of tensors whose sizes changed between calls of this code, with the dimensions, and of ints that changed."""
        known = self._dynamic.setdefault(frame.code, DynamicSources())
        exchanged = Counter(source for entry in existing for source in exchanged_tensors(entry.payload, frame))
        # An argument is another one soon; what a module holds may have been replaced once, and be a constant again.
        known.inputs |= {s for s, times in exchanged.items() if times > 1 or isinstance(s, LocalSource)}
        if self.options.dynamic is not False:
            for entry in existing:
                for source, dims in changed_dimensions(entry.payload, frame).items():
                    sizes = known.setdefault(source, {})
                    for dim, size in dims.items():
                        sizes[dim] = max(size, sizes.get(dim, 0))
        if self.options.dynamic:
            for name, value in frame.locals.items():
                if type(value) in (int, float):
                    known.setdefault(LocalSource(name), {})
        constant = self._constant.get(frame.code, ())
        return DynamicSources(
            {source: dims for source, dims in known.items() if source not in constant}, inputs=known.inputs
        )

    def _call_backend(self, gm: torch.fx.GraphModule, result: TraceResult) -> Callable[..., Sequence[Any]]:
        name = getattr(self.backend, "__name__", type(self.backend).__name__)
        try:
            compiled = self.backend(gm, result.graph.example_inputs)
        except InternalError:
            raise
        except Exception as error:
            raise BackendError(f"backend {name!r} raised {type(error).__name__}: {error}") from error
        if not callable(compiled):
            raise BackendError(f"backend {name!r} must return a callable, it returned {compiled!r}")
        return compiled if _leaves_hook_alone(compiled) else _outside_the_hook(compiled)


def _why_not_trace_root(code: CodeType) -> str | None:
    """As `why_not_trace`, but what the user asked for may have any name and stand in any file."""
    why = why_not_trace(code)
    by_choice = why is not None and (why.startswith("a special method") or why == why_not_trace_file(code.co_filename))
    return None if by_choice else why


def _without_frames(reason: Unsupported) -> Unsupported:
    """The reason alone: its traceback would keep the whole trace alive, and with it the tensors of this call."""
    reason.__traceback__ = reason.__context__ = reason.__cause__ = None
    return reason


def _frame_skipped(code: CodeType, why: str) -> Unsupported:
    return Unsupported(
        "frame-skipped", f"{code.co_qualname}: {why}", ((code.co_filename, code.co_firstlineno, code.co_name),)
    )


def _leaves_hook_alone(compiled: Any) -> bool:
    """Whether a compiled graph runs nothing but this project's runtime, whose code the hook skips anyway."""
    function = compiled if hasattr(compiled, "__code__") else type(compiled).__call__
    code = getattr(function, "__code__", None)
    why = None if code is None else why_not_trace_file(code.co_filename)
    return why is not None and why.startswith("code of the package treadle")


def _outside_the_hook(compiled: Callable[..., Any]) -> Callable[..., Any]:
    """What a backend returns is not traced in its turn."""

    def run(*args: Any) -> Any:
        state = treadle_frame.set_handler(None)
        try:
            return compiled(*args)
        finally:
            treadle_frame.set_handler(state)

    treadle_frame.skip(run.__code__)
    return run


def _place(code: CodeType) -> str:
    return f"{code.co_qualname} ({code.co_filename}:{code.co_firstlineno})"


def _module_argument(frame: treadle_frame.FrameInfo) -> int | None:
    """Identity of the first argument if it is a module: entries of different instances do not count against each other."""
    first = next(iter(frame.locals.values()), None)
    return id(first) if isinstance(first, torch.nn.Module) else None


@contextlib.contextmanager
def _torch_state_kept() -> Iterator[None]:
    """Tracing and backends leave grad mode and the random number generators as they found them.

    Fake tensors log an error for every call with bad arguments; in a trace that is the program's own exception, or a reason to break.
    """
    log = logging.getLogger("torch._subclasses.fake_tensor")
    was_disabled, log.disabled = log.disabled, True
    grad = torch.is_grad_enabled()
    cpu = torch.random.get_rng_state()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() and torch.cuda.is_initialized() else None
    try:
        yield
    finally:
        log.disabled = was_disabled
        torch._C._set_grad_enabled(grad)
        torch.random.set_rng_state(cpu)
        if cuda is not None:
            torch.cuda.set_rng_state_all(cuda)
