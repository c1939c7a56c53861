"""The key of a graph: the same for the same graph in any process, another one for whatever code generation reads."""

from __future__ import annotations

import dataclasses
import operator
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from aten_capture import capture
from dynamic_cases import capture_dynamic
from torch import fx

import treadle_codegen
from treadle_codegen import CodegenOptions
from treadle_codegen.kept_graphs import key as keys
from treadle_codegen.kept_graphs.key import META, NOT_IN_KEY_META, graph_key, why_not_kept
from treadle_codegen.targets.cpp.target import CPP

aten = torch.ops.aten
OPTIONS = CodegenOptions(pack_weights=False, verify=False, threads=1)
SOURCES = Path(treadle_codegen.__file__).parent


def graph() -> fx.GraphModule:
    return capture(lambda x, y: (x * 2.0 + y).softmax(-1), [torch.ones(4, 6), torch.ones(6)])


def key_of(gm: fx.GraphModule, target: Any = CPP, options: CodegenOptions = OPTIONS) -> str | None:
    return graph_key(gm, target, options, torch.device("cpu"))


def test_equal_graphs_have_one_key() -> None:
    assert key_of(graph()) == key_of(graph()) is not None


def test_processes_agree_on_keys() -> None:
    program = "import test_key, torch; torch.set_num_threads(1); print(test_key.key_of(test_key.graph()))"
    here = Path(__file__).parent
    found = set()
    for seed in ("1", "2"):
        path = os.pathsep.join([str(here), str(here.parent), *sys.path])
        env = {**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": seed}
        found.add(
            subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True).stdout
        )
    assert len(found) == 1


def with_argument(value: Any) -> Callable[[fx.GraphModule], None]:
    def change(gm: fx.GraphModule) -> None:
        (node,) = gm.graph.find_nodes(op="call_function", target=aten.mul.Tensor)
        node.args = (node.args[0], value)

    return change


def with_value(make: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[fx.GraphModule], None]:
    def change(gm: fx.GraphModule) -> None:
        node = gm.graph.find_nodes(op="placeholder")[0]
        with node.meta["val"].fake_mode:
            node.meta["val"] = make(node.meta["val"])

    return change


def with_meta(name: str, value: Any) -> Callable[[fx.GraphModule], None]:
    return lambda gm: gm.graph.find_nodes(op="placeholder")[1].meta.update({name: value})


def another_operator(gm: fx.GraphModule) -> None:
    gm.graph.find_nodes(op="call_function", target=aten.mul.Tensor)[0].target = aten.div.Tensor


def another_name(gm: fx.GraphModule) -> None:
    gm.graph.find_nodes(op="call_function", target=aten.mul.Tensor)[0]._rename("product")


def other_inputs(gm: fx.GraphModule) -> None:
    (node,) = gm.graph.find_nodes(op="call_function", target=aten.add.Tensor)
    node.args = node.args[::-1]


def a_named_argument(gm: fx.GraphModule) -> None:
    (node,) = gm.graph.find_nodes(op="call_function", target=aten.add.Tensor)
    node.kwargs = {"alpha": 1}


def fewer_results(gm: fx.GraphModule) -> None:
    gm.graph.output_node().args = ((),)


CHANGES: dict[str, Callable[[fx.GraphModule], None]] = {
    "operator": another_operator,
    "name": another_name,
    "inputs": other_inputs,
    "kwargs": a_named_argument,
    "results": fewer_results,
    **{
        f"number {value!r}": with_argument(value)
        for value in (2, True, 1, 1.0, 0.0, -0.0, 3.0, float("nan"), "2.0", 2j)
    },
    "shape": with_value(lambda x: x.new_empty(5, 6)),
    "strides": with_value(lambda x: x.new_empty(6, 4).t()),
    "offset": with_value(lambda x: torch.empty(25)[1:].view(4, 6)),
    "memory": with_value(lambda x: torch.empty(25)[:24].view(4, 6)),
    "dtype": with_value(lambda x: x.double()),
    "conjugated": with_value(lambda x: x.to(torch.complex64).conj()),
    "complex": with_value(lambda x: x.to(torch.complex64)),
    "requires_grad": with_value(lambda x: x.clone().requires_grad_()),
    **{f"meta {name}": with_meta(name, True) for name in META},
    "updated input": with_meta("mutates", 0),
}


def test_every_part_of_a_graph_is_in_the_key() -> None:
    found = {"nothing": key_of(graph())}
    for name, change in CHANGES.items():
        gm = graph()
        change(gm)
        found[name] = key_of(gm)
        assert found[name] is not None, name
    assert len(set(found.values())) == len(found), found


OTHERS: dict[type, Any] = {bool: lambda v: not v, int: lambda v: v + 1}


@pytest.mark.parametrize("field", [f.name for f in dataclasses.fields(CodegenOptions)])
def test_every_option_is_in_the_key_or_has_no_effect_on_the_program(field: str, tmp_path: Path) -> None:
    before = getattr(OPTIONS, field)
    other = OTHERS[type(before)](before) if type(before) in OTHERS else tmp_path
    options = dataclasses.replace(OPTIONS, **{field: other})
    if field in ("cache_dir", "cache_bytes"):
        assert key_of(graph(), options=options) == key_of(graph())
    else:
        assert key_of(graph(), options=options) != key_of(graph())


@pytest.mark.parametrize("field", [f.name for f in dataclasses.fields(type(CPP.costs))])
def test_every_cost_is_in_the_key(field: str) -> None:
    before = getattr(CPP.costs, field)
    other = (
        frozenset((torch.half,))
        if isinstance(before, frozenset)
        else not before
        if type(before) is bool
        else before + 1
    )
    target = dataclasses.replace(CPP, costs=dataclasses.replace(CPP.costs, **{field: other}))
    assert key_of(graph(), target) != key_of(graph())


def test_the_machine_and_the_target_are_in_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [key_of(graph()), key_of(graph(), dataclasses.replace(CPP, identity=lambda: "another processor"))]
    found.append(key_of(graph(), dataclasses.replace(CPP, name="another target")))
    for name in ("_sources", "fake_call_environment"):
        with monkeypatch.context() as patch:
            patch.setattr(keys, name, lambda: "changed files")
            found.append(key_of(graph()))
            patch.setattr(keys, name, lambda: None)  # files that cannot be looked at
            assert key_of(graph()) is None
    assert len(set(found)) == len(found)


def test_files_of_the_package_and_its_prelude_are_looked_at() -> None:
    text = keys._sources()
    assert text is not None
    for path in SOURCES.rglob("*"):
        if path.suffix != ".pyc" and path.is_file() and path.name != "py.typed":
            # Of the Triton target, whose graphs are not kept, only Python files are.
            assert str(path) in text or path.parent.name == "triton", path


def test_settings_of_the_process_are_in_the_key() -> None:
    found = [key_of(graph())]
    with torch.set_grad_enabled(not torch.is_grad_enabled()):
        found.append(key_of(graph()))
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(threads + 1)
        found.append(key_of(graph()))
    finally:
        torch.set_num_threads(threads)
    gm = graph()
    try:
        torch.set_default_dtype(torch.float64)
        found.append(key_of(gm))
    finally:
        torch.set_default_dtype(torch.float32)
    try:
        torch.use_deterministic_algorithms(True)
        found.append(key_of(gm))
    finally:
        torch.use_deterministic_algorithms(False)
    with torch.backends.mkldnn.flags(enabled=not torch.backends.mkldnn.enabled):
        found.append(key_of(gm))
    assert len(set(found)) == len(found)


def test_what_is_not_described_has_no_key() -> None:
    assert key_of(capture_dynamic(lambda x: x + 1, lambda n: [(n, 4)], (5,))[0]) is None
    constant = graph()
    constant.register_buffer("c", torch.ones(3))
    with constant.graph.inserting_before():
        constant.graph.get_attr("c")
    assert key_of(constant) is None
    for target in (torch.add, operator.add, torch.ops.higher_order.cond):
        other = graph()
        other.graph.find_nodes(op="call_function", target=aten.add.Tensor)[0].target = target
        assert key_of(other) is None
    for value in (object(), torch.Generator(), torch.ones(2), range(3)):
        gm = graph()
        gm.graph.output_node().meta["val"] = value
        assert key_of(gm) is None
    constants = graph()
    constants.graph.find_nodes(op="placeholder")[0].meta["val"].constant = torch.ones(4, 6)
    assert key_of(constants) is None


def test_a_view_of_numbers_in_a_storage_of_symbolic_size_has_no_key() -> None:
    dynamic = capture_dynamic(lambda x: x[:1] + 1, lambda n: [(n, 4)], (5,))[0]
    (row,) = dynamic.graph.find_nodes(op="call_function", target=aten.slice.Tensor)
    assert row.meta["val"].shape == (1, 4)
    gm = graph()
    gm.graph.find_nodes(op="placeholder")[0].meta["val"] = row.meta["val"]
    assert key_of(gm) is None


def test_an_operator_of_the_program_has_no_key() -> None:
    with torch.library._scoped_library("treadle_kept_test", "DEF") as library:
        library.define("f(Tensor x) -> Tensor")
        gm = graph()
        (node,) = gm.graph.find_nodes(op="call_function", target=aten.mul.Tensor)
        node.target = torch.ops.treadle_kept_test.f.default
        assert key_of(gm) is None


def test_when_nothing_is_kept(tmp_path: Path) -> None:
    assert why_not_kept(CPP, OPTIONS) is None
    for option in ("pack_weights", "verify", "autotune", "cuda_graphs"):
        assert why_not_kept(CPP, dataclasses.replace(OPTIONS, **{option: True})) is not None
    assert why_not_kept(CPP, dataclasses.replace(OPTIONS, dump_passes=tmp_path)) is not None
    assert why_not_kept(dataclasses.replace(CPP, identity=None), OPTIONS) is not None


def test_a_kept_graph_is_found_by_its_name(tmp_path: Path) -> None:
    options = dataclasses.replace(OPTIONS, cache_dir=tmp_path)
    gm, x, y = graph(), torch.randn(4, 6), torch.randn(6)
    (made,) = treadle_codegen.compile_graph(gm, [x, y], options=options)(x, y)
    name = gm.meta["kept_as"]
    assert name == key_of(gm, options=options)
    asked: list[fx.GraphModule] = []

    def late() -> fx.GraphModule:
        asked.append(gm)
        return gm

    found = treadle_codegen.find_graph(name, late, options)
    assert found is not None and not asked
    torch.testing.assert_close(found(x, y)[0], made, rtol=0, atol=0)
    assert found.ir_text and asked
    assert treadle_codegen.find_graph("another", late, options) is None
    assert treadle_codegen.identity_of_kept(options) is not None
    assert treadle_codegen.identity_of_kept(dataclasses.replace(options, autotune=True)) is None


def test_all_that_is_read_of_meta_is_in_the_key() -> None:
    """By the text of the package: whoever reads another key of `meta` must add it to the key of graphs."""
    patterns = (r'meta\.get\("(\w+)"', r'meta\["(\w+)"\]', r'meta\.pop\("(\w+)"', r'"(\w+)" (?:not )?in [\w.]*meta\b')
    found: set[str] = set()
    for path in SOURCES.rglob("*.py"):
        if path.parent.name != "kept_graphs":
            text = path.read_text(encoding="utf-8")
            found.update(name for pattern in patterns for name in re.findall(pattern, text))
    assert found == {*META, *NOT_IN_KEY_META, "val", "kept_as"}  # the last one is written, to the graph's own `meta`
