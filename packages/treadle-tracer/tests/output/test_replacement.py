"""Replacement code of hand-made traces: identity, cycles, and writes in the right order."""

from __future__ import annotations

import collections
from types import CellType, FunctionType, SimpleNamespace

import pytest
import torch

import treadle_frame
from treadle_tracer.bytecode import read
from treadle_tracer.output.entry import FramePlan, Payload, finish_entry
from treadle_tracer.output.graph import GraphBuilder
from treadle_tracer.output.guards import GuardSet
from treadle_tracer.output.mutations import DELETED, Mutations
from treadle_tracer.source import AttrSource, ClosureCellSource, ConstSource, LocalSource
from treadle_tracer.values.base import NONE, ConcreteValue, Constant
from treadle_tracer.values.cells import CellValue
from treadle_tracer.values.mappings import DictValue
from treadle_tracer.values.objects import ObjectValue
from treadle_tracer.values.sequences import ListValue, TupleValue
from treadle_tracer.values.tensor import TensorValue


def frame(x, y=None):
    raise AssertionError("the original must not run")


class Thing:
    pass


def run(value, *args, mutations=None, like=frame):
    result = SimpleNamespace(
        kind="return",
        guards=GuardSet(),
        value=value,
        mutations=mutations or Mutations(),
        state_changes=[],
        generators=(),
        arguments={},
        locals={},
    )
    code = FramePlan(like.__code__, read(like.__code__), result).replacement(None, False)
    return FunctionType(code, globals(), "frame", (None, None), like.__closure__)(*args)


def outside(name, obj=None):
    return ObjectValue(Thing, obj if obj is not None else Thing(), LocalSource(name))


def entries(**items):
    return {key: (Constant(key), value) for key, value in items.items()}


def test_one_value_is_one_object():
    inner = ListValue([Constant(1)])
    result = run(TupleValue([inner, inner, ListValue([inner]), ListValue([Constant(1)])], tuple))
    assert result == ([1], [1], [[1]], [1])
    assert result[0] is result[1] is result[2][0]
    assert result[3] is not result[0]


def test_outside_objects_are_themselves():
    thing = Thing()
    thing.part = Thing()
    x = outside("x", thing)
    part = ObjectValue(Thing, thing.part, AttrSource(x.source, "part"))
    assert run(TupleValue([x, part, x], tuple), thing) == (thing, thing.part, thing)


def test_containers_that_contain_themselves():
    items = ListValue([Constant(1)])
    items.items.append(items)
    result = run(items)
    assert result[0] == 1
    assert result[1] is result
    table = DictValue(entries(a=items))
    table.entries["self"] = (Constant("self"), table)
    both = run(TupleValue([table, items], tuple))
    assert both[0]["self"] is both[0]
    assert both[0]["a"] is both[1] is both[1][1]


def test_a_new_object_that_refers_to_itself():
    mutations = Mutations()
    made = ObjectValue(Thing)
    mutations.store_attr(made, "me", made)
    mutations.store_attr(made, "n", Constant(3))
    result = run(made, mutations=mutations)
    assert type(result) is Thing
    assert result.me is result
    assert result.n == 3


def test_values_are_read_before_the_first_store():
    """`old = x.part; x.part = y; y.part = old; return old`"""
    thing, other = Thing(), Thing()
    old = thing.part = Thing()
    x, y = outside("x", thing), outside("y", other)
    part = ObjectValue(Thing, old, AttrSource(x.source, "part"))
    mutations = Mutations()
    mutations.store_attr(x, "part", y)
    mutations.store_attr(y, "part", part)
    assert run(part, thing, other, mutations=mutations) is old
    assert thing.part is other
    assert other.part is old


def test_attributes_in_order_and_deleted():
    thing = Thing()
    thing.gone = thing.kept = 1
    x = outside("x", thing)
    mutations = Mutations()
    for name in "abc":
        mutations.store_attr(x, name, Constant(name))
    mutations.store_attr(x, "a", Constant("again"))
    mutations.delete_attr(x, "gone")
    mutations.store_attr(x, "fleeting", NONE)
    mutations.delete_attr(x, "fleeting")
    mutations.delete_attr(x, "b")
    mutations.store_attr(x, "b", Constant("later"))
    assert run(NONE, thing, mutations=mutations) is None
    assert list(vars(thing).items()) == [("kept", 1), ("a", "again"), ("c", "c"), ("b", "later")]


def test_class_attributes():
    class Other:
        pass

    mutations = Mutations()
    x = ConcreteValue(Other, LocalSource("x"))
    mutations.store_attr(x, "count", Constant(2))
    run(NONE, Other, mutations=mutations)
    assert Other.count == 2


@pytest.mark.parametrize("make", [list, collections.deque])
def test_changed_lists_keep_their_identity(make):
    real = make([1, 2])
    x = ListValue([Constant(0), Constant(5)], make, LocalSource("x"), real)
    x.items.append(x)
    mutations = Mutations()
    mutations.mutated(x)
    assert run(x, real, mutations=mutations) is real
    assert list(real)[:2] == [0, 5]
    assert real[2] is real


@pytest.mark.parametrize("make", [dict, collections.OrderedDict, lambda: collections.defaultdict(list)])
def test_changed_dicts_keep_identity_and_order(make):
    real = make()
    real["z"], real["a"] = 1, 2
    x = DictValue(entries(a=Constant(2), z=Constant(9)), type(real))
    x.source = LocalSource("x")
    x.writes.forget()
    mutations = Mutations()
    mutations.mutated(x)
    assert run(x, real, mutations=mutations) is real
    assert list(real.items()) == [("a", 2), ("z", 9)]


def test_globals_and_cells():
    other = {"n": 1, "gone": 2}
    mutations = Mutations()
    mutations.store_global(None, "written_by_the_test", Constant(5))
    mutations.store_global(ConstSource(other), "n", Constant(6))
    mutations.store_global(ConstSource(other), "gone", DELETED)
    run(NONE, mutations=mutations)
    assert globals().pop("written_by_the_test") == 5
    assert other == {"n": 6}
    free, emptied = 1, 2

    def closing(x, y=None):
        return free, emptied

    mutations = Mutations()
    mutations.store_cell(CellValue(cell=CellType(), source=ClosureCellSource("free")), Constant(7))
    mutations.store_cell(CellValue(cell=CellType(), source=ClosureCellSource("emptied")), DELETED)
    run(NONE, mutations=mutations, like=closing)
    assert free == 7
    with pytest.raises(NameError):
        closing(1)


def test_a_deleted_global_of_the_frame():
    globals()["deleted_by_the_test"] = 1
    mutations = Mutations()
    mutations.store_global(None, "deleted_by_the_test", DELETED)
    run(NONE, mutations=mutations)
    assert "deleted_by_the_test" not in globals()


# ---- entries with a graph


STATE = {"state_changes": [], "protected": False, "env": None, "generators": (), "arguments": {}, "locals": {}}


def entry_of(function, build, tensor, **result):
    """An entry for `function`, whose graph `build` makes from the node of parameter x."""
    graph, guards = GraphBuilder(), GuardSet()
    guards.add_tensor(LocalSource("x"), tensor)
    node = build(graph, graph.placeholder(LocalSource("x"), tensor, tensor))
    value = TensorValue(node, tensor)
    given = {
        "kind": "return",
        "value": value,
        "graph": graph,
        "guards": guards,
        "mutations": Mutations(),
        **STATE,
        **result,
    }
    plan = FramePlan(function.__code__, read(function.__code__), SimpleNamespace(**given))
    gm = graph.finish(plan.outputs)
    return finish_entry(plan, gm.forward, Payload(gm, guards.tensors, None, None))


def call(graph, function, *args, **kwargs):
    return graph.call("call_function", function, args, kwargs, torch.empty(0), "")


def dispatch(function, entry):
    treadle_frame.reset(function.__code__)
    treadle_frame.add_entry(function, entry)
    return treadle_frame.dispatcher(function, lambda info: treadle_frame.RUN_ONCE)


def test_one_tensor_result_needs_no_frame():
    def add(x):
        raise AssertionError

    entry = entry_of(add, lambda graph, x: call(graph, torch.add, x, 1), torch.ones(2))
    assert entry.fast_path is not None
    assert torch.equal(dispatch(add, entry)(torch.ones(2)), torch.full((2,), 2.0))
    mutations = Mutations()
    mutations.store_global(None, "counted", Constant(1))
    entry = entry_of(add, lambda graph, x: call(graph, torch.add, x, 1), torch.ones(2), mutations=mutations)
    assert entry.fast_path is None
    assert torch.equal(dispatch(add, entry)(torch.ones(2)), torch.full((2,), 2.0))
    assert globals().pop("counted") == 1


def test_a_failing_graph_is_followed_by_the_original():
    """Index 5 is out of range only at run time: the exception comes from the user's line, and a handler there sees it."""

    def pick(x, *, i=(5,), **named):
        try:
            return torch.ones(3)[x]
        except IndexError:
            return i, named

    def build(graph, x):
        return call(graph, torch.index_select, call(graph, torch.ones, 3), 0, x)

    entry = entry_of(pick, build, torch.tensor([1]), protected=True)
    assert entry.fast_path is None
    compiled = dispatch(pick, entry)
    assert compiled(torch.tensor([1])).tolist() == [1.0]
    with pytest.warns(RuntimeWarning, match="the compiled graph of .*pick raised"):
        assert compiled(torch.tensor([5]), k=1) == ((5,), {"k": 1})


def test_exceptions_of_a_failing_graph_have_the_users_traceback():
    def pick(x):
        y = x + 1
        return torch.ones(3)[y]  # here

    def build(graph, x):
        return call(graph, torch.index_select, call(graph, torch.ones, 3), 0, x)

    mutations = Mutations()
    mutations.store_global(None, "unused", NONE)
    compiled = dispatch(pick, entry_of(pick, build, torch.tensor([1]), mutations=mutations))
    with pytest.raises(IndexError) as caught:
        compiled(torch.tensor([7]))
    assert "# here" in str(caught.traceback[-1].statement)
    assert "unused" not in globals()
