"""Classes made inside the traced function: equal to eager's in what they hold, and another one at every call."""

from __future__ import annotations

import dataclasses
import enum
import gc
import weakref

import class_programs
import pytest
import torch
from class_programs import Base, Plain
from compile_runs import compiled, item

PROGRAMS = [
    function
    for name, function in vars(class_programs).items()
    if getattr(function, "__module__", "") == "class_programs" and not isinstance(function, type)
]
BREAKING = ("brk", "exc_escape", "callers")


def _portrait(value, seen=()):
    """What can be seen of a result: contents, and of classes their line, their dict in order and their plain attributes."""
    if id(value) in seen:
        return "..."
    seen = (*seen, id(value))
    if isinstance(value, type):
        own = [name for name in vars(value) if name not in ("__dict__", "__weakref__", "__slotnames__")]
        plain = [(n, _portrait(w, seen)) for n, w in vars(value).items() if n in own and _is_plain(n, w)]
        return value.__qualname__, value.__module__, [cls.__qualname__ for cls in value.__mro__], plain, own
    if isinstance(value, dict):
        return type(value).__name__, [(_portrait(k, seen), _portrait(w, seen)) for k, w in value.items()]
    if isinstance(value, (tuple, list)):
        return type(value).__name__, [_portrait(item, seen) for item in value]
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if hasattr(value, "__dict__") and not callable(value):
        return _portrait(type(value), seen), _portrait(sorted(vars(value).items()), seen)
    return repr(value)


def _is_plain(name, attribute):
    return not callable(attribute) and not hasattr(attribute, "__get__") and not name.startswith("_abc")


def _outcome(function, x):
    Base.reg.clear()
    try:
        return _portrait(function(x)), list(Base.reg)
    except Exception as error:
        return type(error).__name__, str(error), [cls.__name__ for cls in type(error).__mro__], list(Base.reg)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_program(program):
    run, recorder = compiled(program, fullgraph=program.__name__ not in BREAKING)
    for number in (1, 2, 3):
        x = torch.ones(3) * number
        assert _outcome(run, x) == _outcome(program, x)
    assert recorder.skips == []
    assert len(recorder.entries) <= 1 or program.__name__ in BREAKING, recorder.recompiles


def test_a_class_that_leaves_is_another_one_at_every_call_and_its_functions_know_it():
    run, _ = compiled(class_programs.escapes, fullgraph=True)
    (first, a, _), (second, b, _) = run(torch.ones(2)), run(torch.ones(2))
    assert a is not b and type(first) is a and type(second) is b
    assert first.me() is a and second.me() is b and a.items is not b.items
    assert torch.equal(first.f(1), torch.full((2,), 3.0))


def test_classes_that_leave_die():
    run, recorder = compiled(class_programs.escapes)
    dead = [weakref.ref(run(torch.ones(2))[1]) for _ in range(2)]
    gc.collect()
    assert [reference() for reference in dead] == [None, None] and len(recorder.entries) == 1


def test_bases_have_no_subclasses_left():
    for program in (class_programs.sub_outside, class_programs.sub_reg):
        run, _ = compiled(program)
        run(torch.ones(2))
        gc.collect()
    assert Plain.__subclasses__() == [] and Base.__subclasses__() == []


def test_a_base_that_changes():
    class Parent:
        k = 1

        def f(self, x):
            return x + self.k

    def program(x):
        class Child(Parent):
            def g(self, x):
                return self.f(x) * 2

        return Child().g(x)

    run, recorder = compiled(program)
    x = torch.ones(2)
    for change in (lambda: None, lambda: setattr(Parent, "k", 5), lambda: setattr(Parent, "f", lambda self, x: x - 1)):
        change()
        assert torch.equal(run(x), program(x))
    Parent.__getattribute__ = lambda self, name: (
        (lambda x: x * 100) if name == "f" else object.__getattribute__(self, name)
    )
    assert torch.equal(run(x), program(x))
    assert len(recorder.entries) == 4


def test_break_in_the_body_of_a_class():
    def program(x):
        y = x * 2

        class Holder:
            number = item(y.sum())
            twice = y + number

        return Holder.twice + x, Holder.number

    run, recorder = compiled(program)
    for number in (1, 2):
        x = torch.ones(2) * number
        (a, b), (c, d) = run(x), program(x)
        assert torch.equal(a, c) and b == d
    assert len(recorder.graphs) >= 2


class Told(str):
    owners: list = []

    def __set_name__(self, owner, name):
        Told.owners.append(name)

    def __repr__(self):
        raise ValueError("nothing but the program asks")


def test_constant_that_is_told_its_name():
    told = Told("a")

    def f(x):
        class Made:
            field = told

        return x + 1, Made.field

    run, recorder = compiled(f)
    Told.owners.clear()
    for _ in range(3):
        assert run(torch.ones(2))[1] is told
    assert Told.owners == ["field"] * 3
    assert recorder.skips == []


NUMBERS = (1, 2, 3, 4, 1, 2.5, 7.5, True)


def attribute(x, n):
    class Local:
        extra = n
        pair = (n, 1)

    return x * Local.extra, Local().pair


def defaults(x, n):
    @dataclasses.dataclass
    class Local:
        a: int = n
        b: float = dataclasses.field(default=n)

    return x * Local().a + Local().b


def keyword(x, n):
    class Parent:
        def __init_subclass__(cls, k=0):
            cls.k = k

    class Child(Parent, k=n):
        pass

    return x * Child.k


def member(x, n):
    class Local(enum.Enum):
        A = n

    return x * Local.A.value, Local(n) is Local.A


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("function", [attribute, defaults, keyword, member])
def test_attributes_that_are_numbers_which_change(function, dynamic):
    run, _ = compiled(function, dynamic=dynamic)
    for n in NUMBERS:
        assert repr(run(torch.ones(2), n)) == repr(function(torch.ones(2), n)), n
