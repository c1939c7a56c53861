"""Operators on sizes that only the data can tell: one graph, and eager's results, exceptions and strides."""

from __future__ import annotations

import warnings

import pytest
import torch
from operators_on_found_sizes import BREAKS, DECIDED, PROGRAMS, SINCE_2_12

import treadle
from treadle_tracer import Unsupported


@pytest.fixture(autouse=True)
def _settings():
    treadle.reset()
    with treadle.config.patch(raise_internal_errors=True), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="treadle: the compiled graph")
        warnings.filterwarnings("ignore", message=r"(var|std)\(\): degrees of freedom")
        yield
    treadle.reset()


def _outcome(function, arguments):
    """(the type of what is raised or None, result, arguments afterwards)"""
    arguments = [argument.clone() for argument in arguments]
    try:
        return None, function(*arguments), arguments
    except Exception as error:  # the program's own: its type is compared
        return type(error), None, arguments


def _assert_same(got, want):
    if isinstance(want, (tuple, list)):
        assert len(got) == len(want)
        for one, other in zip(got, want, strict=True):
            _assert_same(one, other)
        return
    # values of about 1; the largest sums are over a hundred of them
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5, equal_nan=True)
    if want.numel() and 1 not in want.shape:
        assert got.stride() == want.stride()


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_graph(name):
    if name in SINCE_2_12 and torch.__version__ < "2.12":
        pytest.skip("torch 2.11 asks")
    program, calls = PROGRAMS[name]
    compiled = treadle.compile(program, fullgraph=True)
    for arguments in calls:
        (raised, got, after), (expected, want, afterwards) = (_outcome(f, arguments) for f in (compiled, program))
        assert raised is expected
        if expected is None:
            _assert_same((got, after), (want, afterwards))
    assert treadle.stats().graphs == 1
    assert treadle.stats().eager_graphs == ()


@pytest.mark.parametrize("name", BREAKS)
def test_what_cannot_be_one_graph(name):
    program, calls = BREAKS[name]
    with pytest.raises(Unsupported) as error:
        treadle.compile(program, backend="eager", fullgraph=True)(*(argument.clone() for argument in calls[0]))
    assert error.value.code == "unbacked-decision"
    with treadle.config.patch(capture_scalars=True):
        compiled = treadle.compile(program, backend="aot_eager")
        for arguments in calls:
            (raised, got, after), (expected, want, afterwards) = (_outcome(f, arguments) for f in (compiled, program))
            assert raised is expected
            if expected is None:
                _assert_same((got, after), (want, afterwards))


@pytest.mark.parametrize("name", DECIDED)
def test_a_size_that_must_be_a_constant(name):
    program, calls = DECIDED[name]
    compiled = treadle.compile(program)
    for number, arguments in enumerate((calls[0], *calls, *calls)):
        (raised, got, after), (expected, want, afterwards) = (_outcome(f, arguments) for f in (compiled, program))
        assert raised is expected
        if expected is None:
            _assert_same((got, after), (want, afterwards))
        if number == 1:
            assert (treadle.stats().graphs, treadle.stats().breaks) == (1, ())


def test_an_assumption_that_does_not_hold_is_said_once():
    program, calls = PROGRAMS["roll"]
    compiled = treadle.compile(program, backend="aot_eager", fullgraph=True)
    some, _, none, one = calls
    compiled(*some)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for arguments in (none, one, none):
            torch.testing.assert_close(compiled(*arguments), program(*arguments))
    assert [str(w.message).count("shape[0] != 0 does not hold") for w in found] == [1]
    assert treadle.stats().graphs == 1


def test_the_run_of_python_compiles_nothing():
    def chosen(x):
        return rows_of(x).roll(1, 0)

    def rows_of(x):
        return x[x > 0]

    compiled = treadle.compile(chosen, backend="eager", fullgraph=True)
    for x in (torch.ones(3), -torch.ones(3)):
        torch.testing.assert_close(compiled(x), chosen(x))
    assert treadle.stats().graphs == 1


def _gradients(function, arguments):
    """(the type of what is raised or None, gradients of the sum of the results' elements)"""
    arguments = [a.clone().requires_grad_() if a.is_floating_point() else a.clone() for a in arguments]
    try:
        results = function(*arguments)
    except Exception as error:  # the program's own: its type is compared
        return type(error), ()
    results = results if isinstance(results, (tuple, list)) else (results,)
    results = [result for result in results if isinstance(result, torch.Tensor) and result.requires_grad]
    if results:
        sum(result.sum() for result in results).backward()
    return None, tuple(torch.zeros(0) if a.grad is None else a.grad for a in arguments)


@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients(name):
    program, calls = PROGRAMS[name]
    compiled = treadle.compile(program, options={"capture_scalars": True})
    for arguments in calls:
        (raised, got), (expected, want) = (_gradients(f, arguments) for f in (compiled, program))
        assert raised is expected
        _assert_same(got, want)


def _mean_of_nearest(x, c):
    return x[torch.cdist(x, c).argmin(1) == 0].mean(0)


def test_a_number_that_the_backward_graph_is_given_by_another_name():
    compiled = treadle.compile(_mean_of_nearest, options={"capture_scalars": True})
    for seed in range(3):
        torch.manual_seed(seed)
        arguments = (torch.randn(6, 4), torch.randn(2, 4))
        (_, got), (_, want) = (_gradients(f, arguments) for f in (compiled, _mean_of_nearest))
        _assert_same(got, want)


def _padded_groups(x, group, place, weight):
    """Dense batches of graphs: the rows of each group side by side, as many as its largest place tells, times a matrix for each group."""
    groups, length = int(group.max()) + 1, int(place.max())
    padded = x.new_zeros(groups * length, 4)
    padded[group * length + place - 1] = x
    padded = padded.view(groups, length, 4) @ weight
    return torch.matmul(torch.ones(groups, length, length), padded)


def test_products_of_rows_padded_to_a_length_that_data_tells_are_compiled_in_training():
    compiled = treadle.compile(_padded_groups, options={"leave_unprofitable": False})
    places = ([0, 0, 1, 1, 1, 2], [1, 2, 1, 2, 3, 1]), ([0, 1, 2, 3, 4, 5], [1] * 6), ([0] * 6, [1, 2, 3, 4, 5, 6])
    for group, place in places:
        x, weight = torch.arange(24.0).reshape(6, 4) / 24, torch.eye(4) + 0.5
        arguments = (x, torch.tensor(group), torch.tensor(place), weight)
        (raised, got), (_, want) = (_gradients(f, arguments) for f in (compiled, _padded_groups))
        assert raised is None
        _assert_same(got, want)
    assert treadle.stats().eager_graphs == ()


@pytest.mark.parametrize("batch_first", [False, True])
def test_packed_sequences(batch_first):
    """PyTorch's fake kernel gives the packed rows another size, and the counts another dtype."""

    def program(x, lengths):
        data, counts = torch._VF._pack_padded_sequence(x, lengths, batch_first)
        return data * 2, counts + 1, data.sum(0)

    compiled = treadle.compile(program, fullgraph=True)
    for lengths in ([5, 3, 2], [4, 4, 1], [1, 1, 1], [5, 5, 5]):
        x = torch.randn(3, 5, 4) if batch_first else torch.randn(5, 3, 4)
        got, want = (run(x, torch.tensor(lengths)) for run in (compiled, program))
        for one, other in zip(got, want, strict=True):
            torch.testing.assert_close(one, other)
    with pytest.raises(RuntimeError, match="sorted"):
        compiled(x, torch.tensor([1, 2, 3]))
    assert treadle.stats().eager_graphs == ()


@pytest.mark.parametrize("module", [torch.nn.GRU, torch.nn.LSTM])
def test_layers_of_packed_sequences(module):
    layer = module(4, 6, bidirectional=True, batch_first=True)

    def program(x, lengths):
        packed = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        result, state = layer(packed)
        padded, lengths = torch.nn.utils.rnn.pad_packed_sequence(result, batch_first=True, padding_value=-1.0)
        return padded, state if isinstance(state, torch.Tensor) else state[0], lengths

    compiled = treadle.compile(program)
    for lengths in ([5, 3, 2], [1, 5, 4], [2, 2, 2]):
        x = torch.randn(3, 5, 4)
        gradients = []
        for run in (program, compiled):
            layer.zero_grad()
            found = run(x, torch.tensor(lengths))
            (found[0].sum() + found[1].sum()).backward()
            gradients.append([*found, *(parameter.grad.clone() for parameter in layer.parameters())])
        for one, other in zip(*gradients, strict=True):
            torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_connectionist_losses(reduction, padded):
    """The table that backward reads is as wide as the longest target; PyTorch has no fake kernel for it."""

    def program(x, targets, steps, lengths):
        log_probs = x.log_softmax(-1).transpose(0, 1)
        return torch.nn.functional.ctc_loss(log_probs, targets, steps, lengths, reduction=reduction, zero_infinity=True)

    compiled = treadle.compile(program, fullgraph=True)
    for lengths in ([4, 3, 2], [4, 1, 0], [1, 2, 1]):
        x, lengths = torch.randn(3, 6, 5), torch.tensor(lengths)
        targets = torch.randint(1, 5, (3, 4) if padded else (int(lengths.sum()),))
        found = []
        for run in (compiled, program):
            given = x.clone().requires_grad_()
            loss = run(given, targets, torch.tensor([6, 6, 5]), lengths)
            found.append((loss, *torch.autograd.grad(loss.sum(), given)))
        _assert_same(*found)
    with pytest.raises(RuntimeError, match="input_lengths"):
        compiled(x, targets, torch.tensor([6, 6, 9]), lengths)
    assert treadle.stats().eager_graphs == ()


@pytest.mark.parametrize("ask", ("tolist", "iterate"))
def test_rows_of_as_many_as_data_tells(ask):
    """Also where it tells one (fuzz seed 2101575: endless recursion)."""

    def rows(x, count):
        found = x[: max(1, int(count) % 4)] + 1
        return found.tolist() if ask == "tolist" else [row * 2 for row in found]

    fast = treadle.compile(rows, options={"leave_unprofitable": False})
    for count in (1, 2, 1, 3):
        x = torch.arange(12.0).view(4, 3)
        torch.testing.assert_close(fast(x, torch.tensor(count)), rows(x, torch.tensor(count)))


@pytest.mark.parametrize("dim", [0, 1, -1, -2])
@pytest.mark.parametrize("find", [torch.unique, torch.unique_consecutive])
def test_unique_slices(find, dim):
    """Their layout is not row-major, and the dimension may be counted from the end."""

    def program(x):
        slices, inverse, counts = find(x, return_inverse=True, return_counts=True, dim=dim)
        return slices, inverse, counts, find(x, dim=dim) + 1

    fast = treadle.compile(program, fullgraph=True)
    torch.manual_seed(0)
    for shape in ((2, 3, 2), (3, 4, 3), (4, 2, 5)):
        x = torch.randint(0, 2, shape)
        for one, other in zip(fast(x), program(x), strict=True):
            assert torch.equal(one, other) and one.stride() == other.stride()
