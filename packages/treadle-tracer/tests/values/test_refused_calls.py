"""What Python refuses, the trace refuses with the same exception and text, and what it takes, the trace takes in the same way."""

from __future__ import annotations

import collections
import itertools
import warnings

import pytest
import torch
from compile_runs import compiled


class OwnStr(str):
    pass


class OwnList(list):
    pass


class Plain:
    k = 3


class Indexed:
    def __index__(self):
        return 2


class HalfAnInt:
    def __int__(self):
        return 1.5


EXPRESSIONS = (
    "-Plain()", "+[]", "~Plain()", "abs(Plain())", "abs([])", "int(Plain())", "int([])", "float(Plain())", "complex({})",
    "int(bytearray(b'1'))", "float(Indexed())", "int(Indexed())", "int(HalfAnInt())", "complex(Indexed())", "torch.Size(['a'])",
    "torch.Size((1, 2))", "vars([1])", "dict({1: 2}, {3: 4})", "dict([(1, 2)])", "{**[(1, 2)]}", "{**{1: 2}}", "{**Plain()}",
    "[*Plain()]", "[*3]", "(lambda **k: k)(**{1: 2})", "(lambda **k: k)(**{'a': 2})", "(lambda **k: k)(**[('a', 2)])",
    "(lambda *a: a)(*3)", "getattr(Plain(), OwnStr('k'))", "hasattr(Plain(), OwnStr('z'))", "1 in int", "1 in 2", "{}.keys() in {}",
    "[] in set()", "collections.deque() in {}", "(1).__lt__('a')", "[1].__eq__(True)", "[1].__mul__(True)", "(1,).__lt__(2)",
    "collections.deque([1])['a']", "[1]['a']", "(1,)[1.5]", "Plain()[0]", "len(Plain())", "iter(3)", "next([])", "Plain()()",
    "[1, 2].missing", "collections.deque().missing", "list(reversed(collections.deque([1, 2])))",
    "collections.OrderedDict(a=1, b=2) == collections.OrderedDict(b=2, a=1)", "{1: 2}.values() == {1: 2}.values()",
    "(1, 2) in {1: 2}.items()", "[1, 2] in {1: 2}.items()", "{1} in {frozenset({1})}",
)  # fmt: skip


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_expressions_end_as_in_python(expression):
    scope = dict(globals())
    exec(
        f"def f(x):\n    try: return x + 1, {expression}\n    except Exception as error: return x + 2, type(error).__name__, str(error)",
        scope,
    )
    expected, found = scope["f"](torch.zeros(1)), compiled(scope["f"])[0](torch.zeros(1))
    assert str(found) == str(expected) and list(map(type, found)) == list(map(type, expected))


def test_deleting_from_what_has_no_items():
    def f(x, target):
        try:
            del target[0]
        except TypeError as error:
            return x + 1, str(error)

    for target in (3, (1, 2), Plain()):
        assert compiled(f)[0](torch.zeros(1), target)[1] == f(torch.zeros(1), target)[1]


def test_unpacking_takes_one_item_too_many_and_no_more():
    def f(x):
        kept = iter([1, 2, 3, 4, 5])
        told = []
        for source in (itertools.count(), kept, [1, 2, 3], 5):
            try:
                a, b = source
            except (TypeError, ValueError) as error:
                told.append(str(error))
        return x + 1, told, list(kept)

    assert compiled(f)[0](torch.zeros(1))[1:] == f(torch.zeros(1))[1:]


@pytest.mark.parametrize("make", [iter, reversed, enumerate, lambda q: map(str, q)])
def test_iterators_over_deques_leave_the_trace_where_they_stand(make):
    def f(x):
        iterator = make(collections.deque([1, 2, 3]))
        next(iterator)
        return x + 1, iterator

    expected, found = f(torch.zeros(1))[1], compiled(f)[0](torch.zeros(1))[1]
    assert type(found) is type(expected) and list(found) == list(expected)


def test_the_in_place_method_of_a_subclass_gives_the_object():
    def f(x):
        mine = OwnList([1])
        given = mine.__iadd__([2])
        return x + 1, given is mine, mine

    assert compiled(f)[0](torch.zeros(1))[1:] == f(torch.zeros(1))[1:]


@pytest.mark.parametrize("requires_grad", [False, True])
def test_numbers_of_more_than_64_bits(requires_grad):
    def f(x, n):
        return x * n**2

    x, (fast, _) = torch.ones(2, requires_grad=requires_grad), compiled(f)
    for n in (3, 2**20, 2**32, 5, -(2**40)):
        ends = []
        for function in (f, fast):
            try:
                ends.append(str(function(x, n)))
            except OverflowError as error:
                ends.append(str(error))
        assert ends[0] == ends[1]


@pytest.mark.parametrize(
    "program",
    [
        lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8).dequantize(),
        lambda x: torch.ops.aten.quantize_per_tensor.default(x, 0.1, 0, torch.quint8).int_repr(),
        lambda x: torch.from_dlpack(x.exp()) + 1,
    ],
    ids=["quantised", "quantised by the operator", "exchanged"],
)
def test_what_fake_tensors_cannot_be_is_left_to_python(program):
    """PyTorch's fake kernel of quantize_per_tensor gives a tensor of floats."""
    x = torch.linspace(-1, 1, 5)
    fast, _ = compiled(program)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of memory that a fake tensor does not have
        warnings.filterwarnings("ignore", message="torch.quantize_per_tensor")
        for _ in range(2):
            torch.testing.assert_close(fast(x), program(x))


@pytest.mark.parametrize("constant", [0, 1.5, None, True, ...])
def test_what_has_no_items_has_none_under_a_changing_key(constant):
    """A sum of parts of different lengths begins with 0, which the first part replaces."""

    def program(x):
        total = constant
        for part in (x, x[1:]):
            try:
                total = total[-part.shape[0] :]
            except TypeError as error:
                text, total = str(error), 0
            total = part + total
        return total, text

    fast, recorder = compiled(program)
    for size in (4, 5, 7):
        x = torch.arange(float(size))
        have, want = fast(x), program(x)
        assert torch.equal(have[0], want[0]) and have[1] == want[1]
    assert len(recorder.graphs) == 2 and not recorder.breaks
