"""Activation checkpointing: the calls inside are marked, and the graph's partition recomputes them in backward.

Eager runs the function twice. What it changes of things that were there before, it would change twice, which no graph does. With
`use_reentrant=True` the first run is one without gradients, in a custom function of autograd: where the trace finds otherwise, it breaks.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import fx
from torch.utils.checkpoint import create_selective_checkpoint_contexts, noop_context_fn

from treadle_shapes.torch import is_transforming, operator
from treadle_tracer.errors import Unsupported
from treadle_tracer.values.base import TRUE, Constant, LazyValue
from treadle_tracer.values.call_effects import storages, written_arguments
from treadle_tracer.values.functions import BoundMethod, FunctionValue
from treadle_tracer.values.made_state import MadeState
from treadle_tracer.values.rules.rule import Args, Kwargs
from treadle_tracer.values.sequences import TupleValue
from treadle_tracer.values.tensor import TensorValue
from treadle_tracer.values.value import TraceContext, Value

_OWN = ("use_reentrant", "preserve_rng_state", "context_fn", "determinism_check", "debug", "early_stop")


def checkpoint(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    """`torch.utils.checkpoint.checkpoint(function, *args, use_reentrant=, **kwargs)`"""
    if is_transforming():
        raise Unsupported("function-transform", "checkpoint, whose hooks on saved tensors a transform refuses")
    given = {name: value for name, value in kwargs.items() if name not in _OWN}
    args = [args[0], *[arg.force(tx) if isinstance(arg, LazyValue) else arg for arg in args[1:]]]
    is_reentrant = kwargs.get("use_reentrant")
    if is_reentrant is None or not is_reentrant.is_constant() or is_reentrant.constant() not in (True, False):
        raise Unsupported("checkpoint", "use_reentrant is not given as True or False")
    if "context_fn" in kwargs and not _saves_only(tx, kwargs["context_fn"]):
        raise Unsupported("checkpoint", "context_fn makes contexts of the program's")
    if not is_reentrant.constant():
        return _run(tx, args, given, kwargs)
    if given or not kwargs.keys() <= {"use_reentrant", "preserve_rng_state"}:
        raise Unsupported("checkpoint", f"use_reentrant=True with {', '.join(kwargs)}")
    if not any(isinstance(arg, TensorValue) and arg.fake.requires_grad for arg in args[1:]):
        raise Unsupported("checkpoint", "use_reentrant=True, and no argument requires gradients")
    asked_before, tx.graph.records_anew = tx.graph.records_anew, torch.is_grad_enabled()
    try:
        result = _run(tx, args, given, kwargs)
    finally:
        tx.graph.records_anew = asked_before
    _check_reentrant_result(args[1:], result)
    return result


def _run(tx: TraceContext, args: Args, given: Kwargs, kwargs: Kwargs) -> Value:
    if not torch.is_grad_enabled() or tx.graph.checkpoint is not None:
        return args[0].call(tx, args[1:], given)
    for value in (*args[1:], *given.values()):
        if isinstance(value, TensorValue) and storages(value.fake) & tx.symbols.inference_storages:
            raise Unsupported("torch-call-raises", "checkpoint saves no tensor that was made in inference mode")
    first, before = tx.graph.calls, tx.mutations.writes_outside
    made = MadeState(tx, (*args, *given.values()))
    tx.graph.checkpoint = first
    try:
        result = args[0].call(tx, args[1:], given)
    finally:
        tx.graph.checkpoint = None
    if tx.mutations.writes_outside > before:
        raise Unsupported("checkpoint-writes", f"{args[0].describe()} writes to objects from outside")
    changed = made.changed()
    if changed is not None:
        raise Unsupported("checkpoint-writes", f"{args[0].describe()} changes {changed.describe()}")
    draws_anew = not _is_true(kwargs.get("preserve_rng_state", TRUE))
    for node in tx.graph.nodes:
        if not node.op.startswith("call_") or node.meta.get("checkpoint") != first:
            continue
        if written := _written_outside(node, first):
            raise Unsupported("checkpoint-writes", f"{node.name} writes to {written}")
        record = operator(node.target)
        if draws_anew and record is not None and record.is_random:
            raise Unsupported("checkpoint-writes", f"{node.name} draws other numbers when eager recomputes")
    return result


def _is_true(value: Value) -> bool:
    return value.is_constant() and value.constant() is True


def _written_outside(node: fx.Node, checkpoint: int) -> str:
    """The name of a tensor that the call writes to and that the checkpointed part of the program does not make, "" if there is none."""
    for root in written_arguments(node):
        while (
            (record := operator(root.target)) is not None and (record.is_view or record.writes) and root.all_input_nodes
        ):
            root = root.all_input_nodes[0]
        if not root.op.startswith("call_") or root.meta.get("checkpoint") != checkpoint:
            return root.name
    return ""


def _saves_only(tx: TraceContext, make_contexts: Value) -> bool:
    """Whether the contexts around both runs only choose what is saved, so that nothing else tells of them."""
    value = make_contexts.force(tx) if isinstance(make_contexts, LazyValue) else make_contexts
    if value.python_type() is functools.partial:
        value = value.get_attr(tx, "func")
    if isinstance(value, BoundMethod):
        value = value.function
    function = value.obj if isinstance(value, (FunctionValue, Constant)) else None
    if function is noop_context_fn or function is create_selective_checkpoint_contexts:
        return True
    return isinstance(value, FunctionValue) and create_selective_checkpoint_contexts.__name__ in value.code.co_names


def _check_reentrant_result(given: Sequence[Value], result: Value) -> None:
    """Raise Unsupported for a result of which autograd's custom function makes something else."""
    results = result.items if isinstance(result, TupleValue) and result.cls is tuple else (result,)
    inputs = {memory for arg in given if isinstance(arg, TensorValue) for memory in storages(arg.fake)}
    for item in results:
        if isinstance(item, TensorValue):
            is_number = item.fake.dtype.is_floating_point or item.fake.dtype.is_complex
            if is_number and torch.is_grad_enabled() and not item.fake.requires_grad:
                raise Unsupported("checkpoint", "use_reentrant=True, and a result would not require gradients")
            if storages(item.fake) & inputs:
                raise Unsupported("checkpoint", "use_reentrant=True, and an argument is a result, or shares its memory")
        elif not item.is_constant():
            raise Unsupported("checkpoint", f"use_reentrant=True, and the result is {item.describe()}")


__all__ = ["checkpoint"]
