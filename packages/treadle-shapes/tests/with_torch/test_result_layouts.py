"""Results of operators lie in memory as eager's do, however the operands lie."""

from __future__ import annotations

import random

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402, N812 (the name everybody knows)

from treadle_shapes.torch.fake_tensors import fake_mode  # noqa: E402

NAMES = "abs neg exp relu sigmoid sin sqrt floor erf log isnan signbit logical_not digamma frac sgn i0 sinc logit"
UNARY = {name: getattr(torch, name) for name in NAMES.split()} | {
    "silu": F.silu,
    "gelu": F.gelu,
    "elu": F.elu,
    "celu": F.celu,
    "softplus": F.softplus,
    "leaky_relu": F.leaky_relu,
    "clamp": lambda x: x.clamp(0, 1),
    "a number behind": lambda x: x + 1,
    "a number before": lambda x: 1 - x,
    "power": lambda x: x**2,
    "power of a number": lambda x: 2**x,
    "remainder": lambda x: x % 2,
    "comparison": lambda x: x > 0,
    "number without dimensions": lambda x: x * torch.tensor(2.0),
    "isin": lambda x: torch.isin(x, torch.arange(30.0)),
    "poisson": torch.poisson,
    "normal": lambda x: torch.normal(x, 1.0),
    "rrelu": lambda x: F.rrelu(x, training=True),
}
NAMES = """add mul div floor_divide remainder fmod pow maximum fmax atan2 hypot copysign logaddexp logaddexp2 xlogy heaviside eq lt
logical_and logical_xor nextafter complex isclose"""
BINARY = {name: getattr(torch, name) for name in NAMES.split()} | {
    "where": lambda a, b: torch.where(a > 1, a, b),
    "lerp": lambda a, b: torch.lerp(a, b, 0.5),
    "addcmul": lambda a, b: torch.addcmul(a, b, b),
    "clamp_min": lambda a, b: torch.clamp(a, min=b, max=b),
    "bits": lambda a, b: (a > 1) & (b > 1),
    "xlog1py": torch.special.xlog1py,
    "normal": lambda a, b: torch.normal(a, b),
}


def tensor(chosen, shape):
    """A tensor whose dimensions lie in any order, some of them expanded, some with gaps."""
    order = chosen.sample(range(len(shape)), len(shape)) if chosen.random() < 0.6 else list(range(len(shape)))
    expanded = [chosen.random() < 0.15 for _ in shape]
    steps = [2 if chosen.random() < 0.15 else 1 for _ in shape]
    memory = torch.rand([1 if expanded[d] else shape[d] * steps[d] for d in order]) + 0.5
    whole = memory.permute([order.index(d) for d in range(len(shape))])
    return whole[tuple(slice(None, None, step) for step in steps)].expand(shape)


def operand(chosen, shape):
    sizes = [1 if chosen.random() < 0.25 else size for size in shape]
    return tensor(chosen, sizes[chosen.randrange(len(sizes)) :] if chosen.random() < 0.2 else sizes)


def compare(function, arguments):
    try:
        expected = function(*arguments)
    except RuntimeError:
        return
    mode = fake_mode()
    with mode:
        found = function(*[mode.from_tensor(argument) for argument in arguments])
    layouts = [(argument.shape, argument.stride()) for argument in arguments]
    assert (found.shape, found.stride(), found.dtype) == (expected.shape, expected.stride(), expected.dtype), layouts


def shapes(chosen):
    for dims in (1, 2, 2, 3, 3, 3, 4, 4, 4, 5):
        yield [chosen.choice((1, 2, 3)) for _ in range(dims)]


@pytest.mark.parametrize("name", UNARY)
def test_of_one_tensor(name):
    chosen = random.Random(name)
    for shape in shapes(chosen):
        compare(UNARY[name], [tensor(chosen, shape)])


@pytest.mark.parametrize("name", BINARY)
def test_of_two_tensors(name):
    chosen = random.Random(name)
    for shape in shapes(chosen):
        compare(BINARY[name], [operand(chosen, shape), operand(chosen, shape)])


DTYPES = (torch.float32, torch.float64, torch.int64, torch.bool, torch.float16, torch.complex64)


@pytest.mark.parametrize("name", sorted(BINARY.keys() - {"normal"}))
def test_of_two_dtypes(name):
    chosen = random.Random(name)
    for shape in shapes(chosen):
        operands = [operand(chosen, shape) for _ in range(2)]
        compare(BINARY[name], [_of_dtype(x, chosen.choice(DTYPES)) for x in operands])


def _of_dtype(x, dtype):
    """A tensor of another dtype in the same layout."""
    return torch.ones(x.untyped_storage().nbytes() // 4, dtype=dtype).as_strided(x.shape, x.stride())


def test_of_an_expanded_gradient_and_complex_numbers():
    compare(
        torch.mul, [torch.ones(()).expand(5, 6, 4), torch.empty_strided((5, 6, 4), (6, 1, 30), dtype=torch.complex64)]
    )


def test_of_channels_last_images_of_one_pixel():
    x = torch.ones(2, 3, 1, 1).to(memory_format=torch.channels_last)
    compare(torch.cos, [x])
    compare(lambda a: a + 1, [x])
    compare(torch.mul, [x, torch.ones(3, 1, 1)])
