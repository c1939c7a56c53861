"""The tests of this folder compile for Triton and run its kernels with Triton's interpreter, on the CPU."""

from __future__ import annotations

import importlib.util

import pytest

from treadle_codegen import compile_graph
from treadle_codegen.targets.table import TARGETS

HAS_TRITON = importlib.util.find_spec("triton") is not None


@pytest.fixture(autouse=True)
def interpreted_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    if not HAS_TRITON:
        pytest.skip("needs Triton")
    from treadle_codegen.targets.triton.target import interpreted_target

    target = interpreted_target()
    monkeypatch.setitem(TARGETS, target.name, target)
    monkeypatch.setitem(compile_graph.__kwdefaults__, "target", target.name)
