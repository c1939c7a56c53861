"""Guard sets against real objects: a program accepts what the trace saw and rejects every change that matters."""

from __future__ import annotations

import math

import pytest
import torch

from treadle_tracer.output import tensor_check
from treadle_tracer.output.guards import GuardSet
from treadle_tracer.source import AttrSource, ConstSource, DictItemSource, ListItemSource, LocalSource

X, Y = LocalSource("x"), LocalSource("y")


def program_of(*guards):
    found = GuardSet()
    for guard in guards:
        found.add(*guard)
    return found.program()


def tensor_program(*tensors, dynamic_dims=(), by_identity=False):
    found = GuardSet()
    for name, tensor in zip("xyz", tensors):
        found.add_tensor(LocalSource(name), tensor, dynamic_dims, by_identity=by_identity)
    return found.program()


@pytest.mark.parametrize(
    ("constant", "others"),
    [
        (1, [True, 1.0, 2]),
        (0.0, [-0.0, 0, False]),
        (math.nan, [0.0, None]),
        ((1, 2.0), [(True, 2.0), (1, 2), (1, 2.0, 3), [1, 2.0]]),
        ((0.0,), [(-0.0,)]),
        (complex(0.0, -0.0), [0j, 0.0]),
        ("a", ["b", b"a"]),
        (slice(0, None, 1), [slice(0, None), slice(False, None, 1)]),
        (frozenset({1}), [frozenset({2}), {1}]),
    ],
)
def test_equals_tells_constants_apart(constant, others):
    program = program_of((X, "equals", constant))
    assert program.check({"x": constant})
    for other in others:
        assert not program.check({"x": other}), other


def test_what_a_kept_guard_implies_is_dropped():
    found = GuardSet()
    found.add(X, "type_is", list)
    found.add(X, "type_is", list)
    assert len(found) == 1
    same = [1]
    found.add(X, "is", same)
    assert [guard.op for guard in found] == ["is"]
    found.add(X, "type_is", list)
    assert [guard.op for guard in found] == ["is"]
    found.add(Y, "dict_keys", ("a", "b"))
    found.add(Y, "has_key", "a")
    assert [guard.op for guard in found] == ["is", "dict_keys"]
    program = found.program()
    assert program.check({"x": same, "y": {"a": 1, "b": 2}})
    assert not program.check({"x": [1], "y": {"a": 1, "b": 2}})
    assert "x is" in program.why_fails({"x": [1], "y": {"a": 1, "b": 2}})


def test_constants_of_the_code_need_no_guard():
    found = GuardSet()
    found.add(ConstSource(math), "is", math)
    assert len(found) == 0


def test_unknown_ops_are_refused():
    with pytest.raises(ValueError, match="op must be one of"):
        GuardSet().add(X, "resembles", 1)


def test_snapshot_takes_back_later_guards():
    found = GuardSet()
    found.add(X, "type_is", int)
    state = found.snapshot()
    found.add(X, "equals", 3)
    found.add(Y, "len", 2)
    found.restore(state)
    assert [(guard.op, guard.arg) for guard in found] == [("type_is", int)]
    found.add(X, "equals", 3)
    assert [guard.op for guard in found] == ["equals"]


def test_paths_in_arguments_are_sources():
    found = GuardSet()
    item = ListItemSource(DictItemSource(Y, "k"), 0)
    found.add(X, "same_object", item)
    found.add(AttrSource(X, "real"), "call_many", (lambda a, b: a == b, [item]))
    program = found.program()
    assert program.check({"x": 5, "y": {"k": [5]}})
    assert not program.check({"x": 5, "y": {"k": [6]}})


TENSORS = {
    "same": lambda: torch.ones(2, 3),
    "size": lambda: torch.ones(2, 4),
    "rank": lambda: torch.ones(2, 3, 1),
    "dtype": lambda: torch.ones(2, 3, dtype=torch.float64),
    "strides": lambda: torch.ones(3, 2).t(),
    "requires_grad": lambda: torch.ones(2, 3, requires_grad=True),
    "parameter": lambda: torch.nn.Parameter(torch.ones(2, 3), requires_grad=False),
    "device": lambda: torch.ones(2, 3, device="meta"),
    "negated": lambda: torch._neg_view(torch.ones(2, 3)),
    "not a tensor": lambda: [[1.0] * 3] * 2,
}


@pytest.mark.parametrize("c_abi", [True, False])
@pytest.mark.parametrize("kind", TENSORS)
def test_tensor_metadata(kind, c_abi, monkeypatch):
    if not c_abi:
        monkeypatch.setattr(tensor_check, "handle_offset", lambda: None)
    program = tensor_program(torch.zeros(2, 3))
    assert program.check({"x": TENSORS[kind]()}) is (kind == "same")


def test_the_c_abi_is_in_use():
    assert tensor_check.handle_offset() is not None
    assert [check.op for check in tensor_program(torch.zeros(2)).checks][0] == "native_tensor"


def test_sparse_and_scalar_tensors():
    program = tensor_program(torch.eye(3).to_sparse())
    assert program.check({"x": torch.eye(3).to_sparse()})
    assert not program.check({"x": torch.eye(3)})
    program = tensor_program(torch.tensor(1.0))
    assert program.check({"x": torch.tensor(2.0)})
    assert not program.check({"x": torch.ones(1)})


def test_conjugated_tensors_are_told_apart():
    program = tensor_program(torch.ones(2, dtype=torch.complex64))
    assert program.check({"x": torch.ones(2, dtype=torch.complex64)})
    assert not program.check({"x": torch.ones(2, dtype=torch.complex64).conj()})


def test_aliases_among_inputs():
    a, b = torch.ones(2), torch.ones(2)
    apart, together = tensor_program(a, b), tensor_program(a, a)
    assert apart.check({"x": a, "y": b})
    assert not apart.check({"x": a, "y": a})
    assert together.check({"x": b, "y": b})
    assert not together.check({"x": a, "y": b})


def test_parameters_are_guarded_by_identity():
    weight = torch.nn.Parameter(torch.ones(2))
    program = tensor_program(weight, by_identity=True)
    assert program.check({"x": weight})
    assert not program.check({"x": torch.nn.Parameter(torch.ones(2))})
    assert tensor_program(weight).check({"x": torch.nn.Parameter(torch.ones(2))})  # an input of the graph
    weight.requires_grad_(False)
    assert not program.check({"x": weight})


def test_dynamic_dimensions():
    program = tensor_program(torch.zeros(4, 3), dynamic_dims=(0,))
    assert program.check({"x": torch.zeros(4, 3)})
    assert program.check({"x": torch.zeros(7, 3)})
    assert program.check({"x": torch.zeros(1, 3)})
    assert not program.check({"x": torch.zeros(0, 3)})
    assert not program.check({"x": torch.zeros(7, 5)})
    assert not program.check({"x": torch.zeros(3, 7).t()})
    channels_last = torch.zeros(2, 3, 4, 4).to(memory_format=torch.channels_last)
    program = tensor_program(channels_last, dynamic_dims=(2, 3))
    assert program.check({"x": torch.zeros(2, 3, 8, 6).to(memory_format=torch.channels_last)})
    assert not program.check({"x": torch.zeros(2, 3, 8, 6)})
    sliced = torch.zeros(4, 10)[:, :6]
    program = tensor_program(sliced, dynamic_dims=(1,))
    for rows_apart in (8, 9, 10, 12):  # the size of a row is dynamic, so the distance of rows is a number of its own
        assert program.check({"x": torch.zeros(4, rows_apart)[:, :8]})
    assert not program.check({"x": torch.zeros(8, 4).t()})
    program = tensor_program(sliced, dynamic_dims=(0,))
    assert program.check({"x": torch.zeros(5, 10)[:, :6]})
    assert not program.check({"x": torch.zeros(5, 11)[:, :6]})
    expanded = torch.zeros(1, 3, 5).expand(4, 3, 5)
    program = tensor_program(expanded, dynamic_dims=(0, 1, 2))
    assert program.check({"x": torch.zeros(1, 7, 8).expand(2, 7, 8)})
    assert not program.check({"x": torch.zeros(2, 7, 8)})
    assert not program.check({"x": torch.zeros(1, 7, 9)[..., :8].expand(2, 7, 8)})


def test_global_state():
    found = GuardSet()
    found.add_global_state()
    found.add_global_state()
    assert len(found) == 1
    program = found.program()
    assert program.check({})
    with torch.no_grad():
        assert not program.check({})
        assert "grad mode on" in program.why_fails({})
    with torch.inference_mode():
        assert not program.check({})
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not program.check({})
    with torch.device("cpu"):
        assert not program.check({})
    torch.set_default_dtype(torch.float64)
    try:
        assert not program.check({})
    finally:
        torch.set_default_dtype(torch.float32)
    torch.use_deterministic_algorithms(True)
    try:
        assert not program.check({})
    finally:
        torch.use_deterministic_algorithms(False)
    assert program.check({})


def test_autocast_settings_are_compared():
    found = GuardSet()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found.add_global_state()
        program = found.program()
        assert program.check({})
    assert not program.check({})
    with torch.autocast("cpu", dtype=torch.float16):
        assert not program.check({})
