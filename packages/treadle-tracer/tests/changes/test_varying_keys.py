"""Keys, members, positions and strings that differ in every call cost at most one recompile."""

from __future__ import annotations

import collections

import pytest
import torch
from compile_runs import compiled
from mutate_runs import check_at_most_one_recompile, collect, ones
from torch import nn

STEPS = 8


def keys_are_added_to_a_dict():
    seen = {}

    def f(x, i):
        seen[i] = x.sum()
        return x + len(seen)

    for i in range(STEPS):
        yield f, ones(2), i


def names_are_added_to_a_dict():
    seen = {}

    def f(x, i):
        seen[f"layer{i}"] = i
        return x + len(seen), f"layer{i}" in seen

    for i in range(STEPS):
        yield f, ones(2), i


def what_was_computed_is_kept():
    kept = {}

    def f(x, i):
        if i not in kept:
            kept[i] = x.sum() * i
        return x + kept[i]

    for i in range(STEPS):
        yield f, ones(2), i


def what_a_name_gave_is_read():
    scales = {f"n{i}": torch.full((2,), float(i)) for i in range(STEPS)}

    def f(x, name):
        return x * scales[name] if name in scales else x

    for i in range(STEPS):
        yield f, ones(2), f"n{i}"


def counts_by_key():
    counts = collections.Counter()

    def f(x, i):
        counts[i] += 1
        return x + counts[i]

    for i in range(STEPS):
        yield f, ones(2), i


def members_are_added():
    seen = set()

    def f(x, i):
        new = i not in seen
        seen.add(i)
        return x + len(seen), new

    for i in range(STEPS):
        yield f, ones(2), i


def names_are_members():
    allowed = {f"n{i}" for i in range(STEPS)}

    def f(x, name):
        return x * 2 if name in allowed else x * 3

    for i in range(STEPS):
        yield f, ones(2), f"n{i}"


def lengths_of_names():
    def f(x, name):
        return x + len(name)

    for i in range(STEPS):
        yield f, ones(2), "a" * i


def names_are_kept():
    log = []

    def f(x, name):
        log.append(name)
        return x + 1, name, f"<{name}>", log[-1]

    for i in range(STEPS):
        yield f, ones(2), f"step{i}"


def a_name_has_a_prefix():
    def f(x, name):
        return x * 2 if name.startswith("a") and name != "abc" and "z" not in name else x

    for i in range(STEPS):
        yield f, ones(2), "a" * (i + 1)


def positions_in_a_table():
    table = [1.0, 2.5, 3.5, 7.0]

    def f(x, i):
        return x * table[i % 4] + (3, 1, 4, 1)[i % 4]

    for i in range(STEPS):
        yield f, ones(2), i


def numbers_of_rows_of_a_table():
    """The place of a number is computed from the position: the next trace finds it changed."""
    state, table = {"step": 0}, [[1.5 * i, i] for i in range(STEPS)]

    def f(x):
        state["step"] += 1
        row = table[state["step"] % STEPS]
        return x * row[0] + row[1]

    for _ in range(STEPS):
        yield f, ones(2)


def numbers_written_into_rows_of_a_table():
    """As RAdam keeps the factors of ten steps."""
    state, table = {"step": 0}, [[0, 0.0] for _ in range(2 * STEPS)]

    def f(x):
        state["step"] += 1
        row = table[state["step"] % (2 * STEPS)]
        row[0], row[1] = state["step"], 0.5 ** state["step"]
        return x * row[1]

    for _ in range(STEPS):
        yield f, ones(2)


def positions_of_tensors():
    weights = [torch.full((2,), float(i)) for i in range(STEPS)]

    def f(x, i):
        return x * weights[i] + weights[-1 - i]

    for i in range(STEPS - 1):
        if i != 4:
            yield f, ones(2), i


def positions_of_modules():
    torch.manual_seed(0)
    layers = nn.ModuleList([nn.Linear(2, 2) for _ in range(STEPS)])

    def f(x, i):
        return layers[i](x)

    for i in range(STEPS):
        yield f, ones(2), i


def a_hook_in_every_call():
    torch.manual_seed(0)
    layer = nn.Linear(2, 2)

    def f(x):
        handle = layer.register_forward_hook(lambda module, args, output: output * 2)
        y = layer(x)
        handle.remove()
        return y, len(layer._forward_hooks)

    for _ in range(STEPS):
        yield f, ones(2)


def a_local_dict():
    def f(x, i):
        made = {i: x, "total": 1, i + 1: x * 2}
        made[i] = made[i] + len(made)
        return made

    for i in range(STEPS):
        yield f, ones(2), i


def expressions_as_keys():
    seen = {4: 1.0, 16: 2.0}

    def f(x, i):
        return x * seen.get(i * i, 0.5)

    for i in (1, 3, 5, 6, 7, 8):
        yield f, ones(2), i


@collect(globals())
def test_at_most_one_recompile(program):
    check_at_most_one_recompile(program)


# ---- what depends on which key it is


def same(function, *calls):
    """Every call gives in compiled code what it gives in Python; arguments are the same objects."""
    fast, recorder = compiled(function)
    for arguments in calls:
        assert fast(*arguments) == function(*arguments)
    return recorder


def test_a_key_that_equals_one_of_the_program():
    def f(i, name):
        made = {3: "three", "a": "letter"}
        made[i] = "changed"
        made[name] = "named"
        return made, list(made)

    same(f, *[(i, name) for i, name in zip([0, 1, 3, 5, 3, 3.0, True], "xyazaab")])


def test_a_key_stored_and_another_read():
    def f(i, j):
        held = {}
        held[i] = "first"
        held[j] = "second"
        return held[i], held.get(7), len(held), i in held, held.pop(j), list(held)

    same(f, (0, 1), (1, 2), (2, 2), (3, 7), (7, 3), (4, 4), (5, 8))


def test_of_equal_keys_the_first_stays():
    outcomes = []
    for make in (lambda f: f, lambda f: compiled(f)[0]):
        table = {}

        def f(i, table=table):
            table[1] = "a"
            table[True] = "b"
            table[i] = "c"

        run = make(f)
        for i in (2.0, 1.0, 3, 4):
            run(i)
        outcomes.append(list(map(repr, table.items())))
    assert outcomes[0] == outcomes[1]


def test_the_order_of_keys():
    def f(i):
        return list(table), table.setdefault(i, i), [*table.items()]

    for known in ({}, {2: "two", 5: "five"}):
        fast = compiled(f)[0]
        outcomes = []
        for function in (f, fast):
            table = dict(known)
            outcomes.append([function(i) for i in (0, 1, 2, 3, 5, 9)])
        assert outcomes[0] == outcomes[1]


def test_keys_are_deleted():
    outcomes = []
    for make in (lambda f: f, lambda f: compiled(f)[0]):
        table = dict.fromkeys(range(20))

        def f(i, table=table):
            found = i in table
            if found:
                del table[i]
            return found, len(table), table.pop(i + 1, "absent")

        run = make(f)
        outcomes.append(([run(i) for i in (1, 5, 6, 30, 9, 10)], list(table)))
    assert outcomes[0] == outcomes[1]


def test_a_default_is_made_by_the_program_and_not_by_a_guard():
    outcomes = []
    for make in (lambda f: f, lambda f: compiled(f)[0]):
        made, table, items = collections.defaultdict(int), [1, 2, 3], []

        def f(name, made=made, table=table, items=items):
            items.append(table[len(name)])
            return made[name]

        run, found = make(f), []
        for name in ("a", "ab", "", "abcd", "b", "a"):
            try:
                found.append(run(name))
            except IndexError as error:
                found.append(str(error))
        outcomes.append((found, list(made.items()), items))
    assert outcomes[0] == outcomes[1]


def test_other_types_of_keys():
    def f(x, key):
        return table.get(key, "none"), key in table, key in {1, "b"}

    table = {1: "one", "b": "letter", (1, 2): "pair", None: "nothing", 2.5: "half"}
    same(f, *[(None, key) for key in (0, 1, 7, True, 2.5, "b", "c", None)])
    same(f, *[(None, key) for key in (0, 1.0, "d", (1, 2), (3,))])


class Loud(str):
    """A string with an equality of its own."""

    def __eq__(self, other):
        return True

    __hash__ = str.__hash__


def test_a_string_of_a_class_of_its_own():
    def f(name):
        return name == "b", name.startswith("x"), {"q": 1}.get(name), name in {"q"}

    same(f, ("a",), ("x",), (Loud("q"),), ("y",), (Loud("x"),))


def test_a_negative_position_and_one_out_of_range():
    table = [1, 2, 3]

    def f(i):
        try:
            return table[i]
        except IndexError as error:
            return str(error)

    same(f, (0,), (1,), (-1,), (-3,), (2,), (3,), (-4,), (True,))


def test_a_list_that_the_program_has_changed():
    def f(i):
        table = list(kept)
        held[i] = 7
        kept[i % 2] = kept[i % 2] + 1
        return table[i], kept[i], held[i], held[0]

    outcomes = []
    for make in (lambda f: f, lambda f: compiled(f)[0]):
        kept, held = [1, 2, 3, 4, 5], [0] * 5
        run = make(f)
        outcomes.append(([run(i) for i in (0, 1, 2, 3, 4, 0)], kept, held))
    assert outcomes[0] == outcomes[1]


def test_tensors_found_by_key_are_written_to():
    outcomes = []
    for make in (lambda f: f, lambda f: compiled(f)[0]):
        table = {i: torch.zeros(2) for i in range(6)}

        def f(x, i, j, table=table):
            table[i].add_(x)
            return table[j] * 2

        run = make(f)
        results = [run(torch.ones(2), i, j).tolist() for i, j in ((0, 1), (1, 2), (2, 2), (3, 1), (4, 4), (5, 0))]
        outcomes.append((results, [value.tolist() for value in table.values()]))
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("names", [("a", "b", "c", "a"), ("", "x", "", "yy"), ("Ab", "cD", "EF", "9")])
def test_what_a_name_is_asked(names):
    def f(name):
        return (
            name.upper(), name + "!", "<" + name, name * 2, f"{name:>4}", "%s" % name, name[:1], list(name), name.split("b"),
            name < "b", bool(name), name.isdigit(), name.find("b"), "-".join([name, "z"]), hash(name) == hash("a"), name is name,
            name == "a", repr(name), str(name), len(name), name.encode(), [c for c in name], sorted(name), {name: 1}, type(name),
        )  # fmt: skip

    same(f, *[(name,) for name in names])


def test_the_members_of_a_set():
    outcomes = []
    for make in (lambda f: f, lambda f: compiled(f)[0]):
        held = {1, "a"}

        def f(i, held=held):
            first = i in held
            held.add(i)
            held.add("b")
            found = (
                first,
                i in held,
                "b" in held,
                "c" in held,
                len(held),
                bool(held),
                True in held,
                sorted(map(str, held)),
            )
            held.discard(i - 1)
            return found

        run = make(f)
        outcomes.append(([run(i) for i in (0, 1, 2, 5, 6, 2)], sorted(map(str, held))))
    assert outcomes[0] == outcomes[1]


def test_attributes_stored_through_the_dict_of_an_instance_are_counted():
    class Box:
        pass

    box = Box()

    def f():
        box.__dict__["fresh"] = 3
        return len(vars(box))

    fast = compiled(f)[0]
    for start in ({"a": 1}, {"fresh": 1}, {}, {"b": 1}):
        box.__dict__.clear()
        box.__dict__.update(start)
        want = f()
        box.__dict__.clear()
        box.__dict__.update(start)
        assert fast() == want


def test_numbers_whose_places_read_alike():
    def reader(table):
        def read(i):
            return table[i]

        return read

    small, large = reader([1, 2, 3, 4]), reader([40, 30, 20, 10])

    def f(x, i):
        if small(i) > 2:
            x = x + 1
        if large(i) > 15:
            x = x + 2
        return (x * small(i) + large(i)).tolist(), len(f"a{i}") + 10 * len(f"bb{i}")

    same(f, *[(torch.zeros(1), i) for i in (0, 1, 2, 3, 1, 0)])
