"""Methods of strings that take a tuple from outside: `name.startswith(PREFIXES)`."""

from __future__ import annotations

import pytest
import torch
from compile_runs import compiled

PREFIXES = ("au_", "vi_")


def of_a_global(x, name):
    return x + 1 if name.startswith(PREFIXES) else x * 2


def of_a_literal(x, name):
    return x + 1 if name.endswith(("_x", "_y")) and not name.startswith(PREFIXES) else x * 2


def _with(prefixes):
    def of_a_closure(x, name):
        return x + 1 if name.startswith(prefixes, 1) else x * 2

    return of_a_closure


def of_parts(x, name):
    return x * sum(name.startswith(prefix) for prefix in (PREFIXES, "a", ("b", "c")))


@pytest.mark.parametrize("program", [of_a_global, of_a_literal, _with(PREFIXES), of_parts])
def test_names_that_vary(program):
    run, recorder = compiled(program)
    names = ["au_x", "vi_y", "b", "cau_", "a_x", "c_y", "", "xvi_", "au_y", "d", "e_x", "xx_y", "au"]
    for name in names * 2:
        assert torch.equal(run(torch.ones(2), name), program(torch.ones(2), name)), name
    assert not recorder.breaks and not recorder.skips and len(recorder.graphs) <= 8


def test_another_tuple():
    def program(x, name, prefixes):
        return x + 1 if name.startswith(prefixes) else x * 2

    run, recorder = compiled(program)
    for prefixes in (("a", "b"), ("b", "c"), ("c",), (), "c", ("d", "a"), ("a", 1)):
        for name in ("a", "b", "c", "d"):
            found = []
            for function in (run, program):
                try:
                    found.append(function(torch.ones(2), name, prefixes).tolist())
                except TypeError as error:
                    found.append(str(error))
            assert found[0] == found[1], (name, prefixes)
    assert not recorder.breaks


def test_items_that_run_code_of_the_program():
    class Own(str):
        def __hash__(self):
            raise AssertionError

        __eq__ = None  # type: ignore[assignment]

    def program(x, name, prefixes):
        return x + 1 if name.startswith(prefixes) else x * 2

    run, _ = compiled(program)
    for prefixes in ((Own("a"), "b"), ("b", Own("c"))):
        for name in ("a", "b", "c"):
            assert torch.equal(run(torch.ones(2), name, prefixes), program(torch.ones(2), name, prefixes))
