"""Attributes of classes whose values are of types that C extensions make: one trace serves all calls, and a change is seen."""

from __future__ import annotations

import array
import collections
import contextvars
import datetime
import decimal
import functools
import io
import itertools
import operator
import queue
import random
import re
import struct
import threading

import pytest
import torch
from compile_runs import compiled

VALUES = [
    re.compile("a+"),
    threading.local(),
    threading.Lock(),
    threading.RLock(),
    decimal.Decimal(3),
    datetime.date(2020, 1, 1),
    random.Random(3),
    queue.SimpleQueue(),
    io.StringIO("a"),
    array.array("i", [1]),
    itertools.count(),
    operator.itemgetter(0),
    collections.defaultdict(int),
    collections.OrderedDict(a=1),
    collections.deque([1]),
    struct.Struct("i"),
    contextvars.ContextVar("v"),
    functools.lru_cache(abs),
    torch.Generator(),
    torch.device("cpu"),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_it_is_traced_once(value):
    class Holder:
        item = value
        scale = 2

    def program(holder, x):
        return x * holder.scale if holder.item is not None else x

    run, said = compiled(program)
    x = torch.ones(3)
    for _ in range(3):
        assert torch.equal(run(Holder(), x), x * 2)
    assert (len(said.graphs), said.breaks, said.recompiles) == (1, [], [])
    Holder.item = None
    assert torch.equal(run(Holder(), x), x)
