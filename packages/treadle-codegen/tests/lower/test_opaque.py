"""Graphs with tensors that are not strided memory: operators run on them, loops never do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from aten_capture import capture

from treadle_codegen import CodegenOptions, compile_graph
from treadle_codegen.errors import InternalError
from treadle_codegen.interpret import interpret
from treadle_codegen.ir.verify import verify
from treadle_codegen.lower import lower_graph

DENSE = torch.tensor([[0.0, 1.0, 0.0], [2.0, 0.0, 3.0]])
Y = torch.arange(12.0).reshape(3, 4)

CASES: dict[str, tuple[Callable[..., Any], torch.Tensor]] = {
    "product": (lambda s, y: torch.sparse.mm(s, y).relu() + 1, DENSE.to_sparse()),
    "operator": (lambda s, y: (s @ y).exp(), DENSE.to_sparse()),
    "compressed rows": (lambda s, y: (s @ y).neg(), DENSE.to_sparse_csr()),
    "to dense": (lambda s, y: s.to_dense() * 2, DENSE.to_sparse()),
    "sparse result": (lambda s, y: (s * 2, y + 1), DENSE.to_sparse()),
    "compressed result": (lambda s, y: (s * 2, y + 1), DENSE.to_sparse_csr()),
    "made inside": (lambda d, y: d.relu().to_sparse() @ y + 1, DENSE),
    "made inside, compressed": (lambda d, y: d.relu().to_sparse_csr() @ y + 1, DENSE),
    "made and returned": (lambda d, y: d.relu().to_sparse(), DENSE),
    "returned input": (lambda s, y: (s, y + 1), DENSE.to_sparse()),
    "transposed": (lambda s, y: s.t() @ (s @ y), DENSE.to_sparse()),
    "transposed, compressed": (lambda s, y: s.t() @ (s @ y), DENSE.to_sparse_csr()),
    "transposed result": (lambda s, y: (s.transpose(0, 1), y + 1), DENSE.to_sparse()),
    "sum": (lambda s, y: torch.sparse.sum(s, 1).to_dense(), DENSE.to_sparse()),
}


def dense(x: torch.Tensor) -> torch.Tensor:
    return x if x.layout == torch.strided else x.to_dense()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_sparse_tensors(name: str, tmp_path: Path) -> None:
    fn, x = CASES[name]
    gm = capture(fn, [x, Y])
    program = lower_graph(gm)
    assert verify(program) == []
    compiled = compile_graph(gm, [x, Y], options=CodegenOptions(cache_dir=tmp_path, threads=1, verify=True))
    wanted = fn(x, Y)
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    for results in (compiled(x, Y), interpret(program, [x, Y])):
        for mine, eager in zip(results, wanted, strict=True):
            assert mine.layout == eager.layout
            torch.testing.assert_close(dense(mine), dense(eager))


def test_how_many_elements_a_sparse_tensor_holds_is_not_guessed() -> None:
    gm = capture(lambda s: s.coalesce().values() * 2, [DENSE.to_sparse()])
    with pytest.raises(InternalError, match="of a sparse tensor is not known"):
        lower_graph(gm)
