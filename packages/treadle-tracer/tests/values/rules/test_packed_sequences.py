"""Packed sequences whose lengths are constants are one graph, forward and backward."""

from __future__ import annotations

import pytest
import torch
from compile_runs import compiled
from torch import nn
from torch.nn.utils import rnn

LENGTHS = ([5, 3, 2, 2], [5, 5, 5, 5], [1, 1, 1, 1], [4, 2, 1, 1])
KINDS = {
    "lstm": lambda: nn.LSTM(3, 4),
    "lstm batch first": lambda: nn.LSTM(3, 4, batch_first=True),
    "lstm of layers": lambda: nn.LSTM(3, 4, num_layers=2, bidirectional=True),
    "lstm with projection": lambda: nn.LSTM(3, 4, proj_size=2, num_layers=2),
    "lstm without bias": lambda: nn.LSTM(3, 4, bias=False, bidirectional=True, proj_size=2),
    "lstm with dropout": lambda: nn.LSTM(3, 4, num_layers=3, dropout=0.5),
    "gru": lambda: nn.GRU(3, 4, num_layers=2, bidirectional=True),
    "rnn": lambda: nn.RNN(3, 4, bidirectional=True),
    "rnn of relu": lambda: nn.RNN(3, 4, num_layers=2, nonlinearity="relu"),
}


def states_of(found):
    return found if isinstance(found, tuple) else (found,)


def outcome(function, make, x):
    torch.manual_seed(0)
    model = make()
    x = x.clone().requires_grad_()
    torch.manual_seed(1)
    output, lengths, *states = function(x, model)
    (output.sin().sum() + sum(state.cos().sum() for state in states)).backward()
    return [output, *states, x.grad, *[p.grad for p in model.parameters()]], lengths, output.stride()


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_recurrent_networks(kind, lengths):
    first = "batch first" in kind

    def program(x, model):
        packed = rnn.pack_padded_sequence(x, lengths, batch_first=first)
        output, states = model(packed)
        padded, sizes = rnn.pad_packed_sequence(output, batch_first=first)
        return padded, sizes, *states_of(states)

    x = torch.randn(4, 5, 3) if first else torch.randn(5, 4, 3)
    expected = outcome(program, KINDS[kind], x)
    fast, recorder = compiled(program)
    found = outcome(fast, KINDS[kind], x)
    assert len(recorder.graphs) == 1 and recorder.codes() == [], recorder.breaks
    assert torch.equal(found[1], expected[1]) and found[2] == expected[2]
    for one, other in zip(found[0], expected[0], strict=True):
        torch.testing.assert_close(one, other)


def test_unsorted_lengths_other_paddings_and_states_given():
    model = nn.GRU(3, 4)

    def program(x, hidden):
        packed = rnn.pack_padded_sequence(x, torch.tensor([2, 5, 1]), enforce_sorted=False)
        output, last = model(packed, hidden)
        return *rnn.pad_packed_sequence(output, True, padding_value=-2.5, total_length=7), last, packed.batch_sizes

    x, hidden = torch.randn(6, 3, 3), torch.randn(1, 3, 4)
    fast, recorder = compiled(program, fullgraph=True)
    for one, other in zip(fast(x, hidden), program(x, hidden), strict=True):
        torch.testing.assert_close(one, other)
    assert len(recorder.graphs) == 1


def test_packed_integers_and_sequences_made_of_lists():
    def program(x):
        packed = rnn.pack_padded_sequence(x, [3, 1], batch_first=True)
        return packed.data, packed.batch_sizes, rnn.pad_packed_sequence(packed, padding_value=9)[0]

    x = torch.arange(10).reshape(2, 5)
    fast, recorder = compiled(program, fullgraph=True)
    assert all(map(torch.equal, fast(x), program(x))) and len(recorder.graphs) == 1


@pytest.mark.parametrize("value", [0.0, 2.5, True])
@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.float16, torch.complex64])
def test_paddings_have_the_dtype_of_the_data(dtype, value):
    def program(x):
        packed = rnn.pack_padded_sequence(x, [3, 1], batch_first=True)
        return rnn.pad_packed_sequence(packed, padding_value=value)[0]

    x = torch.arange(10).reshape(2, 5).to(dtype)
    fast, expected = compiled(program, fullgraph=True)[0], program(x)
    found = fast(x)
    assert found.dtype == expected.dtype and torch.equal(found, expected)


@pytest.mark.parametrize("lengths", ([5, 6], [2, 3], [2, 0], [2]))
def test_lengths_that_pytorch_refuses(lengths):
    def program(x):
        try:
            return rnn.pack_padded_sequence(x, lengths, batch_first=True).data
        except RuntimeError as error:
            return x + 1, str(error)

    x = torch.ones(2, 5, 3)
    assert str(compiled(program)[0](x)) == str(program(x))


def test_lengths_from_outside_stay_right():
    model = nn.LSTM(3, 4, batch_first=True)

    def program(x, lengths):
        output, (hidden, _) = model(rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False))
        return *rnn.pad_packed_sequence(output, batch_first=True), hidden

    fast, _ = compiled(program)
    for lengths in ([5, 2], [2, 5], torch.tensor([3, 3]), torch.tensor([1, 4]), torch.tensor([1, 5]), [1, 1]):
        x = torch.randn(2, 5, 3)
        for one, other in zip(fast(x, lengths), program(x, lengths), strict=True):
            torch.testing.assert_close(one, other)


def test_many_steps_are_not_unrolled_unless_one_graph_is_wanted():
    model = nn.GRU(3, 4, batch_first=True)

    def program(x):
        packed = rnn.pack_padded_sequence(x.sin(), [40, 30], batch_first=True)
        return rnn.pad_packed_sequence(model(packed)[0], batch_first=True)[0]

    x = torch.randn(2, 40, 3)
    for fullgraph in (False, True):
        fast, recorder = compiled(program, fullgraph=fullgraph)
        torch.testing.assert_close(fast(x), program(x))
        assert bool(recorder.codes()) is not fullgraph


@pytest.mark.parametrize("kind", KINDS)
def test_padded_sequences_with_a_state_that_is_known(kind):
    model = KINDS[kind]().eval()

    def program(x):
        return model(x)[0] + 1

    x = torch.randn(5, 4, 3)
    fast, recorder = compiled(program, fullgraph=True)
    torch.testing.assert_close(fast(x), program(x))
    assert len(recorder.graphs) == 1
