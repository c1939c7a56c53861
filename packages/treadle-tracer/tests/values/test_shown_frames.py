"""Warnings and log records name the line that they name in Python, whoever's it is: a caller of the compiled function, or `nn.Module`'s."""

from __future__ import annotations

import logging
import time
import warnings

import pytest
import torch
from compile_runs import compiled

LEVELS = (1, 2, 3, 4, 5, 40)
logger = logging.getLogger("shown")


class Net(torch.nn.Module):
    def forward(self, x, level):
        warnings.warn("net", stacklevel=level)
        return x.sin() * 2


class Hooked(Net):
    def __init__(self):
        super().__init__()
        self.register_forward_pre_hook(lambda module, args: None)


NET, HOOKED = Net(), Hooked()


def alone(x, level):
    warnings.warn("alone", FutureWarning, stacklevel=level)
    return x.sin()


def in_a_call(x, level):
    return alone(x, level) + 1


def in_a_module(x, level):
    return NET(x, level) + 1


def in_a_module_with_hooks(x, level):
    return HOOKED(x, level) + 1


def in_forward_itself(x, level):
    return NET.forward(x, level) + 1


def behind_a_break(x, level):
    y = x.sin()
    time.sleep(0)
    warnings.warn("behind", stacklevel=level)
    return y.cos()


def behind_a_break_in_a_call(x, level):
    return behind_a_break(x, level) + 1


PROGRAMS = (
    alone,
    in_a_call,
    in_a_module,
    in_a_module_with_hooks,
    in_forward_itself,
    behind_a_break,
    behind_a_break_in_a_call,
)


def caught(function, *args):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        function(*args)
    return [(str(w.message), w.category, w.filename, w.lineno) for w in seen]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda function: function.__name__)
@pytest.mark.parametrize("level", LEVELS)
def test_warnings_name_the_line_that_they_name_in_python(program, level):
    if program is in_a_module_with_hooks and level == 3:
        pytest.skip("_call_impl asks is_compiling(), and has another line for each answer")
    x = torch.ones(3)
    fast, recorder = compiled(program)
    expected, found = [], []
    for seen, function in ((expected, program), (found, fast), (found, fast)):
        seen.append(caught(function, x, level))
    assert found == expected * 2
    if "break" not in program.__name__:
        assert len(recorder.graphs) == 1 and recorder.codes() == []


def test_filters_see_the_callers_module_and_line():
    x = torch.ones(3)
    fast, _ = compiled(alone)
    for action, module in (("ignore", __name__), ("ignore", "other"), ("error", __name__), ("error", "other")):
        results = []
        for function in (alone, fast):
            with warnings.catch_warnings(record=True) as seen:
                warnings.simplefilter("always")
                warnings.filterwarnings(action, module=module)
                try:
                    results.append((function(x, 2).tolist(), len(seen)))
                except FutureWarning as error:
                    results.append(str(error))
        assert results[0] == results[1], (action, module)


def test_each_line_warns_once_by_default():
    x = torch.ones(3)

    def outcomes(function):
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("default")
            for _ in range(3):
                function(x, 2)
            function(x, 2)
        return len(seen)

    globals().pop("__warningregistry__", None)
    expected = outcomes(alone)
    fast, _ = compiled(alone)
    globals().pop("__warningregistry__", None)
    assert outcomes(fast) == expected == 2


def test_log_records_count_the_frames_of_modules():
    class Logs(torch.nn.Module):
        def forward(self, x, level):
            logger.error("here", stacklevel=level)
            return x + 1

    module = Logs()

    def program(x, level):
        return module(x, level) * 2

    records = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append((record.filename, record.lineno, record.funcName))
    logger.addHandler(handler)
    try:
        for level in (1, 2, 3, 4):
            for function in (program, compiled(program)[0]):
                function(torch.ones(2), level)
            assert records[-1] == records[-2], level
    finally:
        logger.removeHandler(handler)
