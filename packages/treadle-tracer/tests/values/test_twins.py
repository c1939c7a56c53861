"""Objects that the program has just made, as arguments of functions whose results are cached."""

from __future__ import annotations

import functools

import pytest
import torch
from compile_runs import compiled

CALLS: list[object] = []
HASHED: list[object] = []


class Signature:
    """Hashed and compared by what it holds."""

    def __init__(self, shape, kind="plain"):
        self.shape = tuple(int(n) for n in shape)
        self.kind = kind

    def __eq__(self, other):
        return isinstance(other, Signature) and self.shape == other.shape and self.kind == other.kind

    def __hash__(self):
        return 1 + hash(self.shape)


class Frozen(dict):
    """A dict that keeps its hash."""

    __slots__ = ("_hash",)

    def __new__(cls, *args):
        made = dict.__new__(cls, *args)
        dict.__init__(made, *args)
        object.__setattr__(made, "_hash", None)
        return made

    def __init__(self, *args):
        pass

    def __hash__(self):
        if self._hash is None:
            object.__setattr__(self, "_hash", hash(frozenset(self.items())))
        return self._hash


class Backend:
    """Hashed by its address, in Python."""

    def __init__(self, factor):
        self.factor = factor

    def __hash__(self):
        return id(self)

    def __eq__(self, other):
        return self is other


class Counting(Signature):
    def __eq__(self, other):
        return super().__eq__(other)

    def __hash__(self):
        HASHED.append(self.shape)
        return super().__hash__()


BACKEND = Backend(2.0)


@functools.cache
def planned(*args, **kwargs):
    """What an einsum-like library finds out for shapes, once."""
    CALLS.append((args, kwargs))
    return float(len(args) + 2 * len(kwargs))


def _of_a_signature(x):
    return x.sin() * planned(Signature(x.shape))


def _among_others(x):
    return x.sin() * planned("a b", (Signature(x.shape), Signature(x.shape[1:], "inner")), BACKEND)


def _of_a_dict(x):
    return x.sin() * planned(args=Frozen({"x": Signature(x.shape), "backend": BACKEND}))


@pytest.mark.parametrize("program", [_of_a_signature, _among_others, _of_a_dict])
@pytest.mark.parametrize("setup_in_eager", [False, True])
def test_what_the_cache_knows_is_in_the_graph(program, setup_in_eager):
    planned.cache_clear()
    CALLS.clear()
    run, said = compiled(program, setup_in_eager=setup_in_eager)
    x = torch.randn(2, 3)
    results = [run(x) for _ in range(4)]
    assert len(CALLS) == 1
    assert all(torch.equal(result, program(x)) for result in results)
    assert not said.codes() and len(said.graphs) == 1


def test_each_of_a_few_sizes_has_a_graph_and_others_break_it():
    planned.cache_clear()
    CALLS.clear()
    run, said = compiled(_of_a_signature)
    for rows in (2, 3, 4, 5, 6, 7, 8, 9, 10, 2, 3, 10):
        x = torch.randn(rows, 3)
        assert torch.equal(run(x), _of_a_signature(x))
    assert len(CALLS) == 9
    assert len(said.graphs) <= 8


def test_a_cache_that_is_cleared_is_filled_again():
    planned.cache_clear()
    run, said = compiled(_of_a_signature)
    x = torch.randn(2, 3)
    for _ in range(3):
        run(x)
    planned.cache_clear()
    CALLS.clear()
    for _ in range(3):
        assert torch.equal(run(x), _of_a_signature(x))
    assert len(CALLS) == 1 and len(said.graphs) <= 2


def test_the_object_in_the_cache_is_the_program_s():
    """A cache keeps what it is asked with first, and what is made of it may hold it."""

    @functools.cache
    def holder(signature):
        return [signature]

    def program(x):
        signature = Signature(x.shape)
        return holder(signature)[0] is signature, x * 2

    run, _ = compiled(program)
    assert [run(torch.ones(2))[0] for _ in range(3)] == [True, False, False]


def test_hashes_with_effects_are_python_s():
    planned.cache_clear()
    HASHED.clear()

    def program(x):
        return x * planned(Counting(x.shape))

    run, _ = compiled(program)
    x = torch.randn(2, 3)
    for calls in range(1, 7):
        run(x)
        assert len(HASHED) == calls


def test_another_attribute_is_another_question():
    planned.cache_clear()

    def program(x, kind):
        return x * planned(Signature(x.shape, kind), "a", kind)

    run, _ = compiled(program)
    x = torch.randn(2, 3)
    for kind in ("plain", "other", "plain", "other", "third", "third"):
        assert torch.equal(run(x, kind), program(x, kind))


def test_an_object_that_changes_is_asked_as_it_is():
    @functools.cache
    def numbered(signature):
        made.append(signature.kind)
        return len(made)

    def program(x):
        signature = Signature(x.shape)
        first = numbered(signature)
        signature.kind = "other"
        return x * first, first, numbered(signature), numbered(Signature(x.shape))

    x = torch.randn(2, 3)
    outcomes = []
    for run in (program, compiled(program)[0]):
        numbered.cache_clear()
        made: list[str] = []
        outcomes.append([run(x)[1:] for _ in range(5)])
    assert outcomes[0] == outcomes[1]


def test_hashes_of_sizes_and_objects_are_known():
    def program(x, y):
        key = hash((Signature(x.shape), x.shape[0], frozenset({"a", 2})))
        return x * 2, key, hash(Frozen({"x": BACKEND, "y": 2}))

    run, said = compiled(program)
    for rows in (2, 3):
        x = torch.randn(rows, 3)
        assert run(x, x)[1:] == program(x, x)[1:]
    assert not said.codes()


def test_a_hash_of_a_number_that_changes_is_a_constant():
    def program(x, signature):
        known = {Signature(x.shape): 1, signature: 2}
        return x * len(known) * known[Signature(signature.shape)], hash(x.shape[0])

    run, said = compiled(program)
    for rows in (2, 3, 4, 3):
        x = torch.randn(rows, 3)
        for shape in ((rows, 3), (9, 9)):
            found, expected = run(x, Signature(shape)), program(x, Signature(shape))
            assert torch.equal(found[0], expected[0]) and found[1] == expected[1]
    assert not said.codes()
