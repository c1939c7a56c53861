"""Signals while a function is compiled: handlers run behind the compile, and exceptions of theirs leave nothing behind."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest
import torch

import treadle

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="there are no such signals here")

_steps: list[str] = []


@torch.library.custom_op("treadle_signals::passed_on", mutates_args=())
def passed_on(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


@passed_on.register_fake
def _fake(x: torch.Tensor) -> torch.Tensor:
    if not _steps:
        signal.raise_signal(signal.SIGUSR1)  # in the middle of PyTorch's fake tensor mode
    _steps.append("in fake")
    return torch.empty_like(x)


@pytest.fixture
def handle():
    """Install a handler of the signal that comes while a function is compiled that calls `passed_on`."""

    def install(handler: Callable[[], object]) -> None:
        signal.signal(signal.SIGUSR1, lambda number, frame: handler())

    before = signal.getsignal(signal.SIGUSR1)
    _steps.clear()
    with treadle.config.patch(leave_unprofitable=False, raise_internal_errors=True):
        treadle.reset()
        yield install
    signal.signal(signal.SIGUSR1, before)


def test_an_interrupt_comes_behind_the_compile(handle):
    """In a fake tensor mode it could leave the mode switched on, or end the process."""

    def interrupt():
        _steps.append("interrupted")
        raise KeyboardInterrupt

    handle(interrupt)
    compiled, x = treadle.compile(lambda x: passed_on(x * 2) + 1), torch.randn(3)
    with pytest.raises(KeyboardInterrupt):
        compiled(x)
    assert _steps[0] == "in fake" and _steps.index("interrupted") == len(_steps) - 1
    found = compiled(x)
    assert type(found) is torch.Tensor
    torch.testing.assert_close(found, x * 2 + 1)


def test_a_handler_that_calls_a_compiled_function(handle):
    """It compiled inside the compile that it had interrupted."""
    within, found = treadle.compile(lambda x: x * 3), []
    handle(lambda: found.append(within(torch.ones(2))))
    compiled, x = treadle.compile(lambda x: passed_on(x.sin()).cos()), torch.randn(3)
    torch.testing.assert_close(compiled(x), x.sin().cos())
    assert [type(result) for result in found] == [torch.Tensor] and found[0].tolist() == [3.0, 3.0]
