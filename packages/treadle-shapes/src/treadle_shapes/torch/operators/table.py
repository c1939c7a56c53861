"""The operator table: `operator(target)` returns the record of anything that a graph calls."""

from __future__ import annotations

import types
from typing import Any

import torch

from treadle_shapes.torch.operators.declare import ALSO, DECLARED, Declaration, load_families
from treadle_shapes.torch.operators.derive import cost_of, from_schema
from treadle_shapes.torch.operators.record import Kind, Operator

# Name of a Python operator or special method without underscores -> name of the ATen operator.
_PYTHON = {
    **{name: name for name in "add sub mul pow neg abs matmul eq ne lt le gt ge getitem setitem delitem rsub".split()},
    "truediv": "div",
    "floordiv": "floor_divide",
    "mod": "remainder",
    "and": "bitwise_and",
    "or": "bitwise_or",
    "xor": "bitwise_xor",
    "invert": "bitwise_not",
    "lshift": "bitwise_left_shift",
    "rshift": "bitwise_right_shift",
    "pos": "positive",
    "concat": "concat",
}
_REFLECTED = "radd rmul rpow rmatmul rtruediv rfloordiv rmod rand ror rxor rlshift rrshift".split()
_IN_PLACE = "iadd isub imul ipow imatmul itruediv ifloordiv imod iand ior ixor ilshift irshift iconcat".split()
_WRITING = frozenset([*_IN_PLACE, "setitem", "delitem"])

# Facts that hold only for the functional form of a family.
_FUNCTIONAL = (
    *("is_speculatable", "reinterprets", "keeps_index", "is_strided_view", "may_return_argument"),
    *("like_first_argument", "fake_kernel", "preserved", "right_operand", "no_empty_over", "python_kernel_copies"),
)
# Python modules whose functions have the names of their operators.
_MODULES = frozenset({"torch", "torch.functional", "torch.nn.functional", "torch._tensor", "torch._jit_internal"})
_NAMESPACES = frozenset({"aten", "prims", "prim", "treadle"})  # treadle: `random_replay`
_MISSING: Any = object()
_RECORDS: dict[Any, Operator | None] = {}


def operator(target: Any) -> Operator | None:
    """Return the record of an operator, or None for a target that is no operator of PyTorch.

    target: an OpOverload or OpOverloadPacket of ATen, a torch function (`torch.add`, `torch.nn.functional.softmax`, `torch.Tensor.add`),
    a function of Python's `operator` module, or the name of a method or property of Tensor ("view", "add_", "__add__", "mT").
    """
    found = _RECORDS.get(target, _MISSING)
    return _find(target) if found is _MISSING else found


def _find(target: Any) -> Operator | None:
    load_families()
    if isinstance(target, torch._ops.OpOverload):
        made = _of_overload(target)
    elif isinstance(target, str):
        made = _of_name(target, target)
    elif isinstance(target, torch._ops.OpOverloadPacket):
        made = _of_packet(target)
    else:
        name = _torch_name(target)
        if name is None:
            return None  # not cached: the table would keep a function of the user alive
        made = _of_name(name, target)
    _RECORDS[target] = made
    return made


def _torch_name(target: Any) -> str | None:
    """Return the operator name of a function of PyTorch or of Python's `operator` module, None for any other function."""
    if isinstance(target, types.FunctionType):
        name = target.__name__ if target.__module__ in _MODULES else None
    elif isinstance(target, types.BuiltinFunctionType):
        module = target.__module__ or ""
        name = target.__name__ if module == "torch" or module.startswith("torch._C.") else None
        if module == "_operator":
            name = f"__{target.__name__.strip('_')}__"
    elif isinstance(target, (types.MethodDescriptorType, types.WrapperDescriptorType)):
        name = target.__name__ if issubclass(torch.Tensor, target.__objclass__) else None
    else:
        name = None
    return name


# -- finding the family ------------------------------------------------------------------------------------------------


def _declaration(name: str) -> Declaration | None:
    """Return the declaration of a name. A name with a trailing underscore has that of its functional form."""
    for known in (name, name.removesuffix("_")):
        declared = DECLARED.get(ALSO.get(known, known))
        if declared is not None:
            return declared
    return None


def _family_of(name: str, declared: Declaration | None) -> str:
    return name.removesuffix("_") if declared is None else declared.family


def _of_overload(op: torch._ops.OpOverload) -> Operator | None:
    namespace, base = op._schema.name.split("::")
    if namespace not in _NAMESPACES:
        return None
    declared = None if namespace == "prims" else _declaration(base)
    overload = op._schema.overload_name or "default"
    facts = from_schema(op)
    if declared is not None:
        is_inplace_form = base.removesuffix("_") == declared.family != base
        refined = {} if is_inplace_form else declared.overloads.get(overload, {})
        facts = _joined(facts, declared, refined)
    return _record(str(op), _family_of(base, declared), facts)


def _of_packet(packet: torch._ops.OpOverloadPacket) -> Operator | None:
    namespace, base = packet._qualified_op_name.split("::")
    return _of_name(base, packet) if namespace == "aten" else None


def _of_name(name: str, target: Any) -> Operator | None:
    """Return the record of a method, property or function: facts of its family and of its primary functional overload."""
    writes: tuple[str, ...] = ()
    if name.startswith("__") and name.endswith("__"):
        bare = name.strip("_")
        writes = ("self",) if bare in _WRITING else ()
        if bare in _REFLECTED or bare in _IN_PLACE:
            bare = bare[1:]
        if bare not in _PYTHON:
            return None
        name = _PYTHON[bare]
    declared = _declaration(name)
    name = _aten_name(name, declared)
    packet: Any = getattr(torch.ops.aten, name, None)
    if not isinstance(packet, torch._ops.OpOverloadPacket):  # such as `torch.ops.aten.name`, a string
        packet = None
    if declared is None and packet is None:
        return None
    primary = None if packet is None else _primary(packet)
    facts = {} if primary is None else from_schema(primary)
    if primary is not None and writes:
        facts["aliases"] = ((0, "self"),)
    if writes:
        facts["writes"], facts["is_pure"] = writes, False
    if declared is not None:
        facts = _joined(facts, declared, declared.call_forms.get(target, {}))
    prefix = "" if packet is None else "aten."
    return _record(prefix + name, _family_of(name, declared), facts)


def _aten_name(name: str, declared: Declaration | None) -> str:
    """Return the name in ATen. Properties of Tensor and Python operators may have another name there."""
    return declared.family if declared is not None and name in ALSO and not hasattr(torch.ops.aten, name) else name


def _primary(packet: torch._ops.OpOverloadPacket) -> torch._ops.OpOverload:
    names = packet.overloads()
    wanted = [name for name in ("default", "Tensor", "self", "int", "dim") if name in names]
    first = next((name for name in names if not name.endswith("out")), names[0])
    return getattr(packet, (wanted or [first])[0])


# -- joining facts -----------------------------------------------------------------------------------------------------


def _joined(derived: dict[str, Any], declared: Declaration, refined: Any) -> dict[str, Any]:
    """Join facts. Those of the family override derived ones; those of the overload or call form override both."""
    facts = {**derived, **declared.facts}
    if derived.get("writes"):
        facts["writes"] = derived["writes"]
        for name in _FUNCTIONAL:
            facts.pop(name, None)
    return {**facts, **refined}


def _record(name: str, family: str, facts: dict[str, Any]) -> Operator:
    kind = facts.pop("kind", Kind.OTHER)
    facts["cost"] = facts.get("cost") or cost_of(kind)
    facts["is_view"] = kind is Kind.VIEW and not facts.get("writes")
    out = facts.get("out")
    if isinstance(out, str):
        facts["out"] = getattr(getattr(torch.ops.aten, family), out)
    return Operator(name=name, family=family, kind=kind, **facts)


__all__ = ["operator"]
