"""`CompiledGraph`: what `compile_graph` returns."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from treadle_codegen.errors import CodegenError, InternalError
from treadle_codegen.host.host import Host
from treadle_codegen.targets.target import Target

if TYPE_CHECKING:
    from treadle_codegen.host.replay import ReplayedGraph
    from treadle_codegen.host.shape_specialisation import ShapeSpecialisation
    from treadle_codegen.ir.loops import Program
    from treadle_codegen.rewrite.static import Prologue
    from treadle_codegen.targets.renderer import RenderedKernel
    from treadle_codegen.tune.trials import Trial


class Lowered(NamedTuple):
    """What kernels were made of: the program before fusion, and the kernels."""

    program: Program
    kernels: list[RenderedKernel]


class CompiledGraph:
    """A compiled graph: call it with the graph's inputs, get the list of its outputs.

    An output that is written back to an input (`meta["mutates"]`) may be that input itself, updated.

    `source` is the whole unit as text, which begins with `prelude()`, `kernel_source` the kernels alone, `host_source` the host function,
    `ir_text` the program before fusion, `kernels` the rendered kernels, `entries` the names of their entry points, `seconds` the time spent
    by pass, `cache_hits` 1 if the library came from the cache, `cache_misses` 1 if it was built. `replayed` records and replays
    calls, if the options ask for it and the device can. `trials` is what autotuning measured.
    """

    def __init__(self, lowered: Callable[[], Lowered], host: Host, source: str, prologue: Prologue | None) -> None:
        self.lowered = lowered
        self._host = host
        self._run: Callable[..., list[Any]] = host.run
        self.replayed: ReplayedGraph | None = None
        self._prologue = prologue
        self._without_prologue: Callable[[], CompiledGraph | None] | None = None
        self.source = source
        self.prelude: Callable[[], str] = str
        self.host_source = host.source
        self.host_program = host.program
        self.entries: list[str] = []
        self.seconds: dict[str, float] = {}
        self.cache_hits = 0
        self.cache_misses = 0
        self.trials: list[Trial] = []

    @property
    def kernel_source(self) -> str:
        return self.source.removeprefix(self.prelude()).lstrip("\n")

    @property
    def ir_text(self) -> str:
        from treadle_codegen.ir.text import format_program

        return format_program(self.lowered().program)

    @property
    def kernels(self) -> list[RenderedKernel]:
        return self.lowered().kernels

    @property
    def specialisation(self) -> ShapeSpecialisation | None:
        """What decides which sizes get kernels of their own; None where no kernel takes sizes, or the option says so."""
        return self._host.specialisation

    def specialise(self) -> bool:
        """Compile kernels for the sizes of the last call, frequent or not; whether calls at these sizes run such kernels now."""
        specialisation = self.specialisation
        return (
            specialisation is not None
            and specialisation.last is not None
            and specialisation.specialise(specialisation.last)
        )

    def __call__(self, *args: Any) -> list[Any]:
        if self._prologue is not None:
            if self._without_prologue is not None and not self._prologue.pays(args):
                plain = self._without_prologue()
                if plain is not None:
                    return plain._run(*args)
            args = (*args, *self._prologue(args))
        return self._run(*args)

    def note_build(
        self, prelude: Callable[[], str], seconds: dict[str, float], cached: bool, entries: list[str]
    ) -> None:
        """Tell what the unit begins with, the time spent by pass, whether its library came from the cache, and its entry points."""
        self.prelude = prelude
        self.seconds = seconds
        self.entries = entries
        self.cache_hits = int(cached)
        self.cache_misses = int(bool(entries) and not cached)

    def give_up_prologue_for(self, plain: Callable[[], CompiledGraph]) -> None:
        """Run the graph that `plain` makes while static inputs change so often that deriving values from them does not pay. It is made when
        it is first wanted; where that fails, the graph goes on as it is."""
        made: list[CompiledGraph] = []

        def without() -> CompiledGraph | None:
            if not made:
                try:
                    made.append(plain())
                except CodegenError as error:
                    self._without_prologue = None
                    if isinstance(error, InternalError):
                        warnings.warn(f"A graph goes on with packed weights: {error}", RuntimeWarning, stacklevel=2)
                    return None
            return made[0]

        if self._prologue is not None:
            self._without_prologue = without

    def replay_on(self, target: Target, saved: Sequence[int]) -> None:
        """Record calls and replay them, if the target can; `saved`: positions of results that only the backward pass reads."""
        program = self.lowered().program
        recorder = target.recorder(program.device) if program.device is not None else None
        if recorder is not None:
            from treadle_codegen.host.replay import ReplayedGraph

            self._run = self.replayed = ReplayedGraph(self._host, program, recorder, saved)

    def run_exact_unless(self, allows_tf32: Callable[[], bool], exact: Callable[[], CompiledGraph]) -> None:
        """From now on, ask at every call whether factors may be rounded to TF32; where not, run the graph that `exact` makes."""
        fast, made = self._run, list[CompiledGraph]()

        def run(*args: Any) -> list[Any]:
            if allows_tf32():
                return fast(*args)
            if not made:
                made.append(exact())
            return made[0]._run(*args)

        self._run = run

    @property
    def runs_host_only(self) -> bool:
        """Whether a call runs nothing but the host function: it derives no values from parameters, replays nothing and compiles nothing."""
        return self._prologue is None and self._run is self._host.run

    @property
    def function(self) -> Callable[..., list[Any]]:
        """The graph as a plain function of its inputs, the fastest way to call it."""
        return self._run if self._prologue is None else self.__call__
