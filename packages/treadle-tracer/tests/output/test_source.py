"""Every kind of source: its guard path reaches the object, its code pushes the same object, equality goes by parts."""

from __future__ import annotations

import builtins
from types import FunctionType, SimpleNamespace

import pytest

import treadle_frame
from treadle_tracer.bytecode import read
from treadle_tracer.output.emit import FrameCode
from treadle_tracer.source import (
    ApplySource,
    AttrSource,
    BuiltinSource,
    CellContentsSource,
    ClosureCellSource,
    ClosureSource,
    ConstSource,
    DictItemSource,
    DictKeySource,
    GlobalSource,
    InstanceDictSource,
    ItemSource,
    ListItemSource,
    LocalSource,
    TupleItemSource,
)


class Thing:
    def __init__(self, **parts):
        self.__dict__.update(parts)


class Renamed(dict):
    def __getitem__(self, key):
        return "not the item"


MODULE_NAME = Thing(inside=[1])
captured = Thing(inside="captured")
thing = Thing(
    items=[Thing(), (Thing(), Thing())],
    table=Renamed(a=Thing(), b=Thing()),
    method=lambda: captured,
)


def make():
    free = captured

    def frame(x, *rest, **named):
        return free

    return frame


frame = make()
X = LocalSource("x")
ITEMS, TABLE = InstanceDictSource(X, "items"), AttrSource(X, "table")
other_globals = {"inner": Thing()}

CASES = [
    (X, thing, "x"),
    (LocalSource("rest"), (5, 6), "rest"),
    (TupleItemSource(LocalSource("rest"), 1), 6, "rest[1]"),
    (DictItemSource(LocalSource("named"), "k"), 7, "named['k']"),
    (GlobalSource("MODULE_NAME"), MODULE_NAME, "MODULE_NAME"),
    (GlobalSource("inner", ConstSource(other_globals, "vars(other)")), other_globals["inner"], "vars(other)['inner']"),
    (BuiltinSource("len"), len, "len"),
    (ClosureSource("free"), captured, "free"),
    (ConstSource(Thing), Thing, f"{__name__}.Thing"),
    (ITEMS, thing.items, "x.items"),
    (ListItemSource(ITEMS, 0), thing.items[0], "x.items[0]"),
    (TupleItemSource(ListItemSource(ITEMS, 1), 1), thing.items[1][1], "x.items[1][1]"),
    (ItemSource(TABLE, "a"), "not the item", "x.table['a']"),
    (DictItemSource(TABLE, "b"), dict.__getitem__(thing.table, "b"), "x.table['b']"),
    (DictKeySource(TABLE, 1), "b", "list(x.table)[1]"),
    (ApplySource(TABLE, len), 2, "len(x.table)"),
    (CellContentsSource(TupleItemSource(AttrSource(ConstSource(frame), "__closure__"), 0)), captured, None),
]


def loaded(source):
    builder = FrameCode(read(frame.__code__))
    source.emit(builder)
    builder.return_value()
    function = FunctionType(builder.finish(), globals(), "frame", None, frame.__closure__)
    return function(thing, 5, 6, k=7)


@pytest.mark.parametrize(("source", "target", "text"), CASES, ids=lambda v: getattr(v, "text", None))
def test_path_code_and_text(source, target, text):
    value = loaded(source)
    assert value is target or (type(target) in (tuple, int, str) and value == target)
    locals_ = {"x": thing, "rest": (5, 6), "named": {"k": 7}}
    cells = {"free": frame.__closure__[0]}
    for op, arg, holds in (("equals", value, True), ("is", value, True), ("is", SimpleNamespace(), False)):
        if op == "is" and value is not target:
            continue
        program = treadle_frame.GuardProgram([treadle_frame.Check(source.path, op, arg)])
        assert program.check(locals_, globals(), cells, vars(builtins)) is holds
    if text is not None:
        assert source.text == text


def test_the_cell_of_a_free_variable_has_code_and_a_path():
    assert loaded(ClosureCellSource("free")) is frame.__closure__[0]
    assert ClosureCellSource("free").path == (("closure_cell", "free"),)


def test_equality_goes_by_parts_and_identity():
    def path(key):
        return AttrSource(ListItemSource(InstanceDictSource(LocalSource("x"), "layers"), key), "weight")

    assert path(0) == path(0)
    assert hash(path(0)) == hash(path(0))
    assert path(0) != path(1)
    assert ItemSource(X, 1) != ItemSource(X, True)
    assert AttrSource(X, "a") != InstanceDictSource(X, "a")
    assert LocalSource("x") != GlobalSource("x")
    a, b = [1], [1]
    assert ConstSource(a) == ConstSource(a)
    assert ConstSource(a) != ConstSource(b)
    assert path(0).root is not path(0).root
    assert path(0).root == X
