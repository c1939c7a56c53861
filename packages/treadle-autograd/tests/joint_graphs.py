"""Joint graphs of small functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from treadle_autograd.effects import is_random
from treadle_autograd.joint import JointTrace, trace_joint
from treadle_shapes import ShapeEnv
from treadle_shapes.torch import fake_like, fake_mode, fake_shape_env, fake_tensor


def joint_of(function: Callable[..., Any], *inputs: torch.Tensor) -> JointTrace:
    joint = trace_joint(fx.symbolic_trace(function), inputs, {})
    assert joint is not None
    return joint


def with_examples(gm: fx.GraphModule, inputs: Sequence[torch.Tensor], *, dynamic: bool = False) -> fx.GraphModule:
    """`gm` with the fake results of its calls in `meta`, as the tracer leaves them. `dynamic`: the first size of all inputs is a symbol."""
    env = ShapeEnv()
    mode = fake_mode(shape_env=fake_shape_env(env) if dynamic else None)
    size = env.create_symbol(inputs[0].shape[0], "x0.size()[0]") if dynamic else None

    class Interpreter(fx.Interpreter):
        def run_node(self, n: fx.Node) -> Any:
            with mode:
                value = super().run_node(n)
            if n.op != "output":
                n.meta["example_value"] = value
            return value

        def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
            return fake_like(mode, super().get_attr(target, args, kwargs))

    Interpreter(gm).run(
        *[fake_tensor(mode, x, [size, *[None] * (x.dim() - 1)]) if dynamic else fake_like(mode, x) for x in inputs]
    )
    return gm


def nodes_of(graph: fx.Graph) -> Counter[int]:
    """A number for each node that tells what it computes, from what, and what its `meta` says of it, but neither name nor place.

    Of random nodes it tells the place among all of them.
    """
    numbers: dict[fx.Node, int] = {}
    n_random = 0
    for node in graph.nodes:
        place: Any = node.name if node.op == "placeholder" else None
        if is_random(node):
            place, n_random = n_random, n_random + 1
        said = [(key, str(node.meta.get(key))) for key in _SAID]
        arguments = str(fx.map_arg((node.args, node.kwargs), lambda used: f"<{numbers[used]}>"))
        numbers[node] = hash(
            (node.op, str(node.target), arguments, str(_described(node.meta.get("val"))), place, *said)
        )
    return Counter(numbers.values())


_SAID = ("of_backward", "may_raise", "no_grad", "inside_call", "stack_trace", "checkpoint")


def _described(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return tuple(value.shape), value.stride(), value.dtype, value.device
    return [_described(item) for item in value] if isinstance(value, (tuple, list)) else value


def leaf(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, requires_grad=True)
