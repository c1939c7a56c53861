"""Operators between every two kinds of built-in objects and instances of their subclasses end as in Python: value, type, order, message."""

from __future__ import annotations

import collections
import types

import pytest
import torch
from compile_runs import compiled, item


class OwnList(list):
    pass


class OwnTuple(tuple):
    pass


class OwnDict(dict):
    pass


class OwnDefaults(collections.defaultdict):
    pass


class OwnSet(set):
    pass


class OwnInt(int):
    pass


class Reflected:
    def __radd__(self, other):
        return "radd", type(other).__name__

    def __ror__(self, other):
        return NotImplemented

    def __eq__(self, other):
        return "eq"

    __hash__ = None


Pair = collections.namedtuple("Pair", "first second")
OPERANDS = (
    "[1, 'k']", "OwnList([1])", "(1, 'k')", "OwnTuple((1,))", "Pair(1, 2)", "torch.Size((1, 2))", "collections.deque([1, 2], maxlen=2)",
    "{1: 2, 'k': 3}", "collections.OrderedDict({3: 4, 1: 5})", "collections.defaultdict(list, {1: 7})", "collections.Counter('ab')",
    "OwnDict({1: 8})", "OwnDefaults(int, {1: 3})", "types.MappingProxyType({1: 2})", "{True, 'k'}", "frozenset((1, 2))", "OwnSet((2, 3))",
    "{1: 2, 'k': 3}.keys()", "{1: 2}.items()", "{1: 2}.values()", "'ab%s'", "2", "OwnInt(2)", "1.5", "None", "range(3)", "int",
    "Reflected()",
)  # fmt: skip
OPERATORS = ("+", "*", "|", "&", "-", "^", "%", "==", "!=", "<", ">=", "in", "+=", "*=", "|=", "&=", "-=", "^=")


def _shown(value):
    """The value with the types of all that it holds."""
    if isinstance(value, tuple) and type(value) is tuple:
        return tuple(map(_shown, value))
    parts = (
        list(value.items())
        if isinstance(value, dict)
        else list(value)
        if isinstance(value, (list, tuple, collections.deque))
        else None
    )
    held = sorted(map(repr, value)) if isinstance(value, (set, frozenset)) else repr(value)
    return (
        type(value),
        held if parts is None else _shown(tuple(parts)),
        getattr(value, "default_factory", None),
        getattr(value, "maxlen", None),
    )


def _function(operator: str, left: str, right: str):
    is_in_place = operator.endswith("=") and operator not in ("==", "!=", ">=")
    statement = f"a {operator} b; c = a, a is before" if is_in_place else f"c = a {operator} b"
    scope: dict = dict(globals())
    exec(
        f"def f(x):\n    a, b = {left}, {right}\n    before = a\n    try:\n        {statement}\n    except Exception as error:\n"
        "        c = type(error).__name__, str(error)\n    return x + 1, c\n",
        scope,
    )
    return scope["f"]


@pytest.mark.parametrize("operator", OPERATORS)
def test_operators_end_as_in_python(operator):
    wrong = []
    for left in OPERANDS:
        for right in OPERANDS:
            function = _function(operator, left, right)
            expected = _shown(function(torch.zeros(1))[1])
            found = _shown(compiled(function)[0](torch.zeros(1))[1])
            if expected != found and "0x" not in str(expected):
                wrong.append(f"{left} {operator} {right}: {found} instead of {expected}")
    assert not wrong, "\n".join(wrong)


def test_operators_with_numbers_of_numpy_are_numpys():
    np = pytest.importorskip("numpy")
    for text in ("a + b", "b + a", "a == b", "a * b", "a != b"):
        scope: dict = {"np": np}
        exec(
            f"def f(x, a, b):\n    try: return x + 1, {text}\n    except TypeError as error: return x, str(error)",
            scope,
        )
        for a in ([2, 1], OwnList([1]), (1, 2), collections.deque([1]), collections.UserList([2])):
            for b in (np.float32(2), np.int64(2)):
                expected, found = (g(torch.zeros(1), a, b)[1] for g in (scope["f"], compiled(scope["f"])[0]))
                assert type(found) is type(expected) and str(found) == str(expected), (text, a, b)


def test_equal_items_of_a_union_are_those_of_python():
    def f(x):
        a, b = {1, 2}, {True}
        keys = {1: 1, 2: 2}.keys()
        return x + 1, [
            a & b,
            b & a,
            a | b,
            b | a,
            a.intersection([True]),
            keys & b,
            keys | b,
            b & keys,
            {1: 1}.keys() & b,
        ]

    assert str(compiled(f)[0](torch.zeros(1))) == str(f(torch.zeros(1)))


def test_of_equal_members_the_first_stays():
    given = (2, 2.0, True, 1)

    def f(x):
        pairs = zip(given, "abcd", strict=True)
        return (
            x + 1,
            [sorted(map(repr, kind(given))) for kind in (set, frozenset, dict.fromkeys)],
            list(dict(pairs).items()),
        )

    assert repr(compiled(f)[0](torch.zeros(1))) == repr(f(torch.zeros(1)))


def test_a_set_is_looked_for_as_a_frozenset():
    def f(x, members):
        found = {1} in members, OwnSet((1,)) in members
        members.discard({1})
        return x + 1, found, members

    compiled_f = compiled(f)[0]
    assert str(compiled_f(torch.zeros(1), {frozenset({1}), 2})) == str(f(torch.zeros(1), {frozenset({1}), 2}))


def test_whole_tuples_are_themselves():
    def f(x, t):
        mine = (x, 2)
        return x + 1, [
            t + () is t,
            () + t is t,
            t[:] is t,
            t * 1 is t,
            mine[:] is mine,
            mine + () is mine,
            mine[0:1] is mine,
        ]

    assert compiled(f)[0](torch.zeros(1), (3, 4))[1] == f(torch.zeros(1), (3, 4))[1]


def test_equal_numbers_stay_two_objects_behind_a_break():
    def f(x):
        a = 1.5
        before = a
        a *= True
        b = 1000
        return x + 1, a is before, b + 0 is b, abs(before) is before

    assert compiled(f)[0](torch.zeros(1))[1:] == f(torch.zeros(1))[1:]


def test_half_a_slot_is_an_attribute_error():
    class Deletes:
        def __delitem__(self, key):
            pass

    def f(x):
        try:
            Deletes()[1] = 2
        except AttributeError as error:
            return x + 1, str(error)

    assert compiled(f)[0](torch.zeros(1))[1] == f(torch.zeros(1))[1] == "__setitem__"


class Added(int):
    def __iadd__(self, other):
        return "in place", other


class Meta(type):
    def __iadd__(cls, other):
        return "of the class", other


class OfMeta(metaclass=Meta):
    pass


NUMBER = Added(2)


def test_constant_objects_and_classes_are_asked_for_the_operator_in_place():
    def f(x):
        outside, made, cls, refused = NUMBER, Added(3), OfMeta, []
        outside += 1
        made += x.dim()
        cls += 4
        try:
            number = NUMBER
            number -= "text"
        except TypeError as error:
            refused.append(str(error))
        return x + 1, outside, made, cls, refused

    assert compiled(f)[0](torch.zeros(1))[1:] == f(torch.zeros(1))[1:]


def test_defaults_of_a_subclass_leave_the_trace_with_it():
    def f(x):
        made = OwnDefaults(int, {1: 3})
        return x + 1, made, made | {5: 6}, collections.OrderedDict(a=1, b=2) == collections.OrderedDict(b=2, a=1)

    _, made, united, equal = compiled(f)[0](torch.zeros(1))
    assert made.default_factory is united.default_factory is int and type(united) is OwnDefaults and not equal


MAPPING = {"k": 1, "m": 2.0}
PROXY = types.MappingProxyType(MAPPING)


def test_a_mapping_proxy_shows_what_is_written_meanwhile():
    def f(x):
        MAPPING["k"] += 4
        kept = [PROXY]
        try:
            PROXY["z"] = 1
        except TypeError as error:
            kept.append(str(error))
        return (
            x * PROXY["k"],
            kept,
            len(PROXY),
            list(PROXY.items()),
            PROXY == MAPPING,
            "k" in PROXY,
            {**PROXY},
            kept[0] is PROXY,
        )

    for change in (lambda: None, lambda: MAPPING.update(n=3), lambda: MAPPING.update(k=9)):
        change()
        kept = dict(MAPPING)
        expected = str(f(torch.ones(1)))
        MAPPING.clear()
        MAPPING.update(kept)
        assert str(compiled(f)[0](torch.ones(1))) == expected


def test_an_outside_tuple_is_a_member_itself():
    outside, members = (0.5, "text"), set()

    def f(x, item):
        members.add(item)
        return x + 1

    compiled(f)[0](torch.zeros(1), outside)
    assert next(iter(members)) is outside


@pytest.mark.parametrize("cls", [dict, collections.OrderedDict])
def test_tuples_that_are_keys_stay_the_objects_they_are(cls):
    owner, outside = object(), (0.5, "text")
    mapping = cls({owner: 1, outside: 2, (owner, 1): 3})

    def f(x):
        mapping.pop("missing", None)
        mapping[(1, 2)] = 5
        del mapping[owner]
        return x + 1

    before = [key for key in mapping if type(key) is tuple]
    compiled(f)[0](torch.zeros(1))
    assert [any(key is old for key in mapping) for old in before] == [True, True] and list(mapping.values()) == [
        2,
        3,
        5,
    ]


def test_the_only_item_of_a_set_is_popped():
    def f(x, members):
        sizes = {x.shape, (2 * x).shape}
        (length,) = sizes.pop()
        try:
            sizes.pop()
        except KeyError as error:
            message = str(error)
        given = members.pop()
        members.add(5)
        return x + length, message, sizes, given, members

    compiled_f, stats = compiled(f)
    ours, expected = {3}, {3}
    assert str(compiled_f(torch.zeros(2), ours)) == str(f(torch.zeros(2), expected))
    assert ours == expected == {5}
    assert len(stats.graphs) == 1


SETS_TO_POP = {
    "literal": lambda: {3, 1, 2, 40, 17},
    "made of a list": lambda: set([9, 8, 33, 1, 65]),
    "added": lambda: _with_added(),
    "words": lambda: {"w%d" % i for i in range(7)},
    "combined": lambda: {1, 2, 3, 4} | {64, 128} - {64},
    "popped before": lambda: _with_popped(),
}


def _with_added():
    found = set()
    for number in (24, 8, 16, 3, 11):
        found.add(number)
    return found


def _with_popped():
    found = {2}
    found.pop()
    found.update([1, 2, 3, 10])
    found.pop()
    found.add(1)
    found.discard(3)
    return found


@pytest.mark.parametrize("name", SETS_TO_POP)
def test_items_of_a_set_of_the_program_are_popped_in_order(name):
    def f(x):
        found = SETS_TO_POP[name]()
        first = [found.pop(), found.pop()]
        found.add(5)
        popped = []
        while found:
            popped.append(found.pop())
        return x + 1, first, popped

    compiled_f, stats = compiled(f)
    assert compiled_f(torch.zeros(1))[1:] == f(torch.zeros(1))[1:]
    assert len(stats.graphs) == 1 and not stats.breaks


@pytest.mark.parametrize("given", [(), (1, 2, 3), (7, 8)], ids=str)
def test_what_is_popped_after_a_break_depends_on_what_was_popped_before(given):
    def f(x):
        found = {1, 4} if given == (7, 8) else {1}
        found.pop()
        y = item(x.sum() * 2)
        found.update(given)
        return y, [found.pop() for _ in range(len(found))]

    compiled_f, _ = compiled(f)
    assert compiled_f(torch.ones(1)) == f(torch.ones(1))


def test_which_of_several_items_is_popped_python_decides():
    def f(x, members):
        popped = [members.pop() for _ in range(len(members))]
        return x + 1, popped

    compiled_f = compiled(f)[0]
    words = ["b", "a", "c", 3, (1, 2)]
    ours, expected = set(words), set(words)
    assert compiled_f(torch.zeros(1), ours)[1] == f(torch.zeros(1), expected)[1]
    assert ours == expected == set()
