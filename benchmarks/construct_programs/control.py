"""Control flow: exceptions, generators, coroutines, iterators, recursion, code made at run time."""

from __future__ import annotations

import contextlib
import functools
import itertools
import operator

import torch


def except_star(x):
    total = 0
    try:
        raise ExceptionGroup("several", [ValueError("a"), TypeError("b")])
    except* ValueError as group:
        total += len(group.exceptions)
    except* TypeError:
        total += 10
    return x * total


def exception_group_split(x):
    group = ExceptionGroup("several", [ValueError("a"), TypeError("b")])
    match, rest = group.split(ValueError)
    return x * (len(match.exceptions) + len(rest.exceptions))


def try_finally_return(x):
    log = []
    try:
        try:
            return x + len(log)
        finally:
            log.append(1)
    finally:
        log.append(2)


def exception_chain(x):
    try:
        try:
            {}["missing"]
        except KeyError as error:
            raise ValueError("outer") from error
    except ValueError as error:
        return x * 2 if isinstance(error.__cause__, KeyError) else x


def exception_with_note_and_traceback(x):
    try:
        raise ValueError("a")
    except ValueError as error:
        error.add_note("note")
        return x * len(error.__notes__) if error.__traceback__ is not None else x


def caught_torch_error(x):
    try:
        return x @ x
    except RuntimeError:
        return x @ x.T


def coroutine_driven(x):
    async def compute(value):
        return value * 2

    coroutine = compute(x)
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    return x


def async_generator_driven(x):
    async def numbers():
        yield 1
        yield 2

    async def total():
        found = 0
        async for number in numbers():
            found += number
        return found

    try:
        total().send(None)
    except StopIteration as stop:
        return x * stop.value
    return x


def generator_send(x):
    def accumulate():
        total = 0
        while True:
            total += yield total

    generator = accumulate()
    next(generator)
    generator.send(2)
    return x * generator.send(3)


def generator_throw_and_close(x):
    def robust():
        try:
            yield 1
        except ValueError:
            yield 5
        finally:
            closed.append(True)

    closed = []
    generator = robust()
    next(generator)
    value = generator.throw(ValueError("x"))
    generator.close()
    return x * value + len(closed)


def yield_from_with_result(x):
    def inner():
        yield 1
        return 4

    def outer():
        result = yield from inner()
        yield result

    return x * sum(outer())


def generator_returned(x):
    return (x * number for number in range(3))


def generator_as_argument(x):
    return torch.stack(list(x[index] * 2 for index in range(x.shape[0])))


def comprehension_kinds(x):
    squares = [n * n for n in range(3)]
    keyed = {n: n + 1 for n in squares}
    unique = {n % 2 for n in squares}
    return x * sum(keyed.values()) + len(unique)


def iterator_returned(x):
    return iter([x, x + 1])


def range_returned(x):
    return range(x.shape[0]), x + 1


def zip_returned(x):
    return zip([1, 2], [x, x + 1])


def map_returned(x):
    return map(lambda number: number * 2, [1, 2]), x + 1


def enumerate_reversed_filter(x):
    total = 0
    for index, value in enumerate(reversed([1, 2, 3]), start=2):
        total += index * value
    for value in filter(None, [0, 1, 2]):
        total += value
    return x * total


def zip_strict(x):
    try:
        list(zip([1], [1, 2], strict=True))
    except ValueError:
        return x + 1
    return x


def iter_sentinel(x):
    values = [3, 2, 1, 0]
    return x * sum(iter(values.pop, 1))


def itertools_functions(x):
    total = sum(itertools.chain([1], (2,))) + len(list(itertools.product([1, 2], repeat=2)))
    total += sum(itertools.islice(itertools.count(3), 2)) + sum(itertools.accumulate([1, 2, 3]))
    total += len(list(itertools.combinations(range(4), 2))) + len(list(itertools.permutations(range(3))))
    return x * total


def itertools_more(x):
    pairs = list(itertools.pairwise([1, 2, 3]))
    longest = list(itertools.zip_longest([1], [1, 2], fillvalue=7))
    groups = [(key, len(list(items))) for key, items in itertools.groupby("aabb")]
    left, right = itertools.tee([1, 2])
    star = list(itertools.starmap(pow, [(2, 3)]))
    return x * (len(pairs) + longest[1][0] + groups[0][1] + sum(left) + sum(right) + star[0])


def itertools_stateful(x):
    cycle = itertools.cycle([1, 2, 3])
    repeat = itertools.repeat(2, 3)
    taken = [next(cycle) for _ in range(5)]
    kept = list(itertools.takewhile(lambda n: n < 3, taken)) + list(itertools.dropwhile(lambda n: n < 3, taken))
    return x * (sum(kept) + sum(repeat) + sum(itertools.compress([1, 2, 3], [1, 0, 1])))


COUNTER = itertools.count(1)


def outside_iterator_advanced(x):
    return x * next(COUNTER)


def outside_iterator_made_before(x):
    total = x
    for item in iter({"a": 1, "b": 2}.items()):
        total = total + item[1]
    return total


class Countdown:
    def __init__(self, start):
        self.start = start

    def __iter__(self):
        return self

    def __next__(self):
        if self.start == 0:
            raise StopIteration
        self.start -= 1
        return self.start


def user_iterator(x):
    return x * sum(Countdown(4))


class Sequence:
    def __getitem__(self, index):
        if index > 3:
            raise IndexError
        return index


def sequence_protocol(x):
    return x * sum(Sequence()) + (2 in Sequence())


def match_statement(x):
    def kind(value):
        match value:
            case {"a": int(a), **rest}:
                return a + len(rest)
            case [first, *others] if first > 0:
                return first + len(others)
            case str() | bytes():
                return 7
            case _:
                return 0

    return x * (kind({"a": 2, "b": 1}) + kind([3, 4]) + kind("s") + kind(None))


class Vector:
    __match_args__ = ("a", "b")

    def __init__(self, a, b):
        self.a, self.b = a, b


def match_class(x):
    match Vector(1, 2):
        case Vector(1, b=second):
            return x * second
    return x


def walrus_and_chained(x):
    if (size := x.shape[0]) > 1 and 0 < size <= 2 != 3:
        return x * size
    return x


def star_arguments(x):
    def inner(first, /, *rest, key=1, **more):
        return first * key + len(rest) + len(more)

    return inner(x, *[1, 2], **{"key": 3, "other": 4})


def star_unpacking(x):
    first, *middle, last = [1, 2, 3, 4]
    merged = {**{"a": 1}, "b": 2}
    return x * first + sum(middle) + last + len([*middle, *merged])


def nonlocal_and_global(x):
    count = 0

    def bump():
        nonlocal count
        global BUMPS
        count += 1
        BUMPS += 1
        return count

    bump()
    return x * bump() + BUMPS


BUMPS = 0


def recursion(x):
    def factorial(number):
        return 1 if number <= 1 else number * factorial(number - 1)

    return x * factorial(5)


def mutual_recursion(x):
    def even(number):
        return True if number == 0 else odd(number - 1)

    def odd(number):
        return False if number == 0 else even(number - 1)

    return x * 2 if even(10) else x


@functools.cache
def fibonacci(number):
    return number if number < 2 else fibonacci(number - 1) + fibonacci(number - 2)


def cached_recursion(x):
    return x * fibonacci(8)


def while_else_and_for_else(x):
    number = 0
    while number < 3:
        number += 1
    else:
        number += 10
    for item in range(3):
        if item == 5:
            break
    else:
        number += 100
    return x * number


def lambda_defaults(x):
    functions = [lambda value, n=n: value * n for n in range(3)]
    return sum(function(x) for function in functions)


def eval_expression(x):
    return x * eval("2 + 3")


def eval_with_tensor(x):
    return eval("x * 2", {"x": x})


def exec_statement(x):
    namespace = {}
    exec("factor = 3\ndef scale(value):\n    return value * factor", namespace)
    return namespace["scale"](x)


def compile_builtin(x):
    return x * eval(compile("1 + 1", "<string>", "eval"))


def globals_and_locals(x):
    inside = 3
    return x * locals()["inside"] + len(globals()["__name__"])


def delete_statement(x):
    items = [1, 2, 3, 4]
    del items[0], items[1:2]
    name = 3
    del name
    try:
        return x * name
    except UnboundLocalError:
        return x * sum(items)


def assert_statement(x):
    assert x.shape[0] == 2, "two rows"
    return x + 1


def data_dependent_assert(x):
    assert (x >= 0).all(), "negative"
    return x + 1


def raise_on_data(x):
    if (x < 0).any():
        raise ValueError("negative")
    return x.sqrt()


@contextlib.contextmanager
def doubled(log):
    log.append("in")
    try:
        yield 2
    finally:
        log.append("out")


def contextmanager_function(x):
    log = []
    with doubled(log) as factor:
        result = x * factor
    return result + len(log)


def exit_stack(x):
    log = []
    with contextlib.ExitStack() as stack:
        factor = stack.enter_context(doubled(log))
        stack.callback(log.append, "callback")
        result = x * factor
    return result + len(log)


def suppress_and_nullcontext(x):
    with contextlib.suppress(KeyError), contextlib.nullcontext(3) as factor:
        x = x * factor
        {}["missing"]
    return x


def closing_and_redirect(x):
    class Handle:
        closed = False

        def close(self):
            self.closed = True

    with contextlib.closing(Handle()) as handle:
        pass
    return x * 2 if handle.closed else x


def operator_functions(x):
    getter = operator.itemgetter(1, 0)
    pair = getter([2, 3])
    return operator.mul(x, pair[0]) + operator.attrgetter("shape")(x)[0] + operator.methodcaller("sum")(x)


def inplace_operators(x):
    values = [1]
    values += (2,)
    values *= 2
    number = 7
    number //= 2
    number **= 2
    number |= 4
    return x * number + len(values)


def chained_generators(x):
    numbers = (n for n in range(10))
    evens = (n for n in numbers if n % 2 == 0)
    return x * sum(n * n for n in evens)


def sorted_with_key(x):
    items = sorted(["bb", "a", "ccc"], key=len, reverse=True)
    return x * len(items[0]) + min([3, 1, 2], key=lambda n: -n) + max((), default=4)


def builtin_functions(x):
    total = abs(-2) + divmod(7, 2)[1] + round(2.567, 1) + pow(2, 3, 5) + len(hex(10)) + ord("a") + int("7", 8)
    return x * total + sum(map(int, "123")) + all([1, 1]) + any([0, 1]) + callable(len) + isinstance(1, (int, str))


def slices_and_indexing(x):
    part = slice(0, 2)
    return x[part, ..., None].squeeze(-1) + [1, 2, 3][::-1][0] + len(range(10)[2:8:2])


def break_code_in_loop(x):
    total = x
    for index in range(3):
        if index == 1:
            continue
        total = total + index
    return total
