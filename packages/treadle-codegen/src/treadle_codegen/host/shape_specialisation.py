"""Kernels specialised for the sizes that a dynamic graph keeps being called with.

    void k(const float* b0, float* b1, i64 n0, i64 n1) {...}      becomes, called at 4081 rows of 49 again and again,

    void k(const float* b0, float* b1) { constexpr i64 n0 = 4081; constexpr i64 n1 = 49; ...}

The rest of the text is the same, and so are the results, to the bit: a kernel whose bits could depend on which of its
numbers are constants keeps its numbers (`RenderedKernel.why_not_constant`). The compiler gains what it has in a static graph.

The time spent in kernels is sampled per set of sizes. Once it exceeds what a compile takes, a background thread compiles, so
that the compile at most doubles the time spent; from then on nothing is counted. Sizes that keep changing never get there.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from treadle_codegen.background import Worker
from treadle_codegen.errors import CodegenUnavailable, InternalError
from treadle_codegen.host.workspace import Entries, Fit, Sizes

# (kernel numbers and their values, whether to build in the background) -> entry points
Build = Callable[[Mapping[Any, int | float], bool], Entries]

_TIMED_FIRST = 4  # calls, one by one; later ones are sampled
_MOST_SKIPPED = 64  # calls between two samples
_LEAST_CALLS = 8  # at one set of sizes, however long they take: sizes that do not come back need no kernels

_graphs: weakref.WeakSet[ShapeSpecialisation] = weakref.WeakSet()


def _interrupt_builds() -> None:
    for interrupt in {graph.interrupt for graph in list(_graphs)}:
        interrupt()


_worker = Worker("treadle-specialisation", _interrupt_builds)


def wait_for_specialisation(timeout: float | None = None) -> bool:
    """Wait until no specialising compile is queued or running, at most `timeout` seconds. Returns whether none is left."""
    return _worker.wait(timeout)


def specialise_now() -> int:
    """Specialise every living dynamic graph for the sizes of its last call; returns how many graphs run such kernels now.

    For benchmarks, tests, and servers that prefer to wait at the start.
    """
    return sum(graph.specialise(graph.last) for graph in list(_graphs) if graph.last is not None)


class ShapeSpecialisation:
    """Decides for which sizes one graph gets specialised kernels.

    limit: the most sets of sizes; seconds: how long compiling the kernels takes; generic: the entry points for any sizes;
    build: makes entry points for given sizes; interrupt: ends a build in the background early. The graph's next call at
    these sizes calls `on_ready(sizes by symbol name, seconds)` or `on_failure(error)`, which raises the error by default.
    """

    def __init__(
        self,
        limit: int,
        seconds: float,
        generic: Entries,
        build: Build,
        clock: Callable[[], float] = time.perf_counter,
        interrupt: Callable[[], None] = lambda: None,
    ) -> None:
        self.limit = limit
        self.seconds = seconds
        self.generic = generic
        self.clock = clock
        self.on_ready: Callable[[dict[str, int], float], None] = lambda sizes, seconds: None
        self.on_failure: Callable[[InternalError], None] = _raise
        self.ready: dict[Sizes, Entries] = {}
        self.last: Fit | None = None  # of the last call whose sizes were not those of the call before it
        self._fits: Mapping[Sizes, Fit] = {}
        self._names: Sequence[str] = ()
        self._numbers: Sequence[Any] = ()
        self._build = build
        self.interrupt = interrupt
        self._taken: set[Sizes] = set()  # requested, ready or failed: all count for the limit
        self._news: dict[Sizes, Callable[[], None]] = {}  # what the next call reports
        _graphs.add(self)

    def belongs_to(self, fits: Mapping[Sizes, Fit], names: Sequence[str], numbers: Sequence[Any]) -> None:
        """Set the graph: its Fits, the names of the symbols whose values the sizes are, and the numbers in a Fit's table."""
        self._fits, self._names, self._numbers = fits, names, numbers

    def entries_at(self, fit: Fit) -> Entries:
        """The entry points that calls at new sizes begin with."""
        if fit.sizes in self.ready or fit.sizes in self._news:
            return self._after_news(fit)
        return Meter(self, fit).timed if self._has_room(fit.sizes) else self.generic

    def request(self, fit: Fit) -> None:
        """Queue a compile: the time spent at these sizes has reached what it takes."""
        fit.use(self._after_news(fit))
        if self._has_room(fit.sizes):
            self._taken.add(fit.sizes)
            _worker.submit(partial(_specialise, weakref.ref(self), fit))

    def specialise(self, fit: Fit, *, background: bool = False) -> bool:
        """Compile for the sizes of `fit` unless that was done. Returns whether they have specialised kernels now.

        Without a compiler, memory, or space on the disk, the graph is never specialised again. A compiler that refuses the
        kernels is a bug, which the graph's next call at these sizes reports.
        """
        if fit.sizes in self.ready:
            return True
        self._taken.add(fit.sizes)
        start = self.clock()
        try:
            entries = self._build(dict(zip(self._numbers, (value for _, value in fit.table), strict=True)), background)
        except (CodegenUnavailable, OSError, MemoryError):
            self.limit = 0
        except Exception as error:  # named boundary: the next call reports it
            failure = InternalError("shape specialisation", f"{type(error).__name__}: {error}")
            failure.__cause__ = error
            self._news[fit.sizes] = lambda: self.on_failure(failure)
        else:
            sizes, seconds = dict(zip(self._names, fit.sizes, strict=True)), self.clock() - start
            self._news[fit.sizes] = lambda: self.on_ready(sizes, seconds)
            self.ready[fit.sizes] = entries
        for fitted in {fit, self._fits.get(fit.sizes, fit)}:  # the sizes may have got another Fit meanwhile
            fitted.use(self._after_news(fitted))
        return fit.sizes in self.ready

    def _has_room(self, sizes: Sizes) -> bool:
        return sizes not in self._taken and len(self._taken) < self.limit

    def _after_news(self, fit: Fit) -> Entries:
        """The entry points for these sizes; the first call through them reports what there is to report."""
        entries = self.ready.get(fit.sizes, self.generic)
        if fit.sizes not in self._news:
            return entries

        def report_and_run(argument: Any) -> None:
            news = self._news.get(fit.sizes)
            if news is not None:
                news()  # if it raises, the next call reports again
                self._news.pop(fit.sizes, None)
            fit.use(entries)
            entries[0](argument)

        return (report_and_run, *entries[1:])


def _raise(error: InternalError) -> None:
    raise error


def _specialise(graph: weakref.ref[ShapeSpecialisation], fit: Fit) -> None:
    specialisation = graph()
    if specialisation is not None:  # else the graph is gone
        specialisation.specialise(fit, background=True)


class Meter:
    """Samples the time of calls at one set of sizes until a compile is worth it.

    The first calls are all timed, later one of several; calls in between are only counted, by their first entry point.
    Several threads may call at once: a sample that mixes their times, or a call that is not counted, shifts the decision a
    little and changes no result.
    """

    def __init__(self, specialisation: ShapeSpecialisation, fit: Fit) -> None:
        self._specialisation = specialisation
        self._fit = fit
        self._left = 0  # calls until the next sample
        self._skipped = 0  # calls that the next sample stands for beside its own
        self._samples = 0
        self._calls = 0
        self._sample = 0.0
        last = len(specialisation.generic) - 1
        self.timed: Entries = tuple(
            [partial(self._time, e, k == 0, k == last) for k, e in enumerate(specialisation.generic)]
        )
        self.counted: Entries = (partial(self._count, specialisation.generic[0]), *specialisation.generic[1:])

    def _count(self, entry: Callable[[Any], None], argument: Any) -> None:
        self._left -= 1
        if self._left <= 0:
            self._fit.use(self.timed)
        entry(argument)

    def _time(self, entry: Callable[[Any], None], first: bool, last: bool, argument: Any) -> None:
        clock = self._specialisation.clock
        if first:
            self._sample = 0.0
        start = clock()
        entry(argument)
        self._sample += clock() - start
        if last:
            self._decide()

    def _decide(self) -> None:
        fit, specialisation = self._fit, self._specialisation
        self._samples += 1
        self._calls += 1 + self._skipped
        fit.spent += self._sample * (1 + self._skipped)
        if self._calls >= _LEAST_CALLS and fit.spent >= specialisation.seconds:
            specialisation.request(fit)
        elif self._samples >= _TIMED_FIRST:
            calls_ahead = (specialisation.seconds - fit.spent) / max(self._sample, 1e-9)
            self._left = self._skipped = max(0, min(_MOST_SKIPPED, int(calls_ahead / 4)))
            if self._left:
                fit.use(self.counted)
