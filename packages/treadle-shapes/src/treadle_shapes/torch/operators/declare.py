"""Declarations of operator families: the facts of a record that schemas do not state.

    family("squeeze", kind=Kind.VIEW, overloads={"default": {"element_use": ElementUse.KEPT}})
    families("gather scatter", raises=Raises.BY_VALUE)

A fact is a field of `Operator`. A family is declared once.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from treadle_shapes.errors import UsageError
from treadle_shapes.torch.operators.record import Operator

Facts = Mapping[str, Any]
_FACTS = frozenset(Operator.__annotations__) - {"name", "family"}


class Declaration(NamedTuple):
    """The declared facts of a family. Here `out` is the name of an overload; in the record it is the overload itself.

    overloads: overload name -> facts of that overload only. call_forms: function or method name -> facts of that call form only.
    """

    family: str
    facts: Facts
    overloads: Mapping[str, Facts]
    call_forms: Mapping[Any, Facts]


#: family -> its declaration
DECLARED: dict[str, Declaration] = {}
#: another name (an alias in ATen, a property of Tensor) -> family
ALSO: dict[str, str] = {}


# The modules that declare families.
_MODULES = (
    "attention convolution creation effects indexing linalg losses matmul normalisation optimizers pointwise pooling "
    "queries random reductions resampling sorting sparse views "
).split()


@functools.cache
def load_families() -> None:
    """Import the family modules, which fills `DECLARED`. The first query calls this, not an import."""
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
    """Declare a family. also: further names, separated by blanks. Raises UsageError for a second declaration or an unknown fact."""
    for stated in (name, *also.split()):
        if stated in DECLARED or stated in ALSO:
            raise UsageError(f"family: {stated!r} is declared twice")
    for given in (facts, *(overloads or {}).values(), *(call_forms or {}).values()):
        unknown = given.keys() - _FACTS
        if unknown:
            raise UsageError(f"family: {name!r} states {sorted(unknown)}, but Operator has no such fields")
    DECLARED[name] = Declaration(name, facts, overloads or {}, call_forms or {})
    ALSO.update(dict.fromkeys(also.split(), name))


def families(names: str, **facts: Any) -> None:
    """Declare the same facts for several families. names: separated by blanks."""
    for name in names.split():
        family(name, **facts)


def families_with(fact: str) -> frozenset[str]:
    """Return the families that declare `fact`, for the whole family or for one of its overloads."""
    load_families()
    return frozenset(
        name
        for name, stated in DECLARED.items()
        if fact in stated.facts or any(fact in part for part in stated.overloads.values())
    )


def corrected_by(patch: str) -> list[torch._ops.OpOverload]:
    """Return the overloads whose `fake_correction` is `patch`. For a fact of a whole family, this is its default overload."""
    load_families()
    found = []
    for name, stated in DECLARED.items():
        overloads = [o for o, facts in stated.overloads.items() if facts.get("fake_correction") == patch]
        if stated.facts.get("fake_correction") == patch:
            overloads.append("default")
        if overloads:
            packet: Any = getattr(torch.ops.aten, name)
            found += [getattr(packet, o) for o in overloads if o in packet.overloads()]
    return found


__all__ = ["ALSO", "DECLARED", "Declaration", "corrected_by", "families", "families_with", "family", "load_families"]
