"""Coroutines that a compiled function drives."""

from __future__ import annotations

import types

import pytest
import torch
from compile_runs import compare, compiled, t, whole


def drive(c):
    got = []
    try:
        v = None
        while True:
            v = c.send(v)
            got.append(v)
    except StopIteration as s:
        return s.value, got


async def double(v):
    return v * 2


class Pause:
    def __init__(self, v):
        self.v = v

    def __await__(self):
        r = yield self.v
        return r


def driven(x):
    try:
        double(x).send(None)
    except StopIteration as s:
        return s.value


def awaiting(x):
    async def main():
        a = await double(x)
        b = await Pause(3)
        return a + (b or 0), b

    return drive(main())


def with_statements(x):
    log = []

    class M:
        async def __aenter__(self):
            log.append("in")
            return await Pause(1)

        async def __aexit__(self, t, v, tb):
            log.append(t and t.__name__)
            return t is KeyError

    async def main():
        async with M() as m:
            log.append(m)
        async with M():
            raise KeyError(1)
        try:
            async with M():
                raise ValueError(1)
        except ValueError:
            log.append("ve")
        return x * 2

    return drive(main()), log


def for_loops(x):
    class It:
        def __init__(s):
            s.n = 0

        def __aiter__(s):
            return s

        async def __anext__(s):
            s.n += 1
            if s.n > 3:
                raise StopAsyncIteration
            await Pause(s.n)
            return s.n

    async def main():
        t = 0
        async for i in It():
            t += i
        else:
            t += 100
        l = [i async for i in It() if i != 2]
        return x * t, l

    return drive(main())


def thrown(x):
    async def inner():
        try:
            await Pause(1)
        except ValueError:
            return "caught"

    async def main():
        return await inner()

    c = main()
    c.send(None)
    try:
        c.throw(ValueError(2))
    except StopIteration as s:
        return x * 2, s.value


def closed(x):
    log = []

    async def inner():
        try:
            await Pause(1)
        finally:
            log.append("fin")

    async def main():
        return await inner()

    c = main()
    c.send(None)
    c.close()
    try:
        c.send(None)
    except RuntimeError as e:
        log.append(str(e))
    return x * 2, log


def refused(x):
    log = []

    async def m():
        await 3

    async def n():
        async with 3:
            pass

    async def o():
        async for k in 3:
            pass

    async def w():
        class A:
            async def __aenter__(self):
                pass

        async with A():
            pass

    for f in (m, n, o, w):
        try:
            drive(f())
        except TypeError as e:
            log.append(str(e))
    return x * 2, log


def made_from_a_generator(x):
    @types.coroutine
    def p():
        r = yield 5
        return r

    async def main():
        return await p()

    c = main()
    a = c.send(None)
    try:
        c.send(7)
    except StopIteration as s:
        return x * 2, a, s.value


def awaited_twice(x):
    c = double(x)

    async def a():
        return await c

    async def b():
        return await c

    r = drive(a())
    try:
        drive(b())
    except RuntimeError as e:
        return r[0], str(e)


def yields_a_tensor(x):
    async def m():
        await Pause(x.sum())
        return x * 2

    c = m()
    y = c.send(None)
    return y, c.close()


def raises_stop_iteration(x):
    async def m():
        raise StopIteration(3)

    try:
        drive(m())
    except RuntimeError as e:
        return x * 2, str(e)


def awaits_itself(x):
    async def m(k):
        return k if k == 0 else (await m(k - 1)) + 1

    return drive(m(20))[0] + x


def no_iterator(x):
    c = double(x)

    def g():
        yield from c

    try:
        next(g())
    except TypeError as e:
        r = str(e)
    try:
        c.send(3)
    except TypeError as e:
        r += str(e)
    c.close()
    return x * 2, r


def through_its_iterator(x):
    c = double(x)
    w = c.__await__()
    try:
        next(w)
    except StopIteration as s:
        return s.value


def never_awaited(x):
    double(x)
    return x * 2


def breaks(x):
    async def m():
        torch._dynamo.graph_break()
        return x * 2

    return drive(m())[0] + 1


def returned(x):
    return x * 2, double(x)


WHOLE = (
    driven,
    awaiting,
    with_statements,
    for_loops,
    thrown,
    closed,
    refused,
    made_from_a_generator,
    awaited_twice,
    yields_a_tensor,
    raises_stop_iteration,
    awaits_itself,
    no_iterator,
    through_its_iterator,
)


@pytest.mark.parametrize("program", WHOLE, ids=lambda program: program.__name__)
def test_programs(program):
    whole(compare(program, t(2)))


def test_a_coroutine_that_nobody_awaits_warns_as_in_python():
    run, said = compiled(never_awaited)
    for _ in range(2):
        with pytest.warns(RuntimeWarning, match="was never awaited"):
            run(torch.ones(2))
    assert said.codes() == ["async"]


def never_iterated(x):
    log = []
    coroutine = double(x)
    for use in (list, next, lambda c: 3 in c, lambda c: [*zip(c)]):
        try:
            log.append(use(coroutine))
        except TypeError as error:
            log.append(str(error))
    coroutine.close()
    return x * 2, log


def test_a_coroutine_is_no_iterator():
    whole(compare(never_iterated, t(2)))


def test_a_break_inside():
    assert compare(breaks, t(2)).codes()[0] == "explicit-break"


def test_a_coroutine_leaves_the_trace():
    run, said = compiled(returned)
    for _ in range(2):
        y, coroutine = run(torch.ones(2))
        assert (y.tolist(), type(coroutine), coroutine.__name__) == ([2, 2], types.CoroutineType, "double")
        assert drive(coroutine)[0].tolist() == [2, 2]
    assert said.codes() == []


def test_one_in_the_middle_of_its_run_does_not():
    def program(x):
        async def main():
            return await Pause(3)

        coroutine = main()
        return x * coroutine.send(None), coroutine

    run, said = compiled(program)
    for _ in range(2):
        y, coroutine = run(torch.ones(2))
        assert (y.tolist(), drive(coroutine)) == ([3, 3], (None, []))
    assert said.codes()[0] == "reconstruct"
