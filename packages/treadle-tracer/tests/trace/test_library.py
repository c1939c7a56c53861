"""torch.nn, the standard library and torch's transforms: traced and plain; one graph, no break, unless said otherwise."""

from __future__ import annotations

import collections
import itertools
import math
import re
import types
import typing

import pytest

torch = pytest.importorskip("torch")

from trace_runs import check, collect, t  # noqa: E402

F, nn = torch.nn.functional, torch.nn

CASES, case = collect()


class Buf(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("c", torch.zeros(2))
        self.k = torch.ones(2)
        self.lst = []
        self.dct = {}

    def forward(self, x):
        self.c = self.c + 1
        self.k = self.k * 2
        self.lst.append(x)
        self.dct["z"] = x + 1
        return x + self.c + self.k, self.lst[0], self.dct


BUF = Buf()


def rbuf():
    BUF.c = torch.zeros(2)
    BUF.k = torch.ones(2)
    BUF.lst.clear()
    BUF.dct.clear()


@case(t(2), reset=rbuf, look=lambda: (BUF.c, BUF.k, BUF.lst, BUF.dct), recompiles=True)
def bufs(x):
    return BUF(x)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(3, 3)
        self.b = nn.Linear(3, 3)
        self.b.weight = self.a.weight
        self.emb = nn.Embedding(4, 3, padding_idx=0)

    def forward(self, i):
        return (
            self.b(self.a(self.emb(i))),
            [n for n, _ in self.named_parameters()],
            sum(p.numel() for p in self.parameters()),
            self.a.weight is self.b.weight,
            self.a.in_features,
            len(list(self.modules())),
            self.emb.weight.device,
            self.training,
            [k for k in self.state_dict()] if False else 0,
            self.get_submodule("a") is self.a,
            getattr(self, "a").bias.dtype,
            hasattr(self, "zzz"),
            isinstance(self.a, nn.Linear),
            self.a.__class__.__name__,
        )


TIED = Tied()


@case(lambda: torch.tensor([1, 2]))
def tied(i):
    return TIED(i)


@case(t(3))
def typing_stuff(x):
    q = typing.cast(int, 3)
    return x + q, Number(q + 1) * x


Number = typing.NewType("Number", int)


@case(t(3))
def itertools_more(x):
    itertools.groupby([1, 1, 2]) if False else ()
    return (
        x + 1,
        list(itertools.takewhile(lambda v: v < 2, [1, 2])),
        list(itertools.dropwhile(lambda v: v < 2, [1, 2])),
        list(itertools.permutations([1, 2])),
        list(itertools.pairwise([1, 2, 3])),
        [a for a, _ in zip(itertools.cycle([1, 2]), range(3))],
        list(zip(*[(1, 2), (3, 4)])),
        next(itertools.count(5)),
        list(itertools.compress("abc", [1, 0, 1])),
        list(itertools.filterfalse(None, [0, 1])),
    )


@case(t(3))
def re_math(x):
    m = re.match(r"(\d+)-(\w)", "12-q")
    return (
        x + 1,
        m.group(1),
        bool(re.search("z", "abc")),
        math.sqrt(4),
        math.floor(2.5),
        math.ceil(2.1),
        math.log2(8),
        math.inf,
        math.gcd(4, 6),
        re.sub("a", "b", "aa"),
        math.isclose(1.0, 1.0),
        m is None,
    )


@case(t(3))
def counter(x):
    c = collections.Counter("aab")
    return x + 1, c["a"], c["zz"], c.most_common(1)


@case(t(3))
def chainmap(x):
    c = collections.ChainMap({"a": 1}, {"b": 2})
    return x + c["b"], "a" in c


@case(t(3))
def userdict(x):
    u = collections.UserDict(a=1)
    u["b"] = x
    return u["a"] + u["b"], len(u)


@case(t(3))
def namespace(x):
    n = types.SimpleNamespace(a=x, b=2)
    n.c = 3
    return n.a * n.b + n.c


@case(t(3))
def decor_class(x):
    class Local:
        def f(self):
            return 3

    return x + Local().f()


@case(t(3))
def print_fmt(x):
    return x + 1, f"{x}" if False else ""


@case(t(3))
def sdpa(x):
    q = x.view(1, 1, 3, 1)
    return (
        F.scaled_dot_product_attention(q, q, q, is_causal=True),
        torch.nn.functional.normalize(x, dim=0),
        F.cosine_similarity(x, x, dim=0),
        F.embedding(torch.tensor([0]), x.view(3, 1)),
        torch.outer(x, x),
        torch.linalg.norm(x),
        torch.fft.fft(x).real,
        torch.special.expit(x),
        torch.meshgrid(x, x, indexing="ij"),
        torch.cdist(x[None, :, None], x[None, :, None]),
        torch.tril(torch.ones(3, 3)),
        torch.bucketize(x, torch.tensor([0.0])),
        torch.histc(x, 3) if False else 0,
    )


@case(t(4, 4))
def vmap_(x):
    return torch.vmap(lambda a: a * 2)(x)


@case(t(4))
def func_grad(x):
    return torch.func.grad(lambda a: (a**2).sum())(x)


@case(t(3))
def checkpoint(x):
    from torch.utils.checkpoint import checkpoint as cp

    return cp(lambda a: a * 2, x, use_reentrant=False)


@case(t(3))
def profiler(x):
    with torch.profiler.record_function("a"):
        return x + 1


@case(t(3))
def inference(x):
    with torch.inference_mode():
        y = x + 1
    return y.is_inference()


@case(t(3))
def fullg(x):
    return (
        torch.get_default_dtype(),
        torch.is_autocast_enabled("cpu"),
        torch.is_inference_mode_enabled(),
        x + 1,
        torch.backends.cudnn.enabled,
        torch.cuda.is_available(),
        torch.__version__,
        torch.version.cuda,
        torch.get_num_threads(),
    )


@case(lambda: [torch.ones(2), torch.ones(2)])
def list_same(l):
    l[0] += 1
    return l[0] is l[1], l[0] + l[1]


A1 = torch.ones(2)


@case(lambda: [A1, A1], reset=lambda: A1.fill_(1.0))
def list_alias(l):
    l[0] += 1
    return l[0] is l[1], l[0] + l[1]


class Rec:
    def __init__(self):
        self.me = self
        self.l = [self]


@case(t(3))
def cyclic(x):
    r = Rec()
    l = []
    l.append(l)
    d = {}
    d["d"] = d
    return x + 1, r, l, d


@case(t(3))
def prop_mod(x):
    class_ = nn.Linear
    return (
        class_.__name__,
        x + 1,
        nn.Linear.forward.__name__,
        F.relu.__name__,
        torch.add.__name__,
        len.__name__,
        str.join.__name__,
    )


@pytest.mark.parametrize("each", CASES, ids=lambda each: each.name)
def test_library(each):
    check(each)
