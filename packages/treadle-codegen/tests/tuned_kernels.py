"""Compiling with measured choices where a test says which variants are fast."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from aten_capture import capture

from treadle_codegen import CodegenOptions, compile_graph
from treadle_codegen.targets.table import TARGETS


class PreferredLabels:
    """A clock by which variants whose labels hold a certain text are the fastest."""

    identity, noise = "preferred labels", 0.0

    def __init__(self, text: str) -> None:
        self.text = text

    def seconds(self, run: Callable[[], Any], label: str) -> float:
        return 1.0 if self.text in label else 2.0


def compiled_with(prefer: str, function: Any, args: list[torch.Tensor], cache: Path) -> Any:
    target = replace(TARGETS["triton-interpreted"], name="triton-tuned", clock=lambda device: PreferredLabels(prefer))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(TARGETS, target.name, target)
        options = CodegenOptions(autotune=True, verify=True, cache_dir=cache)
        return compile_graph(capture(function, args), args, target=target.name, options=options)
