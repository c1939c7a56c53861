"""torchvision imports beside whatever torch is installed, once its operators' schemas are there."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

import bootstrap

SCRIPT = """
import sys
sys.path.insert(0, sys.argv[1])
import torchvision_schemas
reason = torchvision_schemas.why_not_loadable()
defined = torchvision_schemas.define_missing_schemas()
assert bool(defined) == (reason is not None), (defined, reason)
assert torchvision_schemas.define_missing_schemas() == []
import torchvision
import timm
"""


@pytest.mark.skipif(importlib.util.find_spec("torchvision") is None, reason="torchvision is not installed")
def test_torchvision_and_timm_import() -> None:
    run = subprocess.run([sys.executable, "-c", SCRIPT, bootstrap.TOOLS], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
