"""What PyTorch raises for the sizes and dtypes of arguments, and the program catches, is part of the graph, with eager's own message."""

from __future__ import annotations

import contextlib

import pytest
import torch
import torch.nn.functional as F
from compile_runs import compiled

REFUSED = {
    "matmul": lambda x: x @ x,
    "mm": lambda x: torch.mm(x, x),
    "add": lambda x: x + torch.ones(4),
    "dtypes": lambda x: x @ torch.ones(3, 2, dtype=torch.int64),
    "view": lambda x: x.t().view(6),
    "reshape": lambda x: x.reshape(4, 2),
    "cat": lambda x: torch.cat([x, torch.ones(3, 3, 3)]),
    "stack": lambda x: torch.stack([x, x[0]]),
    "dimension": lambda x: x.sum(7),
    "squeeze": lambda x: x.unsqueeze(9),
    "index": lambda x: x[5],
    "expand": lambda x: x.expand(5, 5),
    "chunk": lambda x: x.chunk(0),
    "argument": lambda x: x.sum("a"),
    "nothing": lambda x: torch.add(x, None),
    "linear": lambda x: F.linear(x, torch.ones(4, 5)),
    "convolution": lambda x: F.conv2d(x, torch.ones(1, 1, 3, 3)),
    "einsum": lambda x: torch.einsum("ij,jk->ik", x, x),
}


def caught_by(call):
    def program(x):
        y = x * 2
        try:
            y = call(x)
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            y = y + 1
            return y, type(error).__name__, str(error)
        return y, None, None

    return program


@pytest.mark.parametrize("name", REFUSED)
def test_the_handler_sees_the_message_of_eager(name):
    program, x = caught_by(REFUSED[name]), torch.arange(6.0).reshape(2, 3)
    expected, (fast, recorder) = program(x), compiled(program)
    for _ in range(2):
        found = fast(x)
        assert torch.equal(found[0], expected[0]) and found[1:] == expected[1:] and expected[1] is not None
    assert len(recorder.graphs) == 1, recorder.codes()


def test_the_path_follows_the_sizes():
    def program(x, other):
        try:
            return x @ other
        except RuntimeError:
            return x @ other.mT

    fast, _ = compiled(program)
    x = torch.arange(6.0).reshape(2, 3)
    for other in (x, x.mT, torch.ones(4, 3), x.to(torch.float32)):
        assert torch.equal(fast(x, other), program(x, other))


def test_other_ways_to_catch():
    def suppressed(x):
        with contextlib.suppress(RuntimeError):
            return x @ x
        return x + 1

    def finally_(x):
        done = []
        try:
            try:
                x @ x
            finally:
                done.append(1)
        except RuntimeError as error:
            return x * len(done), error.args
        return None

    def nested(x):
        def call():
            return x @ x

        try:
            call()
        except (ValueError, RuntimeError) as error:
            return x + 1, isinstance(error, ValueError), error.__context__, error.__traceback__ is not None
        return None

    x = torch.ones(2, 3)
    for program in (suppressed, finally_, nested):
        fast, recorder = compiled(program)
        expected, found = program(x), fast(x)
        assert str(found) == str(expected)
        assert len(recorder.graphs) == 1, (program, recorder.codes())


def test_what_is_not_certain_breaks():
    def writes(x):
        try:
            x.add_(torch.ones(7))
        except RuntimeError as error:
            return x * 2, str(error)
        return x, ""

    def by_value(x):
        try:
            return torch.linalg.cholesky(x), ""
        except RuntimeError as error:
            return x * 2, str(error)

    def out(x):
        target = torch.empty(3)
        try:
            torch.mm(x, x, out=target)
        except RuntimeError as error:
            return x * 2, str(error), target.shape
        return x, "", target.shape

    for program in (writes, by_value, out):
        fast, _ = compiled(program)
        assert str(fast(torch.ones(2, 3))) == str(program(torch.ones(2, 3)))


def test_random_state_stays_as_it_is():
    def program(x):
        try:
            x @ x
        except RuntimeError:
            return x + torch.rand(2, 3)
        return x

    x = torch.ones(2, 3)
    torch.manual_seed(0)
    expected = program(x)
    torch.manual_seed(0)
    assert torch.equal(compiled(program)[0](x), expected)


def test_gradients_flow_through_the_handler():
    def program(x, w):
        try:
            return (x @ w).sum()
        except RuntimeError:
            return (x @ w.mT).sum()

    w, v = (torch.ones(2, 3, requires_grad=True) for _ in range(2))
    x = torch.arange(6.0).reshape(2, 3)
    program(x, w).backward()
    fast, recorder = compiled(program)
    fast(x, v).backward()
    assert torch.equal(w.grad, v.grad) and len(recorder.graphs) == 1


def _error_samples():
    """(operator, input, args, kwargs) of what PyTorch's own tests expect to raise, on the CPU."""
    pytest.importorskip("numpy")  # the distribution does without it
    from torch.testing._internal.common_methods_invocations import op_db

    for op in op_db:
        if op.error_inputs_func is None:
            continue
        try:
            samples = list(op.error_inputs("cpu"))
        except (
            RuntimeError,
            TypeError,
            ValueError,
            AssertionError,
        ):  # some makers want a GPU, or what is not installed
            continue
        for sample in samples[:2]:
            given = sample.sample_input
            yield op, given.input, given.args, given.kwargs


@pytest.mark.filterwarnings("ignore")
def test_messages_of_pytorchs_operator_samples():
    text = """def program(x, input, args, kwargs):
        try: f(input, *args, **kwargs)
        except Exception as error: return x * 2, type(error), str(error)
        return x + 1, None, None"""
    count = whole = 0
    for op, *given in _error_samples():
        scope = {"f": op.op}
        exec(text, scope)
        fast, recorder = compiled(scope["program"])
        assert fast(torch.ones(2), *given)[1:] == scope["program"](torch.ones(2), *given)[1:], op.name
        count += 1
        whole += not recorder.codes()
    assert count > 100 and whole > count / 2
