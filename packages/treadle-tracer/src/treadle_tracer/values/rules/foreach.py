"""Rules of `torch._foreach_*`: the calls on each tensor that such a call stands for.

    torch._foreach_add_([p, q], [g, h], alpha=-0.1)     ==>     p.add_(g, alpha=-0.1); q.add_(h, alpha=-0.1)

PyTorch's own kernels do just that on CPU (aten/src/ATen/native/ForeachOpsKernels.cpp), and code generation fuses the calls again, with what
comes before and after them too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from treadle_tracer.errors import Unsupported
from treadle_tracer.values import tensor_numbers
from treadle_tracer.values.base import Constant, LazyValue
from treadle_tracer.values.mappings import DictValue
from treadle_tracer.values.rules.rule import Apply, Args, Effect, Kwargs, Rule
from treadle_tracer.values.sequences import ListValue, TupleValue
from treadle_tracer.values.tensor import TensorValue
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext

_PREFIX = "_foreach_"

_METHODS = {"maximum": "clamp_min", "minimum": "clamp_max"}
"""Methods of a tensor that compute what `_foreach_<key>` computes, where the names differ; the in-place forms likewise."""

_FUNCTIONS = {"norm": torch.linalg.vector_norm, "pow": torch.pow}
"""Functions of a tensor, where no method of that name takes the same arguments."""

_BY_NAME = {"addcmul": 3, "addcdiv": 3}
"""Operations whose methods take the argument at this position by the name `value` only."""

_Call = Callable[["TraceContext", list[Value], dict[str, Value]], Value]


def _per_tensor(foreach: Any, name: str) -> Apply:
    call, operation = _call_of(name), name.rstrip("_")

    def run(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
        args = [_forced(tx, arg) for arg in args]
        kwargs = {key: _forced(tx, value) for key, value in kwargs.items()}
        # In place, PyTorch gives the list that it was given.
        given = (args[0] if args else kwargs.get("self")) if name.endswith("_") else None
        position = _BY_NAME.get(operation)
        if position is not None and len(args) > position:
            kwargs["value"] = args.pop(position)
        if "scalars" in kwargs:
            kwargs["value"] = kwargs.pop("scalars")
        count = _count(args)
        if not count or any(
            len(items) != count for items in map(_items, (*args, *kwargs.values())) if items is not None
        ):
            made = tx.run_in_graph("call_function", foreach, args, kwargs)  # raises what PyTorch raises
            return made if given is None else given
        if isinstance(kwargs.get("value"), TensorValue):
            kwargs["value"] = ListValue(_numbers(tx, kwargs["value"]))  # type: ignore[arg-type]
        results = [
            call(tx, [_part(arg, i) for arg in args], {key: _part(value, i) for key, value in kwargs.items()})
            for i in range(count)
        ]
        return TupleValue(results) if given is None else given

    return run


def _call_of(name: str) -> _Call:
    """How one tensor's part of `_foreach_<name>` is called."""
    operation = name.rstrip("_")
    function = _FUNCTIONS.get(name)
    if function is not None:
        return lambda tx, args, kwargs: tx.run_in_graph("call_function", function, args, kwargs)
    method = _METHODS.get(operation, operation) + name[len(operation) :]
    return lambda tx, args, kwargs: tx.run_in_graph("call_method", method, args, kwargs)


def _forced(tx: TraceContext, value: Value) -> Value:
    return value.force(tx) if isinstance(value, LazyValue) else value


def _items(value: Value) -> list[Value] | None:
    return list(value.items) if isinstance(value, (ListValue, TupleValue)) else None


def _count(args: Args) -> int:
    """The number of tensors in the first list."""
    return next((len(items) for items in map(_items, args) if items is not None), 0)


def _part(value: Value, index: int) -> Value:
    items = _items(value)
    return value if items is None else items[index]


def _numbers(tx: TraceContext, scalars: TensorValue) -> list[Value]:
    """The elements of a vector, which the kernels read as numbers."""
    parts = tx.run_in_graph("call_method", "unbind", [scalars], {}).unpack(tx)
    return [tensor_numbers.read_number(tx, part) for part in parts if isinstance(part, TensorValue)]


def _group(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    """`torch._C._group_tensors_by_device_and_dtype(lists, with_indices)`: {(device, dtype): (lists, indices)}

    Tensors in the same place of the lists belong together, and the first list has no None. PyTorch's order of groups is that of a hash
    table; here it is that of the first list.
    """
    lists = [_items(_forced(tx, items)) for items in args[0].unpack(tx)]
    firsts = [_forced(tx, item) for item in lists[0] or []]
    groups: dict[tuple[Any, Any], list[int]] = {}
    for index, tensor in enumerate(firsts):
        if not isinstance(tensor, TensorValue):
            raise Unsupported("graph-argument", tensor.describe())
        groups.setdefault((tensor.fake.device, tensor.fake.dtype), []).append(index)
    has_indices = len(args) > 1 and args[1].truth(tx)
    found = DictValue({})
    for (device, dtype), places in groups.items():
        parts = ListValue([ListValue([items[i] for i in places] if items else []) for items in lists])
        indices = ListValue([Constant(i) for i in places] if has_indices else [])
        found.set_item(tx, TupleValue([Constant(device), Constant(dtype)]), TupleValue([parts, indices]))
    return found


def _has_method(name: str) -> bool:
    operation = name.rstrip("_")
    return name in _FUNCTIONS or hasattr(torch.Tensor, _METHODS.get(operation, operation) + name[len(operation) :])


_NAMES = [name for name in dir(torch) if name.startswith(_PREFIX) and _has_method(name.removeprefix(_PREFIX))]

RULES = (
    *[
        Rule(function, _per_tensor(function, name.removeprefix(_PREFIX)), Effect.WRITES_ARGUMENTS)
        for name in _NAMES
        for function in [getattr(torch, name)]
    ],
    Rule(torch._C._group_tensors_by_device_and_dtype, _group),
)
