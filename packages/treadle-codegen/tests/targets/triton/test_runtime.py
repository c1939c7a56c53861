"""The runtime of this machine around a `torch.cuda` and a driver of these tests."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from targets.triton.driver import Driver

from treadle_codegen.errors import CodegenUnavailable
from treadle_codegen.options import CodegenOptions
from treadle_codegen.targets.triton import runtime as module
from treadle_codegen.targets.triton.launcher import Launcher
from treadle_codegen.targets.triton.offline import Binary
from treadle_codegen.targets.triton.runtime import CudaRuntime, runtime

FACTS = {"name": "k_p", "shared": 0, "num_warps": 4, "warp_size": 32, "hidden_parameters": []}


@pytest.fixture
def cuda(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> CudaRuntime:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, device))
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 5 + device, raising=False)
    monkeypatch.setattr(module, "Launcher", lambda options: driver.launcher)
    return CudaRuntime(CodegenOptions())


def test_devices_and_streams_are_pytorchs(cuda: CudaRuntime) -> None:
    assert [cuda.capability(device) for device in (0, 1)] == [90, 91]
    assert cuda.stream(1) == 6


def test_a_kernel_is_loaded_once_per_device(cuda: CudaRuntime, driver: Driver) -> None:
    binary = Binary("key", b"", FACTS, cached=True)
    kernels = [cuda.load(device, binary, 1) for device in (0, 1, 0, 1)]
    assert kernels[0] is kernels[2] and kernels[1] is kernels[3]
    assert driver.calls().count("cuModuleLoadData") == 2


def test_preparing_builds_the_launcher_in_another_thread(cuda: CudaRuntime, driver: Driver) -> None:
    cuda.prepare()
    assert cuda.most_arguments == driver.launcher.most_arguments
    cuda.prepare()


def test_an_error_while_preparing_is_met_again_where_it_matters(
    cuda: CudaRuntime, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(module, "Launcher", lambda options: Launcher(options, str(tmp_path / "nowhere.so")))
    cuda.prepare()
    with pytest.raises(CodegenUnavailable, match="nowhere"):
        _ = cuda.launch


def test_there_is_one_runtime(cuda: CudaRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_runtimes", [])
    assert runtime(CodegenOptions()) is runtime(CodegenOptions(verify=False))


def test_pytorch_for_another_vendors_devices(cuda: CudaRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(CodegenUnavailable, match="no CUDA device"):
        CudaRuntime(CodegenOptions())
