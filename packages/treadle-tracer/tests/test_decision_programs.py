"""Which decisions are computed together, and which are computed in the same way."""

from __future__ import annotations

import operator

import torch

from treadle_tracer.decision_programs import Calls, Decision, constant_key, programs_of

PLACE = ("file.py", 1, "f", 0)


def graph_of(function, count):
    """The nodes of a function: its inputs, its calls, and what it returns."""
    nodes = list(torch.fx.symbolic_trace(function).graph.nodes)
    return nodes[:count], nodes[count:-1], nodes[-1].all_input_nodes


def recorded(calls, function, positions, writes=False):
    inputs, nodes, results = graph_of(function, len(positions))
    results, needed = calls.add(dict(zip(inputs, positions, strict=True)), nodes, results, writes)
    return Decision(PLACE, results, bool, True, needed)


def test_equal_calls_on_different_objects_are_one_program():
    calls = Calls()
    decisions = [recorded(calls, lambda t: t + 1 > 5, [n], writes) for n, writes in enumerate([False, False, True])]
    programs = programs_of(calls.made, decisions, ["scalar"] * 3)
    assert [[row.inputs for row in program.rows] for program in programs] == [[(0,), (1,)], [(2,)]]
    assert [[row.decisions for row in program.rows] for program in programs] == [[(0,), (1,)], [(2,)]]
    plain, on_a_copy = (program.compiled() for program in programs)
    assert [plain(torch.tensor(n)) for n in (4, 5)] == [on_a_copy(torch.tensor(n)) for n in (4, 5)] == [0, 1]


def test_objects_of_different_kinds_are_different_programs():
    calls = Calls()
    decisions = [recorded(calls, lambda t: t > 5, [n]) for n in range(2)]
    assert len(programs_of(calls.made, decisions, ["float", "int"])) == 2


def test_constants_and_outcomes_tell_programs_apart():
    calls = Calls()
    decisions = [
        recorded(calls, function, [0]) for function in (lambda t: t > 0.0, lambda t: t > -0.0, lambda t: t > 0)
    ]
    decisions.append(recorded(calls, lambda t: t > 0.0, [1])._replace(outcome=False))
    decisions.append(recorded(calls, lambda t: t > 0.0, [2]))
    programs = programs_of(calls.made, decisions, ["float"] * 3)
    assert [[row.decisions for row in program.rows] for program in programs] == [[(0,), (4,)], [(1,)], [(2,)], [(3,)]]


def test_what_shares_calls_makes_them_once():
    calls = Calls()
    made = {}

    def shared(t):
        return t.exp()

    inputs, nodes, results = graph_of(shared, 1)
    decisions = []
    for turn in range(3):  # each decision follows from the result before it
        results, needed = calls.add({inputs[0]: 0}, nodes, nodes[-1:], writes=False)
        decisions.append(Decision(PLACE, results, bool, True, needed))
        graph = nodes[0].graph
        with graph.inserting_after(nodes[-1]):
            nodes = [*nodes, graph.call_function(operator.add, (nodes[-1], turn))]
        made[turn] = len(calls.made)
    assert made == {0: 1, 1: 2, 2: 3}
    (program,) = programs_of(calls.made, decisions, ["scalar"])
    assert len(program.calls) == 3 and [row.decisions for row in program.rows] == [(0, 1, 2)]


def test_a_result_that_all_share_does_not_keep_equal_programs_apart():
    """The learning rate of all parameters is one tensor."""
    calls = Calls()
    graph = torch.fx.Graph()
    rate = graph.placeholder("rate")
    number = graph.call_method("item", (rate,))
    decisions = []
    for n in range(1, 9):
        step = graph.placeholder(f"step{n}")
        product = graph.call_function(operator.mul, (step, number))
        results, needed = calls.add({rate: 0, step: n}, [number, product], [product], writes=False)
        decisions.append(Decision(PLACE, results, bool, True, needed))
    (program,) = programs_of(calls.made, decisions, ["scalar"] * 9)
    assert [row.inputs for row in program.rows] == [(0, n) for n in range(1, 9)]


def test_keys_of_constants():
    nan = float("nan")
    assert constant_key(nan) == constant_key(float("nan"))
    assert constant_key((1, [2.0, slice(0, None)])) == constant_key((1, [2.0, slice(0, None)]))
    different = [1, 1.0, True, "1", None, (1,), [1], {"a": 1}, slice(1), torch.float32, 0.0, -0.0, object()]
    assert len({repr(constant_key(item)) for item in different}) == len(different)
