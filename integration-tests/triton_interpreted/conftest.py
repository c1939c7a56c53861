"""The tests of this folder compile CPU tensors through `treadle.compile` to Triton kernels, which Triton's interpreter runs."""

from __future__ import annotations

import dataclasses
import importlib.util
from typing import Any

import pytest

import treadle
from treadle_codegen import compile_graph, parts_to_compute_again


@pytest.fixture(autouse=True)
def interpreted_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreted target is the default one, and so that of every compile."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("needs Triton")
    from treadle_codegen.targets.table import TARGETS
    from treadle_codegen.targets.triton.target import interpreted_target

    target = dataclasses.replace(interpreted_target(), renderer=_unobserved)
    monkeypatch.setitem(TARGETS, target.name, target)
    for function in (compile_graph, parts_to_compute_again):
        monkeypatch.setitem(function.__kwdefaults__, "target", target.name)


def _unobserved(options: Any) -> Any:
    """The interpreted target's renderer, whose entry points run unseen by Treadle: kernels are Python here, and no user's code."""
    from treadle_codegen.targets.triton.target import interpreted_target

    renderer = interpreted_target().renderer(options)
    load = renderer.load_unit

    def load_unit(*args: Any, **kwargs: Any) -> Any:
        entries, cached = load(*args, **kwargs)
        return {name: treadle.disable(entry) for name, entry in entries.items()}, cached

    renderer.load_unit = load_unit
    return renderer
