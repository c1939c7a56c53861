"""Units for these tests. Names of kernels tell the tests' driver what their parameters are."""

from __future__ import annotations

from typing import Any

HEAD = "import triton\nimport triton.language as tl\n\n"
ADD_ONE = """
@triton.jit
def {name}(b0, b1, n0, XBLOCK: tl.constexpr):
    x = tl.program_id(0).to(tl.int64) * XBLOCK + tl.arange(0, XBLOCK)
    inside = x < n0
    tl.store(b1 + x, tl.load(b0 + x, inside) + {constant}, inside)
"""
CHECKED = """
@triton.jit
def k_pplc(b0, b1, n0, XBLOCK: tl.constexpr):
    x = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)
    index = tl.load(b0 + x, x < n0)
    tl.device_assert((index >= 0) & (index < n0), "index out of range")
    tl.store(b1 + x, index, x < n0)
"""


def record(**changed: Any) -> dict[str, Any]:
    return {
        "signature": ["*fp32", "*fp32", "i64"],
        "constants": {"XBLOCK": 256},
        "num_warps": 4,
        "num_stages": 3,
        "checks_bounds": False,
        **changed,
    }


def add_one(name: str = "k_ppl", constant: float = 1.0) -> str:
    return ADD_ONE.format(name=name, constant=constant)


def unit(functions: dict[str, str], segments: dict[str, Any], **records: Any) -> str:
    kernels = {name: records.get(name, record()) for name in functions}
    return f"{HEAD}{''.join(functions.values())}\nKERNELS = {kernels!r}\nSEGMENTS = {segments!r}\n"


def one_launch(name: str = "k_ppl") -> dict[str, Any]:
    return {"segment_0": [{"kernel": name, "slots": [1, 2, 3], "grid": [[["slot", 3], 256]]}]}
