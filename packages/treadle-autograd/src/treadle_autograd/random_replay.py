"""Draw in backward what forward has drawn, from the state that the generator had then.

    forward    %s = treadle.generator_state(cpu)            backward   %s : placeholder
               %r = aten.bernoulli.p(%x, 0.9)                          %r = treadle.replay_bernoulli.p(%s, %x, 0.9)

The joint graph holds the reads of states; the forward graph those of them that backward needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

from treadle_shapes.torch import GENERATOR_STATE_BYTES, generator_state, operator, replay_of
from treadle_shapes.torch import why_not_replay as why_no_operator

from .effects import is_random
from .graph_nodes import copy_node
from .node_sizes import bytes_of_tensor


def why_not_replay(node: fx.Node) -> str | None:
    """Why backward cannot draw again what the node has drawn, or why that would save no memory."""
    value = node.meta.get("val")
    tensors = [v for v in (value if isinstance(value, (tuple, list)) else (value,)) if isinstance(v, torch.Tensor)]
    target: Any = node.target
    reason = why_no_operator(target)
    if reason is not None:
        return reason
    if node.kwargs.get("generator") is not None or any(isinstance(value, torch.Generator) for value in node.args):
        return "it draws from a generator of the program's own"
    if node.meta.get("of_backward"):
        return "backward draws it"
    devices = {tensor.device.type for tensor in tensors}
    if len(devices) != 1 or not devices <= GENERATOR_STATE_BYTES.keys():
        return "the state of its generator is unknown"
    if _bytes_saved(target, tensors) <= GENERATOR_STATE_BYTES[devices.pop()]:
        return "its numbers take less memory than the generator's state"
    return None


def _bytes_saved(target: Any, tensors: Sequence[torch.Tensor]) -> int:
    """What saving the results of a random operator takes: of zeros and ones a byte each."""
    record = operator(target)
    saved = sum(map(bytes_of_tensor, tensors))
    return saved // tensors[0].dtype.itemsize if record is not None and record.is_zero_or_one else saved


def note_states(graph: fx.Graph, mode: FakeTensorMode) -> dict[fx.Node, fx.Node]:
    """Put a read of the generator's state in front of every node that can be replayed. Returns the reads by node."""
    found: dict[fx.Node, fx.Node] = {}
    for node in filter(is_random, list(graph.nodes)):
        if why_not_replay(node) is not None:
            continue
        value: Any = node.meta["val"]
        device = (value[0] if isinstance(value, (tuple, list)) else value).device
        with graph.inserting_before(node):
            state = graph.call_function(generator_state(), (device,))
        with mode:
            state.meta["val"] = torch.empty(GENERATOR_STATE_BYTES[device.type], dtype=torch.uint8, device="cpu")
        state.meta["stack_trace"] = node.meta.get("stack_trace")
        found[node] = state
    return found


def replay(graph: fx.Graph, node: fx.Node, state: fx.Node, copies: dict[fx.Node, fx.Node]) -> fx.Node:
    """Append to `graph` the node that draws again what `node`, of another graph, has drawn from `state`, a node of `graph`."""
    made = copy_node(graph, node, copies.__getitem__)
    made.target, made.args = replay_of(made.target), (state, *made.args)  # type: ignore[arg-type]
    return made
