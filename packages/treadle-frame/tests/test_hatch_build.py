"""The build hook: in place, as a wheel for one ABI, as an editable install, and from an sdist."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1]
EXTENSION = f"_core{sysconfig.get_config_var('EXT_SUFFIX')}"


def why_not_built() -> str | None:
    """What a build needs that is missing here."""
    for module in ("hatchling", "setuptools"):
        if importlib.util.find_spec(module) is None:
            return f"{module} is not installed"
    if not (PACKAGE / "hatch_build.py").exists() or not (PACKAGE / "src").is_dir():
        return "the sources of the package are not here"
    return None if shutil.which("gcc") or shutil.which("cc") else "no C compiler"


MISSING = why_not_built()
pytestmark = [pytest.mark.slow, pytest.mark.skipif(MISSING is not None, reason=str(MISSING))]


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """A copy of the package, as a fresh clone has it."""
    ignore = shutil.ignore_patterns("*.so", "__pycache__", ".hypothesis", "dist")
    shutil.copytree(PACKAGE, tmp_path / "package", ignore=ignore)
    return tmp_path / "package"


def run(*command: str, cwd: Path, **environment: str) -> str:
    done = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, timeout=300, env={**os.environ, **environment}
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def test_in_place(sources: Path) -> None:
    package = sources / "src" / "treadle_frame"
    assert not list(package.glob("*.so"))
    run(sys.executable, "hatch_build.py", cwd=sources)
    assert [path.name for path in package.iterdir() if path.suffix == ".so"] == [EXTENSION]
    script = "import treadle_frame, treadle_frame._core as c; print(c.__file__, len(treadle_frame.counters()))"
    shown = run(sys.executable, "-c", script, cwd=sources, PYTHONPATH=str(sources / "src"))
    assert shown.split() == [str(package / EXTENSION), "6"]


def test_wheel_from_sdist(sources: Path, tmp_path: Path) -> None:
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path / "dist"), cwd=sources)
    (sdist,) = (tmp_path / "dist").glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = archive.getnames()
        archive.extractall(tmp_path / "unpacked", filter="data")
    assert not [name for name in names if name.endswith(".so")]
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path / "dist"), cwd=unpacked)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    assert f"-{tag}-{tag}-" in wheel.name and "none-any" not in wheel.name
    with zipfile.ZipFile(wheel) as archive:
        contents = archive.namelist()
    assert {f"treadle_frame/{EXTENSION}", "treadle_frame/_core.pyi", "treadle_frame/py.typed"} <= set(contents)
    assert not [name for name in contents if name.endswith((".c", ".h")) or name.startswith("csrc")]


def test_editable(sources: Path, tmp_path: Path) -> None:
    target = tmp_path / "editable"
    script = (
        "import hatchling.build, sys; print(hatchling.build.build_editable(sys.argv[1]))"  # what pip install -e calls
    )
    target.mkdir()
    run(sys.executable, "-c", script, str(target), cwd=sources)
    (wheel,) = target.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target)
    paths = [path.read_text().strip() for path in target.glob("*.pth")]
    assert paths == [str(sources / "src")]
    shown = run(sys.executable, "-c", "import treadle_frame as t; print(t.__file__)", cwd=tmp_path, PYTHONPATH=paths[0])
    assert shown.strip() == str(sources / "src" / "treadle_frame" / "__init__.py")
