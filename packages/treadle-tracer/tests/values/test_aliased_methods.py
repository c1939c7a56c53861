"""Methods implemented in C under other names (`__setattr__ = dict.__setitem__`), and dicts that are an object's `__dict__`, too."""

import pytest
import torch
from compile_runs import compare


class Settings(dict):
    __getattr__ = dict.get
    __setattr__ = dict.__setitem__
    __delattr__ = dict.__delitem__


class Namespace(dict):
    def __init__(self, **items):
        super().__init__(**items)
        self.__dict__ = self


class Renamed(dict):
    get = dict.__getitem__
    __getitem__ = dict.get
    pop = dict.setdefault


class Stack(list):
    push = list.append
    __call__ = list.__getitem__


class Shared:
    state = {}

    def __init__(self):
        self.__dict__ = Shared.state


class Plain:
    pass


def with_settings_as_dict():
    settings, plain = Settings(n=1), Plain()
    plain.__dict__ = settings
    return settings, plain


def counts(x, o):
    o.n = o.n + 1
    setattr(o, "last", x + 1)
    return x * 2 * (o.factor or 1)


def deletes(x, o):
    o.k = 5
    del o.k
    return x * 2 if "k" not in o else x


def renamed(x, o):
    return x * o.get("n") * o.pop("m", 7) + (o["missing"] or 3)


def raises(x, o):
    return x * o.get("missing")


def stack(x, o):
    o.push(2)
    return x * o(0) + o[-1]


def both(x, o):
    o.n = o.n + 1
    o["m"] = o.n * 2
    return x * o.m


def updates(x, o):
    o.update(n=o.n + 1)
    return x * o.n


def reads(x, o):
    return x * o.n + o["n"]


def shared(x, o):
    first, second = o
    first.n = 2
    return x * second.n


def dict_of_another(x, o):
    settings, plain = o
    settings["n"] = 3
    return x * plain.n


def attribute_of_another(x, o):
    settings, plain = o
    plain.n = 9
    return x * settings["n"]


def made(x, o):
    settings, namespace = Settings(a=1), Namespace(a=1)
    settings.b = x
    namespace.c = 2
    namespace["d"] = 3
    return settings["b"] * settings.a * namespace["c"] * namespace.d, [*settings], [*namespace]


def shared_pair():
    Shared.state.clear()
    Shared.state["n"] = 5
    return Shared(), Shared()


PROGRAMS = [
    (counts, lambda: Settings(n=0, factor=3), True),
    (deletes, lambda: Settings(n=1), True),
    (renamed, lambda: Renamed(n=2), True),
    (raises, lambda: Renamed(n=2), False),
    (stack, lambda: Stack([3]), True),
    (both, lambda: Settings(n=0), True),
    (both, lambda: Namespace(n=0), False),
    (updates, lambda: Namespace(n=0), False),
    (reads, lambda: Namespace(n=2), True),
    (shared, shared_pair, False),
    (dict_of_another, with_settings_as_dict, False),
    (attribute_of_another, with_settings_as_dict, False),
    (made, lambda: None, False),
]


@pytest.mark.parametrize(("program", "make", "is_whole"), PROGRAMS)
def test_the_method_and_not_its_name_counts(program, make, is_whole):
    recorder = compare(program, lambda: torch.arange(3.0), make)
    if is_whole:
        assert len(recorder.graphs) == 1 and not recorder.breaks


@pytest.mark.parametrize("make", [lambda: Settings(n=0), lambda: Namespace(n=0)])
def test_writes_of_earlier_calls_stay(make):
    kept = []

    def reset():
        kept[:] = [make()]

    compare(
        lambda x: both(x, kept[0]),
        lambda: torch.arange(3.0),
        calls=4,
        reset=reset,
        look=lambda: sorted(kept[0].items()),
    )
