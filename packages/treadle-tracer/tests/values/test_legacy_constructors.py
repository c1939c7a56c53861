"""torch.FloatTensor and its like, Variable, PackedSequence, operator.methodcaller, fields of named tuples with methods of their own."""

from __future__ import annotations

import collections
import operator

import pytest
import torch
from compile_runs import compiled
from torch.nn.utils import rnn

np = pytest.importorskip("numpy")


class Pair(collections.namedtuple("Pair", "first second")):
    __slots__ = ()

    def __getitem__(self, index):
        return 5


PAIR = Pair(1, 2)
CAPTURED = {
    "numbers": lambda x: x + torch.FloatTensor([1, 2.5, 3]) + torch.LongTensor([1, 2, 3]),
    "half and short": lambda x: x + torch.HalfTensor([1, 2.5, 3]) + torch.ShortTensor([1, 2, 3]),
    "bytes": lambda x: x + torch.ByteTensor([1, 255, 3]) + torch.CharTensor([-1, 2, 3]),
    "numbers as truth values": lambda x: x + torch.BoolTensor([1, 0, 3]),
    "truth values": lambda x: torch.FloatTensor([True, False, True]) + x + torch.BoolTensor([True, False, True]),
    "numbers of NumPy": lambda x: (
        x + torch.LongTensor([np.int64(3), np.int32(4), 5]) + torch.FloatTensor([np.float32(0.5)])
    ),
    "elements": lambda x: torch.FloatTensor([x[0, 0], 2, x[1].sum()]) + torch.LongTensor([x[0].argmax(), 1, 2]),
    "types to convert to": lambda x: (
        x.type(torch.LongTensor),
        x.type(torch.FloatTensor) * 2,
        x.type(dtype=torch.BoolTensor),
    ),
    "nested lists": lambda x: x + torch.DoubleTensor([[1, 2, 3], [4, 5, 6]]),
    "a tuple of numbers": lambda x: x + torch.FloatTensor((1, 2, 3)),
    "sizes": lambda x: torch.FloatTensor(2, 3).zero_() + x,
    "torch.Size": lambda x: torch.FloatTensor(x.shape).fill_(2) + x,
    "nothing": lambda x: (torch.FloatTensor(), x + 1),
    "Variable": lambda x: torch.autograd.Variable(x) * 2,
    "PackedSequence": lambda x: rnn.PackedSequence(x + 1, torch.tensor([1, 1])),
    "data of a PackedSequence": lambda x: rnn.PackedSequence(x, torch.tensor([1, 1])).data * 2,
    "methodcaller": lambda x: operator.methodcaller("sum", dim=0)(x),
    "a field": lambda x: x * PAIR.second,
}
OTHER = {
    "a tensor": lambda x: torch.FloatTensor(x) + 1,
    "elements that are floats": lambda x: torch.LongTensor([x[0, 0]]) + 1,
    "numbers that do not fit": lambda x: x + torch.ByteTensor([1, 256, -1]),
    "floats as integers": lambda x: torch.LongTensor([1.5]) + x,
    "text": lambda x: torch.FloatTensor("abc"),
    "methodcaller of a number": lambda x: operator.methodcaller(3)(x),
    "methodcaller of two": lambda x: operator.methodcaller("sum")(x, x),
}


def _outcome(function, x):
    try:
        found = function(x)
    except Exception as error:
        return type(error), str(error)
    parts = found if isinstance(found, tuple) else (found,)
    tensors = [(p.dtype, tuple(p.shape), p.tolist()) if isinstance(p, torch.Tensor) else p for p in parts]
    return type(found), tensors


@pytest.mark.parametrize("name", [*CAPTURED, *OTHER])
def test_is_eagers(name):
    function = CAPTURED.get(name) or OTHER[name]
    if name == "elements" and _outcome(function, torch.ones(2, 3))[0] is TypeError:
        pytest.skip("a test before this one has replaced Tensor.__getitem__")
    run, said = compiled(function)
    for start in (0.0, 1.0):
        x = torch.arange(6.0).reshape(2, 3) + start
        assert _outcome(run, x) == _outcome(function, x)
    assert name in OTHER or (len(said.graphs) == 1 and not said.breaks)


def test_variable_has_no_history_and_shares_memory():
    x = torch.ones(2, requires_grad=True)
    run = compiled(lambda x: torch.autograd.Variable(x * 1), fullgraph=True)[0]
    assert not run(x).requires_grad
    y = torch.zeros(2)
    compiled(lambda y: torch.autograd.Variable(y).add_(1), fullgraph=True)[0](y)
    assert y.tolist() == [1.0, 1.0]
