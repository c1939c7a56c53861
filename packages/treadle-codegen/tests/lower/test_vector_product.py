"""Products with a vector: which become loops, and that these agree with float64 as well as eager does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 (the name everybody knows)
from products import Function, assert_as_close_as_eager, compile_product, random_factors

# function, shapes of its arguments
CASES: dict[str, tuple[Function, tuple[tuple[int, ...], ...]]] = {
    "row": (lambda x, w: x.mm(w.t()), ((1, 67), (50, 67))),
    "row of a vector's length": (lambda x, w: x.mm(w.t()), ((1, 64), (1, 64))),
    "long row": (lambda x, w: x.mm(w.t()), ((1, 5003), (3, 5003))),
    "column": (lambda w, x: w.mm(x), ((50, 256), (256, 1))),
    "bias": (F.linear, ((1, 100), (33, 100), (33,))),
    "bias and activation": (lambda x, w, b: F.gelu(F.linear(x, w, b)), ((1, 100), (33, 100), (33,))),
    "added matrix": (lambda a, x, w: torch.addmm(a, x, w.t()), ((1, 33), (1, 100), (33, 100))),
    "added number": (lambda a, w, x: torch.addmm(a, w, x), ((1,), (33, 100), (100, 1))),
    "batch of rows": (lambda q, k: torch.bmm(q, k.transpose(1, 2)), ((6, 1, 64), (6, 17, 64))),
    "batch of columns": (lambda k, q: torch.bmm(k, q), ((6, 17, 64), (6, 64, 1))),
    "batch with another one added": (lambda a, k, q: torch.baddbmm(a, k, q), ((6, 17, 1), (6, 17, 64), (6, 64, 1))),
    "computed vector": (lambda x, w: (x.exp() * 2).mm(w.t()).relu(), ((1, 67), (50, 67))),
    "two with one vector": (lambda x, w, v: F.silu(x.mm(w.t())) * x.mm(v.t()), ((1, 67), (50, 67), (50, 67))),
    "one after the other": (lambda x, w, v: x.mm(w.t()).relu().mm(v.t()), ((1, 67), (70, 67), (50, 70))),
    "terms in rows": (lambda x, w: x.mm(w), ((1, 67), (67, 130))),
    "terms in many rows": (lambda x, w: x.mm(w), ((1, 5003), (5003, 64))),
    "terms in long rows": (lambda x, w: x.mm(w), ((1, 67), (67, 5000))),
    "terms in rows, bias and activation": (lambda x, w, b: F.gelu(torch.addmm(b, x, w)), ((1, 100), (100, 70), (70,))),
    "terms in rows, for a column": (lambda w, x: w.t().mm(x), ((67, 130), (67, 1))),
    "batch of terms in rows": (lambda p, v: torch.bmm(p, v), ((6, 1, 70), (6, 70, 64))),
    "two rows": (lambda x, w: x.mm(w.t()), ((2, 67), (250, 67))),
    "computed rows": (lambda x, w: (x.exp() * 2).mm(w).relu(), ((2, 67), (67, 251))),
    "rows that are columns in memory": (lambda x, w: x.t().mm(w), ((67, 2), (67, 251))),
    "rows added": (lambda a, x, w: torch.addmm(a, x, w), ((2, 250), (2, 67), (67, 250))),
    "few rows one after the other": (lambda x, w, v: x.mm(w).relu().mm(v.t()), ((2, 67), (67, 256), (70, 256))),
}
# As above, but of 16 bits they are ATen's.
CASES_OF_WIDE_NUMBERS: dict[str, tuple[Function, tuple[tuple[int, ...], ...]]] = {
    "three rows": (lambda x, w: x.mm(w), ((3, 128), (128, 130))),
    "four rows": (lambda x, w, b: F.gelu(F.linear(x, w, b)), ((4, 128), (130, 128), (130,))),
    "four rows, terms in rows": (lambda x, w, b: F.gelu(torch.addmm(b, x, w)), ((4, 128), (128, 130), (130,))),
}
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("name", "dtype"),
    [(name, dtype) for name in CASES for dtype in DTYPES]
    + [(name, dtype) for name in CASES_OF_WIDE_NUMBERS for dtype in (torch.float32, torch.float64)],
    ids=lambda x: str(x).removeprefix("torch."),
)
def test_as_close_to_float64_as_eager(name: str, dtype: torch.dtype, threads: int, tmp_path: Path) -> None:
    function, shapes = (CASES | CASES_OF_WIDE_NUMBERS)[name]
    given = random_factors(shapes, dtype)
    compiled = compile_product(function, given, tmp_path, threads)
    assert "extern" not in compiled.ir_text
    (found,) = compiled(*given)
    assert_as_close_as_eager(found, function(*given), function(*[x.double() for x in given]))


NOT_LOOPS: dict[str, tuple[Function, tuple[tuple[int, ...], ...]]] = {
    "two rows and a small matrix": (lambda x, w: x.mm(w.t()), ((2, 67), (50, 67))),
    "five rows": (lambda x, w: x.mm(w.t()), ((5, 67), (250, 67))),
    "rows that do not stay in the caches": (lambda x, w: x.mm(w.t()), ((4, 1537), (20, 1537))),
    "batch of two rows": (lambda x, w: x.bmm(w), ((2, 2, 67), (2, 67, 250))),
    "terms in short rows": (lambda x, w: x.mm(w), ((1, 67), (67, 50))),
    "gaps between rows of terms": (lambda x, w: x.mm(w[:, :67]), ((1, 67), (67, 80))),
    "gaps between rows": (lambda x, w: x.mm(w[:, :67].t()), ((1, 67), (50, 80))),
    "scaled": (lambda a, x, w: torch.addmm(a, x, w.t(), beta=2.0, alpha=0.5), ((50,), (1, 67), (50, 67))),
    "one matrix for all": (lambda x, w: x.bmm(w.t().expand(3, 67, 50)), ((3, 1, 67), (50, 67))),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", CASES_OF_WIDE_NUMBERS)
def test_several_rows_of_16_bits_are_those_of_aten(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    function, shapes = CASES_OF_WIDE_NUMBERS[name]
    assert "extern" in compile_product(function, random_factors(shapes, dtype), tmp_path).ir_text


@pytest.mark.parametrize("name", NOT_LOOPS)
def test_other_products_are_those_of_aten(name: str, tmp_path: Path) -> None:
    function, shapes = NOT_LOOPS[name]
    given = random_factors(shapes, torch.float32)
    compiled = compile_product(function, given, tmp_path)
    assert "extern" in compiled.ir_text
    torch.testing.assert_close(compiled(*given)[0], function(*given))


def test_integers_and_complex_numbers_are_those_of_aten(tmp_path: Path) -> None:
    for dtype in (torch.int64, torch.complex64):
        given = (torch.ones(1, 80, dtype=dtype), torch.ones(5, 80, dtype=dtype))
        compiled = compile_product(lambda x, w: x.mm(w.t()), given, tmp_path)
        assert torch.equal(compiled(*given)[0], given[0].mm(given[1].t()))


@pytest.mark.parametrize("shapes", [((1, 0), (5, 0)), ((1, 70), (0, 70))])
def test_nothing_to_multiply(shapes: tuple[tuple[int, int], tuple[int, int]], tmp_path: Path) -> None:
    given = random_factors(shapes, torch.float32)
    compiled = compile_product(lambda x, w: x.mm(w.t()), given, tmp_path)
    assert torch.equal(compiled(*given)[0], given[0].mm(given[1].t()))


def _put_nan_and_infinity(x: torch.Tensor, w: torch.Tensor) -> None:
    """x [rows, terms], w [columns, terms]: not a number, infinities, infinity times zero."""
    w[0, 3], w[1, 7], w[2, 128] = float("nan"), float("inf"), float("-inf")
    x[0, 5], w[3, 5], w[4, 5] = 0.0, float("inf"), 0.0


def test_nan_and_infinity(tmp_path: Path) -> None:
    x, w = random_factors(((1, 130), (6, 130)), torch.float32)
    _put_nan_and_infinity(x, w)
    found = compile_product(lambda x, w: x.mm(w.t()), (x, w), tmp_path)(x, w)[0]
    torch.testing.assert_close(found, x.mm(w.t()), equal_nan=True)


def test_a_vector_that_is_part_of_the_matrix(tmp_path: Path) -> None:
    (w,) = random_factors(((70, 70),), torch.float32)
    function: Function = lambda w: w[3:4].mm(w.t())  # noqa: E731
    torch.testing.assert_close(compile_product(function, (w,), tmp_path)(w)[0], function(w))


@pytest.mark.parametrize("in_rows", [False, True], ids=["row-major", "transposed"])
def test_few_rows_read_the_matrix_in_one_loop(in_rows: bool, tmp_path: Path) -> None:
    x, w = random_factors(((4, 128), (140, 128) if in_rows else (128, 140)), torch.float32)
    compiled = compile_product(lambda x, w: x.mm(w.t() if in_rows else w), (x, w), tmp_path)
    (kernel,) = compiled.kernels
    assert kernel.text.count("b1[") == 1
    torch.testing.assert_close(compiled(x, w)[0], x.mm(w.t() if in_rows else w))


def test_numbers_of_16_bits_are_converted_once(tmp_path: Path) -> None:
    given = random_factors(((1, 128), (140, 128)), torch.bfloat16)
    compiled = compile_product(lambda x, w: x.mm(w.t()), given, tmp_path)
    product = compiled.ir_text[compiled.ir_text.rindex("loop ") :]
    assert "load mm_default[r0] : float32" in product and product.count("cast") == 2


@pytest.mark.parametrize("rows", [1, 2])
def test_nan_and_infinity_in_rows_of_terms(rows: int, tmp_path: Path) -> None:
    x, w = random_factors(((rows, 130), (130, 150)), torch.float32)
    _put_nan_and_infinity(x, w.t())
    found = compile_product(lambda x, w: x.mm(w), (x, w), tmp_path)(x, w)[0]
    torch.testing.assert_close(found, x.mm(w), equal_nan=True)
