"""Training programs that an earlier compile has kept are not traced again, and do what a traced one does, whatever is asked of them."""

from __future__ import annotations

import contextlib
import copy

import pytest
import torch
import torch.nn.functional as F

import treadle
from treadle_autograd import programs
from treadle_autograd.kept import program as kept_program


class Net(torch.nn.Module):
    def __init__(self, width=5, bias=True):
        super().__init__()
        self.first = torch.nn.Linear(4, width, bias=bias)
        self.norm = torch.nn.BatchNorm1d(width)
        self.last = torch.nn.Linear(width, 3)
        self.register_buffer("scale", torch.tensor([1.0, 2.0, 3.0]))

    def forward(self, x):
        h = F.gelu(self.norm(self.first(x)))
        return self.last(h) * self.scale


@pytest.fixture
def traced(monkeypatch):
    """Counts joint graphs that are traced, and those that are traced late."""
    counts = {"joint": 0, "late": 0}

    def counting(module, kind):
        real = module.trace_joint

        def trace_joint(*args, **kwargs):
            counts[kind] += 1
            return real(*args, **kwargs)

        monkeypatch.setattr(module, "trace_joint", trace_joint)

    counting(programs, "joint")
    counting(kept_program, "late")
    return counts


def step(forward, module, x):
    module.zero_grad(set_to_none=True)
    out = forward(x)
    out.square().sum().backward()
    return [out.detach(), *[None if p.grad is None else p.grad.clone() for p in module.parameters()]]


def assert_as_eager(module, x, **options):
    """One step of the module and of a copy in eager: results, gradients and buffers."""
    reference, given = copy.deepcopy(module), copy.deepcopy(x)
    found = step(treadle.compile(module, **options), module, x)
    expected = step(reference, reference, given)
    torch.testing.assert_close([*found, *module.buffers()], [*expected, *reference.buffers()], rtol=1e-3, atol=1e-4)
    return found


def test_the_second_of_two_equal_models_is_not_traced(traced):
    torch.manual_seed(0)
    for n in range(3):
        treadle.reset()
        assert_as_eager(Net(), torch.randn(6, 4))
        assert traced == {"joint": 1, "late": 0}, n


# What is asked of a program that has been found and has no graph yet.


def gradient_of_one(module, forward, x):
    return torch.autograd.grad(forward(x).sum(), [module.last.weight])


def of_the_input(module, forward, x):
    x.requires_grad_()
    return torch.autograd.grad(forward(x).square().sum(), [x])


def differentiated_again(module, forward, x):
    x.requires_grad_()
    (g,) = torch.autograd.grad(forward(x).square().sum(), [x], create_graph=True)
    g.square().sum().backward()
    return [p.grad for p in module.parameters()]


def twice(module, forward, x):
    loss = forward(x).square().sum()
    loss.backward(retain_graph=True)
    loss.backward()
    return [p.grad for p in module.parameters()]


def with_hooks_on_parameters(module, forward, x):
    seen = []
    for name, p in module.named_parameters():
        p.register_post_accumulate_grad_hook(lambda p, name=name: seen.append((name, p.grad.clone())))
    forward(x).square().sum().backward()
    return [g for _, g in sorted(seen, key=lambda pair: pair[0])]


def without_the_loss(module, forward, x):
    out = forward(x)
    return [out.detach(), torch.tensor(out.requires_grad)]


ASKED = [gradient_of_one, of_the_input, differentiated_again, twice, with_hooks_on_parameters, without_the_loss]


@pytest.mark.parametrize("ask", ASKED, ids=lambda ask: ask.__name__)
def test_programs_that_were_found_answer_everything(ask, traced):
    torch.manual_seed(0)
    module, x = Net(), torch.randn(6, 4)
    warm, given = copy.deepcopy(module), x.clone()
    if ask in (of_the_input, differentiated_again):
        given.requires_grad_()
    step(treadle.compile(warm), warm, given)  # keeps the program, and its backward graph for all gradients
    before = traced["joint"]
    treadle.reset()
    reference = copy.deepcopy(module)
    found = ask(module, treadle.compile(module), x.clone())
    expected = ask(reference, reference, x.clone())
    torch.testing.assert_close(list(found), list(expected), rtol=1e-3, atol=1e-4)
    assert traced["joint"] == before


def test_the_report_of_a_program_that_was_found(traced, capsys):
    reports = []
    for _ in range(2):
        treadle.reset()
        module = Net(width=9)
        treadle.set_logs("partition")
        try:
            step(treadle.compile(module), module, torch.randn(6, 4))
        finally:
            treadle.set_logs()
        reports.append(capsys.readouterr().err)
    assert traced == {"joint": 1, "late": 1} and "saved: " in reports[0] and reports[0] == reports[1]


# Changes of one thing: what has been kept before must not be taken.


def _frozen(module):
    module.first.weight.requires_grad_(False)
    return module


def _tied(module):
    module.last = torch.nn.Linear(5, 3)
    module.first = torch.nn.Linear(4, 5)
    module.extra = module.first
    return module


def _other_values(module):
    module.scale.copy_(torch.tensor([5.0, 0.0, -1.0]))
    return module


def _transposed(module):
    module.first.weight = torch.nn.Parameter(torch.randn(4, 5).t())
    return module


def _without_bias(module):
    module.last.bias = None
    return module


def _in_double(module):
    return module.double()


def _evaluated(module):
    return module.eval()


CHANGES = [_frozen, _tied, _other_values, _transposed, _without_bias, _evaluated]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_models_that_differ_in_one_thing(change):
    torch.manual_seed(0)
    for changed in (False, True, False):
        treadle.reset()
        module = change(Net()) if changed else Net()
        assert_as_eager(module, torch.randn(6, 4))


@pytest.mark.parametrize(
    "inputs",
    [
        lambda: torch.randn(6, 4),
        lambda: torch.randn(7, 4),
        lambda: torch.randn(4, 6).t(),
        lambda: torch.randn(6, 8)[:, ::2],
        lambda: torch.randn(6, 4).requires_grad_(),
        lambda: torch.randn(6, 1).expand(6, 4),
    ],
)
def test_inputs_that_differ(inputs):
    torch.manual_seed(0)
    module = Net()
    assert_as_eager(module, torch.randn(6, 4))
    treadle.reset()
    assert_as_eager(module, inputs().detach().requires_grad_(inputs().requires_grad))


class TwoInputs(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(4))

    def forward(self, x, y):
        x.mul_(2)
        return (x + y) * self.weight


def test_inputs_that_are_one_object_or_share_memory():
    def apart():
        return torch.ones(3, 4), torch.ones(3, 4)

    def one():
        x = torch.ones(3, 4)
        return x, x

    def shared():
        x = torch.ones(3, 4)
        return x, x.view(3, 4)

    for make in (apart, one, shared, apart, shared, one):
        treadle.reset()
        module = TwoInputs()
        reference = copy.deepcopy(module)
        found, expected = treadle.compile(module)(*make()), reference(*make())
        found.sum().backward()
        expected.sum().backward()
        torch.testing.assert_close([found, module.weight.grad], [expected, reference.weight.grad])


class Attends(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.project = torch.nn.Linear(8, 24)

    def forward(self, x):
        q, k, v = self.project(x).view(2, 4, 3, 2, 4).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(q, k, v)


@contextlib.contextmanager
def _replaced(place, name, value):
    before = getattr(place, name)
    setattr(place, name, value)
    try:
        yield
    finally:
        setattr(place, name, before)


@contextlib.contextmanager
def _double_by_default():
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


_gelu = torch._C._nn.gelu
_batch_norm = torch.batch_norm
SETTINGS = {
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "math attention": lambda: torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH),
    "default dtype": _double_by_default,
    "replaced batch norm": lambda: _replaced(torch, "batch_norm", lambda *args: _batch_norm(*args) * 2),
    "replaced function": lambda: _replaced(F, "gelu", lambda x: _gelu(x) * 3),
    "replaced method": lambda: _replaced(torch.Tensor, "mul", lambda x, y: x + y),
    "anomaly mode": torch.autograd.detect_anomaly,
    "half the memory": lambda: treadle.config.patch(memory_budget=0.5),
}


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("cls", [Net, Attends])
def test_settings_that_differ(setting, cls):
    torch.manual_seed(0)
    shape = (6, 4) if cls is Net else (2, 4, 8)
    for changed in (False, True, False):
        treadle.reset()
        torch.manual_seed(0)
        module = cls()
        x = torch.randn(shape, dtype=torch.float32)
        with SETTINGS[setting]() if changed else contextlib.nullcontext():
            reference = copy.deepcopy(module)
            found, expected = treadle.compile(module)(x), reference(x)
        found.float().sum().backward()
        expected.float().sum().backward()
        pairs = zip(module.parameters(), reference.parameters(), strict=True)
        tolerance = {"rtol": 0.05, "atol": 0.05} if setting == "autocast" else {"rtol": 1e-3, "atol": 1e-4}
        torch.testing.assert_close(found, expected, **tolerance)
        torch.testing.assert_close([p.grad for p, _ in pairs], [p.grad for p in reference.parameters()], **tolerance)


@pytest.mark.parametrize(("kind", "width", "traces"), [("graphs", 6, 2), ("programs", 7, 2), ("cpp", 8, 1)])
def test_files_of_the_cache_that_have_gone(kind, width, traces, kernel_cache, traced):
    """The cache drops files one by one."""
    torch.manual_seed(0)
    for _ in range(2):
        treadle.reset()
        assert_as_eager(Net(width=width), torch.randn(6, 4))
        files = [*(kernel_cache / kind).iterdir()]
        for file in files:
            file.unlink()
        assert files
    assert traced["joint"] == traces
