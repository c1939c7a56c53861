"""`reversed` of dicts and their views sees what the program changes meanwhile."""

from __future__ import annotations

import collections
import types

import pytest
import torch
from compile_runs import compiled


def adds_keys(x, table):
    for key in reversed(table):
        x = x + len(key)
        table[key * 2] = 1
    return x, table


def changes_values(x, table):
    for value in reversed(table.values()):
        x = x + value
        table["a"] = 5.0
    return x, table


def stores_results(x, table):
    for key, value in reversed(table.items()):
        x = x + value
        table[key] = x
    return x, table


def begun(x, table):
    it = reversed(table.items())
    return next(it, None), x + 1, it


def begun_before_a_key_is_added(x, table):
    it = reversed(table.keys())
    first = next(it, None)
    table["z"] = 1
    return x + 1, first, next(it)


def of_a_proxy(x, table):
    it = reversed(types.MappingProxyType(table))
    first = next(it, None)
    table["z"] = 1
    return x + 1, first, next(it)


def kinds(x, table):
    return x + 1, [type(reversed(view)).__name__ for view in (table, table.keys(), table.values(), table.items())]


PROGRAMS = [
    adds_keys,
    changes_values,
    stores_results,
    begun,
    begun_before_a_key_is_added,
    of_a_proxy,
    kinds,
]
TABLES = {
    "dict": lambda: {"a": 1.0, "b": 2.0},
    "empty": dict,
    "ordered": lambda: collections.OrderedDict(a=1.0, b=2.0),
    "default": lambda: collections.defaultdict(list, a=1.0),
}


def shown(value):
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, dict):
        return type(value).__name__, [(key, shown(item)) for key, item in value.items()]
    if isinstance(value, (list, tuple)):
        return [shown(item) for item in value]
    return (type(value).__name__, [shown(item) for item in value]) if hasattr(value, "__next__") else value


def outcome(function, table):
    try:
        return shown(function(torch.ones(2), table))
    except (RuntimeError, StopIteration) as error:
        return type(error).__name__, str(error)


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("program", PROGRAMS)
def test_as_in_python(program, name):
    run, _ = compiled(program)
    for _ in range(3):
        assert outcome(run, TABLES[name]()) == outcome(program, TABLES[name]())
