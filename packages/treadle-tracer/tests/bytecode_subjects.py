"""Small functions to cut at every instruction: each with the inputs it is run on.

Inputs are given as expressions, evaluated anew for every run, because some are consumed or changed.
"""

from __future__ import annotations

from collections.abc import Callable

SUBJECTS: list[tuple[Callable[..., object], list[str]]] = []


def subject(*inputs: str) -> Callable[[Callable[..., object]], Callable[..., object]]:
    def add(function: Callable[..., object]) -> Callable[..., object]:
        SUBJECTS.append((function, list(inputs)))
        return function

    return add


def clip(value: object) -> object:
    """The value itself if it is small, else something small: loops must not make numbers or containers grow."""
    if isinstance(value, int):
        return value if abs(value) < 50 else value % 50
    text = repr(value)
    return value if len(text) < 40 else len(text) % 50


class Manager:
    """A context manager that writes down what happens to it and may swallow exceptions."""

    def __init__(self, log: list, swallow: bool = False) -> None:
        self.log, self.swallow = log, swallow

    def __enter__(self) -> Manager:
        self.log.append("enter")
        return self

    def __exit__(self, kind: object, value: object, traceback: object) -> bool:
        self.log.append(("exit", None if kind is None else kind.__name__))  # type: ignore[attr-defined]
        return self.swallow


@subject("(1, 2)", "(0, 5)", "(-3, 4)")
def arithmetic(a, b):
    c = a * b + 2
    d = -c if a > 0 else c // (b or 1)
    return [c, d, a < b < c, not a, f"{a!r:>4}{b}"]


@subject("([],)", "([1, 2, 3],)", "(range(6),)")
def nested_loops(items):
    total = 0
    for i in items:
        if i == 4:
            break
        for j in range(i):
            if j == 2:
                continue
            total += i * 10 + j
        else:
            total += 1000
    else:
        total = -total
    return total, items


@subject("(0,)", "(3,)", "(7,)")
def while_else(n):
    seen = []
    while n > 0:
        n -= 2
        if n == 3:
            seen.append("three")
            continue
        seen.append(n)
        if n == -5:
            break
    else:
        seen.append("done")
    return seen


@subject("([], False, 1)", "([], True, 0)", "([], False, 0)")
def with_block(log, swallow, divisor):
    with Manager(log, swallow) as outer, Manager(log) as inner:
        log.append(outer is inner)
        result = 10 // divisor
        log.append(result)
    log.append("after")
    return log


@subject("([], 1)", "([], 0)", "([], 'a')", "([], None)")
def try_everything(log, divisor):
    try:
        try:
            log.append(10 / divisor)
            if divisor == 1:
                return log
        except ZeroDivisionError as error:
            log.append(str(error))
            raise ValueError("zero") from error
        finally:
            log.append("inner finally")
    except ValueError as error:
        log.append((str(error), type(error.__cause__).__name__))
    except TypeError:
        log.append("type")
        if divisor is None:
            raise
    else:
        log.append("else")
    finally:
        log.append("outer finally")
    return log, divisor


@subject("([], [0, 1, 2, 'x'])", "([], [])")
def handlers_in_a_loop(log, items):
    for item in items:
        try:
            log.append(4 // item)
        except ZeroDivisionError:
            try:
                raise KeyError(item)
            except KeyError as error:
                log.append(repr(error.__context__))
            continue
        except TypeError:
            log.append("type")
            break
        finally:
            log.append("finally")
    return log


@subject("([], 1)", "([], 0)", "([], 9)")
def return_through_finally(log, divisor):
    for i in range(3):
        try:
            with Manager(log):
                if i == 1:
                    return log, 1 // divisor
                if divisor == 9 and i == 0:
                    break
        finally:
            log.append(i)
    return None


@subject("([], ExceptionGroup('g', [ValueError(1), TypeError(2), KeyError(3)]))", "([], ValueError(4))", "([], None)")
def exception_groups(log, error):
    try:
        if error is not None:
            raise error
        log.append("fine")
    except* ValueError as group:
        log.append(("value", [str(e) for e in group.exceptions]))
    except* TypeError as group:
        log.append(("type", len(group.exceptions)))
    return log


@subject("(1,)", "(5,)")
def closures(a):
    count = a

    def add(n):
        nonlocal count
        count += n
        return count

    def get():
        return count, a

    first = add(1)
    a += 100
    second = add(a)
    count -= 1
    return first, second, count, get(), add(0)


@subject("(3, 4)", "(0, 1)")
def recursion(n, scale):
    def factorial(k):
        return 1 if k < 2 else k * factorial(k - 1)

    values = [factorial(i) * scale for i in range(n)]
    total = sum(v + scale for v in values)
    return values, total, {k: (lambda: k * n)() for k in range(2)}


@subject("([3, 1, 2],)", "([],)")
def comprehensions(items):
    i = "kept"
    squares = [i * i for i in items if i > 1]
    pairs = {(i, j) for i in items for j in range(i)}
    table = {k: [v for v in range(k)] for k in items}
    makers = [lambda: i for i in items]
    return i, squares, pairs, table, [make() for make in makers], list(n for n in items)


@subject("([1, 2],)", "({'kind': 'a', 'value': 3},)", "({'other': 1},)", "((1, 'x', 3, 4),)", "(7,)", "(1+2j,)")
def matching(subject_value):
    match subject_value:
        case [a, b]:
            return "pair", a, b
        case {"kind": kind, **rest}:
            return "kind", kind, rest
        case (first, str() as text, *others):
            return first, text, others
        case int(n) if n > 5:
            return "large", n
        case complex(real=r, imag=i):
            return r, i
        case _:
            return "nothing"


@subject("('ab', [3, 1, 2])")
def calls(text, items):
    def callee(*args, key=None, **kwargs):
        return args, key, sorted(kwargs.items())

    items.sort(key=lambda v: -v)
    out = [callee(1, *items, key=text.upper(), other=2, **{"z": 3}), callee(*items), callee(text, key=1)]
    out.append(max(len(text), text.count("a"), key=abs))
    print(end="")
    return out, items, text.join(str(i) for i in items)


@subject("(1,)", "(0,)")
def conditionally_bound(flag):
    if flag:
        value = "set"
    try:
        value  # noqa: B018
    except UnboundLocalError as error:
        return str(error)
    del value
    try:
        return value
    except NameError as error:
        return type(error).__name__


@subject("(1,)", "(0,)")
def conditionally_bound_cell(flag):
    if flag:
        value = "set"

    def read():
        return value

    try:
        return read(), value
    except NameError as error:
        return str(error), type(error).__name__


@subject("(2,)")
def keyword_signature(a, /, b=3, *rest, c=4, **others):
    for n in (a, b, c):
        rest += (n,)
    others["d"] = a
    return rest, others


@subject("([1, 2, 3, 4],)")
def unpacking(items):
    a, (b, *c), d = items[0], items[1:], items[-1]
    items[1:2], items[0] = [9, 9], a
    x = y = z = {**{"a": a}, "b": [*c, d]}
    z["b"] += (1,)
    assert items, "not empty"
    del items[0]
    import math as m
    from os import path as p

    return a, b, c, d, x is y, z, items, m.pi, p.sep, a if a and b or c else d


class Base:
    def __init__(self, value):
        self.value = value

    def describe(self, log):
        log.append("base")
        return self.value


class Derived(Base):
    @staticmethod
    def make(value):
        return Derived(value)

    def __init__(self, value):
        parent = super()
        parent.__init__(value + 1)
        keep = lambda: self.value  # noqa: E731
        self.kept = keep()

    def describe(self, log):
        parent = super()
        log.append(__class__.__name__)
        for _ in range(2):
            log.append(super().describe(log))
        self = self  # noqa: PLW0127
        return log, parent.value


subject("(Derived(3), [])")(Derived.describe)
subject("(Derived(3), 4)")(Derived.__init__)


@subject("(1, 2)")
def looks_at_its_frame(a, b):
    c = [a, b]
    cell = a

    def get():
        return cell, c

    before = sorted(locals())
    total = 0
    for n in c:
        total += n + len(locals())
    cell += 1
    here = locals()
    return before, total, here["cell"], here["c"], sorted(here), get()


def _outer():
    factor, counter = 10, 0

    @subject("(4,)")
    def free_variables(n):
        nonlocal counter
        counter = 0
        local = n

        def inner():
            return local * factor + counter

        for i in range(n):
            counter += i
            local += inner()
        return counter, local, inner(), [factor + i for i in range(2)]

    return free_variables


_outer()


@subject("(2,)")
def many_variables(n):
    a = b = c = d = e = f = g = h = i = j = k = l = m = o = p = q = r = s = n
    for t in range(3):
        a, s = s + t, a
        b, r = r, b + a
        q, o = p + 1, q
    return [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s]
