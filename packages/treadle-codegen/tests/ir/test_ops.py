"""The operation table is complete and means what its torch functions do."""

from __future__ import annotations

import pytest
import torch

from treadle_codegen.ir.ops import FLOATS, INTS, OPS, REDUCTIONS, Cost, compute_dtype, reduced_dtype, why_not_dtype

STRUCTURE = {
    "load",
    "masked_load",
    "check_position",
    "indirect_load",
    "store",
    "indirect_store",
    "const",
    "index",
    "scalar",
    "cast",
    "reduce",
    "inner_dot",
    "scan",
}


def test_every_operation_has_a_meaning_or_is_structure() -> None:
    assert {name for name, info in OPS.items() if info.torch is None} == STRUCTURE
    assert {name for name, info in OPS.items() if not info.pure} == {"store", "indirect_store", "check_position"}
    assert all(isinstance(info.cost, Cost) and info.name == name for name, info in OPS.items())


@pytest.mark.parametrize("name", sorted(set(OPS) - STRUCTURE))
def test_rules_agree_with_torch(name: str) -> None:
    """Wherever a rule accepts dtypes, the torch function gives that result dtype; and each op accepts something."""
    info, accepted = OPS[name], 0
    for dtype in sorted(FLOATS | INTS | {torch.bool}, key=str):
        args = [torch.ones(3, dtype=dtype) for _ in range(info.arity or 0)]
        if name == "where":
            args[0] = torch.ones(3, dtype=torch.bool)
        for result in {dtype, torch.bool}:
            if info.rule([a.dtype for a in args], result) is None:
                assert info.torch is not None
                assert info.torch(*args).dtype == result
                accepted += 1
    assert accepted


def test_rules_reject_mixed_dtypes() -> None:
    assert OPS["add"].rule([torch.float32, torch.float64], torch.float32) is not None
    assert OPS["add"].rule([torch.bool, torch.bool], torch.bool) is not None
    assert OPS["exp"].rule([torch.int64], torch.int64) is not None
    assert OPS["add"].rule([torch.bfloat16, torch.bfloat16], torch.bfloat16) is not None


def test_dtypes() -> None:
    assert compute_dtype(torch.bfloat16) == compute_dtype(torch.float16) == torch.float32
    assert compute_dtype(torch.int8) == torch.int8
    assert why_not_dtype(torch.float32) is None
    assert "complex64" in str(why_not_dtype(torch.complex64))
    assert {reduced_dtype(kind, torch.float32) for kind in REDUCTIONS} == {torch.int64, torch.float32}
