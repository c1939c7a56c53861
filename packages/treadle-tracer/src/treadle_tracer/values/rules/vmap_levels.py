"""`torch.func.vmap` of objects: its Python code is traced, and what stands between entering and leaving a level becomes one node.

    class Pair: ...                                   # register_pytree_node(Pair, ...)
    torch.func.vmap(lambda pair: pair.a * 2)(pair)     ==>     %y = vmap([%a], []);  %y[0]

Elsewhere the real transform takes its arguments apart. It cannot look into an object that only the trace has, such as an instance of a
class that the program has registered with pytree. PyTorch's helpers that take arguments apart and put results together are Python code,
which a library may have replaced, so they are traced as they are. Rules stand for the functions in C below them.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch
import torch.func
import torch.utils._pytree as pytree
from torch import fx

from treadle_tracer.errors import Unsupported
from treadle_tracer.source import ConstSource
from treadle_tracer.values import torch_calls
from treadle_tracer.values.base import Constant
from treadle_tracer.values.function_transform import Body, FunctionTransform
from treadle_tracer.values.rules.rule import Args, Effect, Kwargs, Rule
from treadle_tracer.values.tensor import TensorValue
from treadle_tracer.values.value import Raised, Value

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext

_C = torch._C._functorch


class VmapLevel:
    """A level that the trace has entered.

    before: the graph's last node then. given: a stand-in for each batched argument, with the tensor's node and its dimension.
    results: the node inside, the value outside and the dimension of each tensor that the level has returned.
    """

    def __init__(self, number: int, randomness: str, before: fx.Node):
        self.number, self.randomness, self.before = number, randomness, before
        self.given: list[tuple[fx.Node, fx.Node, int]] = []
        self.results: list[tuple[fx.Node, TensorValue, int]] = []

    def finish(self, tx: TraceContext) -> None:
        """Replace the nodes of the level by one."""
        if not self.results:
            raise Unsupported("function-transform", "a level of vmap that returns no tensor")
        why_not = tx.graph.why_not_move(self.before)
        if why_not is not None:
            raise Unsupported("function-transform", f"the function that vmap calls {why_not}")
        graph, others, removed = tx.graph.take_out(
            self.before, [stand_in for stand_in, _, _ in self.given], [node for node, _, _ in self.results]
        )
        tx.symbols.forget_nodes(removed)
        tx.forget_tensors(removed)
        arguments = [node for _, node, _ in self.given]
        if removed.intersection(arguments):
            raise Unsupported("function-transform", "vmap over a tensor that its level has computed")
        positions = tuple((place, None) for place in range(len(self.results)))
        body = Body(graph, tuple(range(len(others))), pytree.tree_structure((0,) * len(positions)), positions)
        options = {
            "in_dims": tuple(dim for _, _, dim in self.given),
            "out_dims": tuple(dim for _, _, dim in self.results),
            "randomness": self.randomness,
        }
        spec = pytree.tree_structure(((0,) * len(arguments), {}))
        target = FunctionTransform("vmap", options, spec, (body,))
        self._make_node(tx, target, (arguments, list(others)))

    def _make_node(self, tx: TraceContext, target: FunctionTransform, args: tuple[Any, ...]) -> None:
        fakes, trace = [value.fake for _, value, _ in self.results], tx.stack_trace()
        node = tx.graph.call("call_function", target, args, {}, fakes, trace)
        for place, (_, value, _) in enumerate(self.results):
            value.follow(tx, tx.graph.call("call_function", operator.getitem, (node, place), {}, value.fake, trace))


def trace_vmap(
    tx: TraceContext, options: Mapping[str, Value | None], function: Value, args: list[Value], kwargs: dict[str, Value]
) -> Value:
    """A call of `torch.func.vmap(function, **options)` by PyTorch's Python code. Fake tensors are in use, in the state of transforms.

    Raises Unsupported where the call raises.
    """
    depth = len(tx.vmap_levels)
    given = [options[name] for name in ("in_dims", "out_dims", "randomness", "chunk_size")]
    implementation = tx.wrap(_implementation(), ConstSource(_implementation()))
    tx.vmap_levels.append(None)
    try:
        return implementation.call(tx, [function, *[option or Constant(None) for option in given], *args], kwargs)
    except Raised as raised:
        cls = raised.value.python_type().__name__
        raise Unsupported("function-transform", f"vmap raises {cls}") from None
    finally:
        while len(tx.vmap_levels) > depth:
            if tx.vmap_levels.pop() is not None:
                _C._vmap_decrement_nesting()


@functools.cache
def _implementation() -> FunctionType:
    """PyTorch's function that carries out a call of what `torch.func.vmap` returns."""
    return torch.func.vmap(lambda x: x).__globals__["vmap_impl"]  # type: ignore[no-any-return]


def has_replaced_helpers() -> bool:
    """Whether a library has put functions of its own in place of those that take arguments apart and put results together."""
    scope = _implementation().__globals__
    helpers = [scope[name] for name in ("_process_batched_inputs", "_create_batched_inputs", "_unwrap_batched")]
    return any(getattr(helper, "__globals__", None) is not scope for helper in helpers)


def _level(tx: TraceContext, number: Value) -> VmapLevel:
    """The innermost level, which `number` names."""
    level = tx.vmap_levels[-1] if tx.vmap_levels else None
    if level is None or level.number != number.constant():
        raise Unsupported("function-transform", "a level of vmap that the trace has not entered, or not last")
    return level  # type: ignore[no-any-return]


def _tensor(value: Value) -> TensorValue:
    if not isinstance(value, TensorValue):
        raise Unsupported("function-transform", f"a level of vmap with {value.describe()}")
    return value


def _enter(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    """`_vmap_increment_nesting(batch_size, randomness)`"""
    if not tx.vmap_levels:
        raise Unsupported("function-transform", "a level of vmap outside vmap")
    size, randomness = torch_calls.argument(tx, args[0])[1], args[1].constant()
    before = tx.graph.last()
    number = _C._vmap_increment_nesting(size, randomness)
    tx.vmap_levels.append(VmapLevel(number, randomness, before))
    return Constant(number)


def _leave(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    """`_vmap_decrement_nesting()`"""
    level = tx.vmap_levels[-1] if tx.vmap_levels else None
    if level is None:
        raise Unsupported("function-transform", "leaving a level of vmap that the trace has not entered")
    tx.vmap_levels.pop()
    number = _C._vmap_decrement_nesting()
    level.finish(tx)
    return Constant(number)


def _batch(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    """`_add_batch_dim(tensor, in_dim, level)`"""
    value, dim, level = _tensor(args[0]), args[1].constant(), _level(tx, args[2])
    node = value.node(tx)
    fake = _C._add_batch_dim(value.fake, dim, level.number)
    stand_in = tx.graph.stand_in(f"argument_{len(level.given)}", fake)
    level.given.append((stand_in, node, dim))
    return tx.new_tensor(stand_in, fake)  # type: ignore[no-any-return]


def _unbatch(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    """`_remove_batch_dim(tensor, level, batch_size, out_dim)`. The result cannot be used before the level has been left."""
    value, level, dim = _tensor(args[0]), _level(tx, args[1]), args[3].constant()
    node, size = value.node(tx), torch_calls.argument(tx, args[2])[1]
    result = TensorValue(None, _C._remove_batch_dim(value.fake, level.number, size, dim))
    tx.adopt(result)
    level.results.append((node, result, dim))
    return result


def _is_batched(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    """`is_batchedtensor(tensor)`"""
    return Constant(_C.is_batchedtensor(_tensor(args[0]).fake))


def _load_decompositions(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    _implementation().__globals__["lazy_load_decompositions"]()
    return Constant(None)


RULES = (
    Rule("torch._functorch.predispatch._vmap_increment_nesting", _enter, Effect.GRAPH),
    Rule("torch._functorch.predispatch._vmap_decrement_nesting", _leave, Effect.GRAPH),
    Rule("torch._functorch.predispatch._add_batch_dim", _batch, Effect.GRAPH),
    Rule("torch._functorch.predispatch._remove_batch_dim", _unbatch, Effect.GRAPH),
    Rule("torch._functorch.predispatch.lazy_load_decompositions", _load_decompositions, Effect.NONE),
    Rule(_C._add_batch_dim, _batch, Effect.GRAPH),
    Rule(_C._remove_batch_dim, _unbatch, Effect.GRAPH),
    Rule(_C.is_batchedtensor, _is_batched, Effect.READS_STATE),
)
