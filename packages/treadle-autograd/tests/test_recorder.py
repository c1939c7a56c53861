"""One node per functional operator, with its fake result."""

from __future__ import annotations

import pytest
import torch
from torch import fx

from treadle_autograd import UnsupportedGraph
from treadle_autograd.recorder import AtenRecorder, RecordedGraph, storage_key
from treadle_shapes.torch import fake_like, fake_mode

aten = torch.ops.aten


@pytest.fixture
def parts():
    """A recorder with one input of shape (2, 3), and that input."""
    mode = fake_mode()
    recorded = RecordedGraph()
    recorder = AtenRecorder(recorded, mode, {})
    x = fake_like(mode, torch.ones(2, 3))
    recorder.bind(x, recorded.add_call_input("x", 0, x))
    return mode, recorder, x


def calls(recorder):
    return [node for node in recorder.recorded.graph.nodes if node.op == "call_function"]


def test_operators_become_nodes(parts):
    mode, recorder, x = parts
    recorder.meta = {"stack_trace": '  File "model.py", line 3, in f'}
    with mode, recorder:
        y = aten.relu.default(x)
        low, _ = aten.aminmax.default(y)
    relu, aminmax, first, second = calls(recorder)
    assert (relu.target, relu.args, relu.meta["val"]) == (aten.relu.default, (recorder.node_of(x),), y)
    assert recorder.node_of(low) is first and second.args == (aminmax, 1)
    assert first.meta["stack_trace"] == relu.meta["stack_trace"] and recorder.line() == "model.py:3"


def test_queries_give_no_node(parts):
    mode, recorder, x = parts
    with mode, recorder:
        assert aten.sym_size.int(x, 1) == 3
        assert list(aten.size.default(x)) == [2, 3]
    assert calls(recorder) == []


def test_constants_stand_behind_the_parameters_and_before_the_inputs(parts):
    mode, recorder, x = parts
    parameter = recorder.recorded.add_static("weight", torch.ones(3), fake_like(mode, torch.ones(3)))
    constant = torch.zeros(3)
    node = recorder.node_of(constant)
    assert recorder.node_of(constant) is node and node.meta["static_input"] is constant
    placeholders = [n for n in recorder.recorded.graph.nodes if n.op == "placeholder"]
    assert placeholders == [parameter, node, recorder.node_of(x)] == recorder.recorded.input_nodes
    assert recorder.recorded.n_static == 2


def test_unknown_fakes_are_a_bug(parts):
    mode, recorder, _ = parts
    with pytest.raises(AssertionError, match="not computed by any recorded operator"):
        recorder.node_of(fake_like(mode, torch.ones(1)))


def test_what_has_no_functional_form_is_refused(parts):
    mode, recorder, x = parts
    with mode, recorder:
        with pytest.raises(UnsupportedGraph, match="aten.add_.Tensor changes its arguments below functionalisation"):
            aten.add_.Tensor(x, x)
        with pytest.raises(UnsupportedGraph, match="as_strided reads an input from an absolute place"):
            aten.as_strided.default(x, (2,), (1,), 1)
        with pytest.raises(UnsupportedGraph, match="as_strided_scatter writes to an absolute place in the storage of"):
            aten.as_strided_scatter.default(x, x[:1, :1].sum(0), (1,), (1,), 1)


def test_writes_to_tensors_of_a_composite_become_functional(parts):
    mode, recorder, x = parts
    with mode, recorder:
        one = aten.empty.memory_format([], device="cpu")
        before = aten.add.Tensor(x, one)
        assert aten.fill_.Scalar(one, 1.0) is one
        aten.mul_.Scalar(one, 2.0)
        after = aten.sub.Tensor(one, x)
    empty, add, fill, mul, sub = calls(recorder)
    assert (fill.target, fill.args) == (aten.fill.Scalar, (empty, 1.0))
    assert (mul.target, mul.args) == (aten.mul.Scalar, (fill, 2.0))
    assert sub.args[0] is mul and add.args[1] is empty
    assert recorder.node_of(after) is sub and recorder.node_of(before) is add


@pytest.mark.parametrize(
    "write",
    [
        lambda t: aten.fill_.Scalar(aten.view.default(t, [6]), 1.0),  # seen by the tensor it is a view of
        lambda t: (aten.view.default(t, [6]), aten.fill_.Scalar(t, 1.0)),
        lambda t: aten.resize_.default(t, [2, 2]),
        lambda t: aten.t_.default(t),
        lambda t: aten.set_.source_Tensor(t, aten.clone.default(t)),
        lambda t: aten.uniform_.default(t),
        lambda t: aten.copy_.default(torch.zeros(2, 3), t),
    ],
)
def test_writes_that_others_may_see_are_refused(parts, write):
    mode, recorder, _ = parts
    with mode, recorder:
        made = aten.zeros.default([2, 3], device="cpu")
        with pytest.raises(UnsupportedGraph, match="below functionalisation"):
            write(made)


def test_decompositions_and_composites(parts):
    mode, recorder, x = parts
    recorder.decompositions = {
        aten.silu.default: lambda x: x * aten.sigmoid.default(x),
        aten.relu.default: lambda x: NotImplemented,
    }
    with mode, recorder:
        aten.silu.default(x)
        aten.relu.default(x)
        aten.square.default(x)
    assert [n.target for n in calls(recorder)] == [
        aten.sigmoid.default,
        aten.mul.Tensor,
        aten.relu.default,
        aten.pow.Tensor_Scalar,
    ]


@pytest.mark.parametrize(("dtype", "expected"), [(torch.float32, torch.float32), (None, torch.float64)])
def test_a_copy_of_a_wrapped_number_is_a_tensor(parts, dtype, expected):
    """Batching rules call `_to_copy` of wrapped numbers, which a dispatch mode sees as numbers."""
    mode, recorder, _ = parts
    with mode, recorder:
        found = recorder._dispatch(aten._to_copy.default, (0.5,), {} if dtype is None else {"dtype": dtype})
    (node,) = calls(recorder)
    assert (node.target, node.args, found.dtype, found.dim()) == (aten.full.default, ([], 0.5), expected, 0)


def test_storages():
    base = torch.ones(4)
    assert storage_key(base) == storage_key(base[1:]) != storage_key(base.clone())
    assert isinstance(RecordedGraph().graph, fx.Graph)


NUMBERS = {
    "a write at a mask": lambda x, number: aten.index_put.default(x, [aten.gt.Scalar(x, 0)], number),
    "a product": lambda x, number: aten.mul.Tensor(x, number),
    "a write": lambda x, number: aten.copy.default(x, number),
}


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_numbers_stand_on_the_device_of_the_tensors_beside_them(name, device):
    mode = fake_mode()
    recorder = AtenRecorder(RecordedGraph(), mode, {})
    with mode:
        x = torch.empty(2, 3, device=device)
    recorder.bind(x, recorder.recorded.add_call_input("x", 0, x))
    with mode, recorder:
        result = NUMBERS[name](x, torch.tensor(0.1))
    assert result.device.type == device
    *_, call = calls(recorder)
    number = next(n for n in call.all_input_nodes if n.meta["val"].dim() == 0)
    assert number.meta["val"].device.type == device
    if device == "cuda":
        assert number.target is aten.full.default and number.args == ([], torch.tensor(0.1).item())
