"""Calls of torch that raise for the metadata of their arguments, where the program may catch what they raise.

    try:
        y = x @ other
    except RuntimeError as error:           # PyTorch's own message, which fake kernels word differently
        y = x @ other.mT

The call is made on real tensors with the metadata of the arguments, for two sets of elements. It has raised on fake tensors, too, which
have no elements; so the metadata decide, and guards hold them.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from treadle_shapes.torch import Kind, Raises, is_transforming
from treadle_shapes.torch import operator as operator_record
from treadle_tracer.by_identity import is_one_of
from treadle_tracer.errors import Unsupported
from treadle_tracer.made_calls import is_plain
from treadle_tracer.values.call_effects import is_in_place

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext

_MOST_BYTES = 1 << 24  # of the tensors that are made for one call
_ERRORS = (RuntimeError, TypeError, ValueError, IndexError)
_PLAIN = (bool, int, float, complex, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)
_ITEM = (operator.getitem, "__getitem__")
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def caught_error(
    tx: TraceContext, refusal: Unsupported, op: str, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Exception | None:
    """What eager raises for a call that raises on fake tensors, if the program may catch it; None also where it is not known for certain.

    args, kwargs: the arguments, with fake tensors.
    """
    if refusal.code != "torch-call-raises" or not tx.is_protected() or not tx.runs_forward or tx.speculation:
        return None
    if is_transforming() or why_not_ask(target, args, kwargs) is not None:
        return None
    first, second = (_raised(op, target, args, kwargs, filling) for filling in (0, 1))
    if first is None or second is None or type(first) is not type(second) or first.args != second.args:
        return None
    has_stack = "Exception raised from" in str(first)  # TORCH_SHOW_CPP_STACKTRACES
    return first if is_one_of(type(first), _ERRORS) and not has_stack else None


def why_not_ask(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    """Why it does not help to make the call on real tensors, or None."""
    record = operator_record(target)
    leaves = pytree.tree_leaves((args, kwargs))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    is_item = target in _ITEM and len(tensors) == 1  # no tensor is an index
    if not is_item and (record is None or not record.is_pure or record.is_random or record.hides_writes):
        return "what it does besides computing is not known"
    if record is not None and (record.raises is Raises.BY_VALUE or record.kind is Kind.LINALG):
        return "the elements may decide what it raises"
    if (record is not None and record.writes) or kwargs.get("out") is not None or is_in_place(target, args, kwargs):
        return "it writes to an argument"
    if not all(is_one_of(type(leaf), _PLAIN) or isinstance(leaf, torch.Tensor) for leaf in leaves):
        return "an argument is neither a tensor nor a plain constant"
    if not all(map(_has_fixed_layout, tensors)):
        return "a tensor of another kind, or of a size that changes"
    return None if sum(tensor.untyped_storage().nbytes() for tensor in tensors) <= _MOST_BYTES else "large tensors"


def _has_fixed_layout(fake: torch.Tensor) -> bool:
    if not is_plain(fake) or fake.is_conj() or fake.is_neg() or fake.is_quantized or fake.is_inference():
        return False
    return all(type(number) is int for number in (*fake.shape, *fake.stride(), fake.storage_offset()))


def _raised(op: str, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], filling: int) -> Exception | None:
    """What the call raises on real tensors, or None."""
    leaves, structure = pytree.tree_flatten((list(args), dict(kwargs)))
    made: dict[int, torch.Tensor] = {}
    given, named = pytree.tree_unflatten([_real(leaf, made, filling) for leaf in leaves], structure)
    try:
        if op == "call_method":
            getattr(given[0], target)(*given[1:], **named)
        else:
            target(*given, **named)
    except Exception as error:
        return error.with_traceback(None)
    return None


def _real(leaf: Any, made: dict[int, torch.Tensor], filling: int) -> Any:
    """A real tensor with the metadata of a fake one, the same for each mention of it; anything else as it is."""
    if not isinstance(leaf, torch.Tensor):
        return leaf
    if id(leaf) not in made:
        elements = leaf.untyped_storage().nbytes() // leaf.itemsize
        memory = torch.full((elements,), filling, dtype=leaf.dtype, device="cpu")
        if is_one_of(leaf.dtype, _FLOATS):  # no zeros, and no two rows alike
            memory.uniform_(0.25, 0.75, generator=torch.Generator().manual_seed(filling))
        tensor = memory.as_strided(leaf.shape, leaf.stride(), leaf.storage_offset())
        made[id(leaf)] = tensor.requires_grad_(leaf.requires_grad)
    return made[id(leaf)]
