"""What a call of a graph does besides computing its result: what it writes to, and in which memory."""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from treadle_shapes.torch import NUMBER_FUNCTIONS, unwrapped
from treadle_shapes.torch import operator as operator_record
from treadle_tracer.by_identity import IdentitySet


def only_computes(node: torch.fx.Node) -> bool:
    """Whether a call writes to no argument, draws nothing and depends on its arguments alone, as far as is known."""
    if node.target is operator.getitem or _is_of_numbers(node):
        return True
    record = operator_record(node.target)
    if record is None or not record.is_pure or record.is_random or record.hides_writes:
        return False
    return not written_arguments(node)


def _is_of_numbers(node: torch.fx.Node) -> bool:
    """Whether a call computes a number from numbers."""
    values = [given.meta.get("example_value") for given in (node, *node.all_input_nodes)]
    return computes_numbers(node.target) and all(map(is_number, values))


def computes_numbers(target: Any) -> bool:
    """Whether a function called with numbers computes one, and does nothing else."""
    return target in _NUMBER_FUNCTIONS or getattr(target, "__module__", None) in ("_operator", "math")


_NUMBER_FUNCTIONS = IdentitySet((*NUMBER_FUNCTIONS.values(), abs, bool, float, int, pow, torch.sym_int, torch.sym_sum))


def is_number(value: Any) -> bool:
    """Whether a value of a graph is a number, known or not."""
    return isinstance(value, (bool, int, float, torch.SymInt, torch.SymFloat, torch.SymBool))


def writes_to(node: torch.fx.Node, outside: set[int]) -> bool:
    """Whether a call may write to one of these storages. A tensor without a storage counts as one of them."""
    for argument in written_arguments(node):
        written = storages(argument.meta.get("example_value"))
        if not written or written & outside:
            return True
    return False


def written_arguments(node: torch.fx.Node) -> list[torch.fx.Node]:
    """The arguments that a call may write to."""
    record = operator_record(node.target)
    if record is not None and record.hides_writes:
        return _hidden_writes(node, record.writes)
    names = _schema_writes(node.target) if record is None else record.writes
    written = [_argument(node, name) for name in names]
    if "out" not in names:
        written.append(node.kwargs.get("out"))
    if "self" not in names and is_in_place(node.target, node.args, node.kwargs):
        written.append(_argument(node, "self"))
    return list(_nodes_in(written))


def _hidden_writes(node: torch.fx.Node, names: tuple[str, ...]) -> list[torch.fx.Node]:
    """The statistics that a normalisation may write to; all arguments where names are not known."""
    given = _arguments_by_name(node) if names else None
    if given is None:
        return list(node.all_input_nodes)
    if given.get("training") is False:
        return []
    return [value for name in names if isinstance(value := given.get(name), torch.fx.Node)]


def _arguments_by_name(node: torch.fx.Node) -> Mapping[str, Any] | None:
    """The arguments of a call of a function of torch, by the names in its signature or in ATen's schema; None where it has neither."""
    target: Any = node.target
    if inspect.isfunction(target):
        given = inspect.signature(target).bind(*node.args, **node.kwargs)
        given.apply_defaults()
        return given.arguments
    packet = getattr(torch.ops.aten, name_of(target), None)
    if packet is None or "default" not in packet.overloads():
        return None
    names = [argument.name for argument in packet.default._schema.arguments]
    return dict(zip(names, node.args, strict=False)) | node.kwargs


def _schema_writes(target: Any) -> tuple[str, ...]:
    """The arguments that an operator outside ATen writes to; for a function without a schema its name tells (`zeros_`)."""
    parameters = _parameters(target)
    if parameters is None:
        return ("self",) if name_of(target).endswith("_") else ()
    return tuple(name for name, is_written in parameters if is_written)


def writes_without_functional_form(target: Any) -> bool:
    """Whether an operator outside ATen writes to its arguments, so that no functional graph can hold it."""
    if isinstance(target, torch._ops.OpOverloadPacket):
        return any(writes_without_functional_form(getattr(target, name)) for name in target.overloads())
    if not isinstance(target, torch._ops.OpOverload) or target.namespace in ("aten", "prims"):
        return False
    return target._schema.is_mutable and not any(
        torch._C._dispatch_has_kernel_for_dispatch_key(target.name(), key) for key in _FUNCTIONAL_KEYS
    )


_FUNCTIONAL_KEYS = ("Functionalize", "CompositeImplicitAutograd")


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


def is_in_place(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a function of torch.nn.functional is called with `inplace=True`, by name or by position."""
    if "inplace" in kwargs:
        return bool(kwargs["inplace"])
    position = _inplace_position(target) if callable(target) else None
    return position is not None and position < len(args) and bool(args[position])


@functools.cache
def _inplace_position(target: Callable[..., Any]) -> int | None:
    code = getattr(inspect.unwrap(target), "__code__", None)
    names = code.co_varnames[: code.co_argcount] if code is not None else ()
    return names.index("inplace") if "inplace" in names else None


def name_of(target: Any) -> str:
    """The name of the function or method that a node calls."""
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
