"""Elements of rows that lie far apart are read through pointers of their own: g++ takes minutes for them otherwise."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from treadle_codegen import compile_graph
from treadle_codegen.options import CodegenOptions

WIDE = 4096


def two_columns(x: torch.Tensor) -> torch.Tensor:
    return x[:, 0] + x[:, 1]


def many_columns(x: torch.Tensor) -> torch.Tensor:
    return x[:, 0] * x[:, 7] - x[:, 9].exp() + x[:, 5]


def scalar_product_of_columns(x: torch.Tensor) -> torch.Tensor:
    return (x[:, 3] * x[:, 4]).sum()


def largest_of_columns(x: torch.Tensor) -> torch.Tensor:
    return torch.maximum(x[:, 3], x[:, 4]).amax()


def shifted_columns(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.pad(x[:, 1] - x[:, 0], (2, 3)) + 1


def short_rows(x: torch.Tensor) -> torch.Tensor:
    part = x[:, :4]
    return part * x[:, 256:257] + x[:, 64:68] * x[:, 257:258]


def in_half_precision(x: torch.Tensor) -> torch.Tensor:
    y = x.bfloat16()
    return y[:, 0] * 2 + y[:, 1]


PROGRAMS = (
    two_columns,
    many_columns,
    scalar_product_of_columns,
    largest_of_columns,
    shifted_columns,
    short_rows,
    in_half_precision,
)


def compiled(function: Callable[..., Any], x: torch.Tensor, **options: Any) -> Any:
    gm = make_fx(lambda x: [function(x)], tracing_mode="fake")(x)
    return compile_graph(gm, [x], options=CodegenOptions(verify=True, **options))


@pytest.mark.parametrize("rows", [1, 5, 64])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_values(program: Callable[..., Any], rows: int):
    torch.manual_seed(0)
    x = torch.randn(rows, WIDE)
    torch.testing.assert_close(compiled(program, x)(x)[0], program(x))


@pytest.mark.parametrize("program", [two_columns, many_columns, scalar_product_of_columns], ids=lambda p: p.__name__)
def test_each_load_has_a_pointer_of_its_own(program: Callable[..., Any]):
    source = compiled(program, torch.randn(64, WIDE)).kernel_source
    loads = re.findall(rf"(\w+)\[{WIDE}\*\w+(?: \+ \d+)?\]", source)
    assert len(loads) == len(set(loads)) > 1


def test_near_rows_and_single_loads_are_read_as_ever():
    near = compiled(two_columns, torch.randn(64, 8)).kernel_source
    single = compiled(lambda x: x[:, 0] * 2, torch.randn(64, WIDE)).kernel_source
    assert "FORGET" not in near and "FORGET" not in single
