"""Matrix products with what follows them as Triton kernels, against eager."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from aten_capture import capture
from tuned_kernels import PreferredLabels, compiled_with

from treadle_codegen import CodegenOptions, compile_graph
from treadle_codegen.targets.table import TARGETS

TOLERANCE = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 3e-2}


def check(prefer: str, function: Any, args: list[torch.Tensor], cache: Path) -> Any:
    compiled = compiled_with(prefer, function, args, cache)
    expected = function(*args)
    tolerance = TOLERANCE[expected.dtype]
    (found,) = compiled(*args)
    assert found.stride() == expected.stride()
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
    return compiled


def rand(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


CASES: dict[str, tuple[Any, list[tuple[int, ...]]]] = {
    "plain": (torch.mm, [(40, 72), (72, 50)]),
    "bias, gelu, residual": (lambda x, w, b, r: F.gelu(F.linear(x, w, b)) + r, [(40, 72), (50, 72), (50,), (40, 50)]),
    "alpha and beta": (lambda c, a, b: torch.addmm(c, a, b, alpha=2, beta=0.5), [(33, 17), (33, 24), (24, 17)]),
    "transposed left": (lambda a, b: torch.relu(a.t() @ b), [(72, 40), (72, 50)]),
    "strided": (lambda a, b: a[:, ::2] @ b, [(40, 72), (36, 50)]),
    "batch": (lambda a, b: torch.bmm(a, b.transpose(1, 2)) * 0.5, [(3, 20, 24), (3, 33, 24)]),
    "batch, added": (lambda c, a, b: torch.baddbmm(c, a, b).sigmoid(), [(3, 1, 33), (3, 20, 24), (3, 24, 33)]),
    "broadcast batch": (lambda a, b: torch.bmm(a, b.unsqueeze(0).expand(3, -1, -1)), [(3, 20, 24), (24, 33)]),
    "heads": (
        lambda x, w, b: F.linear(x, w, b).view(2, 10, 4, 8).permute(0, 2, 1, 3).contiguous().sin(),
        [(2, 10, 24), (32, 24), (32,)],
    ),
    "softmax behind": (lambda a, b: torch.softmax(a @ b, -1), [(20, 24), (24, 33)]),
    "two products": (lambda x, w, v: F.silu(F.linear(x, w)) * F.linear(x, v), [(17, 24), (19, 24), (19, 24)]),
    "one row": (lambda a, b: torch.relu(a @ b), [(1, 72), (72, 50)]),
    "one column": (lambda a, b: torch.relu(a @ b), [(40, 72), (72, 1)]),
    "product of a product": (lambda a, b, c: torch.relu(a @ b) @ c, [(20, 24), (24, 33), (33, 18)]),
}


@pytest.mark.parametrize("name", CASES)
def test_products_agree_with_eager(name: str, tmp_path: Path) -> None:
    function, shapes = CASES[name]
    compiled = check("kernel" if "one" in name else "template", function, [rand(*shape) for shape in shapes], tmp_path)
    if "one" not in name:
        assert "add_product(v" in compiled.source


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_low_precision_is_rounded_once(dtype: torch.dtype, tmp_path: Path) -> None:
    """Triton's interpreter cuts bfloat16 off where devices round."""
    x, w, b = rand(40, 200, dtype=dtype), rand(30, 200, dtype=dtype), rand(30, dtype=dtype)
    (found,) = compiled_with("template", F.linear, [x, w, b], tmp_path)(x, w, b)
    exact = F.linear(x.double(), w.double(), b.double())
    one_rounding = torch.finfo(dtype).eps / (1 if dtype is torch.bfloat16 else 2) * exact.abs() + 1e-5 * 200
    assert bool(((found.double() - exact).abs() <= one_rounding).all())


def test_sums_in_parts(tmp_path: Path) -> None:
    shapes = [(20, 1024), (24, 1024), (24,)]
    compiled = check("parts 2", lambda x, w, b: torch.relu(F.linear(x, w, b)), [rand(*s) for s in shapes], tmp_path)
    assert compiled.trials[0].chosen.endswith("parts 2")
    assert len(compiled.kernels) == 2


def test_persistent_programs(tmp_path: Path) -> None:
    """The interpreter is slow, so a small device is made up."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("treadle_codegen.targets.triton.matmul_tiles.MULTIPROCESSORS", 2)
        compiled = check("persistent", lambda a, b: torch.relu(a @ b), [rand(256, 16), rand(16, 272)], tmp_path)
    assert "persistent" in compiled.trials[0].chosen


def test_the_extern_stays_where_it_is_faster(tmp_path: Path) -> None:
    compiled = check("extern", torch.mm, [rand(40, 72), rand(72, 50)], tmp_path)
    assert compiled.trials[0].chosen == "extern"
    assert not compiled.kernels


def test_tf32_only_while_the_switch_allows_it(tmp_path: Path) -> None:
    a, b, allowed = rand(40, 72), rand(72, 50), [True]
    target = replace(
        TARGETS["triton-interpreted"],
        name="triton-tuned",
        clock=lambda device: PreferredLabels("template"),
        allows_tf32=lambda: allowed[0],
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(TARGETS, target.name, target)
        options = CodegenOptions(autotune=True, verify=True, cache_dir=tmp_path)
        compiled = compile_graph(capture(torch.mm, [a, b]), [a, b], target=target.name, options=options)
        assert '"tf32"' in compiled.source
        torch.testing.assert_close(compiled.function(a, b)[0], a @ b)
        allowed[0] = False
        assert torch.equal(compiled.function(a, b)[0], a @ b)  # by the very operator
        allowed[0] = True
        torch.testing.assert_close(compiled.function(a, b)[0], a @ b)
