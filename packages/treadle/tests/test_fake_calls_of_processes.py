"""A later process finds what fake tensors have answered to an earlier one, and computes the same."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest

PROGRAM = """
import json, sys, warnings
import torch
import treadle
from treadle_shapes.torch import kept_calls

torch.manual_seed(0)
nn = torch.nn
model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Hardswish(), nn.Flatten(), nn.Linear(288, 4))
x = torch.rand(2, 3, 8, 8)

def step(forward):
    model.zero_grad()
    model[1].reset_running_stats()
    out = forward(x)
    out.square().mean().backward()
    return [out.detach(), model[1].running_var.clone(), *(p.grad.clone() for p in model.parameters())]

want = step(model)
with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter("always")
    got = step(treadle.compile(model))
for a, b in zip(want, got, strict=True):
    torch.testing.assert_close(a, b)
kept = kept_calls._kept
print(json.dumps({"used": len(kept.used), "warned": [str(w.message) for w in warned], "known": len(kept.known), "new": len(kept.new)}))
"""


def run(cache):
    shutil.rmtree(
        cache / "programs", ignore_errors=True
    )  # a program that is found is not traced: it asks fake tensors for little
    environment = {**os.environ, "TREADLE_CACHE_DIR": str(cache)}
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def first_process(tmp_path_factory):
    """What the first process has found, and the cache that it leaves."""
    cache = tmp_path_factory.mktemp("first")
    return run(cache), cache


def test_a_later_process_asks_no_kernel(first_process, tmp_path):
    first, cache = first_process
    shutil.copytree(cache, tmp_path, dirs_exist_ok=True)
    assert first["used"] == 0 and first["known"] > 10  # what `static_kernels` answers is not kept
    # What finds an operator whole does not run its parts, from which `static_kernels` learns: it may ask for a few of them.
    second = run(tmp_path)
    assert second["used"] > 10 and first["known"] <= second["known"] < first["known"] + 5
    (file,) = (tmp_path / "fake-calls").iterdir()
    before = file.read_bytes()
    third = run(tmp_path)
    assert third["used"] > 10 and third["new"] == 0 and third["known"] == second["known"]
    assert file.read_bytes() == before


@pytest.mark.parametrize("damage", ["flipped", "truncated", "writable by others"])
def test_a_file_that_is_damaged_or_foreign_is_not_used(first_process, tmp_path, damage):
    shutil.copytree(first_process[1], tmp_path, dirs_exist_ok=True)
    (file,) = (tmp_path / "fake-calls").iterdir()
    content = file.read_bytes()
    if damage == "flipped":
        at = content.index(b'"float32"')
        file.write_bytes(content[:at] + b'"float64"' + content[at + 9 :])
    elif damage == "truncated":
        file.write_bytes(content[: len(content) // 2])
    else:
        file.chmod(0o666)
    found = run(tmp_path)
    assert found["used"] == 0 and any("unusable" in text for text in found["warned"])
    assert file.read_bytes() == content  # written again
