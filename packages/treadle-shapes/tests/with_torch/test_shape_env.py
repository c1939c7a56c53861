"""Fake tensors on our nodes: shapes and strides equal those of the real run, at the traced sizes and at others."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402

from treadle_shapes.env import ShapeEnv  # noqa: E402
from treadle_shapes.errors import UnbackedError  # noqa: E402
from treadle_shapes.expr import Expr, evaluate, symbol  # noqa: E402
from treadle_shapes.torch import (  # noqa: E402
    env_of,
    expr_of,
    fake_mode,
    fake_shape_env,
    fake_tensor,
    refusing_plain_numbers,
    sym_int,
    symbolic_dispatch,
)
from treadle_shapes.torch.size_oblivious import answer_size_obliviously  # noqa: E402

B, S = 4, 6  # traced sizes; the others are tried afterwards
OTHERS = [(3, 9), (7, 5), (2, 16), (1, 6), (4, 1)]


class Traced:
    """Inputs built by `make(b, s)`; dims that follow b or s are symbols."""

    def __init__(self, make):
        self.env = ShapeEnv(duck_shape=False)
        self.mode = fake_mode(shape_env=fake_shape_env(self.env))
        self.b = self.env.create_symbol(B, "batch")
        self.s = self.env.create_symbol(S, "length")
        self.inputs = []
        for at, longer, wider in zip(make(B, S), make(B, S + 1), make(B + 1, S), strict=True):
            sizes = [
                self.b if x != w else self.s + (x - S) if x != y else None
                for x, y, w in zip(at.shape, longer.shape, wider.shape, strict=True)
            ]
            self.inputs.append(fake_tensor(self.mode, at, sizes))

    def values(self, b, s):
        return {self.b: b, self.s: s}


def layout(t, values):
    def at(x):
        e = expr_of(x)
        return evaluate(e, values) if isinstance(e, Expr) else e

    return tuple(at(x) for x in t.shape), tuple(at(x) for x in t.stride())


def tensors(out):
    return [t for t in (out if isinstance(out, (tuple, list)) else (out,)) if isinstance(t, torch.Tensor)]


def check(function, make, guards=0):
    traced = Traced(make)
    with traced.mode, symbolic_dispatch():
        fake = tensors(function(*traced.inputs))
    kept, _ = traced.env.minimal_guards()
    assert len(kept) == guards, [str(g) for g in kept]
    holds = traced.env.compile_guards([traced.b, traced.s])
    assert holds(B, S)
    tried = 0
    for b, s in [(B, S), *OTHERS]:
        if not holds(b, s):
            continue
        tried += 1
        real = tensors(function(*make(b, s)))
        assert len(real) == len(fake)
        for f, r in zip(fake, real, strict=True):
            shape, stride = layout(f, traced.values(b, s))
            assert shape == tuple(r.shape)
            # Strides of dims of size 1 address nothing; eager and the general formula may differ there.
            assert all(x == y for x, y, n in zip(stride, r.stride(), r.shape, strict=True) if n > 1)
    return traced, tried


def rand(*shape):
    return torch.rand(shape)


W = torch.rand(8, 8)
SQUARE = lambda b, s: [rand(b, s, 8)]  # noqa: E731
IMAGE = lambda b, s: [rand(b, 3, 8 + s, 8)]  # noqa: E731
TWO = lambda b, s: [rand(b, s, 8), rand(b, s, 8)]  # noqa: E731


def masked_attention(q):
    mask = torch.ones(q.shape[0], 1, q.shape[2], q.shape[2], dtype=torch.bool)
    with answer_size_obliviously(
        env_of(q.shape[0]), F.scaled_dot_product_attention
    ):  # asks about a batch of 1 before torch 2.13
        return F.scaled_dot_product_attention(q, q, q, attn_mask=mask)


NO_GUARDS = {
    "add": (lambda x, y: x + y, TWO),
    "scale": (lambda x: x * 2 + 1, SQUARE),
    "add_row": (lambda x: x + torch.ones(8), SQUARE),
    "add_bias_dims": (lambda x, y: x + y, lambda b, s: [rand(b, s, 8), rand(b, 1, 8)]),
    "compare": (lambda x, y: x > y, TWO),
    "gelu": (lambda x: F.gelu(x), SQUARE),
    "where": (lambda x, y: torch.where(x > 0, x, y), TWO),
    "to": (lambda x: x.to(torch.float64), SQUARE),
    "matmul": (lambda x: x @ torch.ones(8, 5), SQUARE),
    "bmm": (lambda x, y: x @ y.transpose(1, 2), TWO),
    "linear": (lambda x: F.linear(x, torch.ones(5, 8), torch.ones(5)), SQUARE),
    "mm": (lambda x: x @ torch.ones(8, 5), lambda b, s: [rand(b, 8)]),
    "addmm": (lambda x: torch.addmm(torch.ones(5), x, torch.ones(8, 5)), lambda b, s: [rand(b, 8)]),
    "conv2d": (lambda x: F.conv2d(x, torch.ones(4, 3, 3, 3), padding=1), IMAGE),
    "conv2d_stride": (lambda x: F.conv2d(x, torch.ones(4, 3, 3, 3), stride=2, padding=1), IMAGE),
    "conv1d": (lambda x: F.conv1d(x, torch.ones(4, 3, 3), padding=1), lambda b, s: [rand(b, 3, 8 + s)]),
    "batch_norm": (lambda x: F.batch_norm(x, torch.zeros(3), torch.ones(3)), IMAGE),
    "layer_norm": (lambda x: F.layer_norm(x, (8,)), SQUARE),
    "softmax": (lambda x: F.softmax(x, -1), SQUARE),
    "softmax_dynamic": (lambda x: F.softmax(x, 1), SQUARE),
    "sum": (lambda x: x.sum(1), SQUARE),
    "mean_keep": (lambda x: x.mean((0, 1), keepdim=True), SQUARE),
    "var": (lambda x: x.var(-1), SQUARE),
    "cumsum": (lambda x: x.cumsum(1), SQUARE),
    "view": (lambda x: x.view(x.shape[0] * x.shape[1], 8), SQUARE),
    "view_minus_one": (lambda x: x.view(-1, 8), SQUARE),
    "reshape_heads": (lambda x: x.reshape(x.shape[0], x.shape[1], 2, 4).transpose(1, 2), SQUARE),
    "merge_heads": (
        lambda x: x.view(x.shape[0], x.shape[1], 2, 4).transpose(1, 2).transpose(1, 2).reshape(x.shape),
        SQUARE,
    ),
    "contiguous": (lambda x: x.transpose(1, 2).contiguous(), SQUARE),
    "flatten": (lambda x: x.flatten(1), SQUARE),
    "unsqueeze": (lambda x: x.unsqueeze(1), SQUARE),
    "squeeze_static": (lambda x: x.squeeze(2), lambda b, s: [rand(b, s, 1)]),
    "permute": (lambda x: x.permute(2, 0, 1), SQUARE),
    "t_matmul": (lambda x: x.transpose(1, 2) @ x, SQUARE),
    "expand": (lambda x: x[:, None].expand(-1, 3, -1, -1), SQUARE),
    "expand_to": (lambda x: torch.ones(1, 1, 8).expand(x.shape[0], x.shape[1], 8), SQUARE),
    "cat_static": (lambda x, y: torch.cat([x, y], 2), TWO),
    "cat_dynamic": (lambda x, y: torch.cat([x, y], 1), TWO),
    "stack": (lambda x, y: torch.stack([x, y], 1), TWO),
    "select": (lambda x: x[:, :, 0], SQUARE),
    "slice_static": (lambda x: x[:, :, 2:6], SQUARE),
    "slice_drop_first": (lambda x: x[1:], lambda b, s: [rand(8 + s, 8)]),
    "index_tensor": (lambda x: x[:, :, torch.tensor([0, 2])], SQUARE),
    "embedding": (lambda x: F.embedding(x, torch.ones(10, 8)), lambda b, s: [torch.ones(b, s, dtype=torch.long)]),
    "gather": (lambda x: x.gather(2, x.long() * 0), SQUARE),
    "chunk": (lambda x: x.chunk(2, -1), SQUARE),
    "split": (lambda x: x.split(4, -1), SQUARE),
    "arange_like": (lambda x: torch.arange(x.shape[1]), SQUARE),
    "zeros": (lambda x: torch.zeros(x.shape[0], x.shape[1] + 1), SQUARE),
    "mask": (lambda x: torch.ones(x.shape[1], x.shape[1]).tril(), SQUARE),
    "adaptive_pool": (lambda x: F.adaptive_avg_pool2d(x, 1), IMAGE),
    "sdpa": (lambda q, k: F.scaled_dot_product_attention(q, k, k), lambda b, s: [rand(b, 2, s, 8), rand(b, 2, s, 8)]),
    "max_dim": (lambda x: x.max(-1), SQUARE),
    "argmax": (lambda x: x.argmax(-1), SQUARE),
    "pad": (lambda x: F.pad(x, (1, 1)), SQUARE),
    "repeat": (lambda x: x.repeat(1, 2, 1), SQUARE),
    "flip": (lambda x: x.flip(-1), SQUARE),
    "einsum": (lambda x: torch.einsum("bsd,de->bse", x, torch.ones(8, 5)), SQUARE),
    "dropout_eval": (lambda x: F.dropout(x, 0.1, False), SQUARE),
    "group_norm": (lambda x: F.group_norm(x, 3), IMAGE),
    "interpolate": (lambda x: F.interpolate(x, scale_factor=2.0), IMAGE),
    "masked_fill": (lambda x: x.masked_fill(x > 0.5, 0.0), SQUARE),
    "causal": (lambda x: torch.full((x.shape[1], x.shape[1]), float("-inf")).triu(1) + x @ x.transpose(1, 2), SQUARE),
    "roll": (lambda x: x.roll(1, 1), SQUARE),
    "rope": (lambda x: torch.cat([-x[..., 4:], x[..., :4]], -1), SQUARE),
    "stride2": (lambda x: x[..., ::2], SQUARE),
    "stack_flat": (lambda x: torch.stack([x[..., ::2], x[..., 1::2]], -1).flatten(-2), SQUARE),
    "outer": (lambda x: torch.arange(x.shape[1])[:, None] * torch.ones(4)[None], SQUARE),
    "last": (lambda x: x[:, -1], SQUARE),
    "first": (lambda x: x[:, 0], SQUARE),
    "drop_last": (lambda x: x[:, :-1], lambda b, s: [rand(b, s + 3, 8)]),
    "topk": (lambda x: x.topk(3, -1), SQUARE),
    "sort": (lambda x: x.sort(-1), SQUARE),
    "one_hot": (lambda x: F.one_hot(x, 5), lambda b, s: [torch.ones(b, s, dtype=torch.long)]),
    "avg_pool": (lambda x: F.avg_pool2d(x, 2), IMAGE),
    "max_pool_pad": (lambda x: F.max_pool2d(x, 3, 2, 1), IMAGE),
    "bilinear": (lambda x: F.interpolate(x, scale_factor=2.0, mode="bilinear"), IMAGE),
    "bilinear_size": (lambda x: F.interpolate(x, size=(16, 16), mode="bilinear"), IMAGE),
    "convT": (lambda x: F.conv_transpose2d(x, torch.ones(3, 4, 2, 2), stride=2), IMAGE),
    "unfold": (lambda x: F.unfold(x, 2), IMAGE),
    "rms": (lambda x: F.rms_norm(x, (8,)), SQUARE),
    "glu": (lambda x: F.glu(x), SQUARE),
    "cross_entropy": (
        lambda x: F.cross_entropy(x.flatten(0, 1), torch.zeros(x.shape[0] * x.shape[1], dtype=torch.long)),
        SQUARE,
    ),
    "baddbmm": (lambda x, y: torch.baddbmm(torch.zeros(1), x, y.transpose(1, 2)), TWO),
    "sdpa_causal": (lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True), lambda b, s: [rand(b, 2, s, 8)]),
    "sdpa_mask": (lambda q: masked_attention(q), lambda b, s: [rand(b, 2, s, 8)]),
    "mha_view": (
        lambda x: (
            F.scaled_dot_product_attention(*[x.view(x.shape[0], x.shape[1], 2, 4).transpose(1, 2)] * 3)
            .transpose(1, 2)
            .contiguous()
            .view(x.shape[0], x.shape[1], 8)
        ),
        SQUARE,
    ),
    "window": (
        lambda x: x.view(x.shape[0], 2, 2, 2, 2, 8).permute(0, 1, 3, 2, 4, 5).contiguous().view(-1, 4, 8),
        lambda b, s: [rand(b, 16, 8)],
    ),
    "patch": (
        lambda x: F.conv2d(x, torch.ones(6, 3, 4, 4), stride=4).flatten(2).transpose(1, 2),
        lambda b, s: [rand(b, 3, 16, 16)],
    ),
    "cls": (lambda x: torch.cat([torch.ones(1, 1, 8).expand(x.shape[0], -1, -1), x], 1), SQUARE),
    "scatter": (lambda x: torch.zeros_like(x).scatter(2, (x * 0).long(), x), SQUARE),
    "index_put": (lambda x: x.clone().index_put((torch.tensor([0]),), torch.zeros(8)), SQUARE),
    "slice_assign": (lambda x: (lambda y: (y[:, 0].zero_(), y)[1])(x.clone()), SQUARE),
    "tril_mask": (lambda x: torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()[None, None], SQUARE),
    "mean_pool": (lambda x: (x * torch.ones(x.shape[0], x.shape[1])[..., None]).sum(1) / x.shape[1], SQUARE),
    "numel": (lambda x: x / x.numel(), SQUARE),
    "T5 bucket": (lambda x: torch.arange(x.shape[1])[None, :] - torch.arange(x.shape[1])[:, None], SQUARE),
    "split_size": (lambda x: x.split(x.shape[0], 0), SQUARE),
    "lstm_cell": (
        lambda x: torch.lstm_cell(
            x, (torch.zeros(x.shape[0], 8), torch.zeros(x.shape[0], 8)), torch.ones(32, 8), torch.ones(32, 8)
        ),
        lambda b, s: [rand(b, 8)],
    ),
    "pixel_shuffle": (lambda x: F.pixel_shuffle(x, 2), lambda b, s: [rand(b, 4, 8 + s, 8)]),
    "norm": (lambda x: x / x.norm(dim=-1, keepdim=True), SQUARE),
    "var_mean": (lambda x: torch.var_mean(x, 1), SQUARE),
    "channels_last": (
        lambda x: F.relu(
            F.conv2d(
                x.to(memory_format=torch.channels_last),
                torch.ones(4, 3, 3, 3).to(memory_format=torch.channels_last),
                padding=1,
            )
        ),
        IMAGE,
    ),
    "einsum2": (lambda x: torch.einsum("bsd,btd->bst", x, x), SQUARE),
    "logsumexp": (lambda x: x.logsumexp((1, 2)), SQUARE),
    "tile": (lambda x: x.tile(1, 1, 2), SQUARE),
    "movedim": (lambda x: x.movedim(0, 1).reshape(x.shape[1], -1), SQUARE),
    "reshape_merge": (lambda x: x.transpose(1, 2).reshape(x.shape[0], -1), SQUARE),
    "unflatten": (lambda x: x.unflatten(-1, (2, 4)), SQUARE),
    "view_bad": (lambda x: x.view(x.shape[0], -1), SQUARE),
    "squeeze_dyn": (lambda x: x.unsqueeze(0).squeeze(0), SQUARE),
    "instance": (lambda x: F.instance_norm(x), IMAGE),
    "swap": (lambda x: x.swapaxes(0, 1) + 1, SQUARE),
    "adaptive7": (lambda x: F.adaptive_avg_pool2d(x, (1, 1)).flatten(1), IMAGE),
    "ones_like_sum": (lambda x: torch.ones_like(x).sum() * x.shape[0] ** -0.5, SQUARE),
}


@pytest.mark.parametrize("name", NO_GUARDS)
def test_no_guard_and_right_at_every_size(name):
    function, make = NO_GUARDS[name]
    _traced, tried = check(function, make)
    assert tried == 1 + len(OTHERS)


def test_pooling_needs_only_that_the_output_is_not_empty():
    _traced, tried = check(lambda x: F.max_pool2d(x, 2), IMAGE, guards=0)
    assert tried == 1 + len(OTHERS)


def test_two_sizes_added_become_one():
    env = ShapeEnv()
    mode = fake_mode(shape_env=fake_shape_env(env))
    a, b = env.create_symbol(5, "a"), env.create_symbol(5, "b")
    x, y = fake_tensor(mode, rand(5, 2), (a, None)), fake_tensor(mode, rand(5, 2), (b, None))
    with mode:
        z = x + y
    assert expr_of(z.shape[0]) is expr_of(y.shape[0]) is a
    assert [str(g.expr) for g in env.guards] == ["s0 == s1"]
    assert not env.compile_guards([a, b])(5, 6)


def test_symint_arithmetic_in_python():
    env = ShapeEnv()
    n = env.create_symbol(10, "n")
    i = sym_int(env, n)
    assert isinstance(i, torch.SymInt) and env_of(i) is env
    assert expr_of((i * 2 + 1) // 2) is n
    assert expr_of(3 - i) is 3 - n
    assert expr_of(i % 4) is n % 4
    assert expr_of(torch.sym_max(i, 3)) is not None
    assert expr_of(torch.sym_int(i * 0.5)) is n // 2
    assert expr_of(i**2) is n * n
    assert not env.guards
    assert bool(i > 5) and len(env.guards) == 1
    assert int(i) == 10
    assert sym_int(env, 7) == 7 and type(sym_int(env, 7)) is int


def test_unbacked_values():
    env = ShapeEnv()
    mode = fake_mode(shape_env=fake_shape_env(env, allow_scalar_outputs=True, allow_dynamic_output_shape_ops=True))
    x = fake_tensor(mode, rand(5), (env.create_symbol(5, "n"),))
    with mode:
        k = x.to(torch.int64).sum().item()
        rows = x.nonzero()
        torch._check(k >= 0)
        made = torch.zeros(k, 3) + 1
    assert expr_of(made.shape[0]) is expr_of(k)
    assert expr_of(rows.shape[1]) == 1
    assert [str(a.condition) for a in env.runtime_asserts] == ["u0 >= 0"]
    with pytest.raises(UnbackedError, match="known only at run time"):
        bool(k > 3)


RUN_TIME = {
    "nonzero": (lambda x: x.nonzero(), "(u0, 2)"),
    "mask": (lambda x: x[x > 0.5] * 2, "(u0,)"),
    "masked rows through a layer": (lambda x: F.layer_norm(x[x[:, 0] > 0] @ torch.ones(8, 8), (8,)), "(u0, 8)"),
    "masked_select": (lambda x: torch.masked_select(x, x > 0), "(u0,)"),
    "unique": (lambda x: torch.unique(x), "(u0,)"),
    "repeat_interleave": (lambda x: torch.repeat_interleave(x, (x[:, 0] * 3).long(), dim=0), "(u0, 8)"),
    "arange": (lambda x: torch.arange(x.sum().long().item()), "(u0,)"),
    "zeros": (lambda x: torch.zeros(x.sum().long().item(), 4).view(-1), "(4*u0,)"),
    "cat": (lambda x: torch.cat([x.nonzero(), x.nonzero()]), "(2*u0, 2)"),
    "matmul": (lambda x: x.nonzero().float() @ torch.ones(2, 3), "(u0, 3)"),
    "scaled by an item": (lambda x: x * x.sum().item(), "(s0, 8)"),
}


@pytest.mark.parametrize("name", RUN_TIME)
def test_sizes_known_only_at_run_time(name):
    function, want = RUN_TIME[name]
    env = ShapeEnv()
    mode = fake_mode(shape_env=fake_shape_env(env, allow_scalar_outputs=True, allow_dynamic_output_shape_ops=True))
    x = fake_tensor(mode, rand(5, 8), (env.create_symbol(5, "n"), None))
    with mode, symbolic_dispatch():
        out = function(x)
    assert str(tuple(expr_of(n) for n in out.shape)) == want
    assert not env.guards


def test_run_time_values_carry_the_users_text():
    env = ShapeEnv()
    adapter = fake_shape_env(env, allow_scalar_outputs=True)
    mode = fake_mode(shape_env=adapter)
    x = fake_tensor(mode, rand(5), (None,))
    with mode, adapter.naming("lengths.max().item()"):
        k = x.long().max().item()
    with pytest.raises(UnbackedError, match=r"lengths.max\(\).item\(\) <= 3 must be known while tracing"):
        bool(k <= 3)


def test_slices_of_larger_tensors_keep_their_strides():
    env = ShapeEnv()
    mode = fake_mode(shape_env=fake_shape_env(env))
    real = rand(6, 16)[:, :8]
    fake = fake_tensor(mode, real, (env.create_symbol(6, "n"), None))
    assert tuple(fake.stride()) == (16, 1)
    inner = fake_tensor(mode, rand(6, 16)[:, :8], (None, env.create_symbol(8, "m")))
    assert expr_of(inner.stride(0)) not in (16, symbol("s1"))
    transposed = fake_tensor(mode, rand(6, 9).t(), (env.create_symbol(9, "p"), None))
    assert tuple(expr_of(s) for s in transposed.stride()) == (1, expr_of(transposed.shape[0]))


@pytest.mark.parametrize(
    "cut",
    [
        lambda x, n: x[:n],
        lambda x, n: x[n:],
        lambda x, n: x[:-n],
        lambda x, n: x[-n:],
        lambda x, n: x[1:n],
        lambda x, n: x[n : n + 2],
        lambda x, n: x[:n:2],
        lambda x, n: x[n::3],
    ],
)
def test_sizes_of_slices_whose_ends_are_open(cut):
    env = ShapeEnv()
    mode = fake_mode(shape_env=fake_shape_env(env, allow_scalar_outputs=True))
    length = env.create_symbol(6, "length")
    fake = fake_tensor(mode, torch.empty(6, 2), (length, None))
    with mode:
        number = torch.empty((), dtype=torch.int64).item()
        size = expr_of(cut(fake, number).shape[0])
    for at in range(-9, 10):
        for n in (1, 2, 6, 7):
            assert evaluate(size, {expr_of(number): at, length: n}) == cut(torch.empty(n, 2), at).shape[0]


def test_kernels_that_read_sizes_as_numbers_are_refused():
    traced = Traced(lambda b, s: (torch.randn(b, s),))
    (x,) = traced.inputs
    with traced.mode, refusing_plain_numbers(traced.env):
        for call in (lambda: torch.complex(x, x), lambda: F.pad(x, (1, 0)), lambda: int(x.shape[0])):
            with pytest.raises(RuntimeError, match="as plain numbers"):
                call()
        assert (x + 1).shape[0] == x.shape[0]
    assert not traced.env.guards
    assert int(x.shape[0]) == B
    with traced.mode, refusing_plain_numbers(traced.env):
        assert int(x.shape[0]) == B  # a constant now
