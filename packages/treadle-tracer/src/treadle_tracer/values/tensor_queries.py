"""Questions about tensors whose answers are constants of a trace: what an answer follows from is guarded, or the graph breaks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from treadle_shapes.torch import is_transforming, operator
from treadle_tracer.errors import Unsupported
from treadle_tracer.guard_callables import GuardCallable
from treadle_tracer.values.call_effects import storages

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext, Value


class _AnswerIs(GuardCallable):
    """The tensor's method gives the recorded answer."""

    __slots__ = ("answer",)

    def __init__(self, name: str, answer: Any):
        super().__init__(name)
        self.answer = answer

    def __call__(self, value: Any) -> bool:
        return getattr(torch.Tensor, self.question)(value) == self.answer


def answer_of_object(tx: TraceContext, owner: Any, name: str) -> Any:
    """The answer of an outside tensor to a question without arguments about the object, guarded; None for every other question."""
    record = operator(name)
    if record is None or not record.asks_about_object or owner.obj is None or owner.source is None:
        return None
    return answer_of(tx, owner, name)


def answer_of(tx: TraceContext, owner: Any, name: str) -> Any:
    """The answer of an outside tensor to a question without arguments, guarded."""
    answer = getattr(torch.Tensor, name)(owner.obj)
    tx.guards.add(owner.source, "call", _AnswerIs(name, answer), f"{owner.source.text}.{name}() is {answer!r}")
    return answer


def storage_offset(tx: TraceContext, owner: Any) -> Any:
    """The offset of a tensor in its memory; of an outside tensor, and of views of one, only where that begins at 0, which is guarded.

    None where it is not known.
    """
    memory = storages(owner.fake)
    if not memory or is_transforming() or owner.data is not None:
        return None
    for known in tx.known_tensors():
        if known.source is not None and known.obj is not None and storages(known.fake) & memory:
            if known.data is not None or answer_of(tx, known, "storage_offset") != 0:
                return None
    return owner.fake.storage_offset()


def refuse_unguarded(target: Any, args: list[Value], kwargs: dict[str, Value]) -> None:
    """A call of `target` has given a constant for fake tensors. Raises Unsupported where it tells something that nothing guards.

    Most answers follow from type, dtype, sizes, strides, device, layout and requires_grad, which are guarded.
    """
    record = operator(target)
    if record is None or not (record.has_unguarded_answer or record.asks_about_object):
        return
    tensors = [arg for arg in (*args, *kwargs.values()) if issubclass(arg.python_type(), torch.Tensor)]
    if tensors:
        raise Unsupported("tensor-attribute", f"{record.family} of {tensors[0].describe()}")


def is_leaf(tx: TraceContext, value: Any) -> bool:
    """Whether a tensor is a leaf of autograd's graph; of an outside tensor that requires gradients it is guarded."""
    if value.obj is not None and value.source is not None and value.obj.requires_grad:
        leaf = value.obj.is_leaf
        tx.guards.add(value.source, "call", _LEAF[leaf], f"{value.source.text}.is_leaf is {leaf}")
        return leaf and value.fake.is_leaf
    return value.fake.is_leaf


def _is_leaf(value: Any) -> bool:
    return value.is_leaf


def _is_no_leaf(value: Any) -> bool:
    return not value.is_leaf


_LEAF = {True: _is_leaf, False: _is_no_leaf}
