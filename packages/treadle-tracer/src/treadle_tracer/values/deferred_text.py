"""Texts with parts that only the call itself knows: `f"loss {loss.item():.3f}"`, `str(tensor)`, `"%d rows" % n`.

A text is a sequence of strings and parts. A part is a function of Python that makes a string, and the values that it is called with after
the graph. Values are snapshots: what the program changes later does not show in them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from treadle_tracer.by_identity import is_one_of
from treadle_tracer.computed_source import ComputedSource, OnPlainValues
from treadle_tracer.errors import Unsupported
from treadle_tracer.source import Source
from treadle_tracer.values.base import ConcreteValue, Constant, LazyValue, Method
from treadle_tracer.values.mappings import DictValue
from treadle_tracer.values.sequences import ListValue, Sequence, TupleValue
from treadle_tracer.values.tensor import SymbolicValue, TensorValue
from treadle_tracer.values.unbacked import is_unbacked
from treadle_tracer.values.value import NotConstant, Value
from treadle_tracer.values.varying import KINDS, VaryingKind, hint_of, operand_of, varies
from treadle_tracer.values.varying_text import OpenText, VaryingText

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext


class Part(NamedTuple):
    """`function(*values)` is a string."""

    function: Callable[..., str]
    values: tuple[Value, ...]


Parts = tuple[str | Part, ...]


class DeferredText(Value):
    """A string of which some parts are known only when the graph has run."""

    __slots__ = ("parts",)

    def __init__(self, parts: Parts):
        self.source = None
        self.parts = parts

    def python_type(self) -> type:
        return str

    def describe(self) -> str:
        return "a text of numbers or tensors that the graph computes"

    def hash_key(self, tx: TraceContext) -> Any:
        raise Unsupported("format", self.describe())

    def truth(self, tx: TraceContext) -> bool:
        if any(isinstance(part, str) for part in self.parts):
            return True
        raise Unsupported("format", self.describe())

    def get_attr(self, tx: TraceContext, name: str) -> Value:
        if not hasattr(str, name):
            tx.raise_exception(AttributeError, f"'str' object has no attribute {name!r}")
        return Method(self, name, getattr(str, name))

    def builtin_method(self, tx: TraceContext, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        raise Unsupported("format", self.describe())

    def reconstruct(self, cg: Any) -> None:
        _emit(self.parts, cg)


class UnmadeText(DeferredText):
    """A text that names what a tensor's history begins with, which only Python can make. It may be the message of a check, which nobody
    reads. made_at: the instruction of the root frame that made it."""

    __slots__ = ("made_at",)

    def __init__(self, parts: Parts, made_at: int):
        super().__init__(parts)
        self.made_at = made_at

    def describe(self) -> str:
        return "the text of a tensor that requires gradients"

    def reconstruct(self, cg: Any) -> None:
        raise Unsupported("reconstruct", self.describe(), (), self.made_at)


class SymbolicText(OpenText):
    """A string with dynamic numbers, or strings that vary, in it. Reading `obj` makes them constants, and so guards them."""

    __slots__ = ("_tx", "parts")

    def __init__(self, tx: TraceContext, parts: Parts):
        self.source = None
        self.parts = parts
        self._tx = tx

    @property
    def obj(self) -> str:  # type: ignore[override]
        return self.text_with(partial(_specialised, self._tx))

    def text_with(self, plain: Callable[[Value], Any]) -> str:
        """The string, its values as `plain` gives them."""
        return "".join(
            part if isinstance(part, str) else part.function(*map(plain, part.values)) for part in self.parts
        )

    def identity(self) -> Any:
        return self

    def describe(self) -> str:
        return "a text of dynamic numbers"

    def reconstruct(self, cg: Any) -> None:
        _emit(self.parts, cg)


def _place_of_text(tx: TraceContext, text: SymbolicText) -> Source | None:
    values = [value for part in text.parts if isinstance(part, Part) for value in part.values]
    try:
        operands = tuple([operand_of(tx, value) for value in values])
    except NotConstant:
        return None
    if any(varies(value) and not isinstance(place, Source) for value, place in zip(values, operands, strict=True)):
        return None
    return ComputedSource(OnPlainValues(_Render(text.parts)), operands, partial(_written, text.parts))


def _written(parts: Parts, *texts: str) -> str:
    """The text as an f-string of what its values are called."""
    named = iter(texts)
    holes = ["".join(f"{{{next(named)}}}" for _ in part.values) if isinstance(part, Part) else part for part in parts]
    return f"f{''.join(holes)!r}"


def _hint_of_text(tx: TraceContext, text: SymbolicText) -> str:
    return text.text_with(lambda value: hint_of(tx, value) if varies(value) else value.constant())


KINDS[SymbolicText] = VaryingKind(_place_of_text, _hint_of_text)


def _specialised(tx: TraceContext, value: Value) -> Any:
    if isinstance(value, SymbolicValue):
        return tx.specialise(value)
    if isinstance(value, Sequence):
        items = [_specialised(tx, item) for item in value.items]
        return items if value.cls is list else value.cls(items)
    return value.constant()


class _Render:
    """Run-time helper of replacement code: the text of the values of all parts, in order."""

    def __init__(self, parts: Parts):
        self.parts = [part if isinstance(part, str) else (part.function, len(part.values)) for part in parts]

    def __call__(self, *values: Any) -> str:
        texts, at = [], 0
        for part in self.parts:
            if isinstance(part, str):
                texts.append(part)
                continue
            function, count = part
            texts.append(function(*values[at : at + count]))
            at += count
        return "".join(texts)


def _emit(parts: Parts, cg: Any) -> None:
    values = [value for part in parts if isinstance(part, Part) for value in part.values]
    cg.call_const(_Render(parts), *values)


# ---- making texts


def text_of(tx: TraceContext, function: Callable[..., str], *values: Value) -> Value:
    """The string `function(*values)`. Raises Unsupported for a value whose text cannot be made after the graph, or may raise there."""
    copies = []
    for value in values:
        copy = value if has_history(value) else snapshot(tx, value)
        if copy is None:
            raise Unsupported("format", value.describe())
        copies.append(copy)
    try:
        function(*map(_sample, copies))
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RuntimeError, NotConstant) as error:
        raise Unsupported("format", f"{error}") from None
    return joined_text(tx, [Part(function, tuple(copies))])


def _sample(value: Value) -> Any:
    """A Python object of the kind that the value will be."""
    if is_open_text(value):
        return "text"
    if isinstance(value, SymbolicValue):
        return value.python_type()(1)
    if isinstance(value, TensorValue):
        few = [min(size, 2) if isinstance(size, int) else 2 for size in value.fake.shape]
        return torch.ones(few, dtype=value.fake.dtype, device="cpu")
    if isinstance(value, Sequence):
        items = [_sample(item) for item in value.items]
        return items if value.cls is list else value.cls(items)
    if isinstance(value, DictValue):
        return {key.constant(): _sample(item) for key, item in value.entries.values()}
    return value.constant()


def joined_text(tx: TraceContext, pieces: Iterable[str | Part | Value]) -> Value:
    """All pieces one after the other. Raises NotConstant for a Value that is no string."""
    parts: list[str | Part] = []
    for piece in pieces:
        for part in _parts_of(piece):
            if isinstance(part, str) and parts and isinstance(parts[-1], str):
                parts[-1] += part
            elif part != "":
                parts.append(part)
    if all(isinstance(part, str) for part in parts):
        return Constant("".join(parts))  # type: ignore[arg-type]
    values = [value for part in parts if isinstance(part, Part) for value in part.values]
    if all(_is_known_by_guards(tx, value) for value in values):
        return SymbolicText(tx, tuple(parts))
    if any(map(has_history, values)):
        return UnmadeText(tuple(parts), tx.frames[0].at)
    return DeferredText(tuple(parts))


def _parts_of(piece: str | Part | Value) -> Parts:
    if isinstance(piece, (DeferredText, SymbolicText)):
        return piece.parts
    if isinstance(piece, VaryingText):
        return (Part(str, (piece,)),)
    if isinstance(piece, Value):
        text = piece.constant()
        if not isinstance(text, str):
            raise NotConstant(piece)
        return (text,)
    return (piece,)


def _is_known_by_guards(tx: TraceContext, value: Value) -> bool:
    if isinstance(value, Sequence):
        return all(_is_known_by_guards(tx, item) for item in value.items)
    if isinstance(value, SymbolicValue):
        return not is_unbacked(tx, value)
    return isinstance(value, ConcreteValue)


def is_open_text(value: Value) -> bool:
    """Whether the value is a string that is not known yet."""
    return isinstance(value, (DeferredText, OpenText))


# ---- snapshots


def snapshot(tx: TraceContext, value: Value) -> Value | None:
    """A value with the text that `value` has now, whatever the program does later; None if there is none."""
    if isinstance(value, LazyValue):
        value = value.force(tx)
    if isinstance(value, UnmadeText):
        return None
    if isinstance(value, (ConcreteValue, SymbolicValue, DeferredText)):
        return value
    if isinstance(value, TensorValue):
        tx.modes.refuse("the text of a tensor")
        return _copied_tensor(tx, value)
    if isinstance(value, Sequence) and is_one_of(value.cls, (list, tuple, torch.Size)):
        return _copied_sequence(tx, value)
    if isinstance(value, DictValue) and value.cls is dict:
        return _copied_dict(tx, value)
    return None


def has_history(value: Value) -> bool:
    """Whether it is a plain tensor whose text names what it was made by, which that of a copy cannot."""
    return isinstance(value, TensorValue) and value.fake.requires_grad and value.python_type() is torch.Tensor


def _copied_tensor(tx: TraceContext, value: TensorValue) -> Value | None:
    """The text of a tensor with a history names it, which that of a copy cannot."""
    if value.fake.requires_grad or value.python_type() is not torch.Tensor or tx.mutations.attrs_of(value):
        return None
    return tx.run_in_graph("call_method", "clone", [value], {})


def _copied_sequence(tx: TraceContext, value: Sequence) -> Value | None:
    items = [snapshot(tx, item) for item in value.items]
    if any(item is None for item in items):
        return None
    return ListValue(items) if value.cls is list else TupleValue(items, value.cls)


def _copied_dict(tx: TraceContext, value: DictValue) -> Value | None:
    made = DictValue({}, dict)
    for key, item in value.items(tx):
        copied_key, copied = snapshot(tx, key), snapshot(tx, item)
        if copied is None or not isinstance(copied_key, Constant):
            return None
        made.set_item(tx, copied_key, copied)
    return made
