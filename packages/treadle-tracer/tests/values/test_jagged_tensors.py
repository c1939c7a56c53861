"""Jagged tensors: the graph has their plain tensors, and gives what PyTorch gives for them."""

from __future__ import annotations

import contextlib
import operator

import pytest
import torch
import torch.nn.functional as F
from compile_runs import compiled
from torch.nested import as_nested_tensor, nested_tensor, nested_tensor_from_jagged, to_padded_tensor

WEIGHT, BIAS, ROWS = torch.randn(8, 8), torch.randn(8), torch.randn(3, 1, 8)
LENGTHS = [(3, 5, 2), (7, 2, 4), (1, 1, 1), (2, 6, 9, 4)]


def jagged(lengths, features=(8,), requires_grad=False):
    rows = [torch.randn(length, *features) for length in lengths]
    return nested_tensor(rows, layout=torch.jagged, requires_grad=requires_grad)


def with_holes(lengths):
    rows, starts = torch.randn(len(lengths), 9, 8), torch.zeros(len(lengths), dtype=torch.int64)
    return torch.nested.narrow(rows, 1, starts, torch.tensor(lengths), layout=torch.jagged)


def assert_same(given, wanted, with_ends=True):
    if isinstance(wanted, torch.Tensor) and wanted.is_nested:
        assert type(given) is type(wanted)
        assert (given.requires_grad, given._ragged_idx) == (wanted.requires_grad, wanted._ragged_idx)
        assert given.dim() == wanted.dim()
        torch.testing.assert_close(given.offsets(), wanted.offsets())
        if with_ends:
            ends = [{k: len(t) for k, t in tensor._metadata_cache.items()} for tensor in (given, wanted)]
            assert ends[0] == ends[1]
        assert_same(given._values.detach(), wanted._values.detach())
    elif isinstance(wanted, torch.Tensor):
        assert given.requires_grad == wanted.requires_grad
        assert given.stride() == wanted.stride() or 0 in given.stride()  # a gradient that eager copies
        torch.testing.assert_close(given, wanted, equal_nan=True)
    elif isinstance(wanted, (tuple, list)):
        assert type(given) is type(wanted) and len(given) == len(wanted)
        for one, other in zip(given, wanted, strict=True):
            assert_same(one, other)
    elif not isinstance(wanted, torch.SymInt):
        assert given == wanted


def of_values(result):
    """A number with a history, of all that has one in a result."""
    if isinstance(result, (tuple, list)):
        return sum(of_values(item) for item in result)
    if not isinstance(result, torch.Tensor) or not result.requires_grad:
        return 0
    return (result.values() if result.is_nested else result).double().square().sum()


def in_place(x):
    y = x * 1
    y += x
    return y.mul_(2)


OPERATORS = {
    "sin": lambda x: x.sin(),
    "gelu": lambda x: F.gelu(x),
    "number on the left": lambda x: 1 - x,
    "power": lambda x: x**2,
    "two of one shape": lambda x: x + x.sin(),
    "a row": lambda x: x + BIAS,
    "linear": lambda x: F.linear(x, WEIGHT, BIAS),
    "matmul": lambda x: x @ WEIGHT,
    "layer norm": lambda x: F.layer_norm(x, (8,)),
    "rms norm": lambda x: F.rms_norm(x, (8,)),
    "softmax": lambda x: x.softmax(-1),
    "dropout in evaluation": lambda x: F.dropout(x, 0.5, False),
    "dropout": lambda x: F.dropout(x, 0.5, True),
    "random numbers": lambda x: torch.rand_like(x),
    "concatenated": lambda x: torch.cat([x, x * 2], -1),
    "stacked": lambda x: torch.stack([x, x], -1),
    "transposed": lambda x: x.transpose(1, 2),
    "heads": lambda x: x.unflatten(-1, [2, 4]).transpose(1, 2),
    "permuted": lambda x: x.unflatten(-1, [2, 4]).permute(0, 2, 1, 3),
    "flattened": lambda x: x.unflatten(-1, [2, 4]).flatten(-2),
    "a view": lambda x: x.view(x.size(0), -1, 2, 4),
    "a view of the ragged size": lambda x: x.reshape(x.size(0), x.size(1), 4, 2),
    "one more dimension": lambda x: x.unsqueeze(-1).squeeze(-1) * 2,
    "expanded": lambda x: x.unsqueeze(-1).expand(*x.shape, 2),
    "padded": lambda x: to_padded_tensor(x, 0.0),
    "values": lambda x: x.values() * 2,
    "parts": lambda x: (x.offsets(), x.values()),
    "a feature": lambda x: x[..., 2],
    "another dtype": lambda x: x.to(torch.bfloat16),
    "zeros": lambda x: torch.zeros_like(x) + x,
    "clone": lambda x: x.clone() + 1,
    "detached": lambda x: x.detach() * 2,
    "where": lambda x: torch.where(x > 0, x, x * 0.1),
    "masked": lambda x: x.masked_fill(x > 0, 0.0),
    "in place": in_place,
    "sum": lambda x: x.sum(),
    "mean": lambda x: x.mean(),
    "mean of features": lambda x: x.mean(-1, keepdim=True),
    "greatest": lambda x: x.amax(1),
    "all": lambda x: torch.isfinite(x).all(),
    "made of values": lambda x: nested_tensor_from_jagged(x.values() * 2, x.offsets()) + x,
    "made of slices": lambda x: as_nested_tensor([x.values()[:2], x.values()[1:3]], layout=torch.jagged) * 2,
    "metadata": lambda x: (x.shape, x.size(1) == x.shape[1], x.dim(), x.is_nested, x.layout, x.is_contiguous()),
    "its greatest length": lambda x: (x._get_max_seqlen(), x._get_min_seqlen(), x * 2),
    "itself": lambda x: (x, x * 2),
    "the class": lambda x: (type(x).__name__, isinstance(x, torch.Tensor)),
}


@pytest.mark.parametrize("requires_grad", [False, True], ids=["", "with gradients"])
@pytest.mark.parametrize("name", OPERATORS)
def test_operators(name, requires_grad):
    program = OPERATORS[name]
    run, said = compiled(program)
    for seed, lengths in enumerate(LENGTHS):
        torch.manual_seed(seed)
        x = jagged(lengths, requires_grad=requires_grad)
        torch.manual_seed(seed)
        wanted = program(x)
        torch.manual_seed(seed)
        given = run(x)
        assert_same(given, wanted)
        if requires_grad and isinstance(of_values(wanted), torch.Tensor):
            try:
                (gradient,) = torch.autograd.grad(of_values(wanted), x, retain_graph=True)
            except (RuntimeError, NotImplementedError, ValueError):
                continue  # eager has no derivative
            assert_same(torch.autograd.grad(of_values(given), x)[0], gradient, with_ends=False)
    assert not said.breaks and not said.skips, (said.codes(), said.skips)


@pytest.mark.parametrize(
    "program",
    [lambda x: [t * 2 for t in x.unbind()], lambda x: nested_tensor(list(x.unbind()), layout=torch.jagged)],
    ids=["sequences", "made of sequences"],
)
def test_sequences(program):
    run, _ = compiled(program)  # which breaks: how many items they have is not known
    for lengths in LENGTHS:
        x = jagged(lengths)
        assert_same(run(x), program(x))


INTEGERS = {
    "padded": lambda x: to_padded_tensor(x, 0.0),
    "padded with a fraction": lambda x: x.to_padded_tensor(-1.5),
    "least": lambda x: x.amin(1),
    "greatest": lambda x: x.amax(1),
    "sums": lambda x: x.sum(1),
    "equal": lambda x: (x == 3, (x == 3).any(1), to_padded_tensor(x == 3, 1.0)),
    "looked up": lambda x: F.embedding(x.abs(), WEIGHT),
}


@pytest.mark.parametrize("name", INTEGERS)
def test_integers(name):
    program = INTEGERS[name]
    run, said = compiled(program)
    for lengths in LENGTHS:
        x = nested_tensor([torch.randint(-7, 8, (length,)) for length in lengths], layout=torch.jagged)
        assert_same(run(x), program(x))
    assert not said.breaks


# Derivatives that eager raises for, gets wrong (softmax over sequences), or ends the process with (chunk, split): of each sequence alone.
SEQUENCES = {
    "softmax over sequences": (lambda x: torch.softmax(x, 1), lambda t: t.softmax(0)),
    "chunks": (lambda x: operator.mul(*x.chunk(2, -1)), lambda t: operator.mul(*t.chunk(2, -1))),
    "splits": (lambda x: x.split([3, 5], -1)[1], lambda t: t.split([3, 5], -1)[1]),
    "slices": (lambda x: x[..., 2:5], lambda t: t[..., 2:5]),
    "log softmax": (lambda x: F.log_softmax(x, -1), lambda t: F.log_softmax(t, -1)),
    "sums of features": (lambda x: x.sum(-1), lambda t: t.sum(-1)),
}


@pytest.mark.parametrize("name", SEQUENCES)
def test_derivatives(name):
    program, of_one = SEQUENCES[name]
    run, said = compiled(program)
    for lengths in LENGTHS:
        rows = [torch.randn(length, 8, dtype=torch.float64, requires_grad=True) for length in lengths]
        x = as_nested_tensor([row.detach() for row in rows], layout=torch.jagged).requires_grad_()
        result, wanted = run(x), [of_one(row) for row in rows]
        torch.testing.assert_close(result.values(), torch.cat(wanted))
        (gradient,) = torch.autograd.grad(result.values().sin().sum(), x)
        torch.testing.assert_close(
            gradient.values(), torch.cat(torch.autograd.grad(sum(w.sin().sum() for w in wanted), rows))
        )
    assert not said.breaks


POOLS = {"sum": lambda x: x.sum(1), "mean": lambda x: x.mean(1)}


@pytest.mark.parametrize("name", POOLS)
def test_derivatives_of_pools(name):
    run, said = compiled(POOLS[name])
    for lengths in LENGTHS:
        rows = [torch.randn(length, 8, dtype=torch.float64, requires_grad=True) for length in lengths]
        x = as_nested_tensor([row.detach() for row in rows], layout=torch.jagged).requires_grad_()
        wanted = torch.stack([getattr(row, name)(0) for row in rows])
        result = run(x)
        torch.testing.assert_close(result, wanted)
        (gradient,) = torch.autograd.grad(result.sin().sum(), x)
        torch.testing.assert_close(gradient.values(), torch.cat(torch.autograd.grad(wanted.sin().sum(), rows)))
    assert not said.breaks


def test_gradients_reach_parameters_and_values():
    layer = torch.nn.Linear(8, 4)

    def program(values, offsets):
        return layer(nested_tensor_from_jagged(values.sin(), offsets)).relu().values().sum()

    run, said = compiled(program)
    for lengths in LENGTHS:
        values = torch.randn(sum(lengths), 8, requires_grad=True)
        offsets = F.pad(torch.tensor(lengths).cumsum(0), (1, 0))
        inputs = [values, *layer.parameters()]
        wanted = torch.autograd.grad(layer(values.sin()).relu().sum(), inputs)
        assert_same(list(torch.autograd.grad(run(values, offsets), inputs)), list(wanted))
    assert not said.breaks


MODES = {
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
}


@pytest.mark.parametrize("mode", MODES)
def test_modes(mode):
    layer = torch.nn.Linear(8, 8)

    def program(x):
        x = F.layer_norm(layer(x), (8,)).softmax(-1)
        return x.unflatten(-1, [2, 4]).transpose(1, 2) * 2, x.dtype

    run, said = compiled(program)
    for lengths in LENGTHS:
        x = jagged(lengths)
        with MODES[mode]():
            for each in (x, x * 2):  # made outside of the mode, and in it
                assert_same(run(each), program(each))
    assert not said.breaks


def _at_the_start(x):
    with torch.no_grad():
        torch._dynamo.graph_break()
    return x + 1


def _a_view_of_values(x):
    values = x.values() * 2
    with torch.no_grad():
        y = nested_tensor_from_jagged(values, x.offsets())
    return y.values() * 2, y.requires_grad


def _views(x):
    with torch.no_grad():
        found = [x.transpose(1, 1), x.transpose(1, 2), x.values(), *x.split([3, 5], -1), x * 2]
    return [(y * 2, y.requires_grad) for y in found], x.values() + found[2]


def _written(x):
    with torch.no_grad():
        x.mul_(2)
    return x + 1


def _values_written(x):
    with torch.no_grad():
        x.values().mul_(2)
    return x + 1


@pytest.mark.parametrize("make", [lambda x: x, torch.sin], ids=["a leaf", "with a history"])
@pytest.mark.parametrize("program", [_at_the_start, _a_view_of_values, _views, _written, _values_written])
def test_no_grad_inside(program, make):
    run, _ = compiled(program)
    for seed, lengths in enumerate(LENGTHS):
        pair = []
        for function in (run, program):
            torch.manual_seed(seed)
            x = jagged(lengths, requires_grad=True)
            result = function(make(x))
            total = of_values(result)
            gradient = torch.autograd.grad(total, x, allow_unused=True)[0] if isinstance(total, torch.Tensor) else None
            pair.append((result, gradient))
        assert_same(pair[0][0], pair[1][0])
        assert (pair[0][1] is None) == (pair[1][1] is None)
        if pair[0][1] is not None:
            assert_same(pair[0][1], pair[1][1], with_ends=False)


def test_lengths_are_those_of_one_tensor_of_offsets():
    def program(x, y):
        return x * y, x.size(1) == y.size(1)

    run, said = compiled(program)
    for lengths in LENGTHS:
        x = jagged(lengths)
        assert_same(run(x, x), program(x, x))
        assert_same(run(x, x.sin()), program(x, x.sin()))
    assert not said.breaks
    result, _ = run(x, x)
    assert_same(result + x, x * x + x)


def test_other_offsets_raise_as_in_eager():
    run, _ = compiled(lambda x, y: x * y)
    with pytest.raises(RuntimeError, match="cannot call binary pointwise function mul.Tensor with inputs of shapes"):
        run(jagged((3, 5, 2)), jagged((3, 5, 2)))

    def caught(x, y):
        try:
            return x * y
        except RuntimeError:
            return x * 2

    run, _ = compiled(caught)
    x = jagged((3, 5, 2))
    assert_same(run(x, jagged((3, 5, 2))), x * 2)


def test_a_ragged_size_leaves_the_graph():
    run, said = compiled(lambda x: (x.size(1), x.shape, x * 2))
    x = jagged((3, 5, 2))
    size, shape, twice = run(x)
    assert size == x.size(1) == twice.size(1)
    assert shape == x.shape
    assert not said.breaks


RAGGED = {
    "equal": lambda x: (x.size(1) == x.size(1), x.size(1) != x.size(1), x.size(1) == 3, x.size(1) == x.size(0)),
    "order": lambda x: (x.size(1) >= 2, x.size(1) < 1, 1 > x.size(1)),
    "multiples": lambda x: (x.stride(0) == x.size(1) * 8, x.size(1) * 2 == x.size(1)),
    "truth": lambda x: bool(x.size(1)),
}


@pytest.mark.parametrize("name", RAGGED)
def test_ragged_lengths(name):
    run, _ = compiled(lambda x: (x * 2, RAGGED[name](x)))
    for lengths in LENGTHS:
        x = jagged(lengths)
        assert_same(run(x), (x * 2, RAGGED[name](x)))


def test_writes_reach_the_tensor_outside():
    def program(x):
        x.mul_(2)
        return x.sum()

    run, _ = compiled(program)
    for lengths in LENGTHS:
        x = jagged(lengths)
        y = x.clone()
        assert_same(run(x), program(y))
        assert_same(x, y)


def test_a_break_between():
    def program(x):
        y = x * 2
        torch._dynamo.graph_break()
        return y + x

    run, _ = compiled(program)
    for lengths in LENGTHS:
        x = jagged(lengths)
        assert_same(run(x), program(x))


def test_a_history_reaches_eager_and_comes_back():
    first, _ = compiled(lambda x: x.sin() * 2)
    second, _ = compiled(lambda x: x.unflatten(-1, [2, 4]).transpose(1, 2))
    for lengths in LENGTHS:
        x = jagged(lengths, requires_grad=True)
        given = second(first(x) + x)
        wanted = (x.sin() * 2 + x).unflatten(-1, [2, 4]).transpose(1, 2)
        assert_same(given, wanted)
        pair = [torch.autograd.grad(of_values(one), x)[0] for one in (given, wanted)]
        assert_same(*pair, with_ends=False)


@pytest.mark.parametrize("program", [lambda x: x * 2, lambda x: x.sum(-1), lambda x: x.contiguous() + 1])
def test_sequences_with_holes_between_them(program):
    run, _ = compiled(program)
    for lengths in LENGTHS:
        x = with_holes(lengths)
        wanted, given = program(x), run(x)
        for one, other in zip(given.unbind(), wanted.unbind(), strict=True):
            torch.testing.assert_close(one, other)


# ---- attention


def heads(lengths, count=2, requires_grad=False):
    return jagged(lengths, (count, 4), requires_grad).transpose(1, 2)


def attention(query, key, value, **options):
    return F.scaled_dot_product_attention(query, key, value, **options)


def test_attention():
    run, said = compiled(attention)
    for lengths in LENGTHS:
        x = jagged(lengths, (2, 4))
        q, k, v = (t.transpose(1, 2) for t in (x, x.sin(), x.cos()))
        with torch.no_grad():
            assert_same(run(q, k, v), F.scaled_dot_product_attention(q, k, v))
            assert_same(run(q, k, v, scale=0.3), F.scaled_dot_product_attention(q, k, v, scale=0.3))
    assert not said.breaks


def test_attention_to_other_sequences():
    run, said = compiled(attention)
    for lengths in LENGTHS:
        y = jagged([length + 2 for length in reversed(lengths)], (2, 4))
        q, k, v = (t.transpose(1, 2) for t in (jagged(lengths, (2, 4)), y, y.cos()))
        assert_same(run(q, k, v), F.scaled_dot_product_attention(q, k, v))
    assert not said.breaks


def test_a_greatest_length_that_is_wrong():
    def program(values, offsets):
        x = nested_tensor_from_jagged(values, offsets, min_seqlen=1, max_seqlen=4).unflatten(-1, [2, 4])
        return F.scaled_dot_product_attention(*[x.transpose(1, 2)] * 3).values()

    run, _ = compiled(program)
    for lengths in ((3, 4, 2), (3, 5, 2), (1, 1, 7)):
        values, offsets = torch.randn(sum(lengths), 8), F.pad(torch.tensor(lengths).cumsum(0), (1, 0))
        torch.testing.assert_close(run(values, offsets), program(values, offsets))


def test_gradients_of_attention():
    def program(values, offsets):
        x = nested_tensor_from_jagged(values, offsets).unflatten(-1, [2, 4])
        return F.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (x, x.sin(), x.cos()))).values()

    run, said = compiled(program)
    for lengths in LENGTHS:
        values = torch.randn(sum(lengths), 8, dtype=torch.float64, requires_grad=True)
        offsets = F.pad(torch.tensor(lengths).cumsum(0), (1, 0))
        each = [v.unflatten(-1, [2, 4]).transpose(0, 1) for v in values.split(lengths)]
        wanted = torch.cat([F.scaled_dot_product_attention(t, t.sin(), t.cos()) for t in each], 1)
        given = run(values, offsets)
        torch.testing.assert_close(given, wanted)
        pair = [torch.autograd.grad(one.sin().sum(), values)[0] for one in (given, wanted)]
        torch.testing.assert_close(*pair)
    assert not said.breaks


@pytest.mark.parametrize("options", [{"is_causal": True}, {"dropout_p": 0.5}], ids=str)
def test_other_attention_is_left_to_pytorch(options):
    run, said = compiled(lambda q: F.scaled_dot_product_attention(q, q, q, **options))
    torch.manual_seed(0)
    q = heads((3, 5, 2))
    with contextlib.suppress(RuntimeError):
        torch.manual_seed(1)
        wanted = F.scaled_dot_product_attention(q, q, q, **options)
        torch.manual_seed(1)
        assert_same(run(q), wanted)
        return
    with pytest.raises(RuntimeError):
        run(q)


# ---- what changes from call to call


def test_few_graphs_for_all_lengths():
    run, said = compiled(lambda x: F.layer_norm(x, (8,)).softmax(1).sum(1))
    for seed in range(12):
        torch.manual_seed(seed)
        lengths = torch.randint(1, 12, (int(torch.randint(2, 9, ())),)).tolist()
        x = jagged(lengths)
        torch.testing.assert_close(run(x), F.layer_norm(x, (8,)).softmax(1).sum(1))
    assert len(said.graphs) <= 3


def test_a_change_of_the_ragged_dimension_is_guarded():
    def program(x):
        return x._ragged_idx, x * 2

    run, _ = compiled(program)
    x = jagged((3, 5, 2))
    for each in (x, x.transpose(1, 2), with_holes((3, 5, 2)), jagged((3, 5, 2), requires_grad=True), x):
        dim, result = run(each)
        assert dim == each._ragged_idx
        torch.testing.assert_close(result._values.detach(), each._values.detach() * 2)
        assert result.requires_grad == each.requires_grad
        assert (result.lengths() is None) == (each.lengths() is None)


def test_features_that_change():
    def program(x):
        return x._strides[1], torch.softmax(x, 1) * x.size(-1), x.transpose(1, 2)

    run, _ = compiled(program)
    for lengths, features in (((3, 5, 2), 8), ((7, 2, 4), 12), ((4, 4), 16), ((9, 1, 3), 10)):
        x = jagged(lengths, (features,))
        assert_same(run(x), program(x))


aten = torch.ops.aten
DIRECT = {
    "rows": lambda x, o: aten._jagged_to_padded_dense_forward(x * 2, [o], [5], 0.5),
    "rows of more dimensions": lambda x, o: aten._jagged_to_padded_dense_forward(x.view(-1, 2, 4) * 2, [o], [5], 0.5),
    "sequences": lambda x, o: aten._padded_dense_to_jagged_forward(x.expand(3, 10, 8) * 2, [o], 10),
    "sequences of unknown length": lambda x, o: aten._padded_dense_to_jagged_forward(x.expand(3, 10, 8) * 2, [o]),
    "two dimensions": lambda x, o: aten._jagged_to_padded_dense_forward(x * 2, [o, torch.arange(11)], [5, 2], 0.5),
}


@pytest.mark.parametrize("name", DIRECT)
def test_kernels_for_padding_called_by_the_program(name):
    run, _ = compiled(DIRECT[name])
    arguments = torch.randn(10, 8), torch.tensor([0, 3, 8, 10])
    try:
        wanted = DIRECT[name](*arguments)
    except RuntimeError as error:
        with pytest.raises(RuntimeError) as raised:
            run(*arguments)
        assert str(raised.value) == str(error)
    else:
        torch.testing.assert_close(run(*arguments), wanted)
