"""The first call of a function that takes a lock runs in Python: what is set up once, under a lock, is not there in later calls."""

from __future__ import annotations

import threading

import pytest
import torch
from compile_runs import compiled
from torch import nn

LOCKS = {"lock": threading.Lock(), "re-entrant lock": threading.RLock()}


class Model(nn.Module):
    """It registers hooks in its first call, as models of transformers do."""

    def __init__(self, lock):
        super().__init__()
        self.lock, self.ready = lock, False
        self.inner = nn.Linear(3, 3)

    def set_up(self):
        if self.ready:
            return
        with self.lock:
            if not self.ready:
                self.inner.register_forward_hook(lambda module, args, output: output * 2)
                self.ready = True

    def forward(self, x):
        y = x.sin()
        self.set_up()
        return self.inner(y) + 1


@pytest.mark.parametrize("name", LOCKS)
def test_what_is_set_up_once_breaks_no_graph(name):
    def program(model, x):
        return model(x) * 2

    models = [Model(LOCKS[name]) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    x = torch.randn(2, 3)
    fast, recorder = compiled(program, setup_in_eager=True)
    for _ in range(4):
        torch.testing.assert_close(fast(models[1], x), program(models[0], x))
    assert not recorder.codes() and len(recorder.graphs) == 1 and len(models[1].inner._forward_hooks) == 1


def test_a_lock_that_every_call_takes_breaks_the_graph():
    lock, seen = LOCKS["lock"], []

    def program(x):
        y = x.sin()
        with lock:
            seen.append(lock.locked())
        return y * 2

    fast, recorder = compiled(program, setup_in_eager=True)
    for _ in range(5):
        torch.testing.assert_close(fast(torch.ones(3)), torch.ones(3).sin() * 2)
    assert seen == [True] * 5 and not lock.locked()
    assert recorder.codes() and recorder.graphs


def test_whole_graphs_are_refused():
    lock = LOCKS["lock"]

    def program(x):
        with lock:
            return x * 2

    fast, _ = compiled(program, setup_in_eager=True, fullgraph=True)
    with pytest.raises(Exception, match="outside of the function"):
        fast(torch.ones(3))
    assert not lock.locked()
