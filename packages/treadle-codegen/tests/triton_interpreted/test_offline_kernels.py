"""The kernels that the tests before these have rendered, compiled for GPUs without one.

A kernel is compiled for one of `ARCHITECTURES`, which its hash chooses; TREADLE_ALL_KERNELS=1 compiles each for all of them.
TREADLE_KERNEL_REPORT=FILE writes registers, spilled bytes and shared memory of each as JSON.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from treadle_codegen import CodegenOptions
from treadle_codegen.errors import KernelRefused
from treadle_codegen.targets.triton.offline import Architecture, Binary, compile_kernels
from treadle_codegen.targets.triton.unit import UnitKernel, parse_unit

ARCHITECTURES = {
    "sm_80": Architecture.cuda(80),
    "sm_90": Architecture.cuda(90),
    "sm_100": Architecture.cuda(100),
    "gfx942": Architecture("hip", "gfx942", 64),
}
TOGETHER = 24  # kernels that are compiled in one call
# Of one program at most. AMD's 64 KiB are not asked for: no tiling is chosen for these GPUs yet.
SHARED_BYTES = {"sm_80": 163 << 10, "sm_90": 227 << 10, "sm_100": 227 << 10}
_SMALL_FRAME = 16  # bytes that ptxas puts on the stack of some kernels that have registers left
_AMD_FACTS = {"registers": b".vgpr_count", "spilled_registers": b".vgpr_spill_count"}


@pytest.fixture(scope="module")
def kernels(rendered_units: set[str]) -> dict[str, UnitKernel]:
    found: dict[str, UnitKernel] = {}
    for text in rendered_units:
        found |= parse_unit(text).kernels
    if not found:
        pytest.skip("no other test of this folder ran")
    return found


def chosen(kernels: dict[str, UnitKernel], architecture: str) -> list[UnitKernel]:
    """The kernels that are compiled for an architecture."""
    place = list(ARCHITECTURES).index(architecture)
    everything = os.environ.get("TREADLE_ALL_KERNELS") == "1"
    return [k for name, k in sorted(kernels.items()) if everything or zlib.crc32(name.encode()) % 4 == place]


def resources(binary: Binary) -> dict[str, int]:
    """Registers of a thread, what was spilled, and bytes of shared memory."""
    facts = binary.facts
    if "registers" in facts:
        spilled = facts.get("stack_bytes", 0) - facts["local_bytes"]
        spilled = spilled if spilled > _SMALL_FRAME else 0
        return {"registers": facts["registers"], "spilled_bytes": spilled, "shared": facts["shared"]}
    counts = {name: _number_behind(binary.content, key) for name, key in _AMD_FACTS.items()}
    return counts | {"shared": facts["shared"]}


def _number_behind(content: bytes, key: bytes) -> int:
    """The number that follows a key in the MessagePack metadata of a code object."""
    at = content.index(key) + len(key)
    lengths = {0xCC: 1, 0xCD: 2, 0xCE: 4}
    if content[at] in lengths:
        return int.from_bytes(content[at + 1 : at + 1 + lengths[content[at]]], "big")
    assert content[at] < 0x80
    return content[at]


def compile_some(kernels: Iterable[UnitKernel], architecture: Architecture, options: CodegenOptions) -> dict[str, Any]:
    """Each kernel's resources, or why Triton refuses it."""
    try:
        found = compile_kernels(kernels, architecture, options)
    except KernelRefused as error:
        return {"refused": str(error)}
    return {name: resources(binary) for name, binary in found.items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_kernels_compile_without_spilling(name: str, kernels: dict[str, UnitKernel], tmp_path: Path) -> None:
    options, wanted = CodegenOptions(cache_dir=tmp_path), chosen(kernels, name)
    found: dict[str, Any] = {}
    for start in range(0, len(wanted), TOGETHER):
        found |= compile_some(wanted[start : start + TOGETHER], ARCHITECTURES[name], options)
    report(name, found)
    assert "refused" not in found, found["refused"]
    spilling = {k: v for k, v in found.items() if v.get("spilled_bytes") or v.get("spilled_registers")}
    assert not spilling, {k: (v, kernels[k].text[-2000:]) for k, v in spilling.items()}
    assert all(v["shared"] <= SHARED_BYTES.get(name, v["shared"]) for v in found.values())


def report(architecture: str, found: dict[str, Any]) -> None:
    """Add to the file that the environment names."""
    if target := os.environ.get("TREADLE_KERNEL_REPORT"):
        path = Path(target)
        kept = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps(kept | {architecture: found}, indent=1) + "\n")
