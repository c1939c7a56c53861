"""What bad input gets: an error that names the argument, what was given and what is allowed; never a silent wrong result."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest
import torch

import treadle
from treadle.errors import OptionValue, UnknownName, WrongUse


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: treadle.compile(3), WrongUse, "function, method, module or other callable, got int: 3"),
        (lambda: treadle.compile("codegen"), WrongUse, "did you mean backend="),
        (lambda: treadle.compile(torch.nn.Linear), WrongUse, "the class Linear; compile an instance"),
        (lambda: treadle.compile()(None), WrongUse, "got NoneType: None"),
        (
            lambda: treadle.compile(torch.sin, backend="codgen"),
            UnknownName,
            "did you mean 'codegen'.*allowed: 'aot_eager', 'codegen', 'eager'",
        ),
        (lambda: treadle.compile(torch.sin, backend=7), WrongUse, "backend must be a name .* or a callable .*, got 7"),
        (
            lambda: treadle.compile(torch.sin, mode="fast"),
            UnknownName,
            "unknown mode 'fast'; allowed: 'default', 'max-autotune'",
        ),
        (lambda: treadle.compile(torch.sin, options={"thread": 1}), UnknownName, "did you mean 'threads'"),
        (lambda: treadle.compile(torch.sin, options={"threads": 1.5}), OptionValue, "'threads' must be int, got 1.5"),
        (lambda: treadle.compile(torch.sin, fullgraph=1), OptionValue, "fullgraph must be True or False, got 1"),
        (
            lambda: treadle.compile(torch.sin, dynamic="yes"),
            OptionValue,
            "dynamic must be None, True or False, got 'yes'",
        ),
        (lambda: treadle.disable(3), WrongUse, "got int"),
    ],
)
def test_at_the_call_of_compile(call, error, message):
    with pytest.raises(error, match=message):
        call()


def raising(gm, example_inputs):
    raise ValueError("I take no graphs with sin")


def not_callable(gm, example_inputs):
    return "nothing"


@pytest.mark.parametrize(
    ("backend", "message"),
    [
        (raising, "backend 'raising' raised ValueError: I take no graphs with sin"),
        (not_callable, "backend 'not_callable' must return a callable, it returned 'nothing'"),
        (lambda gm: gm, "backend '<lambda>' raised TypeError"),
    ],
)
def test_backends_that_misbehave(backend, message):
    from treadle_tracer import BackendError

    with pytest.raises(BackendError, match=message):
        treadle.compile(lambda x: x.sin(), backend=backend)(torch.ones(2))


def test_a_foreign_backend_is_given_its_options():
    seen = {}

    def backend(gm, example_inputs, *, options):
        seen.update(options)
        return gm.forward

    treadle.compile(lambda x: x.sin(), backend=backend, options={"anything": 3})(torch.ones(2))
    assert seen == {"anything": 3}


PROGRAM = """
import torch, treadle
f = treadle.compile(lambda x: torch.sin(x) + x.exp() * 2)
x = torch.linspace(-1, 1, 50)
for _ in range(3):
    torch.testing.assert_close(f(x), torch.sin(x) + x.exp() * 2)
g = treadle.compile(lambda x: torch.cos(x) + 1)
torch.testing.assert_close(g(x), torch.cos(x) + 1)
"""


def run_program(**environment):
    return subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.slow
def test_without_a_compiler_one_warning_and_eager(tmp_path):
    done = run_program(PATH=str(tmp_path), CXX="", TREADLE_CACHE_DIR=str(tmp_path / "cache"))
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("Warning") == 1 and "g++" in done.stderr


@pytest.mark.slow
def test_an_unwritable_cache_is_one_warning(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("not a directory")
    done = run_program(TREADLE_CACHE_DIR=str(blocked / "cache"))
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("Warning") == 1 and "TREADLE_CACHE_DIR" in done.stderr


@pytest.mark.slow
def test_a_damaged_cache_is_rebuilt(tmp_path):
    whole = tmp_path / "whole"
    assert run_program(TREADLE_CACHE_DIR=str(whole)).returncode == 0
    for name, damage in (("truncated", lambda data: data[: len(data) // 2]), ("foreign", lambda data: b"foreign")):
        damaged = tmp_path / name
        shutil.copytree(whole, damaged)
        files = [path for path in damaged.rglob("*") if path.is_file()]
        assert files
        for file in files:
            data = file.read_bytes()
            file.chmod(0o644)
            file.write_bytes(damage(data))
        done = run_program(TREADLE_CACHE_DIR=str(damaged))
        assert done.returncode == 0, done.stderr
        assert done.stderr.count("Warning") == 1, done.stderr


def test_a_bug_in_a_pass_is_a_warning_with_the_eager_result(monkeypatch, tmp_path):
    import treadle_codegen.pipeline

    def explode(*args, **kwargs):
        raise KeyError("lost")

    monkeypatch.setattr(treadle_codegen.pipeline, "lower_graph", explode)
    x = torch.ones(3)
    with treadle.config.patch(raise_internal_errors=False, dump_dir=tmp_path):
        with pytest.warns(treadle.TreadleWarning, match=r"pass 'lower'.*test_wrong_use\.py") as caught:
            result = treadle.compile(lambda x: x.sin() + 1)(x)
    assert torch.equal(result, x.sin() + 1)
    (program,) = tmp_path.glob("*.py")
    assert str(program) in str(caught[0].message)
    with pytest.raises(Exception, match="lost"):
        treadle.compile(lambda x: x.sin() + 1)(x)
