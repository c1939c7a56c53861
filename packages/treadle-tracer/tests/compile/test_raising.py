"""A function that raises while it is traced runs in Python itself, which may not raise at all."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from compile_runs import run_graph  # noqa: E402

from treadle_tracer import optimize  # noqa: E402


def test_what_only_tracing_raises_is_not_raised():
    def fill(x, mask):
        if not torch.compiler.is_compiling() and mask is None:  # transformers' LongT5 makes its default mask so
            mask = torch.ones_like(x)
        return x * mask.sum(-1, keepdim=True)

    compiled, x = optimize(lambda x, mask: fill(x, mask) + 1, run_graph), torch.randn(3, 4)
    for _ in range(3):
        torch.testing.assert_close(compiled(x, None), x * 4 + 1)


def test_what_python_raises_is_raised_each_time():
    def refuse(x, n):
        y = x + 1
        if n > 2:
            raise ValueError(f"n is {n}")
        return y

    compiled = optimize(refuse, run_graph)
    for _ in range(3):
        with pytest.raises(ValueError, match="n is 3"):
            compiled(torch.ones(2), 3)
        torch.testing.assert_close(compiled(torch.ones(2), 2), torch.full((2,), 2.0))


def test_an_exception_that_the_program_handles():
    def pick(x, i):
        try:
            return x.index_select(0, i)
        except IndexError:
            return x

    compiled, x = optimize(pick, run_graph), torch.randn(3, 4)
    for position in (1, 7, 2):
        i = torch.tensor([position])
        torch.testing.assert_close(compiled(x, i), pick(x, i))
