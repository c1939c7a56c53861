"""Quick answers to functionalisation's checks of in-place operators: what PyTorch's kernels answer, and its errors."""

from __future__ import annotations

import threading

import pytest

torch = pytest.importorskip("torch")

from treadle_shapes.torch import checked_writes, quick_checks  # noqa: E402
from treadle_shapes.torch.operators import Kind, operator  # noqa: E402

aten = torch.ops.aten
NUMBERS = {"number": 2, "float": 0.5, "int": 2, "bool": False, "str": None}


def arguments(op, dtype=torch.float32, sizes=(2, 3)):
    """Arguments without elements for the overload; tensors of one dtype and the same sizes."""
    found = []
    for argument in op._schema.arguments:
        kind = str(argument.type)
        if argument.has_default_value():
            break
        if kind == "Tensor":
            found.append(torch.empty(sizes, dtype=dtype, device="meta"))
        else:
            found.append(NUMBERS[kind.removeprefix("Optional[").removesuffix("]")])
    return found


def layout(tensor):
    return tensor.dtype, tensor.shape, tensor.stride(), tensor.storage_offset()


checked_writes.install()


@pytest.mark.parametrize("op", checked_writes.overloads(), ids=str)
def test_a_call_that_pytorch_accepts_leaves_the_layout_as_it_is(op):
    args = arguments(op)
    before = layout(args[0])
    try:
        op(*args)
    except (RuntimeError, ValueError):
        return  # the functional operator raises, too (`test_what_raises_in_place_raises_when_functionalised`)
    assert layout(args[0]) == before
    with quick_checks():
        assert op(*args) is args[0]
    assert layout(args[0]) == before


def functionalised(call, *tensors):
    torch._enable_functionalization(reapply_views=True)
    try:
        with quick_checks():
            call(*[torch._to_functional_tensor(tensor) for tensor in tensors])
    finally:
        torch._disable_functionalization()


@pytest.mark.parametrize("op", checked_writes.overloads(), ids=str)
def test_what_raises_in_place_raises_when_functionalised(op):
    args = arguments(op)
    try:
        op(*[torch.rand(2, 3) if isinstance(arg, torch.Tensor) else arg for arg in args])
    except (RuntimeError, ValueError):
        tensors = [torch.rand(2, 3) for arg in args if isinstance(arg, torch.Tensor)]
        others = [arg for arg in args if not isinstance(arg, torch.Tensor)]
        with pytest.raises((RuntimeError, ValueError)):
            functionalised(lambda *given: op(*given, *others), *tensors)


@pytest.mark.parametrize(
    ("call", "tensors"),
    [
        (lambda x, y: x.add_(y), (torch.ones(3), torch.ones(2, 3))),
        (lambda x, y: x.add_(y), (torch.ones(3, dtype=torch.int64), torch.ones(3))),
        (lambda x: x.sigmoid_(), (torch.ones(3, dtype=torch.int64),)),
    ],
)
def test_checks_that_find_something_raise(call, tensors):
    with pytest.raises(RuntimeError):
        call(*[tensor.clone() for tensor in tensors])
    with pytest.raises(RuntimeError):
        functionalised(call, *tensors)


def test_others_get_pytorchs_kernels(monkeypatch):
    ran = []
    check = torch._prims_common.check_same_device  # the decomposition of hardswish calls it
    monkeypatch.setattr(torch._prims_common, "check_same_device", lambda *a, **k: ran.append(1) or check(*a, **k))
    x = torch.empty(2, 3, device="meta")
    with quick_checks():
        with quick_checks():
            pass
        aten.hardswish_(x)
        assert not ran
        other = threading.Thread(target=aten.hardswish_, args=(x,))
        other.start()
        other.join()
        assert ran
        ran.clear()
    aten.hardswish_(x)
    assert ran


def test_only_pointwise_operators_in_place_are_concerned():
    found = checked_writes.overloads()
    assert {aten.hardswish_.default, aten.silu_.default, aten.clamp_.default, aten.addcmul_.default} <= set(found)
    records = [operator(op) for op in found]
    assert all(record is not None and record.kind is Kind.POINTWISE and not record.is_random for record in records)
