"""Targets whose calls return before their work is done: every call borrows its temporaries' memory from the allocator."""

from __future__ import annotations

import ctypes
import gc
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from aten_capture import capture
from dynamic_cases import compile_dynamic
from test_unbacked_numbers import graph_of, sample

from treadle_codegen import CodegenOptions, CompiledGraph, compile_graph
from treadle_codegen.targets.cpp.target import CPP
from treadle_codegen.targets.table import TARGETS
from treadle_codegen.targets.target import Allocation


class Allocator:
    """Remembers the arenas of all calls, weakly."""

    def __init__(self) -> None:
        self.arenas: list[weakref.ref[torch.Tensor]] = []
        self.unowned_made = 0

    def empty(self, elements: int, dtype: torch.dtype) -> torch.Tensor:
        memory = torch.full((elements,), 255 if dtype == torch.uint8 else 1, dtype=dtype)
        if elements:
            self.arenas.append(weakref.ref(memory))
        return memory

    def unowned(self, memory: torch.Tensor) -> torch.Tensor:
        self.unowned_made += 1
        return torch.frombuffer((ctypes.c_char * memory.numel()).from_address(memory.data_ptr()), dtype=torch.uint8)

    def allocation(self, device: torch.device) -> Allocation:
        return Allocation(torch.empty_strided, self.empty, self.unowned)


@pytest.fixture
def allocator(monkeypatch: pytest.MonkeyPatch) -> Allocator:
    made = Allocator()
    target = replace(CPP, name="borrowing", allocation=made.allocation)
    monkeypatch.setitem(TARGETS, target.name, target)
    monkeypatch.setitem(compile_graph.__kwdefaults__, "target", target.name)
    return made


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kernels")


def compiled(fn: Callable[..., Any], *inputs: torch.Tensor, cache: Path) -> CompiledGraph:
    options = CodegenOptions(cache_dir=cache, threads=1, pack_weights=False)
    return compile_graph(capture(fn, inputs), list(inputs), options=options)


def with_temporaries(x: torch.Tensor) -> torch.Tensor:
    return ((x.sin() @ x).cos() @ x).sigmoid() + 1


def test_a_call_borrows_one_arena_and_keeps_nothing_of_it(allocator: Allocator, cache: Path) -> None:
    x = torch.randn(80, 80)
    graph = compiled(with_temporaries, x, cache=cache)
    assert graph.host_source.count("m = borrow(w)") == 1
    for k in range(1, 4):
        torch.testing.assert_close(graph(x)[0], with_temporaries(x))
        assert len(allocator.arenas) == k
        gc.collect()
        assert all(arena() is None for arena in allocator.arenas)


def test_views_are_made_once_per_place(allocator: Allocator, cache: Path) -> None:
    x = torch.randn(80, 80)
    graph = compiled(with_temporaries, x, cache=cache)
    # Before the first call: none of them lies where its arena has been.
    places = [torch.empty(1 << 18, dtype=torch.uint8) for _ in range(2)]
    graph(x)
    made = allocator.unowned_made
    order = iter([0, 0, 1, 0, 1, 1])
    planner = graph._host.planner
    planner.allocation = planner.allocation._replace(
        empty=lambda elements, dtype: places[next(order)][:elements].fill_(255)
    )
    for _ in range(6):
        torch.testing.assert_close(graph(x)[0], with_temporaries(x))
    assert allocator.unowned_made == made + 2


def test_calls_of_changing_sizes(allocator: Allocator, cache: Path) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return (x.sin() @ x.t()).cos() @ x.exp()

    graph = compile_dynamic(fn, lambda n, c: [(n, c)], (6, 37), cache)
    for shape in ((6, 37), (5, 11), (6, 37), (50, 3), (5, 11), (6, 37), (1, 7)):
        x = torch.randn(shape)
        torch.testing.assert_close(graph(x)[0], fn(x), rtol=1e-4, atol=1e-4)
    gc.collect()
    assert allocator.arenas and all(arena() is None for arena in allocator.arenas)


def test_memory_for_sizes_known_during_the_call_is_not_kept(allocator: Allocator, cache: Path) -> None:
    def fn(x: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
        return (x[m].exp() @ x[m].t().cos()).sin() @ x[m]

    graph = compile_graph(graph_of(fn, *sample(5)), sample(5), options=CodegenOptions(cache_dir=cache, threads=1))
    assert "w.room" not in graph.host_source
    for rows in (5, 9, 2):
        inputs = sample(rows)
        torch.testing.assert_close(graph(*inputs)[0], fn(*inputs))


def test_a_call_that_fails_leaves_the_next_one_unharmed(allocator: Allocator, cache: Path) -> None:
    x = torch.randn(80, 80)
    graph = compiled(with_temporaries, x, cache=cache)
    graph(x)
    planner = graph._host.planner
    allocation = planner.allocation

    def no_memory(elements: int, dtype: torch.dtype) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    planner.allocation = allocation._replace(empty=no_memory)
    with pytest.raises(torch.OutOfMemoryError):
        graph(x)
    planner.allocation = allocation
    torch.testing.assert_close(graph(x)[0], with_temporaries(x))


def test_workspaces_of_other_targets_keep_their_memory(cache: Path) -> None:
    x = torch.randn(80, 80)
    assert "borrow" not in compiled(with_temporaries, x, cache=cache).host_source
