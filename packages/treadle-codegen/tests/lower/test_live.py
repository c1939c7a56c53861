"""Which values still read a buffer that is about to be written over."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from aten_capture import capture
from torch import Tensor

from treadle_codegen.lower import live, lower_graph
from treadle_codegen.lower.live import LiveValues, buffers_read
from treadle_codegen.lower.tensor_expr import TensorExpr

aten = torch.ops.aten


def _history(x: Tensor, steps: int) -> list[Tensor]:
    """Each step writes a row, and keeps what it has computed."""
    out, kept = x.cumsum(0), []
    for n in range(steps):
        y = out[n - 1].sin() + x[n]
        kept.append(y * 2 + x[0])
        out = aten.select_scatter(out, y, 0, n)
    return [out, *kept]


def _views_kept(x: Tensor, steps: int) -> list[Tensor]:
    """Values of earlier steps read what later ones write over."""
    out, kept = x.cumsum(0), []
    for n in range(steps):
        kept.append(out[n % 3] + 1)
        out = aten.slice_scatter(out, x[n : n + 1] * 2, 0, n, n + 1)
        if n % 4 == 0:
            kept.append(kept[-1].cumsum(0))
    return [out, *kept]


def _brute_force(self: LiveValues, node: torch.fx.Node, buffer: str) -> list[TensorExpr]:
    found = []
    for other, value in self._values.items():
        if any(node < user for user in other.users):
            found += [x for x in (value if isinstance(value, (tuple, list)) else (value,)) if isinstance(x, TensorExpr)]
    return [x for x in found if buffer in buffers_read(x)]


@pytest.mark.parametrize("program", [_history, _views_kept])
def test_readers_are_those_that_asking_every_value_finds(
    program: Callable[[Tensor, int], list[Tensor]], monkeypatch: pytest.MonkeyPatch
) -> None:
    original, counts = LiveValues.readers_behind, []

    def checked(self: LiveValues, node: torch.fx.Node, buffer: str) -> list[TensorExpr]:
        found, expected = original(self, node, buffer), _brute_force(self, node, buffer)
        assert list(map(id, found)) == list(map(id, expected))
        counts.append(len(expected))
        return found

    monkeypatch.setattr(LiveValues, "readers_behind", checked)
    lower_graph(capture(lambda x: program(x, 12), [torch.randn(24, 24)]))
    assert len(counts) >= 12


def test_values_are_asked_a_few_times_each(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(live, "buffers_read", lambda x: asked.append(x) or buffers_read(x))
    counts = []
    for steps in (50, 100):
        asked.clear()
        lower_graph(capture(lambda x, steps=steps: _history(x, steps), [torch.randn(steps, 8)]))
        counts.append(len(asked))
    assert steps <= counts[1] <= 2.2 * counts[0]
