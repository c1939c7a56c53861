"""`export`: one graph module of a whole function, for people who want the graph itself.

gm = export(model.forward)(x, mask=m)
gm(x, mask=m)                           # takes and gives what the function takes and gives
gm.meta["guards"], gm.meta["symbols"]   # what the graph relies on; (least, greatest) value of each symbolic number
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch.fx.graph import _PyTreeCodeGen, _PyTreeInfo
from torch.utils import _pytree as pytree

from .compile import optimize, tracing_lock
from .errors import ExportError, Unsupported
from .observer import SilentObserver
from .options import TracerOptions
from .trace.driver import trace_function
from .values.base import settled
from .values.mappings import DictValue
from .values.sequences import Sequence
from .values.shadows import retire_shadows
from .values.tensor import SymbolicValue, TensorValue
from .values.value import Value

if TYPE_CHECKING:
    from .trace.result import TraceResult


def export(function: Callable[..., Any], *, dynamic: bool | None = None) -> Callable[..., fx.GraphModule]:
    """Return a function that takes example arguments and gives the graph of `function` for arguments like them.

    function: a function, bound method or `torch.nn.Module`. Parameters and other tensors from outside become attributes of the module.
    dynamic: True makes all sizes symbolic; None those marked by `set_mark`; see `TracerOptions`.

    The graph module has one placeholder for each leaf of the arguments. A leaf that is no tensor, or has fixed sizes, is a constant of the
    graph, as `meta["guards"]` says. `meta["symbols"]` maps the symbolic numbers to their ranges.

    Raises ExportError where the function is not one graph, writes to objects outside, or returns something that a graph cannot give. It
    lists all graph breaks; to find those behind the first, the function is run, on the given arguments.
    """

    def capture(*args: Any, **kwargs: Any) -> fx.GraphModule:
        name = getattr(function, "__qualname__", type(function).__name__)
        with tracing_lock():
            try:
                result = trace_function(function, args, kwargs, None, TracerOptions(fullgraph=True, dynamic=dynamic))
                return _graph_module(result, function, args, kwargs)
            except Unsupported as reason:
                first = reason
            finally:
                retire_shadows()
        raise ExportError(name, _all_breaks(function, args, kwargs, first)) from first

    return capture


class _Breaks(SilentObserver):
    def __init__(self) -> None:
        self.reasons: list[str] = []

    def on_break(self, reason: Unsupported) -> None:
        self.reasons.append(_with_remedy(reason))


def _all_breaks(function: Any, args: Any, kwargs: Any, first: Unsupported) -> tuple[str, ...]:
    found = _Breaks()
    plain = function.forward if isinstance(function, torch.nn.Module) else function
    optimize(plain, lambda gm, _: gm.forward, TracerOptions(), found)(*args, **kwargs)
    return tuple(dict.fromkeys(found.reasons or [_with_remedy(first)]))


def _with_remedy(reason: Unsupported) -> str:
    return f"{reason}\n   " + " ".join(reason.info.hints)


# ---- the graph module


def _graph_module(result: TraceResult, function: Any, args: Any, kwargs: Any) -> fx.GraphModule:
    effects = _why_effects(result)
    if effects is not None:
        raise Unsupported("attribute-store", effects)
    assert result.value is not None
    leaves, in_spec = pytree.tree_flatten((args, kwargs))
    nodes: list[fx.Node] = []
    returned, out_spec = pytree.tree_flatten(_with_nodes(result.value, leaves, nodes))
    traced = result.graph.finish(nodes)
    graph = fx.Graph()
    placeholders = [graph.placeholder(name) for name in _leaf_names(function, args, kwargs)]
    root = torch.nn.Module()
    copies: dict[fx.Node, fx.Node] = {}
    for position, node in enumerate(traced.graph.find_nodes(op="placeholder")):
        example, source = result.graph.example_inputs[position], result.graph.input_sources[position]
        place = next((at for at, leaf in enumerate(leaves) if leaf is example), None)
        if place is None:
            if not isinstance(example, torch.Tensor):
                raise Unsupported("graph-argument", f"the number {source.text}, which is no argument")
            root.register_buffer(node.name, example, persistent=False)
            copies[node] = graph.get_attr(node.name)
        else:
            copies[node] = placeholders[place]
        copies[node].meta.update(node.meta)
    for name, tensor in (*traced.named_parameters(), *traced.named_buffers()):
        (root.register_parameter if isinstance(tensor, torch.nn.Parameter) else root.register_buffer)(name, tensor)
    graph.graph_copy(traced.graph, copies)
    graph.output([_returned(leaf, copies, placeholders) for leaf in returned])
    graph.set_codegen(_PyTreeCodeGen(_PyTreeInfo(_argument_names(function, args, kwargs), in_spec, out_spec)))
    made = fx.GraphModule(root, graph, "Exported")
    numbers = result.guards.add_sizes(result.env) if result.env is not None else None
    made.meta["guards"] = tuple(guard.reason for guard in result.guards)
    made.meta["symbols"] = {} if numbers is None else dict(zip(numbers.texts, numbers.box, strict=True))
    return made


def _returned(leaf: Any, copies: dict[fx.Node, fx.Node], placeholders: list[fx.Node]) -> Any:
    if isinstance(leaf, _Argument):
        return placeholders[leaf.position]
    return copies[leaf] if isinstance(leaf, fx.Node) else leaf


def _why_effects(result: TraceResult) -> str | None:
    written = [
        *(f"{obj.describe()}.{name}" for obj, name, _ in result.mutations.attr_stores() if obj.source is not None)
    ]
    written += [container.describe() for container in result.mutations.containers()]
    written += [name for _, name, _ in result.mutations.global_stores()]
    written += [cell.describe() for cell, _ in result.mutations.cell_stores() if cell.source is not None]
    written += ["the output"] * bool(result.mutations.outputs) + ["a switch of torch"] * bool(result.state_changes)
    return f"the function writes to {', '.join(written)}" if written else None


@dataclass(frozen=True)
class _Argument:
    """Stands for a leaf of the arguments in the result."""

    position: int


def _with_nodes(value: Value, leaves: list[Any], nodes: list[fx.Node]) -> Any:
    """The result of the function with nodes in place of tensors and symbolic numbers, which are added to `nodes`."""
    value = settled(value)
    given = None if value.is_constant() else getattr(value, "obj", None)
    place = next((at for at, leaf in enumerate(leaves) if given is not None and leaf is given), None)
    if place is not None:
        return _Argument(place)
    if isinstance(value, (TensorValue, SymbolicValue)):
        node = value.known_node if isinstance(value, TensorValue) else value._node
        if node is None:
            raise Unsupported("graph-result", f"{value.describe()}, an outside tensor that is returned as it is")
        nodes.append(node)
        return node
    if isinstance(value, Sequence):
        return getattr(value.cls, "_make", value.cls)([_with_nodes(item, leaves, nodes) for item in value.items])
    if isinstance(value, DictValue) and value.default_factory is None:
        return value.cls({key.constant(): _with_nodes(item, leaves, nodes) for key, item in value.entries.values()})
    if value.is_constant():
        return value.constant()
    raise Unsupported("graph-result", f"{value.describe()}, which a graph cannot give")


def _argument_names(function: Any, args: Any, kwargs: Any) -> list[str]:
    """A name for each argument, no two the same: those of the parameters where positional arguments have one, and the keywords."""
    target = function.forward if isinstance(function, torch.nn.Module) else function
    try:
        parameters = inspect.signature(target).parameters.values()
    except (TypeError, ValueError):
        parameters = ()
    names = [parameter.name for parameter in parameters if parameter.kind in _POSITIONAL][: len(args)]
    names += [f"argument_{position}" for position in range(len(names), len(args))]
    return [*_distinct(names, kwargs), *kwargs]


def _leaf_names(function: Any, args: Any, kwargs: Any) -> list[str]:
    names = _argument_names(function, args, kwargs)
    made = []
    for name, value in zip(names, (*args, *kwargs.values()), strict=True):
        count = len(pytree.tree_leaves(value))
        made += [name] if count == 1 else [f"{name}_{position}" for position in range(count)]
    return _distinct(made)


def _distinct(names: Iterable[str], taken: Iterable[str] = ()) -> list[str]:
    """The names; underscores follow one that is taken or has come before."""
    found, seen = [], set(taken)
    for name in names:
        while name in seen:
            name += "_"
        seen.add(name)
        found.append(name)
    return found


_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)

__all__ = ["export"]
