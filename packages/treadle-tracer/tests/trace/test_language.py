"""More of the language, the library and torch.nn: traced and plain; one graph, no break, unless said otherwise."""

from __future__ import annotations

import abc
import collections
import contextlib
import contextvars
import dataclasses
import functools
import logging
import threading
import typing
import warnings

import pytest

torch = pytest.importorskip("torch")

from trace_runs import check, collect, t  # noqa: E402

F, nn = torch.nn.functional, torch.nn

CASES, case = collect()

# training
LIN = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.2), nn.ReLU(), nn.LayerNorm(4), nn.BatchNorm1d(4)).train()


@case(
    t(2, 3),
    reset=lambda: [torch.manual_seed(1)] + [m.reset_parameters() for m in LIN if hasattr(m, "reset_parameters")],
)
def train_fwd(x):
    return LIN(x).sum()


@case(t(2))
def locals_again(x):
    first, seen = 1, locals()
    names = sorted(seen)
    second, again = x + first, locals()  # the same dict up to 3.12
    seen["extra"] = 3
    del first
    return second, seen is again, names, sorted(again), sorted(locals())


class Sin(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0].cos()


@case(t(3, requires_grad=True))
def autograd_fn(x):
    return Sin.apply(x) * 2


@case(t(3))
def warn(x):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.warn("hey")
    return x + 1


LOG = logging.getLogger("zz")


@case(t(3))
def logg(x):
    LOG.debug("x %s", 1)
    LOG.info("q")
    return x + 1


CV = contextvars.ContextVar("cv", default=3)


@case(t(3))
def ctxvar(x):
    t = CV.set(5)
    y = CV.get() + x
    CV.reset(t)
    return y, CV.get()


TL = threading.local()
TL.v = 4


@case(t(3))
def tls(x):
    return x + TL.v


LOCK = threading.RLock()


@case(t(3), breaks=("builtin-method",))
def lock(x):
    with LOCK:
        return x + 1


@case(t(3), lambda: (i for i in [1, 2, 3]), breaks=("builtin-method",))
def gen_arg(x, g):
    return [x + i for i in g]


@case(t(3), lambda: iter([1, 2, 3]))
def iter_arg(x, it):
    a = next(it)
    return x + a, it


@case(t(3), lambda: {"a": 1}.items())
def items_arg(x, it):
    return x, [k for k, v in it]


@case(t(3), lambda: range(3))
def range_arg(x, r):
    return [x + i for i in r], len(r), r[1], 2 in r


@case(t(3), 3, 2.5, "mode", None, True)
def scalars(x, a, b, s, n, f):
    return x * a + b, s + "!", n, not f, a / 2, -b


@case(t(3), torch.float64, torch.device("cpu"))
def dts(x, d, dev):
    return (
        x.to(d),
        x.to(dev),
        x.to(device=dev, dtype=d),
        x.double(),
        x.type(torch.int32),
        x.half(),
        torch.zeros(2, dtype=d, device=dev),
    )


@case(t(2, 3, 4))
def einops_like(x):
    b, c, h = x.shape
    y = x.permute(0, 2, 1).reshape(b * h, c)
    z = y.unflatten(0, (b, h)).flatten(1)
    w = x.movedim(0, -1)
    v = x.unsqueeze(1).expand(-1, 2, -1, -1).squeeze()
    u = x.repeat(1, 2, 1)
    q = torch.broadcast_to(x[:1], (2, 3, 4))
    return y, z, w, v, u, q, x.swapaxes(0, 1), x.mT, x[None, ..., 0], x[:, -1:], x[..., ::2]


@case(t(4))
def number_tensor(x):
    s = x.sum()
    return (
        s + 1,
        1 - s,
        s**2,
        torch.stack([s, s]),
        x / s,
        x * s.sqrt(),
        max(x.shape),
        x.clamp(min=0, max=1),
        torch.maximum(x, s),
        x.lerp(s, 0.5),
        x.add(1, alpha=2),
        torch.where(x > 0, 1, 0),
        x.eq(0).any(),
        x.isnan().all(),
        x.argmax(),
        x.topk(2),
        x.sort(descending=True),
        torch.unbind(x),
        x.cumsum(0),
        x.norm(),
        x.std(),
        x.var(unbiased=False),
        x.mean(-1, keepdim=True),
    )


@case(t(2, 3), breaks=("raises",))
def ops_cmp(x):
    return (
        (x > 0) & (x < 1),
        (x > 0) | (x < -1),
        x == x,
        x != 0,
        ~(x > 0),
        x % 2,
        x // 0.5,
        2**x,
        x @ x.T,
        x.T @ x,
        divmod(x, 2),
        abs(x),
        +x,
        x <= 0,
        1 > x,
        x >> 0 if False else 0,
        bool(x.dim()),
        x is not None,
    )


@case(lambda: [t(3)(), (t(2)(), {"k": t(4)()})])
def pytree(p):
    from torch.utils._pytree import tree_leaves, tree_map

    return tree_map(lambda q: q * 2 if isinstance(q, torch.Tensor) else q, p), len(tree_leaves(p))


class Proto(typing.Protocol):
    def f(self): ...


@dataclasses.dataclass
class Out:
    x: torch.Tensor = None
    y: typing.Optional[int] = None

    def __post_init__(self):
        self.z = 1

    def __getitem__(self, k):
        return getattr(self, k)

    def to_tuple(self):
        return tuple(getattr(self, f.name) for f in dataclasses.fields(self))


@case(t(3))
def out_dc(x):
    o = Out(x=x + 1, y=2)
    return o, o["x"], o.to_tuple(), dataclasses.asdict(Out(None, 3)), dataclasses.replace(o, y=5).y


class Meta(type):
    def __call__(cls, *a):
        o = super().__call__(*a)
        o.m = 1
        return o

    def __len__(cls):
        return 7


class WithMeta(metaclass=Meta):
    def __init__(self, a):
        self.a = a


class AB(abc.ABC):
    @abc.abstractmethod
    def g(self): ...


class ABI(AB):
    def g(self):
        return 4

    def __init_subclass__(cls):
        pass


class New:
    def __new__(cls, *a):
        o = super().__new__(cls)
        o.n = a
        return o


class Single:
    _i = None

    def __new__(cls):
        if cls._i is None:
            return object.__new__(cls)
        return cls._i


@case(t(3))
def metas(x):
    return x + 1, WithMeta(3).m, len(WithMeta), ABI().g(), New(1, 2).n, Single()


@case(t(3))
def closures_mut(x):
    acc = []

    def add(v):
        acc.append(v)
        return len(acc)

    add(x)
    add(x + 1)

    def counter():
        c = 0

        def inc():
            nonlocal c
            c += 1
            return c

        return inc

    k = counter()
    k()
    k()
    return acc, k(), k


@case(t(3))
def star(x):
    def f(a, b=2, *c, d, e=5, **k):
        return (a, b, c, d, e, k)

    return f(x, d=1), f(1, 2, 3, 4, d=x, z=9), f(*[1, 2], **{"d": 3}), f(*(1,), *(2, 3), d=0, **{"q": 1}, **{"w": 2})


@case(t(3))
def shadow(x):
    list_ = [1]
    len_ = len(list_)
    max = 3
    return x + max + len_


@case(t(3))
def lambda_default(x):
    return (
        (lambda a=x, *, b=2: a * b)(),
        sorted([3, 1], key=lambda v: -v),
        list(map(lambda q: q + x, [1, 2])),
        functools.reduce(lambda a, b: a + b, [x, x], x),
    )


@case(t(3))
def nested_comp(x):
    return (
        [[x * i + j for j in range(2)] for i in range(2)],
        {i: {j for j in range(i)} for i in range(3)},
        [y for z in [[1], [2]] for y in z if y],
    )


@case(t(3))
def exc_group(x):
    try:
        try:
            raise ValueError("a")
        except ValueError:
            raise TypeError("b")
    except TypeError as e:
        return x + 1, type(e.__context__).__name__ if False else 0


@case(t(3))
def exc_in_callee(x):
    def bad():
        raise KeyError("zz")

    for i in range(3):
        try:
            bad()
        except KeyError:
            x = x + i
        else:
            x = x * 100
    return x


@case(t(3))
def with_return(x):
    class_log = []

    @contextlib.contextmanager
    def c():
        class_log.append(1)
        try:
            yield
        except ValueError:
            class_log.append("ve")
        finally:
            class_log.append(2)

    def f():
        with c():
            return x + 1

    def g():
        with c():
            raise ValueError

    r = f()
    g()
    with contextlib.ExitStack() as st:
        st.enter_context(c())
        st.callback(lambda: class_log.append("cb"))
    return r, class_log


@case(t(3))
def str_methods(x):
    return (
        x + 1,
        "a,b".partition(","),
        "AbC".swapcase(),
        " x ".strip(),
        "abc".replace("b", "z"),
        "a-b".split("-"),
        "%s" % "q",
        "%(a)d" % {"a": 3},
        "x".join(["1", "2"]),
        "abc".find("c"),
        "abc"[::-1],
        "é".encode(),
        b"ab".decode(),
        "a" < "b",
        str(3.0),
        repr("q"),
        f"{1:>4}{2.5:.1f}{'s'!r}",
        "abc".isalpha(),
        "tensor" in str(torch.float32),
        f"{torch.float32}",
        f"{x.dtype} {x.device} {list(x.shape)}",
    )


@case(t(3))
def dictops(x):
    d = {}
    d.setdefault("a", []).append(1)
    e = {**d, "b": x}
    del e["a"]
    for k in list(d):
        d[k] = d[k] + [2]
    for i, (k, v) in enumerate(e.items()):
        pass
    return (
        d,
        e,
        i,
        k,
        d.get("zz", 3),
        "a" in d,
        list(d.values()),
        max(d),
        sorted({"b": 1, "a": 2}.items(), key=lambda kv: kv[1]),
        dict([("x", 1)]),
        dict(a=1),
        {1: 2} | {3: 4},
        d.copy() is d,
        {k: v for k, v in sorted({"b": 1, "a": 2}.items())},
        {"a": 1}.items() == {"a": 1}.items(),
        d.popitem(),
        bool({}),
    )


@case(t(3))
def id_is(x):
    a = [1]
    b = a
    return (
        x + 1,
        a is b,
        id(a) == id(b) if False else 0,
        x is x,
        type(x),
        x.__class__,
        (lambda: 1).__name__,
        int.__name__,
        isinstance([], collections.abc.Sequence),
        isinstance({}, collections.abc.Mapping),
        isinstance((), (list, tuple)),
        isinstance(3, (int, float)),
        isinstance(3, int | str),
        issubclass(int, object),
        callable(len),
        isinstance(x, collections.abc.Iterable),
    )


@case(t(3))
def slicing(x):
    s = slice(0, 2)
    l = [1, 2, 3, 4]
    l[s] = [9]
    del l[1:]
    return (
        x[s],
        l,
        s.start,
        (1, 2, 3)[::-1],
        [1, 2, 3][-2:],
        "abc"[s],
        x[1:][0],
        x[...],
        x[None],
        x[True] if False else 0,
        x[()],
    )


@case(t(5, 5))
def index_put(x):
    x[x > 0] = 0
    x[torch.tensor([0, 1]), torch.tensor([1, 2])] = 5
    x[:, 1] += 1
    x[0][1] = 7
    x.index_fill_(0, torch.tensor([2]), 3.0)
    x.scatter_(1, torch.zeros(5, 1, dtype=torch.long), 9.0)
    return x


@case(t(3))
def alias_mut(x):
    y = x[:2]
    y.add_(1)
    z = x.view(3)
    z *= 2
    w = x.detach()
    w.zero_()
    v = x.clone()
    v += 1
    return x, y, z, w, v, y.data_ptr() if False else 0


@pytest.mark.parametrize("each", CASES, ids=lambda each: each.name)
def test_language(each):
    check(each)
