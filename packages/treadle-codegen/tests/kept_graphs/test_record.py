"""Records of host programs: a graph restored from one is the graph that was compiled, to the bit."""

from __future__ import annotations

import marshal
import warnings
from pathlib import Path
from typing import Any

import operator_samples
import pytest
import torch
from aten_capture import capture
from dynamic_cases import capture_dynamic
from golden_graphs import GRAPHS
from torch import fx
from torch.utils._pytree import tree_leaves

from treadle_codegen import CodegenOptions, CompiledGraph, compile_graph, pipeline
from treadle_codegen.kept_graphs.record import Built, from_bytes, to_bytes

aten = torch.ops.aten


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kernels")


def compiled(gm: fx.GraphModule, inputs: list[Any], cache: Path) -> CompiledGraph:
    options = CodegenOptions(cache_dir=cache, pack_weights=False, verify=False, threads=1)
    return compile_graph(gm, inputs, options=options)


def is_restored(graph: CompiledGraph) -> bool:
    return "look up" in graph.seconds and "lower" not in graph.seconds


def random_like(tensors: list[Any]) -> list[Any]:
    torch.manual_seed(0)
    return [torch.randn_like(t) if t.is_floating_point() else t for t in tensors]


def assert_same(fresh: CompiledGraph, restored: CompiledGraph, inputs: list[Any]) -> None:
    assert fresh.source == restored.source and fresh.host_source == restored.host_source
    assert fresh.kernel_source == restored.kernel_source
    one, other = fresh.host_program, restored.host_program
    # A constant may be NaN.
    assert list(map(repr, one.constants)) == list(map(repr, other.constants)) and one.callees == other.callees
    assert all(a is b for a, b in zip(one.constants, other.constants, strict=True) if callable(a))
    assert (one.inputs, one.slots, one.spans, one.views) == (other.inputs, other.slots, other.spans, other.views)
    assert one.statics == other.statics and dict(one.buffers) == dict(other.buffers)
    for want, got in zip(fresh(*inputs), restored(*inputs), strict=True):
        if isinstance(want, torch.Tensor):
            assert want.dtype is got.dtype and want.shape == got.shape and want.stride() == got.stride()
            torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
        else:
            assert want == got


@pytest.mark.parametrize("name", GRAPHS)
def test_graphs_of_the_golden_files(name: str, cache: Path) -> None:
    gm, inputs = GRAPHS[name]()
    fresh = compiled(gm, inputs, cache)
    restored = compiled(GRAPHS[name]()[0], inputs, cache)
    is_static = not name.startswith(("dynamic", "unbacked"))
    assert not is_restored(fresh) and is_restored(restored) == is_static
    if is_static:
        assert_same(fresh, restored, random_like(inputs))


SAMPLES = """
add addmm amax arange argmax as_strided baddbmm bmm cat clamp constant_pad_nd cumsum div expand fft.fft full gather
index_put index_select linalg.vector_norm lerp logsumexp masked_fill matmul nn.functional.avg_pool2d
nn.functional.batch_norm nn.functional.conv2d nn.functional.embedding nn.functional.gelu nn.functional.group_norm
nn.functional.interpolate nn.functional.layer_norm nn.functional.nll_loss nn.functional.pad
nn.functional.scaled_dot_product_attention pow scatter scatter_add softmax sort std topk tril unfold var_mean where zeros
""".split()


@pytest.mark.parametrize("name", SAMPLES)
def test_samples_of_operators(name: str, cache: Path) -> None:
    compared = 0
    for function, tensors in operator_samples.samples(name, torch.float32, 6):
        gm = capture(function, tensors)
        if any(isinstance(n.target, torch._ops.OpOverload) and n.target._schema.is_mutable for n in gm.graph.nodes):
            continue
        if any(torch.Tag.nondeterministic_seeded in getattr(n.target, "tags", ()) for n in gm.graph.nodes):
            continue
        fresh = compiled(gm, tensors, cache)
        restored = compiled(capture(function, tensors), tensors, cache)
        if is_restored(restored):
            compared += 1
            if not is_restored(fresh):
                assert_same(fresh, restored, tensors)
        for got, want in zip(restored(*tensors), tree_leaves(function(*tensors)), strict=True):
            torch.testing.assert_close(got, want, rtol=2e-4, atol=2e-4, equal_nan=True)
    assert compared, "no sample was kept"


def attention_step(q: torch.Tensor, k: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    scores = aten.mm(q, k.t()).softmax(-1)
    mixed = aten.mm(scores, k)
    return mixed, aten.native_layer_norm(mixed + q, [80], w, None, 1e-5)[0], scores.sum()


def attention_graph() -> tuple[fx.GraphModule, list[torch.Tensor]]:
    inputs = [torch.randn(8, 80), torch.randn(8, 80), torch.randn(80)]
    return capture(attention_step, inputs, (2,)), inputs


def test_a_restored_graph_is_not_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gm, inputs = attention_graph()
    fresh = compiled(gm, inputs, tmp_path)
    assert (fresh.cache_hits, fresh.cache_misses) == (0, 1)
    compile_anew = pipeline.compile_anew
    monkeypatch.setattr(pipeline, "compile_anew", lambda *args: pytest.fail("the graph was lowered"))
    restored = compiled(attention_graph()[0], inputs, tmp_path)
    assert (restored.cache_hits, restored.cache_misses) == (1, 0)
    assert_same(fresh, restored, inputs)
    monkeypatch.setattr(pipeline, "compile_anew", compile_anew)
    assert restored.ir_text == fresh.ir_text
    assert [kernel.text for kernel in restored.kernels] == [kernel.text for kernel in fresh.kernels]


def test_static_inputs_may_move(tmp_path: Path) -> None:
    inputs = [torch.randn(8, 80), torch.randn(80, 80), torch.randn(80, 80)]

    def gm() -> fx.GraphModule:
        return capture(lambda x, w, v: aten.mm(aten.mm(x, w[:, 1:73]), v[1:73]), inputs, (1, 2))

    compiled(gm(), inputs, tmp_path)
    restored = compiled(gm(), inputs, tmp_path)
    assert is_restored(restored) and restored.host_program.statics
    for w in (inputs[1], inputs[1].clone(), inputs[1] * 2):
        (got,) = restored(inputs[0], w, inputs[2])
        torch.testing.assert_close(got, inputs[0] @ w[:, 1:73] @ inputs[2][1:73])


def test_a_kept_graph_without_its_library_is_built_again(tmp_path: Path) -> None:
    gm, inputs = attention_graph()
    fresh = compiled(gm, inputs, tmp_path)
    for library in (tmp_path / "cpp").iterdir():
        library.unlink()
    restored = compiled(attention_graph()[0], inputs, tmp_path)
    assert is_restored(restored) and restored.cache_misses == 1
    assert_same(fresh, restored, inputs)


@pytest.mark.parametrize("damage", ["truncated", "flipped", "renamed", "writable", "foreign"])
def test_files_that_are_not_ours_are_not_used(damage: str, tmp_path: Path) -> None:
    gm, inputs = attention_graph()
    fresh = compiled(gm, inputs, tmp_path)
    (file,) = (tmp_path / "graphs").iterdir()
    data = file.read_bytes()
    if damage == "truncated":
        file.write_bytes(data[:-100])
    elif damage == "flipped":
        file.write_bytes(data[:200] + bytes([data[200] ^ 1]) + data[201:])
    elif damage == "renamed":  # another graph's record
        other = compiled(capture(lambda x: x + 1, [torch.ones(3)]), [torch.ones(3)], tmp_path)
        assert not is_restored(other)
        (theirs,) = [found for found in (tmp_path / "graphs").iterdir() if found != file]
        file.write_bytes(theirs.read_bytes())
    elif damage == "writable":
        file.chmod(0o666)
    else:
        file.write_bytes(marshal.dumps(("anything",)))
    with warnings.catch_warnings(action="ignore"):  # one warning per directory
        again = compiled(attention_graph()[0], inputs, tmp_path)
    assert not is_restored(again)
    assert_same(fresh, again, inputs)
    assert is_restored(compiled(attention_graph()[0], inputs, tmp_path)), "the record was written anew"


def test_other_bytes_are_no_record() -> None:
    assert from_bytes(b"", {}) is None and from_bytes(b"junk", {}) is None
    assert from_bytes(marshal.dumps(("treadle host program 0", (), ())), {}) is None
    assert from_bytes(marshal.dumps(["a", "b", "c"]), {}) is None


def test_what_is_not_plain_has_no_record(tmp_path: Path) -> None:
    gm, inputs = capture_dynamic(lambda x: x + 1, lambda n: [(n, 4)], (5,))
    dynamic = compiled(gm, inputs, tmp_path)
    assert to_bytes(Built(dynamic.source, dynamic.entries, dynamic.host_program)) is None
    static = compiled(*attention_graph(), tmp_path)
    program = static.host_program
    assert to_bytes(Built(static.source, static.entries, program)) is not None
    program.constants.append(object())
    assert to_bytes(Built(static.source, static.entries, program)) is None
    program.constants.pop()
    program.tensors["c"] = torch.ones(2)
    assert to_bytes(Built(static.source, static.entries, program)) is None


def test_replacements_of_a_target_are_found_again(tmp_path: Path) -> None:
    static = compiled(*attention_graph(), tmp_path)
    data = to_bytes(Built(static.source, static.entries, static.host_program))
    assert data is not None

    def better(*args: Any, **kwargs: Any) -> None:
        pass

    restored = from_bytes(data, {"aten.mm.out": better})
    assert restored is not None
    callees = {str(op): restored.program.constants[k] for k, op in restored.program.callees.items()}
    assert callees["aten.mm.out"] is better
