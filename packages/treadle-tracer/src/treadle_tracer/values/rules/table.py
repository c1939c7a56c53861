"""All rules, and the rule of a callable."""

from __future__ import annotations

import functools
import re
import types
from collections.abc import Iterable
from typing import Any

from treadle_tracer.by_identity import IdentityDict
from treadle_tracer.class_facts import defining_package, is_class, module_of, qualname_of
from treadle_tracer.errors import InternalError
from treadle_tracer.values.rules import (
    class_statements,
    control_flow_operators,
    copying,
    covariance,
    flex_attention,
    foreach,
    frames,
    function_transforms,
    imports,
    inspection,
    jagged_tensors,
    library,
    nested_compilers,
    nested_encoders,
    numpy_arrays,
    operators,
    optimizers,
    output,
    packed_sequences,
    pickling,
    pure_twins,
    python_builtins,
    random_numbers,
    recurrent_cells,
    source_text,
    symbolic_floats,
    threads,
    torch_functions,
    torch_state,
    unbacked_sizes,
    vmap_levels,
    vmapped_concatenation,
)
from treadle_tracer.values.rules.registered import REGISTERED
from treadle_tracer.values.rules.rule import Rule, folds

ALL_RULES: tuple[Rule, ...] = (
    *frames.RULES,
    *python_builtins.RULES,
    *class_statements.RULES,
    *pure_twins.RULES,
    *source_text.RULES,
    *operators.RULES,
    *control_flow_operators.RULES,
    *copying.RULES,
    *covariance.RULES,
    *imports.RULES,
    *inspection.RULES,
    *jagged_tensors.RULES,
    *library.RULES,
    *nested_compilers.RULES,
    *nested_encoders.RULES,
    *flex_attention.RULES,
    *foreach.RULES,
    *numpy_arrays.RULES,
    *function_transforms.RULES,
    *vmap_levels.RULES,
    *vmapped_concatenation.RULES,
    *optimizers.RULES,
    *random_numbers.RULES,
    *output.RULES,
    *packed_sequences.RULES,
    *recurrent_cells.RULES,
    *pickling.RULES,
    *torch_state.RULES,
    *torch_functions.RULES,
    *symbolic_floats.RULES,
    *threads.RULES,
    *unbacked_sizes.RULES,
)
"""One rule per function; their order means nothing."""


def build_table(given: Iterable[Rule]) -> dict[Any, Rule]:
    """Rule by function, or by dotted name. Raises InternalError for two rules of one function."""
    table: dict[Any, Rule] = {}
    rules = list(given)
    for rule in rules:
        if not rule.is_current:
            continue
        other = table.setdefault(rule.function, rule)
        if other is not rule:
            raise InternalError("rules", f"{rule.function!r} has two rules: {other.place} and {rule.place}")
    for rule in rules:
        if rule.wraps is not None and table.get(rule.wraps.function) is not rule:
            raise InternalError("rules", f"{rule.place} wraps a rule of another function, {rule.wraps.function!r}")
    return table


_BY_FUNCTION = IdentityDict(build_table(rule for rule in ALL_RULES if not isinstance(rule.function, str)))
_NAMES = frozenset(rule.function for rule in ALL_RULES if isinstance(rule.function, str))
_AVAILABILITY = re.compile(r"is_\w+_available")
_PROBING_LIBRARIES = frozenset({"transformers", "accelerate", "diffusers", "peft", "timm", "huggingface_hub"})
"""Libraries whose `is_..._available` functions ask which packages are installed, which does not change."""


def rule_of(obj: Any) -> Rule | None:
    """The rule of a callable, or None."""
    found = (REGISTERED.get(obj) if REGISTERED else None) or _BY_FUNCTION.get(obj)
    if found is None and type(obj) is types.FunctionType:
        package = defining_package(obj)
        if package in _PROBING_LIBRARIES and _AVAILABILITY.fullmatch(obj.__name__):
            return folds(obj)
        name = f"{obj.__module__}.{obj.__qualname__}"
        return _rules_by_name().get(name) if name in _NAMES and package == name.partition(".")[0] else None
    if found is None and is_class(obj) and type(module_of(obj)) is str:
        name = f"{module_of(obj)}.{qualname_of(obj)}"
        return _rules_by_name().get(name) if name in _NAMES else None
    return found


@functools.cache
def _rules_by_name() -> dict[Any, Rule]:
    """Return the current rules of functions whose modules the tracer does not import.

    Not built at import: whether such a rule is current may take reading the metadata of a distribution, which is slow.
    """
    return build_table(rule for rule in ALL_RULES if isinstance(rule.function, str))
