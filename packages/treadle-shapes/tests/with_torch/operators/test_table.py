"""Looking up records: by overload, packet, function, method name, and Python operator."""

from __future__ import annotations

import operator as python

import pytest

torch = pytest.importorskip("torch")

from treadle_shapes.torch import (  # noqa: E402
    Cost,
    ElementUse,
    Kind,
    Raises,
    families_with,
    generator_states,  # noqa: E402
    operator,
    random_replay,
)
from treadle_shapes.torch.operators import declare, table  # noqa: E402
from treadle_shapes.torch.operators.declare import ALSO, DECLARED  # noqa: E402

aten = torch.ops.aten
declare.load_families()
F = torch.nn.functional


@pytest.mark.parametrize(
    ("target", "name", "family"),
    [
        (aten.squeeze.dim, "aten.squeeze.dim", "squeeze"),
        (aten.squeeze_.dim, "aten.squeeze_.dim", "squeeze"),
        (aten.squeeze, "aten.squeeze", "squeeze"),
        (torch.add, "aten.add", "add"),
        (torch.Tensor.add, "aten.add", "add"),
        (torch.Tensor.__rsub__, "aten.rsub", "rsub"),
        (F.softmax, "aten.softmax", "softmax"),
        (torch.linalg.inv, "aten.linalg_inv", "linalg_inv"),
        (torch.special.entr, "aten.special_entr", "special_entr"),
        ("view", "aten.view", "view"),
        ("add_", "aten.add_", "add"),
        ("__add__", "aten.add", "add"),
        ("__radd__", "aten.add", "add"),
        ("__iadd__", "aten.add", "add"),
        (python.add, "aten.add", "add"),
        (python.truediv, "aten.div", "div"),
        (python.and_, "aten.bitwise_and", "bitwise_and"),
        (python.getitem, "getitem", "getitem"),
        (torch.true_divide, "aten.true_divide", "div"),
        ("T", "aten.numpy_T", "numpy_T"),
        ("float", "float", "float"),
        (torch.ops.prim.device.default, "prim.device.default", "device"),
    ],
)
def test_names(target, name, family):
    record = operator(target)
    assert (record.name, record.family) == (name, family)
    assert operator(target) is record


def test_no_operators():
    def add(a, b):
        return a + b

    for target in (
        add,
        print,
        len,
        torch.nn.Linear,
        torch.nn.init.ones_,
        "no_such_method",
        torch.sym_max,
        F.normalize,
        3,
    ):
        assert operator(target) is None
    assert add not in table._RECORDS  # the table keeps no function of the user alive


def test_facts_of_schemas():
    view = operator(aten.transpose.int)
    assert view.is_view and view.kind is Kind.VIEW and view.cost is Cost.FREE and view.aliases == ((0, "self"),)
    assert not view.writes and view.is_pure and not view.is_composite
    in_place = operator(aten.transpose_.default)
    assert not in_place.is_view and in_place.writes == ("self",) and not in_place.is_pure
    assert operator(aten.matmul.default).is_composite
    assert operator(aten.rand.default).is_random and operator(aten.rand.default).kind is Kind.RANDOM
    assert operator(aten.nonzero.default).has_data_dependent_size
    assert operator(aten.exp.default).is_pointwise and operator(aten.clone.default).is_pointwise
    assert operator(aten.split.Tensor).is_view
    assert (
        operator(aten._assert_scalar.default).kind is Kind.EFFECT and not operator(aten._assert_scalar.default).is_pure
    )


def test_writes():
    assert operator("add_").writes == operator(python.iadd).writes == operator("__setitem__").writes == ("self",)
    assert operator(torch.add).writes == operator("__add__").writes == ()
    assert operator(torch.batch_norm).writes == ("running_mean", "running_var")
    assert operator(F.batch_norm).hides_writes and not operator(aten._native_batch_norm_legit.default).hides_writes
    assert operator(aten.add.out).writes == ("out",)


@pytest.mark.parametrize("name", table._IN_PLACE)
def test_what_writes_is_not_pure(name):
    function = getattr(python, name)
    assert operator(f"__{name}__").writes == operator(function).writes == ("self",)
    assert not operator(function).is_pure and not operator(f"__{name}__").is_pure


def test_facts_of_one_overload_only():
    assert operator(aten.max.dim).no_empty_over == "dim" and operator(aten.max.default).no_empty_over == ""
    assert operator(aten.max.other).no_empty_over is None
    assert operator(aten.sum.dim_IntList).element_use is ElementUse.READ
    assert operator(aten.mm.default).out is aten.mm.out and operator(aten.mm.out).out is None
    assert operator(aten.mm.default).binding is operator(aten.mm.out).binding is torch.mm
    assert operator(aten.addmm_.default).binding is None
    assert operator(aten.view.default).reinterprets and not operator(aten.view.dtype).reinterprets


def test_facts_of_one_call_form_only():
    assert operator(torch.full).rounds_numbers and operator(torch.tensor).rounds_numbers
    assert not operator(aten.full.default).rounds_numbers and operator(aten.full.default).held_by_result
    assert operator(python.getitem).is_speculatable and not operator("__getitem__").is_speculatable


def test_facts_of_functional_forms_only():
    assert operator("ge").is_speculatable and not operator("ge_").is_speculatable
    assert operator(torch.dropout).may_return_argument and not operator(torch.dropout_).python_kernel_copies
    assert operator(aten.fill.Scalar).like_first_argument and not operator(aten.fill_.Scalar).like_first_argument
    assert operator(aten.floor_divide_.Scalar).raises is Raises.BY_ZERO_DIVISOR  # facts about elements hold for both


def define_generator_operators() -> None:
    for make in ("seeded_state", "checked_state", "seed_default", "restore_default_state"):
        getattr(generator_states, make)()
    for name in DECLARED:
        base = name.removeprefix("draw_").removeprefix("fill_")
        for packet in (getattr(aten, known, None) for known in (base, f"{base}_")):
            for overload in [] if packet is None or base == name else packet.overloads():
                if generator_states.why_not_draw(getattr(packet, overload)) is None:
                    generator_states.drawing(getattr(packet, overload))


def test_every_declared_name_exists():
    """In ATen, as a method, property or function of PyTorch, or as an operator of our own: no declaration is misspelt."""
    python_names = {"getitem", "setitem", "delitem"}
    random_replay.generator_state()
    define_generator_operators()
    owners = (aten, torch.ops.prim, torch.ops.treadle, torch.Tensor, torch, F)
    missing = []
    for name in (*DECLARED, *ALSO):
        for known in (name, f"{name}_"):
            if name in python_names or any(hasattr(owner, known) for owner in owners):
                break
        else:
            missing.append(name)
    assert not missing


def test_every_declared_overload_exists():
    for name, stated in DECLARED.items():
        for overload in stated.overloads:
            assert overload in getattr(aten, name).overloads(), f"{name}.{overload}"


def test_families_with():
    assert {"addr", "glu"} < families_with("decompose") and "add" not in families_with("decompose")
    assert families_with("takes_any_strides") == {"mm", "addmm", "bmm", "baddbmm"}
