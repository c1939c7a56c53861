"""Generic aliases and unions from outside are guarded by equality, and by identity where the program asks."""

from __future__ import annotations

import collections
import collections.abc
import dataclasses
import types
import typing

import torch
from compile_runs import compiled, item


def agree(function, *sets):
    """The number of graphs for calls with these arguments; results are eager's, and what is returned is the argument itself."""
    fn, recorder = compiled(function)
    for args in sets:
        mine, own = fn(torch.ones(2), *args), function(torch.ones(2), *args)
        assert torch.equal(mine[0], own[0]) and mine[1] is own[1]
    return len(recorder.graphs)


def test_an_equal_alias_is_as_good():
    def f(x, a):
        return x + len(a.__args__), a

    assert agree(f, (list[int],), (list[int],), (int | None,), (int | None,)) == 2
    assert agree(f, (dict[int, str],), (dict[int, float],), (dict[int, str],)) == 2
    assert agree(f, *[(collections.abc.Iterator[list[int]],)] * 3) == 1


def test_a_question_about_identity_guards_it():
    kept = list[int]

    def both(x, a, b):
        return (x + 1 if a is b else x - 1), a

    def other(x, a):
        return (x + 1 if a is kept else x - 1), a

    agree(both, (kept, kept), (kept, list[int]), (list[int], list[int]), (kept, kept), (list[str], kept))
    agree(other, (kept,), (list[int],), (kept,), (list[int],))


class Meta(type):
    asked: list[int] = []

    def __eq__(cls, other):
        Meta.asked.append(1)
        return cls is other

    __hash__ = type.__hash__


class Own(metaclass=Meta):
    pass


def test_equality_of_the_program_is_not_run():
    def f(x, a):
        return x + 1, a

    alias = list[Own]
    Meta.asked.clear()
    fn, _ = compiled(f)
    for _ in range(3):
        fn(torch.ones(2), alias)
    assert not Meta.asked


def test_annotations_of_inner_functions_across_a_break():
    def f(x):
        def inner(y: list[int], z: collections.abc.Iterator[int] | None = None) -> dict[str, int]:
            return len(y)

        item(x.sum())
        return x + inner([1, 2]), None

    assert agree(f, (), (), ()) == agree(f, ())


T = typing.TypeVar("T")


class Box(typing.Generic[T]):
    def __init__(self, value):
        self.value = value


class Slots(typing.Generic[T]):
    __slots__ = ("value",)

    def __init__(self, value):
        self.value = value


@dataclasses.dataclass(frozen=True)
class Frozen(typing.Generic[T]):
    value: object


class Refusing(Box[T]):
    def __setattr__(self, name, value):
        if name != "value":
            raise AttributeError(name)
        super().__setattr__(name, value)


class Subscripted:
    __class_getitem__ = classmethod(types.GenericAlias)

    def __init__(self, value):
        self.value = value


class Module(torch.nn.Module, typing.Generic[T]):
    def __init__(self, value):
        super().__init__()
        self.value = value


def test_a_call_leaves_the_alias_on_the_object_that_it_makes():
    def made(x):
        one, two, three = Box[int](x), Box[T](x + 1), Subscripted[int](x * 2)
        rest = Slots[int](x), Frozen[int](x), Refusing[int](x), Box(x)
        return one, two, three, Module[int](x), *rest

    def note(boxes):
        return [getattr(box, "__orig_class__", None) for box in boxes]

    def used(x):
        return x + len(Box[int](x).__orig_class__.__args__), *(type(name) for name in note(made(x)))

    fn, recorder = compiled(made)
    for x in (torch.ones(2), torch.zeros(2)):
        mine, own = fn(x), made(x)
        assert note(mine) == note(own) == [Box[int], Box[T], Subscripted[int], Module[int], None, None, None, None]
        assert all(torch.equal(m.value, o.value) for m, o in zip(mine, own, strict=True))
    assert len(recorder.graphs) == 1
    fn, recorder = compiled(used)
    mine, own = fn(torch.ones(2)), used(torch.ones(2))
    assert torch.equal(mine[0], own[0]) and mine[1:] == own[1:] and len(recorder.graphs) == 1


class Pair(typing.NamedTuple, typing.Generic[T]):
    first: int
    second: object


class Items(list, typing.Generic[T]):
    pass


def test_what_holds_no_attributes_is_made_without_the_alias():
    def f(x):
        made = [list[int]((1, 2)), dict[str, int](a=1), collections.deque[int]((1,)), tuple[int]((4,)), Pair[int](1, 2)]
        return x + 1, made, Items[int]((1,))

    fn, recorder = compiled(f)
    mine, own = fn(torch.ones(2)), f(torch.ones(2))
    assert torch.equal(mine[0], own[0]) and mine[1:] == own[1:] and len(recorder.graphs) == 1
    assert getattr(mine[2], "__orig_class__", None) == getattr(own[2], "__orig_class__", None)


def test_an_alias_of_typing_that_makes_nothing_raises():
    def f(x, alias):
        try:
            return x + 1, alias((3,))
        except TypeError as error:
            return x, str(error)

    fn, _ = compiled(f)
    for alias in (typing.List[int], typing.List, typing.Any, typing.Optional[int], int | str):  # noqa: UP006
        mine, own = fn(torch.ones(2), alias), f(torch.ones(2), alias)
        assert torch.equal(mine[0], own[0]) and mine[1] == own[1]
