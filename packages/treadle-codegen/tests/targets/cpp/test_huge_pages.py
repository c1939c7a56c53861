"""Huge pages under large results: who gives them, and that they are asked for before anything is written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from aten_capture import capture

import treadle_codegen
from treadle_codegen.targets.cpp.huge_pages import (
    _asking,
    free_pages_are_reported,
    given_on_request,
    on_huge_pages,
)
from treadle_codegen.targets.target import LARGE

GIVEN = pytest.mark.skipif(not given_on_request(), reason="the kernel gives huge pages to all, or to nobody")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("always [madvise] never\n", True),
        ("[always] madvise never\n", False),
        ("always madvise [never]\n", False),
        ("", False),
    ],
)
def test_who_gets_huge_pages(tmp_path: Path, text: str, wanted: bool) -> None:
    setting = tmp_path / "enabled"
    setting.write_text(text)
    assert given_on_request(setting) is wanted
    assert not given_on_request(tmp_path / "nothing")


@pytest.mark.parametrize(("bits", "wanted"), [("011001" + "0" * 58, True), ("0110000" + "1" * 57, False), ("", False)])
def test_who_gives_free_pages_back(tmp_path: Path, bits: str, wanted: bool) -> None:
    (tmp_path / "virtio0").mkdir()
    (tmp_path / "virtio0" / "features").write_text(bits + "\n")
    assert free_pages_are_reported(tmp_path) is wanted
    assert not free_pages_are_reported(tmp_path / "nothing")


def flags_of(tensor: torch.Tensor) -> set[str]:
    """What the kernel tells of the memory in the middle of a tensor (proc(5), /proc/pid/smaps, VmFlags)."""
    place, inside = tensor.data_ptr() + tensor.nbytes // 2, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first = line.split()[0]
        if "-" in first and not first.endswith(":"):
            start, end = (int(part, 16) for part in first.split("-"))
            inside = start <= place < end
        elif inside and first == "VmFlags:":
            return set(line.split()[1:])
    raise AssertionError("the memory stands in no mapping")


def compiled(function: Callable[..., Any], *tensors: torch.Tensor) -> treadle_codegen.CompiledGraph:
    return treadle_codegen.compile_graph(capture(function, tensors), tensors)


@GIVEN
def test_beyond_a_limit_nobody_asks() -> None:
    ask = _asking(LARGE)
    assert ask is not None
    assert "hg" in flags_of(ask(torch.empty(LARGE, dtype=torch.uint8)))
    larger = torch.empty(12 * LARGE, dtype=torch.uint8)
    before = flags_of(larger)  # memory that was in use before may have them already
    assert flags_of(ask(larger)) == before


@GIVEN
def test_large_results_have_them() -> None:
    x = torch.randn(64 << 20 >> 2)
    (result,) = compiled(lambda x: torch.relu(x) + 1, x)(x)
    assert "hg" in flags_of(result)
    torch.testing.assert_close(result, torch.relu(x) + 1)


@GIVEN
def test_an_odd_address_is_no_trouble() -> None:
    ask = on_huge_pages()
    assert ask is not None
    memory = torch.empty(40 << 20, dtype=torch.uint8)
    for first, size in ((1, LARGE), (4095, LARGE + 1), (0, 40 << 20), (7, LARGE - 1)):
        part = memory[first : first + size]
        assert ask(part) is part
    empty = torch.empty(0)
    assert ask(empty) is empty


def test_only_what_may_be_large_is_asked_for() -> None:
    small = compiled(lambda x: torch.relu(x) + 1, torch.randn(100))
    large = compiled(lambda x: (torch.relu(x) + 1, x.sum()), torch.randn(LARGE // 4))
    assert "large(" not in small.host_source
    assert large.host_source.count("large(") == 1
