"""Every target by the name that `compile_graph(..., target=...)` takes."""

from __future__ import annotations

from treadle_codegen.errors import OptionError
from treadle_codegen.targets.cpp.target import CPP
from treadle_codegen.targets.target import Target
from treadle_codegen.targets.triton.target import TRITON

TARGETS: dict[str, Target] = {target.name: target for target in (CPP, TRITON)}


def target_named(name: str) -> Target:
    """The target of that name; raises OptionError naming the known ones."""
    if name not in TARGETS:
        raise OptionError(f"unknown target {name!r}; known: {', '.join(sorted(TARGETS))}")
    return TARGETS[name]


def target_for(device_type: str) -> Target:
    """The target for graphs that work on such a device; the C++ target where there is none, which then names what it takes."""
    return next((target for target in TARGETS.values() if device_type in target.devices), CPP)
