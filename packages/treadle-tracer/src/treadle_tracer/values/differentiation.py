"""Gradients computed by the traced program itself: `torch.autograd.grad`, `loss.backward()`.

The fake tensors of a trace carry autograd's own graph, so its questions are answered there: which leaves a loss depends on, which layouts
gradients have, whether a history has been freed. In the graph both calls are one node of `torch.autograd.grad`, whose operators the backend
writes into the same graph as all others. What `backward` does besides, accumulating into `.grad`, are ordinary calls and writes.

    loss.backward()      ==>      g, h = torch.autograd.grad((loss,), (p, q), allow_unused=True)
                                  p.grad = g                        (was None)
                                  q.grad.add_(h)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from treadle_tracer.errors import Unsupported
from treadle_tracer.source import AttrSource, ConstSource
from treadle_tracer.values.base import NONE, TRUE, Constant, LazyValue
from treadle_tracer.values.histories import history_of, leaves_of
from treadle_tracer.values.sequences import TupleValue
from treadle_tracer.values.tensor import TensorValue
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext

Args = list[Value]
Kwargs = dict[str, Value]


# ---- the calls


def grad(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    """`torch.autograd.grad(outputs, inputs, grad_outputs=None, ...)`"""
    named = _named(_GRAD_PARAMETERS, args, kwargs)
    outputs, inputs = (_tensors(tx, named.get(name, NONE), name) for name in ("outputs", "inputs"))
    _check_settings(tx)
    _check_leaves(tx, outputs, inputs)
    _allow_sizes_of_data(tx, outputs)
    for value in inputs:
        _check_no_hooks(tx, value, "_backward_hooks")
    return tx.run_in_graph("call_function", torch.autograd.grad, [], named)


def backward(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    """`torch.autograd.backward(tensors, grad_tensors=None, ...)`"""
    named = _named(_BACKWARD_PARAMETERS, args, kwargs)
    if named.get("create_graph", NONE).constant() or named.get("grad_variables", NONE) is not NONE:
        raise Unsupported("autograd-call", "backward(create_graph=True)")
    roots = _tensors(tx, named.get("tensors", NONE), "tensors")
    if not all(root.fake.requires_grad for root in roots):
        raise Unsupported("torch-call-raises", "backward: a tensor does not require gradients")
    _check_settings(tx)
    given = named.get("inputs", NONE)
    wanted = None if given is NONE else _tensors(tx, given, "inputs")
    leaves = _check_leaves(tx, roots, wanted or [])
    if wanted is not None:
        leaves = list({id(value): value for value in wanted}.values())
    _check_accumulates(tx, leaves)
    _allow_sizes_of_data(tx, roots)
    if leaves:
        options = {
            name: named[other]
            for name, other in (("grad_outputs", "grad_tensors"), ("retain_graph", "retain_graph"))
            if other in named
        }
        gradients = tx.run_in_graph(
            "call_function",
            torch.autograd.grad,
            [TupleValue(roots), TupleValue(leaves)],
            {**options, "allow_unused": TRUE},
        ).unpack(tx)
        _accumulate(tx, leaves, gradients)
    return NONE


def tensor_backward(tx: TraceContext, owner: TensorValue, args: Args, kwargs: Kwargs) -> Value:
    """`owner.backward(gradient=None, retain_graph=None, create_graph=False, inputs=None)`"""
    named = _named(("gradient", "retain_graph", "create_graph", "inputs"), args, kwargs)
    if "gradient" in named:
        named["grad_tensors"] = named.pop("gradient")
    return backward(tx, [owner], named)


_GRAD_PARAMETERS = (
    "outputs inputs grad_outputs retain_graph create_graph only_inputs allow_unused is_grads_batched materialize_grads"
).split()
_BACKWARD_PARAMETERS = "tensors grad_tensors retain_graph create_graph grad_variables inputs".split()


def _named(parameters: Sequence[str], args: Args, kwargs: Kwargs) -> dict[str, Value]:
    if len(args) > len(parameters) or not kwargs.keys() <= set(parameters[len(args) :]):
        raise Unsupported("autograd-call", "other arguments than the function has")
    return {**dict(zip(parameters, args, strict=False)), **kwargs}


def _tensors(tx: TraceContext, value: Value, what: str) -> list[TensorValue]:
    """The tensors of an argument that is a tensor or a sequence of tensors."""
    value = value.force(tx) if isinstance(value, LazyValue) else value
    items = [value] if isinstance(value, TensorValue) else value.unpack(tx)
    items = [item.force(tx) if isinstance(item, LazyValue) else item for item in items]
    found = [item for item in items if isinstance(item, TensorValue)]
    if not found or len(found) < len(items):
        raise Unsupported("autograd-call", f"{what} are not all tensors")
    return found


# ---- what must hold


def settings_are_plain(_: Any = None) -> bool:
    """Whether nothing but the graph takes part in a backward pass: no anomaly mode, no saved-tensor hooks, no other processes."""
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    is_distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    return hooks is None and not torch.is_anomaly_enabled() and not is_distributed


def _check_settings(tx: TraceContext) -> None:
    if tx.speculation is not None:
        raise Unsupported("autograd-call", "on a path that the program may not take")
    if not settings_are_plain():
        raise Unsupported("autograd-call", "with anomaly mode, saved-tensor hooks, or torch.distributed")
    text = "no anomaly mode, no saved-tensor hooks, no torch.distributed"
    tx.guards.add(ConstSource(None, "autograd's settings"), "call", settings_are_plain, text)


def _check_leaves(tx: TraceContext, outputs: Sequence[TensorValue], inputs: Sequence[TensorValue]) -> list[TensorValue]:
    """The leaves that the outputs depend on. Raises Unsupported where the history goes on outside the graph."""
    leaves: list[TensorValue] = []
    for fake in leaves_of([value.fake for value in outputs]):
        value = tx.tensor_of_fake(fake)
        if value is None:
            raise Unsupported("autograd-call", "a loss depends on a tensor that the trace does not know")
        if value.obj is not None and not value.obj.is_leaf:
            raise Unsupported(
                "autograd-call", f"the history of {value.describe()} begins outside the compiled function"
            )
        leaves.append(value)
    for value in inputs:
        if value.obj is not None and not value.obj.is_leaf:
            raise Unsupported(
                "autograd-call", f"the history of {value.describe()} begins outside the compiled function"
            )
    return leaves


def _allow_sizes_of_data(tx: TraceContext, outputs: Sequence[TensorValue]) -> None:
    """Take sizes that data tell, where gradients have such: a second try, as other operators get it, finds the history freed."""
    if tx.symbols.captures and not tx.symbols.unbacked.allowed:
        if any(map(_selects_by_mask, history_of([value.fake for value in outputs]))):
            tx.symbols.unbacked.allow(tx)


def _selects_by_mask(node: Any) -> bool:
    """Whether the gradient of what was written under a mask, `x[mask] = y`, has as many elements as the mask selects."""
    try:
        indices = getattr(node, "_saved_indices", None) or ()
    except RuntimeError:  # freed: the call says so
        return False
    return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in indices)


def _check_accumulates(tx: TraceContext, leaves: Sequence[TensorValue]) -> None:
    for leaf in leaves:
        _check_no_hooks(tx, leaf, "_backward_hooks")
        _check_no_hooks(tx, leaf, "_post_accumulate_grad_hooks")


def _check_no_hooks(tx: TraceContext, value: TensorValue, name: str) -> None:
    if value.obj is None or value.source is None:
        return  # hooks on tensors of the trace break the graph where they are registered
    hooks = getattr(value.obj, name)
    source = AttrSource(value.source, name)
    if hooks:
        raise Unsupported("autograd-call", f"{value.describe()} has hooks")
    if hooks is None:
        tx.guards.add(source, "is", None)
    else:
        tx.guards.add(source, "len", 0)


# ---- accumulation into `.grad`


def _accumulate(tx: TraceContext, leaves: Sequence[TensorValue], gradients: Sequence[Value]) -> None:
    """What AccumulateGrad does (torch/csrc/autograd/functions/accumulate_grad.h) when no graph of the gradients is made."""
    if any(isinstance(g, TensorValue) and g.fake.layout is not torch.strided for g in gradients):
        raise Unsupported("autograd-call", "a gradient is sparse")
    shared = _shared_storages(tx, gradients)
    for leaf, gradient in zip(leaves, gradients, strict=True):
        if not isinstance(gradient, TensorValue):
            continue  # None: the loss does not depend on the leaf
        present = leaf.get_attr(tx, "grad")
        if isinstance(present, TensorValue):
            if present.fake.requires_grad:
                raise Unsupported("autograd-call", f"{present.describe()} requires gradients itself")
            tx.run_in_graph("call_method", "add_", [present, gradient], {})
            continue
        if gradient.fake.untyped_storage()._cdata in shared or not _obeys_layout(gradient.fake, leaf.fake):
            gradient = _laid_out(tx, gradient, leaf)
        leaf.set_attr(tx, "grad", gradient)


def _shared_storages(tx: TraceContext, gradients: Sequence[Value]) -> set[int]:
    """The storages that a gradient shares with another gradient, or with another tensor of the trace: it is copied, not taken over."""
    own = [id(gradient) for gradient in gradients]
    storages = [g.fake.untyped_storage()._cdata for g in gradients if isinstance(g, TensorValue)]
    others = {value.fake.untyped_storage()._cdata for value in tx.known_tensors() if id(value) not in own}
    return {storage for storage in storages if storage in others or storages.count(storage) > 1}


def _obeys_layout(gradient: torch.Tensor, leaf: torch.Tensor) -> bool:
    """Whether AccumulateGrad takes the gradient over as it is (torch/csrc/autograd/utils/grad_layout_contract.h)."""
    if not torch.ops.aten.is_non_overlapping_and_dense.default(leaf):
        return gradient.is_contiguous()
    triples = zip(leaf.shape, leaf.stride(), gradient.stride(), strict=True)
    return all(mine == theirs for size, mine, theirs in triples if size != 1)


def _laid_out(tx: TraceContext, gradient: TensorValue, leaf: TensorValue) -> TensorValue:
    """A copy of the gradient with the strides of the leaf, or contiguous if the leaf is not dense."""
    if not torch.ops.aten.is_non_overlapping_and_dense.default(leaf.fake):
        options: dict[str, Value] = {"memory_format": Constant(torch.contiguous_format)}
        made = tx.run_in_graph("call_method", "clone", [gradient], options)
    else:
        sizes, strides = (leaf.get_attr(tx, name).call(tx, [], {}) for name in ("size", "stride"))
        empty = tx.run_in_graph("call_method", "new_empty_strided", [gradient, sizes, strides], {})
        made = tx.run_in_graph("call_method", "copy_", [empty, gradient], {})
    assert isinstance(made, TensorValue)
    return made
