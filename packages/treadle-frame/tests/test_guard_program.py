"""Reading checks: what is refused and how it is named, cycles, pickling of the data."""

from __future__ import annotations

import gc
import pickle
import weakref
from typing import Any

import pytest

from treadle_frame import Check, Entry, GuardError, GuardProgram
from treadle_frame.guards import ACCESSORS, OPS, ROOTS

X = ("local", "x")


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ((), "at least one step"),
        ("x", "a path must be a tuple"),
        ([X], "a path must be a tuple"),
        (("local",), "step 0 must be a tuple"),
        ((("attr", "x"),), "'attr' is no root"),
        ((("lokal", "x"),), "'lokal' is no root"),
        ((X, ("local", "y")), "'local' is no accessor"),
        ((X, ("get", "y")), "'get' is no accessor"),
        ((("local",),), "takes 1 argument"),
        ((("local", "x", "y"),), "takes 1 argument"),
        ((X, ("type", 1)), "takes 0 argument"),
        ((X, ()), "step 1"),
        ((X, (1, 2)), "step 1"),
        ((("local", 1),), "must be a str"),
        ((X, ("attr", b"a")), "must be a str"),
        ((X, ("list_item", -1)), "int >= 0"),
        ((X, ("list_item", "0")), "int >= 0"),
        ((X, ("tuple_item", True)), "int >= 0"),
        ((X, ("dict_key", 2**70)), "int >= 0"),
        ((X, ("apply", 3)), "a callable"),
    ],
)
def test_wrong_paths_are_named(path: Any, message: str) -> None:
    with pytest.raises(GuardError, match=message) as caught:
        GuardProgram([Check((X,), "is", 1), Check((X,), "is", 1), Check(path, "is", None)])
    assert "check 2" in str(caught.value)


@pytest.mark.parametrize(
    ("checks", "error"),
    [
        (3, TypeError),
        ([3], GuardError),
        ([()], GuardError),
        ([((X,), "is", None)], GuardError),
        ([Check((X,), "equal", 3)], GuardError),
        ([Check((X,), 3, 3)], GuardError),  # type: ignore[arg-type]
        ([Check((X,), "is", 3, None)], GuardError),  # type: ignore[arg-type]
    ],
)
def test_wrong_checks_are_refused(checks: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        GuardProgram(checks)


def test_guard_errors_are_value_errors() -> None:
    assert issubclass(GuardError, ValueError)


def test_programs_show_what_they_hold() -> None:
    checks = [Check((X,), "is", None), Check((X,), "is_not", 1)]
    program = GuardProgram(iter(checks))  # type: ignore[arg-type]
    assert len(program) == 2 and program.checks == tuple(checks)
    assert repr(program) == "<GuardProgram of 2 checks>"


def test_a_reason_left_out_is_made_from_the_check() -> None:
    program = GuardProgram([Check((X, ("attr", "a")), "equals", 5)])
    reason = program.why_fails({"x": 1})
    assert reason is not None
    assert all(part in reason for part in ("local", "'x'", "'attr'", "'a'", "equals", "5"))


def test_the_empty_program_holds() -> None:
    assert GuardProgram([]).check({}) and GuardProgram([]).why_fails({}) is None


def test_checks_are_plain_data() -> None:
    check = Check((X, ("attr", "a")), "len", 3, "why")
    assert pickle.loads(pickle.dumps(check)) == check


def test_the_vocabulary_of_the_c_tables() -> None:
    assert ROOTS == (
        "local",
        "global",
        "builtin",
        "closure",
        "closure_cell",
        "const",
        "referent",
        "globals",
        "computed",
    )
    assert len(set(ROOTS + ACCESSORS)) == len(ROOTS) + len(ACCESSORS)
    assert len(set(OPS)) == len(OPS) and {"is", "type_is", "native_tensor", "equal_items"} <= set(OPS)


def item_of_list(items: object, index: object) -> object:
    if type(items) is not list or type(index) is not int:
        raise TypeError
    return items[index]


COMPUTED = (("computed", (item_of_list, ((("local", "items"),), (("local", "i"),)))),)


def test_a_computed_root_is_made_of_the_values_at_its_paths() -> None:
    program = GuardProgram([Check(COMPUTED, "equals", 2.5), Check((*COMPUTED, ("type",)), "is", float)])
    for _ in range(50):  # with a memo and without
        assert program.check({"items": [1, 2.5], "i": 1})
        assert not program.check({"items": [1, 2.0], "i": 1})
        assert not program.check({"items": [1, 2.5], "i": 0})


@pytest.mark.parametrize("found", [{"items": [1], "i": 1}, {"items": 3, "i": 0}, {"i": 1}, {"items": [1]}])
def test_a_computation_that_raises_or_has_no_values_fails(found: dict[str, object]) -> None:
    assert not GuardProgram([Check(COMPUTED, "is_not", None)]).check(found)


def test_a_computed_root_in_a_check_on_several_paths() -> None:
    program = GuardProgram([Check(COMPUTED, "same_object", (("local", "x"),))])
    x, y = object(), object()
    for _ in range(50):
        assert program.check({"items": [y, x], "i": 1, "x": x}) and not program.check({"items": [x, y], "i": 1, "x": x})


def test_computed_roots_may_be_made_of_computed_ones() -> None:
    twice = (("computed", (item_of_list, ((("local", "items"),), COMPUTED))),)
    program = GuardProgram([Check(twice, "equals", 7)])
    assert program.check({"items": [2, 0, 7], "i": 0}) and not program.check({"items": [1, 0, 7], "i": 0})


@pytest.mark.parametrize("argument", [3, (item_of_list, 3), (3, ()), (item_of_list, (3,)), (item_of_list,)])
def test_a_computation_is_a_callable_and_paths(argument: object) -> None:
    with pytest.raises(GuardError):
        GuardProgram([Check((("computed", argument),), "equals", 1)])


def test_binding_names_what_is_missing() -> None:
    free = 1

    def f(a: int, *args: int, b: int = 1, **kwargs: int) -> int:
        local = free
        return local

    def bind(root: tuple[str, str]) -> Entry:
        return Entry(f.__code__, GuardProgram([Check((root,), "is", None)]))

    for name in ("a", "b", "args", "kwargs"):
        bind(("local", name))
    bind(("closure", "free"))
    for root in [("local", "local"), ("local", "free"), ("closure", "a"), ("local", "missing")]:
        with pytest.raises(GuardError, match=repr(root[1])):
            bind(root)


def test_cycles_through_programs_are_collected() -> None:
    class Node:
        pass

    for place in ("const", "arg", "apply"):
        node = Node()
        path: Any = {
            "const": (("const", node),),
            "arg": (X,),
            "apply": (X, ("apply", lambda value, node=node: node)),
        }[place]
        node.program = GuardProgram([Check(path, "is", node if place == "arg" else None)])  # type: ignore[attr-defined]
        reference = weakref.ref(node)
        del node, path
        gc.collect()
        assert reference() is None, place


def test_programs_can_be_referenced_weakly() -> None:
    program = GuardProgram([])
    reference = weakref.ref(program)
    del program
    assert reference() is None


class ComparedToSomethingElse:
    """A key by identity whose `==` gives no bool, as that of tensors."""

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> Any:
        raise RuntimeError("sizes must match")


def test_keys_by_identity_are_not_compared() -> None:
    first, second = ComparedToSomethingElse(), ComparedToSomethingElse()
    keys = {first: 1, second: 2}
    checks = [Check((X, ("dict_item", key)), "equals", value) for key, value in keys.items()]
    program = GuardProgram([Check((X,), "dict_keys", tuple(keys)), *checks])
    assert program.check({"x": keys}, {}, {}, {})
    assert not program.check({"x": {first: 1, ComparedToSomethingElse(): 2}}, {}, {}, {})
    assert not program.check({"x": {first: 1, second: 3}}, {}, {}, {})
