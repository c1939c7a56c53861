from __future__ import annotations

import pytest

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
