"""`treadle.compile` and its companions on small programs."""

from __future__ import annotations

import copy
import pickle
import time

import pytest
import torch
from torch import nn

import treadle
from treadle.errors import UnknownName

BACKENDS = ["codegen", "aot_eager", "eager"]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.norm = nn.LayerNorm(8)
        self.dropout = nn.Dropout(0.5)

    def forward(self, x, scale=1.0):
        return self.dropout(self.norm(torch.relu(self.first(x)))) * scale


def close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("arguments", [{}, {"scale": 2.0}])
def test_module(backend, arguments):
    model, x = Net().eval(), torch.randn(4, 6)
    compiled = treadle.compile(model, backend=backend, fullgraph=True)
    with torch.no_grad():
        for _ in range(3):
            close(compiled(x, **arguments), model(x, **arguments))
    assert treadle.stats().graphs == 1
    assert isinstance(compiled, Net) and list(compiled.state_dict()) == list(model.state_dict())
    assert type(pickle.loads(pickle.dumps(compiled))) is Net and type(copy.deepcopy(compiled)) is Net


@pytest.mark.parametrize("backend", BACKENDS)
def test_function_as_decorator_and_as_call(backend):
    def f(x, y, *, bias=1):
        """Doc."""
        return torch.sin(x) * y + bias

    x, y = torch.randn(3, 4), torch.randn(4)
    called = treadle.compile(f, backend=backend)
    decorated = treadle.compile(backend=backend)(f)
    for g in (called, decorated):
        close(g(x, y), f(x, y))
        close(g(x, y=y, bias=3), f(x, y, bias=3))
        assert g.__name__ == "f" and g.__doc__ == "Doc."


def test_methods_partials_and_other_callables():
    import functools

    class Scaler:
        factor = 3

        def scale(self, x):
            return x * self.factor

        def __call__(self, x):
            return x + self.factor

    x = torch.randn(3)
    scaler = Scaler()
    close(treadle.compile(scaler.scale)(x), x * 3)
    close(treadle.compile(scaler)(x), x + 3)
    close(treadle.compile(functools.partial(torch.add, alpha=2))(x, x), x * 3)
    close(treadle.compile(torch.sin)(x), x.sin())


def test_each_compile_call_has_its_own_cache():
    def f(x):
        return x.cos() + 1

    graphs: list[str] = []

    def spy(gm, inputs):
        graphs.append("spy")
        return gm.forward

    x = torch.randn(3)
    one, two = treadle.compile(f, backend=spy), treadle.compile(f, backend="eager")
    one(x), two(x), one(x)
    assert graphs == ["spy"] and treadle.stats().graphs == 2
    f(x)
    assert treadle.stats().graphs == 2


def test_compiling_twice_compiles_once():
    model, x = Net().eval(), torch.randn(4, 6)
    with torch.no_grad():
        close(treadle.compile(treadle.compile(model))(x), model(x))
    assert treadle.stats().graphs == 1


def test_gradients_come_out_of_the_compiled_graph():
    model, x = Net().eval(), torch.randn(4, 6)
    compiled = treadle.compile(model)
    loss = compiled(x).pow(2).sum()
    loss.backward()
    got = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    model(x).pow(2).sum().backward()
    for a, b in zip(got, [p.grad for p in model.parameters()], strict=True):
        close(a, b)
    assert not treadle.stats().eager_graphs
    with torch.no_grad():
        assert not compiled(x).requires_grad
    assert treadle.stats().graphs == 2


def test_requires_grad_turned_on_later_is_seen():
    model, x = Net().eval().requires_grad_(False), torch.randn(4, 6)
    compiled = treadle.compile(model)
    assert not compiled(x).requires_grad
    model.first.weight.requires_grad_(True)
    assert compiled(x).requires_grad
    model.first.weight.requires_grad_(False)
    assert compiled(x.clone().requires_grad_(True)).requires_grad


def test_train_and_eval_modes_and_random_numbers():
    model, x = Net(), torch.randn(4, 6)
    compiled = treadle.compile(model)
    with torch.no_grad():
        for mode in (True, False, True):
            compiled.train(mode)
            torch.manual_seed(3)
            expected = model(x)
            torch.manual_seed(3)
            close(compiled(x), expected)


def test_batch_norm_statistics_are_updated_in_training():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    twin = copy.deepcopy(model)
    compiled, x = treadle.compile(model), torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        for _ in range(3):
            close(compiled(x), twin(x))
    for a, b in zip(model.buffers(), twin.buffers(), strict=True):
        close(a, b)


def test_inputs_changed_in_place_and_views_of_them():
    def f(x):
        x[0].mul_(2)
        return x.t(), x

    compiled = treadle.compile(f)
    mine, theirs = torch.arange(6.0).view(2, 3), torch.arange(6.0).view(2, 3)
    for _ in range(2):
        (a, b), (c, d) = compiled(mine), f(theirs)
        assert b is mine and torch.equal(a, c) and torch.equal(b, d)
    a.fill_(5)
    assert mine.eq(5).all()


def test_a_call_breaks_the_graph_and_fullgraph_says_where():
    def f(x):
        y = x + 1
        time.sleep(0)
        return y * 2

    x = torch.ones(3)
    close(treadle.compile(f)(x), torch.full((3,), 4.0))
    stats = treadle.stats()
    assert stats.graphs == 2 and len(stats.breaks) == 1
    assert "test_api.py" in stats.breaks[0].where
    from treadle_tracer.errors import Unsupported

    with pytest.raises(Unsupported, match="test_api.py"):
        treadle.compile(f, fullgraph=True)(x)


def test_explain():
    def f(x):
        y = x + 1
        time.sleep(0)
        return y * 2

    explanation = treadle.explain(f)(torch.ones(3))
    assert (explanation.graph_count, explanation.break_count) == (2, 1)
    close(explanation.result, torch.full((3,), 4.0))
    assert "2 graphs, 1 break, " in str(explanation) and "test_api.py" in str(explanation)
    assert treadle.stats().graphs == 0


def test_disable():
    def inner(x):
        return x * 2

    kept = treadle.disable(inner)
    compiled = treadle.compile(lambda x: kept(x + 1) + 1)
    close(compiled(torch.ones(3)), torch.full((3,), 5.0))
    close(treadle.disable(compiled)(torch.ones(3)), torch.full((3,), 5.0))
    assert treadle.compile(inner, disable=True) is inner
    graphs = treadle.stats().graphs
    kept(torch.ones(3))
    assert treadle.stats().graphs == graphs


def test_reset_forgets():
    compiled, x = treadle.compile(lambda x: x + 1), torch.ones(3)
    compiled(x)
    treadle.reset()
    assert treadle.stats().graphs == 0
    close(compiled(x), x + 1)
    assert treadle.stats().graphs == 1


def test_recompiles_are_counted_with_their_reason():
    compiled = treadle.compile(lambda x, n: x * n, dynamic=False)
    compiled(torch.ones(3), 2), compiled(torch.ones(3), 3), compiled(torch.ones(3), 2)
    stats = treadle.stats()
    assert stats.graphs == 2 and len(stats.recompiles) == 1
    assert "n" in stats.recompiles[0].reason


def test_logs(capsys):
    treadle.set_logs("all")
    try:
        compiled = treadle.compile(lambda x: torch.relu(x) + 1)
        compiled(torch.ones(3))
        compiled(torch.ones(3, 3))
    finally:
        treadle.set_logs()
    printed = capsys.readouterr().err
    for name in ("graph_code", "aten_code", "graph_sizes", "guards", "recompiles", "bytecode", "output_code"):
        assert f"[treadle:{name}]" in printed, name
    assert "relu" in printed


def test_a_compiled_module_inside_a_compiled_module():
    inner = Net().eval()
    outer = treadle.compile(nn.Sequential(treadle.compile(inner), nn.ReLU()))
    x = torch.randn(4, 6)
    with torch.no_grad():
        close(outer(x), torch.relu(inner(x)))


def test_unknown_attributes_of_config_are_refused():
    with pytest.raises(UnknownName):
        treadle.config.no_such_option = 1
