"""`launcher.cpp` against a driver of these tests that remembers the calls: nothing here needs a GPU."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from targets.triton.driver import Driver

from treadle_codegen.errors import CodegenUnavailable
from treadle_codegen.options import CodegenOptions
from treadle_codegen.targets.cpp.build import compile_to_bytes, find_compiler
from treadle_codegen.targets.triton.launcher import GRID_TOO_LARGE, NO_DRIVER, UNALIGNED, DriverError, Launcher
from treadle_codegen.targets.triton.unit import Dimension, Group, Launch

FACTS = {"name": "k_pl", "shared": 0, "num_warps": 4, "warp_size": 32, "hidden_parameters": ["u64", "u64"]}
STREAM = 77


def facts(name: str, **changed: Any) -> dict[str, Any]:
    return {**FACTS, "name": name, **changed}


def table(*values: float) -> Any:
    slots = (ctypes.c_int64 * (len(values) + 1))()
    floats = (ctypes.c_double * (len(values) + 1)).from_buffer(slots)
    for k, value in enumerate(values):
        if isinstance(value, float):
            floats[k + 1] = value
        else:
            slots[k + 1] = value
    return slots


def launch(
    driver: Driver, slots: Any, launches: Sequence[tuple[str, Sequence[int], Sequence[Dimension]]], alignment: int = 16
) -> tuple[int, list[str]]:
    kernels = [driver.launcher.load(0, b"", facts(name), name.count("p")) for name, *_ in launches]
    records = [(Launch(name, tuple(at), tuple(grid)), k) for (name, at, grid), k in zip(launches, kernels, strict=True)]
    segment = driver.launcher.segment(0, records, alignment)
    driver.calls()
    result = driver.launcher.launch(segment.address, ctypes.addressof(slots), STREAM)
    return result, [line for line in driver.calls() if line not in ("push 0", "pop")]


def test_arguments_come_from_the_table(driver: Driver) -> None:
    slots = table(0x10, 0x20, (7 << 32) + 5, -3, 2.5)
    result, calls = launch(driver, slots, [("k_ppild", (2, 1, 3, 4, 5), [Dimension(100, 8)])])
    assert result == 0
    assert calls == ["launch k_ppild 13 1 1 threads 128 shared 0 stream 77: 32 16 5 -3 2.500000"]


@pytest.mark.parametrize(
    ("capability", "version", "waits", "is_early"),
    [(9, 12030, 1, True), (10, 13000, 1, True), (8, 13000, 1, False), (9, 12020, 1, False), (9, 13000, 0, False)],
)
def test_kernels_that_wait_begin_early_where_the_device_and_its_driver_can(
    driver: Driver, capability: int, version: int, waits: int, is_early: bool
) -> None:
    driver.library.fake_versions(capability, version)
    try:
        launcher = Driver(driver.path).launcher
        kernel = launcher.load(0, b"", facts("k_pl", waits=waits), 1)
        segment = launcher.segment(0, [(Launch("k_pl", (1, 2), (Dimension(9, 8),)), kernel)] * 2, 16)
    finally:
        driver.library.fake_versions(8, 13000)
    driver.calls()
    assert launcher.launch(segment.address, ctypes.addressof(table(0x10, 7)), STREAM) == 0
    calls = [line for line in driver.calls() if line not in ("push 0", "pop")]
    plain = "launch k_pl 2 1 1 threads 128 shared 0 stream 77: 16 7"
    assert calls == (["early 1 6 1", plain] * 2 if is_early else [plain] * 2)


def test_hidden_parameters_are_null(driver: Driver) -> None:
    kernel = driver.launcher.load(0, b"", facts("k_ppp"), 1)  # the driver reads two parameters more than are passed
    segment = driver.launcher.segment(0, [(Launch("k_ppp", (1,), (Dimension(1, 1),)), kernel)], 16)
    driver.calls()
    driver.launcher.launch(segment.address, ctypes.addressof(table(0x10)), STREAM)
    assert driver.calls()[-2].endswith(": 16 0 0")


@pytest.mark.parametrize("points", [0, -1])
def test_an_empty_grid_launches_nothing(driver: Driver, points: int) -> None:
    grid = [Dimension(3, 1), Dimension(0, 8, slot=2)]
    launches = [("k_p", (1,), grid), ("k_p", (1,), [Dimension(0, 4)]), ("k_p", (1,), [Dimension(9, 4)])]
    result, calls = launch(driver, table(0x10, points), launches)
    assert result == 0
    assert [call.split(" threads")[0] for call in calls] == ["launch k_p 3 1 1"]


def test_an_empty_grid_may_have_another_dimension_that_is_too_large(driver: Driver) -> None:
    result, calls = launch(driver, table(0x10, 0), [("k_p", (1,), [Dimension(0, 8, slot=2), Dimension(1 << 20, 1)])])
    assert (result, calls) == (0, [])


@pytest.mark.parametrize("most", [(2**31 - 1, 1, 1), (1, 65535, 1), (1, 1, 65535)])
def test_grids_up_to_the_limits_are_launched_and_larger_ones_are_not(driver: Driver, most: tuple[int, ...]) -> None:
    grid = [Dimension(0, 2, slot=k + 2) for k in range(3)]
    result, calls = launch(driver, table(0x10, *(2 * n for n in most)), [("k_p", (1,), grid)])
    assert result == 0
    assert calls[0].startswith(f"launch k_p {most[0]} {most[1]} {most[2]} ")
    too_large = [2 * n + (n > 1) for n in most]
    before = ("k_p", (1,), [Dimension(1, 1)])
    result, calls = launch(driver, table(0x10, *too_large), [before, ("k_p", (1,), grid)])
    assert (result, calls) == (GRID_TOO_LARGE, [])


def test_points_near_the_end_of_int64_do_not_overflow(driver: Driver) -> None:
    result, _ = launch(driver, table(0x10, 2**63 - 1), [("k_p", (1,), [Dimension(0, 1 << 33, slot=2)])])
    assert result == 0


def test_an_unaligned_pointer_launches_nothing(driver: Driver) -> None:
    launches = [("k_pp", (1, 2), [Dimension(1, 1)]), ("k_pl", (1, 3), [Dimension(1, 1)])]
    assert launch(driver, table(0x10, 0x28, 5), launches) == (UNALIGNED, [])
    assert launch(driver, table(0x10, 0x30, 5), launches)[0] == 0  # numbers need no alignment
    result, calls = launch(driver, table(0x10, 0x28, 5), launches, alignment=1)
    assert result == 0
    assert len(calls) == 2


def test_more_launches_than_are_remembered(driver: Driver) -> None:
    launches = [("k_p", (1,), [Dimension(k, 1)]) for k in range(40)]
    result, calls = launch(driver, table(0x10), launches)
    assert result == 0
    assert [int(call.split()[2]) for call in calls] == list(range(1, 40))


def test_the_context_of_the_graphs_device_is_current_during_a_launch(driver: Driver) -> None:
    kernel = driver.launcher.load(1, b"", facts("k_p"), 1)
    segment = driver.launcher.segment(1, [(Launch("k_p", (1,), (Dimension(1, 1),)), kernel)], 16)
    slots = table(0x10)
    driver.calls()
    driver.library.fake_current(0x1000)
    driver.launcher.launch(segment.address, ctypes.addressof(slots), STREAM)
    assert [call.split()[0] for call in driver.calls()] == ["push", "launch", "pop"]
    driver.library.fake_current(0x1001)
    driver.launcher.launch(segment.address, ctypes.addressof(slots), STREAM)
    assert [call.split()[0] for call in driver.calls()] == ["launch"]


def test_a_context_is_retained_once(driver: Driver) -> None:
    for _ in range(2):
        driver.launcher.load(1, b"", facts("k_p"), 1)
    assert driver.calls().count("cuDevicePrimaryCtxRetain 1") == 1


def test_more_shared_memory_than_the_default_is_asked_for(driver: Driver) -> None:
    driver.launcher.load(0, b"", facts("k_p", shared=48 << 10), 1)
    assert not [call for call in driver.calls() if call.startswith("cuFuncSet")]
    kernel = driver.launcher.load(0, b"", facts("k_p", shared=100 << 10), 1)
    assert [call for call in driver.calls() if call.startswith("cuFuncSet")] == [
        "cuFuncSetCacheConfig 1",
        f"cuFuncSetAttribute 8 {100 << 10}",
    ]
    assert (kernel.shared, kernel.registers, kernel.local_bytes) == (100 << 10, 32, 8)


def test_a_kernel_that_needs_more_than_the_device_has_is_refused(driver: Driver) -> None:
    driver.library.fake_limits(101376, 256)
    with pytest.raises(CodegenUnavailable, match=r"k_p needs 101375 bytes of shared memory, device cuda:2 has 101360"):
        driver.launcher.load(2, b"", facts("k_p", shared=101375), 1)
    with pytest.raises(CodegenUnavailable, match=r"k_p needs 512 threads, device cuda:0 runs 256"):
        driver.launcher.load(0, b"", facts("k_p", num_warps=16), 1)


@pytest.mark.parametrize("call", ["cuDevicePrimaryCtxRetain", "cuModuleLoadData", "cuModuleGetFunction"])
def test_errors_while_loading_have_the_drivers_text(driver: Driver, call: str) -> None:
    driver.fail(call, 710)
    with pytest.raises(DriverError, match=r"device-side assert triggered \(CUDA_ERROR_ASSERT\)"):
        driver.launcher.load(0, b"", facts("k_p"), 1)


def test_errors_of_a_launch_name_the_kernel(driver: Driver) -> None:
    kernels = [driver.launcher.load(0, b"", facts(name), 1) for name in ("k_p", "k_pp")]
    launches = [(Launch(k.name, (1,) * (len(k.name) - 2), (Dimension(1, 1),)), k) for k in kernels]
    segment = driver.launcher.segment(0, launches, 16)
    driver.fail("launch", 710)
    assert driver.launcher.launch(segment.address, ctypes.addressof(table(0x10)), STREAM) == 710
    assert segment.failed == "k_p"
    assert issubclass(DriverError, RuntimeError)


def test_without_a_driver(tmp_path: Path) -> None:
    with pytest.raises(CodegenUnavailable, match="CUDA's driver cannot be used: .*nowhere"):
        Launcher(CodegenOptions(), str(tmp_path / "nowhere.so"))
    assert NO_DRIVER < 0


def test_a_driver_that_is_too_old(tmp_path: Path) -> None:
    path = tmp_path / "libcuda.so.1"
    path.write_bytes(compile_to_bytes("extern int x; int x;", find_compiler(), ("-shared", "-fPIC")))
    with pytest.raises(CodegenUnavailable, match="has no function cuInit"):
        Launcher(CodegenOptions(), str(path))


def members(driver: Driver, *addresses: int, written: Sequence[bool] = (False, True) * 3) -> list[int]:
    """Launch a group of three members with two pointers of 64 bytes each; the members that its launches run, -1 for all."""
    kernel = driver.launcher.load(0, b"", facts("k_ppppppi"), 6)
    group = Group(3, (64,) * 6, tuple(written))
    segment = driver.launcher.segment(
        0, [(Launch("k_ppppppi", (*range(1, 7), 0), (Dimension(9, 1),), group), kernel)], 16
    )
    slots = table(*addresses)
    driver.calls()
    assert driver.launcher.launch(segment.address, ctypes.addressof(slots), STREAM) == 0
    return [int(call.split()[-1]) for call in driver.calls() if call.startswith("launch")]


def test_a_group_is_one_launch(driver: Driver) -> None:
    apart = [0x1000 * (k + 1) for k in range(6)]
    assert members(driver, *apart) == [-1]
    assert members(driver, 0x1000, 0x1000, 0x1040, 0x1040, 0x1080, 0x1080) == [-1]  # updates in place of neighbours
    assert members(driver, 0x1000, 0x2000, 0x1000, 0x3000, 0x1020, 0x4000) == [-1]  # nobody writes what all read


@pytest.mark.parametrize("overlapping", [0x2000, 0x2030, 0x1FD0])
@pytest.mark.parametrize("place", [2, 3, 4, 5])
def test_members_whose_memory_overlaps_run_one_after_the_other(driver: Driver, overlapping: int, place: int) -> None:
    addresses = [0x1000 * (k + 1) for k in range(6)]
    addresses[place] = overlapping  # the memory that the first member writes is at 0x2000
    assert members(driver, *addresses) == [0, 1, 2]
    assert members(driver, *addresses, written=[False] * 6) == [-1]
