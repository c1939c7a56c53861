"""What is called in place of `_linalg_check_errors`: it raises what the operator raises, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from treadle_shapes.torch import operator  # noqa: E402

CHECK = torch.ops.aten._linalg_check_errors.default


def outcome(check: Any, *args: Any, **kwargs: Any) -> str | None:
    try:
        assert check(*args, **kwargs) is None
    except RuntimeError as error:
        return f"{type(error).__name__}: {error}"
    return None


@pytest.mark.parametrize("info", [0, 2, -3, [0, 0], [0, 4], [], [[0, 0], [5, 0]]])
@pytest.mark.parametrize("name", ["linalg.inv", "linalg.cholesky", "torch.linalg.solve"])
def test_it_raises_as_the_operator(info: Any, name: str) -> None:
    codes = torch.tensor(info, dtype=torch.int32)
    expected = outcome(CHECK, codes, name, is_matrix=codes.dim() == 0)
    assert outcome(operator(CHECK).binding, codes, name, is_matrix=codes.dim() == 0) == expected
    assert (expected is not None) == bool(codes.any())
