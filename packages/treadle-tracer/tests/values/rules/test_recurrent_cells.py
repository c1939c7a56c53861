"""Recurrent networks under changing sizes: cells in one graph, whole networks that PyTorch takes apart between two."""

import pytest
import torch
from compile_runs import compiled
from torch import nn
from torch.utils import _pytree as pytree

CELLS = {
    "lstm": lambda: nn.LSTMCell(3, 4),
    "gru": lambda: nn.GRUCell(3, 4),
    "rnn": lambda: nn.RNNCell(3, 4),
    "rnn of relu": lambda: nn.RNNCell(3, 4, nonlinearity="relu"),
    "without biases": lambda: nn.GRUCell(3, 4, bias=False),
}
NETWORKS = {
    "gru": lambda: nn.GRU(3, 4, num_layers=2, bidirectional=True),
    "rnn": lambda: nn.RNN(3, 4),
    "rnn of relu": lambda: nn.RNN(3, 4, nonlinearity="relu"),
}


def gradients(program, model, x):
    outputs = [leaf for leaf in pytree.tree_leaves(program(model, x)) if leaf.requires_grad]
    return [*outputs, *torch.autograd.grad(sum(leaf.square().sum() for leaf in outputs), [*model.parameters()])]


def over_steps(model, x):
    state = None
    for step in x:
        state = model(step, state)
    return state


def call(model, x):
    return model(x + 1)[0] * 2


@pytest.mark.parametrize("name", CELLS)
def test_the_batch_of_a_cell_may_change(name):
    model = CELLS[name]()
    run, recorder = compiled(over_steps)
    for batch in (5, 7, 2, 9, 64):
        x = torch.randn(3, batch, 3)
        torch.testing.assert_close(gradients(run, model, x), gradients(over_steps, model, x))
    assert len(recorder.entries) == 2 and not recorder.codes()


@pytest.mark.parametrize("name", CELLS)
def test_arguments_that_do_not_fit(name):
    model = CELLS[name]()
    run, _ = compiled(over_steps, dynamic=True)
    with pytest.raises(RuntimeError) as expected:
        over_steps(model, torch.randn(3, 5, 2))
    with pytest.raises(RuntimeError) as found:
        run(model, torch.randn(3, 5, 2))
    assert str(found.value) == str(expected.value)


@pytest.mark.parametrize("name", NETWORKS)
def test_steps_that_change_are_left_to_pytorch(name):
    model = NETWORKS[name]()
    run, recorder = compiled(call)
    for steps, batch in ((5, 2), (7, 3), (2, 4), (9, 2), (30, 5)):
        x = torch.randn(steps, batch, 3)
        torch.testing.assert_close(gradients(run, model, x), gradients(call, model, x))
    assert recorder.codes() == ["recurrent-steps"]
    assert sum(entry.payload.graph_module is not None for entry in recorder.entries) <= 6


@pytest.mark.parametrize(("steps", "codes"), [(16, []), (17, ["recurrent-steps"])])
def test_many_steps_are_left_to_pytorch(steps, codes):
    model = NETWORKS["gru"]()
    run, recorder = compiled(call)
    x = torch.randn(steps, 2, 3)
    torch.testing.assert_close(run(model, x), call(model, x))
    assert recorder.codes() == codes


def test_one_graph_has_all_steps():
    model = NETWORKS["rnn"]()
    run, recorder = compiled(call, fullgraph=True)
    for steps in (5, 70):
        x = torch.randn(steps, 2, 3)
        torch.testing.assert_close(run(model, x), call(model, x))
    assert len(recorder.entries) == 2
