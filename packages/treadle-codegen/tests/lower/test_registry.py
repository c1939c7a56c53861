"""The registry of lowerings."""

from __future__ import annotations

import pytest

from treadle_codegen.lower.lowerings import LOWERINGS
from treadle_codegen.lower.registry import lowering
from treadle_codegen.targets.triton import attention_operators


def test_a_second_lowering_is_refused() -> None:
    with pytest.raises(ValueError, match=r"aten.add.Tensor has two lowerings"):
        lowering("aten.add.Tensor")(lambda *_: None)


def test_every_name_is_an_overload_of_pytorch() -> None:
    import torch

    if not torch.__version__.startswith("2.13"):
        pytest.skip("lowerings name overloads of the newest release")

    attention_operators.operators()  # ours
    unknown = []
    for name in LOWERINGS:
        namespace, packet, overload = name.split(".")
        operators = getattr(torch.ops, namespace)
        if not hasattr(operators, packet) or overload not in getattr(operators, packet).overloads():
            unknown.append(name)
    assert len(LOWERINGS) > 250 and unknown == [], "names that this release of torch does not know"
