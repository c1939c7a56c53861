"""The cyclic collector waits in a pause and is afterwards as it was; the pause's end starts no full collection."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from treadle_shapes import paused


@pytest.fixture(params=[True, False], ids=["on", "off"])
def enabled(request):
    before = gc.isenabled()
    (gc.enable if request.param else gc.disable)()
    yield request.param
    (gc.enable if before else gc.disable)()


@pytest.fixture
def collections():
    """The generations that are collected during the test."""
    found: list[int] = []

    def note(phase, info):
        if phase == "start":
            found.append(info["generation"])

    gc.callbacks.append(note)
    yield found
    gc.callbacks.remove(note)


@pytest.fixture
def thresholds():
    before, was_enabled = gc.get_threshold(), gc.isenabled()
    gc.enable()
    yield
    gc.set_threshold(*before)
    (gc.enable if was_enabled else gc.disable)()


def objects(number):
    return [[] for _ in range(number)]


def test_it_is_restored(enabled):
    with paused():
        assert not gc.isenabled()
        with paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled() is enabled
    with pytest.raises(KeyError), paused():
        raise KeyError
    assert gc.isenabled() is enabled


def test_a_collector_that_is_off_collects_nothing_at_the_end(collections):
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        with paused():
            kept = objects(5000)
        assert not collections and kept
    finally:
        (gc.enable if was_enabled else gc.disable)()


def test_the_end_of_a_pause_collects_the_young_though_a_full_collection_is_due(thresholds, collections):
    for _ in range(12):
        gc.collect(1)
    for _ in range(12):
        gc.collect(0)
    assert all(count > 10 for count in gc.get_count()[1:])
    del collections[:]
    with paused():
        kept = objects(5000)
        cycle: list[object] = []
        cycle.append(cycle)
        assert not collections
    assert collections == [0] and gc.get_count()[0] < gc.get_threshold()[0]
    # The program's own objects start older ones. Whether a full one is among them depends on how many objects there are in all.
    kept += objects(5000)
    assert any(generation > 0 for generation in collections)


def test_a_short_pause_collects_nothing(thresholds, collections):
    gc.collect(0)
    del collections[:]
    with paused():
        pass
    assert not collections


def test_a_threshold_of_0_means_never(thresholds, collections):
    gc.set_threshold(0)
    with paused():
        kept = objects(5000)
    assert not collections and kept


# The threshold is more than what Python makes to find the package, and less than what the package makes.
_IMPORTS = """
import contextlib, gc
gc.set_threshold(3000)
for _ in range(12): gc.collect(1)
for _ in range(12): gc.collect(0)
found = []
gc.callbacks.append(lambda phase, info: found.append(info["generation"]))
import treadle_shapes
gc.callbacks.clear()
assert found and not any(found), found
"""


def test_an_import_starts_no_full_collection():
    subprocess.run([sys.executable, "-c", _IMPORTS], check=True)
