"""Plants one violation per import contract into a copy of the sources and sees the check fail on that contract."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from import_contracts import ROOT, mentions

KEPT = "Contracts: 8 kept, 0 broken."

# (module file under packages/, planted line, name of the contract that must break)
VIOLATIONS = {
    "sideways": (
        "treadle-autograd/src/treadle_autograd/__init__.py",
        "import treadle_codegen",
        "tracer, autograd and codegen never each other",
    ),
    "upwards": ("treadle-shapes/src/treadle_shapes/__init__.py", "import treadle", "Packages import downwards only"),
    "sideways, inside a function": (
        "treadle-tracer/src/treadle_tracer/__init__.py",
        "def f():\n    from treadle_autograd import anything",
        "tracer, autograd and codegen never each other",
    ),
    "the hook": (
        "treadle-codegen/src/treadle_codegen/__init__.py",
        "import treadle_frame",
        "Only the tracer and the umbrella know the frame hook",
    ),
    "torch in frame": (
        "treadle-frame/src/treadle_frame/__init__.py",
        "import torch",
        "treadle-frame needs nothing but CPython",
    ),
    "torch in shapes": (
        "treadle-shapes/src/treadle_shapes/__init__.py",
        "import torch",
        "treadle-shapes is torch-free outside treadle_shapes.torch",
    ),
    "the adapter from within shapes": (
        "treadle-shapes/src/treadle_shapes/__init__.py",
        "from treadle_shapes import torch",
        "Nothing else inside treadle-shapes knows treadle_shapes.torch",
    ),
    "behind a facade, inside a function": (
        "treadle-codegen/src/treadle_codegen/__init__.py",
        "def f():\n    from treadle_shapes.nodes import Expr",
        "Packages meet at their facades only",
    ),
    "torch internals": (
        "treadle-tracer/src/treadle_tracer/__init__.py",
        "def f():\n    from torch import _dynamo",
        "PyTorch's own compiler stack is imported by treadle.interop only",
    ),
    "a cycle": (
        "treadle/src/treadle/planted_a.py",
        "from treadle import planted_b",
        "No import cycles inside a package",
    ),
}


def check(root: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "tools" / "import_contracts.py"), str(root)]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The sources, the contracts and their checker, in a directory of their own."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    shutil.copytree(ROOT / "tools", tmp_path / "tools", ignore=shutil.ignore_patterns("tests", "__pycache__"))
    for source in ROOT.glob("packages/*/src"):
        ignore = shutil.ignore_patterns("__pycache__", "*.so")
        shutil.copytree(source, tmp_path / source.relative_to(ROOT), ignore=ignore)
    return tmp_path


def test_the_repository_keeps_its_contracts() -> None:
    result = check(ROOT)
    assert result.returncode == 0, result.stdout
    assert KEPT in result.stdout


@pytest.mark.parametrize("name", VIOLATIONS)
def test_a_planted_violation_breaks_its_contract(copy: Path, name: str) -> None:
    file, line, contract = VIOLATIONS[name]
    path = copy / "packages" / file
    path.parent.joinpath("planted_b.py").write_text("from treadle import planted_a\n" if name == "a cycle" else "")
    before = path.read_text() if path.exists() else ""
    path.write_text(f"{before}\n{line}\n")
    result = check(copy)
    assert result.returncode == 1, result.stdout
    broken = [text for text in result.stdout.splitlines() if " BROKEN" in text]
    assert [text for text in broken if contract in text], result.stdout


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import torch._dynamo", "torch._dynamo"),
        ("import torch._dynamo.utils as u", "torch._dynamo"),
        ("from torch import _inductor", "torch._inductor"),
        ("from torch._inductor.compile_fx import compile_fx", "torch._inductor"),
        ("import torch\ntorch._functorch.config", "torch._functorch"),
        ("import importlib\nimportlib.import_module('torch._dynamo')", "torch._dynamo"),
        ("__import__('torch.fx.experimental.proxy_tensor')", "torch.fx.experimental"),
        ("from torch.fx.experimental import symbolic_shapes", "torch.fx.experimental"),
        ("def f():\n    import torch._C._dynamo.guards", "torch._C._dynamo"),
    ],
)
def test_mentions_sees(source: str, expected: str) -> None:
    forbidden = ["torch._dynamo", "torch._inductor", "torch._functorch", "torch._C._dynamo", "torch.fx.experimental"]
    assert [mention.name for mention in mentions("m", source, forbidden)] == [expected]


@pytest.mark.parametrize(
    "source", ["import torch", "from torch import fx", "from ._dynamo import x", "'torch._dynamo'"]
)
def test_mentions_leaves_alone(source: str) -> None:
    assert mentions("m", source, ["torch._dynamo", "torch.fx.experimental"]) == []
