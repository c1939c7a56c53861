"""`id(obj)` as a key, compared, stored and returned, of constants, of what the trace makes, and of objects from outside."""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch
from compile_runs import compiled


class Node:
    def __init__(self, *children):
        self.children = children

    def method(self):
        return self


@dataclasses.dataclass
class Fields:
    name: str
    flag: bool
    call: object
    value: torch.Tensor
    nothing: None = None
    many: list = dataclasses.field(default_factory=list)


def with_known_fields(x):
    """As `apply_to_collection` of lightning_utilities does."""
    data = Fields("loss", True, Node().method, x * 2, None, [x, 3])
    memo = {}
    for field in dataclasses.fields(data):
        found = getattr(data, field.name)
        memo[id(found)] = found
    made = copy.deepcopy(data, memo=memo)
    same = [getattr(made, f.name) is getattr(data, f.name) for f in dataclasses.fields(data)]
    return made.value + 1, same, made is data, len(memo)


def singletons(x):
    table = {id(None): 1, id(True): 2, id(3): 3, id(torch.float32): 4, id(Node): 5, id(copy.copy): 6}
    return x + 1, [table.get(id(each)) for each in (None, True, 3, torch.float32, Node, copy.copy, False)]


def texts(x):
    first, second = "a" * 3, "b" * 3
    return x + 1, id(first) == id(second), id(first) == id(first), id(second) in {id(first): 1}


def tensors(x):
    y, z = x + 1, x + 1
    seen = {id(y), id(x)}
    return y, id(y) in seen, id(z) in seen, id(y) == id(z), id(x) == id(y)


def functions(x):
    def first():
        return x

    def second():
        return x

    return first(), id(first) == id(second), {id(first): 1}.get(id(second))


class ByHand:
    def __init__(self, items):
        self.items, self.again = items, items

    def __deepcopy__(self, memo):
        made = ByHand(None)
        memo[id(self)] = made
        made.items, made.again = copy.deepcopy(self.items, memo), copy.deepcopy(self.again, memo)
        return made


def copied_by_hand(x):
    node = ByHand([x, {"k": [1]}])
    node.items.append(node)
    made = copy.deepcopy([node, node])
    return x + 1, made[0] is made[1], made[0].items is made[0].again, made[0].items[2] is made[0], made[0].items[1]


def memo_afterwards(x):
    memo = {}
    original = [[1], [2]]
    copy.deepcopy(original, memo)
    return x + 1, len(memo), [len(kept) for kept in memo.values()], original[0] in memo.values()


PROGRAMS = (with_known_fields, singletons, texts, tensors, functions, copied_by_hand, memo_afterwards)


@pytest.mark.parametrize("program", PROGRAMS)
def test_programs_are_one_graph(program):
    run, recorder = compiled(program)
    x = torch.ones(3)
    for _ in range(2):
        assert str(run(x)) == str(program(x))
    assert not recorder.breaks


def test_numbers_that_leave_are_those_of_the_objects():
    kept = []

    def f(x):
        node, y = Node(), x + 1
        kept.extend((node, y))
        return y, id(node), id(y), {id(node): "node"}, id(x), f"{id(kept)}"

    run, _ = compiled(f)
    for _ in range(3):
        x = torch.ones(3)
        y, *found = run(x)
        assert kept[-1] is y
        assert found == [id(kept[-2]), id(y), {id(kept[-2]): "node"}, id(x), f"{id(kept)}"]


def test_other_objects_are_no_recompile_where_the_number_does_not_matter():
    def f(x, a, b):
        seen = {id(a): 1, id(x): 2}
        return x + 1, id(b) in seen, id(a) == id(b)

    run, recorder = compiled(f)
    a, b = [1], [1]
    assert run(torch.ones(3), a, b)[1:] == (False, False)
    assert run(torch.ones(3), [1], [1])[1:] == (False, False)
    assert len(recorder.entries) == 1
    assert run(torch.ones(3), a, a)[1:] == (True, True)
    assert run(torch.ones(3), b, a)[1:] == (False, False)
    assert len(recorder.entries) == 2


def test_a_number_that_is_kept_between_calls():
    class Last:
        last = None

        def step(self, x):
            seen = {id(x)}
            again = self.last in seen
            table = {id(x): 3}
            found = table.get(self.last)
            self.last = id(x)
            return x + 1, again, found

    traced, plain = Last(), Last()
    run, _ = compiled(Last.step)
    tensors_ = [torch.ones(3) for _ in range(3)]
    for i in (0, 0, 1, 1, 0, 2, 2, 2, 0, 0):
        assert run(traced, tensors_[i])[1:] == plain.step(tensors_[i])[1:]
        assert traced.last == plain.last == id(tensors_[i])


def test_numbers_of_constants_that_are_kept_between_calls():
    def first(x, kept):
        kept.append(id("loss"))
        return x + 1

    def compared(x, kept):
        kept.append(id("loss"))
        return x + 1, kept[0] == id("loss"), kept[0] in [id("loss")]

    def looked_up(x, kept):
        table = {number: 1 for number in kept}
        mine = {id("loss"): 2}
        kept.append(id("loss"))
        return x + 1, table.get(id("loss")), mine.get(kept[0]), id("loss") in set(kept)

    def in_a_dict(x, kept):
        known = kept.setdefault(id("loss"), 0)
        kept[id("loss")] = known + 1
        return x + 1, kept[id("loss")], len(kept)

    for program, make in ((first, list), (compared, list), (looked_up, list), (in_a_dict, dict)):
        run, kept, plain = compiled(program)[0], make(), make()
        for _ in range(4):
            assert str(run(torch.ones(3), kept)) == str(program(torch.ones(3), plain))
            assert kept == plain


def test_a_number_that_is_known_before_a_break():
    def f(x, n):
        text = "ab" + str(n)
        return x + 1, id(text) == id(text), {id(text): 1}.get(id(text))

    run, _ = compiled(f)
    for n in (1, 2, 3, 1):
        assert run(torch.ones(3), n)[1:] == (True, 1)


def test_two_equal_texts_break():
    def f(x, text):
        return x + 1, {id("loss"): 1}.get(id(text))

    run, recorder = compiled(f)
    text = "".join(["lo", "ss"])
    assert run(torch.ones(3), text)[1] == f(torch.ones(3), text)[1]
    assert recorder.codes() == ["identity-of-equals"]


def test_equal_texts_from_outside_are_told_apart():
    def f(x, fields):
        table = {id(fields[0]): 0}
        table[id(fields[1])] = 1
        return x + 1, len(table)

    run, recorder = compiled(f)
    text = "".join(["lo", "ss"])
    other = "".join(["lo", "ss"])
    for fields in ([text, text], [text, other], [other, other], [text, "abc"], [text, text]):
        assert run(torch.ones(3), fields)[1] == f(torch.ones(3), fields)[1]
    # Of texts that have become open, and of their numbers in the continuation.
    assert set(recorder.codes()) <= {"identity-number", "varying-number"}


def test_copies_of_outside_objects_that_become_one_object():
    def f(x, pair):
        made = copy.deepcopy(pair)
        return x + 1, made[0] is made[1]

    run, _ = compiled(f)
    node = Node()
    assert run(torch.ones(3), [Node(), Node()])[1] is False
    assert run(torch.ones(3), [node, node])[1] is True
    assert run(torch.ones(3), [[1], [1]])[1] is False
    assert run(torch.ones(3), [node.children, node.children])[1] is True


def test_a_memo_that_changes_constants():
    def f(x):
        memo = {id("name"): "other", id(None): 5}
        return x + 1, copy.deepcopy(["name", None], memo)

    assert compiled(f)[0](torch.ones(3))[1] == f(torch.ones(3))[1]
