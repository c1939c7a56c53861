"""Statistics of this process: graphs, graph breaks, recompiles, graphs that run in eager, seconds per phase, kernel cache hits."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from . import logs


@dataclass(frozen=True)
class Break:
    """A graph break: its code in the tracer's table of break reasons, the reason in words, and the user's line ("file:line")."""

    code: str
    reason: str
    where: str


@dataclass(frozen=True)
class Recompile:
    """A function that was compiled again, and the guard that failed."""

    function: str
    reason: str


@dataclass(frozen=True)
class EagerGraph:
    """A traced graph that runs in eager, and why."""

    reason: str


@dataclass(frozen=True)
class Stats:
    """A snapshot of the statistics.

    graph_nodes: calls of every traced graph. skipped: functions that are not compiled, with the reason. seconds: by phase; a phase
    "a.b" is part of phase "a". specialised_shapes: sets of sizes for which dynamic graphs have got specialised kernels.
    """

    graphs: int = 0
    graph_nodes: tuple[int, ...] = ()
    breaks: tuple[Break, ...] = ()
    recompiles: tuple[Recompile, ...] = ()
    eager_graphs: tuple[EagerGraph, ...] = ()
    skipped: tuple[str, ...] = ()
    seconds: dict[str, float] = field(default_factory=dict)
    cache_hits: int = 0
    cache_misses: int = 0
    specialised_shapes: int = 0

    def __str__(self) -> str:
        lines = [f"graphs: {self.graphs} (nodes: {', '.join(map(str, self.graph_nodes)) or 'none'})"]
        lines += [f"break: {b.code} at {b.where}: {b.reason}" for b in self.breaks]
        lines += [f"recompile: {r.function}: {r.reason}" for r in self.recompiles]
        lines += [f"in eager: {e.reason}" for e in self.eager_graphs]
        lines += [f"skipped: {s}" for s in self.skipped]
        lines += [f"seconds in {name}: {value:.3f}" for name, value in sorted(self.seconds.items())]
        lines.append(f"kernel cache: {self.cache_hits} hits, {self.cache_misses} misses")
        lines += [f"specialised shapes: {self.specialised_shapes}"] if self.specialised_shapes else []
        return "\n".join(lines)


class StatsRecorder:
    """Collects statistics. A call returns a snapshot (``treadle.stats()``)."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        os.register_at_fork(after_in_child=self._lock._at_fork_reinit)  # type: ignore[attr-defined]
        self._stats = Stats()

    def __call__(self) -> Stats:
        with self._lock:
            return replace(self._stats, seconds=dict(self._stats.seconds))

    def reset(self) -> None:
        with self._lock:
            self._stats = Stats()

    def add(
        self,
        *,
        graph_nodes: int | None = None,
        graph_break: Break | None = None,
        recompile: Recompile | None = None,
        eager_graph: EagerGraph | None = None,
        skipped: str | None = None,
        cache_hits: int = 0,
        cache_misses: int = 0,
        specialised_shapes: int = 0,
    ) -> None:
        """Count each argument that is given."""
        with self._lock:
            s = self._stats
            self._stats = replace(
                s,
                graphs=s.graphs + (graph_nodes is not None),
                graph_nodes=s.graph_nodes + ((graph_nodes,) if graph_nodes is not None else ()),
                breaks=s.breaks + ((graph_break,) if graph_break else ()),
                recompiles=s.recompiles + ((recompile,) if recompile else ()),
                eager_graphs=s.eager_graphs + ((eager_graph,) if eager_graph else ()),
                skipped=s.skipped + ((skipped,) if skipped else ()),
                cache_hits=s.cache_hits + cache_hits,
                cache_misses=s.cache_misses + cache_misses,
                specialised_shapes=s.specialised_shapes + specialised_shapes,
            )

    def add_seconds(self, phase: str, seconds: float) -> None:
        """Add to the time of a phase."""
        logs.emit("timing", f"{phase}: {seconds:.3f} s")
        with self._lock:
            self._stats.seconds[phase] = self._stats.seconds.get(phase, 0.0) + seconds

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measure the time of a with block."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.add_seconds(name, time.perf_counter() - start)


stats = StatsRecorder()
