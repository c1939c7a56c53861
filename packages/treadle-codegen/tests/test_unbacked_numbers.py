"""Numbers known only while a graph runs (`item`, the size of `nonzero`): compiled and interpreted against eager."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 (the name everybody knows)
from aten_capture import capture
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from treadle_codegen import CodegenOptions, CompiledGraph, compile_graph
from treadle_codegen.interpret import interpret
from treadle_codegen.ir.loops import Check, Extern, Loop, Program, symbols_of
from treadle_codegen.ir.text import format_program, parse_program
from treadle_codegen.ir.verify import verify
from treadle_codegen.lower import lower_graph
from treadle_shapes import ShapeEnv
from treadle_shapes.torch import fake_mode, fake_shape_env, fake_tensor, sym_int, symbolic_dispatch


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kernels")


def graph_of(fn: Callable[..., Any], *inputs: torch.Tensor) -> torch.fx.GraphModule:
    """The ATen graph of `fn`; the first size of every input is one symbol, run-time numbers are captured."""
    env = ShapeEnv()
    mode = fake_mode(shape_env=fake_shape_env(env, allow_scalar_outputs=True, allow_dynamic_output_shape_ops=True))
    size = env.create_symbol(inputs[0].shape[0], "x.size(0)")
    fakes = [fake_tensor(mode, x, (size, *[None] * (x.dim() - 1))) for x in inputs]
    with symbolic_dispatch():
        return capture(fn, fakes, mode=mode)


def sample(rows: int, mask: list[bool] | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(rows)
    chosen = mask if mask is not None else [k % 3 != 1 for k in range(rows)]
    return torch.randn(rows, 8), torch.tensor(chosen, dtype=torch.bool)


def compiled_of(fn: Callable[..., Any], cache: Path, **options: Any) -> CompiledGraph:
    inputs = sample(5)
    chosen = {"threads": 1, **options}
    return compile_graph(graph_of(fn, *inputs), inputs, options=CodegenOptions(cache_dir=cache, verify=True, **chosen))


def count(m: torch.Tensor) -> Any:
    return m.sum().item()


# name -> function of a (rows, 8) float tensor and a (rows,) mask; each group is compiled as one graph
GROUPS: dict[str, dict[str, Callable[[torch.Tensor, torch.Tensor], Any]]] = {
    "rows": {
        "masked rows": lambda x, m: x[m] * 2,
        "masked mean": lambda x, m: x[m].mean(0),
        "layer norm of masked rows": lambda x, m: F.layer_norm(x[m], (8,)),
        "softmax over rows": lambda x, m: x[m].softmax(0),
        "softmax over an empty dimension": lambda x, m: x[m].t().softmax(-1),
        "product of nothing": lambda x, m: x[m].prod(0),
        "variance of few": lambda x, m: x[m].var(0, correction=0),
        "any of nothing": lambda x, m: (x[m] > 0).any(0),
        "maximum along the other dim": lambda x, m: x[m].max(1),
        "mask of a mask": lambda x, m: x[m][x[m][:, 0] > 0] * 2,
        "concatenation": lambda x, m: torch.cat([x, x[m].exp(), x[~m], torch.ones(count(m), 8)]),
        "two sizes": lambda x, m: x[m].sum(1).unsqueeze(0) - x[~m].sum(1).unsqueeze(1),
        "transposed result": lambda x, m: x[m].t().contiguous().tanh(),
        "reshaped": lambda x, m: x[m].reshape(-1, 2, 4).permute(1, 0, 2).reshape(2, -1) * 2,
        "sorted": lambda x, m: x[m].sort(0).values + 1,
        "reversed": lambda x, m: x[m].flip(0) + 1,
        "matrix product": lambda x, m: (x[m] @ x[~m].t()).relu(),
        "linear": lambda x, m: F.linear(x[m], torch.ones(3, 8), torch.arange(3.0)).relu(),
        "batched product": lambda x, m: torch.bmm(x[m].view(-1, 2, 4), x[m].view(-1, 4, 2)),
        "convolution": lambda x, m: F.conv1d(x.view(-1, 2, 4), torch.ones(3, 2, 2)).relu()[m],
    },
    "positions": {
        "nonzero": lambda x, m: x[:, 0].nonzero().float() * 2,
        "argwhere": lambda x, m: torch.argwhere(x > 0).sum(0),
        "columns of where": lambda x, m: torch.where(x > 0)[1] * 2,
        "gather": lambda x, m: x[m.nonzero().squeeze(1)] + 1,
        "masked_select": lambda x, m: torch.masked_select(x, x > 0.5).exp(),
        "unique": lambda x, m: torch.unique((x * 2).long()).float() / 2,
        "unique with counts": lambda x, m: torch.unique((x * 2).long(), return_inverse=True, return_counts=True),
        "unique rows": lambda x, m: torch.unique(torch.stack([m, ~m], 1).long(), dim=0) + 1,
        "repeat_interleave": lambda x, m: torch.repeat_interleave(x, (x[:, 0].abs() * 3).long(), dim=0).relu(),
        "bincount": lambda x, m: torch.bincount(x[:, 0].abs().long()) * 2,
        "embedding": lambda x, m: F.embedding(m.nonzero().squeeze(1), x).sum(1),
        "scatter": lambda x, m: torch.zeros(x.shape[0]).index_add(0, m.nonzero().squeeze(1), x[m][:, 0]),
        "comparison with positions": lambda x, m: (m.nonzero() == torch.arange(x.shape[0])).float().sum(0),
    },
    "numbers": {
        "float factor": lambda x, m: x * x.sum().item(),
        "integer factor": lambda x, m: x.long() * count(m),
        "arithmetic": lambda x, m: x * (count(m) * 2 + 1) / (x.sum().item() * 0.25 - 100.0),
        "bound": lambda x, m: x.clamp(min=x.mean().item()),
        "threshold": lambda x, m: x[x > x.mean().item()],
        "fill": lambda x, m: torch.full((3,), x.max().item()) + 1,
        "masked fill": lambda x, m: x.masked_fill(m.unsqueeze(1), x.max().item()),
        "scaled addend": lambda x, m: torch.add(x, x, alpha=x.max().item()),
        "integers out": lambda x, m: (count(m) + 1, count(m) // 2, x[m].shape[0], x[m].numel()),
        "floats out": lambda x, m: (x.sum().item() / 3, -x.max().item(), count(m) / 4),
        "bools out": lambda x, m: (m.any().item(), x.sum().item() > 0.5, count(m) == 2),
        "exact conditions": lambda x, m: (x.sum().item() < 0.3, count(m) > 1.5, math.floor(x.sum().item())),
    },
    "sizes": {
        "arange": lambda x, m: torch.arange(count(m)).float() / 2,
        "arange with steps": lambda x, m: torch.arange(1, 1 + 3 * count(m), 3),
        "zeros": lambda x, m: (torch.zeros(count(m), 4) + x[0, :4]).view(-1),
        "eye": lambda x, m: torch.eye(count(m)) * 2,
        "triangle": lambda x, m: torch.ones(count(m), count(m)).tril(),
        "triangle at a distance": lambda x, m: x.triu(count(m) - 1),
        "expand": lambda x, m: x[0].expand(count(m), 8) + 1,
        "expanded result": lambda x, m: x[0].expand(count(m), 8),
        "repeat": lambda x, m: x.repeat(count(m), 1) + 1,
        "padding": lambda x, m: F.pad(x, (0, count(m))),
        "top k": lambda x, m: torch.topk(x.flatten(), count(m)).values + 1,
        "roll": lambda x, m: x.roll(count(m), 0) * 1,
        "head": lambda x, m: x[: count(m)].exp(),
        "tail": lambda x, m: (x * 2)[count(m) :, 1:5].sum(0),
        "from the end": lambda x, m: x[count(m) - 2 :].sum(0),
        "slices of masked rows": lambda x, m: (x[m][1:].sum(1), x[m][:-1].sum(1), x[m][::2].sum(1), x[m][:, 2:6] + 1),
        "ragged split": lambda x, m: [t.sum(0) for t in torch.split(x, [count(m), x.shape[0] - count(m)])],
        "chosen row": lambda x, m: torch.select(x, 0, m.long().argmax().item()) * 2,
        "chosen row from the end": lambda x, m: torch.select(x.relu(), 0, -1 - m.long().argmax().item()) * 2,
        "written row": lambda x, m: torch.select_scatter(torch.zeros_like(x), x[0] * 2, 0, m.long().argmax().item()),
        "written row from the end": lambda x, m: torch.select_scatter(x, x[0].exp(), 0, -1 - m.long().argmax().item()),
        "written twice": lambda x, m: torch.select_scatter(
            torch.select_scatter(x.cumsum(0), x[0], 0, m.long().argmax().item()), x[-1], 0, m.long().argmin().item()
        ),
    },
}  # fmt: skip


def run_group(name: str, x: torch.Tensor, m: torch.Tensor) -> list[Any]:
    results: list[Any] = []
    for fn in GROUPS[name].values():
        value = fn(x, m)
        results += value if isinstance(value, (tuple, list)) else [value]
    return results


_compiled: dict[str, tuple[CompiledGraph, Program]] = {}


def group(name: str, cache: Path) -> tuple[CompiledGraph, Program]:
    """The compiled graph and the program of a group, made once."""
    if name not in _compiled:
        inputs = sample(5)
        gm = graph_of(lambda x, m: run_group(name, x, m), *inputs)
        options = CodegenOptions(cache_dir=cache, verify=True, threads=1)
        _compiled[name] = compile_graph(gm, inputs, options=options), lower_graph(gm)
    return _compiled[name]


def assert_same(mine: Any, wanted: Any, scale: float) -> None:
    if not isinstance(wanted, torch.Tensor):
        assert type(mine) is type(wanted)
        assert mine == pytest.approx(wanted, rel=1e-4, abs=scale * 1e-5)
        return
    assert mine.shape == wanted.shape and mine.dtype == wanted.dtype
    largest = max([1.0, *wanted.double().abs().nan_to_num().flatten().tolist()])
    torch.testing.assert_close(mine, wanted, equal_nan=True, rtol=1e-4, atol=largest * 1e-5, check_stride=False)


@pytest.mark.filterwarnings("ignore:var")
@pytest.mark.parametrize("name", GROUPS)
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(mask=[True])
@example(mask=[False])
@example(mask=[False] * 4)
@example(mask=[True] * 40)
@given(mask=st.lists(st.booleans(), min_size=1, max_size=20))
def test_groups_agree_with_eager(cache: Path, name: str, mask: list[bool]) -> None:
    compiled, program = group(name, cache)
    x, m = sample(len(mask), mask)
    wanted = run_group(name, x, m)
    # a sum of n elements of size 1 is compared on the scale of n
    for mine, eager in zip(compiled(x, m), wanted, strict=True):
        assert_same(mine, eager, 8.0 * len(mask))
    for mine, eager in zip(interpret(program, [x, m]), wanted, strict=True):
        assert_same(mine, eager, 8.0 * len(mask))


@pytest.mark.parametrize("name", GROUPS)
def test_programs_are_well_formed_and_survive_their_text(cache: Path, name: str) -> None:
    _, program = group(name, cache)
    assert verify(program) == []
    text = format_program(program)
    assert format_program(parse_program(text, program.constants)) == text


def test_a_written_row_is_one_loop() -> None:
    def gradient_of_row(x: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
        return torch.select_scatter(torch.zeros_like(x), x[0] * 2, 0, count(m))

    steps = lower_graph(graph_of(gradient_of_row, *sample(5))).steps
    assert len([step for step in steps if isinstance(step, Loop) and len(step.axes) == 2]) == 1


@pytest.mark.parametrize("rows", [1, 2, 9])
def test_results_have_eagers_strides(cache: Path, rows: int) -> None:
    compiled = compiled_of(lambda x, m: (x[m], x[m].t() * 2, torch.zeros(8, count(m)), m.nonzero()), cache)
    for mask in ([True] * rows, [False] * rows):
        x, m = sample(rows, mask)
        wanted = [x[m], x[m].t() * 2, torch.zeros(8, count(m)), m.nonzero()]
        assert [tuple(t.shape) for t in compiled(x, m)] == [tuple(t.shape) for t in wanted]
        if rows > 1:
            assert [t.stride() for t in compiled(x, m)] == [t.stride() for t in wanted]


# -- checks and errors -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fn", "mask", "error"),
    [
        (lambda x, m: x[m].max(), [False, False], RuntimeError),
        (lambda x, m: x[m].max(0), [False, False], IndexError),
        (lambda x, m: x[m].amin(0), [False, False], (IndexError, RuntimeError)),
        (lambda x, m: torch.select(x, 0, m.sum().item()), [True, True], IndexError),
        (lambda x, m: torch.select_scatter(x * 2, x[0], 0, m.sum().item()), [True, True], IndexError),
        (lambda x, m: torch.zeros(m.sum().item() - 2), [True, False], RuntimeError),
        (lambda x, m: x[m] + x[~m], [True, True, True], RuntimeError),
    ],
    ids=["max", "max of a dim", "amin", "select", "select_scatter", "negative size", "unequal sizes"],
)
def test_what_eager_refuses_is_refused(cache: Path, fn: Any, mask: list[bool], error: Any) -> None:
    compiled = compiled_of(fn, cache)
    x, m = sample(len(mask), mask)
    with pytest.raises(error) as failure:
        compiled(x, m)
    assert not any(f"u{k}" in str(failure.value) for k in range(4))  # no internal names
    good_x, good_m = sample(4, [True, False, False, True])
    try:
        wanted = fn(good_x, good_m)
    except RuntimeError:
        return
    assert_same(compiled(good_x, good_m)[0], wanted[0] if isinstance(wanted, tuple) else wanted, 1.0)


def test_a_check_stands_before_what_relies_on_it() -> None:
    def fn(x: torch.Tensor, m: torch.Tensor) -> Any:
        n = m.sum().item()
        torch._check(n <= 3, lambda: "too many rows")
        return torch.zeros(n, 8) + 1

    program = lower_graph(graph_of(fn, *sample(5)))
    kinds = [type(step).__name__ for step in program.steps]
    assert kinds.index("Check") < len(kinds) - 1 and kinds[-1] == "Loop"
    assert any(isinstance(step, Check) and step.message for step in program.steps)


def test_a_failed_check_raises_its_message_and_the_next_call_works(cache: Path) -> None:
    def fn(x: torch.Tensor, m: torch.Tensor) -> Any:
        n = m.sum().item()
        torch._check(n <= 3, lambda: "too many rows")
        return torch.zeros(n, 8) + x.exp().sum(0)

    compiled = compiled_of(fn, cache)
    with pytest.raises(RuntimeError, match="too many rows|<= 3"):
        compiled(*sample(6, [True] * 6))
    assert compiled(*sample(6, [True, True, False, False, False, False]))[0].shape == (2, 8)


def test_numbers_read_from_parameters_are_read_on_every_call(cache: Path) -> None:
    """They are not hoisted out of the graph with what else follows from parameters, nor are the checks on them."""

    def fn(x: torch.Tensor, weight: torch.Tensor, mask: torch.Tensor) -> Any:
        n = mask.sum().item()
        torch._check(n <= 2, lambda: "too many")
        return (weight * 2).exp()[mask.nonzero().squeeze(1)] @ x

    inputs = [torch.ones(3), torch.ones(4, 3), torch.tensor([True, False, True, False])]
    env = ShapeEnv()
    mode = fake_mode(shape_env=fake_shape_env(env, allow_scalar_outputs=True, allow_dynamic_output_shape_ops=True))
    with symbolic_dispatch():
        gm = capture(fn, [fake_tensor(mode, x, (None,) * x.dim()) for x in inputs], static=(1, 2), mode=mode)
    compiled = compile_graph(gm, inputs, options=CodegenOptions(cache_dir=cache, verify=True, threads=1))
    torch.testing.assert_close(compiled(*inputs)[0], fn(*inputs))
    inputs[2].copy_(torch.tensor([False, False, False, True]))
    torch.testing.assert_close(compiled(*inputs)[0], fn(*inputs))
    inputs[2].fill_(True)
    with pytest.raises(RuntimeError, match="too many|<= 2"):
        compiled(*inputs)


# -- what a program is made of -----------------------------------------------------------------------------------------


def test_unused_numbers_cost_nothing() -> None:
    def fn(x: torch.Tensor, m: torch.Tensor) -> Any:
        x.sum().item()
        m.nonzero()
        return x + 1

    program = lower_graph(graph_of(fn, *sample(5)))
    assert not [step for step in program.steps if isinstance(step, Extern) and step.outputs != ("",)]
    assert not program.bound_symbols


def test_a_slice_of_run_time_length_is_a_view() -> None:
    program = lower_graph(graph_of(lambda x, m: x[: count(m)].exp(), *sample(5)))
    assert [str(s.op) for s in program.steps if isinstance(s, Extern)] == ["aten._local_scalar_dense.default"]
    (loop,) = [step for step in program.steps if isinstance(step, Loop) and "exp" in step.name]
    assert symbols_of(loop.axes[0].extent) & set(program.bound_symbols)


def test_kernels_do_not_depend_on_the_numbering_of_symbols(cache: Path) -> None:
    def fn(x: torch.Tensor, m: torch.Tensor) -> Any:
        return [x[x[:, 0] > k].exp() for k in range(3)]

    kernels = [kernel for kernel in compiled_of(fn, cache).kernels if any("exp" in name for name in kernel.buffers)]
    assert len(kernels) == 3 and len({kernel.text for kernel in kernels}) == 1


def test_kernels_are_fused_across_what_does_not_concern_them(cache: Path) -> None:
    compiled = compiled_of(lambda x, m: (x[m] * 2).relu().sum(1), cache)
    assert len(compiled.kernels) == 1


# -- memory ------------------------------------------------------------------------------------------------------------


def test_one_workspace_serves_all_sizes(cache: Path) -> None:
    compiled = compiled_of(lambda x, m: torch.linalg.vector_norm(x @ x.t() @ x, dim=1).cumsum(0) + 1, cache)
    for rows in (3, 17, 5, 64, 3, 17):
        x, m = sample(rows)
        exact = torch.linalg.vector_norm(x.double() @ x.double().t() @ x.double(), dim=1).cumsum(0) + 1
        torch.testing.assert_close(compiled(x, m)[0].double(), exact, rtol=1e-4, atol=1e-4)
    (workspace,) = compiled._host.free
    assert 64 * 64 * 4 <= workspace.arena.numel() < 4 * 64 * 64 * 4


def test_ints_that_are_only_values_do_not_lay_memory_out_anew(cache: Path) -> None:
    env = ShapeEnv()
    mode = fake_mode(shape_env=fake_shape_env(env))
    graph = torch.fx.Graph()
    x, n = graph.placeholder("x"), graph.placeholder("n")
    with mode:
        x.meta["val"] = torch.empty(80, 80)
    n.meta["val"] = sym_int(env, env.create_symbol(7, "n", size=False))
    square = graph.call_function(torch.ops.aten.mm.default, (x, x))
    scaled = graph.call_function(torch.ops.aten.mul.Tensor, (square, n))
    both = graph.call_function(torch.ops.aten.mm.default, (scaled, x))
    square.meta["val"] = scaled.meta["val"] = both.meta["val"] = x.meta["val"]
    graph.output((both, n))
    gm = torch.fx.GraphModule(torch.nn.Module(), graph)
    compiled = compile_graph(
        gm, [torch.ones(80, 80), 7], options=CodegenOptions(cache_dir=cache, verify=True, threads=1)
    )
    for number in range(-20, 20):
        result, same = compiled(torch.eye(80), number)
        assert same == number
        torch.testing.assert_close(result, torch.eye(80) * number)
    (workspace,) = compiled._host.free
    assert list(workspace.known_views) == [()]


def test_temporaries_of_run_time_sizes_are_let_go_after_their_last_use(cache: Path) -> None:
    compiled = compiled_of(lambda x, m: x[m].cumsum(0).sort(0).values.sum(0), cache)
    assert compiled.host_source.count("= None") >= 2
