"""The result of tracing a frame."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from types import CodeType

    from treadle_tracer.bytecode import CodeModel
    from treadle_tracer.errors import Unsupported
    from treadle_tracer.output.graph import GraphBuilder
    from treadle_tracer.output.guards import GuardSet
    from treadle_tracer.output.mutations import Mutations
    from treadle_tracer.values.cells import CellValue
    from treadle_tracer.values.functions import FunctionValue
    from treadle_tracer.values.generators import GeneratorValue


@dataclass
class InnerFrame:
    """A called frame that has not returned at the break: the function, its code, the instruction at which it stands, and its state there.

    A frame that waits for a call stands at the call instruction, and its stack is what is below the callable.
    """

    function: FunctionValue
    model: CodeModel
    index: int
    stack: list[Value]
    locals: dict[str, Value]
    cells: dict[str, CellValue]


@dataclass
class TraceResult:
    """The end of a trace.

    kind            "return": the frame was traced to its end at instruction `index`, `value` is what it returns;
                    "break": instruction `index` cannot be traced because of `reason`; `stack` and `cells` (cell variables) are the
                    state before it
    inner           at a break inside a call of instruction `index`: the called frames, innermost last. It is the instruction of the
                    last one that cannot be traced. `stack` is then what is below the callable
    steps           at a break, for the frame and each of `inner`: the step at which its present instruction began
    locals          the bound variables at the end, cell variables excluded
    arguments       the arguments of the frame, by name
    generators      all generators that the trace has made
    state_changes   (setter, arguments) calls that bring torch's global state to where the traced code has left it
    protected       a graph call was traced where the traced program may catch an exception
    told_of_compiling  the program has asked whether it is being compiled, and may have taken another path than it takes in Python
    handled         the exception that the frame is handling; None if there is none
    raised          exceptions that the trace has raised and the frame has caught, with the instruction of the frame
    caught          exceptions that the trace has raised and a called frame has caught
    inlined         the codes of the functions that the trace has called in place
    env             the `treadle_shapes.ShapeEnv` of the dynamic sizes, None when all sizes are static
    forget          to be called when nothing is made of this result any more: see `Tracer.forget`
    """

    kind: Literal["return", "break"]
    graph: GraphBuilder
    guards: GuardSet
    mutations: Mutations
    value: Value | None = None
    index: int = -1
    stack: list[Value] = field(default_factory=list)
    locals: dict[str, Value] = field(default_factory=dict)
    cells: dict[str, CellValue] = field(default_factory=dict)
    reason: Unsupported | None = None
    protected: bool = False
    told_of_compiling: bool = False
    state_changes: list[tuple[Any, tuple[Any, ...]]] = field(default_factory=list)
    arguments: dict[str, Value] = field(default_factory=dict)
    generators: tuple[GeneratorValue, ...] = ()
    handled: Value | None = None
    raised: tuple[tuple[Value, int], ...] = ()
    caught: tuple[Value, ...] = ()
    inner: tuple[InnerFrame, ...] = ()
    steps: tuple[int, ...] = ()
    inlined: tuple[CodeType, ...] = ()
    env: Any = None
    forget: Callable[[], None] = lambda: None

    def was_raised(self, exception: Value) -> bool:
        """Whether the trace has raised it, so that it has no traceback."""
        caught = (*self.caught, *(value for value, _ in self.raised))
        return exception.source is None or any(value is exception for value in caught)
