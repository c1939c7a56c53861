"""Generators that others drive: values sent, exceptions thrown, `yield from`, results."""

from __future__ import annotations

import pytest
from compile_runs import compare, t, whole


class It:
    def __init__(self):
        self.log = []

    def __iter__(self):
        return self

    def __next__(self):
        if len(self.log) > 2:
            raise StopIteration(9)
        self.log.append("n")
        return 3

    def send(self, v):
        self.log.append(v)
        return v * 2

    def throw(self, e):
        self.log.append(type(e).__name__)
        return 11

    def close(self):
        self.log.append("close")


def a_value_sent_at_the_start(x):
    def g():
        v = yield x
        yield v

    a = g()
    try:
        a.send(5)
    except TypeError as e:
        return x * 2, str(e), next(a)
    return x * 2


def thrown_into_the_inner_one(x):
    def inner():
        try:
            yield 1
        except ValueError:
            yield 2

    def outer():
        try:
            yield from inner()
        except ValueError:
            yield 7

    g = outer()
    next(g)
    return x * 2 + g.throw(ValueError), next(g, None)


def thrown_into_one_that_returns(x):
    def inner():
        try:
            yield 1
        except ValueError:
            return 5

    def outer():
        a = yield from inner()
        yield a + 1
        return 3

    g = outer()
    next(g)
    return x * 2 + g.throw(ValueError("k")), next(g, None)


def thrown_into_a_list_iterator(x):
    def outer():
        try:
            yield from [1, 2, 3]
        except ValueError as e:
            yield str(e)

    g = outer()
    next(g)
    return x * 2, g.throw(ValueError("k")), next(g, None)


def closed_inside(x):
    log = []

    def inner():
        try:
            yield 1
        finally:
            log.append("i")

    def outer():
        try:
            yield from inner()
        finally:
            log.append("o")

    g = outer()
    next(g)
    r = g.close()
    return x * 2, log, r


def closed_with_a_result(x):
    def inner():
        try:
            yield 1
        except GeneratorExit:
            return 5

    g = inner()
    next(g)
    r = g.close()
    return x * 2, r


def closing_raises(x):
    log = []

    def inner():
        try:
            yield 1
        except GeneratorExit:
            raise KeyError(3)

    def outer():
        try:
            yield from inner()
        except KeyError as e:
            log.append(e.args)
            return 4

    g = outer()
    next(g)
    r = g.close()
    return x * 2, log, r


def sent_to_an_object(x):
    log = []

    def outer():
        r = yield from it
        log.append(r)
        yield r

    it = It()
    g = outer()
    a = next(g)
    b = g.send(10)
    c = g.throw(ValueError("u"))
    d = next(g)
    return x * 2 + a + b + c, d, log, it.log


def closing_an_object(x):
    def outer():
        yield from it

    it = It()
    g = outer()
    next(g)
    g.close()
    return x * 2, it.log


def running_already(x):
    def g():
        try:
            next(h)
        except ValueError as e:
            yield str(e)
        try:
            h.close()
        except ValueError as e:
            yield str(e)
        try:
            h.throw(KeyError)
        except ValueError as e:
            yield str(e)

    h = g()
    return x * 2, list(h)


def raises_stop_iteration(x):
    def g():
        yield 1
        raise StopIteration(3)

    h = g()
    next(h)
    try:
        next(h)
    except RuntimeError as e:
        return x * 2, str(e)


def ignores_the_exit(x):
    def inner():
        try:
            yield 1
        except GeneratorExit:
            yield 3

    def outer():
        yield from inner()

    g = outer()
    next(g)
    try:
        g.close()
    except RuntimeError as e:
        return x * 2, str(e)


def value_of_the_return(x):
    def g():
        yield 1
        return 5

    h = g()
    next(h)
    try:
        next(h)
    except StopIteration as s:
        return x * 2, s.value


def value_of_the_return_by_method(x):
    def g():
        yield 1
        return 5

    h = g()
    next(h)
    try:
        h.__next__()
    except StopIteration as s:
        return x * 2, s.value, next(h, 9)


def next_asks_once(x):
    class It:
        n = 0

        def __iter__(self):
            return self

        def __next__(self):
            self.n += 1
            raise StopIteration(4)

    it = It()
    try:
        next(it)
    except StopIteration as s:
        r = s.value
    q = next(it, 7)
    return x * 2, it.n, r, q


def next_of_no_iterator(x):
    try:
        next(3)
    except TypeError as e:
        return x * 2, str(e)


def thrown_what_is_no_exception(x):
    def inner():
        yield 1

    generator, said = inner(), []
    next(generator)
    for thrown in (3, int):
        try:
            generator.throw(thrown)
        except TypeError as error:
            said.append(str(error))
    return x * 2, said


def thrown_with_an_instance(x):
    def inner():
        yield 1

    generator = inner()
    next(generator)
    try:
        generator.throw(ValueError, ValueError("v"), None)
    except ValueError as error:
        return x * 2, str(error)


def another_one_raised_inside(x):
    def inner():
        try:
            yield 1
        except KeyError:
            raise ValueError(3) from None

    def outer():
        try:
            yield from inner()
        except ValueError as error:
            yield error.args

    generator = outer()
    next(generator)
    return x * 2, generator.throw(KeyError(1)), next(generator, None)


WHOLE = (
    thrown_what_is_no_exception,
    thrown_with_an_instance,
    another_one_raised_inside,
    a_value_sent_at_the_start,
    thrown_into_the_inner_one,
    thrown_into_one_that_returns,
    thrown_into_a_list_iterator,
    closed_inside,
    closed_with_a_result,
    closing_raises,
    sent_to_an_object,
    closing_an_object,
    running_already,
    raises_stop_iteration,
    value_of_the_return,
    value_of_the_return_by_method,
    next_asks_once,
    next_of_no_iterator,
)


@pytest.mark.parametrize("program", WHOLE, ids=lambda program: program.__name__)
def test_programs(program):
    whole(compare(program, t(2)))


def test_a_generator_that_ignores_its_end_is_left_to_python():
    compare(ignores_the_exit, t(2))


def test_a_suspended_generator_goes_on_in_the_inner_one():
    def program(x):
        def inner():
            got = yield 1
            last = yield got
            return last

        def outer():
            yield (yield from inner())

        generator = outer()
        next(generator)
        generator.send(4)
        return x * 2, generator

    def used(x):
        y, generator = program(x)
        return y, generator.send(8), list(generator)

    compare(used, t(2))
