from __future__ import annotations

import subprocess
import sys
import threading

import pytest
import torch
from torch import fx

import treadle
from treadle.backends import BUILTIN, backend_names, is_own, resolve
from treadle.errors import UnknownName, WrongUse
from treadle.options import compile_options
from treadle.through_aot import leaves_history, needs_gradients


def options(**given):
    return compile_options(False, None, None, given or None, own_backend=False)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3))

    def forward(self, x):
        return (x.sin() * self.weight,)


@pytest.mark.parametrize("name", sorted(BUILTIN))
def test_every_own_backend_compiles_a_graph(name):
    gm, x = fx.symbolic_trace(Model()), torch.randn(2, 3)
    with torch.no_grad():
        run = resolve(name, options())[1](gm, [x])
        torch.testing.assert_close(run(x)[0], gm(x)[0])
    assert is_own(name) and not is_own(lambda gm, inputs: gm)


def test_gradients_mean_eager():
    model = Model()
    gm = fx.symbolic_trace(model)
    x = torch.ones(3)
    assert needs_gradients(gm, [x])
    with torch.no_grad():
        assert not needs_gradients(gm, [x])
    model.weight.requires_grad_(False)
    assert not needs_gradients(gm, [x])
    assert needs_gradients(gm, [x.clone().requires_grad_(True)])


def test_a_graph_that_turns_gradients_on_is_compiled_but_for_inference_mode():
    graph = fx.Graph()
    x = graph.placeholder("x")
    before = graph.call_method("cos", (x,))
    graph.call_function(torch._C._set_grad_enabled, (True,))
    after = graph.call_method("sin", (x,))
    graph.call_function(torch._C._set_grad_enabled, (False,))
    graph.output((before, after))
    gm = fx.GraphModule(torch.nn.Module(), graph)
    leaf = torch.ones(3, requires_grad=True)
    with torch.no_grad():
        assert needs_gradients(gm, [leaf])
        cos, sin = BUILTIN["codegen"](options())(gm, [leaf])(leaf)
        assert not torch.is_grad_enabled()
    assert not treadle.stats().eager_graphs
    assert not cos.requires_grad
    torch.testing.assert_close(torch.autograd.grad(sin.sum(), leaf)[0], leaf.cos())
    with torch.inference_mode():
        BUILTIN["codegen"](options())(gm, [leaf])
    assert "gradients on" in treadle.stats().eager_graphs[-1].reason
    with torch.no_grad():
        assert not needs_gradients(gm, [torch.ones(3)])


def test_names_and_callables():
    assert {"codegen", "eager", "aot_eager"} <= set(backend_names())
    with pytest.raises(WrongUse, match="backend must be a name"):
        resolve(3, options())  # type: ignore[arg-type]

    def mine(gm, example_inputs, options=None):
        return lambda *args: (options,)

    name, backend = resolve(mine, options())
    gm = fx.symbolic_trace(Model())
    assert name == "mine" and backend(gm, [])() == (None,)
    assert resolve(mine, options(level=3))[1](gm, [])() == ({"level": 3},)


def test_entry_points_add_backends(tmp_path):
    metadata = tmp_path / "some_backend-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: some-backend\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(
        "[treadle.backends]\nsome = some_backend:compile\nbad = some_backend:number\n"
    )
    (tmp_path / "some_backend.py").write_text(
        "def compile(gm, inputs):\n    print('used')\n    return gm.forward\nnumber = 3\n"
    )
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "import torch, treadle\n"
        "assert 'some' in treadle.backend_names()\n"
        "treadle.compile(lambda x: x + 1, backend='some')(torch.ones(2))\n"
        "try: treadle.compile(torch.sin, backend='bad')\n"
        "except TypeError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "used" in done.stdout and "not callable: 3" in done.stdout


def test_an_unknown_name_lists_what_there_is():
    with pytest.raises(UnknownName, match="did you mean 'aot_eager'.*'inductor'.*any callable"):
        resolve("aot_eagr", options())


def test_a_graph_without_functional_form_is_counted_as_eager():
    gm, x = fx.symbolic_trace(lambda x: (x * x.sum().item(),)), torch.randn(3)
    run = resolve("aot_eager", options())[1](gm, [x])
    assert torch.equal(run(x)[0], x * x.sum().item())
    (eager,) = treadle.stats().eager_graphs
    assert "values of a tensor" in eager.reason


def test_what_autograd_sees_after_a_run():
    """A graph whose results and inputs have no history is compiled for inference, whatever requires gradients."""
    weight = torch.ones(3, requires_grad=True)

    def forward(x):
        return x * weight

    def detached(x):
        return (x * weight).detach()

    def updated(x):
        with torch.no_grad():
            weight.mul_(x)

    def changed(x):
        x.mul_(weight)

    def own_gradients(x):
        return torch.autograd.grad((x * weight).sum(), weight)

    for function, expected in (
        *((forward, True), (detached, False), (updated, False), (changed, True)),
        (own_gradients, False),
    ):
        found = []

        def backend(gm, inputs, found=found):
            found.append((leaves_history(gm), needs_gradients(gm, inputs)))
            return gm.forward

        treadle.compile(function, backend=backend)(torch.ones(3))
        assert found == [(expected, True)], function


@pytest.mark.parametrize("name", ["codegen", "eager", "aot_eager"])
def test_own_backends_draw_no_random_numbers(name):
    """They promise it to the tracer, which leaves the generators to other threads then."""

    def f(x):
        return torch.nn.functional.dropout(x, 0.5).sin() + torch.rand(4)

    idle = threading.Event()
    thread = threading.Thread(target=idle.wait, args=(60,))
    thread.start()
    for trains in (False, True):
        torch.manual_seed(3)
        expected = f(torch.ones(4)), torch.rand(1)
        torch.manual_seed(3)
        found = treadle.compile(f, backend=name)(torch.ones(4, requires_grad=trains)), torch.rand(1)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    idle.set()
    thread.join()
