"""Cells: variables of functions that inner functions use."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

from treadle_tracer.source import CellContentsSource
from treadle_tracer.values.base import LazyValue
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from treadle_tracer.source import Source
    from treadle_tracer.values.value import TraceContext


class CellValue(Value):
    """A cell. `content` is the Value that the trace has stored or read. `cell` is the real cell of an outside one.

    found_empty: the trace has not stored anything in the outside cell, which was empty.
    """

    __slots__ = ("cell", "content", "contents_source", "found_empty")

    def __init__(
        self,
        content: Value | None = None,
        cell: types.CellType | None = None,
        source: Source | None = None,
        contents_source: Source | None = None,
    ):
        self.source = source
        self.content = content
        self.cell = cell
        self.contents_source = contents_source
        self.found_empty = False

    @classmethod
    def outside(cls, cell: types.CellType, source: Source, contents_source: Source | None = None) -> CellValue:
        made = cls(None, cell, source, contents_source or CellContentsSource(source))
        try:
            made.content = LazyValue(cell.cell_contents, made.contents_source)  # type: ignore[arg-type]
        except ValueError:
            made.found_empty = True
        return made

    def python_type(self) -> type:
        return types.CellType

    def load(self, tx: TraceContext) -> Value | None:
        """The contents, realised, or None when the cell is empty."""
        content = self.content
        if content.__class__ is LazyValue:
            content = self.content = content.force(tx)  # type: ignore[union-attr]
        if content is None and self.found_empty:
            assert self.source is not None
            tx.guards.add(self.source, "call", _is_empty, "the cell is empty")
        return content

    def store(self, tx: TraceContext, value: Value | None) -> None:
        self.content = value
        self.found_empty = False
        if self.cell is not None:
            tx.mutations.store_cell(self, value if value is not None else tx.deleted)

    def get_attr(self, tx: TraceContext, name: str) -> Value:
        if name == "cell_contents":
            content = self.load(tx)
            return content if content is not None else tx.raise_exception(ValueError, "Cell is empty")
        return super().get_attr(tx, name)

    def set_attr(self, tx: TraceContext, name: str, value: Value) -> None:
        self.store(tx, value)

    def reconstruct(self, cg: Any) -> None:
        if self.source is not None:
            self.source.emit(cg.cb)
            return
        cg.call_const(types.CellType)
        cg.register(self)
        self.fill(cg)

    def fill(self, cg: Any) -> None:
        """Emit code that stores the contents in the cell, which exists."""
        if self.content is not None:
            cg.call_const(_fill_cell, self, self.content)
            cg.cb.pop_top()


def _is_empty(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return True
    return False


def _fill_cell(cell: types.CellType, contents: Any) -> None:
    cell.cell_contents = contents


def wrap_cell(
    tx: TraceContext, cell: types.CellType, source: Source, contents_source: Source | None = None
) -> CellValue:
    """The Value of an outside cell, one for each cell."""
    cached = tx.wrapped.get(id(cell))
    if cached is None:
        value = CellValue.outside(cell, source, contents_source)
        tx.wrapped[id(cell)] = (cell, value)
        return value
    assert isinstance(cached[1], CellValue)
    if cached[1].source is not None and cached[1].source != source:
        tx.guards.add(source, "same_object", cached[1].source)
    return cached[1]


__all__ = ["CellValue", "wrap_cell"]
