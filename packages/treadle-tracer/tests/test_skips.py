"""Which frames are left to Python."""

from __future__ import annotations

import subprocess
import sys

import torch

from treadle_tracer import SilentObserver, TracerOptions, optimize


class Recorder(SilentObserver):
    def __init__(self):
        self.breaks = []

    def on_break(self, reason):
        self.breaks.append(str(reason))


def test_what_an_import_runs_is_left_to_python(tmp_path, monkeypatch):
    """Finders of the program, loaders and the bodies of modules: the handler is not asked about them."""
    (tmp_path / "imported_below.py").write_text("def helper(x):\n    return x\n\nVALUE = helper(3)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    asked = []

    class Finder:
        def find_spec(self, name, path=None, target=None):
            asked.append("{name}".format(**locals()))  # noqa: UP032 (what setuptools' finder does; no trace follows it)

    monkeypatch.setattr(sys, "meta_path", [Finder(), *sys.meta_path])

    def f(x):
        name = eval("'imported_below'")  # breaks the graph
        return x + __import__(name).VALUE

    recorder = Recorder()
    compiled = optimize(f, lambda gm, inputs: gm.forward, TracerOptions(), recorder)
    assert compiled(torch.ones(2)).tolist() == [4.0, 4.0]
    assert "imported_below" in asked
    assert not any("find_spec" in text for text in recorder.breaks)


def test_modules_made_after_torch_compile_has_run():
    """torch.compile replaces `Module.__init__` by a function of its own, which notes the module."""
    script = """
import torch
from treadle_tracer import SilentObserver, TracerOptions, optimize
torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1))
torch._dynamo.mutation_guard.install_generation_tagging_init()
layers = torch.nn.ModuleList([torch.nn.Linear(2, 2) for _ in range(3)])
def f(x):
    for layer in layers[:2]:
        x = layer(x)
    return x
options = TracerOptions(fullgraph=True)
x = torch.ones(1, 2)
assert optimize(f, lambda gm, inputs: gm.forward, options)(x).equal(layers[1](layers[0](x)))
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)
