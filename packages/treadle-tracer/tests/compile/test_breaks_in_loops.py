"""Breaks in loops: the pieces of a loop are compiled a constant number of times, however many turns it has."""

from __future__ import annotations

import contextlib
import itertools
import math

import pytest
import torch
from compile_runs import compare, compiled, listed, portrait, t

stop = getattr(math, "hypot")  # noqa: B009  unknown to the tracer


def tensors(count):
    return lambda: [torch.full((2,), float(i)) for i in range(count)]


def appends(x, xs):
    out = []
    for y in xs:
        x = torch.relu(x) + y
        stop(1)
        out.append(x * 2)
    return out


def extends(x, xs):
    out = [x]
    for y in xs:
        out += [x, y]
        stop(1)
        out.extend((x + y,))
    return out


def grows_a_tuple(x, xs):
    states = ()
    for y in xs:
        x = x + y
        states += (x,)
        stop(1)
        states = states + (x * 2,)
    return states


def appends_to_an_argument(x, xs):
    for y in list(xs):
        stop(1)
        xs.append(x + y)
    return len(xs)


def comprehension(x, xs):
    return [(x * y, stop(1), x + y)[2] for y in xs]


def reads_what_it_has_appended(x, xs):
    out = []
    for y in xs:
        stop(1)
        out.append(x + y)
        x = out[-1] * len(out)
    return x, out


@pytest.mark.parametrize(
    "program", [appends, extends, grows_a_tuple, appends_to_an_argument, comprehension, reads_what_it_has_appended]
)
def test_accumulators(program):
    compare(program, t(2), tensors(5))


@pytest.mark.parametrize("program", [appends, extends, grows_a_tuple, appends_to_an_argument, comprehension])
def test_accumulators_do_not_recompile(program):
    fast, recorder = compiled(program)
    fast(torch.ones(2), tensors(3)())
    entries = len(recorder.entries)
    fast(torch.ones(2), tensors(20)())
    assert recorder.skips == []
    assert len(recorder.entries) <= entries + 1


# ---- iterators and generators that are alive at a break, or at the end


def numbers(x):
    for i in range(5):
        got = yield x + i
        if got is not None:
            x = x * got


def cleaning_up(x, log):
    try:
        for i in range(4):
            yield x + i
    finally:
        log.append("closed")


def over_a_generator(x):
    out = []
    for y in numbers(x * 2):
        stop(1)
        out.append(y * 2)
    return out


def generator_across_a_break(x):
    g = numbers(x)
    first = next(g)
    stop(1)
    second = g.send(3)
    stop(1)
    return first + second, list(g)


def returns_generators(x):
    running, fresh, finished = numbers(x), numbers(x + 1), numbers(x)
    next(running)
    list(finished)
    return running, fresh, finished, running.__name__, (y * 2 for y in [x, x + 1])


def closes_over(x):
    n = 1

    def count():
        nonlocal n
        while n < 5:
            n += 1
            yield x * n

    g = count()
    next(g)
    stop(1)
    n += 1
    return next(g), n, g


def delegates(x):
    def outer():
        got = yield from numbers(x)
        yield got

    g = outer()
    next(g)
    stop(1)
    return g.send(2), list(g)


def iterators_across_a_break(x):
    d = {"a": x, "b": x + 1, "c": x + 2}
    kept = [
        iter(d),
        iter(d.items()),
        enumerate([x, 1], 5),
        zip([x, x + 1], "ab"),
        map(len, ["a", "bc"]),
        iter(range(4)),
    ]
    kept += [
        reversed([1, 2, 3]),
        iter("abc"),
        filter(None, [0, 1, 2]),
        iter({1, 2, 3}),
        zip([1, 2], [3, 4], strict=True),
    ]
    for iterator in kept:
        next(iterator)
    stop(1)
    return kept, [next(iterator) for iterator in kept], d


def itertools_across_a_break(x):
    kept = [
        itertools.chain([1, x], [x, 2]),
        itertools.chain.from_iterable([[1, 2], [x]]),
        itertools.islice(itertools.count(3), 1, 9, 2),
        itertools.islice([1, 2, 3, 4], None),
        itertools.count(1, 2),
        itertools.repeat(x),
        itertools.repeat(x, 3),
        itertools.cycle([1, x, 3]),
        itertools.product([1, 2], [x, 3]),
        itertools.product([1, 2], repeat=2),
        itertools.permutations([1, x, 3], 2),
        itertools.combinations([1, x, 3], 2),
        itertools.accumulate([1, 2, 3]),
        itertools.accumulate([x, x], lambda a, b: a * b, initial=x),
        itertools.starmap(lambda a, b: a + b, [(1, x), (x, 2), (3, 4)]),
        itertools.zip_longest([1, 2, 3], [x], fillvalue=7),
        itertools.pairwise([1, x, 3, 4]),
        itertools.takewhile(lambda a: a < 3, [1, 2, 3, 1]),
        itertools.dropwhile(lambda a: a < 2, [1, 2, 1, 0]),
        itertools.compress([1, 2, x], [1, 0, 1]),
        itertools.filterfalse(lambda a: a % 2, [1, 2, 3, 4]),
    ]
    firsts = [next(iterator) for iterator in kept]
    stop(1)
    return firsts, [next(iterator) for iterator in kept], kept


def exhausted_iterators(x):
    x = x + 1
    ends = [
        iter([x]),
        iter((x,)),
        iter("a"),
        iter({"a": 1}),
        itertools.chain([1]),
        zip([1], [2]),
        itertools.islice([1], 1),
    ]
    ends += [reversed([x]), itertools.takewhile(bool, [1, 0, 1])]
    for iterator in ends:
        list(iterator)
    stop(1)
    return ends


def chain_in_a_loop(x, xs):
    for y, k in zip(itertools.chain(xs, [x]), itertools.count()):
        x = x + y * k
        stop(1)
        x = x / 2
    return x


def drops_a_generator(x):
    log = []
    for y in cleaning_up(x, log):
        break
    log.append("after")
    return y * 2, log


def keeps_a_generator(x):
    log = []
    g = cleaning_up(x, log)
    y = next(g)
    log.append("middle")
    return y * 2, log, g


def closes_a_generator(x):
    log = []
    g = cleaning_up(x, log)
    y = next(g)
    g.close()
    log.append("after")
    return y * 2, log


@contextlib.contextmanager
def opened(log):
    log.append("in")
    try:
        yield log
    except KeyError:
        log.append("caught")
    finally:
        log.append("out")


def with_of_a_generator(x):
    log = []
    with opened(log) as same:
        x = x + 1
        stop(1)
        same.append("inside")
        x = x * 2
        stop(1)
        if x.dim() == 1:
            raise KeyError("a")
    return x, log


ALIVE = [
    over_a_generator,
    generator_across_a_break,
    returns_generators,
    closes_over,
    delegates,
    iterators_across_a_break,
]
ALIVE += [itertools_across_a_break, exhausted_iterators, keeps_a_generator, closes_a_generator, with_of_a_generator]


@pytest.mark.parametrize("program", [*ALIVE, drops_a_generator])
def test_iterators_that_are_alive(program):
    fast, recorder = compiled(program)
    for n in (1, 2, 3):
        x = torch.full((2,), float(n))
        assert portrait(listed(fast(x))) == portrait(listed(program(x)))
    if program is not drops_a_generator:
        assert recorder.graphs
        assert recorder.skips == []


def test_a_chain_in_a_loop():
    recorder = compare(chain_in_a_loop, t(2), tensors(5))
    assert recorder.skips == []


def test_a_dict_changes_while_it_is_iterated_over():
    def changes_values(d):
        out = []
        for key, value in d.items():
            d["c"] = d["c"] + 1
            out.append((key, value))
        return out

    def changes_size(d):
        for key in d:
            d[key + "x"] = 1

    compare(changes_values, lambda: {"a": torch.ones(2), "b": 1, "c": torch.ones(1)})
    compare(changes_size, lambda: {"a": torch.ones(2)})
