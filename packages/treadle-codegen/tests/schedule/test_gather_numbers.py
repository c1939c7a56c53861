"""Reads and checks of numbers are gathered behind the kernels that lead to them, and small updates are stored behind the checks."""

from __future__ import annotations

import pytest

from treadle_codegen.ir.loops import Check, Program
from treadle_codegen.ir.text import parse_program
from treadle_codegen.ir.verify import verify
from treadle_codegen.schedule.fuse import Node, fuse
from treadle_codegen.schedule.gather_numbers import gather_numbers
from treadle_codegen.schedule.in_place import updates_in_place, verify_in_place
from treadle_codegen.schedule.late_updates import store_updates_late
from treadle_codegen.schedule.verify import verify_schedule

HEAD = """\
program inputs s, t, x outputs view(a, [], [], 0), view(b, [], [], 0), view(y, [8], [1], 0)
runtime u0 None None
runtime u1 None None
input s : int64 [] strides [] offset 0
input t : int64 [] strides [] offset 0
input x : float32 [8] strides [1] offset 0
output a : int64 [] strides [] offset 0
output b : int64 [] strides [] offset 0
output y : float32 [8] strides [1] offset 0
"""


def step(source: str, target: str) -> str:
    return f"""\
loop count_{target} [] reduce [] origins a
  %0 = load {source}[0] : int64
  %1 = const 1 : int64
  %2 = add %0 %1 : int64
  %3 = store {target}[0] %2 : int64
"""


def item(buffer: str, symbol: str) -> str:
    return f"""\
extern item_{symbol} aten._local_scalar_dense.default (view({buffer}, [], [], 0), ) {{}} ->  origins a
  bind {symbol} 0 None 1 'x'
check check_{symbol} ({symbol} >= 4) RuntimeError 'too few'
"""


UPDATE = """\
loop update [i0:8] reduce [] origins b
  %0 = load x[i0] : float32
  %1 = index u0 : int64
  %2 = cast torch.float32 %1 : float32
  %3 = add %0 %2 : float32
  %4 = store y[i0] %3 : float32
"""
ROUNDS = HEAD + step("s", "a") + item("a", "u0") + UPDATE + step("t", "b") + item("b", "u1")


def written(nodes: list[Node]) -> list[str]:
    return [name for node in nodes for name in node.writes if name]


def gathered(text: str) -> tuple[Program, list[Node]]:
    program = parse_program(text)
    nodes = gather_numbers(fuse(program, max_members=1))
    assert verify_schedule(program, nodes) == []
    return program, nodes


def test_numbers_are_read_together_before_what_needs_them():
    _, nodes = gathered(ROUNDS)
    assert written(nodes) == ["a", "b", "$u0", "$u0", "$u1", "$u1", "y"]


def test_a_number_that_needs_another_is_read_behind_it():
    chain = step("t", "b").replace("const 1 : int64", "index u0 : int64")
    _, nodes = gathered(HEAD + step("s", "a") + item("a", "u0") + UPDATE + chain + item("b", "u1"))
    assert written(nodes) == ["a", "$u0", "$u0", "b", "$u1", "$u1", "y"]


def test_checks_stay_in_their_order():
    head = HEAD.replace("runtime u1", "runtime u2 None None\nruntime u1")
    chain = step("t", "b").replace("const 1 : int64", "index u0 : int64")
    _, nodes = gathered(head + step("s", "a") + item("a", "u0") + UPDATE + chain + item("b", "u1") + item("s", "u2"))
    assert [node.item.name for node in nodes if isinstance(node.item, Check)] == ["check_u0", "check_u1", "check_u2"]


def test_small_updates_are_stored_behind_the_last_check():
    program, nodes = gathered(ROUNDS)
    program.updates = {"a": "s", "b": "t", "y": "x"}
    assert updates_in_place(program, nodes) == {"y": "x"}
    nodes = store_updates_late(program, nodes)
    assert verify_schedule(program, nodes) == []
    found = updates_in_place(program, nodes)
    assert found == {"y": "x", "a_stored": "s", "b_stored": "t"} and verify_in_place(program, nodes, found) == []
    assert [out.buffer for out in program.outputs] == ["a_stored", "b_stored", "y"]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_updates_are_copied_as_they_are(dtype):
    other = f"""\
output c : {dtype} [] strides [] offset 0
input r : {dtype} [] strides [] offset 0
loop other [] reduce [] origins a
  %0 = load r[0] : {dtype}
  %1 = cast torch.float32 %0 : float32
  %2 = neg %1 : float32
  %3 = cast torch.{dtype} %2 : {dtype}
  %4 = store c[0] %3 : {dtype}
"""
    text = HEAD.replace("inputs s, t, x", "inputs s, t, x, r").replace("outputs ", "outputs view(c, [], [], 0), ")
    program, nodes = gathered(text + step("s", "a") + other + item("c", "u0") + step("t", "b") + UPDATE)
    program.updates = {"c": "r"}
    store_updates_late(program, nodes)
    assert program.updates == {"c_stored": "r"} and verify(program) == []


def test_an_output_that_is_returned_twice_is_left_to_the_caller():
    program, nodes = gathered(ROUNDS.replace("view(b, [], [], 0)", "view(b, [], [], 0), view(b, [], [], 0)"))
    program.updates = {"a": "s", "b": "t"}
    store_updates_late(program, nodes)
    assert program.updates == {"a_stored": "s", "b": "t"}
