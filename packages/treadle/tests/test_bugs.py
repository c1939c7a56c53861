from __future__ import annotations

import runpy
import subprocess
import sys

import pytest
import torch
from torch import fx

import treadle
import treadle_autograd
import treadle_codegen
import treadle_tracer
from treadle.bugs import InternalError, compile_or_eager, reset_warnings
from treadle.dump import write_reproducer
from treadle.options import compile_options
from treadle_codegen.errors import CodegenUnavailable, OptionError


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3))

    def forward(self, x):
        return (torch.nn.functional.gelu(x) * self.weight,)


def graph():
    gm = fx.symbolic_trace(Model())
    for node in gm.graph.nodes:
        node.meta["stack_trace"] = '  File "user.py", line 42, in forward\n    return gelu(x)'
    return gm


@pytest.fixture
def options(tmp_path):
    with treadle.config.patch(dump_dir=tmp_path):
        yield compile_options(False, None, None, None, own_backend=True)


def broken():
    raise ZeroDivisionError("boom")


def test_a_bug_is_a_warning_with_a_reproducer_and_the_eager_result(options, tmp_path):
    gm, x = graph(), torch.randn(2, 3)
    with treadle.config.patch(raise_internal_errors=False):
        quiet = compile_options(False, None, None, {"dump_dir": tmp_path}, own_backend=True)
    with pytest.warns(
        treadle.TreadleWarning,
        match=r"eager because of a bug in treadle: internal error in pass 'compile' \(from user.py:42\): ZeroDivisionError: boom",
    ) as caught:
        run = compile_or_eager(gm, [x], quiet, broken)
    assert torch.equal(run(x)[0], gm(x)[0])
    (program,) = tmp_path.glob("*.py")
    assert str(program) in str(caught[0].message)
    compile(program.read_text(), str(program), "exec")
    assert "gelu" in program.read_text() and "(2, 3)" in program.read_text()


def test_a_bug_raises_when_asked_to(tmp_path):
    loud = compile_options(False, None, None, {"raise_internal_errors": True, "dump_dir": tmp_path}, own_backend=True)
    with pytest.raises(InternalError, match="boom") as caught:
        compile_or_eager(graph(), [torch.ones(2, 3)], loud, broken)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert caught.value.dump_path and caught.value.user_line == "user.py:42"


@pytest.mark.parametrize("package", [treadle_tracer, treadle_autograd, treadle_codegen], ids=lambda p: p.__name__)
def test_reports_of_the_packages_keep_pass_message_and_line(package, tmp_path):
    def build():
        raise package.InternalError("lower", "no such buffer", "model.py:7")

    loud = compile_options(False, None, None, {"raise_internal_errors": True, "dump_dir": tmp_path}, own_backend=True)
    with pytest.raises(InternalError) as caught:
        compile_or_eager(graph(), [torch.ones(2, 3)], loud, build)
    error = caught.value
    (program,) = tmp_path.glob("treadle-lower-*.py")
    text = f"internal error in pass 'lower' (from model.py:7): no such buffer; reproduce with: python {program}"
    assert str(error) == text and isinstance(error.__cause__, package.InternalError)
    assert (error.pass_name, error.message) == ("lower", "no such buffer")
    assert (error.user_line, error.dump_path) == ("model.py:7", str(program))


def test_a_dump_of_the_package_is_named(tmp_path):
    def build():
        raise treadle_codegen.InternalError("verify", "axis twice", "model.py:7", "/dumps/program.txt")

    loud = compile_options(False, None, None, {"raise_internal_errors": True, "dump_dir": tmp_path}, own_backend=True)
    with pytest.raises(InternalError, match=r"axis twice \(dumped to /dumps/program.txt\); reproduce with: python "):
        compile_or_eager(graph(), [torch.ones(2, 3)], loud, build)


def test_every_reproducer_has_a_file_of_its_own(tmp_path):
    paths = {write_reproducer(graph(), [torch.ones(2, 3)], "a pass/of two", "message", tmp_path) for _ in range(3)}
    assert len(paths) == 3 and all("treadle-a-pass-of-two-" in path for path in paths)


def test_no_compiler_is_one_warning_and_eager(options):
    def unavailable():
        raise CodegenUnavailable("no C++ compiler: looked for g++, clang++")

    reset_warnings()
    x = torch.ones(2, 3)
    with pytest.warns(treadle.TreadleWarning, match=r"looked for g\+\+") as caught:
        runs = [compile_or_eager(graph(), [x], options, unavailable) for _ in range(3)]
    assert len(caught) == 1
    assert all(torch.equal(run(x)[0], graph()(x)[0]) for run in runs)


def test_wrong_options_are_not_bugs(options):
    def refuse():
        raise OptionError("option 'threads' ...")

    with pytest.raises(OptionError):
        compile_or_eager(graph(), [torch.ones(2, 3)], options, refuse)


def test_the_reproducer_runs(tmp_path):
    path = write_reproducer(graph(), [torch.randn(2, 3), 4], "lower", 'a """quoted""" message', tmp_path)
    check = f"import runpy; g = runpy.run_path({path!r}); print(g['forward'](g['self'], g['inputs'][0])[0].shape)"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert "[2, 3]" in done.stdout


def test_the_reproducer_names_methods_of_built_in_classes(tmp_path):
    traced = fx.Graph()
    traced.output(traced.call_function(torch.Tensor.to, (traced.placeholder("x"), torch.float64)))
    path = write_reproducer(fx.GraphModule({}, traced), [torch.ones(2)], "lower", "message", tmp_path)
    found = runpy.run_path(path)
    assert found["forward"](found["self"], *found["inputs"]).dtype == torch.float64


def test_an_unwritable_dump_directory_is_no_further_error(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert write_reproducer(graph(), [], "lower", "message", blocked / "below") == ""
