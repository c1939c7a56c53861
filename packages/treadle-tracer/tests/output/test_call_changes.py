"""How a call differs from the one that an entry was made for."""

from __future__ import annotations

import math
from types import CellType, SimpleNamespace

import torch

from treadle_frame.guards import ACCESSORS, ROOTS
from treadle_tracer.output import call_changes
from treadle_tracer.output.call_changes import (
    changed_dimensions,
    exchanged_tensors,
    follow,
    is_same_number,
    parts_of_other_tensors,
)
from treadle_tracer.output.entry import Payload
from treadle_tracer.output.guards import GuardSet
from treadle_tracer.source import (
    AttrSource,
    ClosureSource,
    ConstSource,
    DictKeySource,
    GlobalSource,
    ItemSource,
    LocalSource,
)


def test_parts_of_other_tensors():
    guards = GuardSet()
    guards.add_tensor(LocalSource("x"), torch.ones(2, 3, 9)[:, :, 5:])
    payload = Payload(None, guards.tensors, None, None)

    def found(x):
        info = SimpleNamespace(locals={"x": x}, globals={}, builtins={}, closure=None)
        return parts_of_other_tensors(payload, info)

    assert found(torch.ones(2, 3, 7)[:, :, 3:]) == {LocalSource("x"): 1}
    assert found(torch.ones(2, 8, 9)[:, :3, 5:]) == {LocalSource("x"): 0}  # the outermost stride alone
    assert found(torch.ones(2, 3, 9)[:, :, :4]) == {}  # the same
    assert found(torch.ones(2, 3, 9)) == {}  # other sizes
    assert found(torch.ones(2, 4, 7)[:, :, 3:].transpose(1, 2)[:, :, :3].transpose(1, 2)) == {LocalSource("x"): 1}
    assert found(torch.ones(2, 4, 3).transpose(1, 2)) == {}  # another order
    assert found(torch.ones(2, 3, 8)[:, :, ::2]) == {LocalSource("x"): 2}
    assert found(torch.ones(2, 3, 1).expand(2, 3, 4)) == {}  # a stride of 0


def test_changed_dimensions_of_a_missed_call():
    guards = GuardSet()
    guards.add_tensor(LocalSource("x"), torch.ones(2, 3))
    guards.add_tensor(GlobalSource("y"), torch.ones(2))
    payload = Payload(None, guards.tensors, None, None)
    info = SimpleNamespace(locals={"x": torch.ones(5, 3)}, globals={"y": torch.ones(2)}, builtins={}, closure=None)
    assert changed_dimensions(payload, info) == {LocalSource("x"): {0: 5}}
    info.locals["x"] = torch.ones(5)
    assert changed_dimensions(payload, info) == {}
    assert follow(LocalSource("z").path, info) is None


def test_following_a_path_through_a_frame():
    code = SimpleNamespace(co_freevars=("c",))
    info = SimpleNamespace(
        locals={"x": {"k": 1 + 2j}}, globals={"g": [3]}, builtins={"len": len}, closure=(CellType(5),), code=code
    )
    x = LocalSource("x")
    found = [AttrSource(ItemSource(x, "k"), "real"), DictKeySource(x, 0), ItemSource(GlobalSource("g"), 0)]
    assert [follow(source.path, info) for source in found] == [1.0, "k", 3]
    assert follow(ClosureSource("c").path, info) == 5 and follow(ConstSource(math).path, info) is math
    for missing in (LocalSource("y"), ItemSource(x, "z"), AttrSource(x, "a"), ItemSource(GlobalSource("g"), 4)):
        assert follow(missing.path, info) is None


def test_exchanged_tensors():
    guards, weight = GuardSet(), torch.nn.Parameter(torch.ones(2))
    guards.add_tensor(LocalSource("w"), weight, by_identity=True)
    payload = Payload(None, guards.tensors, None, None)
    for other, exchanged in ((weight, False), (torch.nn.Parameter(torch.ones(2)), True), (torch.ones(2), False)):
        info = SimpleNamespace(locals={"w": other}, globals={}, builtins={}, closure=None)
        assert bool(exchanged_tensors(payload, info)) is exchanged


def test_numbers_are_compared_by_their_bits():
    assert is_same_number(math.nan, math.nan) and is_same_number(2, 2)
    assert not is_same_number(0.0, -0.0) and not is_same_number(1, 2)


def test_every_root_and_accessor_of_the_c_tables_can_be_followed():
    assert set(call_changes._ROOTS) == set(ROOTS)
    assert set(call_changes._STEPS) == set(ACCESSORS)


def test_slots_own_dicts_cells_and_globals_are_followed():
    class Slotted:
        __slots__ = ("__dict__", "k")

    value, cell = Slotted(), CellType(3)
    value.k, value.a = 1, 2
    frame = SimpleNamespace(
        locals={"x": value}, globals={"g": 4}, closure=(cell,), code=SimpleNamespace(co_freevars=("c",))
    )
    x = ("local", "x")
    assert follow((x, ("descriptor", Slotted.__dict__["k"])), frame) == 1
    assert follow((x, ("own_dict",)), frame) == {"a": 2} and follow((x, ("instance_dict", "a")), frame) == 2
    assert follow((("closure_cell", "c"),), frame) is cell and follow((("globals",),), frame) == {"g": 4}
    assert follow((("const", Slotted), ("instance_dict", "k")), frame) is Slotted.__dict__["k"]
