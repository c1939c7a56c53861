"""How a call differs from the one that an entry was made for. Guards and payloads name places; `follow` finds them in a frame."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from ..by_identity import is_one_of
from ..class_facts import is_class, mro_of, namespace_of, own_dict, own_item
from ..dynamic import is_free_stride, strides_by
from ..source import ClosureSource, LocalSource, Path, Source
from ..values.class_lookup import find_in_mro
from ..values.constants import is_trusted_function

if TYPE_CHECKING:
    from ..decision_programs import Decision
    from .entry import Payload
    from .guards import TensorGuard

_PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter)


def changed_dimensions(payload: Payload, frame: Any) -> dict[Source, dict[int, int]]:
    """What this call has with other sizes or values than the entry: source -> {dimension that differs: the larger of the two sizes}.

    A tensor counts when it has the same number of dimensions; ints and floats have no dimensions.
    """
    found: dict[Source, dict[int, int]] = {}
    for guard in payload.tensors:
        tensor = follow(guard.source.path, frame)
        # Objects of other classes answer by code of their own: an uninitialised parameter raises.
        sizes = tensor.shape if is_one_of(type(tensor), (guard.kind, *_PLAIN_TENSORS)) else None
        is_constant = guard.identity is not None and tensor is guard.identity
        if sizes is None or len(sizes) != len(guard.sizes) or is_constant:
            continue
        pairs = zip(sizes, guard.sizes, strict=True)
        dims = {d: max(have, had) for d, (have, had) in enumerate(pairs) if have != had}
        if dims:
            found[guard.source] = dims
    for source, value in payload.numbers:
        number = follow(source.path, frame)
        if type(number) is type(value) and not is_same_number(number, value):
            found[source] = {}
    return found


def is_outgrown(payload: Payload, frame: Any, dynamic: Mapping[Source, Mapping[int, int]]) -> bool:
    """Whether the entry has missed by a size or number that is constant in it, and that later entries have as a symbol (`dynamic`)."""
    changed = changed_dimensions(payload, frame)
    symbols = {guard.source: guard.dynamic_dims for guard in payload.tensors}
    return any(
        source in dynamic and (not dims or not dynamic[source].keys().isdisjoint(set(dims).difference(symbols[source])))
        for source, dims in changed.items()
    )


def parts_of_other_tensors(payload: Payload, frame: Any) -> dict[Source, int]:
    """Where this call has a part of a tensor of other sizes: source -> the dimension of the smallest stride that differs.

    The sizes are the entry's and the strides are not, in the same order: `y[:, :, -4:]` of a longer `y`, `y[:, 0]` of a wider one. The
    strides of the dimensions outside of that one may change with it (`dynamic.stride_rules`).
    """
    found: dict[Source, int] = {}
    for guard in payload.tensors:
        tensor = follow(guard.source.path, frame)
        is_alike = type(tensor) is guard.kind and guard.identity is None and guard.strides is not None
        if not is_alike or tensor.layout is not guard.layout or not _has_sizes_of(guard, tensor):
            continue
        sizes, strides = tensor.shape, tensor.stride()
        expected = guard.strides if guard.rules is None else strides_by(guard.rules, sizes, strides.__getitem__)
        differing = [d for d, (mine, theirs) in enumerate(zip(strides, expected, strict=True)) if mine != theirs]
        if differing and _order(strides) == _order(guard.strides):
            dim = min(differing, key=lambda d: (strides[d], sizes[d] != 1, -d))
            if is_free_stride(strides[dim]):
                found[guard.source] = dim
    return found


def _has_sizes_of(guard: TensorGuard, tensor: torch.Tensor) -> bool:
    if tensor.dim() != len(guard.sizes):
        return False
    pairs = enumerate(zip(tensor.shape, guard.sizes, strict=True))
    return all(mine == theirs or d in guard.dynamic_dims for d, (mine, theirs) in pairs)


def _order(strides: Sequence[int]) -> list[int]:
    return sorted(range(len(strides)), key=strides.__getitem__)


def changed_decision(payload: Payload, frame: Any) -> tuple[int, Decision | None] | None:
    """What this call decides differently than the entry first, and its position among the entry's decisions.

    The decision is None if all come out the same. None if the entry has none, or one cannot be made for this call.
    """
    decided = payload.decided
    if not decided.decisions:
        return None
    position = decided.first_changed([follow(source.path, frame) for source in decided.sources])
    if position is None:
        return None
    return position, decided.decisions[position] if position < len(decided.decisions) else None


def comes_to_another_end(payload: Payload, frame: Any) -> bool:
    """Whether an iterator is at its end in this call and was not when the entry was made, or the other way round."""
    return any(follow(source.path, frame) is not has_more for source, has_more in payload.ends)


def exchanged_tensors(payload: Payload, frame: Any) -> set[Source]:
    """Where this call has another parameter or buffer than the one that is a constant of the entry's graph."""
    found = set()
    for guard in payload.tensors:
        if guard.identity is not None:
            tensor = follow(guard.source.path, frame)
            if type(tensor) is guard.kind and tensor is not guard.identity:
                found.add(guard.source)
    return found


def exchanged_modules(payload: Payload, frame: Any) -> dict[Source, bool]:
    """Where this call has another module than the one that the entry is made for, the outermost ones only.

    The value tells whether the next call may well have yet another one: an argument, or what no module holds that is itself the same.
    """
    known = {source for source, _ in payload.modules}
    found = set()
    for source, module in payload.modules:
        here = follow(source.path, frame)
        if isinstance(here, torch.nn.Module) and here is not module():
            found.add(source)
    outermost = [source for source in found if found.isdisjoint(_above(source))]
    return {
        source: isinstance(source.root, (LocalSource, ClosureSource)) and known.isdisjoint(_above(source))
        for source in outermost
    }


def _above(source: Source) -> list[Source]:
    return list(source.chain())[1:]


def is_same_number(a: float, b: float) -> bool:
    """Whether two ints, or two floats, are one value: nan is itself, 0.0 is not -0.0."""
    return a.hex() == b.hex() if type(a) is type(b) is float else a == b


def follow(path: Path, frame: Any) -> Any:
    """The object at a guard path in a `FrameInfo`, None when there is none."""
    root, *steps = path
    try:
        value = _ROOTS[root[0]](frame, *root[1:])
        for kind, *argument in steps:
            value = _STEPS[kind](value, *argument)
    except (LookupError, AttributeError, TypeError, ValueError, ArithmeticError, ReferenceError, RuntimeError):
        return None
    return value


def _own_dict(value: Any) -> Any:
    return namespace_of(value) if is_class(value) else own_dict(value)


def _attribute(value: Any, name: str) -> Any:
    """`value.name` where that runs no code of the program: it may be an object of another class than when the path was made."""
    mro = mro_of(type(value))
    raw = find_in_mro(mro, name)[0]
    getter = raw.fget if isinstance(raw, property) else find_in_mro(mro_of(type(raw)), "__get__")[0]
    asked = (getter, *(find_in_mro(mro, hook)[0] for hook in ("__getattribute__", "__getattr__")))
    if any(isinstance(code, types.FunctionType) and not is_trusted_function(code) for code in asked):
        raise AttributeError
    return getattr(value, name)


def _item(value: Any, key: Any) -> Any:
    """`value[key]` where that runs no code of the program."""
    method = find_in_mro(mro_of(type(value)), "__getitem__")[0]
    if isinstance(method, types.FunctionType) or isinstance(value, dict):
        return own_item(value, key)
    return value[key]


def _closure_cell(frame: Any, name: str) -> Any:
    return frame.closure[frame.code.co_freevars.index(name)]


def _computed(frame: Any, function: Callable[..., Any], paths: Sequence[Path]) -> Any:
    return function(*[follow(path, frame) for path in paths])


_ROOTS: Mapping[str, Callable[..., Any]] = {
    "local": lambda frame, name: frame.locals[name],
    "global": lambda frame, name: frame.globals[name],
    "builtin": lambda frame, name: frame.builtins[name],
    "closure": lambda frame, name: _closure_cell(frame, name).cell_contents,
    "closure_cell": _closure_cell,
    "const": lambda frame, obj: obj,
    "referent": lambda frame, reference: reference(),
    "globals": lambda frame: frame.globals,
    "computed": lambda frame, computation: _computed(frame, *computation),
}
_STEPS: Mapping[str, Callable[..., Any]] = {
    "attr": lambda value, name: _attribute(value, name),
    "instance_dict": lambda value, name: _own_dict(value)[name],
    "own_dict": lambda value: _own_dict(value),
    "descriptor": lambda value, descriptor: descriptor.__get__(value),
    "slot": lambda value, slot: namespace_of(slot[0]())[slot[1]].__get__(value),
    "dict_item": lambda value, key: own_item(value, key),
    "dict_item_of": lambda value, reference: own_item(value, reference()),
    "list_item": list.__getitem__,
    "tuple_item": tuple.__getitem__,
    "item": lambda value, key: _item(value, key),
    "type": type,
    "dict_key": lambda value, index: list(value)[index],
    "apply": lambda value, function: function(value),
}
