"""ATen graphs for tests without the autograd package: a dispatch mode that records what a function does to fake tensors."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map


class _Recorder(TorchDispatchMode):
    def __init__(self, decompositions: dict[Any, Callable[..., Any]]) -> None:
        super().__init__()
        self.graph = torch.fx.Graph()
        self.nodes: dict[int, torch.fx.Node] = {}
        self.alive: list[Any] = []
        self.constants: dict[str, torch.Tensor] = {}
        self.decompositions = decompositions
        self.adapter: Any = None  # the face of a ShapeEnv, for graphs with numbers known only at run time
        self.asserted = 0

    def bind(self, tensor: torch.Tensor, node: torch.fx.Node) -> None:
        self.nodes[id(tensor)] = node
        self.alive.append(tensor)
        node.meta["val"] = tensor

    def node_of(self, value: Any) -> Any:
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return self.number(value)
        if not isinstance(value, torch.Tensor):
            return value
        return self.nodes[id(value)]

    def number(self, value: Any) -> torch.fx.Node:
        """A node for a symbolic number: its `val` alone says what it is."""
        node = self.graph.call_function(operator.pos, (0,))
        node.meta["val"] = value
        return node

    def assert_what_was_learnt(self) -> None:
        """Nodes for the runtime assertions since the last call, as a tracer would put them."""
        if self.adapter is None:
            return
        for condition, message, _ in self.adapter.env.runtime_asserts[self.asserted :]:
            node = self.number(self.adapter.wrap(condition))
            self.graph.call_function(torch.ops.aten._assert_scalar.default, (node, message))
        self.asserted = len(self.adapter.env.runtime_asserts)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in self.decompositions:
            with self:
                result = self.decompositions[func](*args, **kwargs)
            if result is not NotImplemented:
                return result
        if func.namespace == "aten" and torch.Tag.core not in func.tags and func._can_decompose():
            with self:
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        self.assert_what_was_learnt()
        result = func(*args, **kwargs)
        if func.namespace != "aten" and not any(
            isinstance(r, torch.Tensor) for r in tree_leaves(result)
        ):  # prim.device
            return result
        node = self.graph.call_function(func, tree_map(self.node_of, tuple(args)), tree_map(self.node_of, kwargs))
        node.meta["val"] = result
        if isinstance(result, (tuple, list)):
            for k, r in enumerate(result):
                if isinstance(r, torch.Tensor):
                    self.bind(r, self.graph.call_function(operator.getitem, (node, k)))
        elif isinstance(result, torch.Tensor):
            self.bind(result, node)
        return result


def capture(
    fn: Callable[..., Any],
    inputs: Sequence[torch.Tensor],
    static: Sequence[int] = (),
    decompositions: dict[Any, Callable[..., Any]] | None = None,
    mode: FakeTensorMode | None = None,
) -> torch.fx.GraphModule:
    """The ATen graph of `fn(*inputs)`; `static` are the positions of inputs that stand for parameters.

    With `mode` the inputs are fake tensors of it already.
    """
    recorder = _Recorder(decompositions or {})
    recorder.adapter = None if mode is None else mode.shape_env
    given = mode is not None
    with mode or FakeTensorMode(allow_non_fake_inputs=True) as mode, torch.no_grad():
        fakes = [mode.from_tensor(x) if isinstance(x, torch.Tensor) and not given else x for x in inputs]
        for k, fake in enumerate(fakes):
            if isinstance(fake, torch.Tensor):
                node = recorder.graph.placeholder(f"arg{k}")
                recorder.bind(fake, node)
                if k in static:
                    node.meta["static_input"] = True
        with recorder:
            result = fn(*fakes)
    recorder.assert_what_was_learnt()
    leaves = [r for r in tree_leaves(result)]
    recorder.graph.output(tuple(recorder.node_of(r) for r in leaves))
    return torch.fx.GraphModule(torch.nn.Module(), recorder.graph)
