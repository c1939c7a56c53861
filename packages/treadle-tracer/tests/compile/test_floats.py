"""Floats that change between calls are symbols: one more compile, Python's own results for every value, guards only where asked."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from compile_runs import compiled

SPECIAL = [0.5, 0.25, 0.1, 2.0, -1.5, math.inf, math.nan, -0.0, 0.0, 5e-324, 3.0]


def outcome(function, *args):
    try:
        return function(*args)
    except Exception as error:  # the program's own: its type and text are compared
        return type(error), str(error)


def assert_same(got, want):
    """The very results: types, and bits of floats and tensors."""
    assert type(got) is type(want), (got, want)
    if isinstance(want, torch.Tensor):
        assert got.dtype == want.dtype
        torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
    elif isinstance(want, (tuple, list)):
        assert len(got) == len(want)
        for a, b in zip(got, want, strict=True):
            assert_same(a, b)
    elif isinstance(want, dict):
        assert_same(list(got.items()), list(want.items()))
    else:
        assert repr(got) == repr(want)


def run(function, values, **options):
    """The number of graphs compiled for calls with these floats; results are those of Python."""
    torch.manual_seed(0)
    x = torch.randn(4, 3)
    fast, recorder = compiled(function, **options)
    for value in values:
        assert_same(outcome(fast, x, value), outcome(function, x, value))
    return len(recorder.graphs), recorder


def in_place(x, f):
    y = x.clone()
    y *= f
    y[0] = f
    y.add_(x, alpha=f)
    return y.fill_(f) + y


def nested(x, f):
    d = {"lr": f, "more": [f, {"c": f * 2}]}

    def inner(z):
        return z * d["lr"] + d["more"][1]["c"]

    return inner(x), d


def loop(x, f):
    for _ in range(3):
        x = x - f * x
        f *= 0.9
    return x, f


TWICE = {
    "mul": lambda x, f: x * f,
    "reflected": lambda x, f: f - x + f / (x + 3),
    "arithmetic": lambda x, f: x * (f * 2 + 1) / 3,
    "given back": lambda x, f: (x * f, f * 2, -f, +f, abs(f), f // 0.3, f % 0.7, divmod(f, 2)),
    "sqrt": lambda x, f: x * math.sqrt(abs(f)),
    "exp": lambda x, f: x * math.exp(f),
    "power": lambda x, f: x * f**2 + pow(f, 3) + math.pow(abs(f), 0.5),
    "copysign": lambda x, f: x * math.copysign(2.0, f),
    "min and max": lambda x, f: x * min(f, 1.0, 0.75) + max(0.0, f),
    "rounded to digits": lambda x, f: x + round(f, 1),
    "tensor of it": lambda x, f: torch.tensor(f) * x + torch.full((3,), f) + torch.scalar_tensor(f),
    "tensor with dtype": lambda x, f: torch.as_tensor(f, dtype=torch.float64) * x,
    "tensor of a list": lambda x, f: x * torch.tensor([f, 1, 2.0]),
    "clamp": lambda x, f: torch.clamp(x, max=f),
    "int tensor": lambda x, f: x.long() * f,
    "half": lambda x, f: x.half() * f + x.bfloat16() * f,
    "double": lambda x, f: x.double() * f,
    "exponent": lambda x, f: x**f,
    "alpha": lambda x, f: torch.add(x, x, alpha=f) + torch.addcmul(x, x, x, value=f),
    "masked_fill": lambda x, f: x.masked_fill(x > 0, f) + torch.where(x > 0, x, f) + (x > f),
    "activation": lambda x, f: F.leaky_relu(x, f) + F.elu(x, f),
    "in place": in_place,
    "containers": nested,
    "loop": loop,
    "keywords": lambda x, f, *rest, **more: x * f + more.get("z", f),
    "compared with another kind": lambda x, f: (x * f, f == None, f != "a"),  # noqa: E711
}  # fmt: skip


@pytest.mark.parametrize("name", TWICE)
def test_two_compiles_for_any_values(name):
    graphs, recorder = run(TWICE[name], SPECIAL)
    assert graphs == 2
    assert not recorder.breaks or {reason.code for reason in recorder.breaks} == {"raises"}


DECIDES = {
    "branch": (lambda x, f: x * f if f > 0 else x - f, 3),
    "truth": (lambda x, f: x * 2 if f else x + f, 3),
    "isnan": (lambda x, f: x * 1.0 if math.isnan(f) else x * f, 3),
    "isfinite": (lambda x, f: x * 1.0 if math.isfinite(f) else x * f, 3),
    "min with an int": (lambda x, f: x * min(f, 1) + max(0, f), 4),
    "inverse": (lambda x, f: x * (1 / f), 2),
    "caught": (lambda x, f: caught(x, f), 2),
    "root": (lambda x, f: x * f**0.5, 3),
    "member": (lambda x, f: x * 2 if f in (0.5, 3.0) else x * f, 4),
}  # fmt: skip


def caught(x, f):
    try:
        return x * (1 / f)
    except ZeroDivisionError:
        return x


@pytest.mark.parametrize("name", DECIDES)
def test_what_is_decided_about_a_float_is_guarded(name):
    function, graphs = DECIDES[name]
    assert run(function, SPECIAL)[0] <= graphs


def test_an_int_made_of_a_float_is_guarded_as_int():
    graphs, recorder = run(lambda x, f: x * int(f) + f, [2.25, 2.5, 2.75, 2.0, 2.9])
    assert graphs == 2
    assert any("int(f) == 2" in text for entry in recorder.entries for text in entry.payload.guards)
    rounded = [lambda x, f: x * math.floor(f), lambda x, f: x * math.ceil(f - 1), lambda x, f: x * round(f - 0.25)]
    for function in rounded:
        assert run(function, [2.25, 2.5, 2.75, 2.3])[0] == 2
    assert run(lambda x, f: x * int(f), [1.5, math.nan, math.inf, 1e300])[0] <= 3


def test_text_of_a_float_is_constant():
    assert run(lambda x, f: (x * f, f"{f:.2f}", str(f)), [0.5, 0.25, 0.5, 0.25])[0] == 2


def test_the_type_is_guarded():
    graphs, _ = run(lambda x, f: x * f, [1, 1.0, 2.0, 3.0, 4, 5, True, 2.5, False, 6, 7.5])
    assert graphs == 6  # int, float, any float, any int, True, False


@pytest.mark.parametrize(("dynamic", "graphs"), [(None, 2), (True, 1), (False, 5)])
def test_the_dynamic_option(dynamic, graphs):
    assert run(lambda x, f: x * f, [0.5, 1.5, 2.5, 3.5, 4.5], dynamic=dynamic)[0] == graphs


def test_an_operator_that_needs_the_value_gets_it():
    values = [0.5, 0.25, 0.5, 0.25]
    assert run(lambda x, f: F.huber_loss(x, x * 2, delta=f), values)[0] == 2
    assert run(lambda x, f: F.dropout(x, f, training=False) * 2, values)[0] <= 2


class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = 0.5
        self.betas = (0.9, 0.99)

    def forward(self, x):
        self.scale *= 0.9
        return x * self.scale + self.betas[0]


def test_attributes_that_the_program_changes():
    model, plain = Scaled(), Scaled()
    fast, recorder = compiled(Scaled.forward)
    x = torch.ones(3)
    for turn in range(10):
        model.betas = plain.betas = (0.9 / (turn + 1), 0.99)
        assert torch.equal(fast(model, x), plain(x))
        assert model.scale == plain.scale
    assert len(recorder.graphs) == 2


STEP = 0.5


def test_globals_and_closures():
    global STEP
    rate = 0.5

    def outer():
        def inner(x):
            return x * rate + STEP

        return inner

    function = outer()
    fast, recorder = compiled(function)
    x = torch.ones(3)
    try:
        for turn in range(6):
            rate, STEP = 0.5 / (turn + 1), 0.25 * turn
            assert torch.equal(fast(x), function(x))
    finally:
        STEP = 0.5
    assert len(recorder.graphs) == 2


def test_a_float_lives_on_after_a_break():
    def breaks(x, f):
        y = x * f
        print(end="")
        return y + f * 2

    assert run(breaks, [0.5, 0.25, 0.125, 2.0])[0] <= 4


def test_the_guard_speaks_in_the_users_names():
    _, recorder = run(lambda x, lr: x * 2 if lr > 1.0 else x * lr, [0.5, 0.25, 3.0])
    texts = [text for entry in recorder.entries for text in entry.payload.guards]
    assert any("not (1.0 < lr)" in text for text in texts)


def test_two_sizes_and_a_float():
    """A size of 1 is admitted beside a changing float."""
    fast, recorder = compiled(lambda x, f: x * f + f)
    for n, f in ((4, 0.5), (5, 0.25), (6, math.nan), (1, 2.0), (7, -0.0)):
        x = torch.ones(n, 3)
        torch.testing.assert_close(fast(x, f), x * f + f, rtol=0, atol=0, equal_nan=True)
    assert len(recorder.graphs) == 2


READ = {
    "root": lambda x, f: (x[0].item() ** f, x * 2),
    "scaled": lambda x, f: x * (x[0].item() ** f),
    "divided": lambda x, f: x * (f / x[0].item()),
    "rounded": lambda x, f: (int(x[0].item() + f), round(x[0].item(), 1), x * f),
    "smaller": lambda x, f: (min(x[0].item(), f), math.floor(x[0].item() * f)),
    "logarithm": lambda x, f: x * math.log(x[0].item()) + f,
    "root of a tensor": lambda x, f: x * math.sqrt(x[0]) + f,
    "functions of tensors": lambda x, f: x * math.exp(x[0]) + math.atan2(x[1], x[0]) + math.pow(x[1], f),
}


@pytest.mark.parametrize("name", READ)
def test_floats_read_from_tensors_beside_floats(name):
    """A negative base makes a power complex, which no graph computes: Python does then."""
    function = READ[name]
    fast, recorder = compiled(function, capture_scalars=True)
    for first, f in ((4.0, 0.5), (9.0, 0.25), (2.25, 1.5), (-1.0, 0.5), (0.0, 2.0), (math.nan, 3.0)):
        x = torch.tensor([first, 1.0, 2.0])
        assert_same(outcome(fast, x, f), outcome(function, x, f))
    assert len(recorder.graphs) == 2


class Counter:
    def __init__(self):
        self.scale, self.count = 0.5, 3

    def run(self, x):
        result = x * self.scale + self.count
        self.scale, self.count = 0.9, 7
        return result


def test_a_store_of_the_number_that_happens_to_be_there_is_made():
    """Where the number is a symbol, the next call may find another one."""
    plain, other = Counter(), Counter()
    fast, _ = compiled(Counter.run)
    x = torch.ones(2)
    for scale, count in ((0.25, 4), (0.125, 7), (0.5, 6), (0.9, 8), (0.5, 7)):
        plain.scale, plain.count = other.scale, other.count = scale, count
        assert torch.equal(fast(other, x), Counter.run(plain, x))
        assert (other.scale, other.count) == (plain.scale, plain.count)
