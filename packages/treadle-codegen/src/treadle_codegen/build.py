"""Turn one header-free C++ translation unit into a loaded shared library, through the cache."""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from treadle_codegen.__about__ import __version__
from treadle_codegen.cache import FileCache, content_key
from treadle_codegen.errors import CodegenUnavailable, CompilerFailed
from treadle_codegen.options import CodegenOptions

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
_CANDIDATES = ("g++", "clang++", "c++")


@dataclass(frozen=True, slots=True)
class Compiler:
    """A C++ compiler: `path`, and `identity`, which changes when the compiler or the processor does."""

    path: str
    identity: str


@functools.lru_cache(maxsize=1)
def _cpu_identity() -> str:
    """The instruction sets of this processor: `-march=native` code must not travel to another one."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("flags", "Features")):
                return line
    except OSError:
        pass
    return platform.processor() or platform.machine()


@functools.lru_cache(maxsize=8)
def _find(cxx: str | None, search_path: str | None) -> Compiler:
    names = [cxx] if cxx else list(_CANDIDATES)
    for name in names:
        found = shutil.which(name, path=search_path)
        if found:
            stat = os.stat(os.path.realpath(found))
            return Compiler(found, f"{os.path.realpath(found)}:{stat.st_size}:{stat.st_mtime_ns}:{_cpu_identity()}")
    looked = f"$CXX={cxx}" if cxx else ", ".join(_CANDIDATES)
    raise CodegenUnavailable(
        f"no C++ compiler found: looked for {looked} on PATH. Install g++ (Debian: apt-get install g++) or set CXX."
    )


def find_compiler() -> Compiler:
    """The compiler named by `$CXX`, else g++, clang++ or c++ on PATH; raises CodegenUnavailable naming what was looked for."""
    return _find(os.environ.get("CXX"), os.environ.get("PATH"))


@functools.lru_cache(maxsize=16)
def _cache(directory: Path, max_bytes: int) -> FileCache:
    return FileCache(directory, max_bytes)


def kernel_cache(options: CodegenOptions) -> FileCache:
    """The process-wide cache object of the directory that the options name."""
    return _cache(options.cache_dir, options.cache_bytes)


def compile_flags(threads: int) -> tuple[str, ...]:
    """Compiler flags; with more than one thread kernels use OpenMP (the runtime that torch has loaded serves them)."""
    flags = _FLAGS
    if " avx512f" in _cpu_identity():
        flags = (*flags, "-mprefer-vector-width=512")  # the default of 256 takes 1.5 times as long for exp, erf, tanh
    return (*flags, "-fopenmp") if threads > 1 else flags


def build_library(source: str, options: CodegenOptions, threads: int = 1) -> tuple[ctypes.CDLL, bool]:
    """Compile `source` and load it: (library, whether it came from the cache).

    Raises CodegenUnavailable without a compiler, CompilerFailed when it refuses the source.
    """
    compiler = find_compiler()
    flags = compile_flags(threads)
    cache = kernel_cache(options)
    key = content_key(source, " ".join(flags), compiler.identity, __version__)
    path = cache.find("cpp", key, ".so")
    if path is not None:
        try:
            return ctypes.CDLL(str(path)), True
        except OSError:
            pass  # evicted between the check and the load, or built for a system that is no more: build again
    return ctypes.CDLL(str(cache.store("cpp", key, compile_to_bytes(source, compiler, flags), ".so"))), False


def compile_to_bytes(source: str, compiler: Compiler, flags: tuple[str, ...]) -> bytes:
    """The bytes of the shared library that `compiler` makes of `source`."""
    with tempfile.TemporaryDirectory(prefix="treadle-build-") as directory:
        text, library = Path(directory, "kernels.cpp"), Path(directory, "kernels.so")
        text.write_text(source)
        try:
            done = subprocess.run(
                [compiler.path, *flags, "-o", str(library), str(text), "-lm"],
                capture_output=True,
                text=True,
                check=False,
            )
        except OSError as error:
            raise CodegenUnavailable(f"the C++ compiler {compiler.path} could not be run: {error}") from error
        if done.returncode < 0:
            raise CodegenUnavailable(f"the C++ compiler {compiler.path} was killed by signal {-done.returncode}")
        if done.returncode != 0:
            raise CompilerFailed(f"{compiler.path} refused generated code:\n{done.stderr[:4000]}")
        return library.read_bytes()
