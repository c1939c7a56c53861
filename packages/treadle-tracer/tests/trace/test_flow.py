"""Exceptions, with statements, generators and loops: one graph, no break. PYTEST_DONT_REWRITE: asserts are traced here."""

from __future__ import annotations

import contextlib
import itertools
import operator

import pytest

torch = pytest.importorskip("torch")

from trace_runs import check, collect, t  # noqa: E402

CASES, case = collect()


# --- exceptions
@case(t(3))
def try_finally(x):
    log = []
    try:
        x = x + 1
        try:
            raise ValueError("a", 3)
        finally:
            log.append("f")
            x = x * 2
    except ValueError as e:
        log.append(e.args)
    else:
        log.append("else")
    return x, log


@case(t(3))
def try_return_finally(x):
    def g(y):
        try:
            return y + 1
        finally:
            y = y * 100

    return g(x)


class MyErr(Exception):
    def __init__(self, a, b=2):
        super().__init__(a)
        self.b = b


@case(t(3))
def custom_exc(x):
    try:
        raise MyErr("q", b=7)
    except (KeyError, MyErr) as e:
        return x + e.b, str(e), e.args, isinstance(e, Exception)


@case(t(3))
def nested_exc(x):
    try:
        try:
            [][1]
        except IndexError as e:
            raise RuntimeError("x") from e
    except RuntimeError as e:
        return x, type(e.__cause__).__name__, repr(str(e))


class Several(ExceptionGroup):
    pass


@case(t(3))
def exception_group(x):
    group = Several("several", [ValueError(1), TypeError(2)])
    return x + 1, str(group), group


@case(t(3))
def reraise(x):
    try:
        try:
            {}["a"]
        except KeyError:
            raise
    except LookupError as e:
        return x * 2, e.args


@case(t(3))
def loop_exc(x):
    out = []
    for i in range(4):
        try:
            if i == 1:
                continue
            if i == 3:
                break
            out.append(x + i)
        finally:
            out.append(i)
    else:
        out.append("no")
    return out


@case(t(3))
def stop_iter(x):
    it = iter([1, 2])
    s = 0
    while True:
        try:
            s += next(it)
        except StopIteration:
            break
    return x + s, next(it, "d")


@case(t(3))
def attr_err(x):
    try:
        x.nope
    except AttributeError:
        pass
    return getattr(x, "nope", 3) + x, hasattr(x, "foo"), hasattr(x, "shape")


@case(t(3))
def assert_ok(x):
    assert x.shape[0] == 3, "bad"
    try:
        assert x.dim() == 2, f"dim {x.dim()}"
    except AssertionError as e:
        return x + 1, type(e).__name__


# --- with
class Ctx:
    def __init__(self, log):
        self.log = log

    def __enter__(self):
        self.log.append("in")
        return self

    def __exit__(self, t, v, tb):
        self.log.append(("out", t.__name__ if t else None))
        return t is ValueError


@case(t(3), lambda: [])
def with_user(x, log):
    with Ctx(log) as c, Ctx(log):
        y = x + 1
    with Ctx(log):
        raise ValueError("z")
    return y, len(c.log)


@contextlib.contextmanager
def cm(log, v):
    log.append(v)
    try:
        yield v + 1
    finally:
        log.append(-v)


@case(t(3), lambda: [])
def with_cm(x, log):
    with cm(log, 3) as a, cm(log, 5) as b:
        x = x * a + b
    try:
        with cm(log, 7):
            raise KeyError("k")
    except KeyError as e:
        log.append(e.args[0])
    return x


@case(t(3))
def with_null(x):
    with contextlib.nullcontext(5) as v, contextlib.suppress(KeyError):
        x = x + v
        {}["a"]
    return x


@case(t(3, 3, requires_grad=True))
def grads(x):
    with torch.no_grad():
        a = x @ x
    with torch.enable_grad():
        b = x @ x
    with torch.set_grad_enabled(False):
        c = x + 1
    return a.requires_grad, b.requires_grad, c.requires_grad, torch.is_grad_enabled(), b


@torch.no_grad()
def deco(x):
    return x * 2


@case(t(3, requires_grad=True))
def no_grad_deco(x):
    return deco(x), x * 2


@case(t(3, 3))
def autocast(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x @ x
        with torch.autocast("cpu", enabled=False):
            z = x @ x
    return y, z, y.dtype


@case(t(3, 3))
def autocast_off(x):
    with torch.autocast("cpu", enabled=False):
        return x @ x


# --- generators
def gen(n):
    r = yield n
    while r:
        r = yield r * 2
    return "done"


@case(t(3))
def gen_send(x):
    g = gen(4)
    a = next(g)
    b = g.send(3)
    try:
        g.send(0)
    except StopIteration as e:
        return x + a + b, e.value


def outer(xs):
    r = yield from inner(xs)
    yield r


def inner(xs):
    for i in xs:
        yield i + 1
    return 42


@case(t(3))
def yield_from(x):
    return [x + i for i in outer([1, 2, 3])], list(outer((5,)))


@case(t(3))
def gen_close(x):
    log = []

    def g():
        try:
            yield 1
            yield 2
        finally:
            log.append("closed")

    k = g()
    next(k)
    k.close()
    return x, log


@case(t(3))
def genexp(x):
    return (
        sum(i * 2 for i in range(4)) + x,
        tuple(x * j for j in range(3)),
        max((i for i in (3, 9, 2)), key=lambda q: -q),
        any(i > 2 for i in range(4)),
        all(i for i in (1, 0)),
    )


@case(t(3))
def iters(x):
    a = list(zip([1, 2, 3], "abc"))
    b = dict(enumerate("xy", 1))
    c = list(map(lambda p, q: p + q, [1, 2], [3, 4]))
    d = list(filter(None, [0, 1, 2]))
    e = list(reversed([1, 2, 3]))
    f = list(itertools.chain([1], [2, 3]))
    g = list(itertools.islice(itertools.count(3), 2))
    h = list(itertools.product("ab", [1, 2]))
    k = list(itertools.accumulate([1, 2, 3]))
    l = list(itertools.zip_longest([1], [2, 3], fillvalue=0))
    m = list(itertools.chain.from_iterable([[1], [2]]))
    n = list(itertools.combinations([1, 2, 3], 2))
    o = list(itertools.repeat(1, 3))
    p = list(itertools.starmap(operator.add, [(1, 2)]))
    q = sorted([3, 1, 2], reverse=True), sorted("bca", key=ord)
    return x, a, b, c, d, e, f, g, h, k, l, m, n, o, p, q


@pytest.mark.parametrize("each", CASES, ids=lambda each: each.name)
def test_flow(each):
    check(each)
