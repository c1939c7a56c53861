"""`cond` and `while_loop` over values of tensors: their bodies become graphs, the call one node."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.utils._pytree as pytree
from torch import fx

from treadle_shapes.torch import is_transforming
from treadle_shapes.torch import operator as operator_record
from treadle_tracer.errors import Unsupported
from treadle_tracer.source import ConstSource
from treadle_tracer.values import control_flow, torch_calls
from treadle_tracer.values.base import LazyValue
from treadle_tracer.values.control_flow_node import ControlFlow, FlowBody
from treadle_tracer.values.functions import FunctionValue
from treadle_tracer.values.known_elements import known_number
from treadle_tracer.values.rules.function_transforms import tree_of, value_of_tree
from treadle_tracer.values.rules.rule import Effect, Rule
from treadle_tracer.values.tensor import TensorValue
from treadle_tracer.values.value import Raised, Value

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext


def _cond(tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
    given = dict(zip(("pred", "true_fn", "false_fn", "operands"), args, strict=False)) | kwargs
    pred = given.get("pred")
    pred = pred.force(tx) if isinstance(pred, LazyValue) else pred
    is_open = isinstance(pred, TensorValue) and known_number(tx, pred.known_node) is None
    if not is_open or len(given) < 3 or _is_plain_code(tx):
        return _inline(tx, control_flow.cond, args, kwargs)
    assert isinstance(pred, TensorValue)
    if pred.fake.numel() != 1:
        return _inline(tx, control_flow.cond, args, kwargs)
    operands = given["operands"].unpack(tx) if "operands" in given else []
    call = _Call(tx, "cond", operands)
    spec, fakes = call.trace(given["true_fn"])
    other_spec, others = call.trace(given["false_fn"])
    if spec != other_spec or not all(map(_alike, fakes, others)):
        raise Unsupported("branch-on-tensor", "torch.cond of branches with other results")
    return call.node([pred, *call.leaves], spec, fakes)


def _while_loop(tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
    given = dict(zip(("cond_fn", "body_fn", "carried_inputs"), args, strict=False)) | kwargs
    carried = given["carried_inputs"].unpack(tx) if len(given) == 3 else []
    leaves = pytree.tree_leaves([tree_of(tx, value) for value in carried])
    if not leaves or not all(isinstance(leaf, TensorValue) for leaf in leaves) or _is_plain_code(tx):
        return _inline(tx, control_flow.while_loop, args, kwargs)
    call = _Call(tx, "while_loop", carried)
    _, tests = call.trace(given["cond_fn"])
    spec, fakes = call.trace(given["body_fn"])
    if len(tests) != 1 or tests[0].numel() != 1 or spec.num_leaves != len(call.leaves):
        raise Unsupported("branch-on-tensor", "while_loop with other results than it carries")
    if not all(_alike(leaf.fake, fake) for leaf, fake in zip(call.leaves, fakes, strict=True)):
        raise Unsupported("branch-on-tensor", "while_loop with other results than it carries")
    return call.node(call.leaves, spec, fakes)


def _is_plain_code(tx: TraceContext) -> bool:
    """Whether the operator's Python code is traced as it is."""
    return is_transforming() or tx.speculation is not None


def _inline(tx: TraceContext, function: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return tx.inline(FunctionValue.outside(tx, function, ConstSource(function)), args, kwargs)


def _alike(a: torch.Tensor, b: torch.Tensor) -> bool:
    same = (a.dtype, a.device, a.requires_grad, a.dim()) == (b.dtype, b.device, b.requires_grad, b.dim())
    return same and all(type(m) is type(n) and str(m) == str(n) for m, n in zip(a.shape, b.shape, strict=True))


class _Call:
    """The bodies of one operator. operands: what each of them is called with."""

    def __init__(self, tx: TraceContext, name: str, operands: Sequence[Value]):
        self.tx, self.name = tx, name
        self.leaves, self.spec = pytree.tree_flatten([tree_of(tx, value) for value in operands])
        self.lifted: list[fx.Node] = []
        self.bodies: list[FlowBody] = []

    def trace(self, function: Value) -> tuple[pytree.TreeSpec, list[torch.Tensor]]:
        """Trace a call of the function, and take it out of the graph. The structure of its result, and its leaves."""
        tx, before = self.tx, self.tx.graph.last()
        given: list[fx.Node | None] = []
        arguments = [self.argument(leaf, given) for leaf in self.leaves]
        values = [value_of_tree(item, lambda leaf: leaf) for item in pytree.tree_unflatten(arguments, self.spec)]
        with tx.as_transformed():
            try:
                result = function.call(tx, values, {})
            except Raised as raised:
                cls = raised.value.python_type().__name__
                raise Unsupported("branch-on-tensor", f"a body of {self.name} raises {cls}") from None
            leaves, spec = pytree.tree_flatten(tree_of(tx, result))
        if not all(isinstance(leaf, TensorValue) for leaf in leaves):
            raise Unsupported("branch-on-tensor", f"a body of {self.name} returns what is no tensor")
        results = [leaf.node(tx) for leaf in leaves]
        why_not = tx.graph.why_not_move(before)
        if why_not is not None:
            raise Unsupported("branch-on-tensor", f"a body of {self.name} {why_not}")
        graph, others, removed = tx.graph.take_out(before, given, results)
        if any(leaf.fake.requires_grad for leaf in leaves) and any(map(_is_random, graph.graph.nodes)):
            raise Unsupported("branch-on-tensor", f"gradients of random numbers in a body of {self.name}")
        tx.symbols.forget_nodes(removed)
        fakes = [leaf.fake for leaf in leaves]
        tx.forget_tensors(removed)
        self.lifted += [node for node in others if node not in self.lifted]
        self.bodies.append(FlowBody(graph, tuple(self.lifted.index(node) for node in others)))
        return spec, fakes

    def argument(self, leaf: Value, given: list[fx.Node | None]) -> Value:
        """What a body is called with in place of a leaf: a view of it with a stand-in as node."""
        given.append(None)
        if not isinstance(leaf, TensorValue):
            return leaf
        fake = torch_calls.run_fake(self.tx, "call_method", "view_as", [leaf.fake, leaf.fake], {})
        given[-1] = node = self.tx.graph.stand_in(f"operand_{len(given)}", fake)
        return self.tx.new_tensor(node, fake)  # type: ignore[no-any-return]

    def node(self, leaves: Sequence[Value], spec: pytree.TreeSpec, fakes: Sequence[torch.Tensor]) -> Value:
        """Make the node, and the Value of its result."""
        tx = self.tx
        target = ControlFlow(self.name, (self.bodies[0], self.bodies[1]))
        nodes = [torch_calls.argument(tx, leaf)[0] for leaf in leaves]
        with tx.fake_mode:
            found = [fake.clone(memory_format=torch.contiguous_format) for fake in fakes]
        trace = tx.stack_trace()
        made = tx.graph.call("call_function", target, (nodes, list(self.lifted)), {}, found, trace)
        parts: list[Value] = []
        for k, fake in enumerate(found):
            part = tx.graph.call("call_function", operator.getitem, (made, k), {}, fake, trace)
            parts.append(tx.new_tensor(part, fake))
        return value_of_tree(pytree.tree_unflatten(parts, spec), lambda leaf: leaf)


def _is_random(node: fx.Node) -> bool:
    if isinstance(node.target, ControlFlow):
        return any(_is_random(inner) for body in node.target.bodies_of for inner in body.graph.graph.nodes)
    record = operator_record(node.target)
    return record is not None and record.is_random


RULES = (
    Rule(control_flow.cond, _cond, Effect.GRAPH),
    Rule(control_flow.while_loop, _while_loop, Effect.GRAPH),
)
