"""Derives the facts of a record that follow from an operator's schema, tags and dispatch keys."""

from __future__ import annotations

from typing import Any

import torch

from treadle_shapes.torch.operators.record import Cost, Kind

_COMPOSITE = "CompositeImplicitAutograd"

# The cost class of an operator without a declared one.
_COSTS: dict[Kind, Cost] = {
    Kind.VIEW: Cost.FREE,
    Kind.QUERY: Cost.FREE,
    **dict.fromkeys((Kind.POINTWISE, Kind.COPY, Kind.CREATION, Kind.GATHER, Kind.EFFECT), Cost.CHEAP),
    **dict.fromkeys((Kind.REDUCTION, Kind.SCAN, Kind.SCATTER, Kind.NORMALISATION), Cost.REDUCTION),
    **dict.fromkeys((Kind.POOLING, Kind.RESAMPLING, Kind.LOSS), Cost.REDUCTION),
    **dict.fromkeys((Kind.MATMUL, Kind.CONVOLUTION, Kind.ATTENTION, Kind.SORT, Kind.LINALG, Kind.FFT), Cost.HEAVY),
    Kind.RANDOM: Cost.HEAVY,  # generators of CPUs draw one number after the other: 4 to 8 ns each
    **dict.fromkeys((Kind.SPARSE, Kind.OTHER), Cost.HEAVY),
}


def cost_of(kind: Kind) -> Cost:
    """Return the recompute cost of an operator of this kind."""
    return _COSTS[kind]


def from_schema(op: torch._ops.OpOverload) -> dict[str, Any]:
    """Return the fields of `Operator` that follow from `op` itself. `kind` is among them only where the schema or a tag decides it."""
    schema, tags = op._schema, op.tags
    facts: dict[str, Any] = {
        "writes": tuple([a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]),
        "aliases": _aliases(schema),
        "is_pointwise": torch.Tag.pointwise in tags,
        "is_random": torch.Tag.nondeterministic_seeded in tags,
        "is_composite": _is_composite(op.name()),
        "has_data_dependent_size": torch.Tag.dynamic_output_shape in tags,
    }
    facts["is_pure"] = bool(schema.returns) and not facts["is_random"] and not schema.is_mutable
    kind = _kind(facts, tags, schema)
    if kind is not None:
        facts["kind"] = kind
    return facts


def _is_composite(name: str) -> bool:
    has_kernel = torch._C._dispatch_has_kernel(name)  # False for operators that exist in TorchScript only
    return has_kernel and torch._C._dispatch_has_kernel_for_dispatch_key(name, _COMPOSITE)


def _aliases(schema: Any) -> tuple[tuple[int, str], ...]:
    found = []
    for index, result in enumerate(schema.returns):
        if isinstance(
            result.type, torch.ListType
        ):  # `Tensor(a -> *) self` -> `Tensor(a)[]`: the list itself has no alias set
            found += [
                (index, a.name) for a in schema.arguments if a.alias_info is not None and "*" in a.alias_info.after_set
            ]
        if result.alias_info is not None:
            shared = result.alias_info.before_set
            found += [
                (index, a.name)
                for a in schema.arguments
                if a.alias_info is not None and a.alias_info.before_set & shared
            ]
    return tuple(found)


def _kind(facts: dict[str, Any], tags: Any, schema: Any) -> Kind | None:
    if facts["aliases"] and not facts["writes"]:
        return Kind.VIEW
    if facts["is_random"]:
        return Kind.RANDOM
    if facts["is_pointwise"]:
        return Kind.POINTWISE
    if torch.Tag.reduction in tags:
        return Kind.REDUCTION
    if torch.Tag.view_copy in tags:
        return Kind.COPY
    return None if schema.returns else Kind.EFFECT


__all__ = ["cost_of", "from_schema"]
