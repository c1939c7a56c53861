"""The table of guard kinds agrees with the C table, is closed under its own words, and writes what users read."""

from __future__ import annotations

import types
import weakref

import pytest
import torch

from treadle_frame.guards import OPS
from treadle_tracer.output.guard_kinds import IMPLIES, KINDS, RECORDED, short, short_found
from treadle_tracer.output.guards import GuardSet
from treadle_tracer.source import LocalSource

X, Y = LocalSource("x"), LocalSource("y")

FUNCTION, SLOT = short, types.CodeType.co_argcount
BUILTIN = "builtin_function_or_method"

# What a trace may give as the argument, and the text of the guard.
ARGUMENTS = {
    "is": (None, "x is None"),
    "is_not": (None, "x is not None"),
    "type_is": (list, "type(x) is list"),
    "equals": (3, "x == 3"),
    "len": (2, "len(x) == 2"),
    "dict_keys": (("a", "b"), "list(x) == ['a', 'b']"),
    "has_attr": ("a", "hasattr(x, 'a')"),
    "lacks_attr": ("a", "not hasattr(x, 'a')"),
    "has_key": ("a", "'a' in x"),
    "lacks_key": ("a", "'a' not in x"),
    "call": (callable, "call of x"),
    "same_object": (Y, "x is y"),
    "distinct_objects": ((Y,), "x is none of y"),
    "function_code": (FUNCTION, "x has the code and the number of defaults of short"),
    "unset": (SLOT, "x.co_argcount is not set"),
    "call_many": ((max, (Y,)), "call_many of x"),
}


def test_the_table_has_the_ops_of_the_c_table():
    assert set(KINDS) == set(OPS)


def test_implications_name_ops_of_the_table():
    assert {op for kind in KINDS.values() for op in kind.implied_by} <= set(KINDS)
    assert all(weaker not in KINDS[op].implied_by for op, weakers in IMPLIES.items() for weaker in weakers)


@pytest.mark.parametrize("op", sorted(set(RECORDED) - {"capsule", "native_tensor"}))
def test_a_recorded_guard_reads_and_compiles(op):
    argument, text = ARGUMENTS[op]
    found = GuardSet()
    found.add(X, op, argument)
    assert [guard.reason for guard in found] == [text]
    (check,) = found.program().checks
    assert (check.path, check.op, check.reason) == (X.path, op, text)


@pytest.mark.parametrize("op", sorted(set(KINDS) - set(RECORDED)))
def test_what_only_programs_hold_is_not_recorded(op):
    with pytest.raises(ValueError, match="op must be one of"):
        GuardSet().add(X, op, None)


def test_modules_are_referred_to_weakly():
    module = torch.nn.Linear(2, 2)
    op, argument = KINDS["is"].compiled(module)
    assert op == "refers" and isinstance(argument, weakref.ref) and argument() is module


@pytest.mark.parametrize(
    ("op", "reason", "argument", "found", "text"),
    [
        ("equals", "x == 3", 3, 4, "expected x == 3, found 4"),
        ("is", "x is None", None, 4, "expected x is None, found 4"),
        ("type_is", "type(x) is list", list, (), "expected type(x) is list, found tuple"),
        ("len", "len(x) == 2", 2, [1], "expected len(x) == 2, found 1"),
        ("len", "len(x) == 2", 2, 5, "expected len(x) == 2, found 5"),
        ("has_key", "'a' in x", "a", {}, "expected 'a' in x"),
        (
            "is",
            "f is g",
            len,
            max,
            "f: expected the same builtin_function_or_method as when it was compiled, found another one",
        ),
        ("is", "f is g", len, 3, "f: expected the same builtin_function_or_method as when it was compiled, found 3"),
    ],
)
def test_a_failure_says_what_was_expected(op, reason, argument, found, text):
    assert KINDS[op].failure(reason, argument, found) == text


def test_the_failure_of_a_weak_reference_names_its_object():
    module = torch.nn.Linear(2, 2)
    text = KINDS["refers"].failure("self.a is <Linear at 0x1>", weakref.ref(module), None)
    assert text == "self.a: expected the same Linear as when it was compiled, found None"


def test_texts_are_short():
    assert len(short("a" * 200)) == 80 and short(torch.float32) == "torch.float32"
    assert short_found(torch.zeros(2, 3)) == "a Tensor of float32 [2, 3]"
    assert short_found([1]) == "a list" and len(short_found("a" * 200)) == 80
