from __future__ import annotations

import copy
import gc
import io
import pickle
import weakref

import pytest
import torch

from treadle.compiled_module import compiled_module, is_compiled_module, original_of


class Net(torch.nn.Module):
    """A net."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x, scale=1):
        return self.linear(x) * scale


@pytest.fixture
def pair():
    original = Net()
    calls = []

    def run(module, *args, **kwargs):
        calls.append((args, kwargs))
        return module(*args, **kwargs)

    compiled = compiled_module(original, run)
    return original, compiled, calls


def test_the_call_goes_through_run_with_the_original(pair):
    original, compiled, calls = pair
    x = torch.ones(2, 3)
    assert torch.equal(compiled(x, scale=2), original(x, scale=2))
    assert calls == [((x,), {"scale": 2})]
    assert is_compiled_module(compiled) and not is_compiled_module(original)
    assert original_of(compiled) is original and original_of(original) is original


def test_type_and_text_are_those_of_the_original(pair):
    original, compiled, _ = pair
    assert isinstance(compiled, Net)
    cls = type(compiled)
    assert (cls.__name__, cls.__qualname__, cls.__module__, cls.__doc__) == ("Net", "Net", __name__, "A net.")
    assert repr(compiled) == repr(original)


def test_state_is_one_and_the_same(pair):
    original, compiled, _ = pair
    assert list(compiled.state_dict()) == list(original.state_dict())
    assert all(a is b for a, b in zip(compiled.parameters(), original.parameters(), strict=True))
    compiled.eval()
    assert not original.training and not original.linear.training
    original.train()
    assert compiled.training
    compiled.extra = torch.nn.Linear(1, 1)
    assert original.extra is compiled.extra and "extra.weight" in original.state_dict()
    original.note = 3
    assert compiled.note == 3
    del compiled.note
    assert not hasattr(original, "note")
    compiled.load_state_dict({k: torch.ones_like(v) for k, v in original.state_dict().items()})
    assert original.linear.weight.eq(1).all()
    assert compiled.double() is compiled and original.linear.weight.dtype == torch.float64


def test_hooks_run_once_and_on_whichever_was_registered(pair):
    original, compiled, _ = pair
    seen = []
    compiled.register_forward_hook(lambda m, a, o: seen.append("hook"))
    original.register_forward_pre_hook(lambda m, a: seen.append("pre"))
    compiled(torch.ones(1, 3))
    assert seen == ["pre", "hook"]


def test_pickle_and_copies_are_of_the_original_class(pair):
    original, compiled, calls = pair
    loaded = pickle.loads(pickle.dumps(compiled))
    deep = copy.deepcopy(compiled)
    shallow = copy.copy(compiled)
    assert type(loaded) is type(deep) is type(shallow) is Net
    assert torch.equal(loaded.linear.weight, original.linear.weight)
    assert deep.linear is not original.linear
    file = io.BytesIO()
    torch.save(compiled, file)
    file.seek(0)
    assert type(torch.load(file, weights_only=False)) is Net
    assert calls == []


def test_it_goes_away_with_its_last_reference():
    compiled = compiled_module(Net(), lambda module, x: module(x))
    gone, class_gone = weakref.ref(compiled), weakref.ref(type(compiled))
    del compiled
    gc.collect()
    assert gone() is None and class_gone() is None


def test_it_works_as_a_child_of_another_module(pair):
    _, compiled, calls = pair
    outer = torch.nn.Sequential(compiled, torch.nn.ReLU())
    assert list(outer.state_dict()) == ["0.count", "0.linear.weight", "0.linear.bias"]
    outer(torch.ones(1, 3))
    assert len(calls) == 1
