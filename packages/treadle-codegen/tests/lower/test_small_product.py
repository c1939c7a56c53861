"""Products of small matrices: which become loops, and that these agree with float64 as well as eager does."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 (the name everybody knows)
from dynamic_cases import Shapes, compile_dynamic
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st
from products import Function, assert_as_close_as_eager, compile_product, random_factors

from treadle_codegen.targets.cpp.wide_products import slow_dtypes

# function, shapes of its arguments
CASES: dict[str, tuple[Function, tuple[tuple[int, ...], ...]]] = {
    "four terms": (torch.mm, ((4, 4), (4, 4))),
    "points and a rotation": (lambda p, r: p.mm(r.t()), ((1001, 3), (3, 3))),
    "a rotation and points": (torch.mm, ((3, 3), (3, 1001))),
    "many rows of few terms": (torch.mm, ((1003, 16), (16, 64))),
    "transposed, terms in rows": (lambda a, b: a.mm(b.t()), ((17, 31), (13, 31))),
    "both transposed": (lambda a, b: a.t().mm(b.t()), ((31, 17), (13, 31))),
    "short row": (lambda x, w: x.mm(w.t()), ((1, 33), (50, 33))),
    "short column": (torch.mm, ((50, 33), (33, 1))),
    "one term": (torch.mm, ((7, 1), (1, 9))),
    "batch": (torch.bmm, ((50, 3, 3), (50, 3, 3))),
    "batch, transposed": (lambda a, b: a.bmm(b.mT), ((50, 7, 9), (50, 11, 9))),
    "batch, few terms of large matrices": (torch.bmm, ((3, 100, 2), (3, 2, 100))),
    "one matrix for a batch": (lambda a, b: a.bmm(b.expand(9, 5, 6)), ((9, 4, 5), (5, 6))),
    "added": (lambda c, a, b: torch.addmm(c, a, b), ((6,), (5, 7), (7, 6))),
    "added in a batch": (torch.baddbmm, ((4, 5, 6), (4, 5, 7), (4, 7, 6))),
    "computed factors": (lambda a, b: (a.exp() + 1).mm(b.sin()).relu(), ((8, 8), (8, 8))),
    "a chain": (lambda f, p, q: f.mm(p).mm(f.t()) + q, ((6, 6), (6, 6), (6, 6))),
    "a network": (lambda x, v, w: F.linear(F.linear(x, v).tanh(), w), ((32, 4), (64, 4), (2, 64))),
    "matrix and vector": (torch.mv, ((7, 9), (9,))),
    "transposed matrix and vector": (lambda w, x: w.t().mv(x), ((9, 7), (9,))),
    "matrix and long vector": (torch.mv, ((50, 256), (256,))),
    "a gradient": (lambda x, g: x.t().mm(g), ((1001, 3), (1001, 3))),
    "few long sums": (lambda a, b: a.mm(b.t()), ((4, 333), (4, 333))),
    "vectors": (torch.dot, ((5,), (5,))),
    "long vectors": (torch.dot, ((1001,), (1001,))),
    "conjugate of a real vector": (torch.vdot, ((5,), (5,))),
    "part of a matrix": (lambda a, b: a[1:, ::2].mm(b[:, 1:-1]), ((9, 10), (5, 9))),
}
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda x: str(x).removeprefix("torch."))
@pytest.mark.parametrize("name", CASES)
def test_as_close_to_float64_as_eager(name: str, dtype: torch.dtype, threads: int, tmp_path: Path) -> None:
    function, shapes = CASES[name]
    given = random_factors(shapes, dtype)
    compiled = compile_product(function, given, tmp_path, threads)
    # Large products are ATen's, but for those of two matrices of 16 bits that the processor cannot multiply: they are computed in float32.
    large = ("batch, transposed",) if dtype in slow_dtypes() else ("batch, transposed", "many rows of few terms")
    is_low_and_large = dtype in (torch.bfloat16, torch.float16) and name in large
    assert ("extern" in compiled.ir_text) == is_low_and_large
    assert_as_close_as_eager(compiled(*given)[0], function(*given), function(*[x.double() for x in given]), spacings=2)


NOT_LOOPS: dict[str, tuple[Function, tuple[tuple[int, ...], ...]]] = {
    "many terms": (torch.mm, ((5, 65), (65, 7))),
    "long sums": (lambda x, g: x.t().mm(g), ((20000, 3), (20000, 3))),
    "many multiplications": (torch.mm, ((65, 64), (64, 64))),
    "many columns": (torch.mm, ((400, 8), (8, 65))),
    "large matrices in a batch": (torch.bmm, ((3, 17, 8), (3, 8, 17))),
    "many terms in a batch": (torch.bmm, ((3, 4, 17), (3, 17, 4))),
}


@pytest.mark.parametrize("name", NOT_LOOPS)
def test_other_products_are_those_of_aten(name: str, tmp_path: Path) -> None:
    function, shapes = NOT_LOOPS[name]
    given = random_factors(shapes, torch.float32)
    compiled = compile_product(function, given, tmp_path)
    assert "extern" in compiled.ir_text
    torch.testing.assert_close(compiled(*given)[0], function(*given))


def test_integers_and_complex_numbers_are_those_of_aten(tmp_path: Path) -> None:
    for dtype in (torch.int64, torch.int32, torch.complex64):
        given = (torch.arange(12).reshape(3, 4).to(dtype), torch.arange(20).reshape(4, 5).to(dtype))
        for function in (torch.mm, lambda a, b: a[0].dot(b[:, 0]), lambda a, b: a.mv(b[:, 0])):
            assert torch.equal(compile_product(function, given, tmp_path)(*given)[0], function(*given))


@pytest.mark.parametrize("shapes", [((3, 0), (0, 5)), ((0, 4), (4, 5)), ((3, 4), (4, 0)), ((0, 4), (4,)), ((0,), (0,))])
def test_nothing_to_multiply(shapes: tuple[tuple[int, ...], ...], tmp_path: Path) -> None:
    given = random_factors(shapes, torch.float32)
    assert torch.equal(compile_product(torch.matmul, given, tmp_path)(*given)[0], torch.matmul(*given))


def test_nan_and_infinity(tmp_path: Path) -> None:
    a, b = random_factors(((6, 8), (8, 5)), torch.float32)
    a[0, 3], a[1, 7], a[2, 2], a[3, 5] = float("nan"), float("inf"), float("-inf"), 0.0
    b[5, 1], b[5, 2], b[7, 3] = float("inf"), float("nan"), 0.0
    found = compile_product(torch.mm, (a, b), tmp_path)(a, b)[0]
    torch.testing.assert_close(found, a.mm(b), equal_nan=True)


def test_a_chain_of_products_is_one_call_of_one_segment(tmp_path: Path) -> None:
    given = random_factors(((6, 6), (6, 6), (6, 6)), torch.float32)
    compiled = compile_product(CASES["a chain"][0], given, tmp_path)
    assert compiled.host_source.count("segment_0(") == 1 and "segment_1" not in compiled.host_source


def test_a_transposed_matrix_in_a_batch_is_turned_once(tmp_path: Path) -> None:
    given = random_factors(((50, 8, 16), (50, 16, 16)), torch.float32)
    compiled = compile_product(lambda a, b: a.bmm(b.mT), given, tmp_path)
    assert len(compiled.kernels) == 2
    torch.testing.assert_close(compiled(*given)[0], given[0].bmm(given[1].mT))


def test_symbolic_rows_columns_and_batches(tmp_path: Path) -> None:
    functions: dict[str, tuple[Function, Shapes]] = {
        "rows": (torch.mm, lambda n: [(n, 9), (9, 20)]),
        "columns": (torch.mm, lambda n: [(3, 3), (3, n)]),
        "batch": (lambda a, b: a.bmm(b.mT), lambda n: [(n, 5, 9), (n, 6, 9)]),
        "matrix and vector": (torch.mv, lambda n: [(n, 12), (12,)]),
    }
    for function, shapes in functions.values():
        graph = compile_dynamic(function, shapes, (7,), tmp_path)
        assert "extern" not in graph.ir_text
        for n in (7, 2, 30, 1001):
            given = [torch.randn(shape) for shape in shapes(n)]
            torch.testing.assert_close(graph(*given)[0], function(*given))


@settings(deadline=None, max_examples=40)
@drawn(st.data())
def test_any_small_shapes_and_layouts(data: st.DataObject) -> None:
    draw = data.draw
    sizes = st.integers(1, 20)
    rows, terms, columns = draw(sizes), draw(sizes), draw(sizes)
    batch = draw(st.sampled_from([(), (1,), (3,)]))

    def matrix(*shape: int) -> torch.Tensor:
        kind = draw(st.sampled_from(["plain", "transposed", "gaps", "expanded"]))
        if kind == "transposed":
            return torch.randn(*batch, *shape[::-1]).mT
        if kind == "gaps":
            return torch.randn(*batch, *shape, 2)[..., 1]
        return torch.randn(1, shape[1]).expand(*batch, *shape) if kind == "expanded" else torch.randn(*batch, *shape)

    given = (matrix(rows, terms), matrix(terms, columns))
    function: Function = torch.bmm if batch else torch.mm
    with tempfile.TemporaryDirectory() as cache:
        (found,) = compile_product(function, given, Path(cache))(*given)
    assert_as_close_as_eager(found, function(*given), function(*[x.double() for x in given]), spacings=2)
