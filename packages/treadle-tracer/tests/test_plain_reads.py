"""Functions of objects that hold tensors, of which they read none: they are no place for graphs to break in."""

from __future__ import annotations

import pytest
import torch
from compile_runs import compiled

from treadle_tracer.plain_reads import PlainReads
from treadle_tracer.skips import may_hold_tensors, why_no_tensors

np = pytest.importorskip("numpy")


class Planned(torch.nn.Module):
    """As the block sparse attention of BigBird: which blocks a query attends to is drawn by NumPy, in a method."""

    kind = "planned"

    def __init__(self):
        super().__init__()
        self.proj = torch.nn.Linear(8, 8)
        self.rows = 4
        self.table = torch.ones(3)

    @staticmethod
    def row(first, last):
        order = np.random.permutation(np.arange(first, last, dtype=np.int32))
        picked = []
        for i in range(last - first):
            if order[i] not in (1, 2):
                picked.append(order[i])
            if len(picked) == 2:
                break
        return np.array(picked, dtype=np.int32)

    def plan(self, last):
        ends = np.array([last]) // 1
        found = np.zeros((self.rows, 2), dtype=np.int32)
        if not self.training:
            return found
        for n in range(self.rows):
            found[n, :] = self.row(0, ends[0])
        return found

    def forward(self, x):
        x = self.proj(x).relu()
        index = torch.tensor(self.plan(x.shape[1]))
        return self.proj(x[:, index.flatten()].sin()).sum(1)

    def plans(self, count):
        found = []
        for _ in range(count):
            found.append(self.kind)
        return found + self.again(count)

    def again(self, count):
        return self.plans(count - 1) if count else []

    def parameter(self, last):
        return self.proj, last

    def reads_table(self, last):
        return self.table, last

    def passes_on(self, last):
        return list((self, last))

    def calls_that(self, last):
        return self.parameter(last)

    def held(self, last):
        return lambda: self.rows

    def above(self, last):
        return super().forward(last)

    def kept(self, last):
        self.rows = last

    def other(self, last):
        other = self
        return other.rows + last

    def after_another(self, last):
        return last.real, self.rows


def answer(method):
    code = method.__func__.__code__
    return PlainReads(may_hold_tensors).are_all(code, "self", method.__self__)


@pytest.mark.parametrize("name", ["plan", "plans", "again", "after_another"])
def test_methods_that_read_no_tensor(name):
    module = Planned()
    method = getattr(module, name)
    assert answer(method)
    arguments = {"self": module, method.__func__.__code__.co_varnames[1]: 3}
    assert why_no_tensors(method.__func__.__code__, arguments, {}, ()) is not None


@pytest.mark.parametrize(
    "name", ["forward", "parameter", "reads_table", "passes_on", "calls_that", "held", "above", "kept", "other"]
)
def test_methods_that_may_read_one(name):
    assert not answer(getattr(Planned(), name))


def test_names_of_a_method_that_is_called_count():
    class Named(torch.nn.Module):
        def outer(self):
            return self.inner()

        def inner(self):
            return torch.ones(1)

    assert not answer(Named().outer)


def test_lookups_of_their_own_and_tensors_are_not_asked():
    class Own(Planned):
        def __getattribute__(self, name):
            return super().__getattribute__(name)

    def rows(a):
        return a.rows

    assert why_no_tensors(rows.__code__, {"a": Planned()}, {}, ()) is not None
    assert why_no_tensors(rows.__code__, {"a": Own()}, {}, ()) is None
    assert why_no_tensors(rows.__code__, {"a": torch.nn.Parameter(torch.ones(1))}, {}, ()) is None


@pytest.mark.parametrize("number", [np.int64(3), np.float32(2), np.bool_(True)])
def test_numbers_of_numpy_hold_no_tensor(number):
    assert not may_hold_tensors(number)


def test_a_break_in_such_a_method_is_one_break():
    module, x = Planned(), torch.randn(2, 8, 8)
    function, stats = compiled(Planned.forward)
    for _ in range(4):
        np.random.seed(3)
        expected = module(x)
        state = np.random.get_state()[2]
        np.random.seed(3)
        torch.testing.assert_close(function(module, x), expected)
        assert np.random.get_state()[2] == state
    assert len(stats.breaks) == 1 and not stats.recompiles
