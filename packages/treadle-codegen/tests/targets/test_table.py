"""The table of targets, and what every record must state."""

from __future__ import annotations

import pytest
import torch

from treadle_codegen import CodegenOptions, OptionError
from treadle_codegen.ir.ops import BUFFER_DTYPES, COMPLEX_PARTS
from treadle_codegen.targets.cpp.entries import PointerTable
from treadle_codegen.targets.table import TARGETS, target_named


def test_targets_are_found_by_name() -> None:
    assert target_named("cpp") is TARGETS["cpp"]
    with pytest.raises(OptionError, match="unknown target 'fortran'; known: cpp, triton"):
        target_named("fortran")


@pytest.mark.parametrize("name", TARGETS)
def test_records_are_complete(name: str) -> None:
    target = TARGETS[name]
    assert target.name == name and target.devices and target.dtypes <= BUFFER_DTYPES | COMPLEX_PARTS.keys()
    assert {torch.float32, torch.int64, torch.bool} <= target.dtypes
    assert target.costs.alignment & (target.costs.alignment - 1) == 0
    renderer = target.renderer(CodegenOptions(threads=1))
    assert renderer.parallel == (name != "cpp") and isinstance(renderer.prelude, str)
    if target.devices[0] != "cpu" and not torch.accelerator.is_available():
        return
    memory = target.allocation(torch.device(target.devices[0])).empty(8, dtype=torch.uint8)
    assert memory.device.type == target.devices[0]


def test_the_pointer_table_of_cpp() -> None:
    abi, arena = PointerTable(), torch.empty(256, dtype=torch.uint8)
    table = abi.new_table(4)
    abi.place(table.slots, arena, [(1, 64, torch.float32), (3, 0, torch.int64)])
    assert table.slots[1] == arena.data_ptr() + 64 and table.slots[3] == arena.data_ptr()
    assert abi.buffer_text("a0") == "a0.data_ptr()" and abi.buffer_text("a0", "q") == "q"
    assert table.error.value == 0
