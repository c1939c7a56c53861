"""Graphs, guards and metadata of traces made without the frame hook."""

from __future__ import annotations

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from treadle_tracer.errors import Unsupported  # noqa: E402
from treadle_tracer.source import LocalSource  # noqa: E402
from treadle_tracer.trace.driver import trace_function  # noqa: E402
from treadle_tracer.values.base import Constant  # noqa: E402
from treadle_tracer.values.tensor import SymbolicValue, TensorValue  # noqa: E402

X = torch.randn(3, 4)


def nodes(result, op="call_function"):
    return [node for node in result.graph.graph.nodes if node.op == op]


def test_a_trace_imports_neither_dynamo_nor_inductor():
    program = (
        "import sys, torch\n"
        "from treadle_tracer.trace.driver import trace_function\n"
        "model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.LayerNorm(3), torch.nn.GELU())\n"
        "trace_function(model, (torch.ones(2, 3),))\n"
        "print([name for name in sys.modules if name in ('torch._dynamo', 'torch._inductor.compile_fx')])\n"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_the_real_tensors_are_not_touched():
    x = torch.ones(3)

    def f(x):
        x.add_(1)
        return x * 2

    trace_function(f, (x,))
    assert torch.equal(x, torch.ones(3))
    assert x._version == 0


def test_a_call_that_gives_its_argument_gives_the_same_value():
    result = trace_function(lambda x: (x, x.add_(1), x.contiguous(), x.to(x.dtype)), (X,))
    assert len({id(item) for item in result.value.items}) == 1
    assert [node.target for node in nodes(result, "call_method")] == ["add_"]


def test_a_pure_call_is_a_node_and_a_size_is_none():
    result = trace_function(lambda x: (x.size(0), x.dim(), x.numel(), x.shape[1] * 2, x.relu()), (X,))
    assert [item.obj for item in result.value.items[:4]] == [3, 2, 12, 8]
    assert [node.target for node in nodes(result, "call_method")] == ["relu"]


def test_node_metadata():
    def inner(x):
        return x + 1

    def outer(x):
        return inner(x)

    result = trace_function(outer, (X,))
    (node,) = nodes(result)
    assert node.meta["example_value"].shape == X.shape
    trace = node.meta["stack_trace"]
    assert trace.index("in outer") < trace.index("in inner")
    assert "return x + 1" in trace
    (placeholder,) = nodes(result, "placeholder")
    assert placeholder.meta["source"] == "arg0"


def test_parameters_are_attributes_and_inputs_placeholders():
    model = torch.nn.Linear(4, 2)
    result = trace_function(model, (X,))
    assert [node.meta["source"] for node in nodes(result, "placeholder")] == ["arg0"]
    assert sorted(result.graph.attributes) == ["function_bias", "function_weight"] or all(
        value is model.weight or value is model.bias for value in result.graph.attributes.values()
    )


def test_grad_mode_is_a_node_and_ends_as_it_was():
    def f(x):
        torch.set_grad_enabled(False)
        return x * 2

    before = torch.is_grad_enabled()
    result = trace_function(f, (X,))
    assert torch.is_grad_enabled() is before
    setters = [node.args for node in nodes(result) if node.target is torch._C._set_grad_enabled]
    assert setters == [(False,), (True,)]
    assert result.state_changes == [(torch._C._set_grad_enabled, (False,))]


def test_no_state_node_when_the_state_is_so_already():
    def f(x):
        with torch.no_grad():
            return x * 2

    with torch.no_grad():
        result = trace_function(f, (X,))
    assert [node.target for node in nodes(result) if "grad" in node.name] == []


def test_state_is_put_back_when_the_trace_fails():
    def f(x):
        torch.set_grad_enabled(False)
        return torch.linalg.lstsq(x, x)

    with pytest.raises(Unsupported):
        trace_function(f, (X,))
    assert torch.is_grad_enabled()


def test_compile_flags_while_tracing():
    def f():
        return (
            torch.compiler.is_compiling(),
            torch.jit.is_scripting(),
            torch.jit.is_tracing(),
            torch.onnx.is_in_onnx_export(),
        )

    result = trace_function(f)
    assert [item.obj for item in result.value.items] == [True, False, False, False]


def test_an_unsupported_call_names_the_users_stack():
    def inner(x):
        return torch.linalg.lstsq(x, x)

    def outer(x):
        return inner(x)

    with pytest.raises(Unsupported) as caught:
        trace_function(outer, (X,))
    assert caught.value.code == "data-dependent"
    assert [name for _, _, name in caught.value.user_stack] == ["outer", "inner"]


@pytest.mark.parametrize(
    ("function", "code"),
    [
        (lambda x: x.sum() > 0 and x, "branch-on-tensor"),
        (lambda x: x[x > 0].tolist(), "data-dependent"),
        (lambda x: x @ torch.ones(7, 7), "torch-call-raises"),
        (lambda x: torch.linalg.lstsq(x, x), "data-dependent"),
        (lambda x: print(x, file=[]), "output"),
        (lambda x: len(str(x)), "format"),
        (lambda x: torch.seed(), "global-state"),
        (lambda x: (x, id(x + 1).bit_length()), "identity-number"),
        (lambda x: open("x"), "call"),
    ],
)
def test_codes(function, code):
    with pytest.raises(Unsupported) as caught:
        trace_function(function, (X,))
    assert caught.value.code == code


def test_deep_recursion_is_unsupported_not_a_crash():
    def f(x, n):
        return f(x, n + 1)

    with pytest.raises(Unsupported) as caught:
        trace_function(f, (X, 0))
    assert caught.value.code == "recursion"


def test_dynamic_sizes_stay_symbols():
    def f(x):
        return x.reshape(-1), x.shape[0] * 2, x.shape[1]

    result = trace_function(f, (X,), dynamic={LocalSource("arg0"): {0: 0}})
    flat, doubled, static = result.value.items
    assert isinstance(flat, TensorValue)
    assert isinstance(doubled, SymbolicValue)
    assert isinstance(static, Constant)
    gm = result.graph.finish([flat.known_node, doubled.node(None)])
    for rows in (3, 5):
        got, size = gm(torch.ones(rows, 4))
        assert (got.shape, size) == ((rows * 4,), rows * 2)
    assert result.env.guards == []


def test_a_decision_about_a_dynamic_size_is_recorded():
    result = trace_function(lambda x: x + (1 if x.shape[0] > 2 else 0), (X,), dynamic={LocalSource("arg0"): {0: 0}})
    assert len(result.env.guards) == 1
