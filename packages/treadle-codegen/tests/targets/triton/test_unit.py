"""Units are read as their contract says, and errors name what breaks it."""

from __future__ import annotations

from typing import Any

import pytest

from treadle_codegen.targets.triton.unit import Dimension, UnitError, parse_unit

KERNEL = {
    "signature": ["*fp32", "i64"],
    "constants": {"B": 64},
    "num_warps": 4,
    "num_stages": 3,
    "checks_bounds": False,
}
LAUNCH = {"kernel": "k_a", "slots": [1, 2], "grid": [[["slot", 2], 64], [3, 1]]}


def unit(kernel: Any = KERNEL, launch: Any = LAUNCH, extra: str = "") -> str:
    return f'''"""A unit."""
import triton
import triton.language as tl
{extra}
@triton.jit
def helper(x):
    return x + 1

@triton.jit  # a comment
def k_a(b0, n0, B: tl.constexpr):
    pass

@triton.jit
def k_b(b0, n0, B: tl.constexpr):
    pass

KERNELS = {{"k_a": {kernel!r}, "k_b": {KERNEL!r}}}
SEGMENTS = {{"segment_0": [{launch!r}]}}
'''


def test_a_unit_is_read() -> None:
    read = parse_unit(unit())
    kernel = read.kernels["k_a"]
    assert kernel.signature == (("b0", "*fp32"), ("n0", "i64"))
    assert kernel.constants == {"B": 64}
    assert (kernel.num_warps, kernel.num_stages, kernel.checks_bounds) == (4, 3, False)
    (launch,) = read.segments["segment_0"]
    assert launch.slots == (1, 2)
    assert launch.grid == (Dimension(0, 64, slot=2), Dimension(3, 1))


def test_a_kernels_text_has_what_it_needs_and_no_other_kernel() -> None:
    text = parse_unit(unit()).kernels["k_a"].text
    assert "import triton.language as tl\n" in text and "def helper(x):" in text
    assert text.endswith("@triton.jit  # a comment\ndef k_a(b0, n0, B: tl.constexpr):\n    pass\n")
    assert "k_b" not in text and "SEGMENTS" not in text


def test_a_kernels_text_does_not_depend_on_other_kernels() -> None:
    other = unit().replace("def k_b(b0", "def k_b(c0")
    assert parse_unit(other).kernels["k_a"] == parse_unit(unit()).kernels["k_a"]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def", "no Python module"),
        (unit().replace("SEGMENTS =", "SEGMENT ="), "assigns SEGMENTS 0 times"),
        (unit().replace("SEGMENTS = {", "SEGMENTS = dict() or {"), "SEGMENTS is no literal"),
        (unit().replace("def k_a", "def k_c"), "KERNELS names k_a, and the unit defines no function"),
        (unit({**KERNEL, "signature": ["*fp32"]}), "k_a takes 2 run-time arguments, its signature has 1"),
        (unit({**KERNEL, "signature": ["i64", "*fp32"]}), "k_a takes a pointer after a number"),
        (unit({**KERNEL, "signature": ["*fp32", "fp32"]}), "k_a takes a number of type 'fp32'; known: fp64, i32, i64"),
        (unit({**KERNEL, "constants": {"B": 1, "C": 2}}), "k_a has no arguments C"),
        (unit({k: v for k, v in KERNEL.items() if k != "num_warps"}), "record of kernel k_a has no 'num_warps'"),
        (unit(launch={**LAUNCH, "kernel": "k_z"}), "segment_0 lacks 'k_z', or names no kernel"),
        (unit(launch={**LAUNCH, "slots": [1]}), "segment_0 passes 1 arguments to k_a, which takes 2"),
        (unit(launch={**LAUNCH, "grid": []}), "grid of k_a in segment_0 has 0 dimensions"),
        (unit(launch={**LAUNCH, "grid": [[1, 1]] * 4}), "has 4 dimensions"),
        (unit(launch={**LAUNCH, "grid": [[1, 0]]}), "blocks of 0 points"),
        (unit(launch={**LAUNCH, "grid": [["n0", 1]]}), "'n0' points, neither a number nor a slot"),
    ],
)
def test_errors_name_what_breaks_the_contract(source: str, message: str) -> None:
    with pytest.raises(UnitError, match=message):
        parse_unit(source)
