"""Every target by the name that `compile_graph(..., target=...)` takes."""

from __future__ import annotations

from treadle_codegen.errors import OptionError
from treadle_codegen.targets.cpp.target import CPP
from treadle_codegen.targets.target import Target

TARGETS: dict[str, Target] = {target.name: target for target in (CPP,)}


def target_named(name: str) -> Target:
    """The target of that name; raises OptionError naming the known ones."""
    if name not in TARGETS:
        raise OptionError(f"unknown target {name!r}; known: {', '.join(sorted(TARGETS))}")
    return TARGETS[name]
