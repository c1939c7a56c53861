"""Fake kernels for constant sizes against eager: sizes, strides, dtypes and errors."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

from treadle_shapes.torch import fake_like, fake_mode, static_calls, static_kernels, symbolic_dispatch  # noqa: E402

aten = torch.ops.aten

BINARY = [aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor, aten.maximum.default, aten.lt.Tensor]
BINARY += [aten.pow.Tensor_Tensor, aten.fmod.Tensor, aten.atan2.default, aten.eq.Tensor, aten.logical_and.default]
UNARY = [aten.relu.default, aten.gelu.default, aten.hardswish.default, aten.sigmoid.default, aten.neg.default]
UNARY += [aten.exp.default, aten.isnan.default, aten.logical_not.default, aten.rsqrt.default, aten.silu.default]
WITH_NUMBER = [aten.add.Scalar, aten.mul.Scalar, aten.pow.Tensor_Scalar, aten.ge.Scalar, aten.leaky_relu.default]
IN_PLACE = [aten.add_.Tensor, aten.mul_.Tensor, aten.div_.Tensor, aten.maximum.default]
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool]


@pytest.fixture(autouse=True)
def _nothing_known() -> Any:
    static_calls.forget_all()
    yield
    static_calls.forget_all()


def described(value: Any) -> Any:
    """What a fake kernel tells of a result."""
    if isinstance(value, torch.Tensor):
        return tuple(value.shape), value.stride(), value.storage_offset(), value.dtype, value.device.type
    if isinstance(value, (tuple, list)):
        return tuple(map(described, value))
    return value


def answer_in(mode: Any, func: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> Any:
    """What the mode answers, or that it raises."""
    fakes: dict[int, torch.Tensor] = {}

    def fake(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            if id(value) not in fakes:
                fakes[id(value)] = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)
            return fakes[id(value)]
        return [fake(item) for item in value] if isinstance(value, list) else value

    with mode:
        given = [fake(arg) for arg in args]
        try:
            return described(func(*given, **kwargs))
        except Exception as error:
            return "raises", type(error).__name__ != "InternalError"


def is_tensor(description: Any) -> bool:
    return isinstance(description, tuple) and len(description) == 5 and isinstance(description[0], tuple)


def check(func: Callable[..., Any], args: list[Any], kwargs: dict[str, Any] | None = None) -> None:
    """Treadle's fake mode answers as eager does; where it does not, as PyTorch's mode, which nothing here makes worse."""
    try:
        wanted = described(func(*args, **(kwargs or {})))
    except Exception:
        wanted = "raises", True
    found = answer_in(fake_mode(), func, args, kwargs or {})
    if found != wanted:
        theirs = answer_in(FakeTensorMode(), func, args, kwargs or {})
        if is_tensor(found) and is_tensor(theirs) and (not is_tensor(wanted) or found[:2] == wanted[:2]):
            theirs = (theirs[0], found[1], *theirs[2:])  # the strides are eager's, or nothing tells them
        assert found == theirs, (func, [described(arg) for arg in args], found, wanted)


def drawn(rng: random.Random, dims: int, dtype: torch.dtype) -> torch.Tensor:
    """A tensor with sizes of 1 to 3, in some order of its dimensions, some of them expanded, cut or of size 0."""
    sizes = [rng.choice((1, 2, 2, 3, 3)) for _ in range(dims)]
    if rng.random() < 0.05 and sizes:
        sizes[rng.randrange(dims)] = 0
    made = torch.ones(sizes, dtype=dtype)
    if dims > 1 and rng.random() < 0.5:
        order = rng.sample(range(dims), dims)
        made = torch.ones([sizes[d] for d in order], dtype=dtype).permute([order.index(d) for d in range(dims)])
    if dims and rng.random() < 0.1:
        made = torch.ones([2 * n for n in sizes], dtype=dtype)[tuple(slice(None, None, 2) for _ in sizes)]
    if dims == 4 and rng.random() < 0.3:
        made = made.to(memory_format=torch.channels_last)
    return made


def broadcast_to(rng: random.Random, t: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A tensor that broadcasts with `t`: of the same layout, of fewer dimensions, or with sizes of 1."""
    if rng.random() < 0.4:
        return torch.empty_strided(t.shape, t.stride(), dtype=dtype).fill_(1)
    sizes = [1 if rng.random() < 0.3 else n for n in t.shape][rng.randrange(t.dim() + 1) :]
    made = torch.ones(sizes, dtype=dtype)
    return made.transpose(0, 1).contiguous().transpose(0, 1) if len(sizes) > 1 and rng.random() < 0.3 else made


@pytest.mark.parametrize("seed", range(12))
def test_pointwise_operators_have_the_layout_and_dtype_of_eager(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(150):
        first = drawn(rng, rng.randrange(5), rng.choice(DTYPES))
        other = broadcast_to(rng, first, first.dtype if rng.random() < 0.7 else rng.choice(DTYPES))
        operands = [first, other] if rng.random() < 0.7 else [other, first]
        check(rng.choice(BINARY), operands)
        check(rng.choice(UNARY), [first])
        check(rng.choice(WITH_NUMBER), [first, rng.choice((2, 0.5, True, -1))])
        check(aten.where.self, [broadcast_to(rng, first, torch.bool), *operands])
        check(rng.choice(IN_PLACE), operands)


VIEWS: list[Callable[[random.Random, torch.Tensor], Any]] = [
    lambda rng, t: aten.view.default(t, [-1]),
    lambda rng, t: aten.view.default(t, [*t.shape[:1], -1]),
    lambda rng, t: aten._unsafe_view.default(t, [t.numel()]),
    lambda rng, t: aten.permute.default(t, rng.sample(range(t.dim()), t.dim())),
    lambda rng, t: aten.transpose.int(t, rng.randrange(-4, 4), rng.randrange(-4, 4)),
    lambda rng, t: aten.unsqueeze.default(t, rng.randrange(-5, 5)),
    lambda rng, t: aten.squeeze.dim(t, rng.randrange(-4, 4)),
    lambda rng, t: aten.squeeze.default(t),
    lambda rng, t: aten.slice.Tensor(
        t, rng.randrange(-4, 4), rng.randrange(-3, 3), rng.randrange(-3, 5), rng.choice((1, 2))
    ),
    lambda rng, t: aten.select.int(t, rng.randrange(-4, 4), rng.randrange(-3, 3)),
    lambda rng, t: aten.expand.default(t, [2, *t.shape]),
    lambda rng, t: aten.expand.default(t, [-1 if n > 1 else 3 for n in t.shape]),
    lambda rng, t: aten.split.Tensor(t, rng.randrange(0, 3), rng.randrange(-4, 4)),
    lambda rng, t: aten.unbind.int(t, rng.randrange(-4, 4)),
    lambda rng, t: aten.diagonal.default(t, rng.randrange(-2, 3), rng.randrange(4), rng.randrange(4)),
    lambda rng, t: aten.unfold.default(t, rng.randrange(4), rng.randrange(1, 3), rng.randrange(1, 3)),
    lambda rng, t: aten.as_strided.default(t, [2, 2], [1, 1]),
    lambda rng, t: aten.t.default(t),
    lambda rng, t: aten.detach.default(t),
    lambda rng, t: aten.clone.default(t),
    lambda rng, t: aten.clone.default(t, memory_format=torch.contiguous_format),
]


@pytest.mark.parametrize("seed", range(8))
def test_views_and_copies_have_the_layout_of_eager(seed: int) -> None:
    rng = random.Random(seed)
    for number in range(400):
        view = VIEWS[number % len(VIEWS)]
        base = drawn(rng, rng.randrange(1, 5), rng.choice(DTYPES))
        choice = rng.random()
        check(lambda t, view=view, choice=choice: view(random.Random(choice), t), [base])


@pytest.mark.parametrize("seed", range(4))
def test_views_have_the_same_layout_while_sizes_are_symbolic(seed: int) -> None:
    """PyTorch's Python kernels, which symbolic sizes need, do not answer calls with constant sizes."""
    rng = random.Random(seed)
    for number in range(200):
        view, choice = VIEWS[number % len(VIEWS)], rng.random()
        base = drawn(rng, rng.randrange(2, 5), torch.float32)[..., :1, :]
        call = lambda t, view=view, choice=choice: view(random.Random(choice), t)  # noqa: E731
        wanted = answer_in(fake_mode(), call, [base], {})
        static_calls.forget_all()
        with symbolic_dispatch():
            assert answer_in(fake_mode(), call, [base], {}) == wanted, (view, described(base))


@pytest.mark.parametrize("seed", range(6))
def test_convolutions_have_the_layout_of_eager(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(40):
        groups = rng.choice((1, 1, 2))
        image = torch.randn(rng.choice((1, 2)), 4, rng.choice((4, 5)), rng.choice((1, 5)))
        transposed = rng.random() < 0.25
        kernel = rng.choice(((1, 1), (3, 3), (3, 1), (2, 2)))
        weight = torch.randn(4, 6 // groups, *kernel) if transposed else torch.randn(6, 4 // groups, *kernel)
        image, weight = (t.to(memory_format=torch.channels_last) if rng.random() < 0.4 else t for t in (image, weight))
        bias = torch.randn(6) if rng.random() < 0.5 else None
        options = [[rng.choice((1, 2))] * 2, [rng.choice((0, 1))] * 2, [1, 1], transposed, [0, 0], groups]
        check(aten.convolution.default, [image, weight, bias, *options])
        try:
            grad = aten.convolution.default(image, weight, bias, *options)
        except RuntimeError:
            continue
        sizes = None if bias is None else [6]
        mask = [rng.random() < 0.8, True, bias is not None]
        check(aten.convolution_backward.default, [torch.ones_like(grad), image, weight, sizes, *options, mask])


@pytest.mark.parametrize("seed", range(4))
def test_sums_norms_and_products_have_the_layout_of_eager(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(100):
        dtype = rng.choice((torch.float32, torch.float64, torch.bfloat16))
        x = drawn(rng, rng.randrange(2, 5), dtype)
        dims = rng.sample(range(-x.dim(), x.dim()), rng.randrange(1, 3))
        check(rng.choice((aten.sum.dim_IntList, aten.mean.dim)), [x, dims, rng.random() < 0.5])
        check(aten.sum.dim_IntList, [x.long(), dims])
        if x.numel() == 0:
            continue
        rows = list(x.shape[-rng.randrange(1, 3) :])
        check(aten.native_layer_norm.default, [x, rows, torch.ones(rows, dtype=dtype), None, 1e-5])
        numbers = [torch.ones(x.shape[1], dtype=dtype) for _ in range(4)]
        if dtype is not torch.bfloat16 and 1 not in x.shape:  # others are PyTorch's business, see test_direct_kernels
            check(aten.native_batch_norm.default, [x, *numbers, True, 0.1, 1e-5])
            check(aten._native_batch_norm_legit_functional.default, [x, *numbers, True, 0.1, 1e-5])
        a, b = torch.ones(rng.randrange(1, 3), 3, dtype=dtype), torch.ones(3, rng.randrange(1, 3), dtype=dtype)
        check(aten.mm.default, [a, b if rng.random() < 0.8 else b.t()])
        check(aten.addmm.default, [torch.ones(b.shape[rng.randrange(2)], dtype=dtype), a, b])
        check(aten.mm.default, [a, b.double()])


def test_a_dtype_learnt_for_numbers_of_one_type_is_not_that_of_another() -> None:
    whole = torch.ones(2, 3, dtype=torch.int64)
    for number in (2, 0.5, True, 2, 0.5):
        check(aten.mul.Scalar, [whole, number])
        check(aten.mul.Scalar, [torch.ones(4, dtype=torch.bool), number])
    for dtype in (torch.float32, torch.float64):
        check(aten.add.Tensor, [torch.ones(2, 3), torch.ones((), dtype=dtype)])
        check(aten.add.Tensor, [torch.ones(2, 3), torch.ones(3, dtype=dtype)])


def test_what_repeats_with_other_sizes_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    mode = fake_mode()
    asked: list[Any] = []
    dispatch = type(mode)._dispatch_impl
    monkeypatch.setattr(type(mode), "_dispatch_impl", lambda *args: (asked.append(args[1]), dispatch(*args))[1])
    for n in (3, 5, 7):
        x = fake_like(mode, torch.ones(n, 4))
        with mode:
            assert aten.mul.Tensor(x, x).shape == (n, 4)
            assert aten.view.default(x, [-1]).shape == (4 * n,)
            assert aten.exp_.default(x) is x
    assert asked == [aten.mul.Tensor, aten.exp_.default]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.masked_fill(x > 1, 2.0),
        lambda x: x.masked_fill(x > 1, torch.tensor(2.0)),
        lambda x: torch.mvlgamma(x, 2),
        lambda x: 2**x,
    ],
)
def test_results_in_another_layout_than_the_tensors(function: Callable[..., Any]) -> None:
    for make in (lambda: torch.ones(4, 5), lambda: torch.ones(5, 4).t(), lambda: torch.ones(4, 5)):
        x, mode = make(), fake_mode()
        with mode:
            found = function(fake_like(mode, x))
        assert found.stride() == function(x).stride()


def test_what_is_refused_in_place_is_refused_again() -> None:
    for _ in range(2):
        check(aten.bitwise_and_.Tensor, [torch.ones(2, 3), torch.ones(2, 3)])
        check(aten.add_.Tensor, [torch.ones(1, 3), torch.ones(2, 3)])
        check(aten.add_.Tensor, [torch.ones(2, 3), torch.ones(1, 3)])


def test_operators_with_a_fake_kernel_of_their_own_are_left_to_it() -> None:
    assert not static_kernels.is_answered_by_cpp(aten.roll.default)
    assert not static_kernels.is_answered_by_cpp(aten.view.dtype)
    check(aten.roll.default, [torch.ones(3, 2).t(), [1], [0]])
    check(aten.view.dtype, [torch.ones(3, 4), torch.int32])
    check(aten.view.dtype, [torch.ones(3, 4), torch.int16])


def test_what_autograd_sees_is_left_to_pytorch() -> None:
    mode = fake_mode()
    leaf = fake_like(mode, torch.ones(2, 3)).requires_grad_()
    with mode:
        view = torch.ops.aten.alias(leaf)
        assert view.requires_grad and view.grad_fn is not None and view._is_view()
        with pytest.raises(RuntimeError, match="leaf"):
            view.add_(1)
    assert static_kernels.answer(mode, aten.alias.default, (leaf,), {}, [leaf]) is None
    with torch.no_grad():
        assert static_kernels.answer(mode, aten.alias.default, (leaf,), {}, [leaf]) is not None
