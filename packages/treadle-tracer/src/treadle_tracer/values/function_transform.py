"""A call of a transform of `torch.func` as one node of a traced graph.

    torch.func.vmap(f, in_dims=1)(x)          ==>     %y = vmap([%x], [%w]);  %y[0]         target: FunctionTransform("vmap", ...)
    def f(a): return a @ w                            body: (a, w) -> (a @ w,)

The target holds the graph of the function's body, taken from a run of the real transform on fake tensors, and its meaning is the same
call of the transform with that graph in place of the function. What the transform does (levels, batching rules, gradients, the structure
of results, errors) is PyTorch's own, in eager and wherever a backend runs the node to record operators.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch.func
import torch.utils._pytree as pytree
from torch import fx

RunGraph = Callable[[fx.GraphModule, Sequence[Any]], Sequence[Any]]


def _run(graph: fx.GraphModule, arguments: Sequence[Any]) -> Sequence[Any]:
    return graph.forward(*arguments)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Body:
    """One call of the transformed function: graph of (*leaves of its arguments, *lifted) -> the leaves of its result that are computed.

    lifted    which of the node's lifted values the graph reads, by position
    spec      the structure of the function's result
    leaves    its leaves: the position among the graph's results and None, or None and a constant
    """

    graph: fx.GraphModule
    lifted: tuple[int, ...]
    spec: pytree.TreeSpec
    leaves: tuple[tuple[int | None, Any], ...]

    def run(self, arguments: Any, lifted: Sequence[Any], run: RunGraph) -> Any:
        found = run(self.graph, [*pytree.tree_leaves(arguments), *[lifted[k] for k in self.lifted]])
        leaves = [constant if position is None else found[position] for position, constant in self.leaves]
        return pytree.tree_unflatten(leaves, self.spec)


@dataclass(frozen=True, eq=False)
class FunctionTransform:
    """The target of a node that calls a transformed function.

    name      of the transform in `torch.func`
    options   its own arguments, by name
    spec      the structure of (arguments, named arguments) of the call
    calls     one for each time that the transform calls the function, in order
    """

    name: str
    options: Mapping[str, Any]
    spec: pytree.TreeSpec
    calls: tuple[Body, ...]

    @property
    def __name__(self) -> str:  # FX prints the target of a call by these names
        return self.name

    def __call__(self, leaves: Sequence[Any], lifted: Sequence[Any], run: RunGraph = _run) -> list[Any]:
        """The leaves of the result. lifted: what the bodies read besides their arguments. run: runs the graph of a body."""
        calls = iter(self.calls)

        def function(*args: Any, **kwargs: Any) -> Any:
            return next(calls).run((args, kwargs), lifted, run)

        args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        return pytree.tree_leaves(call_transform(self.name, self.options, function, args, kwargs))


def call_transform(
    name: str, options: Mapping[str, Any], function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """`torch.func.vmap(function, **options)(*args)` and the like; `torch.func.vjp(function, *args, **options)`."""
    transform = getattr(torch.func, name)
    if name in CALLS_AT_ONCE:
        return transform(function, *args, **options)
    return transform(function, **options)(*args, **kwargs)


CALLS_AT_ONCE = frozenset({"jvp", "vjp"})
"""Transforms that take the function's arguments together with the function."""


@dataclass(frozen=True, eq=False)
class PullbackCall:
    """The target of a node that calls the function that `torch.func.vjp` has returned. spec: see `FunctionTransform`."""

    spec: pytree.TreeSpec

    @property
    def __name__(self) -> str:
        return "vjp_fn"

    def __call__(self, function: Callable[..., Any], leaves: Sequence[Any]) -> list[Any]:
        args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        return pytree.tree_leaves(function(*args, **kwargs))
