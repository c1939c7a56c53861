"""Calls of Python's own functions, methods and types with arguments that do not fit: the exceptions of eager."""

from __future__ import annotations

import collections
import itertools
import logging
import math
import operator
import warnings

import pytest
import torch

import treadle_tracer
from treadle_tracer.values.arity import why_not_callable_with, why_not_method_with

WRONG = """
{}.get() | {}.get(1,2,3) | {}.get(k=1) | {}.pop() | {}.items(1) | {}.update(1,2) | {}.setdefault() | [].append() | [].append(1,2)
[].index() | [].sort(1) | [].pop(1,2) | [].extend() | [].insert(1) | {1}.add() | (1,).count() | 'a'.join() | 'a'.upper(1)
(3).bit_length(1)
deque().append() | len() | len([1], 2) | isinstance(1) | enumerate() | map(3) | sorted() | sorted(1, 2) | min() | sum() | range()
getattr(1) | hasattr(1) | abs() | any() | all(1, 2) | bool(1, 2) | list(1, 2) | tuple(1, 2) | set(1, 2) | callable(1, 2) | callable()
divmod(1) | round() | id() | hash() | repr() | next() | slice() | type() | math.floor() | math.sqrt(1, 2) | object(1) | zip(strict=1, x=2)
repeat() | cycle() | starmap(len) | takewhile([1]) | filterfalse([1]) | pairwise() | chain([1], a=1) | islice([1], stop=1) | islice([1])
product([1], repeat=-1) | product([1], rep=2) | product([1], repeat=10**20) | combinations([1], None) | combinations([1], -1) | accumulate()
accumulate([1], None, 3) | zip_longest([1], fill=3) | chain.from_iterable() | permutations([1], 10**20) | compress([1]) | count(1, 2, 3)
warnings.warn() | warnings.warn('a', b=1) | log.warning() | log.log() | log.log(10) | log.warning('a', b=1) | print(1, b=2)
print(1, sep=3)
range(1, 2, 0) | range(1, k=2) | range('a') | range(1.5) | isinstance(1, 2) | isinstance(1, list[int]) | isinstance(1, (str, 2))
issubclass(1, int) | issubclass(int, 3) | issubclass(int, list[int]) | max([]) | min() | max(1, 'a') | sum(['a']) | sum([1], 'a')
int('q') | int([]) | float('q') | float([]) | complex('q') | chr(-1) | ord('ab') | bytes(-1) | bytes('a') | hash([]) | {[]: 1} | {}['q']
[1][5] | (1,)[5] | 'a'[3] | [1].remove(2) | [].pop() | {}.popitem() | {}.pop('a') | set().pop() | {1}.remove(2) | deque().pop()
[1].index(2) | 'a'.index('b') | 'a'.join([1]) | 'a'.split('') | 'x' % 3 | '%d' % 'a' | f'{3:q}' | '{}'.format() | '{a}'.format(b=1)
1 + 'a' | 'a' + 1 | [] + () | 1 < 'a' | -'a' | 1 / 0 | 1 // 0 | 1 % 0 | divmod(1, 0) | pow(0, -1) | 2 ** 'a' | 1 << -1 | not_there | 1()
dict([1]) | dict([(1, 2, 3)]) | dict(1) | set([[]]) | frozenset(1) | tuple(1) | list(1) | reversed({1}) | zip(1) | map(1, 2) | next([])
next(iter([])) | enumerate(1) | slice(1)(2) | round('a') | abs('a') | len(3) | iter(3) | list(zip([1], [1, 2], strict=True)) | (1).foo
[1, 2][0:1:0] | [1]['a':] | math.sqrt(-1) | math.log(0) | math.factorial(-1) | deque([1], maxlen=-1) | sorted([1, 'a']) | [3, 'b'].sort()
iadd(1, 'a') | iadd([], 1) | iadd((), 1) | iadd(None, 1) | [] * 'a' | 'a' * [] | 2.5 * [] | None + 1 | None ** 2 | (1,) + [2] | A() + 1
A() < 1 | [1] < (1,) | {} < {} | {}.update([1]) | {}.update([(1,)]) | {}.update(1) | {1} + {2} | {1} - [2] | {} + {}
A()[0] | A()() | len(A())
deque([1]).index(2) | deque([1]) + [2] | deque().popleft() | deque([1]).remove(2) | deque([1])[3] | (1, 2).index(3) | [1, 2].index(1, 1)
[1, 2, 3].__setitem__(slice(0, 3, 2), [1]) | [1].insert('a', 2) | [1].__delitem__(4) | [1].__setitem__(4, 1) | (1).__add__('a')
super(A, 1).get() | super(1, 2).get() | super(A, int).get() | len(iter([])) | len(1) | iter(1) | [1]['a'] | (3).k | x.shape[0].k
"""
RIGHT = "{}.get(1) | {}.get(1, 2) | {1: 2}.pop(1, None) | 'a,b'.split(',', maxsplit=1) | int('10', base=2)"
RIGHT += " | sorted([2, 1], key=lambda v: -v)"
RIGHT += " | dict(a=1) | min([1], default=2) | sum([1], start=2) | list(enumerate([5], start=3)) | round(2.5, ndigits=0) | [3, 1].index(1)"
RIGHT += " | OrderedDict.fromkeys([1, 2], value=3) | dict.fromkeys([1], 2) | dict.fromkeys([1], value=2) | OrderedDict.fromkeys()"

RIGHT += " | list(combinations(iterable=[1, 2], r=1)) | list(permutations([1, 2], None)) | list(permutations([1, 2], r=None))"
RIGHT += " | list(accumulate(iterable=[1, 2], initial=3)) | list(compress(data=[1, 2], selectors=[1, 0])) | next(count(step=2, start=1))"
RIGHT += (
    " | list(repeat(object=1, times=2)) | list(product([1, 2], repeat=2)) | list(zip_longest([1], [2, 3], fillvalue=0))"
)


class A:
    def get(self):
        return 1


def program(text):
    names = {"deque": collections.deque, "OrderedDict": collections.OrderedDict, "math": math, "A": A}
    names |= vars(itertools) | {
        "iadd": operator.iadd,
        "warnings": warnings,
        "log": logging.getLogger("treadle.tests.arity"),
    }
    body = f"try:\n        r = {text}\n    except Exception as e:\n        r = type(e).__name__, str(e)"
    source = f"def f(x):\n    {body}\n    return x + 1, r"
    exec(source, names)
    return names["f"]


@pytest.mark.filterwarnings("ignore::SyntaxWarning")
@pytest.mark.parametrize(
    "text", [part.strip() for part in (WRONG.replace("\n", " | ") + RIGHT).split(" | ") if part.strip()]
)
def test_calls_like_eager(text):
    function = program(text)
    expected = function(torch.ones(2))[1]
    options = treadle_tracer.TracerOptions(raise_internal_errors=True, dynamic=True)
    traced = treadle_tracer.optimize(function, lambda gm, inputs: gm.forward, options)
    assert traced(torch.ones(2))[1] == expected


def test_functions_with_effects_are_not_asked(capsys):
    assert why_not_callable_with(print, 1, ["x"]) is None
    assert capsys.readouterr().out == ""


def test_methods_of_the_program_are_not_asked():
    class Counting(dict):
        def get(self):
            raise AssertionError("called")

    assert why_not_method_with(Counting, "get", 3, ()) is None
    assert "at most 2 arguments, got 3" in str(why_not_method_with(dict, "get", 3, ()))


class Sized:
    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length


class Truthy:
    def __init__(self, truth):
        self.truth = truth

    def __bool__(self):
        return self.truth


@pytest.mark.parametrize("text", ["1 if o else 2", "len(o)", "bool(o)", "not o", "o and 1", "any([o])"])
@pytest.mark.parametrize(
    "o",
    [*map(Sized, (0, 2, 0.5, -1, True, "a", 1 << 70)), *map(Truthy, (True, False, 1, None))],
    ids=lambda o: str(vars(o)),
)
def test_lengths_and_truths_that_python_refuses(o, text):
    function = program(text)
    function.__globals__["o"] = o
    expected = function(torch.ones(2))[1]
    options = treadle_tracer.TracerOptions(raise_internal_errors=True)
    assert treadle_tracer.optimize(function, lambda gm, inputs: gm.forward, options)(torch.ones(2))[1] == expected
