"""What is said of compilers that do not work, and of code that one refuses."""

from __future__ import annotations

import os
import struct
import sys
import types
from pathlib import Path

import pytest

from treadle_codegen.errors import CodegenUnavailable, CompilerFailed
from treadle_codegen.options import CodegenOptions
from treadle_codegen.targets.cpp.build import Compiler, build_library, compile_flags, compile_to_bytes, find_compiler


def broken(tmp_path: Path, script: str) -> Compiler:
    path = tmp_path / "g++"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return Compiler((str(path),), f"broken {path}")


@pytest.mark.parametrize("background", [False, True])
def test_a_compiler_that_compiles_nothing_is_not_our_bug(tmp_path: Path, background: bool) -> None:
    compiler = broken(tmp_path, "echo 'cannot execute cc1plus' >&2; exit 1")
    with pytest.raises(CodegenUnavailable, match=r"g\+\+ does not work here \(cannot execute cc1plus\)\. Repair it"):
        compile_to_bytes("int x;", compiler, compile_flags(1), background=background)


def test_a_compiler_without_words_is_said_to_have_ended(tmp_path: Path) -> None:
    with pytest.raises(CodegenUnavailable, match="it ended with status 3"):
        compile_to_bytes("int x;", broken(tmp_path, "exit 3"), compile_flags(1))


def test_a_full_disk_is_not_the_compilers_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: types.SimpleNamespace(free=4096))
    with pytest.raises(CodegenUnavailable, match=r"the disk of .* is full; set TMPDIR"):
        compile_to_bytes("int x;", broken(tmp_path, "echo 'cannot write' >&2; exit 1"), compile_flags(1))


def test_code_that_a_working_compiler_refuses_is_our_bug() -> None:
    with pytest.raises(CompilerFailed, match="no_such_type"):
        compile_to_bytes("no_such_type x;", find_compiler(), compile_flags(1))


@pytest.mark.parametrize("background", [False, True])
def test_a_compiler_that_runs_out_of_memory_is_not_our_bug(tmp_path: Path, background: bool) -> None:
    """It works on small programs; one of its passes is killed on this one."""
    words = "g++: fatal error: Killed signal terminated program cc1plus"
    compiler = broken(
        tmp_path, f'grep -q large "$(dirname "$0")"/*/kernels.cpp || exec g++ "$@"; echo "{words}" >&2; exit 1'
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tempfile.tempdir", str(tmp_path))
        with pytest.raises(CodegenUnavailable, match="was killed: .* program cc1plus"):
            compile_to_bytes("int large;", compiler, compile_flags(1), background=background)
        assert [path.name for path in tmp_path.iterdir()] == ["g++"]


def test_a_compiler_killed_in_the_background_is_not_our_bug(tmp_path: Path) -> None:
    with pytest.raises(CodegenUnavailable, match="signal 9"):
        compile_to_bytes("int x;", broken(tmp_path, "kill -9 $$"), compile_flags(1), background=True)


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("refused", [["-fno-tree-sink"], ["-fno-tree-pre"], ["-fno-tree-sink", "-fno-thread-jumps"]])
def test_a_compiler_that_refuses_flags_of_gcc_goes_without(
    tmp_path: Path, background: bool, refused: list[str]
) -> None:
    patterns, words = "|".join(f"*{flag}*" for flag in refused), ", ".join(refused)
    script = f'case " $* " in {patterns}) echo "unknown argument: {words}" >&2; exit 1;; esac; exec g++ "$@"'
    flags = compile_flags(1, "y = sleef_sin_f(x);")
    assert set(refused) <= set(flags)
    assert "-fno-tree-sink" not in compile_flags(1)
    assert compile_to_bytes("int x;", broken(tmp_path, script), flags, background=background)


@pytest.mark.parametrize("background", [False, True])
def test_a_compiler_without_the_library_that_it_links_with_goes_without(tmp_path: Path, background: bool) -> None:
    script = 'case " $* " in *-lgcc*) echo "ld: -lgcc nicht gefunden" >&2; exit 1;; esac; exec g++ "$@"'
    library = compile_to_bytes("int x;", broken(tmp_path, script), compile_flags(1), background=background)
    assert b"crtstuff.c" in library


def test_a_compiler_may_refuse_flags_before_it_links(tmp_path: Path) -> None:
    script = """case " $* " in *-fno-tree-sink*) echo "unknown argument: -fno-tree-sink" >&2; exit 1;; esac
case " $* " in *-lgcc*) echo "ld: cannot find -lgcc" >&2; exit 1;; esac
exec g++ "$@\""""
    flags = compile_flags(1, "y = sleef_sin_f(x);")
    assert "-fno-tree-sink" in flags
    assert compile_to_bytes("int x;", broken(tmp_path, script), flags)


@pytest.mark.parametrize("refused", ["-fno-tree-sink", "-lgcc"])
def test_what_a_compiler_refuses_is_remembered(tmp_path: Path, refused: str) -> None:
    script = f"""echo run >> "$(dirname "$0")/log"
case " $* " in *{refused}*) echo "g++: {refused}: unknown" >&2; exit 1;; esac
exec g++ "$@\""""
    compiler, flags = broken(tmp_path, script), compile_flags(1, "y = sleef_sin_f(x);")
    runs = []
    for _ in range(3):
        assert compile_to_bytes("int x;", compiler, flags)
        runs.append(len((tmp_path / "log").read_text().splitlines()))
    assert runs == [2, 3, 4]


def test_code_that_needs_more_libraries_is_not_remembered(tmp_path: Path) -> None:
    """What one kernel cannot be linked without says nothing of the next."""
    script = """case " $* " in *-nostdlib*)
  grep -q needs "$(dirname "$0")"/*/kernels.cpp && { echo "undefined symbol: f" >&2; exit 1; };;
esac
exec g++ "$@\""""
    compiler = broken(tmp_path, script)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tempfile.tempdir", str(tmp_path))
        assert b"crtstuff.c" in compile_to_bytes("int needs;", compiler, compile_flags(1))
        assert b"crtstuff.c" not in compile_to_bytes("int x;", compiler, compile_flags(1))


def test_libraries_need_the_c_library_alone() -> None:
    library = compile_to_bytes('extern "C" double f(double x);', find_compiler(), compile_flags(1))
    assert b"libstdc++" not in library and b"crtstuff.c" not in library


def test_a_compiler_with_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrapper = tmp_path / "ccache"
    wrapper.write_text('#!/bin/sh\necho "$1" >> "$(dirname "$0")/log"; exec "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("CXX", "ccache g++")
    compiler = find_compiler()
    assert compiler.command == (str(wrapper), "g++")
    assert compile_to_bytes("int x;", compiler, compile_flags(1))
    assert (tmp_path / "log").read_text() == "g++\n"
    monkeypatch.setenv("CXX", "g++")
    assert find_compiler().identity != compiler.identity
    monkeypatch.setenv("CXX", "'")
    with pytest.raises(CodegenUnavailable, match=r"looked for \$CXX='"):
        find_compiler()


def test_a_compiler_whose_path_has_a_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my tools").mkdir()
    compiler = tmp_path / "my tools" / "g++"
    compiler.write_text('#!/bin/sh\nexec g++ "$@"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    assert find_compiler().command == (str(compiler),)


def test_a_temporary_directory_that_cannot_be_used_is_not_our_bug(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    with pytest.raises(CodegenUnavailable, match="set TMPDIR"):
        compile_to_bytes("int x;", find_compiler(), compile_flags(1))


def test_a_cache_smaller_than_one_library(tmp_path: Path) -> None:
    for name in ("first", "second"):
        source = f'extern "C" int {name}() {{ return 7; }}'
        library, _ = build_library(source, CodegenOptions(cache_dir=tmp_path, cache_bytes=1))
        assert getattr(library, name)() == 7


def test_a_library_that_is_cut_short_while_it_is_loaded_goes_on(tmp_path: Path) -> None:
    source = 'extern "C" int number() { return 7; }'
    options = CodegenOptions(cache_dir=tmp_path)
    library, _ = build_library(source, options)
    for path in (tmp_path / "cpp").iterdir():
        os.truncate(path, 0)
    assert library.number() == 7
    with pytest.warns(UserWarning, match="unusable"):
        again, from_cache = build_library(source, options)
    assert again.number() == 7 and not from_cache


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have other kinds of libraries")
def test_constants_lie_beside_the_code() -> None:
    """Where they had a mapping of their own, reads of them under masks that are never set took 300 ns each."""
    source = (
        'extern "C" const double* treadle_constants() { static const double values[] = {1.5, 2.5}; return values; }'
    )
    library = compile_to_bytes(source, find_compiler(), compile_flags(1))
    first, size, count = struct.unpack_from("<Q", library, 32)[0], *struct.unpack_from("<HH", library, 54)
    headers = [struct.unpack_from("<II", library, first + k * size) for k in range(count)]  # kind and permissions
    loaded = [permissions for kind, permissions in headers if kind == 1]
    assert 4 not in loaded  # readable alone


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have other kinds of libraries")
def test_a_linker_without_the_mapping_goes_without(tmp_path: Path) -> None:
    compiler = broken(
        tmp_path,
        """case "$*" in *noseparate-code*) echo "ld: unknown -z value: noseparate-code" >&2; exit 1;; esac; exec g++ "$@" """,
    )
    assert compile_to_bytes("int x;", compiler, compile_flags(1))
