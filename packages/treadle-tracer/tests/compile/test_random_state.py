"""Random number generators around a compile."""

from __future__ import annotations

import threading

import torch

import treadle_tracer


def drawing_backend(gm, _inputs):
    torch.rand(3)
    return gm.forward


def test_what_a_backend_draws_is_put_back():
    fn = treadle_tracer.optimize(lambda x: x.sin() + 1, backend=drawing_backend)
    torch.manual_seed(0)
    before = torch.get_rng_state()
    fn(torch.ones(2))
    assert torch.equal(torch.get_rng_state(), before)


def test_what_another_thread_draws_during_a_compile_is_not_drawn_again():
    """Threads share the default generator. The backend promises to draw nothing itself."""
    torch.manual_seed(0)
    expected = torch.rand(2, 4)
    compiling, drawn = threading.Event(), threading.Event()
    numbers = []

    def draw():
        compiling.wait(60)
        numbers.append(torch.rand(4))
        drawn.set()

    def backend(gm, _inputs):
        compiling.set()
        assert drawn.wait(60)
        return gm.forward

    backend.draws_nothing = True
    fn = treadle_tracer.optimize(lambda x: x.cos() * 2, backend=backend)
    thread = threading.Thread(target=draw)
    torch.manual_seed(0)
    thread.start()
    fn(torch.ones(2))
    thread.join()
    numbers.append(torch.rand(4))
    torch.testing.assert_close(torch.stack(numbers), expected, rtol=0, atol=0)
