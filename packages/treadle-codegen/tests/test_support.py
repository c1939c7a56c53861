"""Graphs with tensors that no target can address are refused before a kernel sees a pointer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from aten_capture import capture
from torch._subclasses.fake_tensor import FakeTensorMode

from treadle_codegen import CodegenUnavailable, UnsupportedDevice, UnsupportedTensor, compile_graph
from treadle_codegen.ir.loops import Loop
from treadle_codegen.lower.program import lower_graph
from treadle_codegen.schedule.access import step_reads, step_writes
from treadle_codegen.support import main_device, tensors_of, why_not_memory


def fake(device: str, *shape: int, mode: FakeTensorMode) -> torch.Tensor:
    with mode:
        return torch.empty(shape, device=device)


def refused(function: Any, inputs: list[Any], mode: FakeTensorMode | None = None, **captured: Any) -> UnsupportedDevice:
    with pytest.raises(UnsupportedDevice) as caught:
        compile_graph(capture(function, inputs, mode=mode, **captured), inputs)
    assert isinstance(caught.value, CodegenUnavailable)
    return caught.value


def test_a_meta_tensor_is_refused_with_device_and_remedy() -> None:
    error = refused(lambda x: x + 1, [torch.empty(4, device="meta")])
    assert error.device == "meta"
    assert "'meta'" in str(error) and ".to('cpu')" in str(error) and 'backend="eager"' in str(error)


def test_the_message_does_not_depend_on_the_graph() -> None:
    first, second = refused(lambda x: x + 1, [torch.empty(4, device="meta")]), None
    second = refused(lambda x: x.sin().sum(), [torch.empty(9, 2, device="meta")])
    assert str(first) == str(second)


def test_a_device_without_a_target_is_refused() -> None:
    mode = FakeTensorMode()
    error = refused(lambda x: x.relu() * 2, [fake("xpu", 4, 3, mode=mode)], mode)
    assert error.device == "xpu"


@pytest.mark.parametrize("order", [("cpu", "xpu"), ("xpu", "cpu")])
def test_a_device_without_a_target_is_refused_beside_others(order: tuple[str, str]) -> None:
    mode = FakeTensorMode()
    inputs = [fake(device, 4, mode=mode) for device in order]
    assert refused(lambda x, y: (x + 1, y * 2), inputs, mode).device == "xpu"


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about machines without a GPU")
def test_without_a_gpu_a_graph_on_one_is_refused() -> None:
    mode = FakeTensorMode()
    inputs = [fake("cuda", 4, mode=mode)]
    with pytest.raises(CodegenUnavailable, match=r"CUDA|Triton"):
        compile_graph(capture(torch.relu, inputs, mode=mode), inputs)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: (x + 1) * y.sum(),
        lambda x, y: (x * 2, y * 2, y + 1),
        lambda x, y: (y, y.t(), y[1:], y.clone()),
        lambda x, y: x * y[0, 0],
        lambda x, y: (torch.cat([y, y]).sum(0), x.sum(0)),
    ],
)
def test_what_lies_elsewhere_is_left_to_operators(function: Any) -> None:
    mode = FakeTensorMode()
    inputs = [fake("cuda", 4, 3, mode=mode), fake("cpu", 4, 3, mode=mode)]
    gm = capture(function, inputs, mode=mode)
    assert main_device(tensors_of(gm, inputs)) == inputs[0].device
    program = lower_graph(gm, inputs, device=inputs[0].device)
    tensors = [n for n in gm.graph.nodes if n.op != "output" and n.name in program.buffers]
    elsewhere = {n.name for n in tensors if n.meta["val"].device.type == "cpu"}
    loops = [step for step in program.steps if isinstance(step, Loop)]
    assert elsewhere and not any(elsewhere & (step_reads(loop) | step_writes(loop)) for loop in loops)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.to("meta"),
        lambda x: (x + 1, x.to("meta") + 1)[0],
        lambda x: x + torch.zeros(4, device="meta").to("cpu"),
        lambda x: torch.empty_like(x, device="meta"),
    ],
)
def test_a_graph_that_visits_another_device_is_refused(function: Any) -> None:
    assert refused(function, [torch.ones(4)]).device == "meta"


def test_the_result_of_an_operator_without_lowering_is_refused() -> None:
    mode = FakeTensorMode()
    assert refused(lambda x: torch.linalg.qr(x), [fake("xpu", 4, 4, mode=mode)], mode).device == "xpu"


def test_one_of_several_results_counts() -> None:
    mode = FakeTensorMode()
    assert refused(lambda x: x.sort()[1].to("cpu"), [fake("xpu", 4, mode=mode)], mode).device == "xpu"


def test_a_parameter_and_a_constant_count() -> None:
    assert refused(lambda w: w * 2, [torch.empty(3, device="meta")], static=(0,)).device == "meta"
    gm = capture(lambda x: x + 1, [torch.ones(3)])
    gm.register_buffer("table", torch.empty(3, device="meta"))
    with gm.graph.inserting_before(next(iter(gm.graph.nodes))):
        gm.graph.get_attr("table")
    with pytest.raises(UnsupportedDevice):
        compile_graph(gm, [torch.ones(3)])


# -- tensors on a device that is taken, but without memory of their own


def test_example_inputs_without_memory_are_refused() -> None:
    for value in (torch._efficientzerotensor((4,)), torch._to_functional_tensor(torch.ones(4))):
        gm = capture(lambda x: x + 1, [torch.ones(4)])  # the fake tensor is an ordinary one
        with pytest.raises(UnsupportedTensor, match="cannot address"):
            compile_graph(gm, [value])


def test_a_graph_that_makes_a_tensor_without_memory_is_refused() -> None:
    gm = capture(lambda x: x + torch._efficientzerotensor((4,)), [torch.ones(4)])
    with pytest.raises(UnsupportedTensor, match="_efficientzerotensor"):
        compile_graph(gm, [torch.ones(4)])


def test_a_wrapper_of_torch_func_is_refused() -> None:
    seen: list[str | None] = []

    def look(x: torch.Tensor) -> torch.Tensor:
        seen.append(why_not_memory(x))
        return x

    torch.vmap(look)(torch.ones(2, 3))
    assert seen[0] is not None and "torch.func" in seen[0]


def test_ordinary_and_sparse_tensors_have_memory() -> None:
    for value in (torch.ones(3), torch.ones(3, 3).t(), torch.ones(2, 2).to_sparse(), torch.empty(0)):
        assert why_not_memory(value) is None
