"""What a traced graph writes to, and whether a run that fails half-way leaves traces outside the graph."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch

from treadle_shapes.torch import Kind, Raises, operator, unwrapped

_INDEXED = frozenset({Kind.GATHER, Kind.SCATTER})
# Operators of these kinds raise for no element unless their record says so. The other kinds have composite operators, whose records do
# not say what the operators behind them raise.
_INDIFFERENT_TO_VALUES = frozenset(
    {
        Kind.VIEW,
        Kind.POINTWISE,
        Kind.REDUCTION,
        Kind.SCAN,
        Kind.MATMUL,
        Kind.CONVOLUTION,
        Kind.ATTENTION,
        Kind.NORMALISATION,
        Kind.POOLING,
        Kind.RESAMPLING,
        Kind.SORT,
        Kind.CREATION,
        Kind.COPY,
        Kind.FFT,
        Kind.QUERY,
    }
)


def why_not_deoptimise(gm: torch.fx.GraphModule) -> str | None:
    """Why a graph that fails half-way may have left traces outside; None when it cannot have.

    Writes to tensors that the graph itself has made do not count. A view shares the storage of its base, also among fake tensors.
    """
    outside: set[int] = set()
    for node in gm.graph.nodes:
        if node.op in ("placeholder", "get_attr"):
            outside |= storages(node.meta.get("example_value"))
        elif node.op != "output" and writes_to(node, outside):
            return f"the graph calls {_name(node.target)}, which may write to an outside tensor"
    return None


def writes_to(node: torch.fx.Node, outside: set[int]) -> bool:
    """Whether a call may write to one of these storages. A tensor without a storage counts as one of them."""
    for argument in written_arguments(node):
        written = storages(argument.meta.get("example_value"))
        if not written or written & outside:
            return True
    return False


def draws_random_numbers(gm: torch.fx.GraphModule) -> bool:
    """Whether a call of the graph may move a random number generator on. Functions without a record may."""
    records = [operator(node.target) for node in _calls(gm)]
    return any(record is None or record.is_random for record in records)


def may_raise_by_value(gm: torch.fx.GraphModule) -> bool:
    """Whether a call of the graph may raise for some elements of its arguments. Functions without a record may."""
    return any(map(_may_raise_by_value, _calls(gm)))


def _calls(gm: torch.fx.GraphModule) -> list[torch.fx.Node]:
    return [node for node in gm.graph.nodes if node.op[:5] == "call_" and node.target is not getattr]


def _may_raise_by_value(node: torch.fx.Node) -> bool:
    record = operator(node.target)
    if record is None or record.raises is not Raises.NEVER:
        return True
    if record.kind in _INDEXED:
        # `x[0]` and `x[positions]` have one record; only positions known at run time may be out of range
        return any(map(_may_be_positions, node.all_input_nodes))
    return record.kind not in _INDIFFERENT_TO_VALUES


def _may_be_positions(node: torch.fx.Node) -> bool:
    value = node.meta.get("example_value")
    return not (isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex()))


def written_arguments(node: torch.fx.Node) -> list[torch.fx.Node]:
    """The arguments that a call may write to."""
    record = operator(node.target)
    if record is not None and record.hides_writes:
        return _hidden_writes(node, record.writes)
    names = _schema_writes(node.target) if record is None else record.writes
    written = [_argument(node, name) for name in names]
    if "out" not in names:
        written.append(node.kwargs.get("out"))
    if "self" not in names and _is_in_place(node):
        written.append(_argument(node, "self"))
    return list(_nodes_in(written))


def _hidden_writes(node: torch.fx.Node, names: tuple[str, ...]) -> list[torch.fx.Node]:
    """The statistics that a normalisation may write to; all arguments where names are not known."""
    function: Any = node.target
    if not (names and inspect.isfunction(function)):
        return list(node.all_input_nodes)
    given = inspect.signature(function).bind(*node.args, **node.kwargs)
    given.apply_defaults()
    if given.arguments.get("training") is False:
        return []
    return [value for name in names if isinstance(value := given.arguments.get(name), torch.fx.Node)]


def _schema_writes(target: Any) -> tuple[str, ...]:
    """The arguments that an operator outside ATen writes to; for a function without a schema its name tells (`zeros_`)."""
    parameters = _parameters(target)
    if parameters is None:
        return ("self",) if _name(target).endswith("_") else ()
    return tuple(name for name, is_written in parameters if is_written)


def _parameters(target: Any) -> list[tuple[str, bool]] | None:
    """(name, is written to) of the parameters of an operator with a schema."""
    if isinstance(target, torch._ops.OpOverloadPacket):
        target = getattr(target, target.overloads()[0])
    if not isinstance(target, torch._ops.OpOverload):
        return None
    arguments = target._schema.arguments
    return [(a.name, a.alias_info is not None and a.alias_info.is_write) for a in arguments]


def _argument(node: torch.fx.Node, name: str) -> Any:
    """What a call passes for a parameter; all its arguments when that is not known."""
    if name in node.kwargs:
        return node.kwargs[name]
    parameters = _parameters(node.target)
    if parameters is not None:
        position = [parameter for parameter, _ in parameters].index(name)
        return node.args[position] if position < len(node.args) else None
    if name == "self":  # torch's functions call it input, and some tensor
        return node.args[0] if node.args else node.kwargs.get("input", node.kwargs.get("tensor"))
    return None if name == "out" else node.all_input_nodes


def _is_in_place(node: torch.fx.Node) -> bool:
    """Whether a function of torch.nn.functional is called with `inplace=True`, by name or by position."""
    if "inplace" in node.kwargs:
        return bool(node.kwargs["inplace"])
    position = _inplace_position(node.target) if callable(node.target) else None
    return position is not None and position < len(node.args) and bool(node.args[position])


@functools.cache
def _inplace_position(target: Callable[..., Any]) -> int | None:
    code = getattr(inspect.unwrap(target), "__code__", None)
    names = code.co_varnames[: code.co_argcount] if code is not None else ()
    return names.index("inplace") if "inplace" in names else None


def _name(target: Any) -> str:
    return target if isinstance(target, str) else getattr(target, "__name__", "")


def _nodes_in(value: Any) -> Iterator[torch.fx.Node]:
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _nodes_in(item)
    elif isinstance(value, torch.fx.Node):
        yield value


def storages(value: Any) -> set[int]:
    """Identities of the storages of a tensor, or of those in a tuple or list; none of what has no storage (a sparse tensor).

    A tensor that a transform of `torch.func` passes to its function has the storage of the tensor that it wraps.
    """
    if isinstance(value, (tuple, list)):
        return {storage for item in value for storage in storages(item)}
    try:
        return {unwrapped(value).untyped_storage()._cdata}
    except (AttributeError, TypeError, NotImplementedError, RuntimeError):
        return set()
