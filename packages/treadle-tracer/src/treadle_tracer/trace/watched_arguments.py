"""Objects whose death runs code of the program: instances of classes with a `__del__`, and what holds nothing but such an object.

    for batch in tqdm(batches):     # Python makes the bar: the frame is left at the call, and goes on in a continuation
        ...                         # the iterator on its operand stack is all that holds the bar

The trace does not count references, but a continuation is called with all that the frame holds. When neither its operand stack nor its
variables hold such an argument any more, the object may be dying. If its finalizer does nothing then, which is traced, the trace goes on.
Otherwise the frame is left at the instruction that drops the object, and Python carries it out.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from treadle_tracer.errors import PathEnds, Unsupported
from treadle_tracer.output.dropped import death_runs_code
from treadle_tracer.values.base import LazyValue, settled
from treadle_tracer.values.class_lookup import lookup
from treadle_tracer.values.finalizers import has_finalizer
from treadle_tracer.values.functions import BoundMethod
from treadle_tracer.values.value import NotConstant, Raised, Value

if TYPE_CHECKING:
    from treadle_tracer.trace.frame import Frame


class WatchedArguments:
    """The arguments of a continuation whose death runs code."""

    def __init__(self, arguments: Mapping[str, LazyValue]):
        values = sorted(
            arguments.values(), key=lambda value: type(value.obj) is not types.MethodType
        )  # the object, if it is there
        self._watched = {_identity(value.obj): value for value in values if death_runs_code(value.obj)}

    def __bool__(self) -> bool:
        return bool(self._watched)

    def check(self, frame: Frame) -> None:
        """After an instruction. Raises Unsupported if it has dropped one of them whose finalizer has an effect."""
        held: set[int] = set()
        _note_held(held, frame.stack)
        _note_held(held, frame.locals.values())
        for key, value in list(self._watched.items()):
            if key in held:
                continue
            if not _does_nothing(frame, value):
                refused = Unsupported("finalizer", f"the end of a {value.python_type().__qualname__}")
                refused.most_frames = 1
                raise refused
            del self._watched[key]


def _note_held(held: set[int], values: Iterable[Value]) -> None:
    for value in values:
        found = settled(value)
        if isinstance(found, BoundMethod):
            found = settled(found.instance)
        held.add(_identity(getattr(found, "obj", None)))


def _identity(obj: Any) -> int:
    """Which object it is; of a method, whose: `with` holds the object by its `__exit__`."""
    return id(obj.__self__ if type(obj) is types.MethodType else obj)


def _does_nothing(frame: Frame, value: LazyValue) -> bool:
    """Whether the finalizer of the object has no effect now. If so, the trace relies on it."""
    tx = frame.tx
    instance = settled(value.force(tx))
    if isinstance(instance, BoundMethod):
        instance = settled(instance.instance)
    if not has_finalizer(instance.python_type()):
        return False
    if tx.mutations.attrs_of(instance):  # these may be objects of the trace, which change unnoticed
        return False
    calls = tx.graph.calls
    try:
        with tx.mutations.freezing():
            finalizer = lookup(tx, instance.python_type(), "__del__")
            tx.inline(tx.wrap_known(finalizer), [instance], {})
    except (PathEnds, Unsupported, Raised, NotConstant):
        return False
    return tx.graph.calls == calls
