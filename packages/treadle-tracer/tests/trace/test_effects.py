"""Effects around graph breaks, and results of all kinds: traced and plain; one graph, no break, unless said otherwise."""

from __future__ import annotations

import collections
import functools
import importlib.util
from time import sleep  # breaks the graph

import pytest

torch = pytest.importorskip("torch")

from trace_runs import check, collect, t  # noqa: E402

F, nn = torch.nn.functional, torch.nn

CASES, case = collect()


# aliasing and effects
@case(t(3), lambda: [1], breaks=("builtin-call",))
def mutate_then_break(x, l):
    l.append(2)
    y = x + 1
    sleep(0)
    l.append(3)
    return y * 2, l


@case(t(3), lambda: {}, breaks=("builtin-call",))
def dict_then_break(x, d):
    d["a"] = x + 1
    sleep(0)
    d["b"] = d["a"] * 2
    return d


class Empty:
    pass


@case(t(3), Empty, breaks=("builtin-call",))
def attr_then_break(x, o):
    o = o() if isinstance(o, type) else o
    o.a = x
    sleep(0)
    o.b = o.a + 1
    del o.a
    return o


def helper_print(x):
    y = x * 2
    sleep(0)
    return y + 1


@case(t(3), breaks=("builtin-call",))
def nested_break(x):
    return helper_print(x + 1) * 3


@case(t(3), breaks=("builtin-call",))
def loop_breaks(x):
    for i in range(4):
        x = x + i
        sleep(0)
    return x


@case(t(3), breaks=("builtin-call",))
def loop_list_breaks(x):
    out = []
    for i, v in enumerate([x, x + 1, x * 2]):
        out.append(v + i)
        sleep(0)
    return out


@case(t(3), breaks=("builtin-call",))
def dict_loop_breaks(x):
    d = {"a": x, "b": x + 1}
    s = 0
    for k, v in d.items():
        s = s + v
        sleep(0)
    return s


@case(t(3), breaks=("builtin-call",))
def while_breaks(x):
    i = 0
    while i < 3:
        x = x * 2
        sleep(0)
        i += 1
    return x, i


@case(t(3), breaks=("builtin-call",))
def try_break(x):
    try:
        y = x + 1
        sleep(0)
        z = y * 2
        raise ValueError("q")
    except ValueError as e:
        return z + 1, str(e)
    finally:
        x.add_(1)


@case(t(3), breaks=("builtin-call",))
def with_break(x):
    with torch.no_grad():
        y = x + 1
        sleep(0)
        z = y * 2
    return z, torch.is_grad_enabled()


@case(t(3, 3), breaks=("builtin-call",))
def autocast_break(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x @ x
        sleep(0)
        z = y @ y
    return z, z.dtype, torch.is_autocast_enabled("cpu")


class Ctx:
    def __init__(self, l):
        self.l = l

    def __enter__(self):
        self.l.append("in")
        return self

    def __exit__(self, *a):
        self.l.append(("out", a[0].__name__ if a[0] else None))
        return False


@case(t(3), lambda: [], breaks=("builtin-call",))
def ctx_break(x, l):
    with Ctx(l):
        y = x + 1
        sleep(0)
        l.append(1)
    return y * 2


@case(t(3), breaks=("builtin-call",))
def gen_break(x):
    def g():
        for i in range(3):
            sleep(0)
            yield x + i

    return list(g())


@case(t(3), breaks=("builtin-call",))
def closure_break(x):
    n = 0

    def inc():
        nonlocal n
        n += 1
        sleep(0)
        return x + n

    a = inc()
    b = inc()
    return a, b, n


@case(t(3), breaks=("builtin-call",))
def comp_break(x):
    return [helper_print(x + i) for i in range(3)]


@case(t(3), breaks=("branch-on-tensor",))
def cond_break(x):
    y = x + 1 if x.sum() > 100 else x - 1
    z = y * 2 if y.sum() > -100 else y
    return z


@case(t(3), breaks=("branch-on-tensor",))
def and_or(x):
    return (x.sum() > 0 and x + 1), (x.sum() > 0 or x + 2), not x.sum() > 0


@case(t(3))
def assert_tensor(x):
    assert x.sum() < 1000, "m"
    return x + 1


@case(t(3), breaks=("branch-on-tensor",))
def while_tensor(x):
    while x.sum() < 50:
        x = x + 5
    return x


@case(t(3), breaks=("builtin-call",))
def kw_break(x):
    def f(a, *, b, **k):
        sleep(0)
        return a * b + k["c"]

    return f(x + 1, b=2, c=x) + 1


@case(t(3), breaks=("builtin-call",))
def star_break(x):
    def f(*a, **k):
        sleep(0)
        return sum(a) + k["z"]

    return f(*[x, x + 1], **{"z": 3})


@case(t(3), breaks=("builtin-call",))
def method_break(x):
    class_ = Ctx([])
    s = "a".join(["b", "c"])
    sleep(0)
    return x + len(s), class_.l


@case(t(3))
def unpack_numbers(x):
    a, b, c = (t2 * 2 for t2 in x.tolist())
    return x + a + b + c


@case(t(3))
def ret_closure(x):
    y = x + 1

    def g(z=y):
        return z + x

    return g, g()


@case(t(3))
def ret_gen(x):
    return (i + x for i in range(2)).__next__(), x + 1


@case(t(3))
def ret_partial(x):
    return functools.partial(torch.add, x + 1), (lambda q: q)


@case(t(3))
def ret_iter(x):
    return iter([x + 1, 2]), enumerate([x]), zip([1], [x + 2]), reversed([1, x])


@case(t(3))
def ret_views(x):
    d = {"a": x + 1}
    return d.keys(), d.items(), d, d.values()


def ret_slice(x):
    return slice(1, x.shape[0]), range(x.shape[0]), x + 1, ..., NotImplemented


@case(t(3), breaks=("reconstruct",))  # its traceback is made by Python
def ret_exc(x):
    try:
        raise KeyError("a", x + 1)
    except KeyError as e:
        return e


@case(t(3))
def ret_cls(x):
    return Empty, Ctx([x + 1]), Empty(), type, torch.float32, torch.nn.Linear


@case(t(3))
def ret_nn(x):
    return nn.ReLU()(x), nn.Identity(), nn.Sequential(nn.ReLU())(x)


@case(t(3))
def ret_deque(x):
    return (
        collections.deque([x + 1, 1], maxlen=4),
        collections.OrderedDict(a=x),
        collections.defaultdict(list, {1: [x]}),
        frozenset([1]),
        {1, 2},
    )


@case(t(3), lambda: collections.deque([1]))
def mut_deque(x, d):
    d.append(x + 1)
    d.popleft()
    return d


@case(t(3), lambda: {1, 2})
def mut_set(x, s):
    s.add(3)
    s.discard(1)
    return s, x + 1


@case(t(3), lambda: collections.defaultdict(list))
def mut_dd(x, d):
    d["a"].append(x + 1)
    return d


@case(t(3), lambda: collections.OrderedDict(a=1, b=2))
def mut_od(x, d):
    d.move_to_end("a")
    d["c"] = x + 1
    del d["b"]
    return d


class SubD(dict):
    pass


class SubL(list):
    pass


@case(t(3), lambda: SubD(a=1), lambda: SubL([1]))
def mut_sub(x, d, l):
    d["b"] = x + 1
    d.attr = 3
    l.append(x)
    l.q = 2
    return d, l


@case(t(3), lambda: [[1, 2], [3]])
def mut_nested(x, l):
    l[0].append(x + 1)
    l[1], l[0] = l[0], l[1]
    return l


@case(lambda: [torch.ones(3), torch.zeros(3)])
def swap(l):
    l[0], l[1] = l[1] + 1, l[0]
    return l


@case(t(4))
def inplace_alias(x):
    a = x[:2]
    b = x[1:3]
    a += 1
    b *= 2
    return a, b, x


@case(t(4))
def out_kw(x):
    o = torch.empty(4)
    torch.add(x, 1, out=o)
    torch.mul(x, 2, out=x)
    return o, x


@case(t(4))
def set_shape(x):
    y = x.clone()
    y.resize_(2, 2)
    y.unsqueeze_(0)
    y.t_() if False else None
    return y, y.shape


@case(t(4, requires_grad=True))
def req(x):
    y = x * 2
    return y.requires_grad, y.is_leaf, x.is_leaf, y.detach().requires_grad, y


@case(t(4, requires_grad=True))
def grad_inside(x):
    y = (x * 2).sum()
    y.backward()
    return x.grad


@case(t(4, requires_grad=True))
def grad_call(x):
    return torch.autograd.grad((x * x).sum(), x)


@case(t(3))
def setattr_tensor(x):
    y = x + 1
    y.foo = 3
    return y.foo, y


@case(t(3))
def hasgrad(x):
    return x.grad is None, x.grad_fn, x + 1


@case(t(3))
def isinst(x):
    return (
        isinstance(x, (int, torch.Tensor)),
        isinstance(x, nn.Module),
        type(x) is torch.Tensor,
        issubclass(type(x), torch.Tensor),
        torch.is_tensor(x),
        x + 1,
    )


@case(t(3))
def big_const(x):
    return (
        x + torch.tensor([[1.0, 2, 3]]) + torch.as_tensor(2) + torch.scalar_tensor(3.0),
        torch.tensor(True),
        torch.tensor([x.shape[0]]),
        torch.tensor(()),
        torch.empty(2, 0),
    )


if importlib.util.find_spec("numpy"):  # not among the dependencies of torch

    @case(t(3))
    def np_stuff(x):
        import numpy as np

        return x + np.float32(2), x * np.pi, torch.zeros(np.int64(2)), np.sqrt(4)


@case(t(3), breaks=("tensor-method",))
def tolist(x):
    return x.tolist(), x.sum().item(), int(x[0] > 0), float(x[1]), bool(x[0] > 0), x.data_ptr() != 0


@case(t(3))
def nonz(x):
    return x.nonzero().shape, x[x > 0].sum(), torch.unique(x).numel(), torch.masked_select(x, x > 0)


@case(t(4, requires_grad=True))
def requires_grad_already(x):
    y = x * 2
    return y.requires_grad_(True) is y, y


@case(t(3))
def fstring_tensor(x):
    return f"{x.sum():.2f}", str(x), x + 1


@case(t(3))
def sort_key(x):
    l = [("b", x), ("a", x + 1)]
    l.sort(key=lambda p: p[0])
    return l, sorted([3, 1, 2], reverse=True), max(l, key=lambda p: p[0])[0]


@case(t(3))
def global_fn(x):
    return helper_mul(x, 3)


def helper_mul(a, b):
    return a * b


@pytest.mark.parametrize("each", CASES, ids=lambda each: each.name)
def test_effects(each):
    check(each)
