"""Set up the repository's own environment: a virtual environment beside the sources with everything pinned.

It uses the standard library only, and any Python 3 can parse it, so that an old Python can be told that it is too old.
`ensure_main()` gives the interpreter of `.venv` (all six packages editable, torch, transformers, timm);
`ensure_plain(python)` gives that of `.venv-<x.y>` (frame, shapes and tracer without torch) for one more interpreter,
`ensure_torch(version)` that of `.venv-torch-<version>` (everything, beside another torch), `ensure_python(version)` that of
`.venv-all-<x.y>` (everything, for one more interpreter).
All do nothing if the environment is up to date: a stamp file holds a hash of its inputs.
"""

import contextlib
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TOOLS = os.path.join(ROOT, "tools")
CONSTRAINTS = os.path.join(TOOLS, "constraints.txt")
OLDEST, NEWEST = (3, 11), (3, 13)
OLDEST_PIP = (22, 3)  # the first with `pip --python`
OLDEST_GXX = 9  # C++17 with OpenMP 5 reductions
STAMP = "treadle-setup.json"

# In dependency order, so that a failure names the package that caused it.
PACKAGES = ["treadle-frame", "treadle-shapes", "treadle-tracer", "treadle-autograd", "treadle-codegen", "treadle"]
PLAIN_PACKAGES = ["treadle-frame", "treadle-shapes", "treadle-tracer"]
# Requirements whose versions depend on the release of torch.
BOUND_TO_TORCH = {"torch", "torchvision", "setuptools"}
PLAIN_REQUIREMENTS = ["bytecode", "editables", "hatchling", "hypothesis", "pytest", "setuptools", "sympy"]


class SetupError(Exception):
    """Something on this machine is missing or too old. The message says what, and what to do."""


def dotted(version):
    return ".".join(str(part) for part in version)


# ---------------------------------------------------------------------------------------------- what the machine has


def why_not_python(version=sys.version_info, name=sys.implementation.name, executable=sys.executable):
    """Why this interpreter cannot run Treadle, or None."""
    if name != "cpython":
        return "Treadle needs CPython; %s is %s." % (executable, name)
    if OLDEST <= tuple(version[:2]) <= NEWEST:
        return None
    others = [found for found in map(find_interpreter, ["3.11", "3.12", "3.13"]) if found]
    return "Treadle needs CPython %s to %s; this is %s (%s). %s" % (
        dotted(OLDEST),
        dotted(NEWEST),
        dotted(version[:3]),
        executable,
        "Run the command with %s." % others[0] if others else "Install one, for instance `apt install python3.11`.",
    )


def why_not_pip():
    """Why pip cannot install packages, or None."""
    if importlib.util.find_spec("venv") is None:
        return "Python's module venv is missing. Install it, for instance `apt install python3-venv`."
    python = installer()
    run = subprocess.run([python, "-m", "pip", "--version"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    text = run.stdout.decode(errors="replace").strip()
    if "No module named pip" in text:
        return "pip is missing for %s. Install it, for instance `apt install python3-pip`." % python
    found = re.match(r"pip (\d+)\.(\d+)", text)
    if run.returncode != 0 or not found:
        return "`%s -m pip --version` does not work: %s" % (python, text)
    version = (int(found.group(1)), int(found.group(2)))
    if version < OLDEST_PIP:
        return "pip %s is too old, %s is needed: `%s -m pip install --upgrade pip`." % (
            dotted(version),
            dotted(OLDEST_PIP),
            python,
        )
    return None


def why_not_compiler(compiler=None):
    """Why there is no usable C++ compiler, or None."""
    compiler = compiler or os.environ.get("CXX") or "g++"
    if shutil.which(compiler.split()[0]) is None:
        return "%s is missing. Install it, for instance `apt install g++`." % compiler
    run = subprocess.run(
        compiler.split() + ["-dumpfullversion", "-dumpversion"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    text = run.stdout.decode(errors="replace").strip()
    found = re.match(r"(\d+)", text)
    if run.returncode != 0 or not found:
        return "`%s -dumpversion` does not work: %s" % (compiler, text)
    if "clang" not in compiler and int(found.group(1)) < OLDEST_GXX:
        return "%s %s is too old, %d is needed." % (compiler, text, OLDEST_GXX)
    return None


def why_not_headers():
    """Why treadle-frame's extension cannot be compiled for this interpreter, or None."""
    header = os.path.join(sysconfig.get_paths()["include"], "internal", "pycore_frame.h")
    if os.path.exists(header):
        return None
    return "Python's headers are missing (%s). Install them, for instance `apt install python3-dev`." % header


def check_machine():
    """Raise one SetupError for everything that is missing or too old."""
    python = why_not_python()
    of_python = [python] if python else [why_not_pip(), why_not_headers()]
    missing = [reason for reason in of_python + [why_not_compiler()] if reason]
    if missing:
        raise SetupError("\n".join(missing))


def find_interpreter(version):
    """A working CPython of this minor version ("3.12"): PATH first, then pyenv's installations; or None."""
    roots = [os.environ.get("PYENV_ROOT"), os.path.expanduser("~/.pyenv")]
    candidates = [shutil.which("python" + version)]
    for root in filter(None, roots):
        versions = os.path.join(root, "versions")
        names = sorted(os.listdir(versions), reverse=True) if os.path.isdir(versions) else []
        candidates += [
            os.path.join(versions, name, "bin", "python") for name in names if name.startswith(version + ".")
        ]
    probe = "import sys, venv; print('%d.%d' % sys.version_info[:2])"
    for candidate in filter(None, candidates):
        with contextlib.suppress(OSError):
            # PATH may have a pyenv shim of a version that is not active, which fails. So it is run.
            run = subprocess.run([candidate, "-c", probe], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            if run.returncode == 0 and run.stdout.decode().strip() == version:
                return candidate
    return None


# ---------------------------------------------------------------------------------------------- one environment


class Environment:
    """A virtual environment of the repository: its place, its packages, and whether it is up to date."""

    def __init__(self, directory, python, requirements, packages, constraints=CONSTRAINTS):
        self.directory = directory
        self.base = python
        self.requirements = requirements
        self.packages = packages
        self.constraints = ["-c", constraints] if constraints else []
        self.python = os.path.join(directory, "bin", "python")
        self.log = os.path.join(directory, "setup.log")

    def wanted(self):
        """Hashes of the environment's inputs, one per step of `ensure`."""
        build_inputs = [os.path.join(ROOT, "packages", name, "pyproject.toml") for name in self.packages]
        frame = os.path.join(ROOT, "packages", "treadle-frame")
        build_inputs.append(os.path.join(frame, "hatch_build.py"))
        for folder, _, names in sorted(os.walk(os.path.join(frame, "src"))):
            build_inputs += [os.path.join(folder, n) for n in sorted(names) if n.endswith((".c", ".h", ".def"))]
        for folder, _, names in sorted(os.walk(os.path.join(frame, "csrc"))):
            build_inputs += [os.path.join(folder, n) for n in sorted(names)]
        return {
            "base": self.base,
            "dependencies": digest([CONSTRAINTS], self.requirements),
            "packages": digest(build_inputs, [self.directory] + self.packages),
        }

    def have(self):
        try:
            with open(os.path.join(self.directory, STAMP)) as file:
                return json.load(file)
        except (OSError, ValueError):
            return {}

    def note(self, stamp):
        """Record the finished steps atomically, so that an interrupted set-up continues where it stopped."""
        path = os.path.join(self.directory, STAMP)
        with open(path + ".new", "w") as file:
            json.dump(stamp, file, indent=1)
        os.replace(path + ".new", path)

    def ensure(self):
        """Make or update the environment. Returns its interpreter."""
        wanted, have = self.wanted(), self.have()
        if have == wanted:
            return self.python
        if have.get("base") != wanted["base"] or not os.path.exists(self.python):
            shutil.rmtree(self.directory, ignore_errors=True)
            have = {}
            step("creating %s" % os.path.relpath(self.directory, ROOT))
            subprocess.check_call([self.base, "-m", "venv", "--without-pip", self.directory])
        if have.get("dependencies") != wanted["dependencies"]:
            named = ", ".join(line for line in self.requirements if line.startswith("torch")) or "no torch"
            self.pip("installing dependencies (%s; pinned)" % named, self.constraints + self.requirements)
            have = {"base": wanted["base"], "dependencies": wanted["dependencies"]}
            self.note(have)
        if have.get("packages") != wanted["packages"]:
            editable = ["--no-deps", "--no-build-isolation", "--force-reinstall"]
            for name in self.packages:
                editable += ["-e", os.path.join(ROOT, "packages", name)]
            self.pip("installing %s" % ", ".join(self.packages), editable)
            self.note(wanted)
        return self.python

    def pip(self, title, arguments):
        """Run this interpreter's `pip install` on the environment. The output goes to the log."""
        command = [installer(), "-m", "pip", "--python", self.python, "install", "--disable-pip-version-check"]
        variables = dict(os.environ, PATH=os.path.join(self.directory, "bin") + os.pathsep + os.environ.get("PATH", ""))
        with open(self.log, "ab") as log:
            process = subprocess.Popen(command + arguments, stdout=log, stderr=log, cwd=ROOT, env=variables)
            wait(process, title)
        if process.returncode != 0:
            with open(self.log, errors="replace") as log:
                tail = "".join(log.readlines()[-25:])
            raise SetupError("%s failed; the end of %s:\n%s" % (title, self.log, tail))


def installer():
    """The interpreter whose pip is used: this one, or the one that it was made from if it is an environment without pip."""
    return sys.executable if importlib.util.find_spec("pip") else base_interpreter()


def digest(files, texts):
    """One hash of the files' contents and of the texts."""
    total = hashlib.sha256()
    for path in files:
        with contextlib.suppress(OSError), open(path, "rb") as file:
            total.update(file.read())
        total.update(b"\0")
    total.update("\0".join(texts).encode())
    return total.hexdigest()


# ---------------------------------------------------------------------------------------------- progress


def step(text):
    sys.stdout.write("[set-up] %s\n" % text)
    sys.stdout.flush()


def wait(process, title):
    """Wait for a process. On a terminal, show the seconds so far."""
    start, shown = time.time(), sys.stdout.isatty()
    if not shown:
        step(title)
    while process.poll() is None:
        if shown:
            sys.stdout.write("\r[set-up] %s ... %d s" % (title, time.time() - start))
            sys.stdout.flush()
        time.sleep(0.2)
    if shown:
        sys.stdout.write("\r")
        step("%s: %d s    " % (title, time.time() - start))


# ---------------------------------------------------------------------------------------------- entry points


@contextlib.contextmanager
def only_one_at_a_time():
    """Hold a lock, so that two commands never fill the same environment at once."""
    import fcntl

    try:
        file = open(os.path.join(ROOT, ".venv-setup.lock"), "w")  # noqa: SIM115
    except OSError as error:
        raise SetupError(
            "%s cannot be written (%s): clone Treadle to a folder of yours." % (ROOT, error.strerror)
        ) from None
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def set_up(environment):
    """Make or update the environment and return its interpreter. An up-to-date one is left alone: the tree may be read-only."""
    if environment.have() == environment.wanted():
        return environment.python
    with only_one_at_a_time():
        return environment.ensure()


def requirement_lines():
    with open(os.path.join(TOOLS, "requirements.txt")) as file:
        return [line.strip() for line in file if line.strip() and not line.startswith("#")]


def ensure_main():
    """Make or update `.venv` and return its interpreter. Raises SetupError."""
    check_machine()
    base = os.path.realpath(sys.executable) if sys.prefix == sys.base_prefix else base_interpreter()
    return set_up(Environment(os.path.join(ROOT, ".venv"), base, requirement_lines(), PACKAGES))


def ensure_torch(version):
    """Make or update `.venv-torch-<version>`, which is `.venv` with another torch, and return its interpreter. Raises SetupError."""
    directory = os.path.join(ROOT, ".venv-torch-" + version)
    requirements = requirements_beside(version)
    return set_up(Environment(directory, base_interpreter(), requirements, PACKAGES, constraints=""))


def ensure_python(version):
    """Make or update `.venv-all-<x.y>`, which is `.venv` for another interpreter, and return its interpreter. Raises SetupError.

    Where the index has no CPU build of torch for it, this installs the build for CUDA (5 GB), which runs without a GPU.
    """
    base = find_interpreter(version)
    if base is None:
        raise SetupError("There is no CPython %s on this machine (PATH, pyenv)." % version)
    directory = os.path.join(ROOT, ".venv-all-" + version)
    requirements = requirements_beside(pins()["torch"])
    return set_up(Environment(directory, base, requirements, PACKAGES, constraints=""))


def pins():
    """Name -> version of everything that is pinned."""
    with open(CONSTRAINTS) as file:
        return dict(line.strip().split("==") for line in file if "==" in line and not line.startswith("#"))


def requirements_beside(torch_version):
    """The pinned requirements of the development environment, without those that depend on the build of torch."""
    versions = pins()
    free = [line for line in requirement_lines() if line in BOUND_TO_TORCH or line not in versions]
    pinned = ["%s==%s" % (name, versions[name]) for name in requirement_lines() if name not in free]
    return pinned + [line for line in free if line != "torch"] + ["torch==" + torch_version]


def base_interpreter():
    """The interpreter that the running virtual environment was made from, so that ours does not depend on that environment."""
    name = "python%d.%d" % sys.version_info[:2]
    return os.path.realpath(getattr(sys, "_base_executable", None) or os.path.join(sys.base_prefix, "bin", name))


def ensure_plain(version):
    """Make or update `.venv-<version>`, without torch, and return its interpreter; None if this machine has no such CPython."""
    base = find_interpreter(version)
    if base is None:
        return None
    directory = os.path.join(ROOT, ".venv-" + version)
    return set_up(Environment(directory, base, PLAIN_REQUIREMENTS, PLAIN_PACKAGES))


def run_inside(script, arguments):
    """Set up, then run a script of tools/ in the environment. Returns its exit status, 2 if the set-up failed."""
    try:
        python = ensure_main()
    except SetupError as error:
        sys.stderr.write("Treadle cannot be set up here:\n%s\n" % error)
        return 2
    return subprocess.call([python, os.path.join(TOOLS, script)] + arguments)


if __name__ == "__main__":
    try:
        sys.stdout.write(ensure_main() + "\n")
    except SetupError as error:
        sys.exit("Treadle cannot be set up here:\n%s" % error)
