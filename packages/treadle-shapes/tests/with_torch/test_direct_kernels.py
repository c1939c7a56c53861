"""Direct fake kernels: the metadata of eager's results."""

from __future__ import annotations

import itertools

import pytest

torch = pytest.importorskip("torch")

from treadle_shapes import ShapeEnv  # noqa: E402
from treadle_shapes.torch import direct_kernels, fake_shape_env, fake_tensor, static_kernels  # noqa: E402
from treadle_shapes.torch.fake_tensors import fake_like, fake_mode  # noqa: E402

aten = torch.ops.aten
INPUTS = {
    "one value per channel": torch.randn(2, 3),
    "one image": torch.randn(1, 3, 1, 2),
    "contiguous": torch.randn(2, 3, 4, 5),
    "channels last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "sequence": torch.randn(2, 3, 7),
    "transposed": torch.randn(2, 7, 3).transpose(1, 2),
    "turned": torch.randn(3, 2, 4, 5).transpose(0, 1),
    "volume": torch.randn(2, 3, 2, 2, 2),
    "part": torch.randn(2, 3, 4, 9)[..., ::2],
    "double": torch.randn(2, 3, 4, 5, dtype=torch.float64),
}
CALLS = {
    "inference": (aten.native_batch_norm.default, (False, 0.1, 1e-5)),
    "no training": (aten._native_batch_norm_legit_no_training.default, (0.1, 1e-5)),
    "training": (aten.native_batch_norm.default, (True, 0.1, 1e-5)),
    "functional": (aten._native_batch_norm_legit_functional.default, (True, 0.1, 1e-5)),
}


def metadata(results):
    return [(t.shape, t.stride(), t.dtype, t.device) for t in results]


@pytest.mark.parametrize(("name", "call", "affine"), list(itertools.product(INPUTS, CALLS, [True, False])))
def test_batch_norm_has_the_metadata_of_eager(name, call, affine, monkeypatch):
    op, rest = CALLS[call]
    x = INPUTS[name]
    ones = torch.ones(3, dtype=x.dtype)
    args = (x, *[ones if affine else None] * 2, torch.zeros_like(ones), torch.ones_like(ones), *rest)
    mode = fake_mode()
    fakes = [fake_like(mode, a) if isinstance(a, torch.Tensor) else a for a in args]
    answered = []
    kernel = direct_kernels.KERNELS[op]
    monkeypatch.setitem(direct_kernels.KERNELS, op, lambda *given: answered.append(kernel(*given)) or answered[-1])
    monkeypatch.setattr(static_kernels, "answer", lambda *_: None)  # which is asked first
    mode.cache_clear()
    with mode:
        result = op(*fakes)
    assert answered and answered[0] is not NotImplemented
    assert metadata(result) == metadata(op(*args))
    assert [f._version for f in fakes[3:5]] == [a._version for a in args[3:5]]


def test_double_statistics_of_floats_are_left_to_pytorch():
    mode = fake_mode()
    x, mean, var = (fake_like(mode, t) for t in (INPUTS["contiguous"], torch.zeros(3).double(), torch.ones(3).double()))
    assert direct_kernels._native(mode, x, None, None, mean, var, True, 0.1, 1e-5) is NotImplemented


def test_statistics_of_another_size_are_left_to_pytorch():
    mode = fake_mode()
    x, mean, var = (fake_like(mode, t) for t in (INPUTS["contiguous"], torch.zeros(4), torch.ones(4)))
    with mode, pytest.raises(RuntimeError):
        aten.native_batch_norm.default(x, None, None, mean, var, False, 0.1, 1e-5)


@pytest.mark.parametrize("name", ["mm", "addmm", "mv", "addbmm", "linear"])
def test_products_of_different_dtypes_raise_as_in_eager(name):
    matrix, vector, batch = torch.ones(2, 2), torch.ones(2), torch.ones(1, 2, 2)
    shapes = {"mm": (matrix, matrix), "addmm": (matrix,) * 3, "mv": (matrix, vector), "addbmm": (matrix, batch, batch)}
    given = shapes.get(name, (matrix, matrix))
    op = getattr(aten, name).default
    for position in range(len(given)):
        args = [t.double() if k == position else t for k, t in enumerate(given)]
        mode = fake_mode()
        fakes = [fake_like(mode, t) for t in args]
        with pytest.raises(RuntimeError):
            op(*args)
        with mode, pytest.raises(RuntimeError):
            op(*fakes)
        with mode:
            op(*[fake_like(mode, t) for t in given])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("parameters", ["low", "float32"])
def test_running_statistics_keep_their_dtype(dtype, parameters):
    x, own = torch.randn(4, 5, 6, 7, dtype=dtype), dtype if parameters == "low" else torch.float32
    tensors = [torch.rand(5, dtype=own) for _ in range(4)]
    functional, updating = (
        aten._native_batch_norm_legit_functional.default,
        aten._batch_norm_with_update_functional.default,
    )
    calls = (functional, (True, 0.1, 1e-5)), (functional, (False, 0.1, 1e-5)), (updating, (0.1, 1e-5))
    for call, rest in calls:
        mode = fake_mode()
        fakes = [fake_like(mode, t) for t in (x, *tensors)]
        with mode:
            found = call(*fakes, *rest)
        assert [t.dtype for t in found] == [t.dtype for t in call(x, *tensors, *rest)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("parameters", ["low", "float32", "none"])
def test_statistics_of_a_batch_have_the_dtype_of_eager(dtype, parameters):
    x, own = torch.randn(4, 5, 6, 7, dtype=dtype), dtype if parameters == "low" else torch.float32
    weights = [None if parameters == "none" else torch.rand(5, dtype=own) for _ in range(2)]
    mode = fake_mode()
    fakes = [None if t is None else fake_like(mode, t) for t in (x, *weights)]
    without = aten._native_batch_norm_legit.no_stats
    for call, rest in ((aten.native_batch_norm.default, (None, None, True, 0.1, 1e-5)), (without, (True, 0.1, 1e-5))):
        with mode:
            found = call(*fakes, *rest)
        assert metadata(found) == metadata(call(x, *weights, *rest))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_on_cuda_statistics_of_low_precision_are_saved_in_float32(dtype):
    mode = fake_mode()
    with mode:
        x, own = torch.empty(4, 5, 6, dtype=dtype, device="cuda"), torch.empty(5, dtype=dtype, device="cuda")
        parameters = (own, own, own, own)
        results = [
            aten.native_batch_norm.default(x, *parameters, False, 0.1, 1e-5),
            aten._native_batch_norm_legit_no_training.default(x, *parameters, 0.1, 1e-5),
            aten.native_batch_norm.default(x, *parameters, True, 0.1, 1e-5),
            aten._native_batch_norm_legit_functional.default(x, *parameters, True, 0.1, 1e-5),
            aten._batch_norm_with_update_functional.default(x, *parameters, 0.1, 1e-5),
        ]
    for out, mean, deviation, *rest in results:
        assert out.dtype is dtype and [(t.dtype, t.shape) for t in (mean, deviation)] == [(torch.float32, (5,))] * 2
        assert [t.dtype for t in rest[-2:]] == [dtype] * len(rest[-2:])


@pytest.mark.parametrize(
    ("wanted", "affine"), list(itertools.product([(True, True, True), (True, False, False)], [True, False]))
)
@pytest.mark.parametrize("name", ["contiguous", "turned", "part", "double"])
@pytest.mark.parametrize("is_turned", [True, False])
def test_gradients_of_layer_norm_have_the_metadata_of_eager(name, wanted, affine, is_turned):
    x = INPUTS[name]
    grad = torch.ones_like(x.transpose(0, 1)).contiguous().transpose(0, 1) if is_turned else torch.ones_like(x)
    weight, bias = (torch.ones(x.shape[-1], dtype=x.dtype) for _ in range(2)) if affine else (None, None)
    shape = [x.shape[-1]]
    _, mean, rstd = aten.native_layer_norm.default(x, shape, weight, bias, 1e-5)
    arguments = [grad, x, shape, mean, rstd, weight, bias, [w and (affine or k == 0) for k, w in enumerate(wanted)]]
    mode = fake_mode()
    given = [fake_like(mode, a) if isinstance(a, torch.Tensor) else a for a in arguments]
    eager, fake = (aten.native_layer_norm_backward.default(*a) for a in (arguments, given))
    assert [t is None for t in eager] == [t is None for t in fake]
    assert metadata(t for t in eager if t is not None) == metadata(t for t in fake if t is not None)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bfloat16])
def test_casts_of_symbolic_numbers_are_tensors(dtype):
    env = ShapeEnv()
    mode = fake_mode(shape_env=fake_shape_env(env))
    x = fake_tensor(mode, torch.ones(5), [env.create_symbol(5, "n")])
    with mode:
        made = aten._to_copy.default(x.shape[0], dtype=dtype)
    assert metadata([made]) == metadata([torch.tensor(5, dtype=dtype)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "norm",
    [
        lambda x: torch.group_norm(x, 1),
        lambda x: torch.native_batch_norm(x, None, None, None, None, True, 0.1, 1e-5),
        lambda x: torch.batch_norm(
            x, None, None, x.new_zeros(x.shape[1]), x.new_ones(x.shape[1]), False, 0.1, 1e-5, False
        ),
    ],
)
@pytest.mark.parametrize(
    ("sizes", "strides"),
    [
        ((1, 16, 8, 8), (16, 1, 128, 16)),
        ((1, 16, 8, 8), (1024, 1, 128, 16)),
        ((1, 4, 4, 4, 4), (4, 1, 64, 16, 4)),
        ((2, 1, 8, 8), (64, 1, 8, 1)),
        ((2, 16, 8, 8), (1024, 1, 128, 16)),
        ((2, 16, 4, 4), (1, 2, 128, 32)),
    ],
)
def test_layouts_of_norms_of_images(sizes, strides, norm, dtype):
    x = torch.zeros(2048, dtype=dtype).as_strided(sizes, strides)
    expected = norm(x)
    with fake_mode() as mode:
        result = norm(fake_like(mode, x))
    for have, want in zip(*(r if isinstance(r, tuple) else (r,) for r in (result, expected)), strict=True):
        assert (have.shape, have.stride(), have.dtype) == (want.shape, want.stride(), want.dtype)
