"""Modules that are other objects at every call: guarded by identity first, and by structure once another has stood in the same place."""

from __future__ import annotations

import copy
import gc
import weakref

import pytest
import torch
from compile_runs import compiled, item, run_graph
from torch import nn

import treadle_frame
from treadle_tracer import TracerOptions, compile_handler


class Layer(nn.Module):
    def __init__(self, index=0, width=4):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.dropout = nn.Dropout(0.0)
        self.register_buffer("scale", torch.ones(width))
        self.index = index
        self.kernel = (1, 2)

    def forward(self, x):
        return torch.relu(self.dropout(self.linear(x)) * self.scale) + self.index * self.kernel[1]


class Breaking(Layer):
    """The break is in the layer."""

    def forward(self, x):
        x = torch.relu(self.linear(x))
        item(x.sum())
        return x * self.scale + self.index


class Stack(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
            item(x.sum())
        return x * 2


def gradients(module, result):
    module.zero_grad()
    result.square().sum().backward()
    return [p.grad.clone() for p in module.parameters()]


def graphs_of_a_loop(layers, training):
    torch.manual_seed(0)
    module = Stack(layers).train(training)
    fast, said = compiled(module.forward)
    for _ in range(3):
        x = torch.randn(2, 4)
        with torch.set_grad_enabled(training):
            got, want = fast(x), module(x)
        assert torch.equal(got, want)
        if training:
            for a, b in zip(gradients(module, fast(x)), gradients(module, module(x)), strict=True):
                assert torch.equal(a, b)
    return len(said.graphs), said.skips


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("kind", [Layer, Breaking])
def test_a_loop_over_layers_with_a_break_costs_a_number_of_graphs_that_does_not_depend_on_how_many(kind, training):
    runs = {n: graphs_of_a_loop([kind(i) for i in range(n)], training) for n in (3, 6, 24)}
    assert all(skips == [] for _, skips in runs.values())
    assert runs[6] == runs[24]
    assert runs[24][0] <= 6


def test_layers_of_two_classes_have_entries_of_their_own():
    class Other(Layer):
        def forward(self, x):
            return super().forward(x) * 3

    count, skips = graphs_of_a_loop([(Layer, Other)[i % 2](i) for i in range(12)], training=False)
    assert skips == []
    assert count <= 10


def call(module, x):
    return module(x)


class Holder:
    def __init__(self, module):
        self.module = module


class Wrapper(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x) + 1


PLACES = {
    "argument": (call, lambda m: m),
    "attribute": (lambda held, x: held.module(x), Holder),
    "item": (lambda held, x: held[0](x), lambda m: [m]),
    "wrapped": (call, lambda m: Wrapper(Wrapper(m))),
    "closure": (lambda f, x: f(x), lambda m: lambda x: m(x) * 2),
    "bound method": (lambda f, x: f(x), lambda m: m.forward),
    "sequence": (call, lambda m: nn.Sequential(m, nn.ReLU(), m)),
}


@pytest.mark.parametrize("place", PLACES)
def test_modules_made_anew_are_compiled_twice(place):
    function, put = PLACES[place]
    fast, said = compiled(function)
    for _ in range(6):
        held, x = put(Layer()), torch.randn(3, 4)
        assert torch.equal(fast(held, x), function(held, x))
    assert len(said.graphs) == 2
    assert said.skips == []


def made_inside(x):
    class_of = Holder(Wrapper(torch.nn.Tanh()))
    for _ in range(2):
        y = x + 1
        x = class_of.module(y * item(y.sum()))
    return x


def test_modules_that_the_function_makes_are_compiled_once():
    fast, said = compiled(made_inside)
    for _ in range(5):
        x = torch.linspace(-1, 1, 4)
        torch.testing.assert_close(fast(x), made_inside(x))
    assert not any("found a" in str(reason) for _, reason in said.recompiles)


def test_submodules_of_a_class_that_the_function_makes_stay_constants():
    class Layers(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.ModuleList([Layer(), Layer(), Layer()]), nn.ModuleList([Layer(), Layer()])

        def forward(self, x):
            for layer in self.first[:2]:  # a slice is a ModuleList made anew
                x = layer(x)
            for layer in self.last:
                x = layer(x)
            return x

    module = Layers()
    fast, said = compiled(module.forward)
    for _ in range(3):
        x = torch.randn(3, 4)
        torch.testing.assert_close(fast(x), module(x))
    assert len(said.graphs) == 1
    assert not [node for node in said.graphs[0].graph.nodes if node.op == "placeholder" and "weight" in node.name]


def test_a_module_made_anew_around_one_that_stays():
    inner = Layer()
    fast, said = compiled(call)
    for _ in range(6):
        x = torch.randn(3, 4)
        assert torch.equal(fast(Wrapper(inner), x), Wrapper(inner)(x))
    assert len(said.graphs) == 2


def test_a_module_that_is_replaced_once_is_a_constant_again():
    stack = nn.Sequential(nn.Linear(4, 4))
    fast, said = compiled(stack.forward)
    for _ in range(2):
        x = torch.randn(2, 4)
        assert torch.equal(fast(x), stack(x))
        stack[0] = nn.Linear(4, 4)
    assert [len(g.graph.find_nodes(op="get_attr")) for g in said.graphs] == [2, 2]


def test_instances_that_are_compiled_each_have_their_parameters_as_constants():
    for _ in range(3):
        module = Layer()
        fast, said = compiled(module.forward)
        fast(torch.randn(2, 4))
        assert len(said.graphs[-1].graph.find_nodes(op="get_attr")) == 3


class Unasked:
    """What a class may hold besides functions: it is asked for nothing."""

    def __getattr__(self, name):
        raise RuntimeError(name)


def test_what_a_class_of_compiled_instances_holds_is_not_asked():
    class Holding(Layer):
        held = Unasked()

        def forward(self, x):
            return self.linear(x) * 2

    x = torch.randn(2, 4)
    for module in (Holding(), Holding()):
        assert torch.equal(compiled(module.forward)[0](x), module.linear(x) * 2)


def test_the_numbers_of_modules_made_anew_are_lifted():
    fast, said = compiled(call)
    for index in (3, 5, 6, 9, 11):
        module, x = Layer(index), torch.randn(3, 4)
        assert torch.equal(fast(module, x), module(x))
    assert len(said.graphs) == 2


def test_modules_of_other_sizes_share_an_entry():
    fast, said = compiled(call)
    for width in (4, 5, 6, 7, 9):
        module, x = Layer(width=width), torch.randn(3, width)
        assert torch.allclose(fast(module, x), module(x))
    assert len(said.graphs) <= 3


def test_a_module_that_was_guarded_dies():
    fast, _ = compiled(call)
    seen = []
    for _ in range(3):
        module = Layer()
        fast(module, torch.randn(3, 4))
        seen += [weakref.ref(module), weakref.ref(module.linear)]
    del module
    gc.collect()
    assert [reference() for reference in seen] == [None] * 6


# ---- what may change in such a module between two calls


class Many(nn.Module):
    """Reads a bit of everything."""

    def __init__(self):
        super().__init__()
        self.layer = Layer(2)
        self.other = Layer(3)
        self.norm = nn.BatchNorm1d(4)
        self.bias = nn.Parameter(torch.ones(4))
        self.flag, self.text, self.rate, self.shape = True, "a", 0.5, (1, 4)
        self.missing = None
        self.table = {"k": 2}

    def forward(self, x):
        x = self.norm(self.layer(x)) + self.bias
        x = self.other(x) * self.rate if self.flag else x
        x = x + self.table["k"] + len(self.text)
        if self.missing is not None:
            x = x * self.missing
        if hasattr(self, "extra"):
            x = x + 7
        self.layer.scale.add_(1)
        self.steps = getattr(self, "steps", 0) + 1
        return (x * self.other.scale).reshape(self.shape[0], -1) * self.training


class Louder(Many):
    def forward(self, x):
        return super().forward(x) * 2


def double(module, args, result):
    return result * 2


def set_in(mapping, key, value):
    mapping[key] = value


NINE = Layer(9)

CHANGES = {
    "training": lambda m: m.eval(),
    "training of a submodule": lambda m: m.norm.eval(),
    "a flag": lambda m: setattr(m, "flag", False),
    "a text": lambda m: setattr(m, "text", "abc"),
    "a float": lambda m: setattr(m, "rate", 0.25),
    "a tuple": lambda m: setattr(m, "shape", (3, 4)),
    "a tuple of a submodule": lambda m: setattr(m.layer, "kernel", (1, 5)),
    "an item": lambda m: m.table.update(k=5),
    "an attribute that was absent": lambda m: setattr(m, "extra", 1),
    "a class attribute": lambda m: setattr(type(m), "extra", 1),
    "None becomes a tensor": lambda m: setattr(m, "missing", torch.full((4,), 2.0)),
    "None becomes a number": lambda m: setattr(m, "missing", 3),
    "class": lambda m: setattr(m, "__class__", Louder),
    "class of a submodule": lambda m: setattr(m.other, "__class__", Breaking),
    "forward of the instance": lambda m: setattr(m.layer, "forward", lambda x: x * 3),
    "call of the instance": lambda m: setattr(m.layer, "_call_impl", lambda x: x * 3),
    "compiled call of the instance": lambda m: m.layer.__dict__.update(_compiled_call_impl=lambda x: x * 3),
    "forward hook": lambda m: m.layer.register_forward_hook(double),
    "forward pre-hook": lambda m: m.layer.register_forward_pre_hook(lambda module, args: (args[0] * 2,)),
    "full backward hook": lambda m: m.layer.register_full_backward_hook(lambda *args: None),
    "parameter": lambda m: setattr(m, "bias", nn.Parameter(torch.full((4,), 3.0))),
    "parameter of another size": lambda m: setattr(m, "bias", nn.Parameter(torch.full((1,), 3.0))),
    "parameter of another dtype": lambda m: setattr(m, "bias", nn.Parameter(torch.ones(4, dtype=torch.float64))),
    "parameter that is frozen": lambda m: m.bias.requires_grad_(False),
    "parameter in its place": lambda m: m.bias.data.fill_(3.0),
    "no bias": lambda m: setattr(m.layer.linear, "bias", None),
    "parameter shadowed": lambda m: m.__dict__.update(bias=torch.full((4,), 3.0)),
    "parameter deleted": lambda m: delattr(m, "bias"),
    "submodule": lambda m: setattr(m, "layer", copy.deepcopy(NINE)),
    "submodule of another class": lambda m: setattr(m, "layer", nn.Sequential(copy.deepcopy(NINE))),
    "submodule shadowed": lambda m: m.__dict__.update(layer=m.other),
    "submodule shared": lambda m: setattr(m, "other", m.layer),
    "submodule is None": lambda m: setattr(m, "other", None),
    "buffer": lambda m: setattr(m.layer, "scale", torch.full((4,), 3.0)),
    "buffer shared": lambda m: setattr(m.other, "scale", m.layer.scale),
    "buffer becomes a parameter": lambda m: (
        m.layer._buffers.pop("scale"),
        m.layer.register_parameter("scale", nn.Parameter(torch.ones(4), requires_grad=False)),
    ),
    "buffer is a view of another": lambda m: set_in(m.other._buffers, "scale", m.layer.scale.view(4)),
    "parameter shared": lambda m: setattr(m.other.linear, "weight", m.layer.linear.weight),
    "parameters shared inside": lambda m: setattr(m.other.linear, "bias", m.bias),
    "the name of a store is a parameter": lambda m: m.register_parameter("steps", nn.Parameter(torch.ones(4))),
    "the name of a store is a buffer": lambda m: m.register_buffer("steps", torch.ones(())),
    "the name of a store is a module": lambda m: m.add_module("steps", nn.ReLU()),
    "the dict of the parameters": lambda m: m.__dict__.update(
        _parameters={"bias": nn.Parameter(torch.full((4,), 3.0))}
    ),
    "no dict of the buffers": lambda m: m.__dict__.pop("_buffers"),
}


def outcome(function, module, x):
    """Result or exception, and what the module holds afterwards."""
    try:
        result = function(module, x)
    except Exception as error:
        result = type(error)
    return result, [
        *module.__dict__.get("_buffers", {}).values(),
        *vars(module).items(),
        *module.layer.state_dict().values(),
    ]


def same(a, b):
    if isinstance(a, torch.Tensor):
        return type(a) is type(b) and a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, (int, str, float, type)):
        return type(a) is type(b) and a == b
    return type(a) is type(b)


@pytest.mark.parametrize("with_gradients", [False, True])
@pytest.mark.parametrize("change", CHANGES)
def test_every_change_of_a_module_made_anew_is_seen(change, with_gradients, monkeypatch):
    torch.manual_seed(0)
    for cls in (Many, Louder):
        monkeypatch.setattr(cls, "extra", None, raising=False)
        monkeypatch.delattr(cls, "extra")
    fast, said = compiled(call)
    with torch.set_grad_enabled(with_gradients):
        for step in range(5):
            module, x = Many(), torch.randn(3, 4)
            slow = copy.deepcopy(module)
            for changed in (module, slow) if step >= 3 else ():
                CHANGES[change](changed)
            assert same(outcome(fast, module, x), outcome(call, slow, x)), f"call {step}"
            if step == 2:
                assert len(said.graphs) == 2
                monkeypatch.undo()
                monkeypatch.setattr(Many, "unused", 0, raising=False)


def test_modules_that_take_turns_are_each_looked_at():
    """The guards remember what has held; they must not take one module's facts for another's."""
    fast, _ = compiled(call)
    modules = [Many().eval() for _ in range(3)]
    x = torch.randn(3, 4)
    with torch.no_grad():
        for step in range(30):
            module = modules[step % 3]
            if step % 4 == 1:
                modules[(step + 1) % 3].flag = step % 8 == 1
            if step % 5 == 2:
                modules[(step + 2) % 3].table["k"] = step
            slow = copy.deepcopy(module)
            assert same(outcome(fast, module, x), outcome(call, slow, x)), f"step {step}"


def test_a_module_is_written_where_two_places_lead_to_one():
    def two(a, b, x):
        a.scale.mul_(2)
        return b.scale * x

    fast, said = compiled(two)
    for step in range(6):
        a, x = Layer(), torch.randn(4)
        b = a if step in (3, 4) else Layer()
        assert torch.equal(fast(a, b, x), x * (2 if a is b else 1))
    assert len(said.graphs) <= 3


def test_attributes_are_stored_on_the_module_of_the_call():
    def count(a, b, x):
        a.index = a.index + 1
        return x * b.index

    fast, _ = compiled(count)
    for step in range(8):
        a = Layer(step)
        b = a if step % 3 == 2 else Layer(10)
        x = torch.ones(2)
        assert torch.equal(fast(a, b, x), x * (step + 1 if a is b else 10))
        assert a.index == step + 1


def test_which_module_it_is_is_guarded_where_the_program_asks():
    known = Layer()
    asks = [
        lambda m, x: x * 2 if m is known else x * 3,
        lambda m, x: x * {known: 5}.get(m, 6),
        lambda m, x: x * 2 if m in (known, 1) else x * 3,
        lambda m, x: x * (id(m) == id(known)),
    ]
    for ask in asks:
        fast, _ = compiled(ask)
        for module in (Layer(), Layer(), known, Layer(), known):
            x = torch.ones(2)
            assert torch.equal(fast(module, x), ask(module, x))


def test_entries_of_modules_that_are_gone_are_dropped_at_once():
    parameters = []
    for _ in range(6):
        module = Layer()
        parameters.append(weakref.ref(module.linear.weight))
        fast, _ = compiled_again(module.forward)
        fast(torch.randn(2, 4))
        del module, fast
        gc.collect()
        assert treadle_frame.entries(Layer.forward.__code__) == ()
    assert [reference() for reference in parameters] == [None] * 6


def compiled_again(function):
    """As `compiled`, without forgetting the entries that there are."""
    handler = compile_handler(run_graph, TracerOptions(raise_internal_errors=True))
    handler.add_root(function.__code__)
    return treadle_frame.dispatcher(function, handler), handler


def test_a_global_module_that_is_replaced_again_and_again():
    scope = {"layer": None}

    def program(x):
        return scope["layer"](x) * 2

    fast, said = compiled(program)
    for _ in range(8):
        scope["layer"] = Layer()
        gc.collect()
        x = torch.randn(2, 4)
        assert torch.equal(fast(x), program(x))
    assert len(said.graphs) <= 3
    assert said.skips == []


def test_what_needs_the_identity_of_a_module_is_not_compiled_for_ever():
    """A module that is compiled on its own stands for its original, and so is always guarded by identity."""

    def fresh():
        module = Layer()
        module.__dict__["_treadle_original"] = Layer()
        return module

    fast, said = compiled(call, recompile_limit=4)
    with pytest.warns(RuntimeWarning, match="runs uncompiled"):
        for _ in range(40):
            module, x = fresh(), torch.randn(3, 4)
            fast(module, x)
    assert len(said.graphs) <= 24
