"""PyTorch's operator samples with dynamic sizes: what the fake kernels say equals the real run.

A sixth of the operators by default, all of them with TREADLE_ALL_OPS=1 (about two minutes).
"""

from __future__ import annotations

import os
import warnings

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest")

#: operator -> why its samples are not compared
EXCLUDED = {
    "cov": "a C++ composite reads numel() as a plain int; PyTorch's own dynamic shapes raise the same error",
    "resize_": "PyTorch refuses to set symbolic sizes on an existing fake tensor",
    "resize_as_": "PyTorch refuses to set symbolic sizes on an existing fake tensor",
    "nn.functional.max_unpool2d": "the strides of PyTorch's meta function differ from its kernel's, constant sizes or not",
    "nn.functional.max_unpool3d": "the strides of PyTorch's meta function differ from its kernel's, constant sizes or not",
}


def _ops():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_methods_invocations import op_db
    return op_db if os.environ.get("TREADLE_ALL_OPS") else op_db[::6]


def _samples(op, count):
    dtypes = op.supported_dtypes("cpu")
    dtype = torch.float32 if torch.float32 in dtypes else next(iter(dtypes), None)
    if dtype is None:
        return []
    torch.manual_seed(0)
    samples = list(op.sample_inputs("cpu", dtype, requires_grad=False))
    return samples[:: max(1, len(samples) // count)][:count]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("part", range(4))
def test_samples_agree_with_the_real_run(part):
    import op_samples_shapes

    compared, wrong = 0, []
    for op in _ops()[part::4]:
        if op.name in EXCLUDED:
            continue
        for sample in _samples(op, 1):
            result, detail, _guards = op_samples_shapes.run(op, sample)
            compared += result == "same"
            if result in ("differs", "raises"):
                wrong.append(f"{op.name} {op.variant_test_name}: {result}: {detail}")
    assert not wrong, "\n".join(wrong)
    assert compared > 15


#: operators whose samples need no decision about the sizes beyond what the operator itself requires
FREE_OF_GUARDS = ["abs", "add", "mul", "sigmoid", "where", "sum", "mean", "amax", "argmax", "prod", "std", "mm", "bmm",
                  "nn.functional.linear", "nn.functional.gelu", "softmax", "log_softmax",
                  "transpose", "permute", "unsqueeze", "flip", "triu", "tril", "index_select", "gather", "nn.functional.silu",
                  "clone", "contiguous", "exp", "cumsum"]  # fmt: skip


@pytest.mark.filterwarnings("ignore")
def test_common_operators_record_no_guards():
    import op_samples_shapes

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_methods_invocations import op_db
    found = {}
    seen = set()
    for op in op_db:
        if op.name not in FREE_OF_GUARDS or op.variant_test_name:
            continue
        seen.add(op.name)
        for sample in _samples(op, 3):
            result, _detail, guards = op_samples_shapes.run(op, sample)
            if result == "same" and guards:
                found.setdefault(op.name, []).append([str(g.expr) for g in guards])
    assert not found
    assert seen == set(FREE_OF_GUARDS)
