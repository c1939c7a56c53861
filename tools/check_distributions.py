"""Build each distribution and test it alone: in an empty environment, with the dependencies that it declares.

    python tools/check_distributions.py                       all six
    python tools/check_distributions.py --only treadle-frame  one
    python tools/check_distributions.py --wheels dist         these wheels instead of building (others are built)

For each distribution: build the sdist, build the wheel from the sdist in isolation, and install the wheel with its declared
dependencies into an empty virtual environment. Then compare the installed packages with the allowed ones, import the package,
install its test extra, and run the tests of the sdist against the installed package.

torch takes most of the time, so it is installed once and the environments that need it start as copies (hard links) of
that one, which holds nothing but torch and what torch brings.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import bootstrap
from distributions import Package, read_packages, with_downstream

CONSTRAINTS = Path(bootstrap.CONSTRAINTS)

# What a distribution without torch may bring besides the repository's own; with torch: what torch brings, no more.
THIRD_PARTY = {"treadle-frame": set(), "treadle-shapes": {"sympy", "mpmath"}}
# Beside what torch brings. SciPy computes the maximum flow of partitions, platformdirs finds the cache directory.
BESIDE_TORCH = {
    "treadle-autograd": {"scipy", "numpy"},
    "treadle-codegen": {"platformdirs"},
    "treadle": {"scipy", "numpy", "platformdirs"},
}

# Stated in the issue and so stated here again, apart from what the metadata say.
MUST_NOT_BRING = {
    "treadle-frame": {"torch", "sympy"},
    "treadle-shapes": {"torch"},
    "treadle-tracer": {"treadle-autograd", "treadle-codegen", "treadle"},
    "treadle-autograd": {"treadle-tracer", "treadle-codegen", "treadle-frame", "treadle"},
    "treadle-codegen": {"treadle-tracer", "treadle-autograd", "treadle-frame", "treadle", "triton"},
}

LIST_INSTALLED = """
import importlib.metadata as m, json
print(json.dumps({d.metadata["Name"].lower().replace("_", "-"): d.version for d in m.distributions()}))
"""
IMPORT = """
import importlib.resources, json, sys
module = __import__(sys.argv[1])
marker = importlib.resources.files(module) / "py.typed"
print(json.dumps({"file": module.__file__, "typed": marker.is_file(), "torch": "torch" in sys.modules}))
"""


class CheckError(Exception):
    """A check of a distribution fails. The message names the distribution and what was found."""


def run(command: Sequence[str | Path], cwd: Path, **variables: str) -> str:
    """Run a command and return its standard output. Raises CheckError with the end of its output if it fails."""
    hidden = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PIP_CONSTRAINT")}
    result = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**hidden, "OMP_NUM_THREADS": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if result.returncode != 0:
        tail = "\n".join(result.stdout.splitlines()[-40:])
        raise CheckError(f"`{' '.join(map(str, command))}` ended with status {result.returncode}:\n{tail}")
    return result.stdout


def last_json(output: str) -> dict:
    """The JSON object on the last line; torch warns on standard error that there is no NumPy."""
    return next(json.loads(line) for line in reversed(output.splitlines()) if line.startswith("{"))


# ------------------------------------------------------------------------------------------------ building


def build(package: Package, wheels: Path) -> None:
    """Build the sdist from the tree and the wheel from the sdist, as pip does where no wheel fits, into `wheels`."""
    run([sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", wheels], package.directory)
    sdist = find(package, wheels, ".tar.gz")
    pip = [bootstrap.installer(), "-m", "pip"]
    # As a URL: pip splits the variable at spaces.
    run([*pip, "wheel", "--no-deps", "--wheel-dir", wheels, sdist], wheels, PIP_CONSTRAINT=CONSTRAINTS.as_uri())


def find(package: Package, wheels: Path, suffix: str) -> Path:
    """The only file with this suffix of this version of the package."""
    found = sorted(wheels.glob(f"{package.module}-{package.version()}*{suffix}"))
    if suffix == ".whl":
        # A directory of release wheels holds one per CPython.
        tag = f"cp{sys.version_info[0]}{sys.version_info[1]}-"
        found = [path for path in found if tag in path.name or "-py3-none-any" in path.name]
    if len(found) != 1:
        raise CheckError(f"{package.name}: expected one *{suffix} in {wheels}, found {[path.name for path in found]}")
    return found[0]


# ------------------------------------------------------------------------------------------------ environments


class Empty:
    """An empty virtual environment, or a copy of one."""

    def __init__(self, directory: Path, like: Empty | None = None) -> None:
        self.directory = directory
        self.python = directory / "bin" / "python"
        if like is None:
            run([bootstrap.installer(), "-m", "venv", "--without-pip", directory], directory.parent)
        else:
            shutil.copytree(like.directory, directory, symlinks=True, copy_function=os.link)

    def install(self, wheels: Path, *requirements: str | Path) -> None:
        pip = [bootstrap.installer(), "-m", "pip", "--python", self.python, "install", "-q"]
        options = ["--find-links", wheels, "-c", CONSTRAINTS]
        run([*pip, *options, *requirements], self.directory)

    def installed(self) -> dict[str, str]:
        """name -> version of every installed package."""
        return last_json(run([self.python, "-I", "-c", LIST_INSTALLED], self.directory))


def why_not_as_declared(
    package: Package, installed: Mapping[str, str], torch_brings: set[str], packages: Mapping[str, Package]
) -> str | None:
    """What is wrong with the packages that were installed along with this one, or None."""
    ours = {name for name in packages if package.name in with_downstream([name], packages)}
    came, allowed = set(installed), THIRD_PARTY.get(package.name, torch_brings | BESIDE_TORCH.get(package.name, set()))
    banned = came & MUST_NOT_BRING.get(package.name, set())
    if banned:
        return f"brings {sorted(banned)}, which it must not"
    if came != ours | allowed:
        return f"brings too much {sorted(came - ours - allowed)} or too little {sorted((ours | allowed) - came)}"
    wrong = {name: installed[name] for name in ours if installed[name] != packages[name].version()}
    return f"brings versions that are not this tree's: {wrong}" if wrong else None


# ------------------------------------------------------------------------------------------------ checking one


def check_import(package: Package, environment: Empty) -> None:
    report = last_json(run([environment.python, "-I", "-c", IMPORT, package.module], environment.directory))
    if environment.directory not in Path(report["file"]).parents:
        raise CheckError(f"{package.name}: imported from {report['file']}, not from the environment")
    if not report["typed"]:
        raise CheckError(f"{package.name}: the wheel holds no py.typed")
    if report["torch"] and "torch" not in package.needs:
        raise CheckError(f"{package.name}: importing it imports torch")


def run_own_tests(package: Package, environment: Empty, wheels: Path) -> str:
    """Run the tests of the sdist against the installed package. Returns pytest's closing line."""
    environment.install(wheels, *package.extras.get("test", ()))
    unpacked = environment.directory / "sdist"
    with tarfile.open(find(package, wheels, ".tar.gz")) as archive:
        archive.extractall(unpacked, filter="data")
    root = next(unpacked.iterdir())
    options = ["-q", "-p", "no:cacheprovider", "--import-mode=importlib", "-o", "pythonpath=tests"]
    output = run([environment.python, "-m", "pytest", *options, "tests"], root)
    return output.strip().splitlines()[-1].strip("= ")


def check(
    package: Package, packages: Mapping[str, Package], wheels: Path, environment: Empty, torch_brings: set[str]
) -> str:
    """Install, compare, import and test. Returns pytest's closing line. Raises CheckError if a check fails."""
    environment.install(wheels, find(package, wheels, ".whl"))
    wrong = why_not_as_declared(package, environment.installed(), torch_brings, packages)
    if wrong:
        raise CheckError(f"{package.name}: {wrong}")
    check_import(package, environment)
    return run_own_tests(package, environment, wheels)


def check_all(names: Sequence[str], packages: Mapping[str, Package], given: Path | None, scratch: Path) -> list[str]:
    """Check the named packages, each in an environment of its own. Returns the failures."""
    wheels = scratch / "wheels"
    wheels.mkdir()
    for package in packages.values():
        if not set(names) & set(with_downstream([package.name], packages)):
            continue  # nothing that is checked needs it
        start = time.monotonic()
        if given and any(given.glob(f"{package.module}-{package.version()}*")):
            for path in given.glob(f"{package.module}-{package.version()}*"):
                shutil.copy(path, wheels)
        else:
            build(package, wheels)
        print(f"built {package.name} {package.version()} ({time.monotonic() - start:.0f} s)", flush=True)
    with_torch, torch_brings = None, set()
    failures = []
    for name in names:
        start = time.monotonic()
        wants_torch = "torch" in packages[name].needs
        if wants_torch and with_torch is None:
            with_torch = Empty(scratch / "with-torch")
            with_torch.install(wheels, "torch")
            torch_brings = set(with_torch.installed())
            print(f"torch brings {', '.join(sorted(torch_brings))} ({time.monotonic() - start:.0f} s)", flush=True)
        environment = Empty(scratch / name, with_torch if wants_torch else None)
        try:
            closing = check(packages[name], packages, wheels, environment, torch_brings)
            print(f"ok {name}: {closing} ({time.monotonic() - start:.0f} s in all)", flush=True)
        except CheckError as error:
            failures.append(name)
            print(f"FAILED {name}: {error}", flush=True)
        shutil.rmtree(environment.directory)
    return failures


def main(arguments: Sequence[str]) -> int:
    packages = read_packages()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=list(packages), help="check this one (several times)")
    parser.add_argument("--wheels", type=Path, help="use the sdists and wheels found here instead of building them")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="treadle-distributions-") as scratch:
        try:
            failures = check_all(options.only or list(packages), packages, options.wheels, Path(scratch).resolve())
        except CheckError as error:
            failures = [str(error)]
    print(f"failed: {', '.join(failures)}" if failures else "all distributions stand alone")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
