"""Kernels compiled anew for the sizes that a dynamic graph keeps being called with.

    void k(const float* b0, float* b1, i64 n0, i64 n1) {...}      becomes, called at 4081 rows of 49 again and again,

    void k(const float* b0, float* b1) { constexpr i64 n0 = 4081; constexpr i64 n1 = 49; ...}

The text is otherwise the same, and so are the results to the bit (docs/design.md says why); what the compiler gains is what it
has in a static graph. The time spent at one set of sizes is sampled. Once it exceeds what a compile takes, the compile is
queued for a thread in the background, so that it at most doubles what was spent; from then on nothing is counted any more.
Sizes that keep changing never get there.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from treadle_codegen.background import Worker
from treadle_codegen.build import stop_background_compilers
from treadle_codegen.codegen.workspace import Entries, Fit, Sizes
from treadle_codegen.errors import CodegenUnavailable, InternalError

# (kernel numbers that are constants, whether in the background) -> entry points
Build = Callable[[Mapping[Any, int | float], bool], Entries]

_TIMED_FIRST = 4  # calls, one by one; later ones are sampled
_MOST_SKIPPED = 64  # calls between two samples
_LEAST_CALLS = 8  # at one set of sizes, however long they take: a size that does not come back needs no kernels

_worker = Worker("treadle-hot-sizes", stop_background_compilers)
_graphs: weakref.WeakSet[ShapeSpecialisation] = weakref.WeakSet()


def wait_for_specialisation(timeout: float | None = None) -> bool:
    """Wait until no compile for hot sizes is queued or running, at most `timeout` seconds; whether that came about."""
    return _worker.wait(timeout)


def specialise_now() -> int:
    """Compile kernels for the sizes that each living dynamic graph was last called with, hot or not; how many graphs run such
    kernels now. For benchmarks, tests, and servers that would rather wait at the start."""
    return sum(graph.specialize(graph.last) for graph in list(_graphs) if graph.last is not None)


class ShapeSpecialisation:
    """Which sizes of one graph have kernels of their own.

    limit: how many sets of sizes at most; seconds: what compiling the kernels takes; generic: the entry points for any sizes;
    build: makes those for given sizes. `on_ready(sizes by symbol name, seconds)` and `on_failure(error)` are called from
    the graph's next call at these sizes; the default of `on_failure` raises the error.
    """

    def __init__(
        self, limit: int, seconds: float, generic: Entries, build: Build, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.limit = limit
        self.seconds = seconds
        self.generic = generic
        self.clock = clock
        self.on_ready: Callable[[dict[str, int], float], None] = lambda sizes, seconds: None
        self.on_failure: Callable[[InternalError], None] = _raise
        self.ready: dict[Sizes, Entries] = {}
        self.last: Fit | None = None  # of the last call at other sizes than the one before
        self._fits: Mapping[Sizes, Fit] = {}
        self._names: Sequence[str] = ()
        self._numbers: Sequence[Any] = ()
        self._build = build
        self._taken: set[Sizes] = set()  # what counts for the limit: asked for, ready or failed
        self._news: dict[Sizes, Callable[[], None]] = {}  # what to say on the next call
        _graphs.add(self)

    def belongs_to(self, fits: Mapping[Sizes, Fit], names: Sequence[str], numbers: Sequence[Any]) -> None:
        """The graph: its Fits, the names of the symbols whose values the sizes are, and the numbers in the table of a Fit."""
        self._fits, self._names, self._numbers = fits, names, numbers

    def entries_at(self, fit: Fit) -> Entries:
        """The entry points that calls at new sizes begin with."""
        if fit.sizes in self.ready or fit.sizes in self._news:
            return self._after_news(fit)
        return Meter(self, fit).timed if self._has_room(fit.sizes) else self.generic

    def request(self, fit: Fit) -> None:
        """The time spent at these sizes has reached what a compile takes: queue one."""
        fit.use(self._after_news(fit))
        if self._has_room(fit.sizes):
            self._taken.add(fit.sizes)
            _worker.submit(partial(_specialize, weakref.ref(self), fit))

    def specialize(self, fit: Fit, *, background: bool = False) -> bool:
        """Compile for the sizes of `fit` unless that was done; whether they have kernels of their own now.

        Without a compiler (or memory, or space on the disk) the graph stays without for good. A compiler that refuses the
        kernels is a bug: the graph's next call at these sizes reports it.
        """
        if fit.sizes in self.ready:
            return True
        self._taken.add(fit.sizes)
        start = self.clock()
        try:
            entries = self._build(dict(zip(self._numbers, (value for _, value in fit.table), strict=True)), background)
        except (CodegenUnavailable, OSError, MemoryError):
            self.limit = 0
        except Exception as error:  # named boundary: reported by the next call
            failure = InternalError("hot sizes", f"{type(error).__name__}: {error}")
            failure.__cause__ = error
            self._news[fit.sizes] = lambda: self.on_failure(failure)
        else:
            sizes, seconds = dict(zip(self._names, fit.sizes, strict=True)), self.clock() - start
            self._news[fit.sizes] = lambda: self.on_ready(sizes, seconds)
            self.ready[fit.sizes] = entries
        for fitted in {fit, self._fits.get(fit.sizes, fit)}:  # laid out anew in the meantime
            fitted.use(self._after_news(fitted))
        return fit.sizes in self.ready

    def _has_room(self, sizes: Sizes) -> bool:
        return sizes not in self._taken and len(self._taken) < self.limit

    def _after_news(self, fit: Fit) -> Entries:
        """The entry points for these sizes; where there is something to say, the first call says it."""
        entries = self.ready.get(fit.sizes, self.generic)
        if fit.sizes not in self._news:
            return entries

        def say_and_run(address: int) -> None:
            news = self._news.get(fit.sizes)
            if news is not None:
                news()  # and again on the next call, should it raise
                self._news.pop(fit.sizes, None)
            fit.use(entries)
            entries[0](address)

        return (say_and_run, *entries[1:])


def _raise(error: InternalError) -> None:
    raise error


def _specialize(graph: weakref.ref[ShapeSpecialisation], fit: Fit) -> None:
    hot = graph()
    if hot is not None:  # else the graph was let go
        hot.specialize(fit, background=True)


class Meter:
    """Samples the time of calls at one set of sizes until a compile is worth it.

    Every call is timed at first, then one of several; the calls in between are counted by their first entry point alone.
    Several threads may call at once: a sample that mixes their times, or a call that is not counted, moves the decision a
    little and changes no result.
    """

    def __init__(self, hot: ShapeSpecialisation, fit: Fit) -> None:
        self._hot = hot
        self._fit = fit
        self._left = 0  # calls until the next sample
        self._skipped = 0  # calls that the next sample stands for beside its own
        self._samples = 0
        self._calls = 0
        self._sample = 0.0
        last = len(hot.generic) - 1
        self.timed: Entries = tuple([partial(self._time, e, k == 0, k == last) for k, e in enumerate(hot.generic)])
        self.counted: Entries = (partial(self._count, hot.generic[0]), *hot.generic[1:])

    def _count(self, entry: Callable[[int], None], address: int) -> None:
        self._left -= 1
        if self._left <= 0:
            self._fit.use(self.timed)
        entry(address)

    def _time(self, entry: Callable[[int], None], first: bool, last: bool, address: int) -> None:
        clock = self._hot.clock
        if first:
            self._sample = 0.0
        start = clock()
        entry(address)
        self._sample += clock() - start
        if last:
            self._decide()

    def _decide(self) -> None:
        fit, hot = self._fit, self._hot
        self._samples += 1
        self._calls += 1 + self._skipped
        fit.spent += self._sample * (1 + self._skipped)
        if self._calls >= _LEAST_CALLS and fit.spent >= hot.seconds:
            hot.request(fit)
        elif self._samples >= _TIMED_FIRST:
            calls_ahead = (hot.seconds - fit.spent) / max(self._sample, 1e-9)
            self._left = self._skipped = max(0, min(_MOST_SKIPPED, int(calls_ahead / 4)))
            if self._left:
                fit.use(self.counted)
