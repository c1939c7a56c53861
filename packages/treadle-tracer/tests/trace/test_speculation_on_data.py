"""Jumps on numbers that only the data can tell: paths that join before anything is computed ask for nothing."""

from __future__ import annotations

import linecache
import random

import pytest
import torch
from compile_runs import compiled


def _flag(x, mask, flag):
    found = x[mask]
    is_causal = found.shape[0] > 1 and flag
    return found * 2 if is_causal else found * 3


def _quotient(x, mask, flag):
    found = torch.cat([x[mask], x[mask]]).reshape(2, -1)
    is_causal = found.shape[1] // 2 > 1 and flag
    return found * 2 if is_causal else found * 3


def _count(x, mask, flag):
    count = int(mask.sum())
    scale = 2 if count else 2
    return x * scale


def _called(x, mask, flag):
    def kind(n):
        if n > 3 and flag:
            return "many"
        return "few"

    return x + (1 if kind(x[mask].shape[0]) == "few" else 2)


def _bool_of_count(x, mask, flag):
    both = bool(mask.any().item()) and flag
    return x + 1 if both else x - 1


@pytest.mark.parametrize("program", [_flag, _quotient, _count, _called, _bool_of_count])
def test_paths_that_join_cost_no_break(program):
    run, recorder = compiled(program)
    for count in (4, 6, 2, 0, 1):
        x, mask = torch.arange(8.0), torch.arange(8) < count
        assert torch.equal(run(x, mask, False), program(x, mask, False))
    assert len(recorder.graphs) == 1 and not recorder.breaks


def _condition(choose, bools, ints, depth=0):
    kind = choose.random()
    if kind < 0.5:
        number = choose.choice(["n", "t", "n + 1", "t * 2", "n // 2", "n * t"])
        return f"{number} {choose.choice(['>', '<', '>=', '==', '!='])} {choose.choice(ints)}"
    if kind < 0.6:
        return choose.choice(["n", "t"])
    if kind < 0.7 and depth < 3:
        return f"not ({_condition(choose, bools, ints, depth + 1)})"
    return choose.choice(bools)


def _random_program(seed):
    """Conditions on how many elements are found, what is made of them, and what is computed in between."""
    choose = random.Random(seed)
    lines = ["def program(x, mask, flag, k):", "    v = x[mask]", "    n, t = v.shape[0], int(mask.sum())"]
    bools, ints = ["flag", "True", "False"], ["n", "t", "k", "2", "0"]
    for name in (f"b{position}" for position in range(choose.randint(2, 6))):
        one, two = (_condition(choose, bools, ints) for _ in range(2))
        a, b = choose.choice(ints), choose.choice(ints)
        text, made = choose.choice(
            [
                (f"{name} = ({one}) {choose.choice(['and', 'or'])} ({two})", bools),
                (f"{name} = bool({one})", bools),
                (f"{name} = ({one}) {choose.choice(['and', 'or'])} ({a})", bools),
                (f"{name} = {a} if {one} else {b}", ints),
                (f"if {one}:\n        {name} = {a}\n    else:\n        {name} = {b}", ints),
            ]
        )
        lines.append(f"    {text}")
        made.append(name)
        if choose.random() < 0.4:
            lines.append(f"    x = x * 2 + ({choose.choice(ints)})")
        if choose.random() < 0.25:
            lines.append(f"    x = x + 1 if {choose.choice(bools)} else x - 1")
    lines.append(f"    return x, v * 3, [{', '.join([*bools[3:], *ints[5:]])}]")
    text, name = "\n".join(lines), f"<data {seed}>"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    namespace = {}
    exec(compile(text, name, "exec"), namespace)
    return namespace["program"], text


@pytest.mark.parametrize("seed", range(24))
def test_random_programs(seed):
    program, text = _random_program(seed)
    run, _ = compiled(program)
    for count in (4, 6, 2, 0, 1, 5):
        for flag, k in ((True, 1), (False, 3)):
            given = torch.arange(8.0), torch.arange(8) < count, flag, k
            want, have = program(*given), run(*given)
            assert torch.equal(want[0], have[0]) and torch.equal(want[1], have[1]), text
            assert [(type(item), item) for item in want[2]] == [(type(item), item) for item in have[2]], text
