"""From the text of a unit to launches: real kernels, the real launcher, and a driver of these tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from targets.triton import units
from targets.triton.driver import Driver, FakeRuntime

from treadle_codegen.errors import CodegenUnavailable
from treadle_codegen.options import CodegenOptions
from treadle_codegen.targets.triton import runtime as runtime_module
from treadle_codegen.targets.triton.build import load_unit
from treadle_codegen.targets.triton.entries import ENTRY_ABI, allocation
from treadle_codegen.targets.triton.launcher import DriverError

pytest.importorskip("triton")


@pytest.fixture
def cuda(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> FakeRuntime:
    fake = FakeRuntime(driver)
    monkeypatch.setattr(runtime_module, "_runtimes", [fake])
    return fake


@pytest.fixture
def options(tmp_path: Path) -> CodegenOptions:
    return CodegenOptions(cache_dir=tmp_path / "cache")


def table(*values: int) -> Any:
    made = ENTRY_ABI.new_table(len(values) + 1)
    for k, value in enumerate(values):
        made.slots[k + 1] = value
    return made


def launches(driver: Driver) -> list[str]:
    return [call for call in driver.calls() if call.startswith("launch")]


UNIT = units.unit({"k_ppl": units.add_one()}, units.one_launch())


def test_an_entry_point_launches_its_segment(driver: Driver, cuda: FakeRuntime, options: CodegenOptions) -> None:
    entries, cached = load_unit(UNIT, ["segment_0"], options)
    assert not cached
    entries["segment_0"](table(0x1000, 0x2000, 1000).argument)
    assert launches(driver) == ["launch k_ppl 4 1 1 threads 128 shared 0 stream 256: 4096 8192 1000"]
    _, cached = load_unit(UNIT, ["segment_0"], options)
    assert cached


def test_the_current_stream_is_asked_for_at_every_call(
    driver: Driver, cuda: FakeRuntime, options: CodegenOptions
) -> None:
    entries, _ = load_unit(UNIT, ["segment_0"], options)
    argument = table(0x1000, 0x2000, 1).argument
    for stream in (5, 6):
        cuda.streams[0] = stream
        entries["segment_0"](argument)
    assert [f"stream {n}:" in call for n, call in zip((5, 6), launches(driver), strict=True)] == [True, True]


def test_a_graph_on_another_device_than_the_current_one(
    driver: Driver, cuda: FakeRuntime, options: CodegenOptions
) -> None:
    entries, _ = load_unit(UNIT, ["segment_0"], options, device=torch.device("cuda:1"))
    driver.calls()
    driver.library.fake_current(0x1000)
    entries["segment_0"](table(0x1000, 0x2000, 1).argument)
    push, launch, pop = driver.calls()
    assert (push, pop) == ("push 1", "pop") and "stream 512:" in launch
    cuda.device = 1
    load_unit(UNIT, ["segment_0"], options, device=torch.device("cuda"))
    assert [device for device, _ in cuda.loaded] == [1, 1]


def test_unaligned_pointers_get_kernels_of_their_own_once(
    driver: Driver, cuda: FakeRuntime, options: CodegenOptions
) -> None:
    entries, _ = load_unit(UNIT, ["segment_0"], options)
    for address in (0x1004, 0x1008, 0x1000):
        entries["segment_0"](table(address, 0x2000, 1).argument)
    assert [int(call.split(": ")[1].split()[0]) for call in launches(driver)] == [0x1004, 0x1008, 0x1000]
    first, second = [binary for _, binary in cuda.loaded]
    assert first.content != second.content


def test_equal_kernels_are_compiled_once(driver: Driver, cuda: FakeRuntime, options: CodegenOptions) -> None:
    segments = {f"segment_{k}": units.one_launch()["segment_0"] * 2 for k in range(2)}
    entries, _ = load_unit(units.unit({"k_ppl": units.add_one()}, segments), list(segments), options)
    assert len(cuda.loaded) == 1
    for entry in entries.values():
        entry(table(0x1000, 0x2000, 1).argument)
    assert len(launches(driver)) == 4


def test_errors_of_a_launch_are_raised_with_the_drivers_text(
    driver: Driver, cuda: FakeRuntime, options: CodegenOptions
) -> None:
    entries, _ = load_unit(UNIT, ["segment_0"], options)
    driver.fail("launch", 710)
    with pytest.raises(DriverError, match="launch of kernel k_ppl: device-side assert triggered"):
        entries["segment_0"](table(0x1000, 0x2000, 1).argument)


def test_grids_that_are_too_large(driver: Driver, cuda: FakeRuntime, options: CodegenOptions) -> None:
    def unit(points: Any) -> str:
        launch = {"kernel": "k_ppl", "slots": [1, 2, 3], "grid": [[1, 1], [points, 1]]}
        return units.unit({"k_ppl": units.add_one()}, {"segment_0": [launch]})

    with pytest.raises(CodegenUnavailable, match="k_ppl needs a larger grid"):
        load_unit(unit(65536), ["segment_0"], options)
    entries, _ = load_unit(unit(["slot", 3]), ["segment_0"], options)
    with pytest.raises(RuntimeError, match="k_ppl needs a larger grid"):
        entries["segment_0"](table(0x1000, 0x2000, 65536).argument)
    assert launches(driver) == []


def test_a_kernel_that_needs_scratch_memory_is_refused(
    driver: Driver, cuda: FakeRuntime, options: CodegenOptions
) -> None:
    source = """
@triton.jit
def k_ppl(b0, b1, n0, XBLOCK: tl.constexpr):
    d = tl.make_tensor_descriptor(b0, [n0, 64], [64, 1], [XBLOCK, 64])
    tl.store(b1 + tl.arange(0, XBLOCK)[:, None] * 64 + tl.arange(0, 64)[None, :], d.load([0, 0]))
"""
    record = units.record(constants={"XBLOCK": 16})
    with pytest.raises(CodegenUnavailable, match="k_ppl needs scratch memory"):
        load_unit(units.unit({"k_ppl": source}, units.one_launch(), k_ppl=record), ["segment_0"], options)


def test_memory_is_allocated_on_the_graphs_device() -> None:
    made = allocation(torch.device("meta"))
    assert made.empty_strided((2, 3), (1, 2), dtype=torch.int8).device.type == "meta"
    assert made.empty(7, dtype=torch.uint8).device.type == "meta"


def test_without_a_gpu(monkeypatch: pytest.MonkeyPatch, options: CodegenOptions) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(runtime_module, "_runtimes", [])
    with pytest.raises(CodegenUnavailable, match="no CUDA device"):
        load_unit(UNIT, ["segment_0"], options)
