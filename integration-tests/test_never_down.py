"""What eager survives, compiled code survives: deep recursion, calls from deep down, forks while another thread compiles."""

from __future__ import annotations

import inspect
import subprocess
import sys
import time
import warnings

import pytest
import torch
from torch.utils import checkpoint

import treadle


def _run(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("before", ["", "print('a break')"])
def test_recursion_below_a_compiled_function(before):
    out = _run(f"""
import sys, torch, treadle
sys.setrecursionlimit(30000)

def count_down(n, x):
    return x + 1 if n == 0 else count_down(n - 1, x)

@treadle.compile
def program(x):
    {before or "pass"}
    return count_down(15000, x) * 2

for _ in range(3):
    assert program(torch.ones(2)).tolist() == [4, 4]
print("right")
""")
    assert out.endswith("right\n")


def _at_depth(depth, function, x):
    return function(x) if depth == 0 else _at_depth(depth - 1, function, x)


@pytest.mark.parametrize("room", [100, 60, 40, 30, 20, 15])
def test_the_first_call_comes_from_deep_down(room):
    def program(x):
        return torch.relu(x * 2 + 1).sum(0)

    x = torch.randn(3, 2)
    compiled = treadle.compile(program)
    depth = sys.getrecursionlimit() - len(inspect.stack()) - room
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.testing.assert_close(_at_depth(depth, compiled, x), program(x))
    torch.testing.assert_close(compiled(x), program(x))
    assert treadle.stats().graphs >= 1 and not treadle.stats().skipped


def test_a_chain_of_many_operators():
    def program(x):
        for k in range(5000):
            x = x + k
        return x

    torch.testing.assert_close(treadle.compile(program)(torch.zeros(3)), program(torch.zeros(3)))
    assert treadle.stats().eager_graphs == ()


def test_forks_while_another_thread_compiles():
    _run("""
import os, signal, threading, time, torch, treadle

def program(x):
    for k in range(40):
        x = torch.sin(x) + k
    return x

def compile_again_and_again():
    while not done.is_set():
        treadle.reset()
        treadle.compile(program)(torch.ones(2))
        started.set()

started, done = threading.Event(), threading.Event()
thread = threading.Thread(target=compile_again_and_again)
thread.start()
started.wait()
for turn in range(10):
    time.sleep(0.013 * turn)
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        compiled = treadle.compile(lambda x: x.cos() + turn)
        os._exit(0 if torch.allclose(compiled(torch.ones(2)), torch.ones(2).cos() + turn) else 1)
    assert os.waitpid(child, 0)[1] == 0
done.set()
thread.join()
""")


def test_swap_tensors():
    model = torch.nn.Linear(2, 2)
    compiled = treadle.compile(model)
    reads = treadle.compile(lambda x: x * model.weight)
    x = torch.randn(3, 2)
    for _ in range(3):
        compiled(x).sum().backward()
        torch.testing.assert_close(compiled(x), model(x))
        torch.testing.assert_close(reads(x[:2]), x[:2] * model.weight)
        model.zero_grad()
        torch.utils.swap_tensors(model.weight, torch.nn.Parameter(torch.randn(2, 2)))
    compiled(x)
    y = torch.ones(2, 2)
    reads(y)
    torch.utils.swap_tensors(y, torch.zeros(2, 2))
    assert reads(y).count_nonzero() == 0


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_jit_trace_records_the_operators_of_a_compiled_function():
    model = torch.nn.Linear(2, 2)
    x, y = torch.randn(3, 2), torch.randn(3, 2)
    for compiled, program in (
        (treadle.compile(model), model),
        (treadle.compile(lambda x: torch.relu(x) + 1), lambda x: torch.relu(x) + 1),
    ):
        for _ in range(2):  # before and after there is an entry
            with warnings.catch_warnings():
                warnings.simplefilter("error", RuntimeWarning)
                traced = torch.jit.trace(compiled, x)
            torch.testing.assert_close(traced(y), program(y))
            torch.testing.assert_close(compiled(y), program(y))


def test_recursive_functions_are_returned():
    def program(x, log):
        def even(n):
            return n == 0 or odd(n - 1)

        def odd(n):
            return n != 0 and even(n - 1)

        def factorial(n, *, calls=[]):  # noqa: B006
            calls.append(n)
            return 1 if n == 0 else n * factorial(n - 1)

        factorial.itself = factorial
        log.append(lambda: factorial)
        return x * factorial(4), even, odd, factorial

    compiled = treadle.compile(program)
    for _ in range(2):
        log: list[object] = []
        y, even, odd, factorial = compiled(torch.ones(2), log)
        assert y.tolist() == [24, 24] and factorial(5) == 120
        assert even(4) and not odd(4)
        assert even.__closure__[0].cell_contents is odd and odd.__closure__[0].cell_contents is even
        assert factorial.itself is factorial and log[0]() is factorial
    assert not treadle.stats().skipped


class _NoLength:
    def __len__(self):
        raise RuntimeError("no length")

    def __iter__(self):
        raise RuntimeError("no iteration")

    def __contains__(self, item):
        raise RuntimeError("no membership")


@pytest.mark.parametrize("base", [tuple, list, dict])
def test_containers_that_refuse_questions(base):
    kind = type(f"No{base.__name__}", (_NoLength, base), {})
    box = kind({0: 5, 1: 6}) if base is dict else kind((5, 6))

    def program(x, box):
        return x + box[1]

    assert treadle.compile(program)(torch.ones(2), box).tolist() == [7, 7]
    assert not treadle.stats().skipped
    for question in (len, list, lambda box: 5 in box):
        compiled = treadle.compile(lambda x, box, question=question: (x + 1, question(box)))
        with pytest.raises(RuntimeError, match="no "):
            compiled(torch.ones(2), box)


def _python_classes():
    class Plain:
        pass

    class WithInit:
        def __init__(self, k=1):
            self.k = k

    class WithNew:
        def __new__(cls, *args):
            return object.__new__(cls)

    class Items(list):
        pass

    return Plain, WithInit, WithNew, Items


@pytest.mark.parametrize(
    "cls", [*_python_classes(), list, dict, int, tuple, set, slice, type, torch.Tensor], ids=lambda cls: cls.__name__
)
@pytest.mark.parametrize("arguments", [(), (1,)])
def test_object_new(cls, arguments):
    def program(x):
        return x + 1, object.__new__(cls, *arguments)

    def outcome(function):
        try:
            return type(function(torch.ones(2))[1])
        except TypeError as error:
            return str(error)

    compiled = treadle.compile(program)
    assert outcome(compiled) == outcome(compiled) == outcome(program)


def test_questions_of_the_profiler():
    compiled = treadle.compile(lambda x: x + 1 if torch.autograd._profiler_enabled() else x - 1)
    assert compiled(torch.ones(1)).item() == 0
    with torch.autograd.profiler.profile():
        assert compiled(torch.ones(1)).item() == 2
    assert compiled(torch.ones(1)).item() == 0
    assert not treadle.stats().skipped


@pytest.mark.parametrize("backend", ["eager", "codegen"])
def test_powers_of_negative_numbers(backend):
    def program(x):
        return (-3.0) ** x, (-2) ** x.long()

    x = torch.tensor([1.0, 2.0, 3.0])
    torch.testing.assert_close(treadle.compile(program, backend=backend)(x), program(x))


class _Around(torch.nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x + 1)


def _add_behind(inner, k):
    return lambda x: inner(x) + k


@pytest.mark.parametrize("kind", ["modules", "closures", "lists"])
def test_deep_nests_compile_in_seconds(kind):
    """400 modules, closures or lists inside one another are one graph."""
    depth = 400
    program = torch.nn.Identity() if kind == "modules" else lambda x: x
    items: list[object] = []
    for _ in range(depth):
        program = _Around(program) if kind == "modules" else _add_behind(program, 1)
        items = [items]

    def count(x):
        found, depth = items, 0
        while found:
            found, depth = found[0], depth + 1
        return x + depth

    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(20 * depth)
    started = time.perf_counter()
    try:
        compiled = treadle.compile(count if kind == "lists" else program, backend="eager")
        for _ in range(2):
            assert compiled(torch.zeros(2)).tolist() == [depth, depth]
    finally:
        sys.setrecursionlimit(limit)
    assert treadle.stats().graphs == 1 and not treadle.stats().skipped
    assert time.perf_counter() - started < 15


def test_calls_that_nest_too_deeply_are_left_to_python():
    program = lambda x: x
    for _ in range(1500):
        program = _add_behind(program, 1)
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(20000)
    started = time.perf_counter()
    try:
        assert treadle.compile(program)(torch.zeros(2)).tolist() == [1500, 1500]
    finally:
        sys.setrecursionlimit(limit)
    assert time.perf_counter() - started < 30


@pytest.mark.parametrize("backend", ["eager", "codegen"])
@pytest.mark.parametrize("early_stop", [True, False])
@pytest.mark.parametrize("use_reentrant", [True, False])
def test_a_checkpoint_around_a_compiled_function(backend, early_stop, use_reentrant):
    """The exception by which a checkpoint ends its recomputation passes through: the graph must not run twice because of it."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 4))
    compiled = treadle.compile(lambda x: model(x).sin(), backend=backend)
    for _ in range(3):
        x = torch.randn(2, 4, requires_grad=True)
        with checkpoint.set_checkpoint_early_stop(early_stop):
            checkpoint.checkpoint(compiled, x, use_reentrant=use_reentrant).sum().backward()
        gradient, x.grad = x.grad, None
        model(x).sin().sum().backward()
        torch.testing.assert_close(gradient, x.grad)


RESIZING = {
    "resize_as_": lambda x, y: x.resize_as_(y),
    "torch.resize_as_": lambda x, y: torch.resize_as_(x, y),
    "resize_as_ and another result": lambda x, y: (x.resize_as_(y), x * 2)[1],
    "resize_": lambda x, y: x.resize_(2, 3).add_(1),
    "out= of other sizes": lambda x, y: torch.add(y, y, out=x),
    "out= of other sizes, and then": lambda x, y: torch.mul(y, 3, out=x) + x.sum(),
    "out= that is emptied first": lambda x, y: torch.cat([y, y, y], out=x.resize_(0)),
    "t_": lambda x, y: x.t_() * 2,
    "set_": lambda x, y: x.set_(y) + 1,
    "of a copy": lambda x, y: x.clone().resize_as_(y),
}


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize("backend", ["eager", "codegen"])
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", RESIZING)
def test_inputs_that_are_resized(name, dynamic, backend):
    function = RESIZING[name]
    compiled = treadle.compile(function, dynamic=dynamic, backend=backend)
    for rows in (4, 5, 6):
        found, wanted = ((torch.arange(rows * 3.0).clone().view(rows, 3), torch.ones(2, 3)) for _ in range(2))
        result, expected = compiled(*found), function(*wanted)
        assert result.stride() == expected.stride()
        assert (result is found[0]) == (expected is wanted[0])
        torch.testing.assert_close((result, *found), (expected, *wanted), rtol=0, atol=0)


@pytest.mark.parametrize("backend", ["eager", "codegen"])
def test_detaching_a_view_in_place_raises(backend):
    compiled = treadle.compile(lambda x: x.detach_() * 2, backend=backend)
    for _ in range(2):
        torch.testing.assert_close(compiled(torch.ones(4)), torch.full((4,), 2.0))
    with pytest.raises(RuntimeError, match="detach views in-place"):
        compiled(torch.ones(4).view(2, 2))
