"""`FrameCode`: a CodeBuilder for code that replaces a traced frame."""

from __future__ import annotations

import contextlib
import types
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from ..bytecode.assemble import CodeBuilder
from ..bytecode.model import CodeModel
from ..bytecode.opcodes import NULL_AFTER_CALLABLE
from ..errors import Unsupported


class FrameCode(CodeBuilder):
    """A CodeBuilder with fresh temporaries and one way to call on every version: `push_null(); load_const(f); arguments; call(n)`.

    The code has the parameters and free variables of the traced function, and no cells of its own, so parameters are plain locals.
    """

    def __init__(self, model: CodeModel, guarded_classes: Collection[type] = ()) -> None:
        """guarded_classes: those that are there whenever the code runs, because guards have found them; the code refers to them weakly."""
        self._temporaries = 0
        self._guarded_classes = frozenset(map(id, guarded_classes))
        self._null_pending = False
        self.refused: Mapping[int, Any] = {}
        docstring = model.consts[:1] if model.consts and isinstance(model.consts[0], str) else (None,)
        shape = model.replace(
            instructions=(), exceptions=(), consts=docstring, names=(), varnames=model.arguments, cellvars=()
        )
        super().__init__(shape)

    def temp(self) -> str:
        """A local name that no user variable has."""
        self._temporaries += 1
        return f"<treadle {self._temporaries}>"

    def load_cell(self, name: str) -> None:
        """Push the cell of a free variable."""
        self.load_closure(name)

    def push_null(self) -> None:
        """Push the NULL of a call. The callable must be the next constant loaded; from 3.13 on the NULL comes after it."""
        if NULL_AFTER_CALLABLE:
            self._null_pending = True
        else:
            super().push_null()

    def load_const(self, value: object) -> None:
        """Push a constant; after the callable of a call, also the NULL. Raises Unsupported for what only stands for an object."""
        check_constant(value, self.refused)
        is_callable, self._null_pending = self._null_pending, False
        if isinstance(value, type) and id(value) in self._guarded_classes:
            self.push_null()
            self.load_const(weakref.ref(value))
            self.call(0)
        else:
            super().load_const(value)
        if is_callable:
            super().push_null()

    @contextlib.contextmanager
    def computed_callable(self) -> Iterator[None]:
        """In place of one `load_const`: what is emitted inside may be the callable of a call."""
        pending, self._null_pending = self._null_pending, False
        yield
        if pending:
            self.callable_done()

    def callable_done(self) -> None:
        """Push the NULL of a call whose callable is no constant, after `begin_call` and the callable."""
        if NULL_AFTER_CALLABLE:
            super().push_null()

    def push_null_here(self) -> None:
        """Push a bare NULL."""
        super().push_null()

    def call_constant(self, function: object, items: Iterable[Any], push: Callable[[Any], object]) -> None:
        """Push `function(*items)`. The function is a constant; `push` pushes one item."""
        self.push_null()
        self.load_const(function)
        count = 0
        for item in items:
            push(item)
            count += 1
        self.call(count)

    def load_function(self, code: types.CodeType) -> None:
        """Push a function of `code` with this frame's globals and free variables."""
        self.make_function(code, closure=self.shape.freevars)


def check_constant(value: object, refused: Mapping[int, Any]) -> None:
    """Raise Unsupported for a constant that is, or holds, one of the objects in `refused`, by id: those exist while a frame is compiled."""
    if not refused:
        return
    if id(value) in refused:
        raise Unsupported("reconstruct", "an object of a class that is made in the trace")
    parts = value if isinstance(value, (tuple, frozenset)) else getattr(value, "__args__", ())
    for part in parts if isinstance(parts, (tuple, frozenset)) else ():
        check_constant(part, refused)
    if isinstance(value, types.GenericAlias) or hasattr(value, "__args__"):
        check_constant(getattr(value, "__origin__", None), refused)
