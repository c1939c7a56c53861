"""Formulas against the real operators on random layouts, and against PyTorch's fake kernels with dynamic sizes."""

from __future__ import annotations

import operator
import random

import pytest

torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

from treadle_shapes import ShapeEnv  # noqa: E402
from treadle_shapes.expr import Expr  # noqa: E402
from treadle_shapes.torch import expr_of, fake_mode, fake_shape_env, fake_tensor, symbolic_dispatch  # noqa: E402
from treadle_shapes.torch.operators.declare import DECLARED, families_with  # noqa: E402
from treadle_shapes.torch.shape_functions import number  # noqa: E402
from treadle_shapes.torch.shape_inference import Alias, Fresh, infer  # noqa: E402
from treadle_shapes.torch.size_oblivious import run_for_metadata  # noqa: E402

F = torch.nn.functional
FLOATS, INTEGERS, ANY = (torch.float32, torch.float64, torch.bfloat16), (torch.int64, torch.int32), (
    torch.float32, torch.int64, torch.bool, torch.float64)  # fmt: skip


class Draw:
    """Random arguments."""

    def __init__(self, seed):
        self.rng = random.Random(seed)

    def sizes(self, low=0, high=4):
        return [self.rng.choice([1, 2, 3, 4]) for _ in range(self.rng.randint(low, high))]

    def tensor(self, sizes, dtypes=FLOATS, dense=0.6):
        dtype = self.rng.choice(dtypes)
        t = torch.ones(sizes, dtype=dtype)
        if sizes and self.rng.random() > dense:
            order = self.rng.sample(range(len(sizes)), len(sizes))
            t = torch.ones([sizes[d] for d in order], dtype=dtype).permute([order.index(d) for d in range(len(sizes))])
            if self.rng.random() < 0.3:
                t = torch.ones([*sizes[:-1], 2 * sizes[-1]], dtype=dtype)[..., 1::2]
            elif self.rng.random() < 0.3:
                t = torch.ones([1, *sizes[1:]], dtype=dtype).expand(sizes)
        return t

    def pick(self, *values):
        return self.rng.choice(values)


def two(d):
    a = d.sizes()
    b = [d.pick(n, n, n, 1) for n in a][d.rng.randint(0, len(a)) :] if d.pick(True, True, False) else d.sizes()
    x, y = d.tensor(a, ANY), d.tensor(b, ANY)
    y = y.to(x.dtype) if d.pick(True, True, True, False) else y
    scalar = d.pick(None, None, 2, 2.5, True)
    x, y = (x, y) if d.pick(True, False) else (y, x)
    return ((x, y) if scalar is None else d.pick((x, scalar), (scalar, x))), {}


def one(d):
    return (d.tensor(d.sizes(), ANY),), {}


def linear(d):
    n, m = d.pick(1, 2, 3), d.pick(1, 4)
    bias = d.pick(None, torch.ones(m), torch.ones(m))
    return (
        d.tensor([*d.sizes(1, 3), n], (torch.float32,)),
        d.tensor([m, d.pick(n, n, n, 2)], (torch.float32,)),
        bias,
    ), {}


def addmm(d):
    n, k, m = (d.pick(1, 2, 3) for _ in range(3))
    one = (torch.float32,)
    return (d.tensor([d.pick(m, m, 1)], one), d.tensor([n, k], one), d.tensor([k, m], one)), {}


def embedding(d):
    index = d.tensor(d.sizes(), (*INTEGERS, torch.float32))
    return (index, d.tensor([3, d.pick(1, 4)]), d.pick(None, 0, 7, -1), d.pick(None, None, None, 1.0)), {}


def layer_norm(d):
    sizes = d.sizes(1)
    rows = d.pick(sizes[-1:], sizes[-1:], sizes[-2:], [2])
    x = d.tensor(sizes)
    parameters = [d.pick(None, torch.ones(rows, dtype=x.dtype), torch.ones(rows)) for _ in range(2)]
    return (x, d.pick(rows, tuple(rows)), *parameters, 1e-5), {}


def group_norm(d):
    channels = d.pick(1, 2, 4, 6)
    x = d.tensor([d.pick(1, 2, 3), channels, *d.sizes(0, 3)])
    parameters = [d.pick(None, torch.ones(channels, dtype=x.dtype), torch.ones(2)) for _ in range(2)]
    return (x, d.pick(1, 1, 2, 4), *parameters), {}


def mean(d):
    x = d.tensor(d.sizes(), ANY)
    return (x, d.pick(-1, 0, 1, [0], 9)), d.pick({}, {"keepdim": True}, {"keepdim": False})


def cat(d):
    a = d.sizes(1)
    dim = d.pick(*range(-len(a), len(a)))
    parts = []
    for _ in range(d.pick(1, 2, 3)):
        sizes = list(a)
        sizes[dim] = d.pick(1, 2, 3)
        parts.append(d.tensor(sizes, (torch.float32,), dense=0.8))
    return (d.pick(parts, tuple(parts)), dim), {}


def gather(d):
    x = d.tensor(d.sizes(1), ANY)
    index = torch.zeros([d.pick(n, n, n, 1) for n in x.shape], dtype=d.pick(torch.int64, torch.int64, torch.int32))
    return (x, d.pick(0, -1, 1), index), {}


def to(d):
    return (d.tensor(d.sizes(), ANY), d.pick(torch.float32, torch.int64, torch.bool, "cpu")), {}


def softmax(d):
    return (d.tensor(d.sizes(), ANY), d.pick(0, -1, 1, None)), d.pick({}, {"dtype": torch.float32})


def view(d):
    x = d.tensor(d.sizes())
    sizes = (
        [d.pick(n, n, -1) for n in x.shape]
        if d.pick(True, False)
        else [d.pick(1, 2, 3, 4, 6, -1) for _ in range(d.pick(1, 2, 3))]
    )
    return (x, *sizes) if d.pick(True, False) else (x, d.pick(sizes, tuple(sizes))), {}


def expand(d):
    x = d.tensor(d.sizes())
    return (x, [*d.sizes(0, 2), *[d.pick(n, -1, 3) for n in x.shape]]), {}


def dims(count):
    def make(d):
        x = d.tensor(d.sizes())
        order = (
            d.rng.sample(range(x.dim()), x.dim()) if count is None else [d.pick(0, 1, 2, -1, -2) for _ in range(count)]
        )
        return ((x, order) if count is None and d.pick(True, False) else (x, *order)), {}

    return make


def item(d):
    x = d.tensor(d.sizes(1))
    if d.pick(True, False):
        x = torch.ones([2, *x.shape], dtype=x.dtype)[1]
    parts = [d.pick(slice(None), slice(0, None), slice(1, None), slice(None, 1), slice(-1, None), slice(None, None, 2), 0, -1, 1, None,
                    None, ..., True) for _ in range(d.pick(1, 2, 3))]  # fmt: skip
    return (x, tuple(parts) if len(parts) > 1 or d.pick(True, False) else parts[0]), {}


def powers(d):
    return (d.tensor(d.sizes(), ANY), d.pick(2, 3.0, True, torch.ones(2))), {}


SAMPLES = {
    "power": powers, "linear": linear, "addmm": addmm, "embedding": embedding, "layer_norm": layer_norm, "mean": mean, "cat": cat,
    "group_norm": group_norm, "gather": gather, "convert": to, "softmax": softmax, "view": view, "expand": expand, "transpose": dims(2),
    "permute": dims(None), "permute_by": dims(None), "unsqueeze": dims(1), "getitem": item, "binary.<locals>.formula": two,
    "unary.<locals>.formula": one, "to_dtype.<locals>.formula": one, "gelu": one, "activation": one, "contiguous": one,
}  # fmt: skip


FORMULAS = {
    call_form: formula
    for family in families_with("shape_functions")
    for call_form, formula in DECLARED[family].facts["shape_functions"].items()
    if not isinstance(call_form, torch._ops.OpOverload)  # these take layouts: test_view_layouts
}


def named(target):
    return target if isinstance(target, str) else f"{getattr(target, '__module__', '') or ''}.{target.__name__}"


def run(target, args, kwargs):
    return getattr(args[0], target)(*args[1:], **kwargs) if isinstance(target, str) else target(*args, **kwargs)


def fakes(mode, args):
    return [
        mode.from_tensor(a) if isinstance(a, torch.Tensor) else type(a)(map(mode.from_tensor, a)) if is_list(a) else a
        for a in args
    ]


def is_list(a):
    return isinstance(a, (tuple, list)) and len(a) > 0 and isinstance(a[0], torch.Tensor)


def agree(found, real, position, args, value=lambda n: n):
    """`found` says what `real` is, the result of a call with `args`; `position`: of a tensor among the arguments."""
    if isinstance(found, torch.Tensor):
        return args[position(found)] is real
    sizes, strides = ([value(n) for n in numbers] for numbers in (found.sizes, found.strides))
    if (sizes, strides) != (list(real.shape), list(real.stride())):
        return False
    if isinstance(found, Fresh):
        storages = [a.untyped_storage()._cdata for a in args if isinstance(a, torch.Tensor)]
        return found.dtype is real.dtype and real.untyped_storage()._cdata not in storages
    given = args[position(found.tensor)]
    return (
        value(found.offset) == real.storage_offset()
        and given.untyped_storage()._cdata == real.untyped_storage()._cdata
        and given.dtype is real.dtype
        and given is not real
    )


def test_every_formula_is_sampled():
    assert {formula.__qualname__ for formula in FORMULAS.values()} == set(SAMPLES)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("target", FORMULAS, ids=named)
def test_on_numbers(target):
    """The real call gives what the formula says; what the real call refuses has no formula."""
    mode = FakeTensorMode()
    answered = 0
    for seed in range(40):
        args, kwargs = SAMPLES[FORMULAS[target].__qualname__](Draw(seed))
        if isinstance(target, str) and not isinstance(args[0], torch.Tensor):
            continue
        fake = fakes(mode, args)
        with torch.no_grad():
            found = infer(target, fake, kwargs)
            try:
                real = run(target, args, kwargs)
            except (RuntimeError, IndexError, TypeError, AssertionError, ValueError):
                real = None
        if found is None:
            continue
        answered += 1
        said = f"{args} {kwargs}: {found}"
        assert isinstance(real, torch.Tensor), said
        assert agree(found, real, lambda t, fake=fake: next(i for i, a in enumerate(fake) if a is t), args), (
            f"{said}, real {real}"
        )
    assert answered > 1


B, S = 4, 6


def _symbolic_calls():
    x, y, w, i = torch.rand(B, S, 8), torch.rand(S, 8), torch.rand(5, 8), torch.zeros(B, S, dtype=torch.int64)
    h = torch.rand(B, S, 2, 4)
    return {
        "linear": (F.linear, x, w, torch.rand(5)), "linear of rows": (F.linear, y, w), "addmm": (torch.addmm, torch.rand(5), y, w.t()),
        "embedding": (F.embedding, i, w, 0), "layer_norm": (F.layer_norm, x, (8,), torch.rand(8), torch.rand(8)),
        "layer_norm of columns": (F.layer_norm, torch.rand(B, 8, S).transpose(1, 2), (8,), torch.rand(8), torch.rand(8)),
        "group_norm": (F.group_norm, torch.rand(B, 8, S, S), 2, torch.rand(8), torch.rand(8)),
        "group_norm of one group": (F.group_norm, torch.rand(B, 8, S), 1),
        "add": (operator.add, x, x), "broadcast": (torch.mul, x, y), "number": (operator.truediv, x, 2), "compare": (torch.gt, x, 0),
        "gelu": (F.gelu, x), "tanh": ("tanh", x), "pow": (torch.pow, x, 2), "softmax": (F.softmax, x, -1),
        "mean": (torch.mean, x, -1, True),
        "cat": (torch.cat, [x, x], 1), "to": ("to", i, torch.float32), "same": ("to", x, torch.float32), "gather": (torch.gather, i, 1, i),
        "merge": ("view", x, -1, 8), "reshape": ("reshape", x, B, S, 2, -1), "expand": ("expand", y, B, -1, -1),
        "transpose": ("transpose", h, 1, 2), "permute": ("permute", h, 0, 2, 1, 3), "unsqueeze": (torch.unsqueeze, x, 1),
        "first": (operator.getitem, x, (slice(None), 0)), "last": (operator.getitem, x, (slice(None), -1)),
        "new": (operator.getitem, y, (None, slice(None), None)), "part": (operator.getitem, x, (..., slice(2, 5))),
        "contiguous": ("contiguous", x),
    }  # fmt: skip


@pytest.mark.parametrize("name", _symbolic_calls())
def test_on_symbols(name):
    """The fake kernel with dynamic sizes says the same and needs no guard for it."""
    target, *given = _symbolic_calls()[name]
    env = ShapeEnv()
    mode = fake_mode(shape_env=fake_shape_env(env))
    symbols = {B: env.create_symbol(B, "batch"), S: env.create_symbol(S, "length")}

    def symbolic(a):
        if isinstance(a, list):
            return [symbolic(part) for part in a]
        if isinstance(a, torch.Tensor):
            return fake_tensor(mode, a, [symbols.get(n) for n in a.shape])
        return mode.shape_env.wrap(symbols[a]) if type(a) is int and a in symbols else a

    args = [symbolic(a) for a in given]
    with torch.no_grad():
        found = infer(target, args, {})
        with mode, symbolic_dispatch():
            real = run_for_metadata(env, lambda: run(target, args, {}), (), {})
    assert not env.guards
    assert found is not None
    if isinstance(found, torch.Tensor):
        assert found is args[0] is real
        return
    assert all(isinstance(n, (int, Expr)) for n in found.sizes)
    assert [expr_of(n) for n in real.shape] == found.sizes
    assert [expr_of(n) for n in real.stride()] == found.strides
    if isinstance(found, Alias):
        assert number(real.storage_offset()) == found.offset
        assert real.untyped_storage()._cdata == args[0].untyped_storage()._cdata
    else:
        assert found.dtype is real.dtype


def _sliced(ask, size, hint):
    """(result, guards) of x[:, 0:n] with x of `size` columns."""
    env = ShapeEnv()
    mode = fake_mode(shape_env=fake_shape_env(env))
    x = fake_tensor(mode, torch.rand(2, size), [None, None])
    n = mode.shape_env.wrap(env.create_symbol(hint, "n"))
    with torch.no_grad():
        found = ask(env, mode, x, (slice(None), slice(0, n)))
    return found, [str(guard.expr) for guard in env.guards]


def test_a_slice_up_to_a_symbol_needs_the_guard_of_the_kernel():
    def by_formula(env, mode, x, index):
        return infer(operator.getitem, (x, index), {})

    def by_kernel(env, mode, x, index):
        with mode, symbolic_dispatch():
            return run_for_metadata(env, operator.getitem, (x, index), {})

    found, guards = _sliced(by_formula, 32, 8)
    real, wanted = _sliced(by_kernel, 32, 8)
    assert guards == wanted == ["s0 <= 32"]
    assert [str(n) for n in (*found.sizes, *found.strides)] == [str(expr_of(n)) for n in (*real.shape, *real.stride())]
    assert _sliced(by_formula, 32, 40) == (None, [])
    assert _sliced(by_formula, 1, 8) == (None, [])


def test_what_may_be_empty_and_what_needs_gradients_is_left_to_the_kernel():
    env = ShapeEnv()
    mode = fake_mode(shape_env=fake_shape_env(env))
    n = env.create_symbol(4, "n")
    x = fake_tensor(mode, torch.rand(4, 8), [n, None])
    with torch.no_grad():
        assert infer(torch.neg, (x,), {}) is not None
        assert infer(torch.neg, (fake_tensor(mode, torch.rand(3, 8), [n - 1, None]),), {}) is None
        assert infer(torch.neg, (fake_tensor(mode, torch.rand(0, 8), [None, None]),), {}) is None
    assert infer(torch.neg, (x,), {}) is not None
    assert infer(torch.t, (x,), {}) is None
    assert infer(torch.transpose, (x, 0, 1), {}) is None
    assert infer(torch.neg, (x.detach().requires_grad_(),), {}) is None
