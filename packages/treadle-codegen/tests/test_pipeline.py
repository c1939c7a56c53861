"""`compile_graph` as a whole: random programs against eager, errors, concurrency, what the host must not remember."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 (the name everybody knows)
from aten_capture import capture
from hypothesis import HealthCheck, given, settings
from random_programs import programs, run_program

from treadle_codegen import CodegenOptions, CodegenUnavailable, CompiledGraph, OptionError, compile_graph
from treadle_codegen.host.workspace import Workspace
from treadle_codegen.lower.indexing import same_strides
from treadle_codegen.targets.cpp import build


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kernels")


def compiled_of(
    fn: Any, inputs: list[torch.Tensor], cache: Path, static: tuple[int, ...] = (), **options: Any
) -> CompiledGraph:
    gm = capture(fn, inputs, static)
    return compile_graph(gm, inputs, options=CodegenOptions(cache_dir=cache, verify=True, **{"threads": 1, **options}))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(programs())
def test_random_programs_agree_with_eager(cache: Path, program: Any) -> None:
    shapes, steps = program
    torch.manual_seed(0)
    inputs = [torch.randn(s) for s in shapes]
    want = run_program(steps, *inputs)
    if not want:
        return
    reference = run_program(steps, *[x.double() for x in inputs])
    got = compiled_of(lambda *args: run_program(steps, *args), inputs, cache)(*inputs)
    for mine, eager, exact in zip(got, want, reference, strict=True):
        assert mine.shape == eager.shape
        # along sizes of 1 strides mean nothing, and torch's fake kernels do not always agree with the real ones there
        assert same_strides(tuple(mine.shape), mine.stride(), eager.stride())
        allowed = 10 * (eager.double() - exact).abs().max().item() + 1e-6 * max(1.0, exact.abs().max().item())
        assert (mine.double() - exact).abs().max().item() <= allowed


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("n", [7, 4096, 1_000_003])
def test_long_sums_stay_accurate(cache: Path, n: int, threads: int) -> None:
    torch.manual_seed(0)
    x = torch.rand(n)
    (y,) = compiled_of(lambda x: x.exp().sum(), [x], cache, threads=threads)(x)
    exact = x.double().exp().sum().item()
    assert abs(y.item() - exact) <= 4e-7 * exact


def test_two_threads_of_openmp_agree(cache: Path) -> None:
    x = torch.randn(300, 1000)
    (y,) = compiled_of(lambda x: torch.softmax(x.tanh(), 1) * x.sum(1, keepdim=True), [x], cache, threads=2)(x)
    torch.testing.assert_close(y, torch.softmax(x.tanh(), 1) * x.sum(1, keepdim=True), rtol=1e-4, atol=1e-4)


# -- what the host must get right


def test_an_index_out_of_range_raises_as_in_eager(cache: Path) -> None:
    table, index = torch.randn(10, 4), torch.tensor([1, 9, 3])
    compiled = compiled_of(lambda t, i: F.embedding(i, t), [table, index], cache)
    torch.testing.assert_close(compiled(table, index)[0], table[index])
    with pytest.raises(IndexError):
        compiled(table, torch.tensor([1, 10, 3]))
    torch.testing.assert_close(compiled(table, index)[0], table[index])


def test_a_replaced_parameter_is_read_where_it_lies_now(cache: Path) -> None:
    weight, x = torch.nn.Parameter(torch.randn(6, 5)), torch.randn(3, 5)
    compiled = compiled_of(F.linear, [x, weight], cache, static=(1,))
    with torch.no_grad():
        torch.testing.assert_close(compiled(x, weight)[0], F.linear(x, weight))
        weight.data = torch.randn(6, 5)
        torch.testing.assert_close(compiled(x, weight)[0], F.linear(x, weight))
        weight.mul_(2)
        torch.testing.assert_close(compiled(x, weight)[0], F.linear(x, weight))


def test_results_of_two_calls_do_not_share_memory(cache: Path) -> None:
    compiled = compiled_of(lambda x: (x.softmax(0).mm(x) + 1, x * 2), [torch.randn(8, 8)], cache)
    a, b = torch.randn(8, 8), torch.randn(8, 8)
    first = compiled(a)
    kept = [t.clone() for t in first]
    compiled(b)
    for now, then in zip(first, kept, strict=True):
        assert torch.equal(now, then)


CALLS = 50  # of each thread


def test_concurrent_calls_have_their_own_workspace(cache: Path) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax((x @ x).relu(), 1) @ x

    compiled = compiled_of(fn, [torch.randn(64, 64)], cache)
    failures: list[str] = []

    def work(seed: int) -> None:
        x = torch.randn(64, 64, generator=torch.Generator().manual_seed(seed))
        want = fn(x)
        for _ in range(CALLS):
            if not torch.allclose(compiled(x)[0], want, atol=1e-4):
                failures.append(f"seed {seed}")
                return

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not failures


def test_nothing_is_read_before_it_is_written(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reserve = Workspace.reserve

    def poisoned(self: Workspace, size: int) -> None:
        reserve(self, size)
        self.arena.fill_(255)  # NaN in every float format

    monkeypatch.setattr(Workspace, "reserve", poisoned)
    layer = torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True).eval()
    state, x = dict(layer.named_parameters()), torch.randn(2, 10, 32)

    def fn(x: torch.Tensor, *tensors: torch.Tensor) -> Any:
        return torch.func.functional_call(layer, dict(zip(state, tensors, strict=True)), (x,))

    with torch.no_grad():
        got = compiled_of(fn, [x, *state.values()], cache)(x, *state.values())[0]
        torch.testing.assert_close(got, layer(x), rtol=1e-4, atol=1e-5)


# -- wrong use


def test_an_unknown_target_is_named(cache: Path) -> None:
    gm = capture(torch.relu, [torch.randn(3)])
    with pytest.raises(OptionError, match="'fortran'.*known: cpp"):
        compile_graph(gm, [torch.randn(3)], target="fortran")


@pytest.mark.parametrize(
    ("options", "message"),
    [({"threads": -1}, "'threads'.*>= 0.*-1"), ({"thread": 1}, "unknown codegen option 'thread'; known: threads")],
    ids=["value", "name"],
)
def test_wrong_options_are_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        CodegenOptions.from_dict(options)


def test_without_a_compiler_the_error_names_what_was_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    build._find.cache_clear()
    with pytest.raises(CodegenUnavailable, match=r"g\+\+, clang\+\+, c\+\+"):
        compiled_of(torch.relu, [torch.randn(3)], tmp_path)


def test_a_second_process_finds_the_library(cache: Path) -> None:
    x = torch.randn(11, 13)

    def fn(x: torch.Tensor) -> torch.Tensor:
        return x.cos() * 3 + x.mean()

    assert compiled_of(fn, [x], cache).cache_hits == 0
    again = compiled_of(fn, [x], cache)
    assert again.cache_hits == 1
    torch.testing.assert_close(again(x)[0], fn(x))


def test_an_empty_result_is_allocated(cache: Path) -> None:
    x = torch.randn(0, 3)
    (y,) = compiled_of(lambda x: x * 2, [x], cache)(x)
    assert y.shape == (0, 3)


def test_constants_of_an_inner_loop_are_not_used_behind_it(cache: Path) -> None:
    x = torch.randn(5, 5)

    def fn(x: torch.Tensor) -> torch.Tensor:
        return ((x * 3).sum(1) * 3).sum() * 3

    torch.testing.assert_close(compiled_of(fn, [x], cache)(x)[0], fn(x))


def test_index_expressions_with_min_and_max_compile(cache: Path) -> None:
    x = torch.randn(1, 2, 7, 7)
    (y,) = compiled_of(lambda x: F.adaptive_avg_pool2d(x, 3), [x], cache)(x)
    torch.testing.assert_close(y, F.adaptive_avg_pool2d(x, 3))
