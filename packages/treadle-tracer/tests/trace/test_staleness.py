"""What a trace has read and Python changes afterwards: the next call must see it."""

from __future__ import annotations

import functools
import types

import pytest

torch = pytest.importorskip("torch")

from compile_runs import compiled, portrait  # noqa: E402
from trace_runs import run_quietly  # noqa: E402

nn = torch.nn

SCALE = 2
TABLE = {"a": 1, "b": [1, 2]}
NAMES = ["x", "y"]


def helper(x):
    return x * SCALE


def make_closure(k):
    def inner(x):
        return x * k

    def change(value):
        nonlocal k
        k = value

    return inner, change


class Config:
    kind = "plain"
    factor = 3

    def __init__(self):
        self.size = 4
        self.flags = {"on": True}
        self.items = [1, 2]
        self.child = None

    @property
    def double(self):
        return self.size * 2

    def method(self, x):
        return x + self.size


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 3)
        self.layers = nn.ModuleList([nn.Linear(3, 3)])
        self.act = torch.relu
        self.register_buffer("shift", torch.ones(3))
        self.stride = (1, 2)
        self.k = 2
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        x = self.act(self.lin(x)) * self.k + self.stride[0] + self.shift
        for layer in self.layers:
            x = layer(x)
        return self.drop(x)


def set_global(name, value):
    return lambda s: globals().__setitem__(name, value)


def state():
    """Fresh objects for one case."""
    torch.manual_seed(0)
    made = types.SimpleNamespace()
    made.c = Config()
    made.net = Net().eval()
    made.d = {"a": 1, "b": {"c": 2}}
    made.l = [1, [2, 3]]
    made.f, made.change = make_closure(2)
    made.p = functools.partial(torch.add, alpha=2)
    made.x = torch.ones(3)
    made.fn = helper
    made.s = {1, 2}
    return made


CASES = {
    "global_number": (lambda s: s.x * SCALE, set_global("SCALE", 5)),
    "global_in_callee": (lambda s: helper(s.x), set_global("SCALE", 7)),
    "global_function": (lambda s: helper(s.x), set_global("helper", lambda x: x - 1)),
    "global_dict_item": (lambda s: s.x + TABLE["a"], lambda s: TABLE.__setitem__("a", 9)),
    "global_dict_nested": (lambda s: s.x + sum(TABLE["b"]), lambda s: TABLE["b"].append(5)),
    "global_list_length": (lambda s: s.x + len(NAMES), lambda s: NAMES.append("z")),
    "key_appears": (lambda s: s.x + s.d.get("new", 0), lambda s: s.d.__setitem__("new", 4)),
    "key_goes": (lambda s: s.x + ("a" in s.d), lambda s: s.d.pop("a")),
    "key_order": (lambda s: (s.x, list(s.d)), lambda s: s.d.__setitem__("a", s.d.pop("a"))),
    "nested_dict": (lambda s: s.x + s.d["b"]["c"], lambda s: s.d["b"].__setitem__("c", 5)),
    "list_item": (lambda s: s.x + s.l[0], lambda s: s.l.__setitem__(0, 8)),
    "list_grows": (lambda s: s.x + len(s.l[1]), lambda s: s.l[1].append(1)),
    "set_grows": (lambda s: s.x + (3 in s.s), lambda s: s.s.add(3)),
    "attribute": (lambda s: s.x + s.c.size, lambda s: setattr(s.c, "size", 6)),
    "attribute_appears": (lambda s: s.x + getattr(s.c, "extra", 0), lambda s: setattr(s.c, "extra", 6)),
    "attribute_shadows_class": (lambda s: s.x + s.c.factor, lambda s: setattr(s.c, "factor", 6)),
    "attribute_goes": (lambda s: s.x + hasattr(s.c, "size"), lambda s: delattr(s.c, "size")),
    "attribute_type": (lambda s: s.x * s.c.size, lambda s: setattr(s.c, "size", 4.5)),
    "none_becomes_object": (lambda s: s.x + (s.c.child is None), lambda s: setattr(s.c, "child", 3)),
    "property_of_attribute": (lambda s: s.x + s.c.double, lambda s: setattr(s.c, "size", 6)),
    "method_on_instance": (lambda s: s.c.method(s.x), lambda s: setattr(s.c, "method", lambda x: x * 100)),
    "method_on_class": (
        lambda s: s.c.method(s.x),
        lambda s: setattr(type(s.c), "method", lambda self, x: x * 100),
    ),
    "class_attribute": (lambda s: s.x + s.c.factor, lambda s: setattr(type(s.c), "factor", 11)),
    "class_attribute_directly": (lambda s: s.x + Config.factor, lambda s: setattr(Config, "factor", 12)),
    "class_of_instance": (
        lambda s: (s.x, s.c.kind),
        lambda s: setattr(s.c, "__class__", type("Other", (Config,), {"kind": "other"})),
    ),
    "object_replaced": (lambda s: s.x + s.c.size, lambda s: setattr(s, "c", types.SimpleNamespace(size=9))),
    "closure": (lambda s: s.f(s.x), lambda s: s.change(5)),
    "function_replaced": (lambda s: s.fn(s.x), lambda s: setattr(s, "fn", torch.neg)),
    "partial_keyword": (
        lambda s: s.p(s.x, s.x),
        lambda s: setattr(s, "p", functools.partial(torch.add, alpha=3)),
    ),
    "tensor_dtype": (lambda s: s.x + 1, lambda s: setattr(s, "x", s.x.double())),
    "tensor_shape": (lambda s: s.x + s.x.shape[0], lambda s: setattr(s, "x", torch.ones(5))),
    "tensor_strides": (lambda s: s.x.is_contiguous(), lambda s: setattr(s, "x", torch.ones(6)[::2])),
    "tensor_requires_grad": (lambda s: (s.x * 2).requires_grad, lambda s: s.x.requires_grad_(True)),
    "tensor_becomes_parameter": (
        lambda s: isinstance(s.x, nn.Parameter),
        lambda s: setattr(s, "x", nn.Parameter(s.x)),
    ),
    "training": (lambda s: s.net(s.x).shape, lambda s: s.net.train()),
    "module_number": (lambda s: s.net(s.x), lambda s: setattr(s.net, "k", 3)),
    "module_tuple": (lambda s: s.net(s.x), lambda s: setattr(s.net, "stride", (5, 2))),
    "module_function": (lambda s: s.net(s.x), lambda s: setattr(s.net, "act", torch.tanh)),
    "submodule_replaced": (lambda s: s.net(s.x), lambda s: setattr(s.net, "lin", nn.Identity())),
    "submodule_added": (lambda s: s.net(s.x), lambda s: s.net.layers.append(nn.Tanh())),
    "submodule_class_swapped": (lambda s: s.net(s.x), lambda s: s.net.layers.__setitem__(0, nn.Identity())),
    "parameter_replaced": (lambda s: s.net(s.x), lambda s: setattr(s.net.lin, "weight", nn.Parameter(torch.eye(3)))),
    "parameter_data": (lambda s: s.net(s.x), lambda s: s.net.lin.weight.data.zero_()),
    "parameter_data_swapped": (lambda s: s.net(s.x), lambda s: setattr(s.net.lin.weight, "data", torch.eye(3))),
    "module_dtype": (
        lambda s: s.net(s.x.to(s.net.lin.weight.dtype)),
        lambda s: s.net.double(),
    ),
    "bias_removed": (lambda s: s.net(s.x), lambda s: setattr(s.net.lin, "bias", None)),
    "buffer_replaced": (lambda s: s.net(s.x), lambda s: setattr(s.net, "shift", torch.zeros(3))),
    "buffer_written": (lambda s: s.net(s.x), lambda s: s.net.shift.fill_(4)),
    "forward_hook": (lambda s: s.net(s.x), lambda s: s.net.lin.register_forward_hook(lambda m, i, o: o * 0)),
    "forward_pre_hook": (lambda s: s.net(s.x), lambda s: s.net.register_forward_pre_hook(lambda m, i: (i[0] * 0,))),
    "forward_patched": (lambda s: s.net(s.x), lambda s: setattr(s.net.lin, "forward", lambda x: x * 0)),
    "requires_grad_off": (
        lambda s: s.net(s.x).requires_grad,
        lambda s: s.net.requires_grad_(False),
    ),
    "grad_mode": (lambda s: s.net(s.x).requires_grad, lambda s: torch.set_grad_enabled(False)),
    "default_dtype": (lambda s: torch.ones(2).dtype, lambda s: torch.set_default_dtype(torch.float64)),
}  # fmt: skip


@pytest.fixture(autouse=True)
def _restored():
    saved = dict(globals())
    table, names, members = {"a": 1, "b": [1, 2]}, ["x", "y"], dict(vars(Config))
    yield
    torch.set_default_dtype(torch.float32)
    torch.set_grad_enabled(True)
    globals().update({name: saved[name] for name in ("SCALE", "helper")})
    TABLE.clear()
    TABLE.update(table)
    NAMES[:] = names
    for name in ("factor", "kind", "method"):
        setattr(Config, name, members[name])


@pytest.mark.parametrize("name", CASES)
def test_a_change_between_calls_is_seen(name):
    read, change = CASES[name]

    def run(s):
        return read(s), s.x + 1

    fast, recorder = compiled(run, backend=run_quietly)
    made = state()
    for step in range(2):
        torch.manual_seed(1)
        expected = portrait(run(made))
        for _ in range(2):
            torch.manual_seed(1)
            assert portrait(fast(made)) == expected, f"step {step}"
        if step == 0:
            change(made)
    assert recorder.graphs, (recorder.skips, recorder.codes(), recorder.breaks)
