"""Kernels compiled to binaries without a GPU, and the cache that keeps them."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from targets.triton import units

from treadle_codegen.errors import CacheWarning, CodegenUnavailable, KernelRefused
from treadle_codegen.options import CodegenOptions
from treadle_codegen.targets.triton import installation, offline, workers
from treadle_codegen.targets.triton.offline import Architecture, compile_kernels
from treadle_codegen.targets.triton.unit import UnitKernel, parse_unit

pytest.importorskip("triton")

HOPPER = Architecture.cuda(90)


@pytest.fixture
def options(tmp_path: Path) -> CodegenOptions:
    return CodegenOptions(cache_dir=tmp_path / "cache")


def kernels(*names: str) -> list[UnitKernel]:
    functions = {name: units.add_one(name, k + 1.0) for k, name in enumerate(names)}
    return list(parse_unit(units.unit(functions, {})).kernels.values())


@pytest.mark.parametrize("capability", [80, 90, 100])
def test_a_kernel_becomes_a_cubin(options: CodegenOptions, capability: int) -> None:
    (binary,) = compile_kernels(kernels("k_ppl"), Architecture.cuda(capability), options).values()
    assert binary.content.startswith(b"\x7fELF")
    facts = binary.facts
    assert (facts["name"], facts["shared"], facts["num_warps"], facts["warp_size"]) == ("k_ppl", 0, 4, 32)
    assert facts["hidden_parameters"] == ["u64", "u64"]
    assert 8 <= facts["registers"] <= 255
    assert facts["stack_bytes"] == 0


def test_a_kernel_becomes_code_for_amd(options: CodegenOptions) -> None:
    (binary,) = compile_kernels(kernels("k_ppl"), Architecture("hip", "gfx942", 64), options).values()
    assert binary.content.startswith(b"\x7fELF")


def test_spilled_registers_are_counted(options: CodegenOptions) -> None:
    source = """
@triton.jit
def k_pp(b0, b1, XBLOCK: tl.constexpr):
    x = tl.arange(0, XBLOCK)
    y = tl.arange(0, 64)
    tl.store(b1 + x[:, None] * 64 + y[None, :], tl.load(b0 + x[:, None] * 64 + y[None, :]) + tl.load(b0 + y[None, :] * 128 + x[:, None]))
"""
    record = units.record(signature=["*fp32", "*fp32"], num_warps=1, constants={"XBLOCK": 128})
    unit = units.unit({"k_pp": source}, {}, k_pp=record)
    (binary,) = compile_kernels(parse_unit(unit).kernels.values(), HOPPER, options).values()
    assert binary.facts["registers"] == 255
    assert binary.facts["stack_bytes"] > 0


def test_the_second_build_comes_from_the_cache(options: CodegenOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    first = compile_kernels(kernels("k_ppl", "k_ppl_b"), HOPPER, options)
    assert not any(binary.cached for binary in first.values())
    monkeypatch.setattr(workers.FOREGROUND, "compile", None)
    second = compile_kernels(kernels("k_ppl", "k_ppl_b"), HOPPER, options)
    assert all(binary.cached for binary in second.values())
    assert [b.content for b in second.values()] == [b.content for b in first.values()]
    assert [b.facts for b in second.values()] == [b.facts for b in first.values()]


def test_what_a_binary_depends_on_is_in_its_key(options: CodegenOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    def key(aligned: bool = True, architecture: Architecture = HOPPER, constant: float = 1.0, **changed: object) -> str:
        text = units.unit({"k_ppl": units.add_one(constant=constant)}, {}, k_ppl=units.record(**changed))
        (kernel,) = parse_unit(text).kernels.values()
        return offline._key(offline._request(kernel, architecture, aligned))

    keys = [
        key(),
        key(aligned=False),
        key(architecture=Architecture.cuda(80)),
        key(constant=2.0),
        key(num_warps=8),
        key(num_stages=2),
        key(checks_bounds=True),
        key(constants={"XBLOCK": 128}),
        key(signature=["*fp32", "*fp32", "i32"]),
        key(options={"enable_fp_fusion": False}),
    ]
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "0")
    keys.append(key())
    assert len(set(keys)) == len(keys)
    monkeypatch.delenv("TRITON_DEFAULT_FP_FUSION")
    monkeypatch.setenv("TRITON_CACHE_DIR", "elsewhere")
    assert key() == keys[0]


@pytest.mark.parametrize("damage", ["cut short", "flipped", "writable by others"])
def test_a_damaged_file_is_built_again(options: CodegenOptions, damage: str) -> None:
    compile_kernels(kernels("k_ppl"), HOPPER, options)
    (path,) = (options.cache_dir / "triton").iterdir()
    content = path.read_bytes()
    if damage == "cut short":
        path.write_bytes(content[:100])
    elif damage == "flipped":
        path.write_bytes(content[:50] + bytes([content[50] ^ 1]) + content[51:])
    else:
        path.chmod(0o666)
    with pytest.warns(CacheWarning):
        (binary,) = compile_kernels(kernels("k_ppl"), HOPPER, options).values()
    assert not binary.cached
    assert path.read_bytes()[:8] == content[:8]


def test_an_aligned_kernel_loads_more_at_once(options: CodegenOptions) -> None:
    aligned = compile_kernels(kernels("k_ppl"), HOPPER, options)["k_ppl"]
    other = compile_kernels(kernels("k_ppl"), HOPPER, options, aligned=False)["k_ppl"]
    assert aligned.content != other.content


def test_device_asserts_are_kept_where_bounds_are_checked(options: CodegenOptions) -> None:
    for checks in (False, True):
        unit = units.unit(
            {"k_pplc": units.CHECKED}, {}, k_pplc=units.record(signature=["*i64", "*i64", "i64"], checks_bounds=checks)
        )
        (binary,) = compile_kernels(parse_unit(unit).kernels.values(), HOPPER, options).values()
        assert (b"__assertfail" in binary.content) is checks


def test_a_kernel_that_triton_refuses_is_named_and_kept(options: CodegenOptions) -> None:
    good, bad = units.add_one(), units.add_one("k_bad").replace("inside)", "no_such_name)")
    unit = parse_unit(units.unit({"k_ppl": good, "k_bad": bad}, {}))
    with pytest.raises(KernelRefused, match=r"kernel k_bad(.|\n)*no_such_name") as caught:
        compile_kernels(unit.kernels.values(), HOPPER, options)
    assert isinstance(caught.value, CodegenUnavailable)
    kept = Path(caught.value.path).read_text()
    assert unit.kernels["k_bad"].text in kept
    assert "# " in kept and "no_such_name" in kept.split("\n# ", 1)[1]
    assert compile_kernels([unit.kernels["k_ppl"]], HOPPER, options)  # the process serves the next


def test_a_refused_kernel_that_the_cache_cannot_keep_gets_a_name_of_its_own(
    options: CodegenOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (options.cache_dir / "refused").parent.mkdir(parents=True, exist_ok=True)
    (options.cache_dir / "refused").write_text("in the way")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    unit = parse_unit(units.unit({"k_bad": units.add_one("k_bad").replace("inside)", "no_such_name)")}, {}))
    paths = []
    for _ in range(2):
        with pytest.raises(KernelRefused) as caught:
            compile_kernels(unit.kernels.values(), HOPPER, options)
        paths.append(Path(caught.value.path))
    assert paths[0] != paths[1] and {path.parent for path in paths} == {tmp_path}
    assert all(path.stat().st_mode & 0o077 == 0 for path in paths)


def test_a_kernel_that_kills_the_compiler_is_named_and_kept(options: CodegenOptions) -> None:
    bad = (
        f"import os\nos.write(2, b'LLVM ERROR: broken')\nos.kill(os.getpid(), {int(signal.SIGSEGV)})\n"
        + units.add_one("k_bad")
    )
    unit = parse_unit(units.unit({"k_bad": bad}, {}))
    with pytest.raises(KernelRefused, match=r"k_bad(.|\n)*status -11\nLLVM ERROR: broken") as caught:
        compile_kernels(unit.kernels.values(), HOPPER, options)
    assert Path(caught.value.path).exists()
    assert compile_kernels(kernels("k_ppl"), HOPPER, options)


def test_a_compiler_without_memory_is_not_the_kernels_fault(options: CodegenOptions) -> None:
    bad = f"import os\nos.kill(os.getpid(), {int(signal.SIGKILL)})\n" + units.add_one("k_bad")
    unit = parse_unit(units.unit({"k_bad": bad}, {}))
    with pytest.raises(CodegenUnavailable, match="killed while it compiled kernel k_bad") as caught:
        compile_kernels(unit.kernels.values(), HOPPER, options)
    assert not isinstance(caught.value, KernelRefused)


def test_what_a_kernel_prints_does_not_get_into_the_answers(options: CodegenOptions) -> None:
    loud = "import os\nprint('a' * 9999)\nos.write(1, b'b' * 9999)\n" + units.add_one()
    unit = parse_unit(units.unit({"k_ppl": loud}, {}))
    assert compile_kernels(unit.kernels.values(), HOPPER, options)["k_ppl"].content


def test_without_triton(monkeypatch: pytest.MonkeyPatch, options: CodegenOptions) -> None:
    installation.triton_identity.cache_clear()
    monkeypatch.setattr(installation.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(CodegenUnavailable, match="pip install treadle-codegen"):
        compile_kernels(kernels("k_ppl"), HOPPER, options)


def test_processes_that_compile_import_no_torch(options: CodegenOptions) -> None:
    text = "import sys\nassert 'torch' not in sys.modules\n" + units.add_one()
    unit = parse_unit(units.unit({"k_ppl": text}, {}))
    assert compile_kernels(unit.kernels.values(), HOPPER, options)
    assert compile_kernels(kernels("k_ppl_b"), HOPPER, options, background=True)
    assert os.getpriority(os.PRIO_PROCESS, workers.BACKGROUND._idle[-1].process.pid) >= 10
