"""`TREADLE_LOGS` and `logging`: what is printed, where it goes, and that a log costs nothing while it is off."""

from __future__ import annotations

import logging
import time

import pytest
import torch

import treadle
from treadle import logs
from treadle.errors import TreadleWarning, UnknownName


@pytest.fixture(autouse=True)
def _logs_off():
    yield
    logs.set_logs()


def test_only_enabled_logs_print_and_text_is_made_on_demand(capsys):
    logs.set_logs("guards")
    logs.emit("guards", lambda: "first\nsecond")
    logs.emit("bytecode", lambda: pytest.fail("made although off"))
    assert capsys.readouterr().err == "[treadle:guards] first\n[treadle:guards] second\n"


def test_unknown_names_are_refused_from_python_and_warned_of_from_the_environment(monkeypatch):
    with pytest.raises(UnknownName, match="did you mean 'graph_code'"):
        logs.set_logs("graph_cod")
    monkeypatch.setenv(logs.ENVIRONMENT, "guards, graph_cod")
    with pytest.warns(TreadleWarning, match="did you mean 'graph_code'"):
        logs.read_environment()
    assert logs.is_on("guards") and not logs.is_on("graph_code")


def test_help_has_a_sentence_for_every_log(capsys, monkeypatch):
    monkeypatch.setenv(logs.ENVIRONMENT, "help")
    logs.read_environment()
    printed = capsys.readouterr().err
    assert all(name in printed and sentence in printed for name, sentence in logs.LOGS.items())


def test_all_turns_everything_on():
    logs.set_logs("all")
    assert all(logs.is_on(name) for name in logs.LOGS)


class Collect(logging.Handler):
    def __init__(self):
        super().__init__()
        self.records = []

    def emit(self, record):
        self.records.append(record)


def test_attached_handlers_get_the_records_without_any_printing(capsys):
    logger, handler = logging.getLogger("treadle.recompiles"), Collect()
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        logs.emit("recompiles", lambda: "x.size()[0]: expected 2, found 4")
        logs.emit("guards", lambda: pytest.fail("made although off"))
    finally:
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)
    (record,) = handler.records
    assert (record.name, record.levelno) == ("treadle.recompiles", logging.INFO)
    assert record.getMessage() == "x.size()[0]: expected 2, found 4"
    assert capsys.readouterr().err == ""


def test_handlers_of_the_root_logger_do_not_print_twice(capsys):
    root, handler = logging.getLogger(), logging.StreamHandler()
    root.addHandler(handler)
    before = root.level
    root.setLevel(logging.DEBUG)
    try:
        assert not logs.is_on("guards")  # the root logger's level is for the program's own messages
        logs.set_logs("guards")
        logs.emit("guards", "once")
    finally:
        root.removeHandler(handler)
        root.setLevel(before)
    assert capsys.readouterr().err == "[treadle:guards] once\n"


def test_handlers_of_the_package_see_printed_logs_too(capsys):
    package, handler = logging.getLogger("treadle"), Collect()
    package.addHandler(handler)
    try:
        logs.set_logs("guards")
        logs.emit("guards", "both")
    finally:
        package.removeHandler(handler)
    assert [record.getMessage() for record in handler.records] == ["both"]
    assert capsys.readouterr().err == "[treadle:guards] both\n"


def test_turning_logs_off_leaves_nothing_behind():
    package, guards = logging.getLogger("treadle"), logging.getLogger("treadle.guards")
    logs.set_logs("guards", "skips")
    logs.set_logs("skips")
    assert (guards.handlers, guards.level, len(package.handlers), package.propagate) == ([], logging.NOTSET, 1, False)
    logs.set_logs()
    assert (package.handlers, package.propagate) == ([], True)


def breaking(x):
    y = torch.relu(x) * 2
    time.sleep(0)
    return y


def printed(capsys, *names):
    """What two calls of the compiled function print, with different sizes."""
    compiled = treadle.compile(breaking, backend="eager", dynamic=False)
    treadle.set_logs(*names)
    compiled(torch.ones(2, 3)), compiled(torch.ones(4, 3))
    return capsys.readouterr().err


def test_the_text_of_recompiles(capsys):
    line = breaking.__code__.co_firstlineno
    assert printed(capsys, "recompiles") == (
        f"[treadle:recompiles] breaking ({__file__}:{line}): x.size()[0]: expected 2, found 4\n"
        f"[treadle:recompiles] breaking ({__file__}:{line}): y.size()[0]: expected 2, found 4\n"  # the continuation
    )


def test_the_text_of_graph_breaks(capsys):
    line = breaking.__code__.co_firstlineno + 2
    once = f"""\
[treadle:graph_breaks] builtin-call at {__file__}:{line}: The program calls a function implemented in C that is no torch operation \
and is not known to be pure. (time.sleep)
[treadle:graph_breaks]     time.sleep(0)
[treadle:graph_breaks]   hint: Call it outside the compiled part.
[treadle:graph_breaks]   hint: If it computes with tensors, register it as a torch.library custom operator.
"""
    assert printed(capsys, "graph_breaks") == once * 2


def test_the_text_of_graph_sizes(capsys):
    assert (
        printed(capsys, "graph_sizes")
        == """\
[treadle:graph_sizes] x: (2, 3) float32
[treadle:graph_sizes] relu: (2, 3) float32
[treadle:graph_sizes] mul: (2, 3) float32
[treadle:graph_sizes] x: (4, 3) float32
[treadle:graph_sizes] relu: (4, 3) float32
[treadle:graph_sizes] mul: (4, 3) float32
"""
    )


def test_the_text_of_eager_graphs(capsys):
    treadle.set_logs("eager")
    treadle.compile(lambda x: x.as_strided((2,), (1,), 1))(torch.ones(4, requires_grad=True))
    assert "[treadle:eager] as_strided reads an input from an absolute place in its storage" in capsys.readouterr().err


def test_the_text_of_the_codes(capsys):
    treadle.set_logs("graph_code", "aten_code")
    treadle.compile(lambda x: torch.relu(x) * 2, backend="aot_eager")(torch.ones(2, 3))
    text = capsys.readouterr().err
    assert 'x: "f32[2, 3]"' in text or "def forward(self, x" in text
    assert "torch.relu(x)" in text and "torch.ops.aten.relu.default(x)" in text


def test_the_text_of_timing(capsys):
    treadle.set_logs("timing")
    treadle.compile(lambda x: x * 2, backend="eager")(torch.ones(2))
    phases = [line.split(": ")[0] for line in capsys.readouterr().err.splitlines()]
    assert "[treadle:timing] trace" in phases and "[treadle:timing] backend" in phases
