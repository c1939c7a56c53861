"""Kernels for the sizes of a graph's calls: the same bits, only for sizes that stay, and nothing said twice or swallowed."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 (the name everybody knows)
from dynamic_cases import CASES, IMAGE, PLAIN, Shapes, compile_dynamic
from hypothesis import HealthCheck, given, settings
from random_programs import programs, run_program

from treadle_codegen import CompiledGraph
from treadle_codegen.errors import CodegenUnavailable, CompilerFailed, InternalError
from treadle_codegen.host import shape_specialisation
from treadle_codegen.host.shape_specialisation import ShapeSpecialisation, specialise_now, wait_for_specialisation
from treadle_codegen.host.workspace import NO_MEMORY, Entries, Fit

MORE_CASES: dict[str, tuple[Any, Shapes]] = {
    "masked softmax": (lambda x, m: x.masked_fill(m > 0.3, float("-inf")).softmax(-1), lambda n, c: [(n, c), (n, c)]),
    "gather": (lambda x, y: x.gather(1, (y.abs() * 2).long().clamp(max=1)), lambda n, c: [(n, c), (n, c)]),
    "rows by number": (lambda x, y: F.embedding((y.abs() * 2).long().clamp(max=1), x), lambda n, c: [(n, c), (n, 3)]),
    "nearest": (lambda x: F.interpolate(x, scale_factor=2.0) + 1, IMAGE),
    "fractions": (lambda x: F.interpolate(x, scale_factor=1.5, mode="bilinear"), IMAGE),
    "positions": (lambda x: x * (torch.arange(x.shape[1]) * 0.1).sinh() + x.shape[0] / 7, PLAIN),
    # Beyond 125, the cosine of eight numbers with AVX2 depends in the last digit on how large the others are (SLEEF, cosf of 1.0 ULP).
    "size in a power": (lambda x: x.abs() ** x.shape[0] + (x * (x.shape[1] / 8)).cos(), PLAIN),
    "group norm": (lambda x: F.group_norm(x, 4), IMAGE),
    "triangle": (lambda x: x.tril(1).cumsum(1), PLAIN),
    "products": (lambda x: (x * 0.1 + 1).prod(1) + x.double().exp().sum(1).float(), PLAIN),
    "half": (lambda x: (x.half() * 3).softmax(-1).float().var(0, correction=0), PLAIN),
    "arg": (lambda x: x.argmax(1) + x.argmin(0)[:1], PLAIN),
    "with matmul": (lambda x, y: (x @ y).relu().softmax(-1) @ y.t() * 2, lambda n, c: [(n, c), (c, 5)]),
}
ALL_CASES = CASES | MORE_CASES


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kernels")


def same_bits(xs: list[torch.Tensor], ys: list[torch.Tensor]) -> bool:
    return all(torch.equal(x, y) and torch.equal(x.signbit(), y.signbit()) for x, y in zip(xs, ys, strict=True))


def case(name: str, cache: Path, **options: Any) -> tuple[CompiledGraph, Callable[..., list[torch.Tensor]], int]:
    """The graph, the function that makes inputs for sizes, and how many sizes there are."""
    function, shapes = ALL_CASES[name]
    rank = shapes.__code__.co_argcount
    graph = compile_dynamic(function, shapes, (6, 14, 10)[:rank] if rank > 2 else (6, 37), cache, **options)
    return graph, lambda *sizes: [torch.randn(shape) for shape in shapes(*sizes[:rank])], rank


ON_TWO_THREADS = ("softmax", "layer norm", "column sums", "columns of an image", "gather", "nearest", "with matmul")


@pytest.mark.parametrize(
    ("name", "threads"), [(name, 1) for name in ALL_CASES] + [(name, 2) for name in ON_TWO_THREADS]
)
def test_results_keep_their_bits(name: str, threads: int, cache: Path) -> None:
    graph, inputs_at, _ = case(name, cache, threads=threads)
    for sizes in ((33, 127, 16), (2, 4, 3)) if threads == 1 else ((700, 50, 9),):
        inputs = inputs_at(*sizes)
        before = graph(*inputs)
        assert graph.specialise() == (graph.specialisation is not None)
        assert same_bits(graph(*inputs), before)


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(programs())
def test_random_programs_keep_their_bits(cache: Path, program: Any) -> None:
    _, steps = program
    function = lambda *inputs: run_program(steps, *inputs) or inputs[0] + 1  # noqa: E731
    graph = compile_dynamic(function, lambda n, c: [(n, c), (n, c)], (6, 19), cache)
    inputs = [torch.randn(6, 19), torch.randn(6, 19)]
    before = graph(*inputs)
    graph.specialise()
    assert same_bits(graph(*inputs), before)


def _powers_less_one(x: torch.Tensor) -> torch.Tensor:
    return (torch.arange(x.shape[1]).double() * 0.37).expm1()


UNSAFE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "order of a sum": lambda x: (x * x).sum(),
    "tan and sinh": lambda x: x * (torch.arange(x.shape[1]) * 0.37).tan() + (torch.arange(x.shape[1]) * 0.37).sinh(),
    "functions of doubles": lambda x: x * (torch.arange(x.shape[1]).double() * 0.37).tanh() + _powers_less_one(x),
}


@pytest.mark.parametrize("name", UNSAFE)
def test_what_the_compiler_would_do_otherwise_for_constants(name: str, cache: Path) -> None:
    """With its sizes as constants, each of these gives other bits at some of these sizes (gcc 12, glibc 2.36)."""
    graph = compile_dynamic(UNSAFE[name], PLAIN, (6, 37), cache)
    for sizes in ((3, 2), (3, 3), (1, 12)):
        torch.manual_seed(1)
        x = torch.randn(sizes)
        before = graph(x)
        graph.specialise()
        assert same_bits(graph(x), before)


def test_kernels_whose_bits_might_change_keep_their_numbers(cache: Path) -> None:
    """Sums in an order the compiler chooses, and the C library's functions, which the compiler evaluates for constants."""
    graph, inputs_at, _ = case("positions", cache)
    graph(*inputs_at(5, 40))
    assert any(kernel.why_not_constant and "sin" in kernel.why_not_constant for kernel in graph.kernels)
    total = compile_dynamic(lambda x: (x * x)[:, 1:].sum(), PLAIN, (6, 37), cache)
    assert [k.why_not_constant is None for k in total.kernels] == [False] and total.specialisation is None


def test_other_sizes_after_specialized_ones(cache: Path) -> None:
    graph, inputs_at, _ = case("with matmul", cache)
    x, y = inputs_at(9, 12), inputs_at(17, 64)
    expected = [graph(*x), graph(*y)]
    graph(*x)
    graph.specialise()
    for inputs, want in zip((x, y, x, x, y), (*expected, expected[0], expected[0], expected[1]), strict=True):
        assert same_bits(graph(*inputs), want)
    assert list(graph.specialisation.ready) == [(17, 64)] or list(graph.specialisation.ready) == [(9, 12)]


def test_a_value_that_is_no_size_stays_variable(cache: Path) -> None:
    """A float and an int beside the sizes differ from call to call; the kernels for the sizes take them as they come."""
    graph, number = _graph_with_a_number(cache)
    x = torch.randn(5, 8)
    graph(x, 3)
    assert graph.specialise()
    for n in (3, 4, -7):
        torch.testing.assert_close(graph(x, n)[0], torch.relu(x * n))
    assert number not in graph.specialisation._numbers


def _graph_with_a_number(cache: Path) -> tuple[CompiledGraph, Any]:
    from treadle_codegen import CodegenOptions, compile_graph
    from treadle_shapes import ShapeEnv
    from treadle_shapes.torch import fake_mode, fake_shape_env, fake_tensor, sym_int, symbolic_dispatch

    env = ShapeEnv()
    mode = fake_mode(shape_env=fake_shape_env(env))
    n = env.create_symbol(7, "n", "dynamic", size=False)
    graph = torch.fx.Graph()
    x, number = graph.placeholder("x"), graph.placeholder("n")
    rows = env.create_symbol(4, "rows", "dynamic")
    x.meta["val"] = fake_tensor(mode, torch.empty(4, 8), [rows, None], source="x")
    number.meta["val"] = sym_int(env, n)
    with mode, symbolic_dispatch():
        scaled = graph.call_function(torch.ops.aten.mul.Tensor, (x, number))
        scaled.meta["val"] = torch.ops.aten.mul.Tensor(x.meta["val"], 7)
        relu = graph.call_function(torch.ops.aten.relu.default, (scaled,))
        relu.meta["val"] = torch.ops.aten.relu.default(scaled.meta["val"])
    graph.output((relu,))
    module = torch.fx.GraphModule(torch.nn.Module(), graph)
    options = CodegenOptions(cache_dir=cache, verify=True, threads=1)
    return compile_graph(module, [torch.ones(4, 8), 7], options=options), n


def test_threads_at_different_sizes(cache: Path) -> None:
    """Calls go on, in several threads and at several sizes, while kernels for the sizes come in."""
    graph, inputs_at, _ = case("softmax", cache)
    inputs = [inputs_at(n, c) for n, c in ((3, 50), (40, 17), (64, 64))]
    expected = [graph(*x) for x in inputs]
    failures: list[int] = []
    ready = threading.Event()

    def work(k: int) -> None:
        for turn in range(400):
            at = (k + turn // 7) % 3
            if not same_bits(graph(*inputs[at]), expected[at]):
                failures.append(at)
            if turn == 100:
                ready.set()

    workers = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for worker in workers:
        worker.start()
    ready.wait()
    while any(worker.is_alive() for worker in workers) and len(graph.specialisation.ready) < 3:
        graph.specialise()
    for worker in workers:
        worker.join()
    assert not failures and graph.specialisation.ready


def test_without_the_option_nothing_is_kept_or_counted(cache: Path) -> None:
    graph, inputs_at, _ = case("softmax", cache, specialised_shapes=0)
    graph(*inputs_at(5, 40))
    assert graph.specialisation is None and not graph.specialise()
    assert "segment_0, ) = w.fitted" not in graph.host_source


def test_static_graphs_have_no_hot_sizes(cache: Path) -> None:
    from aten_capture import capture

    from treadle_codegen import CodegenOptions, compile_graph

    x = torch.randn(3, 4)
    graph = compile_graph(capture(torch.relu, [x]), [x], options=CodegenOptions(threads=1, cache_dir=cache))
    assert graph.specialisation is None and "w.fitted" not in graph.host_source


def test_time_spent_leads_to_a_compile_in_the_background(cache: Path) -> None:
    graph, inputs_at, _ = case("layer norm", cache)
    graph.specialisation.seconds = 0.0
    said: list[dict[str, int]] = []
    graph.specialisation.on_ready = lambda sizes, seconds: said.append(sizes)
    inputs = inputs_at(12, 50)
    want = graph(*inputs)
    for _ in range(20):
        graph(*inputs)
    assert wait_for_specialisation(120)
    assert list(graph.specialisation.ready) == [(12, 50)]
    assert same_bits(graph(*inputs), want) and same_bits(graph(*inputs), want)
    assert [list(sizes.values()) for sizes in said] == [[12, 50]]
    assert (
        graph.specialisation.last.state[-1] is graph.specialisation.ready[(12, 50)][0]
    )  # nothing is counted or said any more


def test_sizes_that_do_not_come_back_leave_nothing(cache: Path) -> None:
    """A growing sequence is neither remembered nor counted; sizes that come back in turns are."""
    graph, inputs_at, _ = case("with matmul", cache)
    for n in range(2, 60):
        graph(*inputs_at(n, 7))
    assert not graph._host.planner.fits
    for _ in range(3):
        for n in (3, 4):
            graph(*inputs_at(n, 9))
    assert sorted(map(sorted, graph._host.planner.fits)) == [[3, 9], [4, 9]]


def test_every_living_graph_at_once(cache: Path) -> None:
    graph, inputs_at, _ = case("column sums", cache)
    graph(*inputs_at(12, 50))
    assert specialise_now() >= 1 and (12, 50) in graph.specialisation.ready


# -- the decision, on a clock of its own


class Rig:
    """A graph of two segments that take a given time each; compiles are done when the queue is run."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, limit: int = 2, seconds: float = 1.0) -> None:
        self.now = 0.0
        self.takes = 0.01
        self.built: list[Mapping[Any, int | float]] = []
        self.jobs: list[Callable[[], None]] = []
        self.ran: list[str] = []
        self.error: Exception | None = None
        monkeypatch.setattr(shape_specialisation, "_worker", self)
        generic = (self._entry("a"), self._entry("b"))
        self.specialisation = ShapeSpecialisation(limit, seconds, generic, self._build, lambda: self.now)
        self.fits: dict[tuple[int, ...], Fit] = {}
        self.specialisation.belongs_to(self.fits, ["s0"], ["n"])

    def submit(self, job: Callable[[], None]) -> None:
        self.jobs.append(job)

    def _entry(self, name: str) -> Callable[[int], None]:
        def run(address: int) -> None:
            self.ran.append(name)
            self.now += self.takes / 2

        return run

    def _build(self, values: Mapping[Any, int | float], background: bool) -> Entries:
        self.built.append(values)
        if self.error is not None:
            raise self.error
        return (self._entry("A"), self._entry("B"))

    def call(self, size: int, times: int = 1) -> str:
        """What the last call ran."""
        for _ in range(times):
            fit = self.fits.get((size,))
            if fit is None:
                fit = self.fits[(size,)] = Fit((size,), NO_MEMORY, (), [(1, size)])
                fit.use(self.specialisation.entries_at(fit))
            entries = fit.state
            for entry in entries:
                entry(0)
        return "".join(self.ran[-2:])

    def work(self) -> None:
        while self.jobs:
            self.jobs.pop(0)()


def test_a_compile_is_asked_for_when_as_much_was_spent_as_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(monkeypatch)
    rig.call(5, 90)
    assert not rig.jobs
    rig.call(5, 60)  # sampled, so the decision may come a little later
    assert len(rig.jobs) == 1 and rig.call(5) == "ab" and not rig.built
    rig.work()
    assert rig.built == [{"n": 5}] and rig.call(5) == "AB"
    rig.call(5, 500)
    assert not rig.jobs and len(rig.built) == 1


def test_a_long_call_is_counted_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(monkeypatch, seconds=1.0)
    rig.takes = 0.2
    rig.call(5, 7)
    assert not rig.jobs  # eight calls at least, for sizes that do not come back
    rig.call(5, 1)
    assert len(rig.jobs) == 1


def test_sizes_that_change_on_every_call_never_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(monkeypatch)
    rig.takes = 10.0
    for size in range(1000):
        rig.call(size)
    assert not rig.jobs and not rig.built


def test_the_limit_is_kept_and_nothing_is_counted_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(monkeypatch, limit=2)
    rig.call(9, 3)  # counted when the limit is reached by others
    for size in (5, 6, 7):
        rig.call(size, 500)
        rig.work()
    assert [values["n"] for values in rig.built] == [5, 6]
    assert rig.fits[(7,)].state == rig.specialisation.generic
    rig.call(9, 500)
    assert rig.fits[(9,)].state == rig.specialisation.generic and not rig.jobs


def test_a_refused_compile_is_reported_by_the_next_call_at_these_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(monkeypatch)
    rig.error = CompilerFailed("n0 was not declared")
    rig.call(5, 500)
    rig.work()
    assert rig.call(6) == "ab"
    for _ in range(2):  # it is not swallowed when somebody tries again
        with pytest.raises(InternalError, match="n0 was not declared"):
            rig.call(5)
    said: list[InternalError] = []
    rig.specialisation.on_failure = said.append
    assert rig.call(5) == "ab" and rig.call(5, 500) == "ab"
    assert [error.pass_name for error in said] == ["shape specialisation"] and len(rig.built) == 1


@pytest.mark.parametrize("error", [CodegenUnavailable("no compiler"), OSError(28, "no space"), MemoryError()])
def test_without_a_compiler_the_graph_stays_as_it_is(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    rig = Rig(monkeypatch)
    rig.error = error
    rig.call(5, 500)
    rig.work()
    assert rig.call(5) == "ab" and rig.call(6, 500) == "ab"
    assert not rig.jobs and len(rig.built) == 1


def test_a_graph_that_is_gone_is_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(monkeypatch)
    rig.call(5, 500)
    built = rig.built
    rig.fits.clear()
    del rig.specialisation
    import gc

    gc.collect()
    rig.work()
    assert not built


def test_sizes_laid_out_anew_while_they_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(monkeypatch)
    rig.call(5, 500)
    rig.fits.clear()
    assert rig.call(5) == "ab"  # the graph has dropped the Fit that asked
    rig.work()
    assert rig.call(5) == "AB"
    rig.fits.clear()
    assert rig.call(5) == "AB"


# -- the end of the process


_AT_EXIT = """
    import os, sys, threading, torch
    sys.path[:0] = {paths!r}
    from dynamic_cases import PLAIN, compile_dynamic
    from pathlib import Path
    graph = compile_dynamic(lambda x: x.softmax(-1), PLAIN, (6, 37), Path({cache!r}))
    os.environ["CXX"] = {slow!r}
    graph.specialisation.seconds = 0.0
    for _ in range(20):
        graph(torch.randn(5, 40))
    while not os.path.exists({started!r}):
        pass
"""


def test_a_compile_is_cut_short_at_the_end_of_the_process(tmp_path: Path, cache: Path) -> None:
    """No traceback, nothing left in the temporary directory, and no waiting for the compiler."""
    slow, started, temporary = tmp_path / "slow", tmp_path / "started", tmp_path / "temporary"
    slow.write_text(f"#!/bin/sh\necho $$ > {started}.part\nmv {started}.part {started}\nexec sleep 600\n")
    slow.chmod(0o755)
    temporary.mkdir()
    tests = Path(__file__).parents[1]
    text = textwrap.dedent(_AT_EXIT).format(paths=[str(tests)], cache=str(cache), slow=str(slow), started=str(started))
    done = subprocess.run(
        [sys.executable, "-c", text],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "TMPDIR": str(temporary)},
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert not [path for path in temporary.iterdir() if path.name.startswith("treadle-")]
    with pytest.raises(ProcessLookupError):
        os.kill(int(started.read_text()), 0)
