"""What the traced program has entered and not left: inference mode, and modes that see every call of torch (`function_modes`).

The state that such a context sets belongs to an object that no code can rebuild half-way. So the trace neither breaks nor ends inside: it
is begun anew, and ends in front of the instruction that enters (`LeftInside`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, NamedTuple

from treadle_tracer.errors import Unsupported

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext


class LeftInside(Unsupported):
    """The trace has come to its end inside a context that was entered at `step`."""

    def __init__(self, step: int, name: str):
        super().__init__("global-state", f"{name}, inside of which the graph ends")
        self.step = step


class _Entered(NamedTuple):
    """context: the value that stands for it. leave: undoes what entering has changed in this process, the trace aside."""

    context: object
    name: str
    step: int
    leave: Callable[[], None]


class EnteredContexts:
    """The contexts of one trace that are entered and not left, outermost first. stays_out: the steps at which none is entered, and why."""

    def __init__(self, stays_out: Mapping[int, str] | None = None) -> None:
        self.stays_out = stays_out or {}
        self.around_fakes: Callable[[], AbstractContextManager[None]] | None = None
        self._entered: list[_Entered] = []

    def require_enterable(self, tx: TraceContext, name: str) -> None:
        """Raises Unsupported where the trace cannot enter a context at the present step, PathEnds on a path that is only tried."""
        tx.mutations.begin_write()
        if tx.step - 1 in self.stays_out:
            raise Unsupported(
                "global-state", f"{name}, inside of which the graph breaks: {self.stays_out[tx.step - 1]}"
            )
        if not tx.runs_forward or tx.graph.checkpoint is not None:
            raise Unsupported("global-state", name)

    def enter(self, tx: TraceContext, context: object, name: str, leave: Callable[[], None] = lambda: None) -> None:
        """Note that the program has entered a context. `require_enterable` has been asked."""
        self._entered.append(_Entered(context, name, tx.step - 1, leave))

    def require_innermost(self, context: object) -> None:
        """Raises Unsupported for a context that is not the one to be left next."""
        if not self._entered or self._entered[-1].context is not context:
            raise Unsupported("global-state", "a context of torch that is left out of order")

    def leave(self, tx: TraceContext, context: object) -> None:
        """Note that the program has left the innermost context, and undo what entering it has changed."""
        tx.mutations.begin_write()
        self.require_innermost(context)
        self._entered.pop().leave()

    def require_none(self) -> None:
        """Raises LeftInside if the trace ends inside a context."""
        if self._entered:
            raise LeftInside(self._entered[0].step, self._entered[0].name)

    def abandon(self) -> None:
        """Undo what entering the contexts has changed, after a trace that is given up."""
        while self._entered:
            self._entered.pop().leave()

    def while_making_fakes(self) -> AbstractContextManager[None]:
        """Around the making of fake tensors for tensors from outside."""
        return nullcontext() if self.around_fakes is None else self.around_fakes()
