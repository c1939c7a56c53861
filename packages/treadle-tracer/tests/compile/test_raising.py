"""A function that raises while it is traced runs in Python itself, which may not raise at all."""

from __future__ import annotations

import warnings

import pytest

torch = pytest.importorskip("torch")

from compile_runs import compiled as recorded  # noqa: E402
from compile_runs import run_graph  # noqa: E402

import treadle_frame  # noqa: E402
from treadle_tracer import InternalError, TracerOptions, optimize  # noqa: E402


def test_what_only_tracing_raises_is_not_raised():
    def fill(x, mask):
        if not torch.compiler.is_compiling() and mask is None:  # transformers' LongT5 makes its default mask so
            mask = torch.ones_like(x)
        return x * mask.sum(-1, keepdim=True)

    compiled, x = optimize(lambda x, mask: fill(x, mask) + 1, run_graph), torch.randn(3, 4)
    for _ in range(3):
        torch.testing.assert_close(compiled(x, None), x * 4 + 1)


@pytest.mark.parametrize("fullgraph", [False, True])
def test_what_only_the_path_of_compilers_raises_is_traced_on_the_other(fullgraph):
    def fill(x, mask):
        if not torch.compiler.is_compiling() and mask is None:
            mask = torch.ones_like(x)
        return x * mask.sum(-1, keepdim=True)

    graphs = []
    backend = lambda gm, inputs: graphs.append(gm) or run_graph(gm, inputs)  # noqa: E731
    compiled, x = (
        optimize(lambda x, mask: fill(x, mask) + 1, backend, TracerOptions(fullgraph=fullgraph)),
        torch.randn(3, 4),
    )
    for _ in range(3):
        torch.testing.assert_close(compiled(x, None), x * 4 + 1)
    assert len(graphs) == 1


def test_what_raises_on_both_paths_raises():
    def fail(x):
        if torch.compiler.is_compiling():
            raise ValueError("compiled")
        raise ValueError("not compiled")

    compiled = optimize(lambda x: fail(x * 2), run_graph)
    for _ in range(3):
        with pytest.raises(ValueError, match="not compiled"):
            compiled(torch.ones(3))


def test_an_operator_that_raises_only_on_the_path_of_compilers():
    """MACE, a model of forces, lets positions require gradients unless it is compiled."""

    class Forces(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = torch.nn.Linear(3, 4)

        def prepare(self, positions):
            if not torch.compiler.is_compiling():
                positions.requires_grad_()
            return positions

        def forces(self, energy, positions):
            return torch.autograd.grad(energy, positions)[0]

        def forward(self, positions):
            positions = self.prepare(positions)
            return self.forces(self.embed(positions).tanh().sum(), positions)

    module = Forces()
    module.requires_grad_(False)
    compiled = optimize(lambda x: module(x) * 2, run_graph)
    for n in range(6):
        x = torch.randn(n + 2, 3)
        torch.testing.assert_close(compiled(x.clone()), module(x.clone()) * 2)


def test_a_function_that_goes_on_raising_in_the_trace_alone_is_not_asked_about_again():
    def program(x):
        if not torch.compiler.is_compiling():
            x.requires_grad_()
        return torch.autograd.grad((x * 2).sum(), x)[0]

    compiled = optimize(program, run_graph)
    for n in range(4):
        assert not treadle_frame.is_skipped(program)
        torch.testing.assert_close(compiled(torch.ones(n + 2)), torch.full((n + 2,), 2.0))
    assert treadle_frame.is_skipped(program)
    torch.testing.assert_close(compiled(torch.ones(2)), torch.full((2,), 2.0))


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


def test_an_exception_of_a_called_function_leaves_what_is_compiled():
    """What Python runs is what has led to the exception, also inside the function that raises it."""

    def reduced(x, kind):
        if kind == "sum":
            return x.sum()
        if kind == "mean":
            return x.mean()
        raise ValueError(f"no {kind}")

    def program(x, kind):
        for _ in range(8):
            x = torch.tanh(x * 2).cos()
        return x + reduced(x, kind)

    runs = []

    def backend(gm, example_inputs):
        return lambda *args: runs.append(1) or gm.forward(*args)

    run = optimize(program, backend, TracerOptions(leave_unprofitable=True, setup_in_eager=True))
    x = torch.rand(3)
    for kind in ("sum", "mean", "least", "least", "most", "least"):
        for valid in ("sum", "mean", "sum"):
            torch.testing.assert_close(run(x, valid), program(x, valid))
        if kind not in ("sum", "mean"):
            with pytest.raises(ValueError, match=f"no {kind}"):
                run(x, kind)
    runs.clear()
    for kind in ("sum", "mean"):
        torch.testing.assert_close(run(x, kind), program(x, kind))
    assert len(runs) == 2


def test_one_exception_compiles_no_function_that_the_program_calls():
    """As when a user stops a step in the middle, or memory runs out. Exceptions that come again are compiled around."""

    class Stops(Exception):
        pass

    def layer(x, n):
        y = (x.sin() + n).cos()
        if n > 2:
            raise Stops
        return y

    def model(x, n):
        return layer(layer(x * 2, 1), n) + 1

    fn, recorder = recorded(model, setup_in_eager=True)
    x = torch.ones(2)
    torch.testing.assert_close(fn(x, 1), model(x, 1))
    graphs = len(recorder.graphs)
    with pytest.raises(Stops):
        fn(x, 3)
    assert len(recorder.graphs) == graphs
    for n in (1, 3, 2, 3):
        if n < 3:
            torch.testing.assert_close(fn(x, n), model(x, n))
        else:
            with pytest.raises(Stops):
                fn(x, n)


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


def _fails_at_run_time(gm, example_inputs):
    def run(*args):
        raise RuntimeError("out of cheese")

    return run


def test_a_graph_that_raises_alone_is_a_bug_and_is_said_so():
    def add(x):
        return x + 1

    lenient, x = optimize(add, _fails_at_run_time), torch.ones(3)
    for _ in range(2):
        with pytest.warns(RuntimeWarning, match=r"graph of .*add raised RuntimeError: out of cheese; Python itself"):
            torch.testing.assert_close(lenient(x), x + 1)

    def sub(x):
        return x - 1

    strict = optimize(sub, _fails_at_run_time, TracerOptions(raise_internal_errors=True))
    with pytest.raises(
        InternalError, match=r"pass 'run': the compiled graph of .*sub raised RuntimeError: out of cheese"
    ):
        strict(x)


def test_what_does_not_hold_is_noted_on_the_programs_exception():
    def first(x, t):
        count = t.item()
        torch._check(count <= 4, lambda: "too many")
        return x[:count] + 1

    compiled, x = optimize(first, run_graph, TracerOptions(fullgraph=True)), torch.arange(4.0)
    torch.testing.assert_close(compiled(x, torch.tensor(3)), x[:3] + 1)
    with pytest.raises(RuntimeError, match="too many") as caught:
        compiled(x, torch.tensor(5))
    (note,) = caught.value.__notes__
    assert note.startswith("treadle: count <= 4 does not hold, needed at ")
    assert "torch._check(count <= 4" in note


def test_the_programs_own_exceptions_pass_where_no_call_may_break_the_graph():
    def checked(x, options):
        if x.shape[0] != 3:
            raise ValueError(f"expected 3 rows, got {x.shape[0]}")
        return x * options["scale"]

    compiled, options = optimize(checked, run_graph, TracerOptions(fullgraph=True)), {"scale": 2}
    for _ in range(2):
        with pytest.raises(ValueError, match="expected 3 rows, got 4"):
            compiled(torch.ones(4), options)
        with pytest.raises(KeyError, match="scale"):
            compiled(torch.ones(3), {})
        torch.testing.assert_close(compiled(torch.ones(3), options), torch.full((3,), 2.0))


def test_an_assumption_of_the_trace_is_warned_about_once():
    def add(x):
        return x[x > 0] + x[x <= 0]

    compiled = optimize(add, run_graph, TracerOptions(fullgraph=True, raise_internal_errors=True))
    compiled(torch.tensor([1.0, 2.0, -1.0, -2.0]))
    broadcast = torch.tensor([1.0, 2.0, 3.0, -1.0])  # three and one: eager broadcasts
    with pytest.warns(RuntimeWarning, match="does not hold, needed at .*Python itself runs the function"):
        torch.testing.assert_close(compiled(broadcast), add(broadcast))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.testing.assert_close(compiled(broadcast), add(broadcast))
