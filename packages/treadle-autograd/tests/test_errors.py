from __future__ import annotations

from treadle_autograd import InternalError, UnsupportedGraph
from treadle_autograd.errors import Refusal


def test_texts():
    assert str(UnsupportedGraph("a reason")) == "a reason"
    assert str(UnsupportedGraph("a reason", "model.py:3")) == "a reason (at model.py:3)"
    assert isinstance(Refusal("a reason"), UnsupportedGraph)
    assert str(InternalError("describe", "boom")) == "internal error in pass 'describe': boom"
    error = InternalError("describe", "boom", "model.py:3", "/dumps/graph.py")
    assert str(error) == "internal error in pass 'describe' (from model.py:3): boom; graph dumped to /dumps/graph.py"
    assert (error.pass_name, error.message) == ("describe", "boom")
    assert (error.user_line, error.dump_path) == ("model.py:3", "/dumps/graph.py")
