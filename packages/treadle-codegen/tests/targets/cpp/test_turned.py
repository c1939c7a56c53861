"""Tiles turned in registers against loops: every height and width of a tile, element sizes, vector sizes."""

from __future__ import annotations

import ctypes

import pytest
import torch

from treadle_codegen.options import CodegenOptions
from treadle_codegen.targets.cpp import turned
from treadle_codegen.targets.cpp.build import build_library
from treadle_codegen.targets.cpp.renderer import PRELUDE

ELEMENTS = {"u8": torch.uint8, "u16": torch.int16, "float": torch.float32, "double": torch.float64}
SIDE = 32
CALLS = "".join(
    f'extern "C" void turn_{name}(const {name}* from, i64 step, i64 tall, i64 wide, {name}* to) '
    f"{{ turn<{SIDE}>(from, step, tall, wide, to); }}\n"
    for name in ELEMENTS
)
# Vectors of fewer bytes than this processor has, as on others.
NARROW = "constexpr int TURNED_BYTES = 64;", "constexpr int TURNED_BYTES = 16;"


@pytest.mark.parametrize("name", ELEMENTS)
@pytest.mark.parametrize("narrow", [False, True])
def test_every_part_of_a_tile(name: str, narrow: bool) -> None:
    definitions = turned.turn_definitions(CALLS)
    if narrow:
        definitions = definitions.replace(*NARROW)
    library, _ = build_library(PRELUDE.read_text(encoding="utf-8") + definitions + CALLS, CodegenOptions())
    function = getattr(library, f"turn_{name}")
    function.argtypes = [ctypes.c_void_p, *[ctypes.c_int64] * 3, ctypes.c_void_p]
    size = torch.empty(0, dtype=ELEMENTS[name]).itemsize
    for step in (SIDE, SIDE + 3):
        memory = torch.arange(step * SIDE + 64).remainder(200).to(ELEMENTS[name])
        for tall in range(SIDE + 1):
            for wide in (*range(0, SIDE + 1, 5), 16, 31, 32):
                first = tall % 3  # an address that no vector is aligned at
                to = torch.full((SIDE, SIDE), 99, dtype=ELEMENTS[name])
                function(memory.data_ptr() + first * size, step, tall, wide, to.data_ptr())
                wanted = torch.full_like(to, 99)
                wanted[:tall, :wide] = memory.as_strided((tall, wide), (1, step), first)
                assert torch.equal(to, wanted), (step, tall, wide)


def test_units_without_tiles_have_none_of_it() -> None:
    assert turned.turn_definitions("b2[j1] = v7h;") == ""
