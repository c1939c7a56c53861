"""What treadle counts, logs, warns of and raises when sizes of dynamic graphs get kernels of their own."""

from __future__ import annotations

import pytest
import torch

import treadle
from treadle import logs
from treadle.errors import TreadleWarning
from treadle_codegen import specialise_now
from treadle_codegen.errors import CompilerFailed
from treadle_codegen.targets.cpp import build


@pytest.fixture(autouse=True)
def _fresh(tmp_path):
    treadle.reset()
    with treadle.config.patch(cache_dir=tmp_path):
        yield
    logs.set_logs()
    treadle.reset()


def compiled(**options):
    """A dynamic function that was last called with 9 rows, and those rows."""
    program = treadle.compile(lambda x: (x * 3).softmax(-1), dynamic=True, options=options)
    x = torch.randn(9, 20)
    program(torch.randn(5, 30))
    return program, x, program(x)


def test_they_are_counted_and_logged_on_the_next_call(capsys):
    logs.set_logs("specialised_shapes")
    program, x, want = compiled()
    specialise_now()
    assert treadle.stats().specialised_shapes == 0
    assert torch.equal(program(x), want) and torch.equal(program(x), want)
    assert treadle.stats().specialised_shapes == 1 and "kernels of their own: 1" in str(treadle.stats())
    (line,) = capsys.readouterr().err.splitlines()
    assert (
        line.startswith("[treadle:specialised_shapes] kernels for ") and "=9, " in line and "=20, compiled in" in line
    )


def test_the_option_turns_them_off():
    program, x, want = compiled(specialised_shapes=0)
    specialise_now()
    assert torch.equal(program(x), want)
    assert treadle.stats().specialised_shapes == 0


def refuse(*args, **kwargs):
    raise CompilerFailed("refused")


def test_a_refused_compile_is_warned_of(monkeypatch):
    with treadle.config.patch(raise_internal_errors=False):
        program, x, want = compiled()
    monkeypatch.setattr(build, "compile_to_bytes", refuse)
    specialise_now()
    with pytest.warns(TreadleWarning, match="refused.*keeps the kernels it has"):
        assert torch.equal(program(x), want)
    assert torch.equal(program(x), want)


def test_a_refused_compile_is_raised_where_bugs_are(monkeypatch):
    with treadle.config.patch(raise_internal_errors=True):
        program, x, _ = compiled()
    monkeypatch.setattr(build, "compile_to_bytes", refuse)
    specialise_now()
    with pytest.raises(Exception, match="refused"):
        program(x)
