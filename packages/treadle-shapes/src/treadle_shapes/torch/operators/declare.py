"""Declarations of operator families, the parts of a record that no schema tells.

    family("squeeze", kind=Kind.VIEW, overloads={"default": {"element_use": ElementUse.KEPT}})
    families("gather scatter", raises=Raises.BY_VALUE)

A fact is a field of `Operator`. A family is declared once.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import torch

from treadle_shapes.errors import UsageError
from treadle_shapes.torch.operators.record import Operator

Facts = Mapping[str, Any]
_FACTS = frozenset(f.name for f in fields(Operator)) - {"name", "family"} | {"out"}


@dataclass(frozen=True, slots=True)
class Declaration:
    """What is stated of a family. `out` is the name of an overload here, a field of `Operator` in the record.

    overloads: overload name -> facts of that overload only. call_forms: function -> facts of that way of calling it.
    """

    family: str
    facts: Facts
    overloads: Mapping[str, Facts] = field(default_factory=dict)
    call_forms: Mapping[Any, Facts] = field(default_factory=dict)


#: family -> its declaration
DECLARED: dict[str, Declaration] = {}
#: other names of a family -> its name: aliases of ATen, properties of Tensor
ALSO: dict[str, str] = {}


# The modules that declare families.
_MODULES = (
    "attention convolution creation effects indexing linalg losses matmul normalisation pointwise pooling "
    "queries random reductions resampling sorting sparse views "
).split()


@functools.cache
def load_families() -> None:
    """Import the family modules, which fills `DECLARED`; not before somebody asks."""
    for name in _MODULES:
        importlib.import_module(f"treadle_shapes.torch.operators.{name}")


def family(
    name: str,
    *,
    also: str = "",
    overloads: Mapping[str, Facts] | None = None,
    call_forms: Mapping[Any, Facts] | None = None,
    **facts: Any,
) -> None:
    """Declare a family. `also`: further names for it, separated by blanks. Raises UsageError for one declared before or an unknown fact."""
    for stated in (name, *also.split()):
        if stated in DECLARED or stated in ALSO:
            raise UsageError(f"family: {stated!r} is declared twice")
    for given in (facts, *(overloads or {}).values(), *(call_forms or {}).values()):
        unknown = given.keys() - _FACTS
        if unknown:
            raise UsageError(f"family: {name!r} states {sorted(unknown)}, which no field of Operator is called")
    DECLARED[name] = Declaration(name, facts, overloads or {}, call_forms or {})
    ALSO.update(dict.fromkeys(also.split(), name))


def families(names: str, **facts: Any) -> None:
    """Declare the same facts of several families, separated by blanks."""
    for name in names.split():
        family(name, **facts)


def families_with(fact: str) -> frozenset[str]:
    """The families of which `fact` is stated, for the whole family or for one of its overloads."""
    load_families()
    return frozenset(
        name
        for name, stated in DECLARED.items()
        if fact in stated.facts or any(fact in part for part in stated.overloads.values())
    )


def corrected_by(patch: str) -> list[torch._ops.OpOverload]:
    """The overloads whose fake kernels the entry `patch` of `patches` corrects; of a family stated as a whole, its default overload."""
    load_families()
    found = []
    for name, stated in DECLARED.items():
        packet = getattr(torch.ops.aten, name, None)
        overloads = [o for o, facts in stated.overloads.items() if facts.get("fake_correction") == patch]
        if stated.facts.get("fake_correction") == patch:
            overloads.append("default")
        found += [getattr(packet, o) for o in overloads if o in packet.overloads()]
    return found


__all__ = ["ALSO", "DECLARED", "Declaration", "corrected_by", "families", "families_with", "family", "load_families"]
