"""What a traced graph may write to behind one of its calls.

    def f(part):
        t = part.t()            # older than the change of `part`, whose memory it has
        part.mul_(3)
        return t.sin(), part.cos()

In eager `part` is a view of the caller's tensor, and so is `t`. Both get new nodes in autograd's graph when the memory changes, which
lead to the caller's tensor: `t` does not come from `part` any more. In a trace, where `part` is a tensor of its own, it does.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import fx
from torch.types import py_sym_types

from treadle_shapes.torch import operator

from .contract import Contract, StaticInput
from .recorder import storage_key


def with_older_views(contract: Contract, gm: fx.GraphModule) -> Contract:
    """The contract that tells whether views of inputs are older than their last changes (`Mutation.has_older_views`)."""
    if not any(mutation.has_history for mutation in contract.mutations):
        return contract
    placeholders = gm.graph.find_nodes(op="placeholder")
    mutations = []
    for mutation in contract.mutations:
        described = contract.inputs[mutation.input]
        node = None if isinstance(described, StaticInput) else placeholders[described.index]
        older = mutation.has_history and (node is None or _has_older_views(node))
        mutations.append(replace(mutation, has_older_views=older))
    return replace(contract, mutations=tuple(mutations))


def _has_older_views(placeholder: fx.Node) -> bool:
    """Whether something reads a view of the input behind a call that may write to it and is younger than the view.

    What only writes to such a view does not count: its gradients go on to the caller's tensor in any case."""
    value = placeholder.meta.get("example_value")
    if not isinstance(value, torch.Tensor):
        return True
    key = storage_key(value)
    made: dict[int, int] = {}  # what a call has returned -> the number of writes before
    n_writes = 0
    node = placeholder.next
    while node.op != "root":
        writes = node.op.startswith("call_") and _may_write(node, key)
        for used in node.all_input_nodes:
            own = used.meta.get("example_value")
            is_target = writes and bool(node.args) and used is node.args[0] and node.args.count(used) == 1
            if own is not value and not is_target and made.get(id(own), n_writes) < n_writes:
                return True
        n_writes += writes
        found = node.meta.get("example_value")
        if node.op.startswith("call_") and _may_have_storage(node, key):
            made.setdefault(id(found), n_writes)
        node = node.next
    return False


def next_write(node: fx.Node) -> str | None:
    """The name of a call behind `node` that may write to the memory of its result; its own where nobody has traced what it gives."""
    value = node.meta.get("example_value")
    if not isinstance(value, torch.Tensor):
        return node.name
    key = storage_key(value)
    later = node.next
    while later.op.startswith("call_"):
        if _may_write(later, key):
            return later.name
        later = later.next
    return None


def _may_write(call: fx.Node, key: int) -> bool:
    """Whether a call may write to memory."""
    record = operator(call.target)
    is_known = record is not None and not (record.writes or record.hides_writes) and "out" not in call.kwargs
    return not is_known and any(_may_have_storage(used, key) for used in call.all_input_nodes)


def _may_have_storage(node: fx.Node, key: int) -> bool:
    value = node.meta.get("example_value")
    if isinstance(value, torch.Tensor) and value.layout is torch.strided:
        return storage_key(value) == key
    return not isinstance(value, (torch.Tensor, *py_sym_types, int, float, str))


__all__ = ["next_write", "with_older_views"]
