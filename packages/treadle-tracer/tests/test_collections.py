"""The cyclic collector waits while a compile runs, and is afterwards as it was."""

from __future__ import annotations

import gc

import pytest
import torch
from compile_runs import compiled


@pytest.fixture(params=[True, False], ids=["on", "off"])
def enabled(request):
    before = gc.isenabled()
    (gc.enable if request.param else gc.disable)()
    yield request.param
    (gc.enable if before else gc.disable)()


def test_a_compile_starts_no_collection_but_its_backend_may(enabled):
    seen, collections = [], []

    def backend(gm, inputs):
        seen.append(gc.isenabled())
        return gm.forward

    def layers(x):
        for _ in range(60):
            x = torch.relu(x) * 2 + torch.cat([x, x])[: x.shape[0]]
        return x

    fast, _ = compiled(layers, backend)
    thresholds = gc.get_threshold()
    gc.collect()

    def note(phase, info):
        if phase == "start" and not seen:
            collections.append(info)

    gc.callbacks.append(note)
    try:
        fast(torch.ones(3))
    finally:
        gc.callbacks.remove(note)
    assert seen == [enabled]
    assert gc.get_threshold() == thresholds and gc.isenabled() is enabled
    # Before its first phase and between two of them a compile is short, and a pause ends with a young collection.
    assert all(info["generation"] == 0 for info in collections)
