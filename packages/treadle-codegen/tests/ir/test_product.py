"""Matrix products in the loop IR: the verifier's rules, the roles of axes, the reference interpreter, and fusion."""

from __future__ import annotations

import pytest
import torch

from treadle_codegen.interpret import interpret
from treadle_codegen.ir.loops import Loop, Program
from treadle_codegen.ir.product import Product, product_of
from treadle_codegen.ir.text import format_program, parse_program
from treadle_codegen.ir.verify import verify
from treadle_codegen.schedule.fuse import Node, fuse
from treadle_codegen.schedule.kernel import Kernel
from treadle_codegen.schedule.verify import verify_schedule

TEXT = """\
program inputs x, w, r outputs view(y, [3, 4, 6], [24, 6, 1], 0)
input x : float16 [3, 4, 8] strides [32, 8, 1] offset 0
input w : float16 [8, 6] strides [6, 1] offset 0
input r : float32 [3, 4, 6] strides [24, 6, 1] offset 0
temp t : float16 [3, 4, 6] strides [24, 6, 1] offset 0
output y : float32 [3, 4, 6] strides [24, 6, 1] offset 0
loop mm [i0:3, i1:4, i2:6] reduce [r0:8] origins
  %0 = load x[32*i0 + 8*i1 + r0] : float16
  %1 = load w[i2 + 6*r0] : float16
  %2 = reduce dot %0 %1 : float32
  %3 = cast %2 : float16
  %4 = store t[24*i0 + 6*i1 + i2] %3 : float16
loop after [i0:72] reduce [] origins
  %0 = load t[i0] : float16
  %1 = cast %0 : float32
  %2 = load r[i0] : float32
  %3 = add %1 %2 : float32
  %4 = store y[i0] %3 : float32
"""
FAULTS = [
    ("load w[i2 + 6*r0]", "load w[i2]", "does not vary along its reduce axes"),
    ("load x[32*i0 + 8*i1 + r0]", "load x[32*i0 + r0]", "no value of the matrix product varies along"),
    ("load w[i2 + 6*r0]", "load w[i0 + i1 + i2 + r0]", "without rows"),
    ("reduce dot %0 %1", "reduce dot %0", "no reduction|cannot reduce|of 1 values"),
    ("reduce dot %0 %1 : float32", "reduce dot %0 %1 : float64", "no matrix product of"),
    ("reduce dot %0 %1", "reduce sum %0 %1", "no reduction 'sum' of 2 values"),
]


def program(text: str = TEXT) -> Program:
    return parse_program(text)


def test_a_matrix_product_is_well_formed_and_reads_back() -> None:
    assert verify(program()) == []
    assert format_program(parse_program(format_program(program()))) == format_program(program())


@pytest.mark.parametrize(("right", "wrong", "message"), FAULTS)
def test_faults_are_found(right: str, wrong: str, message: str) -> None:
    assert right in TEXT
    problems = verify(program(TEXT.replace(right, wrong)))
    assert any(part in problem for problem in problems for part in message.split("|")), problems


def test_roles_of_axes() -> None:
    loop = program().steps[0]
    assert isinstance(loop, Loop)
    found = product_of(loop)
    assert isinstance(found, Product)
    names = [[axis.symbol.name for axis in axes] for axes in (found.batch, found.rows, found.columns)]
    assert names == [[], ["i0", "i1"], ["i2"]]


def test_the_reference_interpreter_sums_exactly() -> None:
    x, w, r = torch.randn(3, 4, 8).half(), torch.randn(8, 6).half(), torch.randn(3, 4, 6)
    (found,) = interpret(program(), [x, w, r])
    assert torch.equal(found, (x.double() @ w.double()).float().half().float() + r)


def fused(text: str) -> list[Node]:
    made = program(text)
    nodes = fuse(made)
    assert verify_schedule(made, nodes) == []
    return nodes


def test_what_follows_point_by_point_runs_on_the_tiles() -> None:
    (node,) = fused(TEXT)
    assert isinstance(node.item, Kernel)
    assert [len(section.axes) for section in node.item.sections] == [1, 0]
    assert "t" in node.item.locals


def test_a_reduction_behind_a_product_is_a_kernel_of_its_own() -> None:
    after = TEXT.index("loop after")
    text = TEXT[:after] + (
        "loop after [i0:3, i1:4] reduce [r0:6] origins\n  %0 = load t[24*i0 + 6*i1 + r0] : float16\n"
        "  %1 = cast %0 : float32\n  %2 = reduce sum %1 : float32\n  %3 = store y[24*i0 + 6*i1] %2 : float32\n"
    )
    first, second = fused(text)
    assert "deeper" in first.reasons["after"] and isinstance(second.item, Kernel)


def test_a_loop_that_spreads_results_is_a_kernel_of_its_own() -> None:
    after = TEXT.index("loop after")
    text = TEXT[:after].replace("[3, 4, 6], [24, 6, 1], 0)", "[3, 4, 6, 2], [48, 12, 2, 1], 0)").replace(
        "output y : float32 [3, 4, 6] strides [24, 6, 1]", "output y : float32 [3, 4, 6, 2] strides [48, 12, 2, 1]"
    ) + (
        "loop after [i0:72, i1:2] reduce [] origins\n  %0 = load t[i0] : float16\n"
        "  %1 = cast %0 : float32\n  %2 = store y[2*i0 + i1] %1 : float32\n"
    )
    first, _ = fused(text)
    assert first.reasons["after"] == "it is no function of single elements of the matrix product"


def test_a_loop_that_only_reads_the_same_does_not_join() -> None:
    text = TEXT.replace("%0 = load t[i0] : float16", "%0 = load x[i0] : float16")
    nodes = fused(text)
    assert len(nodes) == 2
    assert nodes[0].reasons["after"] in (
        "it needs nothing of the matrix product",
        "independent loops over different spaces",
    )


def test_a_product_joins_no_kernel() -> None:
    lines = TEXT.splitlines(keepends=True)
    start, end = next(k for k, x in enumerate(lines) if "loop mm" in x), len(lines)
    before = (
        "temp u : float16 [8, 6] strides [6, 1] offset 0\nloop before [i0:48] reduce [] origins\n  %0 = load w[i0] : float16\n"
        "  %1 = store u[i0] %0 : float16\n"
    )
    text = "".join(lines[:start]) + before + "".join(lines[start:end]).replace("load w", "load u")
    nodes = fused(text)
    assert len(nodes) == 2


def test_a_value_that_many_paths_lead_to_is_looked_at_once() -> None:
    doubled = "".join(f"  %{k} = mul %{k - 1} %{k - 1} : float32\n" for k in range(2, 66))
    text = f"""\
program inputs x, w outputs view(y, [4, 6], [6, 1], 0)
input x : float32 [4, 8] strides [8, 1] offset 0
input w : float32 [8, 6] strides [6, 1] offset 0
output y : float32 [4, 6] strides [6, 1] offset 0
loop mm [i0:4, i1:6] reduce [r0:8] origins
  %0 = load w[i1 + 6*r0] : float32
  %1 = load x[8*i0 + r0] : float32
{doubled}  %66 = reduce dot %65 %0 : float32
  %67 = store y[6*i0 + i1] %66 : float32
"""
    (loop,) = parse_program(text).steps
    assert isinstance(loop, Loop)
    found = product_of(loop)
    assert isinstance(found, Product) and [axis.extent for axis in (*found.rows, *found.columns)] == [4, 6]
