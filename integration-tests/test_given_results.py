"""Calls that write to a given tensor (`out=`): of another dtype, of memory that they read, and where functionalisation sees no write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 (the name everybody knows)

import treadle

X = torch.linspace(-2, 2, 16).view(4, 4)
Y = X.t().contiguous() + 0.5
ROWS = torch.tensor([3, 0, 1, 2])

OF_ANOTHER_DTYPE: dict[str, Callable[[torch.Tensor], Any]] = {
    "add": lambda out: torch.add(X, Y, out=out),
    "amax": lambda out: torch.amax(X, (0, 1), keepdim=True, out=out),
    "softshrink": lambda out: torch._C._nn.softshrink(X, out=out),
    "gelu": lambda out: torch._C._nn.gelu(X, out=out),
    "triu": lambda out: torch.triu(X, out=out),
    "nan to num": lambda out: torch.nan_to_num(X, out=out),
    "std": lambda out: torch.std(X, 1, out=out),
    "cross": lambda out: torch.linalg.cross(X[:, :3], Y[:, :3], out=out),
    "all": lambda out: torch.all(X, 1, out=out),
    "sum": lambda out: torch.sum(X, 1, out=out),
    "arange": lambda out: torch.arange(4, out=out),
    "index_select": lambda out: torch.index_select(X, 0, ROWS, out=out),
}
OF_MEMORY_READ: dict[str, Callable[[torch.Tensor], Any]] = {
    "relu": lambda x: torch.clamp(x, min=0, out=x),
    "add": lambda x: torch.add(x, Y, out=x),
    "amax": lambda x: torch.amax(x[0], 0, out=x[0, 0]),
    "mean": lambda x: torch.mean(x[:1], 0, out=x[0]),
    "index_select": lambda x: torch.index_select(x, 0, ROWS, out=x),
    "cross": lambda x: torch.linalg.cross(x[:, :3], Y[:, :3], out=x[:, :3]),
    "cumsum": lambda x: torch.cumsum(x, 0, out=x),
    "sort": lambda x: torch.msort(x, out=x),
}


def outcome(function: Callable[[torch.Tensor], Any], given: torch.Tensor) -> Any:
    try:
        function(given)
    except RuntimeError as error:
        return type(error)
    return given


def compare(function: Callable[[torch.Tensor], Any], given: torch.Tensor, **options: Any) -> None:
    treadle.reset()
    with treadle.config.patch(raise_internal_errors=True, leave_unprofitable=False):
        found = outcome(treadle.compile(function, **options), given.clone())
    expected = outcome(function, given.clone())
    if isinstance(expected, type):
        assert found is expected
    else:
        torch.testing.assert_close(found, expected)


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.complex64, torch.bool, torch.float32])
@pytest.mark.parametrize("name", OF_ANOTHER_DTYPE)
def test_of_another_dtype(name: str, dtype: torch.dtype) -> None:
    function = OF_ANOTHER_DTYPE[name]
    fitting = torch.zeros(4, dtype=torch.int64) if name == "arange" else function(torch.empty(0, dtype=_dtype_of(name)))
    compare(function, torch.zeros(fitting.shape, dtype=dtype))


def _dtype_of(name: str) -> torch.dtype:
    return torch.bool if name == "all" else torch.float32


@pytest.mark.parametrize("name", OF_MEMORY_READ)
def test_of_memory_that_is_read(name: str) -> None:
    compare(OF_MEMORY_READ[name], X)


@pytest.mark.parametrize("backend", ["aot_eager", "codegen"])
def test_where_functionalisation_does_not_see_the_write(backend: str) -> None:
    compare(lambda out: torch.linalg.matrix_rank(X, out=out), torch.zeros((), dtype=torch.int64), backend=backend)
    compare(
        lambda out: torch.linalg.matrix_rank(X, out=out),
        torch.zeros((), dtype=torch.int64),
        backend=backend,
        dynamic=True,
    )


def test_results_of_their_own_dtype_stay_in_the_graph() -> None:
    def program(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        torch.matmul(x, x, out=out)
        torch.add(out, x, out=out)
        return torch.amax(F.relu(out), 0)

    treadle.reset()
    with treadle.config.patch(raise_internal_errors=True, leave_unprofitable=False):
        compiled = treadle.compile(program, fullgraph=True)
        torch.testing.assert_close(compiled(X, torch.zeros(4, 4)), program(X, torch.zeros(4, 4)))
        assert treadle.stats().graphs == 1
