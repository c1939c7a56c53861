"""`warnings.catch_warnings` inside a function: what its filters ignore, record and make exceptions."""

from __future__ import annotations

import threading
import time
import warnings

import pytest
import sympy  # noqa: F401 -- adds a filter when it is imported
import torch
import torch.nn.functional as F
from compile_runs import compiled

from treadle_tracer.values.heard_warnings import Warned, raise_at_warnings


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


@pytest.mark.parametrize("module", ["__main__", __name__])
@pytest.mark.parametrize("action", ["default", "error"])
def test_the_interpreter_s_own_filters_hold_plain_text(action, module):
    """As a process without pytest has them: `('default', None, DeprecationWarning, '__main__', 0)`."""

    def function(x):
        warnings.warn("old", DeprecationWarning)
        return x + 1

    def run(function):
        globals().pop("__warningregistry__", None)
        with warnings.catch_warnings(record=True) as seen:
            warnings.filters[:] = [
                (action, None, DeprecationWarning, module, 0),
                ("ignore", None, DeprecationWarning, None, 0),
            ]
            warnings._filters_mutated()  # type: ignore[attr-defined]
            try:
                result = repr(function(torch.eye(3)))
            except DeprecationWarning as error:
                result = repr(error)
        return result, [str(w.message) for w in seen]

    expected = run(function)
    fast, recorder = compiled(function)
    assert run(fast) == expected
    if (action, module) != ("error", __name__):
        assert recorder.graphs


# ---- what PyTorch's own functions warn of


def implicit_dimension(x):
    return F.softmax(x) + F.log_softmax(x * 2)


def copied(x):
    made = torch.tensor(x, requires_grad=True)
    return made * torch.tensor(data=x.T, dtype=torch.float64) + x.double().new_tensor(x)


def broadcast_target(x):
    return F.mse_loss(x, x[:1]), torch.nn.L1Loss()(x, x[:1])


def resized(x):
    return torch.add(x, x, out=torch.empty(1))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("program", [implicit_dimension, copied, broadcast_target, resized], ids=lambda f: f.__name__)
def test_functions_of_torch_warn_in_every_call_from_the_users_line(program, dynamic):
    expected = outcome(program)
    fast, recorder = compiled(program, dynamic=dynamic)
    assert outcome(fast) == expected and recorder.graphs


def test_sizes_that_are_equal_are_not_warned_of():
    fast, recorder = compiled(lambda x: F.mse_loss(x[:, :1], x.sum(1, keepdim=True)), dynamic=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for rows in (4, 5, 6):
            fast(torch.ones(rows, 3))
    assert len(recorder.graphs) == 1


def test_what_is_not_of_torch_or_not_of_this_thread_warns():
    with warnings.catch_warnings(record=True) as seen, raise_at_warnings():
        warnings.simplefilter("always")
        other = threading.Thread(target=F.softmax, args=(torch.ones(2, 2),))
        other.start()
        other.join()
        warnings.warn("of this file")
        with pytest.raises(Warned):
            F.softmax(torch.ones(2, 2))
    texts = [str(w.message) for w in seen]
    assert len(texts) == 2 and texts[0].startswith("Implicit dimension choice") and texts[1] == "of this file"
    assert seen[1].filename == __file__
