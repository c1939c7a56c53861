"""The report of `treadle.explain`."""

from __future__ import annotations

import time

import torch

import treadle


def program(x, y):
    if x.shape[0] > 3 and y.shape[1] == 2:
        return x.sum() + y.sum()
    return x.sum() * 2


def test_static_sizes_are_told():
    explanation = treadle.explain(program)(torch.ones(4, 8), torch.ones(5, 2))
    assert explanation.sizes == [
        "x.size()[0]: static, 4",
        "x.size()[1]: static, 8",
        "y.size()[0]: static, 5",
        "y.size()[1]: static, 2",
    ]
    assert str(explanation).splitlines()[-4:] == explanation.sizes
    assert explanation.result.item() == 42


def test_dynamic_sizes_and_the_lines_that_constrain_them():
    sizes = treadle.explain(program, dynamic=True)(torch.ones(4, 8), torch.ones(5, 2)).sizes
    x0 = sizes.index("x.size()[0]: dynamic, 4 or more")
    assert sizes[x0 + 1].startswith("    x.size()[0] >= 4, decided at ")
    assert "if x.shape[0] > 3 and y.shape[1] == 2:" in sizes[x0 + 1]
    assert any(text.startswith("x.size()[1]: dynamic, ") for text in sizes)
    y1 = sizes.index("y.size()[1]: static, it must be 2")
    assert "test_explain.py:" in sizes[y1 + 1]


def test_marked_ranges_and_ints():
    x = torch.ones(4, 8)
    treadle.mark_dynamic(x, 0, min=2, max=16)
    sizes = treadle.explain(lambda x: x * 2)(x).sizes
    assert sizes == ["x.size()[0]: dynamic, 2 to 16", "x.size()[1]: static, 8"]


def breaking(x):
    y = torch.relu(x) * 2
    time.sleep(0)
    return y + 1


def test_the_whole_report():
    line = breaking.__code__.co_firstlineno + 2
    assert (
        str(treadle.explain(breaking)(torch.ones(2, 3)))
        == f"""\
2 graphs, 1 break, 18 guards
graph 0: 2 operations
graph 1: 1 operation
break 0: builtin-call at {__file__}:{line}
    The program calls a function implemented in C that is no torch operation and is not known to be pure. (time.sleep)
left to Python: graphs this small cost more than they save (option leave_unprofitable)
x.size()[0]: static, 2
x.size()[1]: static, 3
y.size()[0]: static, 2
y.size()[1]: static, 3"""
    )


def test_the_whole_report_with_dynamic_sizes():
    line = program.__code__.co_firstlineno + 1
    where = f"{__file__}:{line} in program: if x.shape[0] > 3 and y.shape[1] == 2:"
    report = str(treadle.explain(program, dynamic=True)(torch.ones(4, 8), torch.ones(5, 2)))
    assert (
        report
        == f"""\
1 graph, 0 breaks, 12 guards
graph 0: 7 operations
x.size()[0]: dynamic, 4 or more
    x.size()[0] >= 4, decided at {where}
x.size()[1]: dynamic, 1 or more
y.size()[0]: dynamic, 1 or more
y.size()[1]: static, it must be 2
    y.size()[1] == 2, decided at {where}"""
    )


def test_functions_with_breaks_that_gain_something_are_not_left_to_python():
    def f(x):
        for _ in range(30):
            x = torch.sin(x) * 2
        time.sleep(0)
        return x + 1

    assert not treadle.explain(f)(torch.ones(2)).is_unprofitable
    assert treadle.explain(breaking)(torch.ones(2)).is_unprofitable
