"""Weights laid out for BLAS and biases released into kernels, against eager."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 (the name everybody knows)
from aten_capture import capture

from treadle_codegen import CodegenOptions, CompiledGraph, compile_graph
from treadle_codegen.targets.cpp import weight_layout


def _compiled(fn: object, inputs: list[torch.Tensor], static: tuple[int, ...], cache: Path) -> CompiledGraph:
    gm = capture(fn, inputs, static)  # type: ignore[arg-type]
    return compile_graph(
        gm, inputs, options=CodegenOptions(frozen_weights=True, cache_dir=cache, threads=1, verify=True)
    )


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies of small weights count as a gain."""
    monkeypatch.setattr(weight_layout, "_FEWEST_ROWS", 3)
    monkeypatch.setattr(weight_layout, "_FEWEST_MULTIPLICATIONS", 0)


def _mlp(x: torch.Tensor, w1: torch.Tensor, b1: torch.Tensor, w2: torch.Tensor, b2: torch.Tensor) -> torch.Tensor:
    return F.linear(F.gelu(F.linear(x, w1, b1)), w2, b2)


def _inputs() -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(2, 5, 80), torch.randn(96, 80), torch.randn(96), torch.randn(8, 96), torch.randn(8)]


def test_biases_go_where_a_kernel_of_ours_reads_the_product(tmp_path: Path) -> None:
    inputs = _inputs()
    compiled = _compiled(_mlp, inputs, (1, 2, 3, 4), tmp_path)
    # the first bias joins the gelu; the second product is the result itself and keeps its own
    assert compiled.ir_text.count("aten.mm.out") == 1
    assert compiled.ir_text.count("aten.addmm.out") == 1
    torch.testing.assert_close(compiled(*inputs)[0], _mlp(*inputs), rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("copied")
def test_weights_are_read_in_their_new_place(tmp_path: Path) -> None:
    inputs = _inputs()
    compiled = _compiled(_mlp, inputs, (1, 2, 3, 4), tmp_path)
    assert "static derived" in compiled.ir_text
    compiled(*inputs)
    inputs[1].mul_(-3)
    inputs[4].add_(1)
    torch.testing.assert_close(compiled(*inputs)[0], _mlp(*inputs), rtol=1e-5, atol=1e-5)


def test_a_weight_that_is_an_input_is_used_as_it_lies(tmp_path: Path) -> None:
    inputs = _inputs()
    compiled = _compiled(_mlp, inputs, (), tmp_path)
    other = [torch.randn_like(x) for x in inputs]
    torch.testing.assert_close(compiled(*other)[0], _mlp(*other), rtol=1e-5, atol=1e-5)


def test_a_scaled_addmm_keeps_its_scales(tmp_path: Path) -> None:
    def fn(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.addmm(b, x, w.t(), beta=2.0, alpha=0.5).relu()

    inputs = [torch.randn(6, 80), torch.randn(96, 80), torch.randn(96)]
    compiled = _compiled(fn, inputs, (1, 2), tmp_path)
    torch.testing.assert_close(compiled(*inputs)[0], fn(*inputs), rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("copied")
def test_one_copy_serves_products_that_share_a_weight(tmp_path: Path) -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        t = w.t()
        return x.mm(t).relu().mm(t).relu()

    inputs = [torch.randn(5, 80), torch.randn(80, 80)]
    compiled = _compiled(fn, inputs, (1,), tmp_path)
    assert compiled.ir_text.count("static derived") == 1
    torch.testing.assert_close(compiled(*inputs)[0], fn(*inputs), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("rows", "width"), [(64, 128), (1024, 128), (16, 256)])
def test_a_weight_stays_where_a_copy_saves_less_than_a_look_at_it_costs(rows: int, width: int, tmp_path: Path) -> None:
    inputs = [torch.randn(rows, width), torch.randn(width, width)]
    compiled = _compiled(F.linear, inputs, (1,), tmp_path)
    assert "static derived" not in compiled.ir_text
    torch.testing.assert_close(compiled(*inputs)[0], F.linear(*inputs), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("rows", "width"), [(2100, 128), (512, 256)])
def test_the_weight_of_a_large_product_is_copied(rows: int, width: int, tmp_path: Path) -> None:
    inputs = [torch.randn(rows, width, dtype=torch.float64), torch.randn(width, width, dtype=torch.float64)]
    compiled = _compiled(F.linear, inputs, (1,), tmp_path)  # oneDNN packs no float64
    assert compiled.ir_text.count("static derived") == 1
    torch.testing.assert_close(compiled(*inputs)[0], F.linear(*inputs))


@pytest.mark.parametrize("rows", [1, 2])
def test_a_weight_that_few_rows_are_multiplied_by_stays_where_it_is(rows: int, tmp_path: Path) -> None:
    def fn(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return F.gelu(F.linear(x, w, b))

    inputs = [torch.randn(rows, 128), torch.randn(150, 128), torch.randn(150)]
    compiled = _compiled(fn, inputs, (1, 2), tmp_path)
    assert "static derived" not in compiled.ir_text and "extern" not in compiled.ir_text
    torch.testing.assert_close(compiled(*inputs)[0], fn(*inputs), rtol=1e-5, atol=1e-5)


def test_a_bias_stays_where_the_next_product_reads_the_result(tmp_path: Path) -> None:
    def fn(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return F.linear(F.linear(x, w, b), w, b).relu()

    inputs = [torch.randn(5, 80), torch.randn(80, 80), torch.randn(80)]
    compiled = _compiled(fn, inputs, (1, 2), tmp_path)
    assert compiled.ir_text.count("aten.addmm.out") == 1 and compiled.ir_text.count("aten.mm.out") == 1
    torch.testing.assert_close(compiled(*inputs)[0], fn(*inputs), rtol=1e-5, atol=1e-5)


def test_a_small_product_reads_the_weight_as_it_lies(tmp_path: Path) -> None:
    inputs = [torch.randn(5, 16), torch.randn(32, 16), torch.randn(32)]
    compiled = _compiled(F.linear, inputs, (1, 2), tmp_path)
    assert "static derived" not in compiled.ir_text and "extern" not in compiled.ir_text
    torch.testing.assert_close(compiled(*inputs)[0], F.linear(*inputs), rtol=1e-5, atol=1e-5)
