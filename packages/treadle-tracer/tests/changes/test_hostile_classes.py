"""Classes whose metaclass defines what dicts, `in`, `isinstance`, truth and attribute access ask; classes that claim to be a library's.

A compiled call gives what eager gives and runs the methods of the metaclass as often as eager does, so the trace itself asks none of them.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from compile_runs import compiled
from mutate_runs import check, ones

Note = Callable[[str, Any], Any]


def _raise(*args: Any) -> Any:
    raise RuntimeError("hostile")


METACLASSES: dict[str, Callable[[Note], dict[str, Any]]] = {
    "equals everything": lambda note: {
        "__eq__": note("__eq__", lambda cls, other: True),
        "__hash__": note("__hash__", lambda cls: 7),
    },
    "raises": lambda note: {"__eq__": note("__eq__", _raise), "__hash__": note("__hash__", _raise)},
    "has no hash": lambda note: {"__eq__": note("__eq__", lambda cls, other: cls is other), "__hash__": None},
    "equals nothing": lambda note: {
        "__eq__": note("__eq__", lambda cls, other: False),
        "__ne__": note("__ne__", lambda cls, other: True),
        "__hash__": note("__hash__", id),
    },
    "equal by name": lambda note: {
        "__eq__": note("__eq__", lambda cls, other: isinstance(other, type) and cls.__name__ == other.__name__),
        "__hash__": note("__hash__", lambda cls: hash(cls.__name__)),
    },
    "is false": lambda note: {
        "__bool__": note("__bool__", lambda cls: False),
        "__len__": note("__len__", lambda cls: 0),
    },
    "has every attribute": lambda note: {"__getattr__": note("__getattr__", _missing)},
    "is printed by the program": lambda note: {"__repr__": note("__repr__", lambda cls: "?"), "__str__": note("__str__", lambda cls: "?")},
    "has no instances": lambda note: {"__instancecheck__": note("__instancecheck__", lambda cls, obj: False)},
}  # fmt: skip


def _missing(cls: Any, name: str) -> Any:
    raise AttributeError(name)


def _metaclass(kind: str, log: list[str], base: type = type) -> Any:
    def note(name: str, answer: Any) -> Any:
        def method(cls: Any, *args: Any) -> Any:
            log.append(name)
            return answer(cls, *args)

        return method

    return types.new_class("Meta", (base,), {}, lambda namespace: namespace.update(METACLASSES[kind](note)))


def instances(meta: Any) -> Iterator[tuple[Any, ...]]:
    class K(metaclass=meta):
        size = 3

        def scale(self, x):
            return x * self.size

    class L(K):
        size = 5

        def scale(self, x):
            return super().scale(x) + 1

    def f(x, thing):
        return thing.scale(x) + thing.size

    thing = K()
    yield f, ones(), thing
    yield f, ones(), L()
    K.size = 7
    yield f, ones(), thing
    thing.__class__ = L
    yield f, ones(), thing


def classes_of_one_name(meta: Any) -> Iterator[tuple[Any, ...]]:
    def make(number):
        class K(metaclass=meta):
            size = number

            def shifted(self, x):
                return x + number

        return K

    one, two = make(1), make(2)

    def f(x, thing):
        return thing.shifted(x) * thing.size

    def g(x, cls):
        return x * cls.size

    for cls in (one, two, one):
        yield f, ones(), cls()
        yield g, ones(), cls


def questions(meta: Any) -> Iterator[tuple[Any, ...]]:
    class K(metaclass=meta):
        pass

    class L(metaclass=meta):
        pass

    asked = (
        lambda x, thing: x + 1 if isinstance(thing, K) else x - 1,
        lambda x, thing: x + 1 if isinstance(thing, (int, K)) else x - 1,
        lambda x, thing: x + 1 if issubclass(type(thing), L) else x - 1,
        lambda x, thing: x + 1 if type(thing) is K else x - 1,
        lambda x, thing: x + 1 if type(thing) in (int, K) else x - 1,
        lambda x, thing: x + 1 if type(thing) == K else x - 1,  # noqa: E721
        lambda x, thing: x + 1 if thing.__class__ is L else x - 1,
        lambda x, thing: x + 1 if K else x - 1,
    )
    for question in asked:
        for thing in (K(), L(), 3, K()):
            yield question, ones(), thing


def tables(meta: Any) -> Iterator[tuple[Any, ...]]:
    class K(metaclass=meta):
        size = 3

    class L(metaclass=meta):
        size = 4

    table: dict[Any, Any] = {int: lambda x: x * 5}
    for cls in (K, L):
        try:
            table[cls] = lambda x, cls=cls: x + cls.size
        except (TypeError, RuntimeError):
            pass

    def f(x, thing):
        return table[type(thing)](x)

    def g(x, classes):
        return x + classes["a"].size

    for thing in (K(), L(), 3, K()):
        yield f, ones(), thing
    for cls in (K, L, K):
        yield g, ones(), {"a": cls}


def library_classes(meta: Any) -> Iterator[tuple[Any, ...]]:
    @dataclasses.dataclass(eq=False)
    class Point(metaclass=meta):
        a: int = 1
        b: float = 2.0

    class Pair(collections.namedtuple("Base", "a b"), metaclass=meta):
        __slots__ = ()

    class Text(str, metaclass=meta):
        pass

    class Items(list, metaclass=meta):
        pass

    class Names(dict, metaclass=meta):
        pass

    class Problem(Exception, metaclass=meta):
        pass

    def f(x, point):
        made = Point(4, 5.0)
        return x * point.a + made.b

    def g(x, pair, text, items, names):
        return x * pair.b + len(text) + items[0] + len(items) + names["a"]

    def h(x, wanted):
        try:
            if wanted:
                raise Problem("a", "b")
        except Problem as problem:
            return x + len(problem.args)
        return x

    yield f, ones(), Point()
    yield f, ones(), Point(2)
    for number in (1, 2):
        yield g, ones(), Pair(1, number), Text("a" * number), Items([number]), Names(a=number)
    yield h, ones(), True
    yield h, ones(), False


def modules(meta: Any) -> Iterator[tuple[Any, ...]]:
    class Scale(torch.nn.Module, metaclass=meta):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(2))
            self.factor = 2

        def forward(self, x):
            return x * self.weight * self.factor

    class Shift(Scale):
        def forward(self, x):
            return super().forward(x) + 1

    model = torch.nn.Sequential(Scale(), Shift())

    def f(x, model):
        return model(x)

    yield f, ones(), model
    model[0].factor = 3
    yield f, ones(), model
    model[0].__class__ = Shift
    yield f, ones(), model


def made_inside(meta: Any) -> Iterator[tuple[Any, ...]]:
    class K(metaclass=meta):
        count = 1

        def __init__(self, x):
            self.x = x

        @classmethod
        def make(cls, x):
            return cls(x * cls.count)

    def f(x):
        return K.make(x).x + K.count

    yield f, ones()
    K.count = 5
    yield f, ones()


def enums(meta: Any) -> Iterator[tuple[Any, ...]]:
    class Colour(enum.Enum, metaclass=meta):
        RED = 1
        BLUE = 2

    def f(x, colour):
        return x + colour.value if colour is Colour.RED else x - colour.value

    for colour in (Colour.RED, Colour.BLUE, Colour.RED):
        yield f, ones(), colour


PROGRAMS = (
    instances, classes_of_one_name, questions, tables, library_classes, modules, made_inside, enums,
)  # fmt: skip


def _run(program: Any, kind: str, make: Callable[[Any], Any]) -> list[Any]:
    """Of each call: the result or exception, and the methods of the metaclass that have run."""
    log: list[str] = []
    made: dict[int, tuple[Any, Any]] = {}
    found = []
    base = enum.EnumMeta if program is enums else type
    for function, *arguments in program(_metaclass(kind, log, base)):
        if id(function) not in made:
            made[id(function)] = (function, make(function))
        found.append(_called(made[id(function)][1], arguments, log))
    return found


def _called(function: Any, arguments: list[Any], log: list[str]) -> tuple[str, tuple[str, ...]]:
    """The result or exception as text, which asks the classes nothing, and what has been logged."""
    log.clear()
    try:
        result = str(function(*arguments).tolist())
    except Exception as error:
        result = f"{type(error).__name__}: {error}"
    return result, tuple(log)


@pytest.mark.parametrize("kind", METACLASSES)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_a_trace_asks_no_metaclass(program: Any, kind: str) -> None:
    if (program, kind) in ((modules, "has no hash"), (library_classes, "raises")):
        pytest.skip("torch.nn.Module and dataclasses themselves ask")
    eager = _run(program, kind, lambda function: function)
    fast = _run(program, kind, lambda function: compiled(function)[0])
    for number, (want, have) in enumerate(zip(eager, fast, strict=True)):
        assert have == want, f"call {number}"


INSTANCES: dict[str, Callable[[list[str]], dict[str, Any]]] = {
    "says that it is a module": lambda log: {"__class__": property(lambda self: log.append("class") or torch.nn.Module)},
    "__class__ raises": lambda log: {"__class__": property(_raise)},
    "__getattribute__": lambda log: {
        "__getattribute__": lambda self, name: log.append(name) or object.__getattribute__(self, name)
    },
    "equals everything": lambda log: {
        "__eq__": lambda self, other: log.append("eq") or True,
        "__hash__": lambda self: log.append("hash") or 1,
    },
    "of builtins": lambda log: {"__module__": "builtins"},
    "of PyTorch": lambda log: {"__module__": "torch.nn.functional"},
    "of NumPy": lambda log: {"__module__": "numpy", "item": lambda self: 4, "shape": ()},
}  # fmt: skip


@pytest.mark.parametrize("kind", INSTANCES)
def test_a_trace_asks_no_object_what_it_is(kind: str) -> None:
    def run(make):
        log: list[str] = []
        K = types.new_class("K", (), {}, lambda namespace: namespace.update(INSTANCES[kind](log)))
        K.__call__ = lambda self, x: x * object.__getattribute__(self, "v")  # type: ignore[attr-defined]
        a, b = K(), K()

        def f(x, thing):
            return thing(x) * thing.v

        def g(x, thing):
            return x + 1 if isinstance(thing, int) else x - 1

        found = []
        for function in (f, g):
            function = make(function)
            for thing, value in ((a, 2), (b, 3), (a, 9)):
                object.__setattr__(thing, "v", value)
                found.append(_called(function, [ones(), thing], log))
        return found

    assert run(lambda function: compiled(function)[0]) == run(lambda function: function)


def test_a_function_wrapped_like_a_library_function_is_the_programs() -> None:
    def program():
        state = {"factor": 2}

        @functools.wraps(F.relu)
        def relu(x):
            state["calls"] = state.get("calls", 0) + 1
            return F.relu(x) * state["factor"]

        @functools.wraps(torch.utils.checkpoint.checkpoint)
        def checkpoint(x):
            return x * state["factor"]

        def f(x):
            return relu(x) + checkpoint(x), state["calls"]

        yield f, ones()
        state["factor"] = 3
        yield f, ones()

    check(program)


def test_metaclass_that_claims_to_be_of_the_standard_library_is_traced() -> None:
    def program():
        class Meta(type):
            __module__ = "abc"
            answer = True

            def __instancecheck__(cls, obj):
                return Meta.answer

        class K(metaclass=Meta):
            __module__ = "builtins"

        def f(x):
            return x + 1 if isinstance(3, K) else x

        yield f, ones()
        Meta.answer = False
        yield f, ones()

    check(program)


def test_attribute_that_a_metaclass_finds_in_its_own_way() -> None:
    def program():
        class Meta(type):
            def __getattribute__(cls, name):
                if name == "size":
                    return type.__getattribute__(cls, "factor") + 1
                if name == "other":
                    raise AttributeError(name)
                return type.__getattribute__(cls, name)

            def __getattr__(cls, name):
                return len(name)

        class K(metaclass=Meta):
            factor = 3

        def f(x):
            return x * K.size + K.other

        yield f, ones()
        K.factor = 5
        yield f, ones()

    check(program)
