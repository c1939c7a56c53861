"""`warnings.catch_warnings` inside a function: what its filters ignore, record and make exceptions."""

from __future__ import annotations

import time
import warnings

import pytest
import sympy  # noqa: F401 -- adds a filter when it is imported
import torch
from compile_runs import compiled


def ignored(x):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.warn("hidden")
        y = x * 2
    return y + 1


def recorded(x):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        warnings.warn("one")
        warnings.warn("two", FutureWarning)
    return x * len(seen), [(str(w.message), w.category, w.lineno, type(w.message)) for w in seen]


def only_one_category(x):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        warnings.warn("hidden", FutureWarning)
    warnings.warn("shown", FutureWarning)
    return x + 1


def an_exception(x):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            warnings.warn("raised", DeprecationWarning)
        except DeprecationWarning as error:
            return x + 1, str(error)
    return x, ""


def nested(x):
    with warnings.catch_warnings(record=True) as outer:
        warnings.simplefilter("always")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.warn("hidden")
        with warnings.catch_warnings(record=True) as inner:
            warnings.warn("inner")
        warnings.warn("outer")
    return x * len(outer), [str(w.message) for w in [*outer, *inner]]


def nothing_happens(x):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        y = torch.exp(x)
    return y @ y


WHOLE = (ignored, recorded, only_one_category, an_exception, nested, nothing_happens)


def decided_outside(x):
    with warnings.catch_warnings():
        warnings.warn("as outside")
        y = x * 2
    return y


def broken_inside(x):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.warn("hidden")
        y = x * 2
        time.sleep(0)
        warnings.warn("hidden, too")
    warnings.warn("shown")
    return y


def recorded_across_a_break(x):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        warnings.warn("one")
        y = x * 2
        time.sleep(0)
        warnings.warn("two")
    return y, [(str(w.message), w.lineno) for w in seen]


def an_operator_that_warns(x):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        y = torch.std(x.flatten()[:1])
    return x.nan_to_num() + y.nan_to_num()


def left_ignored(x):
    warnings.simplefilter("ignore", FutureWarning)
    return x + 1


def left_an_exception(x):
    warnings.simplefilter("error", FutureWarning)
    try:
        warnings.warn("raised", FutureWarning)
    except FutureWarning as error:
        return x + 1, str(error)
    return x, ""


def left_and_shown(x):
    warnings.simplefilter("ignore", FutureWarning)
    warnings.warn("hidden", FutureWarning)
    warnings.warn("as outside", UserWarning)
    return x + 1


def left_after_a_reset(x):
    warnings.resetwarnings()
    warnings.warn("by default")
    return x + 1


def filtered_by_message(x):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="hid")
        warnings.warn("hidden")
        warnings.warn("shown")
    return x + 1


LEFT = (left_ignored, left_an_exception, left_and_shown, left_after_a_reset)
BROKEN = (filtered_by_message, decided_outside, broken_inside, recorded_across_a_break)


def outcome(function):
    """What two calls give and show, under each of these filters, and the filters that they leave."""
    found = []
    for action in ("always", "default", "ignore", "error"):
        globals().pop("__warningregistry__", None)
        with warnings.catch_warnings(record=True) as seen:
            warnings.resetwarnings()
            warnings.simplefilter(action)
            before = (warnings.filters, warnings.showwarning, warnings._showwarnmsg_impl)
            for _ in range(2):
                try:
                    result = function(torch.eye(3))
                    found.append(repr(result))
                except Warning as error:
                    found.append(repr(error))
            if not function.__name__.startswith("left_"):
                now = (warnings.filters, warnings.showwarning, warnings._showwarnmsg_impl)
                assert before[0] is now[0] and before == now  # a bound method of a list is made anew
            found.append([entry[:1] for entry in warnings.filters])
        found.append([(str(w.message), w.category, w.filename, w.lineno) for w in seen])
        found.append("__warningregistry__" in globals())
    return found


@pytest.mark.parametrize("program", [*WHOLE, *BROKEN, *LEFT], ids=lambda f: f.__name__)
def test_like_python(program):
    expected = outcome(program)
    fast, recorder = compiled(program)
    assert outcome(fast) == expected
    if program in WHOLE:
        assert set(recorder.codes()) <= {"output"} and recorder.graphs  # "output": under the filter "error"


@pytest.mark.parametrize("program", WHOLE, ids=lambda f: f.__name__)
def test_one_graph(program):
    fast, recorder = compiled(program, fullgraph=True)
    for function in (fast, fast):
        with warnings.catch_warnings():
            warnings.simplefilter("default")
            function(torch.ones(2, 2))
    assert len(recorder.graphs) == 1


def test_an_operator_that_may_warn_runs_under_the_filters():
    fast, recorder = compiled(an_operator_that_warns)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        assert torch.equal(fast(torch.eye(3)), an_operator_that_warns(torch.eye(3)))
    assert not seen and "output" in recorder.codes()


@pytest.mark.parametrize("module", [__name__, "__main__"])
def test_the_filters_that_python_starts_with_name_modules_by_text(module):
    """`("default", None, DeprecationWarning, "__main__", 0)`: no pattern."""

    def function(x):
        warnings.warn("old", DeprecationWarning, stacklevel=1)
        return x + 1

    fn, recorder = compiled(function)
    with warnings.catch_warnings(record=True) as caught:
        warnings.resetwarnings()
        warnings.simplefilter("always")
        warnings.filters.insert(0, ("default", None, DeprecationWarning, module, 0))
        fn(torch.ones(2))
    assert [str(warning.message) for warning in caught] == ["old"]
    assert len(recorder.graphs) == 1
