"""Linear layers with weights packed for oneDNN, against eager and float64."""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 (the name everybody knows)
from aten_capture import capture
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from treadle_codegen import CodegenOptions, CompiledGraph, compile_graph
from treadle_codegen.pipeline import rewrites_for
from treadle_codegen.rewrite.static import static_nodes
from treadle_codegen.targets.cpp import pack_linear, weight_layout
from treadle_codegen.targets.cpp.pack_linear import pack_linears, why_not_gain, why_not_pack_linear
from treadle_codegen.targets.cpp.target import CPP
from treadle_codegen.targets.cpp.written_pages import is_available
from treadle_shapes import ShapeEnv
from treadle_shapes.torch import fake_mode, fake_shape_env, fake_tensor, symbolic_dispatch

aten = torch.ops.aten
LINEAR = "mkldnn._linear_pointwise"
needs_bfloat16 = pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="the processor multiplies no bfloat16"
)


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kernels")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of any size are packed."""
    monkeypatch.setattr(pack_linear, "why_not_gain", lambda *_: None)


def compiled_of(fn: Any, inputs: Sequence[torch.Tensor], static: Sequence[int], cache: Path, **options: Any) -> Any:
    settings = {"frozen_weights": True, "cache_dir": cache, "threads": 1, "verify": True, **options}
    return compile_graph(capture(fn, inputs, static), inputs, options=CodegenOptions(**settings))


def assert_as_exact_as_eager(actual: torch.Tensor, fn: Any, inputs: Sequence[torch.Tensor]) -> None:
    """The error against float64 is at most ten times eager's."""
    eager, exact = fn(*inputs), fn(*[x.double() for x in inputs])
    assert actual.shape == eager.shape and actual.dtype == eager.dtype and actual.stride() == eager.stride()
    if actual.numel():
        error, allowed = (actual - exact).abs().max(), (eager - exact).abs().max()
        assert error <= 10 * allowed + 1e-6 * exact.abs().max()


def linear(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.linear(x, w, b)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("rows", [0, 1, 2, 4, 7, 8, 33, 128])
@pytest.mark.parametrize(("terms", "columns"), [(16, 32), (17, 31), (129, 1), (1, 5)])
def test_values_at_any_size(rows: int, terms: int, columns: int, cache: Path) -> None:
    inputs = [torch.randn(rows, terms), torch.randn(columns, terms), torch.randn(columns)]
    compiled = compiled_of(linear, inputs, (1, 2), cache)
    assert compiled.ir_text.count(LINEAR) == 1
    for _ in range(2):
        assert_as_exact_as_eager(compiled(*inputs)[0], linear, inputs)


def test_a_bias_goes_with_its_product_or_where_a_kernel_of_ours_reads_it(cache: Path) -> None:
    def mlp(x: torch.Tensor, w1: torch.Tensor, b1: torch.Tensor, w2: torch.Tensor, b2: torch.Tensor) -> torch.Tensor:
        return F.linear(F.gelu(F.linear(x, w1, b1)), w2, b2)

    shapes = [(2, 16, 512), (1024, 512), (1024,), (512, 1024), (512,)]
    inputs = [torch.randn(shape) for shape in shapes]
    compiled = compiled_of(mlp, inputs, (1, 2, 3, 4), cache)
    calls = [line for line in compiled.ir_text.splitlines() if LINEAR in line]
    assert len(calls) == 2 and "None" in calls[0] and "None" not in calls[1]
    assert "aten.mm" not in compiled.ir_text and "aten.addmm" not in compiled.ir_text
    assert_as_exact_as_eager(compiled(*inputs)[0], mlp, inputs)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    "left",
    [
        lambda: torch.randn(17, 8).t(),
        lambda: torch.randn(8, 40)[:, 3:20],
        lambda: torch.randn(9, 17)[1:],
        lambda: torch.randn(1, 17).expand(8, 17),
        lambda: torch.randn(2, 17, 4).transpose(1, 2),
    ],
    ids=["transposed", "columns", "offset", "expanded", "three dimensions"],
)
@pytest.mark.parametrize("computed", [False, True])
def test_left_operands_of_any_strides(left: Callable[[], torch.Tensor], computed: bool, cache: Path) -> None:
    def fn(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return F.linear(x * 2 if computed else x, w, b)

    inputs = [left(), torch.randn(24, 17), torch.randn(24)]
    compiled = compiled_of(fn, inputs, (1, 2), cache)
    assert compiled.ir_text.count(LINEAR) == 1
    assert_as_exact_as_eager(compiled(*inputs)[0], fn, inputs)


@pytest.mark.usefixtures("small")
def test_a_batch_multiplied_by_different_matrices_stays(cache: Path) -> None:
    inputs = [torch.randn(3, 5, 17), torch.randn(3, 17, 24)]
    compiled = compiled_of(torch.bmm, inputs, (1,), cache)
    assert LINEAR not in compiled.ir_text
    assert_as_exact_as_eager(compiled(*inputs)[0], torch.bmm, inputs)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    "weight",
    [lambda: torch.randn(17, 24), lambda: torch.randn(24, 17).t(), lambda: torch.randn(17, 60)[:, 5:29]],
    ids=["as GPT-2 has it", "transposed", "columns"],
)
def test_weights_of_any_strides(weight: Callable[[], torch.Tensor], cache: Path) -> None:
    def fn(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.addmm(b, x, w)

    inputs = [torch.randn(9, 17), weight(), torch.randn(24)]
    compiled = compiled_of(fn, inputs, (1, 2), cache)
    assert compiled.ir_text.count(LINEAR) == 1
    assert_as_exact_as_eager(compiled(*inputs)[0], fn, inputs)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    "bias",
    [
        lambda: torch.randn(48)[::2],
        lambda: torch.randn(1).expand(24),
        lambda: torch.randn(9, 24),
        lambda: torch.randn(()),
    ],
    ids=["every other", "expanded", "matrix", "number"],
)
def test_biases_that_onednn_would_misread_stay(bias: Callable[[], torch.Tensor], cache: Path) -> None:
    def fn(b: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.addmm(b, x, w.t())

    inputs = [bias(), torch.randn(9, 17), torch.randn(24, 17)]
    compiled = compiled_of(fn, inputs, (0, 2), cache)
    assert LINEAR not in compiled.ir_text
    assert_as_exact_as_eager(compiled(*inputs)[0], fn, inputs)


@pytest.mark.usefixtures("small")
def test_a_scaled_product_stays(cache: Path) -> None:
    def fn(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.addmm(b, x, w.t(), beta=2.0, alpha=0.5)

    inputs = [torch.randn(9, 17), torch.randn(24, 17), torch.randn(24)]
    compiled = compiled_of(fn, inputs, (1, 2), cache)
    assert LINEAR not in compiled.ir_text
    assert_as_exact_as_eager(compiled(*inputs)[0], fn, inputs)


@pytest.mark.usefixtures("small")
def test_one_packed_copy_serves_all_users_of_a_weight(cache: Path) -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.linear(F.linear(x, w).relu(), w).relu() + x @ w.t()

    inputs = [torch.randn(9, 16), torch.randn(16, 16)]
    compiled = compiled_of(fn, inputs, (1,), cache)
    assert compiled.ir_text.count(LINEAR) == 3 and compiled.ir_text.count("static derived") == 1
    assert_as_exact_as_eager(compiled(*inputs)[0], fn, inputs)


@pytest.mark.usefixtures("small")
def test_both_orientations_of_a_square_weight_are_packed(cache: Path) -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x @ w).relu() @ w.t()

    inputs = [torch.randn(9, 16), torch.randn(16, 16)]
    compiled = compiled_of(fn, inputs, (1,), cache)
    assert compiled.ir_text.count("static derived") == 2
    assert_as_exact_as_eager(compiled(*inputs)[0], fn, inputs)


@pytest.mark.usefixtures("small")
def test_a_tied_embedding_keeps_its_plain_form(cache: Path) -> None:
    def fn(tokens: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.linear(F.embedding(tokens.long(), w).tanh(), w)

    inputs = [torch.tensor([[3.0, 0, 7, 7]]), torch.randn(20, 16)]
    compiled = compiled_of(fn, inputs, (1,), cache)
    assert compiled.ir_text.count(LINEAR) == 1
    assert_as_exact_as_eager(compiled(*inputs)[0], fn, inputs)
    inputs[1].mul_(-2)
    assert_as_exact_as_eager(compiled(*inputs)[0], fn, inputs)


def _behind_pytorch(w: torch.Tensor) -> None:
    ctypes.memset(w.data_ptr(), 0, w.nbytes)


# each change, and whether it is seen under the promise that nobody writes behind version counters
_CHANGES: dict[str, tuple[Callable[[Any], object], bool]] = {
    "in place": (lambda m: m.weight.mul_(2), True),
    "detached": (lambda m: m.weight.detach().add_(1), True),
    "state dict": (lambda m: m.load_state_dict({"weight": torch.ones(24, 17), "bias": torch.zeros(24)}), True),
    "data replaced": (lambda m: setattr(m.weight, "data", torch.randn(24, 17)), True),
    "through data": (lambda m: m.weight.data.mul_(-1), False),
    "NumPy": (lambda m: m.weight.data.numpy().fill(3), False),
    "behind PyTorch": (lambda m: _behind_pytorch(m.weight), False),
}
_SEEN = [(name, frozen) for name, (_, always) in _CHANGES.items() for frozen in (False, True) if always or not frozen]


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(("change", "frozen"), _SEEN)
@torch.no_grad()
def test_a_changed_weight_is_packed_again(change: str, frozen: bool, cache: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("treadle_codegen.pipeline.rewrites_for", lambda target, options: target.rewrites().static)
    module, x = torch.nn.Linear(17, 24), torch.randn(9, 17)
    inputs = [x, module.weight, module.bias]
    compiled = compiled_of(linear, inputs, (1, 2), cache, frozen_weights=frozen)
    assert compiled.ir_text.count(LINEAR) == 1
    before = compiled(*inputs)[0]
    _CHANGES[change][0](module)
    assert not torch.allclose(before, module(x), atol=1e-2)
    assert_as_exact_as_eager(compiled(*inputs)[0], linear, inputs)


def test_parameters_under_enabled_gradients(cache: Path) -> None:
    module, x = torch.nn.Linear(512, 512), torch.randn(16, 512)
    inputs = [x, module.weight, module.bias]
    compiled = compiled_of(linear, inputs, (1, 2), cache)
    assert LINEAR in compiled.ir_text
    with torch.no_grad():
        want = module(x)
    for context in (torch.no_grad(), torch.inference_mode(), torch.enable_grad()):
        with context:
            torch.testing.assert_close(compiled(*inputs)[0].detach(), want, rtol=1e-4, atol=1e-5)


def dynamic_linear(first: int, terms: int, columns: int, act: Any) -> tuple[Any, ShapeEnv]:
    """act(linear(x, w, b)) with a symbolic number of rows, whose first value is `first`."""
    env = ShapeEnv()
    mode = fake_mode(shape_env=fake_shape_env(env))
    rows = env.create_symbol(first, "rows", "dynamic")
    shapes = [(first, terms), (columns, terms), (columns,)]
    fakes = [
        fake_tensor(mode, torch.empty(shape), [None] * len(shape), source=f"x{k}") for k, shape in enumerate(shapes)
    ]
    fakes[0] = fake_tensor(mode, torch.empty(shapes[0]), [rows, None], source="x0")
    with symbolic_dispatch():
        return capture(lambda x, w, b: act(F.linear(x, w, b)), fakes, (1, 2), mode=mode), env


@pytest.mark.parametrize("act", [lambda y: y, torch.relu], ids=["linear", "relu"])
def test_a_symbolic_number_of_rows(act: Any, cache: Path) -> None:
    gm, env = dynamic_linear(16, 512, 520, act)
    guards = len(env.guards)
    state = [torch.randn(520, 512), torch.randn(520)]
    options = CodegenOptions(frozen_weights=True, cache_dir=cache, threads=1)
    compiled = compile_graph(gm, [torch.empty(16, 512), *state], options=options)
    assert compiled.ir_text.count(LINEAR) == 1 and len(env.guards) == guards
    for rows in (16, 0, 1, 2, 7, 128):
        inputs = [torch.randn(rows, 512), *state]
        assert_as_exact_as_eager(compiled(*inputs)[0], lambda x, w, b: act(F.linear(x, w, b)), inputs)


def test_the_first_number_of_rows_decides(cache: Path) -> None:
    gm, env = dynamic_linear(2, 512, 520, torch.relu)
    guards = len(env.guards)
    inputs = [torch.randn(2, 512), torch.randn(520, 512), torch.randn(520)]
    compiled = compile_graph(gm, inputs, options=CodegenOptions(frozen_weights=True, cache_dir=cache, threads=1))
    assert LINEAR not in compiled.ir_text
    assert len(env.guards) == guards  # nor does a row-major weight, and neither asks whether there is one row


@pytest.mark.usefixtures("small")
def test_a_symbolic_batch_of_transposed_matrices(cache: Path) -> None:
    """`matmul` expands the weight over a batch that nobody knows."""
    env = ShapeEnv()
    mode = fake_mode(shape_env=fake_shape_env(env))
    batch = env.create_symbol(3, "batch", "dynamic")
    fakes = [
        fake_tensor(mode, torch.empty(3, 17, 4), [batch, None, None], source="x"),
        fake_tensor(mode, torch.empty(24, 17), [None, None], source="w"),
    ]

    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.linear(x.transpose(1, 2), w).relu()

    with symbolic_dispatch():
        gm = capture(fn, fakes, (1,), mode=mode)
    inputs = [torch.randn(3, 17, 4), torch.randn(24, 17)]
    compiled = compile_graph(gm, inputs, options=CodegenOptions(frozen_weights=True, cache_dir=cache, threads=1))
    assert compiled.ir_text.count(LINEAR) == 1
    for size in (3, 1, 7, 0):
        inputs[0] = torch.randn(size, 17, 4)
        assert_as_exact_as_eager(compiled(*inputs)[0], fn, inputs)


@needs_bfloat16
@pytest.mark.parametrize("rows", [2, 33, 128])
def test_bfloat16_is_bit_by_bit_what_eager_computes(rows: int, cache: Path) -> None:
    inputs = [t.bfloat16() for t in (torch.randn(rows, 515), torch.randn(517, 515), torch.randn(517))]
    compiled = compiled_of(linear, inputs, (1, 2), cache)
    assert compiled.ir_text.count(LINEAR) == 1
    assert torch.equal(compiled(*inputs)[0], linear(*inputs))


def test_the_options_decide(cache: Path) -> None:
    inputs = [torch.randn(16, 512), torch.randn(512, 512), torch.randn(512)]
    wanted = {"pack_weights": False, "frozen_weights": is_available()}  # not frozen: where the kernel tells of writes
    for option, is_packed in wanted.items():
        compiled = compiled_of(linear, inputs, (1, 2), cache, **{option: False})
        assert (LINEAR in compiled.ir_text) == is_packed
        assert_as_exact_as_eager(compiled(*inputs)[0], linear, inputs)


@pytest.mark.parametrize("cheap_probe", [None, lambda: False, lambda: True], ids=["none", "dear", "cheap"])
@pytest.mark.parametrize("frozen", [False, True])
def test_weights_are_packed_where_checking_them_is_cheap(cheap_probe: Any, frozen: bool) -> None:
    target = dataclasses.replace(CPP, cheap_probe=cheap_probe)
    rewrites = rewrites_for(target, CodegenOptions(frozen_weights=frozen))
    assert (pack_linears in rewrites) == (frozen or (cheap_probe is not None and cheap_probe()))


def test_weights_beyond_the_memory_bound_stay(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (pack_linear, weight_layout):
        monkeypatch.setattr(module, "MAX_BYTES", 5 << 18)  # one weight of 1 MiB, not two

    def fn(x: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor) -> torch.Tensor:
        return F.linear(F.linear(F.linear(x, w1), w2), w1)

    inputs = [torch.randn(16, 512), torch.randn(512, 512), torch.randn(512, 512)]
    compiled = compiled_of(fn, inputs, (1, 2), cache)
    assert compiled.ir_text.count(LINEAR) == 2 and compiled.ir_text.count("static derived") == 1
    assert_as_exact_as_eager(compiled(*inputs)[0], fn, inputs)


@pytest.mark.parametrize("switch", ["is_available", "enabled"])
def test_without_onednn_nothing_is_packed(switch: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = [torch.randn(16, 512), torch.randn(512, 512), torch.randn(512)]
    if switch == "enabled":
        with torch.backends.mkldnn.flags(enabled=False):
            compiled = compiled_of(linear, inputs, (1, 2), cache)
    else:
        monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
        compiled = compiled_of(linear, inputs, (1, 2), cache)
    assert LINEAR not in compiled.ir_text


def _reason(fn: Any, inputs: Sequence[torch.Tensor], static: Sequence[int]) -> str | None:
    graph = capture(fn, inputs, static).graph
    (node,) = [n for n in graph.nodes if n.target in (aten.mm.default, aten.addmm.default)]
    return why_not_pack_linear(node, static_nodes(graph))


def test_reasons() -> None:
    x, w, b = torch.randn(16, 512), torch.randn(512, 512), torch.randn(512)
    assert _reason(linear, [x, w, b], (1, 2)) is None
    assert _reason(linear, [x, w, b], (1,)) is None  # the bias may come from inputs
    assert _reason(linear, [x, w, b], (2,)) == "its weight is computed from inputs"
    assert _reason(linear, [x, w, b], (0, 1, 2)) == "it is computed once"
    assert _reason(linear, [t.double() for t in (x, w, b)], (1, 2)) == "not float32 or bfloat16 on the CPU"
    assert (
        _reason(linear, [x, torch.randn(0, 512), torch.randn(0)], (1, 2))
        == "its weight has symbolic sizes, or is empty"
    )


@pytest.mark.parametrize(
    ("rows", "terms", "columns", "dtype", "gains"),
    [
        (2, 768, 3072, torch.float32, False),
        (4, 768, 3072, torch.float32, True),
        (8, 768, 768, torch.float32, True),
        (128, 768, 768, torch.float32, True),
        (8, 256, 256, torch.float32, False),
        (197, 256, 256, torch.float32, False),
        (3136, 256, 256, torch.float32, True),
        (784, 128, 128, torch.float32, False),
        (3136, 64, 64, torch.float32, False),
        (100000, 768, 1, torch.float32, False),
        (1, 768, 768, torch.bfloat16, False),
        (2, 768, 768, torch.bfloat16, True),
        (784, 128, 512, torch.bfloat16, False),
    ],
)
def test_what_gains(rows: int, terms: int, columns: int, dtype: torch.dtype, gains: bool) -> None:
    assert (why_not_gain(rows, terms, columns, dtype) is None) == gains


_STEPS: dict[str, Any] = {
    "none": lambda y: y,
    "relu": torch.relu,
    "tanh": torch.tanh,
    "transposed": lambda y: y.t().contiguous().t(),
    "halves": lambda y: torch.cat([y[:, y.shape[1] // 2 :], y[:, : y.shape[1] // 2]], 1),
    "residual": lambda y: y + y.mean(-1, keepdim=True),
}
_LAYERS = st.lists(
    st.tuples(st.integers(1, 40), st.booleans(), st.booleans(), st.sampled_from(sorted(_STEPS))), min_size=1, max_size=4
)


@pytest.mark.usefixtures("small")
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.integers(1, 20), first=st.integers(1, 40), layers=_LAYERS)
def test_chains_of_linear_layers(rows: int, first: int, layers: list[Any], cache: Path) -> None:
    """Each layer: its columns, whether its weight lies transposed, whether it has a bias, and what follows."""
    inputs, terms = [torch.randn(rows, first)], first
    for columns, transposed, biased, _ in layers:
        inputs.append(torch.randn(terms, columns) if transposed else torch.randn(columns, terms))
        inputs += [torch.randn(columns)] * biased
        terms = columns

    def fn(x: torch.Tensor, *state: torch.Tensor) -> torch.Tensor:
        given = iter(state)
        for _, transposed, biased, step in layers:
            w = next(given)
            x = _STEPS[step](F.linear(x, w.t() if transposed else w, next(given) if biased else None))
        return x

    compiled: CompiledGraph = compiled_of(fn, inputs, range(1, len(inputs)), cache)
    assert compiled.ir_text.count(LINEAR) == len(layers)
    assert_as_exact_as_eager(compiled(*inputs)[0], fn, inputs)
