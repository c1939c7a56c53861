"""PyTorch's operator samples with dynamic sizes: what the fake kernels say equals the real run.

A sixth of the operators by default, one sample each; with TREADLE_ALL_OPS=1 all operators with all samples in five dtypes (about ten
minutes). Last whole run, 2026-11-21, torch 2.13: 49,759 samples alike, none different but those of EXCLUDED.
"""

from __future__ import annotations

import os

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest")

#: operator -> why its samples are not compared
EXCLUDED = {
    "cov": "a C++ composite reads numel() as a plain int; PyTorch's own dynamic shapes raise the same error",
    "resize_": "PyTorch refuses to set symbolic sizes on an existing fake tensor",
}


def _ops():
    from op_samples_shapes import op_db

    return op_db() if ALL else op_db()[::6]


ALL = bool(os.environ.get("TREADLE_ALL_OPS"))
DTYPES = ("float32", "int64", "complex64", "bool", "bfloat16")


def _samples(op, count):
    """`count` samples (all in a whole run), of float32 where the operator has it."""
    dtypes = op.supported_dtypes("cpu")
    wanted = [d for d in (getattr(torch, name) for name in DTYPES) if d in dtypes] or list(dtypes)
    samples = []
    for dtype in wanted if ALL else wanted[:1]:
        torch.manual_seed(0)
        samples += op.sample_inputs("cpu", dtype, requires_grad=False)
    return samples if ALL else samples[:: max(1, len(samples) // count)][:count]


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
                  "clone", "contiguous", "exp", "cumsum",
                  "cat", "stack", "hstack", "vstack", "inner", "tensordot", "einsum", "matmul", "addmm", "baddbmm", "addmv", "mv",
                  "dot", "outer", "squeeze", "movedim", "flatten", "ravel", "index_add", "index_fill",
                  "masked_fill", "amin", "var", "logsumexp", "cumprod", "sub", "pow", "maximum", "minimum", "clamp", "to",
                  "float", "nn.functional.relu", "nn.functional.prelu"]  # fmt: skip


@pytest.mark.filterwarnings("ignore")
def test_common_operators_record_no_guards():
    import op_samples_shapes

    found = {}
    seen = set()
    for op in op_samples_shapes.op_db():
        if op.name not in FREE_OF_GUARDS or op.variant_test_name:
            continue
        seen.add(op.name)
        for sample in _samples(op, 3):
            result, _detail, guards = op_samples_shapes.run(op, sample)
            if result == "same" and guards:
                found.setdefault(op.name, []).append([str(g.expr) for g in guards])
    assert not found
    assert seen == set(FREE_OF_GUARDS)
