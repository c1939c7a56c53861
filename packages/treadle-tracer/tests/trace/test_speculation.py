"""Jumps on sizes: no decision where both ways meet again, a decision where anything depends on the way. Always eager's results."""

from __future__ import annotations

import pytest
import torch
from compile_runs import compiled, outcome, portrait

SIZES = (4, 5, 1, 6, 1, 2, 3)


LOG: list = []


class Box:
    value = 0


BOX = Box()


def graphs_over(function, sizes=SIZES, columns=8):
    """Compilations over calls with `n` rows each; results, exceptions, LOG and BOX must be those of Python."""

    def run(of):
        seen = []
        for n in sizes:
            LOG.clear()
            BOX.value = 0
            x = torch.arange(n * columns, dtype=torch.float32).reshape(n, columns) - 7
            seen.append((outcome(of, [x], {}), portrait(x, LOG, BOX.value)))
        return seen

    expected = run(function)
    fast, recorder = compiled(function)
    assert run(fast) == expected
    return len(recorder.graphs)


# ---- what must merge


def conjunction(x, mask=1):
    causal = x.shape[0] > 1 and mask is None and True
    return x * 2 if causal else x + 1


def negated(x):
    if not x.shape[0] > 1 and x.dim() == 3:
        return x
    return x + 1


def either_is_true(x):
    if x.shape[0] == 1 or x.shape[1] == 8:
        return x + 1
    return x - 1


def asks_while_compiling(x):
    if x.shape[0] == 1 and not torch.compiler.is_compiling():
        return x + 0 + 1
    return x + 1


def _mode(n, training):
    if n == 1:
        return "eval"
    return "train" if training else "eval"


def helper_returns_the_same(x):
    return x * (2 if _mode(x.shape[0], False) == "eval" else 3)


def _is_single(n):
    if n == 1:
        return True
    return False


def flag_that_nobody_uses(x):
    single = _is_single(x.shape[0])
    if single:
        scale = 3
    else:
        scale = 4  # noqa: F841
    name = "one" if single else "many"  # noqa: F841
    return x + 1


def nested(x):
    n = x.shape[0]
    if n > 1:
        if n > 2 and x.dim() == 4:
            return x * 3
        y = 2
    else:
        y = 2
    x = x * y  # enough that the compiler does not copy it into the branches
    x = (x + 1).relu() - x.sum(1, keepdim=True)
    return x * 2 + 1


def expands_to_the_batch(x):
    rows = torch.arange(8.0)[None]
    if x.shape[0] != rows.shape[0]:
        rows = rows.expand(x.shape[0], -1)
    return x + rows


def expands_twice_and_cuts(x):
    rows = torch.arange(8.0)[None]
    n = x.shape[0]
    if n > 1:
        rows = rows.expand(n, -1)
        more = rows
    else:
        more = rows
    return x + rows[:, :4].sum(1, keepdim=True) * more


def causal_mask(x):
    scores = x @ x.t()
    n = scores.shape[0]
    if n > 1:
        positions = torch.arange(n)
        mask = positions[:, None] >= torch.arange(n)[None, :]
        scores = torch.where(mask.view(n, n), scores, -1e9)
    return scores.softmax(-1)


def in_a_loop(x):
    for i in range(3):
        last = x.shape[0] > 1 and i == 5
        if last:
            break
        x = x + i
    return x


def in_try(x):
    try:
        flag = x.shape[0] > 1 and x.dim() == 7
        y = x * 2 if flag else x + 1
    except ValueError:
        y = x
    return y


def in_a_generator(x):
    def steps():
        for i in range(3):
            if x.shape[0] == 1 and i > 5:
                yield x * 100
            yield x * i

    return sum(steps())


def chained(x):
    if 0 < x.shape[0] < 1:
        return x
    return x + 1


def int_that_is_known_there(x):
    n = x.shape[0]
    count = n if n > 1 else 1
    return x / count


def tuples(x):
    pair = (1, x.shape[1]) if x.shape[0] == 1 else (1, 8)
    return x.sum().expand(pair) + 1


def flag_in_a_flag(x):
    many = x.shape[0] > 1
    wide = x.shape[1] > 9
    if many and wide:
        x = x - 1
    if wide and not many:
        x = x - 2
    return x + 1


MERGING = [
    conjunction, negated, either_is_true, asks_while_compiling, helper_returns_the_same, flag_that_nobody_uses, nested,
    expands_to_the_batch, expands_twice_and_cuts, causal_mask, in_a_loop, in_try, in_a_generator, chained,
    int_that_is_known_there, tuples, flag_in_a_flag,
]  # fmt: skip


@pytest.mark.parametrize("function", MERGING, ids=lambda f: f.__name__)
def test_ways_that_meet_cost_no_compile(function):
    assert graphs_over(function) == 2


@pytest.mark.parametrize("function", MERGING, ids=lambda f: f.__name__)
def test_also_when_the_size_of_1_comes_early(function):
    assert graphs_over(function, (4, 1, 6, 1, 5)) == 2


# ---- what must not


def appends(x):
    if x.shape[0] == 1:
        LOG.append("one")
    return x + 1


def appends_on_both(x):
    if x.shape[0] == 1:
        LOG.append("one")
    else:
        LOG.append("many")
    return x + 1


def stores(x):
    if x.shape[0] > 1:
        BOX.value = 1
    return x + BOX.value


def used_later(x):
    flag = x.shape[0] > 1
    y = x + 1
    return y * 2 if flag else y * 3


def returned(x):
    return x + 1, x.shape[0] > 1


def in_a_list(x):
    flags = [x.shape[0] > 1]
    return x + 1, flags


def as_a_number(x):
    return x + (x.shape[0] > 1)


def as_a_key(x):
    return x + {True: 1, False: 2}[x.shape[0] > 1]


def in_text(x):
    LOG.append(f"{x.shape[0] > 1}")
    return x + 1


def is_true(x):
    flag = x.shape[0] > 1
    return x + 1 if flag is True else x + 2


def raises(x):
    if x.shape[0] == 1:
        raise ValueError("one row")
    return x + 1


def raises_and_catches(x):
    try:
        if x.shape[0] == 1:
            raise ValueError("one row")
        return x + 1
    except ValueError:
        return x + 2


def asserts(x):
    assert x.shape[0] > 1, "one row"
    return x + 1


def other_strings(x):
    name = "one" if x.shape[0] == 1 else "many"
    LOG.append(name)
    return x + 1


def advances(x):
    items = iter([1, 2, 3])
    if x.shape[0] == 1:
        next(items)
    return x + next(items)


def computes(x):
    y = x + 1
    if x.shape[0] == 1:
        y = y * 2
    return y


def expanded_is_returned(x):
    rows = torch.arange(8.0)[None]
    before = rows
    if x.shape[0] != 1:
        rows = rows.expand(x.shape[0], -1)
    return x + 1, rows is before


def unbound(x):
    if x.shape[0] == 1:
        y = 1
    return x + y  # noqa: F821


def deletes(x):
    y = 1
    if x.shape[0] == 1:
        del y
    return x + y


def cells(x):
    y = 1

    def read():
        return y

    if x.shape[0] == 1:
        y = 2
    return x + read()


def other_masks(x):
    scores = x @ x.t()
    n = scores.shape[0]
    if n > 1:
        scores = torch.where(torch.arange(n)[:, None] > torch.arange(n)[None, :], scores, 5.0)
    return scores + 1  # a strict mask hides everything from one query


NOT_MERGING = [
    appends, appends_on_both, stores, used_later, returned, in_a_list, as_a_number, as_a_key, in_text, is_true, other_strings,
    raises_and_catches, advances, computes, expanded_is_returned, cells, other_masks,
]  # fmt: skip


@pytest.mark.parametrize("function", NOT_MERGING, ids=lambda f: f.__name__)
def test_ways_that_differ_are_decided(function):
    assert graphs_over(function) == 3


@pytest.mark.parametrize(("function", "least"), [(raises, 2), (asserts, 2), (unbound, 1), (deletes, 2)])
def test_exceptions_are_those_of_python(function, least):
    assert graphs_over(function) >= least


def test_a_view_of_the_merged_tensor_is_written_to():
    base = torch.zeros(1, 8)

    def f(x):
        rows = base
        if x.shape[0] != 1:
            rows = rows.expand(x.shape[0], -1)
        rows[:, :2].add_(1) if x.shape[1] == 9 else None
        return x + rows

    assert graphs_over(f) == 2


def test_writes_into_a_merged_tensor_reach_what_eager_writes_to():
    def f(x):
        scores = x * 1
        n = x.shape[0]
        kept = scores
        if n > 1:
            scores = torch.where(torch.arange(n)[:, None] >= 0, scores, 0.0)
        part = scores[:, :2]
        part.add_(1)
        return scores + kept  # with one row `kept` is `scores`

    assert graphs_over(f) == 3


def test_a_merged_tensor_that_is_returned_is_the_one_of_eager():
    def f(x):
        rows = x[:1]
        before = rows
        if x.shape[0] != 1:
            rows = rows.expand(x.shape[0], -1)
        return before, rows

    fast, recorder = compiled(f)
    for n in SIZES:
        x = torch.randn(n, 4)
        before, rows = fast(x)
        want_before, want_rows = f(x)
        assert torch.equal(rows, want_rows) and (rows is before) == (want_rows is want_before)


def test_a_loop_that_counts_to_a_size_is_decided():
    def f(x):
        n = x.shape[0]
        while n > 3:
            n = n - 1
        return x + n

    assert graphs_over(f, (4, 5, 6, 5, 4)) <= 4


def test_the_graph_keeps_no_node_of_a_way_that_is_given_up():
    def f(x):
        n = x.shape[0]
        y = x + 1
        if n > 4:
            k = n * 3 - 1
            y = y * 2 if k > 7 else y
        return y

    fast, recorder = compiled(f)
    for n in (5, 6):
        fast(torch.ones(n, 2))
    targets = [node.target for node in recorder.graphs[-1].graph.nodes if node.op == "call_function"]
    assert len([t for t in targets if getattr(t, "__name__", "") == "sub"]) == 1


@pytest.mark.parametrize("numbers", [(3, 4, 0, 5, 1, 0), (0, 1, 2, 0, 7)])
def test_the_truth_of_an_int(numbers):
    def f(x, n):
        offset = n or 0
        if n and x.dim() == 9:
            return x
        return x + offset + (n and 1 and 0)

    fast, recorder = compiled(f)
    x = torch.randn(3)
    for n in numbers:
        assert torch.equal(fast(x, n), f(x, n))
    assert len(recorder.graphs) == 2


def test_keywords_after_a_merged_argument():
    def scale(x, *, by=1, flag=False):
        return x * by if not flag else x

    def f(x):
        return scale(x, flag=x.shape[0] > 1 and x.dim() == 9, by=3 if x.shape[0] == 1 and x.dim() == 9 else 2)

    assert graphs_over(f) == 2


def test_ways_meet_at_copies_of_a_short_end():
    """CPython copies the last line into both branches."""

    def negates(x):
        scores = x @ x.T
        if x.shape[0] > 1 and x.dim() == 2:
            rows = torch.arange(x.shape[0])
            mask = torch.where(rows[:, None] >= rows[None, :], scores, -1e9)
        else:
            mask = scores
        return -mask

    def cut(scores, causal):
        if causal:
            rows = torch.arange(scores.shape[0])
            mask = torch.where(rows[:, None] >= rows[None, :], scores, -1e9)
        else:
            mask = scores
        return mask.contiguous()

    def calls(x):
        return cut(x @ x.T, x.shape[0] > 1) * 2

    assert graphs_over(negates) == 2
    assert graphs_over(calls) == 2


def test_a_break_after_ways_have_met():
    def f(x):
        flag = x.shape[0] > 1 and x.dim() == 9
        y = x + 1 if not flag else x
        total = y.sum().item()
        many = x.shape[0] > 1
        return y * total, (2 if many else 3)

    graphs_over(f)


def test_attention_takes_an_open_flag():
    attention = torch.nn.functional.scaled_dot_product_attention

    def f(x):
        q = x.view(1, 1, x.shape[0], 8) / 10
        return attention(q, q, q, None, 0.0, x.shape[0] > 1) + attention(q, q, q, is_causal=x.shape[0] > 1)

    def ignores(x):
        q = x.view(1, 1, x.shape[0], 8) / 10
        return attention(q, q, q, is_causal=x.shape[0] > 2) + 1

    for function, most in ((f, 2), (ignores, 4)):
        fast, recorder = compiled(function)
        for n in (4, 5, 1, 6, 2, 1):
            x = torch.randn(n, 8)
            torch.testing.assert_close(fast(x), function(x))
        assert len(recorder.graphs) <= most
