"""The tests of this folder compile for Triton and run its kernels with Triton's interpreter, on the CPU.

Every kernel that they render is kept, and `test_offline_kernels.py`, which runs last, compiles them for GPUs.
"""

from __future__ import annotations

import dataclasses
import importlib.util
from typing import Any

import pytest

from treadle_codegen import compile_graph
from treadle_codegen.targets.table import TARGETS
from treadle_codegen.targets.target import Target

HAS_TRITON = importlib.util.find_spec("triton") is not None
LAST = "test_offline_kernels.py"
UNITS = pytest.StashKey[set[str]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[UNITS] = set()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name == LAST)


@pytest.fixture(scope="session")
def rendered_units(pytestconfig: pytest.Config) -> set[str]:
    """The texts of all units that the tests of this session have rendered so far, as they are for GPUs."""
    return pytestconfig.stash.setdefault(UNITS, set())


def _keeping(target: Target, units: set[str]) -> Target:
    """The target; its renderers add the units that they load to `units`."""
    from treadle_codegen.targets.triton.renderer import INTERPRETED_HEAD, TritonRenderer

    class Keeping(TritonRenderer):
        def load(self, source: str, *args: Any, **kwargs: Any) -> Any:
            units.add(source.replace(INTERPRETED_HEAD, TritonRenderer(self.options, self.load_unit).prelude))
            return super().load(source, *args, **kwargs)

    def renderer(options: Any) -> TritonRenderer:
        made = target.renderer(options)
        return Keeping(made.options, made.load_unit, made.prelude)

    return dataclasses.replace(target, renderer=renderer)


@pytest.fixture(autouse=True)
def interpreted_triton(monkeypatch: pytest.MonkeyPatch, rendered_units: set[str]) -> None:
    if not HAS_TRITON:
        pytest.skip("needs Triton")
    from treadle_codegen.targets.triton.target import interpreted_target

    target = _keeping(interpreted_target(), rendered_units)
    monkeypatch.setitem(TARGETS, target.name, target)
    monkeypatch.setitem(compile_graph.__kwdefaults__, "target", target.name)
