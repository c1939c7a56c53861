"""Which updates happen in the memory of the input: not where the old value is still needed, or where the call may raise afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx

from treadle_codegen import compile_graph
from treadle_codegen.ir.text import parse_program
from treadle_codegen.options import CodegenOptions
from treadle_codegen.schedule.fuse import fuse
from treadle_codegen.schedule.in_place import updates_in_place, verify_in_place

HEAD = """\
program inputs p, g outputs view(new, [8], [1], 0), view(other, [8], [1], 0)
input p : float32 [8] strides [1] offset 0
input g : float32 [8] strides [1] offset 0
output new : float32 [8] strides [1] offset 0
output other : float32 [8] strides [1] offset 0
"""

UPDATE = """\
loop update [i0:8] reduce [] origins a
  %0 = load p[i0] : float32
  %1 = load g[i0] : float32
  %2 = add %0 %1 : float32
  %3 = store new[i0] %2 : float32
"""


def copy(name: str, source: str, target: str = "other", index: str = "i0") -> str:
    return f"""\
loop {name} [i0:8] reduce [] origins {name}
  %0 = load {source}[{index}] : float32
  %1 = store {target}[i0] %0 : float32
"""


def chosen(text: str, **fusion: Any) -> dict[str, str]:
    program = parse_program(text)
    program.updates = {"new": "p"}
    nodes = fuse(program, **fusion)
    found = updates_in_place(program, nodes)
    assert verify_in_place(program, nodes, found) == []
    return found


def test_an_update_at_each_point():
    assert chosen(HEAD + UPDATE + copy("rest", "g")) == {"new": "p"}


def test_the_old_value_is_read_before():
    assert chosen(HEAD + copy("before", "p") + UPDATE, max_members=1) == {"new": "p"}


def test_the_old_value_is_read_afterwards():
    assert chosen(HEAD + UPDATE + copy("after", "p"), max_members=1) == {}


def test_the_old_value_is_read_at_another_point():
    reverse = UPDATE.replace("load p[i0]", "load p[7 - i0]")
    assert chosen(HEAD + reverse + copy("rest", "g")) == {}


def test_the_new_value_is_read_afterwards():
    assert chosen(HEAD + UPDATE + copy("after", "new")) == {"new": "p"}


def test_nothing_may_raise_afterwards():
    check = "check enough (s0 >= 4) RuntimeError 'too few'\n"
    head = HEAD.replace("outputs", "outputs", 1).replace("input p", "symbol s0 1 None\ninput p", 1)
    assert chosen(head + UPDATE + copy("rest", "g") + check) == {}
    assert chosen(head + check + UPDATE + copy("rest", "g")) == {"new": "p"}


def test_an_update_of_any_size():
    text = (HEAD + UPDATE + copy("rest", "g")).replace("8", "s0").replace("input p", "symbol s0 1 None\ninput p", 1)
    assert chosen(text) == {"new": "p"}
    other = text.replace("input p : float32 [s0] strides [1]", "input p : float32 [s0] strides [2]")
    assert chosen(other) == {}


@pytest.mark.parametrize("change", ["strides", "dtype"])
def test_another_layout(change):
    new, old = {
        "strides": ("input p : float32 [8] strides [2]", "input p : float32 [8] strides [1]"),
        "dtype": ("input p : float64 [8] strides [1]", "input p : float32 [8] strides [1]"),
    }[change]
    program = parse_program(HEAD + copy("fill", "g", "new") + copy("rest", "g"))
    text = HEAD.replace(old, new) + copy("fill", "g", "new") + copy("rest", "g")
    assert chosen(text) == {}
    program.updates = {"new": "p"}
    assert updates_in_place(program, fuse(program)) == {"new": "p"}  # an overwritten input is an update, too


def test_the_verifier_finds_wrong_choices():
    program = parse_program(HEAD + UPDATE + copy("after", "p"))
    program.updates = {"new": "p"}
    nodes = fuse(program, max_members=1)
    assert any("is read after" in problem for problem in verify_in_place(program, nodes, {"new": "p"}))
    assert any("nobody wants" in problem for problem in verify_in_place(program, nodes, {"other": "g"}))


def compiled(function: Callable[..., Any], inputs: list[torch.Tensor], mutates: dict[int, int]) -> Any:
    """The function of `inputs` through `compile_graph`, with the results at positions `mutates` written back to inputs."""
    from torch.fx.experimental.proxy_tensor import make_fx

    gm = make_fx(function, tracing_mode="fake")(*inputs)
    for node in gm.graph.nodes:
        if "val" not in node.meta and node.op != "output":
            raise AssertionError(node)
    results = gm.graph.output_node().args[0]
    for position, index in mutates.items():
        results[position].meta["mutates"] = index
    assert isinstance(gm, fx.GraphModule)
    return compile_graph(gm, inputs, options=CodegenOptions(verify=True))


@pytest.mark.parametrize("shape", [(5,), (300,), (64, 65), (3, 1, 7)])
def test_compiled_updates_are_right(shape):
    """Adam's update, all in place, against a functional run."""

    def update(p, g, m, v):
        m = m.lerp(g, 0.1)
        v = torch.addcmul(v * 0.999, g, g, value=0.001)
        return p - 0.01 * m / (v.sqrt() + 1e-8), m, v

    inputs = [torch.randn(shape), torch.randn(shape), torch.randn(shape), torch.rand(shape)]
    run = compiled(update, inputs, {0: 0, 1: 2, 2: 3})
    for _ in range(3):
        expected = update(*[x.clone() for x in inputs])
        found = run(*inputs)
        assert [found[0] is inputs[0], found[1] is inputs[2], found[2] is inputs[3]] == [True] * 3
        for mine, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(mine, theirs)


def test_a_transposed_read_keeps_its_memory():
    def swap(p, g):
        return p.t() + g, g * 2

    inputs = [torch.randn(40, 40), torch.randn(40, 40)]
    expected = swap(*[x.clone() for x in inputs])
    run = compiled(swap, inputs, {0: 0, 1: 1})
    found = run(*inputs)
    assert found[0] is not inputs[0]
    torch.testing.assert_close(list(found), list(expected))
