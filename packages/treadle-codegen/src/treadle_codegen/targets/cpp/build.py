"""Turn one header-free C++ translation unit into a loaded shared library, through the cache."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import platform
import shlex
import shutil
import signal
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from treadle_codegen.__about__ import __version__
from treadle_codegen.cache import FileCache, content_key
from treadle_codegen.errors import CodegenUnavailable, CompilerFailed
from treadle_codegen.options import CodegenOptions
from treadle_codegen.targets.cpp.load import load_library
from treadle_codegen.targets.cpp.processor import processor_line
from treadle_codegen.targets.cpp.vector_math import bind, calls_vector_functions

# No -ffast-math: NaN and infinity must behave as in eager. No contraction to fma: with it a maximum minus itself, both the product
# of x and a scale, need not be 0. errno and trapping exceptions are not observable from Python.
_FLAGS = (
    "-O3",
    "-march=native",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=off",
    "-fno-semantic-interposition",
    "-fopenmp-simd",
    "-fno-exceptions",
    "-fno-rtti",
    "-fPIC",
    "-shared",
    "-w",
)
# g++ moves the only use of a value into the branch of `c ? f(x) : y` that needs it. A call in a branch has no vector form: `where(x > 0.3,
# x.sin(), x)` took five times as long. clang++ refuses the flag.
_VECTOR_CALLS = "-fno-tree-sink"
# Partial redundancy elimination evaluates log(e) on a path of its own for the lanes in which e is a constant, as exp's underflow to zero
# is. A loop with two paths has no vector form: softplus took ten times as long.
# Jump threading does the same where one choice decides another: where(x > 0, a, x) and then where(that < 0, b, that).
_ONE_PATH = ("-fno-tree-pre", "-fno-thread-jumps")
_GXX_ONLY = (_VECTOR_CALLS, *_ONE_PATH)  # compilers that refuse them go without
# Kernels call the C library and what the compiler itself needs. Start-up files and the C++ library take the linker 9 ms, of 59 ms for a
# small kernel. Not with OpenMP, whose runtime only the compiler knows.
_C_ALONE = ("-nostdlib", "-lgcc", "-lc")
# Constants lie in the mapping of the code, whose pages come in together. In one of their own, a page of constants that are read under masks
# only may never come in where no lane of the masks is set: each such read then takes the processor 300 ns.
_ONE_MAPPING = "-Wl,-z,noseparate-code"
_KILLED = "signal terminated program"  # what g++ says of a pass of its own that was killed
_ROOM = 16 << 20  # bytes that a compile may need on a disk
_CANDIDATES = ("g++", "clang++", "c++")
_in_background: set[subprocess.Popen[str]] = set()
os.register_at_fork(after_in_child=_in_background.clear)  # they are the parent's


@dataclass(frozen=True, slots=True)
class Compiler:
    """A C++ compiler: the `command` that runs it (a program and its first arguments), and `identity`, which changes when the compiler or
    the processor does."""

    command: tuple[str, ...]
    identity: str

    def __str__(self) -> str:
        return shlex.join(self.command)


@functools.lru_cache(maxsize=1)
def processor_identity() -> str:
    """The instruction sets of this processor: `-march=native` code must not travel to another one."""
    return processor_line("flags", "Features") or platform.processor() or platform.machine()


def _commands(cxx: str | None) -> list[list[str]]:
    """The commands to look for: that in `$CXX`, which may have arguments or spaces in its path, else well-known names."""
    if not cxx:
        return [[name] for name in _CANDIDATES]
    with contextlib.suppress(ValueError):  # an open quotation
        if words := shlex.split(cxx):
            return [[cxx], words]
    return [[cxx]]


def _file_identity(program: str) -> str:
    path = os.path.realpath(program)
    found = os.stat(path)
    return f"{path}:{found.st_size}:{found.st_mtime_ns}"


@functools.lru_cache(maxsize=8)
def _find(cxx: str | None, search_path: str | None) -> Compiler:
    for words in _commands(cxx):
        found = shutil.which(words[0], path=search_path)
        if found:
            # Wrappers such as ccache name the compiler among their arguments.
            programs = [found, *filter(None, (shutil.which(word, path=search_path) for word in words[1:]))]
            identity = [_file_identity(program) for program in programs]
            return Compiler((found, *words[1:]), ":".join([*identity, *words[1:], processor_identity()]))
    looked = f"$CXX={cxx}" if cxx else ", ".join(_CANDIDATES)
    raise CodegenUnavailable(
        f"no C++ compiler found: looked for {looked} on PATH. Install g++ (Debian: apt-get install g++) or set CXX."
    )


def find_compiler() -> Compiler:
    """The compiler that `$CXX` names (a program, perhaps with arguments: `ccache g++`), else g++, clang++ or c++ on PATH.

    Raises CodegenUnavailable naming what was looked for.
    """
    return _find(os.environ.get("CXX"), os.environ.get("PATH"))


@functools.lru_cache(maxsize=16)
def _cache(directory: Path, max_bytes: int) -> FileCache:
    return FileCache(directory, max_bytes)


def kernel_cache(options: CodegenOptions) -> FileCache:
    """The process-wide cache object of the directory that the options name."""
    return _cache(options.cache_dir, options.cache_bytes)


def compile_flags(threads: int, source: str = "") -> tuple[str, ...]:
    """Compiler flags for `source`; with more than one thread kernels use OpenMP (the runtime that torch has loaded serves them)."""
    flags = (*_FLAGS, *_ONE_PATH, *([_VECTOR_CALLS] if calls_vector_functions(source) else []))
    if " avx512f" in processor_identity():
        flags = (*flags, "-mprefer-vector-width=512")  # the default of 256 takes 1.5 times as long for exp, erf, tanh
    return (*flags, "-fopenmp") if threads > 1 else flags


def build_library(
    source: str, options: CodegenOptions, threads: int = 1, *, background: bool = False
) -> tuple[ctypes.CDLL, bool]:
    """Compile `source` and load it: (library, whether it came from the cache). `background`: at low priority.

    Raises CodegenUnavailable without a compiler that works or where the system loads no libraries, CompilerFailed when the compiler refuses
    the source.
    """
    compiler = find_compiler()
    flags = compile_flags(threads, source)
    cache = kernel_cache(options)
    key = content_key(source, " ".join(flags), compiler.identity, __version__)
    library = cache.read("cpp", key, ".so")
    if library is not None:
        with contextlib.suppress(OSError):  # built for a system that is no more: build again
            return _loaded(library), True
    library = compile_to_bytes(source, compiler, flags, background=background)
    cache.store("cpp", key, library, ".so")
    try:
        return _loaded(library), False
    except OSError as error:
        raise CodegenUnavailable(f"the system does not load the libraries that {compiler} makes: {error}") from error


def _loaded(library: bytes) -> ctypes.CDLL:
    loaded = load_library(library)
    bind(loaded)
    return loaded


def compile_to_bytes(source: str, compiler: Compiler, flags: tuple[str, ...], *, background: bool = False) -> bytes:
    """The bytes of the shared library that `compiler` makes of `source`."""
    # Not a TemporaryDirectory: a process forked meanwhile would remove it at its end.
    try:
        directory = Path(tempfile.mkdtemp(prefix="treadle-build-"))
        try:
            return _compile_in(directory, source, compiler, flags, background)
        finally:
            shutil.rmtree(directory, ignore_errors=True)
    except OSError as error:
        raise CodegenUnavailable(
            f"the C++ compiler {compiler} could not be run: {error}. It needs room in a temporary directory; set TMPDIR to another."
        ) from error


def _compile_in(directory: Path, source: str, compiler: Compiler, flags: tuple[str, ...], background: bool) -> bytes:
    text, library = directory / "kernels.cpp", directory / "kernels.so"
    text.write_text(source)
    run = _run_in_background if background else _run
    known = _refused_flags.setdefault(compiler.identity, set())
    command = [*compiler.command, *flags, "-o", str(library), str(text), "-lm", *_link_flags(flags, source)]
    command = [word for word in command if word not in known]
    code, errors = run(command)
    while code > 0 and (refused := _refused(errors).intersection(command)):
        known.update(refused if _names_flags(errors) else ())
        command = [word for word in command if word not in refused]
        code, errors = run(command)
    if code < 0:
        raise CodegenUnavailable(f"the C++ compiler {compiler} was killed by signal {-code}")
    if code != 0 and _KILLED in errors:  # out of memory
        raise CodegenUnavailable(f"the C++ compiler {compiler} was killed: {errors[:400]}")
    if code != 0 and shutil.disk_usage(directory).free < _ROOM:
        raise CodegenUnavailable(f"the disk of {directory.parent} is full; set TMPDIR to another directory")
    if code != 0 and _refuses_everything(command, text):
        words = errors.strip()[:400] or f"it ended with status {code}"
        raise CodegenUnavailable(
            f"the C++ compiler {compiler} does not work here ({words}). "
            "Repair it, or set CXX to another (g++ 9 or later, or clang++)."
        )
    if code != 0:
        raise CompilerFailed(f"{compiler} refused generated code:\n{errors[:4000]}")
    return library.read_bytes()


def _link_flags(flags: tuple[str, ...], source: str) -> tuple[str, ...]:
    needs_more = "-fopenmp" in flags or "#include" in source  # as the launcher of kernels on a GPU has it
    if platform.system() != "Linux":
        return ()
    return (_ONE_MAPPING,) if needs_more else (_ONE_MAPPING, *_C_ALONE)


_refused_flags: dict[str, set[str]] = {}
"""What each compiler has refused by name in this process: a kernel takes one run of it instead of two from then on."""


def _names_flags(errors: str) -> bool:
    return any(flag in errors for flag in (*_GXX_ONLY, *_C_ALONE, "noseparate-code"))


def _refused(errors: str) -> set[str]:
    """The flags without which a compiler that ends in these errors may do."""
    at_linking = ("undefined reference", "undefined symbol", "undefined hidden symbol")
    together = _C_ALONE if any(text in errors for text in (*_C_ALONE, *at_linking)) else ()
    mapping = (_ONE_MAPPING,) if "noseparate-code" in errors else ()
    return {*(flag for flag in _GXX_ONLY if flag in errors), *together, *mapping}


def _refuses_everything(command: list[str], text: Path) -> bool:
    """Whether `command`, which compiles the file `text`, refuses a trivial program as well, so that generated code is not at fault."""
    text.write_text("int treadle_nothing;\n")
    return _run(command)[0] != 0


def _run(command: list[str]) -> tuple[int, str]:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


def _run_in_background(command: list[str]) -> tuple[int, str]:
    """Run at low priority, and in a session of its own: interrupts of the terminal are meant for the program."""
    nice = shutil.which("nice")
    command = [nice, "-n", "10", *command] if nice else command
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    _in_background.add(process)
    try:
        _, errors = process.communicate()
    finally:
        _in_background.discard(process)
    return process.returncode, errors


def stop_background_compilers() -> None:
    """Kill the compilers that run in the background, with the processes they have started."""
    for process in list(_in_background):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
