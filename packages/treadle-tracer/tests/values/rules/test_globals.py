"""`globals()` and `frame.f_globals`: the names of the module, with changes seen and made as in eager."""

from __future__ import annotations

import sys

import pytest
import torch
from compile_runs import compiled

from treadle_tracer import Unsupported

SCALE = 2.0
TABLE = {"scale": 3.0}


def looked_up(x):
    return x * globals()["SCALE"] + globals().get("NOT_THERE", 1), "SCALE" in globals(), "NOT_THERE" in globals()


def one_dict(x):
    return x + 1, globals() is globals() is sys._getframe().f_globals, type(globals())


def of_the_caller(x):
    def logged():
        scope = sys._getframe(1).f_globals
        return scope["__name__"], scope["TABLE"]["scale"], scope is globals()

    return x * 2, logged()


def counted(x):
    return x + len([name for name in globals() if name.startswith("SCA")])


@pytest.mark.parametrize("program", [looked_up, one_dict, of_the_caller, counted], ids=lambda f: f.__name__)
def test_globals_are_captured(program, monkeypatch):
    fast, said = compiled(program, fullgraph=True)
    for scale, table in ((2.0, {"scale": 3.0}), (5.0, {"scale": 3.0}), (5.0, {"scale": 4.0})):
        monkeypatch.setitem(globals(), "SCALE", scale)
        monkeypatch.setitem(globals(), "TABLE", table)
        found, expected = fast(torch.ones(2)), program(torch.ones(2))
        assert repr(found) == repr(expected)
    monkeypatch.setitem(globals(), "NOT_THERE", 4.0)
    monkeypatch.setitem(globals(), "SCALED", 4.0)
    assert repr(fast(torch.ones(2))) == repr(program(torch.ones(2)))
    assert said.graphs


def stored_by_key(x):
    globals()["SCALE"] = 7.0
    return x * SCALE


def stored_by_name(x):
    global SCALE
    SCALE = 8.0
    return x * globals()["SCALE"]


def read_before_the_store(x):
    global SCALE
    scope = globals()
    SCALE = 9.0
    return x * scope["SCALE"], scope


def deleted(x):
    del globals()["SCALE"]
    return x * globals().get("SCALE", 3)


def updated(x):
    globals().update(SCALE=4.0, MADE=1)
    return x * SCALE + globals().pop("MADE")


WRITES = [stored_by_key, stored_by_name, read_before_the_store, deleted, updated]


@pytest.mark.parametrize("program", WRITES, ids=lambda f: f.__name__)
def test_changes_of_globals_are_as_in_eager(program):
    fast, _ = compiled(program)
    for _ in range(2):
        outcomes = []
        for function in (fast, program):
            globals()["SCALE"] = 2.0
            found = function(torch.ones(2))
            outcomes.append((repr(found[0]), globals().get("SCALE"), globals().get("MADE")))
        globals()["SCALE"] = 2.0
        assert outcomes[0] == outcomes[1]


def test_a_namespace_of_another_module_is_its_own():
    scope = {"__name__": "elsewhere", "SCALE": 11.0}
    exec("def f(x):\n    return x * globals()['SCALE'], globals()['__name__']", scope)
    fast, said = compiled(lambda x: (scope["f"](x), x * globals()["SCALE"]), fullgraph=True)
    for scale in (11.0, 12.0):
        scope["SCALE"] = scale
        (inner, name), outer = fast(torch.ones(2))
        assert (inner.tolist(), name, outer.tolist()) == ([scale] * 2, "elsewhere", [2.0] * 2)
    assert said.graphs


def test_arguments_are_refused():
    fast, _ = compiled(lambda x: globals(x), fullgraph=True)
    with pytest.raises((Unsupported, TypeError)):
        fast(torch.ones(2))
