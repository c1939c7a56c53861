from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from treadle_autograd.aliasing import why_not_independent
from treadle_autograd.contract import (
    CallInput,
    Constant,
    Contract,
    FreshOutput,
    Geometry,
    InputItself,
    Mutation,
    SameAsOutput,
    StaticInput,
    ViewOfFresh,
    ViewOfInput,
)
from treadle_autograd.wrapper import wrap_compiled

VIEWS = st.tuples(st.integers(0, 5), st.integers(0, 4), st.integers(1, 3))


@given(st.lists(VIEWS, min_size=1, max_size=4), st.sets(st.integers(0, 3)))
def test_overlap_is_never_missed(views, mutated):
    base = torch.zeros(64)
    inputs = [base.as_strided((size,), (stride,), offset) for offset, size, stride in views]
    mutated = frozenset(i for i in mutated if i < len(inputs))
    touched = [{offset + k * stride for k in range(size)} for offset, size, stride in views]
    clash = any(touched[i] & touched[j] and (i in mutated or j in mutated) for i in range(len(views)) for j in range(i))
    if clash:
        assert why_not_independent(inputs, mutated) is not None


def test_neighbours_in_one_storage_are_independent():
    base = torch.zeros(10)
    assert why_not_independent([base[:5], base[5:], 3], frozenset({0, 1})) is None
    assert why_not_independent([base[:6], base[5:]], frozenset()) is None
    assert why_not_independent([base[:6], base[5:]], frozenset({1})) is not None


def unexpected(*args):
    raise AssertionError("the original graph ran")


def test_fresh_outputs_need_no_wrapper():
    def compiled(x):
        return [x + 1]

    assert wrap_compiled(compiled, Contract((CallInput(0),), (), (FreshOutput(0),)), [None], unexpected) is compiled


def test_static_inputs_come_first():
    weight = torch.full((2,), 3.0)
    contract = Contract((StaticInput("w", weight), CallInput(0)), (), (FreshOutput(0),))
    run = wrap_compiled(lambda w, x: [w * x], contract, [weight, torch.ones(2)], unexpected)
    assert run(torch.tensor([1.0, 2.0]))[0].tolist() == [3.0, 6.0]


def test_outputs_are_rebuilt_and_inputs_written_back():
    contract = Contract(
        (CallInput(0),),
        (Mutation(input=0, position=0),),
        (
            InputItself(0),
            ViewOfInput(0, Geometry((2,), (1,), 1)),
            FreshOutput(1),
            ViewOfFresh(1, Geometry((1,), (1,), 2)),
            SameAsOutput(2),
            Constant("text"),
        ),
    )
    run = wrap_compiled(lambda x: [x + 1, x * 10], contract, [torch.ones(3)], unexpected)
    x = torch.tensor([1.0, 2.0, 3.0])
    itself, tail, fresh, last, again, text = run(x)
    assert itself is x and x.tolist() == [2.0, 3.0, 4.0]
    assert tail.tolist() == [3.0, 4.0] and tail.data_ptr() == x[1:].data_ptr()
    assert again is fresh and last.data_ptr() == fresh[2:].data_ptr() and text == "text"


def test_inputs_that_share_memory_run_the_original_graph():
    contract = Contract((CallInput(0), CallInput(1)), (Mutation(input=0, position=0),), (FreshOutput(1),))
    run = wrap_compiled(unexpected, contract, [torch.ones(2), torch.ones(2)], lambda x, y: ["eager"])
    base = torch.zeros(3)
    assert run(base[:2], base[1:]) == ["eager"]


def test_version_counters_count_the_changes_of_the_program() -> None:
    contract = Contract(
        (CallInput(0),), (Mutation(input=0, position=0, bumps=3),), (FreshOutput(1),), versions=((1, 2),)
    )
    run = wrap_compiled(lambda x: [x + 1, x * 2], contract, [None], unexpected)
    x = torch.ones(2)
    (out,) = run(x)
    assert x.tolist() == [2, 2] and x._version == 3 and out._version == 2
    with torch.inference_mode():
        inside = torch.ones(2)
        run(inside)
        assert inside.tolist() == [2, 2]


def test_views_of_one_tensor_count_all_their_changes():
    """They share a version counter: eager counts the changes of all of them, whether they are copied or made in place."""
    contract = Contract(
        inputs=(CallInput(0), CallInput(1), CallInput(2)),
        mutations=(Mutation(0, 0), Mutation(1, 1, bumps=3), Mutation(2, 2, bumps=0)),
        outputs=(),
    )
    base = torch.zeros(6)
    x, y, z = base[:2], base[2:4], base[4:]

    def in_place(a, b, c):
        return [a, b, c]

    def copied(a, b, c):
        return [a + 1, b + 2, c + 3]

    for compiled, values in ((in_place, [0, 0, 0, 0, 0, 0]), (copied, [1, 1, 2, 2, 3, 3])):
        before = base._version
        wrap_compiled(compiled, contract, [x, y, z], in_place)(x, y, z)
        assert base.tolist() == values and base._version - before == 4


def test_memory_that_moves_between_calls_is_checked_again():
    contract = Contract(inputs=(CallInput(0), CallInput(1)), mutations=(Mutation(0, 0),), outputs=())
    ran = []
    run = wrap_compiled(lambda x, y: [x + y], contract, [torch.ones(2)] * 2, lambda x, y: ran.append("eager"))
    base = torch.ones(4)
    run(base[:2], base[2:])
    run(base[:2], base[2:])
    assert base.tolist() == [3, 3, 1, 1] and not ran
    run(base[:2], base[1:3])
    assert base.tolist() == [3, 3, 1, 1] and ran == ["eager"]
