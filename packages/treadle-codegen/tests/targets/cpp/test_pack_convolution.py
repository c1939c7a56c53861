"""Convolution rewrites against eager: folding, packing, fused neighbours, and parameters that change afterwards."""

from __future__ import annotations

import copy
import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 (the name everybody knows)
from aten_capture import capture
from compiled_modules import compile_module
from torch import nn

from treadle_codegen import CodegenOptions, CompiledGraph, compile_graph
from treadle_codegen.targets.cpp.packs_at_sizes import PacksAtSizes
from treadle_shapes import ShapeEnv
from treadle_shapes.torch import fake_mode, fake_shape_env, fake_tensor, symbolic_dispatch


class _Block(nn.Module):
    """conv-bn-relu-conv-bn plus shortcut, relu: the block of a ResNet."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Conv2d(16, 16, 3, padding=1, bias=False)
        self.norm_one = nn.BatchNorm2d(16)
        self.two = nn.Conv2d(16, 16, 3, padding=1)
        self.norm_two = nn.BatchNorm2d(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.norm_one(self.one(x)))
        return F.relu(self.norm_two(self.two(y)) + x)


def _randomise(module: nn.Module) -> None:
    with torch.no_grad():
        for name, tensor in module.state_dict().items():
            if name.endswith("running_var"):
                tensor.uniform_(0.5, 1.5)
            elif tensor.is_floating_point():
                tensor.normal_()


def _externs(compiled: CompiledGraph) -> str:
    return compiled.ir_text


@pytest.fixture
def block() -> _Block:
    torch.manual_seed(0)
    module = _Block().eval()
    _randomise(module)
    return module


@torch.no_grad()
def test_a_residual_block_becomes_two_packed_convolutions(block: _Block, tmp_path: Path) -> None:
    x = torch.randn(2, 16, 14, 14)
    compiled, state = compile_module(block, x, tmp_path)
    text = _externs(compiled)
    assert text.count("mkldnn._convolution_pointwise") == 2
    assert "batch_norm" not in text
    (y,) = compiled(*state, x)
    want = block(x)
    assert y.stride() == want.stride()
    torch.testing.assert_close(y, want, rtol=1e-4, atol=1e-3)


def _errors(y: torch.Tensor, module: nn.Module, x: torch.Tensor) -> tuple[float, float]:
    """How far a result and eager's are from float64's, in spacings of the largest number."""
    eager, exact = module(x), copy.deepcopy(module).double()(x.double())
    spacing = torch.finfo(x.dtype).eps * exact.abs().max()
    found, eagers = [((z.double() - exact).abs().max() / spacing).item() for z in (y, eager)]
    return found, eagers


@torch.no_grad()
def test_a_residual_block_of_bfloat16(block: _Block, tmp_path: Path) -> None:
    block, x = block.bfloat16(), torch.randn(2, 16, 14, 14).bfloat16()
    compiled, state = compile_module(block, x, tmp_path)
    assert _externs(compiled).count("mkldnn._convolution_pointwise") == 2
    (y,) = compiled(*state, x)
    assert y.dtype == torch.bfloat16 and y.stride() == block(x).stride()
    error, eagers = _errors(y, block, x)
    assert error <= 2 * eagers + 1
    block.two.weight.data.mul_(-1)
    error, eagers = _errors(compiled(*state, x)[0], block, x)
    assert error <= 2 * eagers + 1


@torch.no_grad()
@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.one.weight.mul_(2),
        lambda m: m.norm_two.running_mean.add_(1),
        lambda m: setattr(m.two.weight, "data", torch.randn_like(m.two.weight)),
        lambda m: m.two.weight.data.mul_(-1),
        lambda m: ctypes.memset(m.norm_one.weight.data_ptr(), 0, m.norm_one.weight.nbytes),
    ],
    ids=["in place", "statistics", "data replaced", "through data", "behind PyTorch"],
)
def test_changed_parameters_are_seen(block: _Block, tmp_path: Path, change: Callable[[_Block], object]) -> None:
    x = torch.randn(1, 16, 8, 8)
    compiled, state = compile_module(block, x, tmp_path)
    before = compiled(*state, x)[0]
    change(block)
    want = block(x)
    assert not torch.allclose(before, want, atol=1e-2)
    torch.testing.assert_close(compiled(*state, x)[0], want, rtol=1e-4, atol=1e-3)


_ACTIVATIONS = {
    "relu": F.relu,
    "relu6": F.relu6,
    "hardtanh": lambda x: F.hardtanh(x, -2.0, 3.0),
    "hardswish": F.hardswish,
    "silu": F.silu,
    "sigmoid": torch.sigmoid,
    "gelu": torch.nn.functional.gelu,
    "tanh": torch.tanh,
}


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=lambda t: str(t)[6:])
@pytest.mark.parametrize("name", _ACTIVATIONS)
@pytest.mark.parametrize("geometry", [(1, 1, 1, 1), (3, 1, 2, 1), (3, 1, 1, 16), (3, 2, 1, 4)], ids=str)
def test_activations_behind_convolutions(
    name: str, geometry: tuple[int, int, int, int], dtype: torch.dtype, tmp_path_factory: Any
) -> None:
    kernel, dilation, stride, groups = geometry

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(16, 32, kernel, stride, kernel // 2, dilation, groups)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return _ACTIVATIONS[name](self.conv(x))

    torch.manual_seed(1)
    module, x = Net().eval().to(dtype), torch.randn(2, 16, 13, 9).to(dtype)
    compiled, state = compile_module(module, x, tmp_path_factory.getbasetemp() / "shared-cache")
    assert "mkldnn._convolution_pointwise" in _externs(compiled)
    (y,) = compiled(*state, x)
    assert y.dtype == dtype and y.stride() == module(x).stride()
    error, eagers = _errors(y, module, x)
    assert error <= 2 * eagers + (1 if dtype == torch.bfloat16 else 8)


class _Awkward(nn.Module):
    """A view, a flatten and a channel shuffle behind a convolution: layouts that do not survive channels-last."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(8, 16, 3, padding=1)
        self.head = nn.Linear(16 * 64, 5)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = self.conv(x)
        shuffled = y.view(2, 4, 4, 8, 8).transpose(1, 2).reshape(2, 16, 8, 8)
        return y, shuffled, self.head(y.flatten(1)), y.permute(0, 2, 3, 1), y + y


@torch.no_grad()
def test_views_and_output_strides_survive(tmp_path: Path) -> None:
    torch.manual_seed(2)
    module, x = _Awkward().eval(), torch.randn(2, 8, 8, 8)
    compiled, state = compile_module(module, x, tmp_path)
    for got, want in zip(compiled(*state, x), module(x), strict=True):
        assert got.stride() == want.stride()
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_packing_can_be_switched_off(block: _Block, tmp_path: Path) -> None:
    x = torch.randn(1, 16, 8, 8)
    compiled, state = compile_module(block, x, tmp_path, pack_weights=False)
    assert "mkldnn" not in _externs(compiled)
    torch.testing.assert_close(compiled(*state, x)[0], block(x), rtol=1e-4, atol=1e-3)


_SHAPES: dict[str, tuple[Callable[[], list[nn.Module]], tuple[int, ...]]] = {
    "rows": (
        lambda: [nn.Conv1d(6, 16, 5, 2, 4, 2), nn.BatchNorm1d(16), nn.ReLU(), nn.Conv1d(16, 16, 3, groups=2)],
        (6, 600),
    ),
    "volumes": (
        lambda: [nn.Conv3d(3, 16, 3, (1, 2, 2), 1), nn.BatchNorm3d(16), nn.SiLU(), nn.Conv3d(16, 16, 3, groups=4)],
        (3, 6, 16, 14),
    ),
    "images, padding by name": (
        lambda: [
            nn.Conv2d(6, 16, 3, 2, padding="valid"),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Conv2d(16, 16, 3, padding="same", dilation=2),
        ],
        (6, 30, 25),
    ),
    "volumes, padding by name": (
        lambda: [nn.Conv3d(3, 16, 3, padding="valid"), nn.ReLU(), nn.Conv3d(16, 16, 3, padding="same", groups=4)],
        (3, 8, 16, 14),
    ),
    "transposed": (
        lambda: [nn.ConvTranspose2d(6, 16, 3, 2, 1, 1), nn.BatchNorm2d(16), nn.GELU(), nn.ConvTranspose2d(16, 8, 2, 2)],
        (6, 19, 17),
    ),
    "transposed rows": (
        lambda: [nn.ConvTranspose1d(6, 16, 16, 8, 4), nn.BatchNorm1d(16), nn.ReLU(), nn.ConvTranspose1d(16, 64, 3)],
        (6, 90),
    ),
    "transposed volumes": (
        lambda: [
            nn.ConvTranspose3d(6, 64, 2, 2),
            nn.BatchNorm3d(64),
            nn.ConvTranspose3d(64, 64, 3, groups=2),
            nn.ReLU(),
        ],
        (6, 3, 4, 5),
    ),
}


@torch.no_grad()
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=lambda t: str(t)[6:])
@pytest.mark.parametrize("name", _SHAPES)
def test_rows_volumes_and_transposed_convolutions(name: str, dtype: torch.dtype, batch: int, tmp_path: Path) -> None:
    torch.manual_seed(5)
    layers, shape = _SHAPES[name]
    module, x = nn.Sequential(nn.Tanh(), *layers(), nn.Tanh()).eval(), torch.randn(batch, *shape)
    for norm in (m for m in module if "BatchNorm" in type(m).__name__):
        _randomise(norm)
    module, x = module.to(dtype), x.to(dtype)
    compiled, state = compile_module(module, x, tmp_path)
    text = _externs(compiled)
    assert text.count("mkldnn._convolution") == 2
    assert dtype != torch.float32 or "batch_norm" not in text
    (y,) = compiled(*state, x)
    assert y.dtype == dtype and y.stride() == module(x).stride()
    error, eagers = _errors(y, module, x)
    assert error <= 2 * eagers + (1 if dtype == torch.bfloat16 else 8)


@torch.no_grad()
def test_a_batch_norm_behind_a_transposed_convolution_in_groups(tmp_path: Path) -> None:
    torch.manual_seed(6)
    module = nn.Sequential(nn.ConvTranspose2d(64, 6, 3, 2, groups=2), nn.BatchNorm2d(6)).eval()
    _randomise(module)
    x = torch.randn(2, 64, 8, 8)
    compiled, state = compile_module(module, x, tmp_path)
    torch.testing.assert_close(compiled(*state, x)[0], module(x), rtol=1e-4, atol=1e-3)


@torch.no_grad()
def test_transposed_convolutions_in_groups_of_few_channels_stay(tmp_path: Path) -> None:
    module, x = nn.ConvTranspose2d(64, 64, 4, 2, 1, groups=64).eval(), torch.randn(1, 64, 8, 8)
    compiled, state = compile_module(module, x, tmp_path)
    assert "mkldnn" not in _externs(compiled)
    torch.testing.assert_close(compiled(*state, x)[0], module(x))


class _RowShortcut(nn.Module):
    """A sum and an activation behind a convolution of rows, then a norm over channels: the layout suits both."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(16, 16, 3, padding=1)
        self.norm = nn.LayerNorm(16)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = x.tanh()
        y = F.relu(self.conv(x) + x)
        return y * 2, self.norm(y.transpose(1, 2))


@torch.no_grad()
def test_what_follows_a_convolution_of_rows_joins_it(tmp_path: Path) -> None:
    torch.manual_seed(7)
    module, x = _RowShortcut().eval(), torch.randn(2, 16, 200)
    compiled, state = compile_module(module, x, tmp_path)
    assert "mkldnn._convolution_pointwise.binary" in _externs(compiled)
    for got, want in zip(compiled(*state, x), module(x), strict=True):
        assert got.stride() == want.stride()
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


class _Shared(nn.Module):
    """The convolution's result is used twice, so neither the batch norm nor the addition may disappear into it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(16, 16, 1)
        self.norm = nn.BatchNorm2d(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x)
        return F.relu(self.norm(y)) * y + (y + x)


@torch.no_grad()
def test_results_used_twice_stay(tmp_path: Path) -> None:
    torch.manual_seed(3)
    module, x = _Shared().eval(), torch.randn(2, 16, 6, 6)
    _randomise(module)
    compiled, state = compile_module(module, x, tmp_path)
    torch.testing.assert_close(compiled(*state, x)[0], module(x), rtol=1e-4, atol=1e-3)


def dynamic_graph(
    module: nn.Module, x: torch.Tensor, dims: tuple[int, ...]
) -> tuple[Any, list[torch.Tensor], ShapeEnv]:
    """The module's evaluation graph with its parameters as static inputs and the sizes `dims` of x symbolic."""
    state = [*module.named_parameters(), *module.named_buffers()]
    names = [name for name, _ in state]
    env = ShapeEnv()
    mode = fake_mode(shape_env=fake_shape_env(env))
    sizes = [env.create_symbol(n, f"size {d}", "dynamic") if d in dims else None for d, n in enumerate(x.shape)]
    fakes = [fake_tensor(mode, t, [None] * t.dim(), source=name) for name, t in state]
    fakes.append(fake_tensor(mode, x, sizes, source="x"))

    def run(*args: torch.Tensor) -> Any:
        return torch.func.functional_call(module, dict(zip(names, args, strict=False)), (args[-1],))

    with torch.no_grad(), symbolic_dispatch():
        gm = capture(run, fakes, mode=mode)
    for node in list(gm.graph.nodes)[: len(names)]:
        node.meta["static_input"] = True
    return gm, [t for _, t in state], env


@torch.no_grad()
@pytest.mark.parametrize("dims", [(0,), (2, 3), (0, 2, 3)])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_symbolic_sizes_are_packed_too(
    dims: tuple[int, ...], layout: torch.memory_format, block: _Block, tmp_path: Path
) -> None:
    """One compile for many batches and image sizes, channels-last inside, eager's strides outside, no decision taken."""
    x = torch.randn(3, 16, 14, 12).to(memory_format=layout)
    gm, state, env = dynamic_graph(block, x, dims)
    guards = len(env.guards)
    compiled = compile_graph(gm, [*state, x], options=CodegenOptions(cache_dir=tmp_path, threads=1, verify=True))
    assert compiled.ir_text.count("mkldnn._convolution_pointwise") == 2
    assert len(env.guards) == guards
    for batch, height, width in ((3, 14, 12), (1, 14, 12), (2, 9, 1), (5, 31, 17)):
        sizes = [n if d in dims else x.shape[d] for d, n in ((0, batch), (1, 16), (2, height), (3, width))]
        y = torch.randn(sizes).to(memory_format=layout)
        expected, (actual,) = block(y), compiled(*state, y)
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4 * expected.abs().max().item())
        if 1 not in sizes:
            assert actual.stride() == expected.stride()


@torch.no_grad()
@pytest.mark.parametrize(
    ("shape", "dims", "packed"),
    [
        ((1, 16, 14, 12), (2, 3), 0),  # PyTorch multiplies matrices
        ((1, 16, 14, 12), (), 2),  # one primitive serves all calls
        ((2, 16, 14, 12), (2, 3), 2),  # from here on, PyTorch makes a primitive for every new size as well
        ((1, 16, 40, 36), (2, 3), 2),
    ],
)
def test_small_images_of_changing_sizes_are_left_to_pytorch(
    shape: tuple[int, ...], dims: tuple[int, ...], packed: int, block: _Block, tmp_path: Path
) -> None:
    x = torch.randn(shape)
    gm, state, _ = dynamic_graph(block, x, dims)
    compiled = compile_graph(gm, [*state, x], options=CodegenOptions(cache_dir=tmp_path, threads=1, verify=True))
    assert compiled.ir_text.count("mkldnn._convolution_pointwise") == packed
    for height, width in ((14, 12), (9, 17), (50, 60)) if dims else (shape[2:],):
        y = torch.randn(*shape[:2], height, width)
        torch.testing.assert_close(compiled(*state, y)[0], block(y), rtol=1e-4, atol=1e-3)


@torch.no_grad()
@pytest.mark.parametrize("name", _SHAPES)
def test_symbolic_rows_volumes_and_transposed_convolutions(name: str, tmp_path: Path) -> None:
    torch.manual_seed(8)
    layers, shape = _SHAPES[name]
    module, x = nn.Sequential(nn.Tanh(), *layers(), nn.Tanh()).eval(), torch.randn(3, *shape)
    gm, state, env = dynamic_graph(module, x, (0, x.dim() - 1))
    guards = len(env.guards)
    compiled = compile_graph(gm, [*state, x], options=CodegenOptions(cache_dir=tmp_path, threads=1, verify=True))
    assert compiled.ir_text.count("mkldnn._convolution") == 2
    assert len(env.guards) == guards
    for batch, width in ((3, shape[-1]), (1, shape[-1]), (2, shape[-1] + 4), (1, 32)):
        y = torch.randn(batch, *shape[:-1], width)
        expected, (actual,) = module(y), compiled(*state, y)
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4 * expected.abs().max().item())
        assert batch == 1 or actual.stride() == expected.stride()


@torch.no_grad()
@pytest.mark.parametrize(
    ("layer", "shape", "dim"),
    [
        (lambda: nn.Conv1d(512, 512, 4, stride=2), (1, 512, 12), 2),
        (lambda: nn.Conv2d(128, 128, 7, padding=3), (2, 128, 7, 7), 3),
        (lambda: nn.ConvTranspose1d(128, 64, 8, stride=4), (1, 128, 12), 2),
    ],
    ids=["row", "image", "transposed"],
)
def test_each_size_gets_the_layout_that_onednn_wants(
    layer: Callable[[], nn.Module], shape: tuple[int, ...], dim: int, tmp_path: Path
) -> None:
    """With the layout for another size, oneDNN may compute without vectors: what it takes for a size must be what it would choose."""
    torch.manual_seed(3)
    module, x = nn.Sequential(nn.Tanh(), layer(), nn.Tanh()).eval(), torch.randn(shape)
    gm, state, _ = dynamic_graph(module, x, (dim,))
    compiled = compile_graph(gm, [*state, x], options=CodegenOptions(cache_dir=tmp_path, threads=1, verify=True))
    used: list[tuple[torch.Tensor, torch.Tensor]] = []
    at = PacksAtSizes.at

    def recorded(packs: PacksAtSizes, size: tuple[int, ...]) -> torch.Tensor:
        found = at(packs, size)
        used.append((found, packs._pack(packs._weight, *packs._geometry, list(size))))
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PacksAtSizes, "at", recorded)
        for size in (shape[dim], 28, 60, 200, 28):
            y = torch.randn([size if d == dim else n for d, n in enumerate(shape)])
            expected, (actual,) = module(y), compiled(*state, y)
            torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
    assert len(used) == 6  # the first one before the calls
    layout_of = torch.ops.mkldnn._get_mkldnn_serialized_md
    assert all(torch.equal(layout_of(found), layout_of(wanted)) for found, wanted in used)
    assert used[2][0] is used[5][0]


@torch.no_grad()
def test_packs_for_other_sizes_follow_changed_parameters(tmp_path: Path) -> None:
    module, x = nn.Sequential(nn.Conv1d(64, 64, 4, stride=2), nn.Tanh()).eval(), torch.randn(1, 64, 40)
    gm, state, _ = dynamic_graph(module, x, (2,))
    compiled = compile_graph(gm, [*state, x], options=CodegenOptions(cache_dir=tmp_path, threads=1, verify=True))
    for _ in range(3):
        for size in (40, 200, 1000):
            y = torch.randn(1, 64, size)
            torch.testing.assert_close(compiled(*state, y)[0], module(y), rtol=1e-4, atol=1e-4)
        module[0].weight.data.mul_(-0.5)
