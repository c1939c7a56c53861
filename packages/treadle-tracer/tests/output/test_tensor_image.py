"""Guards that compare bytes of tensors notice every change of metadata in place. The oracle is `why_fails`, which asks libtorch."""

from __future__ import annotations

import itertools
import warnings

import pytest
import torch

from treadle_shapes.torch import fake_mode
from treadle_tracer import tensor_abi
from treadle_tracer.output import tensor_image
from treadle_tracer.output.guards import GuardSet
from treadle_tracer.source import DictItemSource, InstanceDictSource, LocalSource


def test_the_layout_is_found():
    """In the releases of torch that are supported; without it guards are right and slower."""
    assert tensor_image._layout(tensor_abi.handle_offset()) is not None


@pytest.mark.parametrize("place", ["fake", "default device", "transform"])
def test_the_layout_is_found_with_real_tensors(place):
    tensor_image._layout.cache_clear()
    expected = tensor_image._layout(tensor_abi.handle_offset())
    tensor_image._layout.cache_clear()
    found = []

    def run(x):
        found.append(tensor_image._layout(tensor_abi.handle_offset()))
        return x

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        if place == "transform":
            with fake_mode():
                torch.vmap(torch.func.grad(lambda x: run(x).sum()))(torch.ones(2, 3))
        else:
            with fake_mode() if place == "fake" else torch.device("meta"):
                run(None)
    assert found == [expected] and expected is not None


def test_the_layout_is_found_whatever_the_mode():
    for mode in (torch.no_grad(), torch.inference_mode()):
        tensor_image._layout.cache_clear()
        with mode:
            assert tensor_image._layout(tensor_abi.handle_offset()) is not None


def holder(tensor):
    module = torch.nn.Module()
    module._parameters["p"] = tensor
    return module


def program_on(module):
    found = GuardSet()
    self = LocalSource("self")
    found.add(self, "is", module)
    place = DictItemSource(InstanceDictSource(self, "_parameters"), "p")
    found.add_tensor(place, module._parameters["p"], by_identity=True)
    return found.program()


def holds(program, module):
    held = program.check({"self": module})
    why = program.why_fails({"self": module})
    assert held == (why is None), why
    return held


def parameter(*shape, **options):
    return torch.nn.Parameter(torch.randn(*shape), **options)


def set_data(p):
    p.data = torch.randn(3, 5)


def set_same_data(p):
    p.data = torch.randn(3, 4)


def set_other_strides(p):
    p.data = torch.randn(4, 3).t()


def set_other_dtype(p):
    p.data = torch.randn(3, 4).double()


def free(p):
    p.untyped_storage().resize_(0)


def become_frozen(p):
    p.requires_grad_(False)


def become_result(p):
    weight = torch.randn(3, 4, requires_grad=True)
    p.requires_grad_(False)
    p.add_(weight)


def be_swapped(p):
    torch.utils.swap_tensors(p, torch.nn.Parameter(torch.randn(2, 2)))


class Special(torch.nn.Parameter):
    pass


def change_class(p):
    p.__class__ = Special


CHANGES = {
    "data": (set_data, False),
    "data of the same metadata": (set_same_data, True),
    "strides": (set_other_strides, False),
    "dtype": (set_other_dtype, False),
    "t_": (lambda p: p.data.t_() is None, True),  # of another tensor: `.data` is a new one
    "resize_": (lambda p: p.detach().resize_(12), True),  # likewise
    "storage freed": (free, False),
    "requires_grad_": (become_frozen, False),
    "swap_tensors": (be_swapped, False),
    "__class__": (change_class, False),
    "values": (lambda p: p.data.fill_(2.0), True),
    "gradient": (lambda p: (p * 2).sum().backward(), True),
    "step": (lambda p: torch.optim.SGD([p], lr=0.1).step(), True),
}


@pytest.mark.parametrize("name", CHANGES)
def test_changes_of_a_parameter(name):
    change, expected = CHANGES[name]
    module = holder(parameter(3, 4))
    program = program_on(module)
    for _ in range(4):
        assert holds(program, module)
    assert program.memo["images"] == 1
    assert program.memo["residuals"] == 0
    change(module._parameters["p"])
    for _ in range(3):
        assert holds(program, module) == expected


IN_PLACE = {
    "t_": lambda t: t.t_(),
    "transpose_": lambda t: t.transpose_(0, 1),
    "resize_": lambda t: t.resize_(4, 3),
    "unsqueeze_": lambda t: t.unsqueeze_(0),
    "set_": lambda t: t.set_(torch.randn(12)),
    "as_strided_": lambda t: t.as_strided_((2, 3), (4, 1)),
    "requires_grad_": lambda t: t.requires_grad_(),
    "result with a history": lambda t: t.add_(torch.randn(3, 4, requires_grad=True)),
    "storage freed": free,
    "data": set_data,
    "_conj_copy": lambda t: set_other_dtype(t),
}


@pytest.mark.parametrize("name", IN_PLACE)
@pytest.mark.parametrize("had_history", [False, True])
def test_changes_of_a_buffer(name, had_history):
    buffer = torch.randn(3, 4)
    if had_history:
        buffer.requires_grad_().requires_grad_(False)  # autograd metadata, but no gradient
    module = holder(buffer)
    program = program_on(module)
    for _ in range(4):
        assert holds(program, module)
    assert program.memo["images"] == 1
    IN_PLACE[name](buffer)
    for _ in range(3):
        assert not holds(program, module)


@pytest.mark.parametrize(
    "shape", [(), (0,), (5,), (2, 0, 3), (1, 1), (2, 3, 4), (2, 1, 3, 1, 2), (1, 2, 1, 2, 1, 2), (2,) * 9]
)
def test_every_number_of_dimensions(shape):
    module = holder(torch.randn(shape))
    program = program_on(module)
    for _ in range(4):
        assert holds(program, module)
    for other in [
        (),
        (0,),
        (5,),
        (2, 0, 3),
        (3, 0, 2),
        (1, 1),
        (2, 3, 4),
        (4, 3, 2),
        (2, 1, 3, 1, 2),
        (1, 2, 1, 2, 1, 2),
        (2,) * 9,
    ]:
        module._parameters["p"].data = torch.randn(other)
        assert holds(program, module) == (other == shape)
        module._parameters["p"].data = torch.randn(shape)
        assert holds(program, module)


def test_inputs_are_compared_too():
    """An input is a new tensor on every call; its history, not only its flag, says whether it requires a gradient."""
    found = GuardSet()
    found.add_tensor(LocalSource("x"), torch.randn(3, 4))
    program = found.program()
    leaf = torch.randn(3, 4, requires_grad=True)
    inputs = [
        (torch.randn(3, 4), True),
        (torch.randn(3, 4), True),
        (leaf, False),
        (leaf * 1, False),
        ((leaf * 1).detach(), True),
        (torch.randn(4, 3).t(), False),
        (torch.randn(3, 4).double(), False),
        (torch.randn(3, 4, device="meta"), False),
        (torch.complex(torch.randn(3, 4), torch.randn(3, 4)).conj().imag, False),
        (torch._efficientzerotensor((3, 4)), False),
        (torch.nn.Parameter(torch.randn(3, 4), requires_grad=False), False),
        (torch.randn(6, 4)[3:], True),
    ]
    for _ in range(3):
        for tensor, expected in inputs:
            held = program.check({"x": tensor})
            assert held == expected == (program.why_fails({"x": tensor}) is None)


def test_an_input_with_a_history():
    found = GuardSet()
    found.add_tensor(LocalSource("x"), torch.randn(3, 4, requires_grad=True) * 1)
    program = found.program()
    leaf = torch.randn(3, 4, requires_grad=True)
    for _ in range(3):
        for tensor, expected in [(leaf * 1, True), (leaf, True), (leaf.detach(), False), (leaf * 2, True)]:
            assert program.check({"x": tensor}) == expected == (program.why_fails({"x": tensor}) is None)


# ---- of all kinds of histories, one after the other


def made_without_gradients():
    with torch.no_grad():
        return torch.ones(3, 2, requires_grad=True).t()


def base_required_later():
    base = torch.ones(3, 2)
    view = base.t()
    base.requires_grad_()
    return view


def detached_in_place():
    result = torch.ones(2, 3, requires_grad=True) * 1
    return result.detach_()


KINDS = {
    "plain": lambda: torch.ones(2, 3),
    "leaf": lambda: torch.ones(2, 3, requires_grad=True),
    "result": lambda: torch.ones(2, 3, requires_grad=True) * 1,
    "frozen": lambda: torch.ones(2, 3).requires_grad_().requires_grad_(False),
    "detached": lambda: (torch.ones(2, 3, requires_grad=True) * 1).detach(),
    "detached in place": detached_in_place,
    "transposed": lambda: torch.ones(3, 2).t(),
    "view of a leaf": lambda: torch.ones(3, 2, requires_grad=True).t(),
    "view made without gradients": made_without_gradients,
    "view whose base requires one later": base_required_later,
    "view that requires one": lambda: torch.ones(6).view(2, 3).requires_grad_(),
}


@pytest.mark.parametrize("first", KINDS)
def test_gradients_of_tensors_met_in_any_order(first):
    """A guard that has let a tensor pass remembers its bytes: no other tensor of these bytes may have another answer."""
    for second, third in itertools.permutations(KINDS, 2):
        guards = GuardSet()
        guards.add_tensor(LocalSource("x"), KINDS[first](), by_identity=False)
        program = guards.program()
        for kind in (first, second, third, second, first, third):
            x = KINDS[kind]()
            held, why = program.check({"x": x}), program.why_fails({"x": x})
            assert held == (why is None), (second, third, kind, why)
