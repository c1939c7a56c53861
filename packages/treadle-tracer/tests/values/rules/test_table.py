"""The table of rules is complete, free of duplicates, and the same however its modules are imported; the fields of rules are true."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import sys
import types
from unittest.mock import patch

import pytest
import torch

from treadle_tracer.errors import InternalError, Unsupported
from treadle_tracer.trace.driver import new_tracer
from treadle_tracer.values.base import NONE, TRUE, Constant
from treadle_tracer.values.rules import attention, table
from treadle_tracer.values.rules.rule import Effect, Rule, Version, always, breaks, folds, in_graph, members
from treadle_tracer.values.value import Raised

NAMED = [rule for rule in table.ALL_RULES if isinstance(rule.function, str)]
FUTURE = Version("python", (9, 0))


def name_of(rule: Rule) -> str:
    function = rule.function
    if isinstance(function, str):
        return function
    name = getattr(function, "__qualname__", None) or getattr(function, "__name__", repr(function))
    return f"{getattr(function, '__module__', '')}.{name}"


def defines(dotted: str) -> bool:
    """Whether the source of a module that is not imported defines or imports the name."""
    module, _, name = dotted.rpartition(".")
    if module.rpartition(".")[2][:1].isupper():  # a method
        module = module.rpartition(".")[0]
    spec = importlib.util.find_spec(module)
    assert spec is not None and spec.origin is not None
    with open(spec.origin, encoding="utf-8") as file:
        nodes = ast.walk(ast.parse(file.read()))
    defined = {
        getattr(node, "name", None) or getattr(node, "id", None) for node in nodes if not isinstance(node, ast.Load)
    }
    return name in defined


def is_installed(dotted: str) -> bool:
    return importlib.util.find_spec(dotted.partition(".")[0]) is not None


@pytest.mark.parametrize("rule", NAMED, ids=name_of)
def test_the_function_of_a_named_rule_exists(rule):
    if not rule.is_current or not is_installed(rule.function):
        pytest.skip("not in these releases")
    assert defines(rule.function)


def test_every_other_rule_has_a_callable():
    assert all(callable(rule.function) for rule in table.ALL_RULES if rule not in NAMED)


def test_two_rules_of_one_function_are_refused_and_both_places_named():
    one, two = always(len, TRUE), folds(len)
    with pytest.raises(InternalError) as caught:
        table.build_table([one, two])
    assert one.place in str(caught.value) and two.place in str(caught.value)


def test_rules_for_different_releases_may_share_a_function():
    old, new = Rule(len, folds(len).apply, until=FUTURE), Rule(len, always(len, TRUE).apply, since=FUTURE)
    assert table.build_table([old, new]) == {len: old}


def test_a_rule_wraps_a_rule_of_its_own_function():
    wrong = Rule(len, folds(len).apply, wraps=in_graph(torch.relu))
    with pytest.raises(InternalError, match="wraps a rule of another function"):
        table.build_table([wrong])


def test_the_rule_for_a_symbolic_scale_wraps_the_one_for_a_symbolic_is_causal():
    found = table.rule_of(torch.nn.functional.scaled_dot_product_attention)
    assert found is not None and found.wraps is attention.RULE


def fresh_table(order: list[str]) -> dict[object, str]:
    """Function or name -> place of its rule, with the modules of rules imported anew in this order."""
    kept = {name: sys.modules.pop(name) for name in list(sys.modules) if name.startswith("treadle_tracer.values.rules")}
    try:
        for name in order:
            importlib.import_module(name)
        rules = importlib.import_module("treadle_tracer.values.rules.table").ALL_RULES
        return {rule.function: rule.place for rule in rules}
    finally:
        for name in [name for name in sys.modules if name.startswith("treadle_tracer.values.rules")]:
            del sys.modules[name]
        sys.modules.update(kept)
        for name, module in kept.items():
            parent, _, own = name.rpartition(".")
            setattr(sys.modules[parent], own, module)


def test_the_order_of_imports_does_not_matter():
    names = sorted(name for name in sys.modules if name.startswith("treadle_tracer.values.rules."))
    assert fresh_table(names) == fresh_table(names[::-1])


@pytest.mark.parametrize("rule", [r for r in table.ALL_RULES if r.answers_at_trace_time], ids=name_of)
def test_an_answer_at_trace_time_is_a_constant_and_makes_no_node(rule):
    tx = new_tracer()
    try:
        assert rule.apply(tx, [], {}).is_constant()
    except (Raised, Unsupported):  # the real function wants arguments or a device
        assert not tx.graph.has_calls
    else:
        assert not tx.graph.has_calls and not tx.mutations
    assert rule.is_speculatable


@pytest.mark.parametrize("rule", [r for r in table.ALL_RULES if r.effect is Effect.BREAKS], ids=name_of)
def test_a_rule_that_breaks_is_never_speculated(rule):
    with pytest.raises(Unsupported):
        rule.apply(new_tracer(), [], {})
    assert not rule.is_speculatable


def test_makers():
    tx = new_tracer()
    assert always(len, NONE).apply(tx, [TRUE], {}) is NONE
    assert folds(len).apply(tx, [Constant("abc")], {}).constant() == 3
    with pytest.raises(Unsupported, match="global-state"):
        breaks(len, "global-state").apply(tx, [], {})
    assert members("math", "sqrt no_such_function")[1] == "math.no_such_function"


def test_versions():
    assert Version("python", (3, 11)).is_reached() and Version("torch", (2, 11)).is_reached()
    assert not FUTURE.is_reached() and not Version("torch", (99, 0)).is_reached()


def test_rule_of():
    assert table.rule_of([]) is None
    assert table.rule_of(print).effect is Effect.GRAPH

    def is_flash_attn_available():
        return True

    def checkpoint(): ...

    is_flash_attn_available.__module__ = "transformers.utils"
    checkpoint.__module__, checkpoint.__qualname__ = "torch.utils.checkpoint", "checkpoint"
    assert table.rule_of(is_flash_attn_available) is table.rule_of(checkpoint) is None  # what `functools.wraps` leaves
    library = types.ModuleType("transformers.utils")
    with patch.dict(sys.modules, {library.__name__: library}):
        function = types.FunctionType(is_flash_attn_available.__code__, vars(library))
        assert table.rule_of(function).answers_at_trace_time
    assert table.rule_of(torch.utils.checkpoint.checkpoint).function == "torch.utils.checkpoint.checkpoint"
