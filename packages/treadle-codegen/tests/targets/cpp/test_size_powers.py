"""Powers of sizes are computed once per call of a kernel, not once per element."""

from __future__ import annotations

import re

import torch
import torch.nn.functional as F  # noqa: N812 (the name everybody knows)
from dynamic_cases import compile_dynamic

from treadle_codegen.targets.cpp.size_powers import powers_of_sizes
from treadle_shapes import Lt
from treadle_shapes.expr import symbol


def test_the_largest_parts_that_cannot_fail():
    n, m, j = symbol("n", 1), symbol("m", 1), symbol("j", 0)

    def found(e):
        return list(powers_of_sizes(e, {n, m}, set()))

    assert found(j + 16 * (2**n // 4 - 1) * j) == [2**n // 4]
    assert found((j + 3) // 2**n) == [2**n]  # not the quotient: j is a loop's
    assert found(m // 2**n) == [2**n]  # a quotient that may fail is computed where it is needed
    assert found(2**j + n // 4) == []
    assert found(Lt(2 ** (n + m), j)) == [2 ** (n + m)]


def test_kernels_compute_powers_in_front_of_their_loops(tmp_path):
    def padded(x):
        wide = F.pad(x, (0, 2 ** x.shape[0]))
        return wide.t().contiguous() + wide[:, : 2 ** x.shape[0]].sum()

    compiled = compile_dynamic(padded, lambda rows, columns: [(rows, columns)], (3, 5), tmp_path)
    for shape in ((3, 5), (1, 2), (6, 40), (2, 0)):
        x = torch.randn(shape)
        torch.testing.assert_close(compiled(x)[0], padded(x))
    bodies = re.findall(r"KERNEL void .*?\n}\n", compiled.source, re.S)
    powers = [line for body in bodies for line in body.splitlines() if "treadle_pow" in line]
    assert powers
    assert all(re.match(r"  const i64 s\d+ = ", line) for line in powers)
