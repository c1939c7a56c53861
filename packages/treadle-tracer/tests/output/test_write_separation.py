"""Writes to outside tensors under exception handlers: the graph breaks at the write, and the rest of the frame is compiled."""

from __future__ import annotations

import contextlib

import pytest
import torch
from compile_runs import compiled

pytestmark = pytest.mark.filterwarnings("ignore:treadle. the compiled graph")


def between_calls(x, buffer, i):
    log = []
    try:
        y = x.exp()
        buffer.add_(y)
        z = y * 2
        buffer.mul_(2)
        w = z.index_select(0, i)
        buffer.sub_(1)
        log.append(1)
    except (IndexError, RuntimeError) as error:
        log.append(type(error).__name__)
        w = buffer * 3
    finally:
        buffer.add_(100)
        log.append(2)
    return w + 1, log


def before_the_handler(x, buffer, i):
    buffer.add_(1)
    y = x.cos()
    try:
        z = x.index_select(0, i)
    except (IndexError, RuntimeError):
        z = buffer.sin()
    return y, z.sum()


def _written(x, buffer, i):
    try:
        buffer.add_(1)
        return x.index_select(0, i) * 2
    finally:
        buffer.mul_(2)


def in_callees(x, buffer, i):
    try:
        a = _written(x, buffer, i)
        return _written(a, buffer, i * 0)
    except (IndexError, RuntimeError):
        return buffer.sum()


def in_a_loop(x, buffer, i):
    out = []
    for k in range(3):
        try:
            buffer[k] += 1
            out.append(x.index_select(0, i + k))
        except (IndexError, RuntimeError):
            out.append(k)
    return out


@contextlib.contextmanager
def _scaled(buffer):
    buffer.mul_(2)
    try:
        yield
    except (IndexError, RuntimeError):
        buffer.sub_(3)
    buffer.add_(1)


def in_a_context_manager(x, buffer, i):
    y = x + 1
    with _scaled(buffer):
        buffer.add_(y)
        y = y.index_select(0, i)
    return y * 2


@pytest.mark.parametrize("program", [between_calls, before_the_handler, in_callees, in_a_loop, in_a_context_manager])
def test_writes_and_handlers_are_in_different_graphs(program):
    run, recorder = compiled(program)
    for position in (1, 5, 1, 0, 5):
        buffers = torch.ones(4), torch.ones(4)
        i = torch.tensor([position])
        expected, got = program(torch.ones(4), buffers[0], i), run(torch.ones(4), buffers[1], i)
        assert str(got) == str(expected)
        assert torch.equal(*buffers)
    assert "write-under-handler" in recorder.codes() and recorder.skips == [] and len(recorder.graphs) > 1
