"""Calls that are recorded and replayed: which are, where inputs and results lie, and what stays intact."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from aten_capture import capture
from dynamic_cases import compile_dynamic
from host.fake_recorder import FakeRecorder

from treadle_codegen import CodegenOptions, CompiledGraph, compile_graph
from treadle_codegen.host import replay as replay_module
from treadle_codegen.host.recording import storage_elements
from treadle_codegen.targets.cpp.target import CPP
from treadle_codegen.targets.table import TARGETS


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> FakeRecorder:
    made = FakeRecorder()
    monkeypatch.setitem(TARGETS, "cpp", replace(CPP, recorder=lambda device: made))
    return made


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kernels")


def compiled(fn: Callable[..., Any], *inputs: torch.Tensor, cache: Path, static: tuple[int, ...] = ()) -> CompiledGraph:
    options = CodegenOptions(cache_dir=cache, threads=1, pack_weights=False, cuda_graphs=True)
    return compile_graph(capture(fn, inputs, static), list(inputs), options=options)


def mixed(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return ((x.sin() @ w).cos() @ w).sigmoid() + x


def moving(shape: tuple[int, ...]) -> Callable[[], torch.Tensor]:
    """Makes tensors that are all at different addresses."""
    kept: list[torch.Tensor] = []

    def make() -> torch.Tensor:
        kept.append(torch.randn(shape))
        return kept[-1]

    return make


def test_the_third_call_is_replayed(recorder: FakeRecorder, cache: Path) -> None:
    w, make = torch.randn(8, 8), moving((8, 8))
    graph = compiled(mixed, make(), w, cache=cache, static=(1,))
    for _ in range(6):
        x = make()
        torch.testing.assert_close(graph(x, w)[0], mixed(x, w))
    assert graph.replayed is not None and graph.replayed.why_not is None
    assert recorder.events == ["record", *["begin", "replay", "end"] * 4]
    assert (graph.replayed.recorded, graph.replayed.replays) == (1, 4)


def test_results_that_are_alive_stay_intact(recorder: FakeRecorder, cache: Path) -> None:
    w, make = torch.randn(8, 8), moving((8, 8))
    graph = compiled(mixed, make(), w, cache=cache, static=(1,))
    inputs = [make() for _ in range(8)]
    results = [graph(x, w)[0] for x in inputs]
    for x, result in zip(inputs, results, strict=True):
        torch.testing.assert_close(result, mixed(x, w))
    results[-1].fill_(7)
    results[-2].resize_(0)
    torch.testing.assert_close(graph(inputs[0], w)[0], mixed(inputs[0], w))


def test_parameters_are_read_where_they_lie(recorder: FakeRecorder, cache: Path) -> None:
    w, make = torch.randn(8, 8), moving((8, 8))
    graph = compiled(mixed, make(), w, cache=cache, static=(1,))
    for _ in range(4):
        x = make()
        torch.testing.assert_close(graph(x, w)[0], mixed(x, w))
        w.add_(0.5)
    assert recorder.events.count("record") == 1
    (shape,) = graph.replayed._shapes.values()  # type: ignore[union-attr]
    assert shape.recordings[0].direct == ((1, w.data_ptr()),)


def test_a_parameter_that_moves_is_recorded_again(recorder: FakeRecorder, cache: Path) -> None:
    w, make = torch.randn(8, 8), moving((8, 8))
    graph = compiled(mixed, make(), w, cache=cache, static=(1,))
    weights = [torch.randn(8, 8) for _ in range(30)]
    for other in (w, w, w, *weights):
        x = make()
        torch.testing.assert_close(graph(x, other)[0], mixed(x, other))
    assert recorder.events.count("record") == replay_module._MOST_MADE
    (shape,) = graph.replayed._shapes.values()  # type: ignore[union-attr]
    assert len(shape.recordings) == replay_module._MOST_ALIVE


def test_inputs_that_stay_where_they_are_are_not_copied(recorder: FakeRecorder, cache: Path) -> None:
    x, w = torch.randn(8, 8), torch.randn(8, 8)
    graph = compiled(mixed, x, w, cache=cache)
    for _ in range(4):
        x.add_(1)
        torch.testing.assert_close(graph(x, w)[0], mixed(x, w))
    (shape,) = graph.replayed._shapes.values()  # type: ignore[union-attr]
    assert [position for position, _ in shape.recordings[0].direct] == [0, 1]
    make = moving((8, 8))
    for _ in range(10):
        y = make()
        torch.testing.assert_close(graph(y, w)[0], mixed(y, w))
    assert [position for position, _ in shape.recordings[-1].direct] == [1]
    assert recorder.events.count("record") == 2


def test_inputs_that_come_to_rest_are_no_longer_copied(recorder: FakeRecorder, cache: Path) -> None:
    w, make = torch.randn(8, 8), moving((8, 8))
    graph = compiled(mixed, make(), w, cache=cache, static=(1,))
    for _ in range(3):
        graph(make(), w)
    x = make()
    for k in range(12):
        x.fill_(k / 10)
        torch.testing.assert_close(graph(x, w)[0], mixed(x, w))
    (shape,) = graph.replayed._shapes.values()  # type: ignore[union-attr]
    assert len(shape.recordings) == 1
    assert recorder.events.count("record") == 1  # its first replay was for another tensor
    graph = compiled(mixed, make(), w, cache=cache, static=(1,))
    graph(make(), w)
    graph(make(), w)
    for k in range(12):
        x.fill_(k / 10)
        torch.testing.assert_close(graph(x, w)[0], mixed(x, w))
    (shape,) = graph.replayed._shapes.values()  # type: ignore[union-attr]
    assert [position for position, _ in shape.recordings[-1].direct] == [0, 1]


def test_random_operators_advance_as_without_recording(recorder: FakeRecorder, cache: Path) -> None:
    def noisy(x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand_like(x).sin()

    make = moving((16,))
    graph = compiled(noisy, make(), cache=cache)
    plain = compile_graph(capture(noisy, [make()]), [make()], options=CodegenOptions(cache_dir=cache, threads=1))
    inputs = [make() for _ in range(6)]
    torch.manual_seed(3)
    expected = [plain(x)[0] for x in inputs]
    torch.manual_seed(3)
    for x, wanted in zip(inputs, expected, strict=True):
        torch.testing.assert_close(graph(x)[0], wanted)


def test_several_shapes_are_recorded_up_to_a_bound(
    recorder: FakeRecorder, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay_module, "_MOST_SHAPES", 3)

    def fn(x: torch.Tensor) -> torch.Tensor:
        return (x.sin() @ x.t()).cos() @ x.exp()

    graph = compile_dynamic(fn, lambda n, c: [(n, c)], (6, 37), cache, cuda_graphs=True)
    makers = [moving(shape) for shape in ((6, 37), (5, 11), (2, 3), (9, 9))]
    for _ in range(4):
        for make in makers:
            x = make()
            torch.testing.assert_close(graph(x)[0], fn(x), rtol=1e-4, atol=1e-4)
    assert recorder.events.count("replay") == 3 * 2
    assert graph.replayed is not None and len(graph.replayed._shapes) == 3


@pytest.mark.parametrize("layout", ["expanded", "transposed", "sliced", "empty", "scalar"])
def test_inputs_of_any_layout_are_copied(recorder: FakeRecorder, cache: Path, layout: str) -> None:
    def make() -> torch.Tensor:
        kept.append(torch.randn(6, 8))
        return {
            "expanded": lambda x: x[:1].expand(6, 8),
            "transposed": torch.t,
            "sliced": lambda x: x[1::2, 1::3],
            "empty": lambda x: x[:0],
            "scalar": lambda x: x[0, 0],
        }[layout](kept[-1])

    kept: list[torch.Tensor] = []
    graph = compiled(lambda x: (x.sin() * 2, x + 1), make(), cache=cache)
    for _ in range(4):
        x = make()
        for result, wanted in zip(graph(x), (x.sin() * 2, x + 1), strict=True):
            torch.testing.assert_close(result, wanted)
            assert result.stride() == wanted.stride() or wanted.numel() == 0
    assert recorder.events.count("replay") == 2


def test_results_whose_elements_share_memory(recorder: FakeRecorder, cache: Path) -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.sum(0).expand(5, 8), x.sin()

    make = moving((6, 8))
    gm = capture(fn, [make()])
    gm.graph.output_node().meta["saved_results"] = range(2)
    options = CodegenOptions(cache_dir=cache, threads=1, cuda_graphs=True)
    graph = compile_graph(gm, [make()], options=options)
    inputs = [make() for _ in range(6)]
    kept = [graph(x) for x in inputs]
    for x, results in zip(inputs, kept, strict=True):
        for result, wanted in zip(results, fn(x), strict=True):
            torch.testing.assert_close(result, wanted)
            assert result.stride() == wanted.stride()
    assert "replay" in recorder.events


def test_an_input_that_is_updated_in_place(recorder: FakeRecorder, cache: Path) -> None:
    state, make = torch.zeros(64), moving((64,))
    gm = capture(lambda s, x: s + x.sin(), [state, make()])
    (result,) = gm.graph.output_node().all_input_nodes
    result.meta["mutates"] = 0
    options = CodegenOptions(cache_dir=cache, threads=1, cuda_graphs=True)
    graph = compile_graph(gm, [state, make()], options=options)
    assert graph.lowered().program.in_place
    recorder.protected = [state]
    expected = torch.zeros(64)
    for _ in range(5):
        x = make()
        expected += x.sin()
        (updated,) = graph(state, x)
        assert updated is state
        torch.testing.assert_close(state, expected)
    recorder.protected = []
    for _ in range(4):  # and at other addresses, where it is the copy that is updated
        other, x = make(), make()
        wanted = other + x.sin()
        torch.testing.assert_close(graph(other, x)[0], wanted)


def test_calls_inside_a_recording_run_as_always(recorder: FakeRecorder, cache: Path) -> None:
    x = torch.randn(4)
    graph = compiled(torch.sin, x, cache=cache)
    recorder.recording = True
    for _ in range(4):
        torch.testing.assert_close(graph(x)[0], x.sin())
    assert recorder.events == []


def test_what_cannot_be_recorded_says_why(recorder: FakeRecorder, cache: Path) -> None:
    x = torch.eye(4) + 1
    graph = compiled(lambda x: torch.linalg.inv(x).sin(), x, cache=cache)
    assert graph.replayed is not None and "linalg" in str(graph.replayed.why_not)
    for _ in range(4):
        graph(x)
    assert recorder.events == []


def test_a_recording_that_fails_is_the_last_one(recorder: FakeRecorder, cache: Path) -> None:
    x = torch.randn(4)
    graph = compiled(torch.sin, x, cache=cache)
    assert graph.replayed is not None
    told: list[str] = []
    graph.replayed.on_refusal = told.append
    recorder.fails = torch.AcceleratorError("operation not permitted when stream is capturing")
    for _ in range(4):
        torch.testing.assert_close(graph(x)[0], x.sin())
    assert recorder.events == ["record"]
    assert told == [graph.replayed.why_not]
    assert "not permitted" in told[0]


def test_a_bug_while_recording_is_raised(recorder: FakeRecorder, cache: Path) -> None:
    x = torch.randn(4)
    graph = compiled(torch.sin, x, cache=cache)
    graph(x)
    recorder.fails = KeyError("a bug")
    with pytest.raises(KeyError):
        graph(x)


def test_without_the_option_nothing_is_recorded(recorder: FakeRecorder, cache: Path) -> None:
    x = torch.randn(4)
    graph = compile_graph(capture(torch.sin, [x]), [x], options=CodegenOptions(cache_dir=cache, threads=1))
    assert graph.replayed is None


def test_inference_tensors_and_grad_modes(recorder: FakeRecorder, cache: Path) -> None:
    w, make = torch.randn(8, 8), moving((8, 8))
    graph = compiled(mixed, make(), w, cache=cache, static=(1,))
    with torch.inference_mode():
        for _ in range(3):
            graph(make(), w)
    for _ in range(2):
        x = make()
        torch.testing.assert_close(graph(x, w)[0], mixed(x, w))
    with torch.inference_mode():
        assert graph(make(), w)[0].is_inference()


def saving(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x.sin() + 1, x.cos() * 2


@pytest.fixture
def forward(cache: Path, recorder: FakeRecorder) -> CompiledGraph:
    x = torch.randn(16)
    gm = capture(saving, [x])
    gm.graph.output_node().meta["saved_results"] = range(1, 2)
    return compile_graph(gm, [x], options=CodegenOptions(cache_dir=cache, threads=1, cuda_graphs=True))


def test_results_for_backward_are_lent_and_intact_while_alive(forward: CompiledGraph, recorder: FakeRecorder) -> None:
    make = moving((16,))
    held: list[tuple[torch.Tensor, list[torch.Tensor]]] = []
    for _ in range(12):
        x = make()
        held.append((x, forward(x)))
        for given, results in held:
            for result, wanted in zip(results, saving(given), strict=True):
                torch.testing.assert_close(result, wanted)
    assert recorder.events.count("record") > 1


def test_memory_that_was_lent_is_used_again_once_it_is_let_go(forward: CompiledGraph, recorder: FakeRecorder) -> None:
    make = moving((16,))
    places = set()
    for _ in range(8):
        _, saved = forward(make())
        places.add(saved[3:].data_ptr())
        view = saved[3:]
        del saved
    # Two calls as always, a replay, one as always, because a view of the replay's memory was alive, and its recording.
    assert len(places) == 5
    assert view.shape == (13,) and recorder.events.count("record") == 2


def test_the_recorder_hears_of_memory_that_is_given_up(forward: CompiledGraph, recorder: FakeRecorder) -> None:
    make = moving((16,))
    for _ in range(4):
        forward(make())
    assert recorder.released == []
    assert forward.replayed is not None
    forward.replayed._shapes.clear()
    gc.collect()
    assert len(recorder.released) == 2  # the place of the input, and what was lent


def test_nothing_is_lent_to_hooks(forward: CompiledGraph, recorder: FakeRecorder) -> None:
    make = moving((16,))
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        results = [forward(make())[1].data_ptr() for _ in range(3)]
        kept = [forward(make()) for _ in range(4)]
    assert len({result[1].data_ptr() for result in kept}) == 4
    assert recorder.events.count("record") == 1
    assert results


def test_elements_of_strided_memory() -> None:
    assert storage_elements((2, 3), (3, 1)) == 6
    assert storage_elements((2, 3), (10, 2)) == 15
    assert storage_elements((0, 3), (3, 1)) == 0
    assert storage_elements((), ()) == 1
