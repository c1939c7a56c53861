"""What tensors of subclasses rely on changes between calls: the class, its methods, attributes of the tensor."""

from __future__ import annotations

import torch
from mutate_runs import check, collect, ones


def _class():
    class Tagged(torch.Tensor):
        scale = 2.0

    return Tagged


def override_added():
    cls = _class()

    def f(x):
        return (x.as_subclass(cls) + 1).as_subclass(torch.Tensor)

    def override(own, function, kinds, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            return function(*args, **(kwargs or {})) if function is not torch.Tensor.add else args[0] - 1

    yield f, ones()
    cls.__torch_function__ = classmethod(override)
    yield f, ones()
    del cls.__torch_function__
    yield f, ones()


def override_turned_off():
    cls = _class()

    def f(x):
        return type(x + 1).__name__

    yield f, ones().as_subclass(cls)
    cls.__torch_function__ = torch._C._disabled_torch_function_impl
    yield f, ones().as_subclass(cls)


def attribute_of_the_class():
    cls = _class()

    def f(x):
        return x.as_subclass(torch.Tensor) * x.scale

    yield f, ones().as_subclass(cls)
    cls.scale = 3.0
    yield f, ones().as_subclass(cls)


def attribute_of_the_tensor():
    cls = _class()

    def f(x):
        return x.as_subclass(torch.Tensor) * x.scale

    kept = ones().as_subclass(cls)
    yield f, kept
    kept.scale = 5.0
    yield f, kept
    del kept.scale
    yield f, kept


def another_class():
    first, second = _class(), _class()
    second.scale = 7.0

    def f(x):
        return x.as_subclass(torch.Tensor) * getattr(x, "scale", 1.0)

    yield f, ones().as_subclass(first)
    yield f, ones().as_subclass(second)
    yield f, ones()


def size_and_dtype():
    cls = _class()

    def f(x):
        return (x + 1).as_subclass(torch.Tensor), x.shape[0]

    yield f, torch.ones(2).as_subclass(cls)
    yield f, torch.ones(3).as_subclass(cls)
    yield f, torch.ones(4).as_subclass(cls)
    yield f, torch.ones(4, dtype=torch.float64).as_subclass(cls)


def one_object_or_two():
    cls = _class()

    def f(a, b):
        a.add_(1)
        return (a + b).as_subclass(torch.Tensor), a is b

    one = torch.ones(2).as_subclass(cls)
    yield f, torch.ones(2).as_subclass(cls), torch.ones(2).as_subclass(cls)
    yield f, one, one
    yield f, torch.ones(2).as_subclass(cls), torch.ones(2).as_subclass(cls)


@collect(globals())
def test_tensor_subclasses(program):
    check(program)
