"""Guard programs of entries with dynamic sizes: ranges in C, Python only for what relates several numbers."""

from __future__ import annotations

import torch
from compile_runs import compiled

from treadle_tracer.output.size_ranges import size_program


def last_entry(function, *calls):
    fast, recorder = compiled(function)
    for args in calls:
        fast(*args)
    return recorder.entries[-1]


def ops(program):
    return [check.op for check in program.checks]


def holds(program, **arguments):
    import builtins

    return program.check(arguments, {"torch": torch}, {}, vars(builtins))


def t(*sizes):
    return torch.ones(sizes)


def test_a_free_size_is_a_range_in_c():
    entry = last_entry(lambda x: torch.relu(x), (t(3, 4),), (t(5, 4),))
    assert not {"call_many", "equal_items"} & set(ops(entry.guard))
    assert holds(entry.guard, x=t(2, 4)) and holds(entry.guard, x=t(700, 4))
    assert not holds(entry.guard, x=t(0, 4)) and not holds(entry.guard, x=t(3, 5))


def test_a_decision_about_one_size_is_its_range():
    entry = last_entry(lambda x: x + 1 if x.shape[0] < 10 else x, (t(3),), (t(5),))
    assert not {"call_many", "equal_items"} & set(ops(entry.guard))
    assert holds(entry.guard, x=t(9)) and not holds(entry.guard, x=t(10))


def test_equal_sizes_are_compared_in_c():
    entry = last_entry(lambda x, y: x + y, (t(3), t(3)), (t(5), t(5)))
    assert "equal_items" in ops(entry.guard) and "call_many" not in ops(entry.guard)
    assert holds(entry.guard, x=t(9), y=t(9)) and not holds(entry.guard, x=t(9), y=t(8))


def test_other_relations_are_asked_in_python():
    entry = last_entry(lambda x, y: x.sum() + y.sum() if x.shape[0] < y.shape[0] else x, (t(3), t(4)), (t(5), t(7)))
    assert "call_many" in ops(entry.guard)
    assert holds(entry.guard, x=t(8), y=t(9)) and not holds(entry.guard, x=t(9), y=t(8))


def test_a_size_of_1_waits_for_its_check():
    entry = last_entry(lambda x: torch.relu(x), (t(3, 4),), (t(5, 4),))
    dynamic = entry.payload.dynamic
    assert not holds(entry.guard, x=t(1, 4))
    with dynamic.guard.accepting_all():
        assert holds(size_program(entry.guard.checks, dynamic, any_size_one=True), x=t(1, 4))
    dynamic.guard.accept((0,))
    again = size_program(entry.guard.checks, dynamic)
    assert holds(again, x=t(1, 4)) and holds(again, x=t(6, 4)) and not holds(again, x=t(0, 4))
    assert ops(size_program(again.checks, dynamic)) == ops(again)


def test_combinations_that_are_no_ranges_are_asked_in_python():
    entry = last_entry(lambda x, y: x.sum() + y.sum(), (t(3), t(4)), (t(5), t(7)))
    dynamic = entry.payload.dynamic
    dynamic.guard.accept((0, 1))
    both = size_program(entry.guard.checks, dynamic)
    assert "call_many" in ops(both)
    assert holds(both, x=t(1), y=t(1)) and holds(both, x=t(2), y=t(2)) and not holds(both, x=t(1), y=t(2))
