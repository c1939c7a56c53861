"""Which instructions and which calls may be evaluated on a path that may not be taken."""

from __future__ import annotations

import functools
import operator

import pytest
import torch
from value_runs import size, tracer, wrapped

from treadle_tracer.bytecode import OPS
from treadle_tracer.bytecode.opcodes import NULL_AFTER_CALLABLE
from treadle_tracer.trace import speculatable
from treadle_tracer.trace.frame import Frame
from treadle_tracer.trace.root import program_of
from treadle_tracer.trace.speculatable import is_speculatable, why_not_speculatable
from treadle_tracer.trace.table import HANDLERS
from treadle_tracer.values.base import NULL, Constant, Method
from treadle_tracer.values.iteration import SequenceIterator
from treadle_tracer.values.mappings import DictValue
from treadle_tracer.values.sequences import ListValue, TupleValue


def before(function, opname, stack, tx=None):
    """A frame of `function` with this stack, and its first instruction of this name."""
    tx = tx or tracer()
    code = function.__code__
    frame = Frame(tx, program_of(code), code, function.__globals__)
    frame.stack = stack
    return frame, next(i for i in frame.instructions if i.opname == opname)


def why_not(function, opname, stack, tx=None, computes=False):
    return why_not_speculatable(*before(function, opname, stack, tx), computes)


def call_of(callee, *args, computes=False, tx=None):
    tx = tx or tracer()
    value = callee if isinstance(callee, Method) else tx.wrap_known(callee)
    values = [arg if hasattr(arg, "describe") else Constant(arg) for arg in args]
    frame, instruction = before(lambda f, *a: f(1) if len(a) == 1 else f(1, 2), "CALL", [])
    wanted = (
        next(i for i in frame.instructions if i.opname == "CALL" and i.arg == len(values))
        if len(values) in (1, 2)
        else instruction
    )
    frame.stack = [value, NULL, *values] if NULL_AFTER_CALLABLE else [NULL, value, *values]
    return why_not_speculatable(frame, wanted, computes)


def test_every_opcode_of_the_table_has_a_handler():
    assert speculatable._TESTS.keys() <= HANDLERS.keys()


@pytest.mark.parametrize(
    "opname", ["STORE_ATTR", "STORE_GLOBAL", "FOR_ITER", "RAISE_VARARGS", "BUILD_LIST", "YIELD_VALUE"]
)
def test_effects_are_not_in_the_table(opname):
    assert opname in OPS and opname not in speculatable._TESTS


def test_operators_of_plain_numbers():
    add = lambda a, b: a + b
    assert why_not(add, "BINARY_OP", [Constant(1), Constant(2)]) is None
    assert "has an effect on these operands" in why_not(add, "BINARY_OP", [ListValue([]), ListValue([])])
    tx = tracer(x={0: 4})
    number = size(tx, 4)
    assert why_not(add, "BINARY_OP", [number, Constant(2)], tx) is None
    assert why_not(lambda a, b: a // b, "BINARY_OP", [number, Constant(2)], tx) is not None  # may raise


def test_comparisons_of_tensors_only_where_tensors_may_be_made():
    tx = tracer()
    tensor, less = wrapped(tx, torch.ones(2)), lambda a, b: a < b
    assert why_not(less, "COMPARE_OP", [tensor, Constant(1)], tx) is not None
    assert why_not(less, "COMPARE_OP", [tensor, Constant(1)], tx, computes=True) is None


def test_the_truth_of_a_tensor_is_not_asked():
    jump = lambda a: 1 if a else 2
    opname = next(i.opname for i in program_of(jump.__code__).model.instructions if "JUMP" in i.opname)
    tx = tracer()
    assert why_not(jump, opname, [Constant(1)]) is None
    assert why_not(jump, opname, [wrapped(tx, torch.ones(1))], tx) is not None


def test_items_by_constant_keys():
    item = lambda a, b: a[b]
    assert why_not(item, "BINARY_SUBSCR", [TupleValue([Constant(1)]), Constant(0)]) is None
    assert why_not(item, "BINARY_SUBSCR", [DictValue(), Constant(0)]) is None
    assert why_not(item, "BINARY_SUBSCR", [wrapped(tracer(), object()), Constant(0)]) is not None


def test_calls_by_the_effect_of_their_rule():
    assert call_of(len, "abc") is None
    assert call_of(isinstance, 1, 2) is None
    assert call_of(torch.is_tensor, 1) is None  # evaluated in place, under the same rules
    assert call_of(next, SequenceIterator(ListValue([]))) is not None
    assert call_of(print, 1) is not None
    assert call_of(functools.lru_cache(lambda x: x), 1) is None


def test_operators_by_their_record():
    tensor = wrapped(tracer(), torch.ones(2))
    assert is_speculatable(torch.where) and is_speculatable("expand") and is_speculatable(operator.ge)
    assert not is_speculatable(torch.sum) and not is_speculatable("item") and not is_speculatable("add_")
    assert call_of(torch.ones_like, tensor, computes=True) is not None or is_speculatable(torch.ones_like)
    assert call_of(torch.unsqueeze, tensor, 0, computes=True) is None
    assert call_of(torch.unsqueeze, tensor, 0) is not None


def test_methods():
    tx = tracer()
    tensor = wrapped(tx, torch.ones(2))
    assert call_of(tensor.get_attr(tx, "size"), 0, tx=tx) is None
    assert call_of(tensor.get_attr(tx, "stride"), 0, tx=tx) is not None  # a question about layout
    assert (
        call_of(Constant("a").get_attr(tx, "upper").get_attr(tx, "__self__").get_attr(tx, "join"), "b", tx=tx) is None
    )
    assert call_of(DictValue().get_attr(tx, "get"), 1, tx=tx) is None
    assert call_of(DictValue().get_attr(tx, "pop"), 1, tx=tx) is not None


def test_operators_with_named_arguments():
    tx = tracer()
    tensor, named = wrapped(tx, torch.ones(2)), lambda f, a: f(a, dim=0)
    frame, _ = before(named, "RETURN_VALUE", [], tx)
    instruction = next(i for i in frame.instructions if i.opname in ("CALL", "CALL_KW"))

    def of(function, computes):
        value = tx.wrap_known(function)
        frame.stack = [value, NULL, tensor, Constant(0)] if NULL_AFTER_CALLABLE else [NULL, value, tensor, Constant(0)]
        if instruction.opname == "CALL_KW":
            frame.stack.append(Constant(("dim",)))
        return why_not_speculatable(frame, instruction, computes)

    assert of(torch.unsqueeze, True) is None and of(torch.unsqueeze, False) is not None
    assert of(torch.sum, True) is not None


@pytest.mark.skipif("BINARY_SLICE" not in OPS, reason="since Python 3.12")
def test_slices():
    tx = tracer()
    tensor, part = wrapped(tx, torch.ones(2)), lambda a, b, c: a[b:c]
    range_ = [Constant(0), Constant(1)]
    assert why_not(part, "BINARY_SLICE", [tensor, *range_], tx, computes=True) is None
    assert why_not(part, "BINARY_SLICE", [tensor, *range_], tx) is not None
    assert why_not(part, "BINARY_SLICE", [tensor, tensor, Constant(1)], tx, computes=True) is not None
    assert why_not(part, "BINARY_SLICE", [TupleValue([Constant(1)]), *range_], tx) is None
    assert why_not(part, "BINARY_SLICE", [wrapped(tx, object()), *range_], tx) is not None
