"""One live object per structure, and none for a structure that nobody uses."""

from __future__ import annotations

import gc

from treadle_shapes.intern import InternTable, Node


class Leaf(Node):
    __slots__ = ()


def test_the_first_node_of_a_key_stays():
    table = InternTable()
    first, second = Leaf(), Leaf()
    assert table.add(("a",), first) is first
    assert table.add(("a",), second) is first is table.get(("a",))
    assert table.get(("b",)) is None and len(table) == 1


def test_unused_nodes_go():
    table = InternTable()
    node = table.add(("a",), Leaf())
    del node
    gc.collect()
    assert table.get(("a",)) is None and len(table) == 0


def test_a_late_callback_leaves_the_new_node():
    table = InternTable()
    old = table.add(("a",), Leaf())
    stale = table.refs["a",]
    del old
    gc.collect()
    new = table.add(("a",), Leaf())
    table._forget(stale)
    assert table.get(("a",)) is new
