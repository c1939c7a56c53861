"""The stand-in for torch._dynamo: what it answers itself, what it forwards, and when it is not installed."""

from __future__ import annotations

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from treadle_shapes.torch import dynamo_stand_in as stand_in  # noqa: E402


def run(program):
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_settings_of_fake_tensors_are_answered_without_the_real_module():
    program = """
import sys, torch
from treadle_shapes.torch import fake_mode, dynamo_stand_in
mode = fake_mode()
config = torch._dynamo.config
print(type(torch._dynamo).__name__, *[getattr(config, name) for name in dynamo_stand_in._CONFIG_DEFAULTS])
with mode:
    torch.softmax(torch.ones(2, 3), -1)
    torch.ops.aten.native_layer_norm.default(torch.ones(2, 3), [3], None, None, 1e-5)
print("torch._dynamo" in sys.modules, dynamo_stand_in.is_imported())
"""
    assert run(program) == ["_DynamoStandIn", "True", "False", "None", "False", "False"]


def test_other_attributes_are_those_of_the_real_module():
    program = """
import sys, torch
from treadle_shapes.torch import fake_mode
fake_mode()
before = torch._dynamo.config
print(torch._dynamo.is_compiling(), "torch._dynamo" in sys.modules)
before.verbose = True
print(torch._dynamo.config.verbose, before.verbose)
"""
    assert run(program) == ["False", "True", "True", "True"]


def test_defaults_are_those_of_the_real_module():
    program = """
import torch._dynamo.config as config
from treadle_shapes.torch import dynamo_stand_in
print(all(getattr(config, name) == value for name, value in dynamo_stand_in._CONFIG_DEFAULTS.items()))
"""
    assert run(program) == ["True"]


def test_the_real_module_is_left_alone():
    program = """
import torch._dynamo, types
from treadle_shapes.torch import fake_mode
fake_mode()
print(type(torch._dynamo) is types.ModuleType)
"""
    assert run(program) == ["True"]


def test_only_one_import_is_replaced():
    assert stand_in.import_without_dynamo("torch._dynamo.config") is torch
    assert stand_in.import_without_dynamo("sys") is sys
