"""Iterators from outside: the trace takes their items, and the real ones are moved on."""

from __future__ import annotations

import gc
import itertools

import pytest
import torch
from compile_runs import compare, compiled, t


def rest(x, it):
    for y in it:
        x = (x + y).sin()
    return x


def one(x, it):
    return x * next(it)


def two_and_default(x, it):
    first = next(it, None)
    return x if first is None else x * first, next(it, -1)


def listed(x, it):
    return [x + y for y in it], list(it)


def tensors(count):
    return [torch.full((2,), float(n)) for n in range(count)]


def begun(iterator, taken):
    for _ in range(taken):
        next(iterator, None)
    return iterator


MAKERS = {
    "list": lambda: iter(tensors(4)),
    "tuple": lambda: iter(tuple(tensors(4))),
    "range": lambda: iter(range(2, 11, 3)),
    "backwards": lambda: iter(range(5, -4, -2)),
    "empty": lambda: iter([]),
    "empty range": lambda: iter(range(0)),
    "zip": lambda: zip(tensors(4), [2.0, 3.0, 4.0]),
    "strict zip": lambda: zip(tensors(3), range(3), strict=True),
    "too short": lambda: zip(tensors(3), range(4), strict=True),
    "enumerate": lambda: enumerate(tensors(3), 5),
    "enumerate of zip": lambda: enumerate(zip(tensors(3), tensors(2))),
    "map": lambda: map(torch.sin, tensors(3)),
    "map of two": lambda: map(lambda a, b: a * b, tensors(3), iter(tensors(5))),
    "filter": lambda: filter(None, [0, 1, 0, 2, 3]),
    "filter by a function": lambda: filter(lambda n: n % 2, range(7)),
    "nothing": lambda: zip(),
}


def first_of(item):
    while isinstance(item, tuple):
        item = item[-1]
    return item


def rest_of_any(x, it):
    for item in it:
        x = x + first_of(item)
    return x


def next_of_any(x, it):
    return x + first_of(next(it, 0.5))


@pytest.mark.parametrize("taken", [0, 1, 2, 3, 6])
@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("program", [rest_of_any, next_of_any])
def test_results_and_what_is_left(program, name, taken):
    """The items behind those that the program has taken are still there."""

    def made():
        try:
            return begun(MAKERS[name](), taken)
        except ValueError:
            return iter(())

    def outcome(function):
        left = made()
        try:
            result = [function(t(2)(), left) for _ in range(2)]
        except ValueError as error:
            result = str(error)
        try:
            return result, list(left)
        except ValueError as error:
            return result, str(error)

    run, recorder = compiled(program)
    assert _same(outcome(run), outcome(program))
    assert not recorder.breaks or name == "too short"


def _same(a, b):
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(_same, a, b))
    return a == b


def test_one_item_per_call_is_compiled_once():
    run, recorder = compiled(one)
    mine, theirs = iter(tensors(20)), iter(tensors(20))
    for _ in range(20):
        assert torch.equal(run(torch.ones(2), mine), one(torch.ones(2), theirs))
    assert len(recorder.graphs) <= 2 and not recorder.breaks
    for function, left in ((run, mine), (one, theirs)):
        with pytest.raises(StopIteration):
            function(torch.ones(2), left)


def test_numbers_of_a_range_become_dynamic():
    run, recorder = compiled(one)
    mine, theirs = iter(range(3, 60, 4)), iter(range(3, 60, 4))
    for _ in range(14):
        assert torch.equal(run(torch.ones(2), mine), one(torch.ones(2), theirs))
    assert len(recorder.graphs) <= 3 and list(mine) == list(theirs)


def test_a_comprehension_over_an_iterator_that_others_have_begun():
    def program(x, xs):
        it = iter(xs)
        head = next(it)
        return [x * y for y in it], head

    recorder = compare(program, t(2), lambda: tensors(4))
    assert not recorder.breaks


def test_two_paths_to_one_iterator():
    def program(x, it, pairs):
        a = next(it)
        (b, c) = next(pairs)
        return x + a, b, c, next(it, None), next(pairs, None)

    def shared(count):
        def make():
            it = iter(range(count))
            return it, zip(it, it)

        return make

    for count in range(8):
        run, _ = compiled(program)
        for _ in range(2):
            mine, theirs = shared(count)(), shared(count)()
            found = [_outcome(f, pair) for f, pair in ((run, mine), (program, theirs))]
            assert _same(*found)
            assert list(mine[0]) == list(theirs[0])


def _outcome(function, pair):
    try:
        return function(torch.zeros(2), *pair)
    except StopIteration:
        return "stopped"


def test_an_enumerate_and_what_it_goes_over():
    def program(x, it, numbered):
        n, a = next(numbered)
        b = next(it)
        return x * n + a + b, next(numbered, None)

    run, _ = compiled(program)
    for count in (2, 3, 4, 5):
        states = []
        for function in (run, program):
            it = iter(tensors(count))
            numbered = enumerate(it)
            states.append((_outcome(function, (it, numbered)), list(numbered), list(it)))
        assert _same(*states)


def test_a_list_that_the_program_changes():
    def appends(x, xs, it):
        first = next(it)
        xs.append(x)
        return first, sum(1 for _ in it)

    def appends_at_the_end(x, xs, it):
        n = len(list(it))
        xs.append(x)
        return n, len(list(it)), next(it, None) is None

    def empties(x, xs, it):
        xs.clear()
        return x + 1, next(it, None)

    def goes_on(x, xs, it):
        x = x + next(it)
        xs.append(x * 2)
        return x

    for program in (appends, appends_at_the_end, empties, goes_on):
        run, _ = compiled(program)
        for _ in range(3):
            states = []
            for function in (run, program):
                xs = tensors(3)
                it = iter(xs)
                states.append((function(torch.ones(2), xs, it), xs, list(it)))
            assert _same(*states), program


def test_lists_that_an_iterator_goes_over_or_not():
    """What the program changes may be what an iterator of another call goes over, has gone over, or has nothing to do with."""

    def appends(x, xs, it):
        xs.append(x)
        return next(it, None) is None, len(xs)

    def takes(x, xs, it):
        first = next(it, None)
        xs.clear()
        return first is None, next(it, 5)

    def over(xs):
        return iter(xs)

    def ended(xs):
        it = iter(xs)
        list(it)
        return it

    def other(xs):
        return iter(list(xs))

    for program in (appends, takes):
        for order in itertools.permutations((over, ended, other)):
            for count in (0, 1, 2):
                run, _ = compiled(program)
                for make in (*order, *order):
                    states = []
                    for function in (run, program):
                        xs = tensors(count)
                        it = make(xs)
                        states.append((function(torch.ones(2), xs, it), xs, list(it)))
                    assert _same(*states), (program, make, count)


def test_an_exception_leaves_the_iterator_where_it_is():
    def program(x, it, log):
        for y in it:
            log.append(1)
            if y > 2:
                raise ValueError("too large")
            x = x + y
        return x

    run, _ = compiled(program)
    for _ in range(2):
        states = []
        for function in (run, program):
            it, log = iter(range(6)), []
            with pytest.raises(ValueError, match="too large"):
                function(torch.ones(2), it, log)
            states.append((list(it), log))
        assert states[0] == states[1]


def test_iterators_of_subclasses_and_of_dicts_are_left_to_python():
    class Own(list):
        def __getitem__(self, position):
            return 100

    def of_own():
        return iter(Own(tensors(3)))

    run, _ = compiled(rest)
    for make in (of_own, lambda: iter({1: 2, 3: 4}), lambda: iter({5, 6}), lambda: iter(dict(a=2.0).values())):
        assert torch.equal(run(torch.ones(2), make()), rest(torch.ones(2), make()))


def test_a_loop_with_a_break_has_a_constant_number_of_graphs():
    hidden = [].append

    def program(x, it):
        for y in it:
            x = (x + y).relu()
            hidden(1)
            x = x * 2
        return x

    run, recorder = compiled(program)
    for count in (5, 20, 9):
        assert torch.equal(run(torch.ones(2), iter(tensors(count))), program(torch.ones(2), iter(tensors(count))))
    assert len(recorder.graphs) <= 8 and not recorder.skips


def test_an_iterator_as_an_attribute():
    class Loader:
        def __init__(self):
            self.batches = iter(tensors(12))

    def program(x, loader):
        return x + next(loader.batches)

    run, recorder = compiled(program)
    mine, theirs = Loader(), Loader()
    for _ in range(12):
        assert torch.equal(run(torch.ones(2), mine), program(torch.ones(2), theirs))
    assert len(recorder.graphs) <= 2 and not recorder.breaks


def test_the_iterator_itself_is_given_back():
    def program(x, it):
        next(it)
        return it, x + 1, iter(it) is it, zip(it, [1, 2])

    run, _ = compiled(program)
    for _ in range(2):
        it = iter(tensors(4))
        back, _, same, pairs = run(torch.ones(2), it)
        assert back is it and same
        assert [float(a[0]) for a, _ in pairs] == [1.0, 2.0] and [float(a[0]) for a in it] == []
    gc.collect()


def test_a_map_calls_its_function_as_often_as_in_eager():
    def program(x, it):
        return x + next(it), next(it)

    run, _ = compiled(program)
    for _ in range(3):
        logs = []
        for function in (run, program):
            log = []
            it = map(lambda n, log=log: (log.append(n), n * 2)[1], range(5))
            found = function(torch.ones(2), it)
            logs.append((found[1], list(log), list(it), list(log)))
        assert logs[0] == logs[1]


def test_one_iterator_in_two_places():
    def program(x, a, b):
        return next(a), next(b), next(a), x + 1

    def pair_of(make):
        return lambda: (make(), make())

    def zipped():
        it = iter(range(9))
        return zip(it), it

    def numbered():
        it = iter(range(9))
        return it, enumerate(it)

    def same(make):
        def made():
            it = make()
            return it, it

        return made

    makers = [pair_of(lambda: iter(list(range(5)))), same(lambda: iter(list(range(5))))]
    makers += [pair_of(lambda: zip(range(5))), same(lambda: zip(range(5))), zipped]
    makers += [lambda: (iter(range(9)), enumerate(iter(range(9)))), numbered]
    makers += [pair_of(lambda: iter(range(5))), same(lambda: iter(range(5)))]
    for order in (makers, makers[::-1]):
        run, _ = compiled(program)
        for make in (*order, *order):
            mine, theirs = make(), make()
            assert _same(run(torch.ones(1), *mine), program(torch.ones(1), *theirs))
            assert [list(it) for it in mine] == [list(it) for it in theirs]
