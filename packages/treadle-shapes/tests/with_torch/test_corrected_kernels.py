"""Fake results of operators whose kernels in torch go wrong: as eager gives them."""

from __future__ import annotations

import itertools
import random

import pytest

from treadle_shapes import ShapeEnv, evaluate

torch = pytest.importorskip("torch")

from treadle_shapes.torch.corrected_kernels import batch_norm, view_strides  # noqa: E402
from treadle_shapes.torch.fake_tensors import fake_like, fake_mode  # noqa: E402
from treadle_shapes.torch.shape_env import expr_of, fake_shape_env, fake_tensor  # noqa: E402


@pytest.mark.parametrize("shape", [(1, 3), (1, 2, 1), (1, 2, 1, 1), (2, 3)])
def test_batch_norm_of_one_value_per_channel_has_a_fake_result(shape):
    mode = fake_mode()
    c = shape[1]

    def norm(x, mean, var):
        return torch.batch_norm(x, None, None, mean, var, True, 0.1, 1e-5, False)

    expected = norm(torch.ones(shape), torch.zeros(c), torch.ones(c))
    with mode:
        result = norm(torch.ones(shape), torch.zeros(c), torch.ones(c))
    assert (result.shape, result.stride()) == (expected.shape, expected.stride())


@pytest.mark.parametrize("shape", [(1, 3), (2, 3)])
def test_the_decomposition_counts_nan_as_eager_does(shape):
    x, stats = torch.arange(3.0 * shape[0]).view(shape), (torch.zeros(3), torch.ones(3))
    helper = torch._decomp.decompositions.native_batch_norm_helper
    mine = batch_norm(helper, x, None, None, *stats, True, 0.1, 1e-5, True)
    eager = torch.ops.aten._native_batch_norm_legit_functional(x, None, None, *stats, True, 0.1, 1e-5)
    for got, wanted in zip(mine, eager, strict=True):
        torch.testing.assert_close(got, wanted, equal_nan=True)


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("kind", [torch.nn.GRU, torch.nn.RNN, torch.nn.LSTM])
def test_recurrent_layers_draw_what_eager_draws_between_them(kind, bidirectional, batch_first):
    torch.manual_seed(0)
    rnn = kind(4, 5, 3, dropout=0.5, bidirectional=bidirectional, batch_first=batch_first)
    x = torch.randn(2, 6, 4)
    states = torch.zeros(6 if bidirectional else 3, 2 if batch_first else 6, 5)
    given = (x, (states, states) if kind is torch.nn.LSTM else states, list(rnn.parameters()), True, 3, 0.5)
    flags = (True, bidirectional, batch_first)
    function = {torch.nn.GRU: torch.gru, torch.nn.RNN: torch.rnn_tanh, torch.nn.LSTM: torch.lstm}[kind]
    overload = {
        torch.nn.GRU: torch.ops.aten.gru,
        torch.nn.RNN: torch.ops.aten.rnn_tanh,
        torch.nn.LSTM: torch.ops.aten.lstm,
    }
    decomposition = overload[kind].input.py_kernels[torch._C.DispatchKey.CompositeImplicitAutograd]
    with torch.no_grad(), fake_mode():  # a mode of ours is active; these tensors are real
        with torch._C._DisableTorchDispatch():
            torch.manual_seed(1)
            eager = function(*given, *flags)
            after = torch.get_rng_state()
            torch.manual_seed(1)
            mine = decomposition(*given, *flags)
    assert torch.equal(torch.get_rng_state(), after)
    for got, wanted in zip(mine, eager, strict=True):
        torch.testing.assert_close(got, wanted)


INPUTS = {
    "contiguous": lambda: torch.randn(3, 4, 8),
    "transposed": lambda: torch.randn(4, 3, 8).transpose(0, 1),
    "columns": lambda: torch.randn(3, 8, 4).transpose(1, 2),
    "empty": lambda: torch.randn(0, 4, 8),
}


@pytest.mark.parametrize("name", INPUTS)
def test_a_fused_encoder_layer_has_the_layout_of_eagers(name):
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    x = INPUTS[name]()
    mode = fake_mode(allow_non_fake_inputs=True)
    with torch.no_grad():
        real = layer(x)
        fake_input = fake_like(mode, x)
        with mode:
            fake = layer(fake_input)
    assert (fake.shape, fake.stride(), fake.dtype) == (real.shape, real.stride(), real.dtype)


def test_strides_of_views_are_eagers():
    generator = random.Random(0)
    possible = 0
    for _ in range(3000):
        sizes = [generator.choice([1, 1, 2, 3, 4]) for _ in range(generator.randint(1, 4))]
        order = generator.sample(range(len(sizes)), len(sizes))
        strides, step = [0] * len(sizes), 1
        for d in order:
            strides[d] = generator.choice([step, step, 7]) if sizes[d] == 1 else step
            step *= sizes[d]
        x = torch.empty_strided(sizes, strides)
        factors = [f for n in sizes for f in ((2, 2) if n == 4 else (n,))]
        cuts = sorted(generator.choices(range(len(factors) + 1), k=generator.randint(0, 3)))
        groups = itertools.pairwise([0, *cuts, len(factors)])
        target = [torch.Size(factors[a:b]).numel() for a, b in groups]
        try:
            expected = list(x.view(target).stride())
        except RuntimeError:
            expected = None
        assert view_strides(sizes, strides, target) == expected, (sizes, strides, target)
        possible += expected is not None
    assert possible > 500


def test_fake_views_have_eagers_strides():
    """Where a size is 1 its stride is free, and decides the layout of what operators give: channels-last or not."""
    mode = fake_mode()
    x = torch.randn(1, 30, 8)

    def image(x):
        y = x.transpose(1, 2).reshape(1, -1, 5, 6)
        return y, torch.nn.functional.interpolate(y, size=(10, 12), mode="bilinear")

    with mode:
        found = image(fake_like(mode, x))
    assert [t.stride() for t in found] == [t.stride() for t in image(x)]


def test_every_declared_correction_reaches_an_overload():
    from treadle_shapes.torch.corrected_kernels import kernels

    assert {
        torch.ops.aten.slice.Tensor,
        torch.ops.aten.view.default,
        torch.ops.aten.convolution.default,
    } <= kernels().keys()


@pytest.mark.parametrize("longest", (0, 3))
def test_connectionist_losses_are_as_large_as_eagers(longest):
    loss, mode = torch.ops.aten._ctc_loss, fake_mode()
    x = torch.randn(2, 6, 4).transpose(0, 1).log_softmax(-1)
    targets, lengths = torch.ones(2, 3, dtype=torch.int64), [longest, 0]
    found = loss.default(fake_like(mode, x), fake_like(mode, targets), [6, 6], lengths)
    expected = loss.default(x, targets, [6, 6], lengths)
    assert [(t.shape, t.stride()) for t in found] == [(t.shape, t.stride()) for t in expected]
    backward = torch.ops.aten._ctc_loss_backward.default
    fake = [fake_like(mode, t) for t in (torch.ones(2), x, targets)]
    found = backward(*fake, [6, 6], lengths, *found, 0)
    expected = backward(torch.ones(2), x, targets, [6, 6], lengths, *expected, 0)
    assert (found.shape, found.stride()) == (expected.shape, expected.stride())


def test_lengths_in_tensors_make_a_size_that_data_tells():
    mode = fake_mode(shape_env=fake_shape_env(ShapeEnv(), allow_dynamic_output_shape_ops=True))
    x, targets, lengths = torch.randn(6, 2, 4), torch.ones(2, 3, dtype=torch.int64), torch.tensor([6, 6])
    losses, table = torch.ops.aten._ctc_loss.Tensor(*[fake_like(mode, t) for t in (x, targets, lengths, lengths)])
    assert losses.shape == (2,)
    assert table.shape[:2] == (2, 6)
    assert isinstance(table.shape[2], torch.SymInt)


RESAMPLINGS = {
    "upsample_linear1d": 1,
    "upsample_bilinear2d": 2,
    "upsample_trilinear3d": 3,
    "upsample_bicubic2d": 2,
    "upsample_nearest1d": 1,
    "upsample_nearest2d": 2,
    "upsample_nearest3d": 3,
    "_upsample_nearest_exact3d": 3,
    "_upsample_bicubic2d_aa": 2,
}


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("name", RESAMPLINGS)
def test_gradients_of_resampling_have_the_layout_of_eager_under_symbolic_sizes(name, channels_last):
    dims = RESAMPLINGS[name]
    gradient = getattr(torch.ops.aten, f"{name}_backward").default
    flags = [False] if any(a.name == "align_corners" for a in gradient._schema.arguments) else []
    layout = {2: torch.channels_last, 3: torch.channels_last_3d}.get(dims) if channels_last else None
    grad = torch.randn(2, 3, *range(8, 8 + dims)).contiguous(memory_format=layout or torch.contiguous_format)
    rest = [*flags, *[None] * dims]
    expected = gradient(grad, grad.shape[2:], [2, 3, *range(4, 4 + dims)], *rest)
    env = ShapeEnv()
    mode = fake_mode(shape_env=fake_shape_env(env))
    symbols = [env.create_symbol(n, f"s{n}") for n in range(4, 4 + dims)]
    x = fake_tensor(mode, torch.empty(2, 3, *range(4, 4 + dims)), (None, None, *symbols))
    given = fake_like(mode, grad)
    with mode:
        result = gradient(given, grad.shape[2:], list(x.shape), *rest)
    values = {symbol: n for n, symbol in enumerate(symbols, 4)}
    found = [evaluate(expr_of(n), values) for n in (*result.shape, *result.stride())]
    assert found == [*expected.shape, *expected.stride()]
    narrow = fake_like(mode, grad[:, :2])
    with mode, pytest.raises(RuntimeError, match="same shape as output"):
        gradient(narrow, grad.shape[2:], list(x.shape), *rest)


NEAREST = {
    "upsample_nearest1d": 1,
    "upsample_nearest2d": 2,
    "upsample_nearest3d": 3,
    "_upsample_nearest_exact1d": 1,
    "_upsample_nearest_exact2d": 2,
    "_upsample_nearest_exact3d": 3,
}


@pytest.mark.parametrize(("batch", "channels"), [(0, 3), (0, 0), (2, 0)])
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("name", NEAREST)
def test_nearest_neighbours_of_no_images_are_those_of_eager_under_symbolic_sizes(name, channels_last, batch, channels):
    dims = NEAREST[name]
    op = getattr(torch.ops.aten, name).default
    layout = {2: torch.channels_last, 3: torch.channels_last_3d}.get(dims) if channels_last else None
    real = torch.empty(batch, channels, *range(4, 4 + dims), memory_format=layout or torch.contiguous_format)
    env = ShapeEnv()
    mode = fake_mode(shape_env=fake_shape_env(env))
    symbols = [env.create_symbol(n, f"s{n}") for n in range(4, 4 + dims)]
    x = fake_tensor(mode, real, (None, None, *symbols))
    target = list(range(8, 8 + dims))
    if not channels:
        with pytest.raises(RuntimeError, match="Non-empty .*D data tensor expected"):
            op(real, target, *[None] * dims)
        with mode, pytest.raises(RuntimeError, match="Non-empty .*D data tensor expected"):
            op(x, target, *[None] * dims)
        return
    expected = op(real, target, *[None] * dims)
    with mode:
        result = op(x, target, *[None] * dims)
    values = {symbol: n for n, symbol in enumerate(symbols, 4)}
    assert [evaluate(expr_of(n), values) for n in result.shape] == list(expected.shape)
    assert [evaluate(expr_of(n), values) for n in result.stride()] == list(expected.stride())


ONE_IMAGE = [
    ((1, 16, 8, 8), (16, 1, 128, 16)),  # what attention leaves: channels-last, but for the batch dimension
    ((1, 16, 8, 8), (1024, 1, 128, 16)),
    ((1, 4, 4, 4, 4), (4, 1, 64, 16, 4)),
    ((2, 1, 8, 8), (64, 1, 8, 1)),
    ((2, 3, 1, 1), (3, 1, 3, 3)),
    ((3, 1, 4), (1, 1, 3)),
    ((1, 3), (1, 1)),
]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x + 1,
        lambda x: 1 - x,
        lambda x: torch.sub(x, 2, alpha=3),
        lambda x: x * 2,
        lambda x: x / 2,
        lambda x: x > 0,
        lambda x: x.int() == 1,
        lambda x: x % 2,
        lambda x: torch.fmod(x, 2),
    ],
)
@pytest.mark.parametrize(("sizes", "strides"), ONE_IMAGE)
def test_layouts_beside_numbers(function, sizes, strides):
    x = torch.zeros(2000).as_strided(sizes, strides)
    expected = function(x)
    with fake_mode() as mode:
        result = function(fake_like(mode, x))
    assert (result.shape, result.stride(), result.dtype) == (expected.shape, expected.stride(), expected.dtype)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, dim: x.softmax(dim),
        lambda x, dim: x.sort(dim)[0],
        lambda x, dim: torch.sort(x, dim=dim, stable=True)[1],
        lambda x, dim: torch.slice_scatter(x, x, dim),
    ],
)
@pytest.mark.parametrize("shape", [(2,), (2, 3)])
@pytest.mark.parametrize("dim", [2, 7, -3])
def test_what_is_no_dimension_raises_what_eager_raises(function, shape, dim):
    x = torch.zeros(shape)
    with pytest.raises(IndexError) as expected:
        function(x, dim)
    with fake_mode() as mode, pytest.raises(IndexError) as error:
        function(fake_like(mode, x), dim)
    assert str(error.value) == str(expected.value)


@pytest.mark.parametrize("batch", [0, 1, 2])
@pytest.mark.parametrize(
    "part", [lambda t: t, lambda t: t.t(), lambda t: t[1:, 2::2], lambda t: t[0].expand(3, -1)], ids=str
)
def test_zeros_of_tangents_in_the_layout_of_a_primal_with_symbolic_sizes(part, batch):
    make = torch.ops.aten._new_zeros_with_same_feature_meta.default
    tangent, primal = torch.ones(5, 2, dtype=torch.float64), torch.ones(4, 6)
    expected = make(tangent, part(primal), self_num_batch_dims=batch)
    env = ShapeEnv()
    mode = fake_mode(shape_env=fake_shape_env(env))
    symbols = [env.create_symbol(n, f"s{n}") for n in (5, 4, 6)]
    values = dict(zip(symbols, (5, 4, 6), strict=True))
    with mode:
        result = make(
            fake_tensor(mode, tangent, (symbols[0], None)),
            part(fake_tensor(mode, primal, tuple(symbols[1:]))),
            self_num_batch_dims=batch,
        )
    found = [evaluate(expr_of(n), values) for n in (*result.shape, *result.stride(), result.storage_offset())]
    assert found == [*expected.shape, *expected.stride(), expected.storage_offset()]
    assert result.dtype == expected.dtype
    assert not env.guards or all("==" not in str(guard.expr) for guard in env.guards)


@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("find", ["unique", "unique_consecutive"])
def test_unique_slices_lie_as_the_kernel_moves_them(find, dim):
    x = torch.arange(24).reshape(2, 3, 4)
    expected = getattr(torch, find)(x, return_inverse=True, return_counts=True, dim=dim)
    mode = fake_mode(shape_env=fake_shape_env(ShapeEnv(), allow_dynamic_output_shape_ops=True))
    with mode:
        slices, *others = getattr(torch, find)(fake_like(mode, x), return_inverse=True, return_counts=True, dim=dim)
    count = expr_of(slices.shape[dim])
    found = [evaluate(expr_of(n), {count: x.shape[dim]}) for n in (*slices.shape, *slices.stride())]
    assert found == [*expected[0].shape, *expected[0].stride()]
    assert [t.dim() for t in others] == [1, 1]


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: 2**x,
        lambda x, y: 2.0**y,
        torch.floor_divide,
        lambda x, y: torch.floor_divide(x, 2),
        lambda x, y: torch.div(x, y, rounding_mode="trunc"),
        torch.copysign,
        torch.xlogy,
        lambda x, y: torch.logaddexp(x * 1.0, y),
        torch.logical_and,
        torch.logical_or,
        torch.logical_xor,
    ],
)
def test_results_lie_as_the_iteration_over_operands_in_order(function):
    row_major, turned = torch.ones(3, 4, 5), torch.ones(3, 5, 4).transpose(1, 2)
    spread, wide = torch.ones(3, 4, 5, 2)[..., 0], torch.ones(4, 1)
    every = (row_major, turned, spread, wide, turned.double(), torch.tensor(2))
    for x, y in itertools.product(every, repeat=2):
        expected, mode = function(x, y), fake_mode()
        with mode:
            found = function(fake_like(mode, x), fake_like(mode, y))
        assert (found.dtype, found.shape, found.stride()) == (expected.dtype, expected.shape, expected.stride())


def test_as_many_elements_are_selected_as_the_mask_has_after_broadcasting():
    env = ShapeEnv()
    mode = fake_mode(shape_env=fake_shape_env(env, allow_dynamic_output_shape_ops=True))
    x, mask = fake_like(mode, torch.ones(3)), fake_like(mode, torch.ones(4, 3, dtype=torch.bool))
    with mode:
        selected = torch.masked_select(x, mask)
    assert env.bounds(expr_of(selected.shape[0])) == (0, 12)


@pytest.mark.parametrize("sizes", [lambda a, b: b * (a // b), lambda a, b: a ^ b], ids=["quotient", "bits"])
@pytest.mark.parametrize("find", [torch.nonzero, lambda x: torch.masked_select(x, x > 0)], ids=["nonzero", "select"])
def test_elements_of_tensors_are_counted_whatever_operations_their_sizes_are_made_of(find, sizes):
    env = ShapeEnv()
    mode = fake_mode(shape_env=fake_shape_env(env, allow_dynamic_output_shape_ops=True))
    x, y = (fake_tensor(mode, torch.ones(n), [env.create_symbol(n, f"s{n}")]) for n in (12, 5))
    with mode:
        found = find(x.new_empty((sizes(x.shape[0], y.shape[0]),)))
    lower, _ = env.bounds(expr_of(found.shape[0]))
    assert lower == 0
