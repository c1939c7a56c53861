"""Numbers and sizes that only the data can tell: in the graph with `capture_scalars` and `fullgraph`, graph breaks without."""

from __future__ import annotations

import re

import pytest
import torch
from compile_runs import compare, compiled
from trace_runs import Case, collect

from treadle_tracer import Unsupported

cases, case = collect()


def x(*shape):
    return lambda: torch.randn(*(shape or (4, 6)), generator=torch.Generator().manual_seed(3))


def number(value, dtype=None):
    return lambda: torch.tensor(value, dtype=dtype)


ROWS = number([True, False, True, True])


NUMBERS_ONLY = ("positions", "integers", "floats", "conversions", "lists")


@case(x(), number(3))
def sizes(a, t):
    n = t.item()
    return torch.zeros(n), torch.arange(n) * 2, torch.full((n, 2), 0.5), a[0].expand(n, -1), a.repeat(n, 1), n


@case(x(), number(3))
def slices(a, t):
    n = t.item()
    return a[:n], a[n:], a[1:n] + 1, a.narrow(0, 0, n), a[:, -n:]


@case(x(), number(-1))
def positions(a, t):
    n = t.item()
    return a[n], a[:, n], a[t], a[n, n], a[..., t], a[None, n, 1:]


@case(x(), number(2))
def stored_positions(a, t):
    n = t.item()
    a[n] = 1
    a[:, n] = a[0, :4]
    a[n, t] = 2.5
    a[t] += a[0]
    return a


@case(x(), number(3))
def stored_slices(a, t):
    n = t.item()
    a[n:] = 0
    a[:n] *= 2
    a[:, 1:n] = a[:, :2] + 1
    return a


@case(number(3), number(0.5), number(True))
def tensors_of_numbers(t, f, b):
    n, g = t.item(), f.item()
    return torch.tensor(n), torch.tensor([n, 2]), torch.tensor([g, n]), torch.tensor(b.item()), torch.as_tensor(g)


@case(x(), number(3))
def views(a, t):
    n = t.item()
    return a.view(n, -1), a.reshape(-1, n)


@case(number(3), number(-7))
def integers(t, u):
    n, m = t.item(), u.item()
    return n + m, n - 1, 2 * m, m // 2, m % 3, m // n, -m, abs(m), m**2, n / 4, n * 0.5, min(n, m), max(m, 2), float(m)


@case(number(2.7))
def floats(t):
    f = t.item()
    return f * 2, f / 3, f // 0.7, f % 0.3, -f, f**2, round(f, 1), min(f, 1.0), int(f), f > 1, f == 0.5, not f


@case(number(2), number(2.7), number(True), number(0))
def conversions(t, f, b, z):
    return int(t), float(t), int(f), float(f), bool(t), bool(f), bool(b), b.item(), not z, not b


@case(number([[1, 2], [3, 4]]), number(0.5))
def lists(c, f):
    return c.tolist(), c[0].tolist(), f.tolist(), torch.empty(0, 3).tolist(), [n * 2 for n in c[1].tolist()]


@case(x(), ROWS)
def masks(a, m):
    y = a[m]
    return y, y * 2, y.sum(0), y.shape[0], len(y), y.numel(), y.shape, a.masked_select(a > 0), a[:, a[0] > 0]


@case(x(), number([False] * 4))
def masks_of_nothing(a, m):
    y = a[m]
    return y, y * 2, y.sum(0), y.shape[0], torch.cat([y, a]), y @ a.t(), y.softmax(1)


@case(x(), ROWS)
def mask_stores(a, m):
    a[m] = 0
    a[~m] = a[~m] * 2
    a[m] += 1
    return a


@case(x())
def positions_of_nonzero(a):
    rows, columns = torch.where(a > 0)
    first, _ = torch.nonzero(a > 0, as_tuple=True)
    return a[rows, columns], rows + columns, first * 2, torch.nonzero(a > 0) + 1, torch.argwhere(a > 1)


@case(number([3, 1, 3, 2]))
def unique(c):
    values, inverse, counts = torch.unique(c, return_inverse=True, return_counts=True)
    return values * 2, inverse, counts, values.shape[0], torch.unique_consecutive(c), torch.bincount(c)


@case(x(), number([1, 2, 0, 3]))
def repeats(a, c):
    return a.repeat_interleave(c, dim=0), a.repeat_interleave(c, dim=0, output_size=6), torch.repeat_interleave(c)


@case(x(), number([1, 3]))
def splits(a, c):
    one, rest = torch.split(a, c.tolist())
    return one * 2, rest


@case(x(), ROWS)
def experts(a, m):
    (rows,) = torch.where(m)
    out = torch.zeros_like(a)
    out.index_add_(0, rows, a[rows] * 2)
    return out


@case(x(), number(2), lambda: [])
def effects(a, t, kept):
    n = t.item()
    kept.append(n)
    a.add_(n)
    a[:n].mul_(2)
    return n


@case(x(), number(3))
def checked(a, t):
    n = t.item()
    torch._check(n >= 0)
    torch._check(n < 100, lambda: f"too large: {n}")
    return a[:n] + 1 if n != 100 else a


@pytest.mark.parametrize("capture", ["capture_scalars", "fullgraph"])
@pytest.mark.parametrize("found", cases, ids=lambda c: c.name)
def test_captured(found: Case, capture):
    if found.name == "stored_slices" and torch.__version__ < "2.12":
        pytest.skip("before torch 2.12 every slice up to a run-time number has a length of its own")
    recorder = compare(found.function, *found.makers, **{capture: True})
    assert (recorder.codes(), len(recorder.graphs), recorder.skips) == ([], 1, [])


@pytest.mark.parametrize("found", cases, ids=lambda c: c.name)
def test_graph_breaks_without(found: Case):
    recorder = compare(found.function, *found.makers, defer=False)
    assert "data-dependent" in recorder.codes() or found.name == "mask_stores"


@pytest.mark.parametrize("found", cases, ids=lambda c: c.name)
def test_by_default_only_sizes_and_decisions_break(found: Case):
    codes = compare(found.function, *found.makers).codes()
    assert set(codes) <= {"data-dependent", "unbacked-decision"} and (found.name not in NUMBERS_ONLY or codes == [])


# ---- what raises


def _raises(function, *makers, like, **options):
    """The compiled function raises what the function raises; the graph was compiled with numbers for which it does not."""
    good, bad = makers
    fast, recorder = compiled(function, **{"capture_scalars": True, **options})
    fast(*(m() for m in good))
    with pytest.raises(like) as expected:
        function(*(m() for m in bad))
    with pytest.raises(like) as error:
        fast(*(m() for m in bad))
    assert type(error.value) is type(expected.value)
    assert len(recorder.graphs) == 1
    return error.value, expected.value


# Outside of what pytest rewrites.
_ASSERTING = """
def function(a, t):
    n = t.item()
    assert n < 5, "too many"
    torch._check(n != 2, lambda: f"not {n}")
    return torch.zeros(n) + a.sum()
"""


def test_a_failing_assert_raises_the_programs_own_exception():
    scope = {"torch": torch}
    exec(_ASSERTING, scope)
    function = scope["function"]
    good = (x(), number(3))
    for value, kind, text in ((7, AssertionError, "too many"), (2, RuntimeError, "not 2"), (-1, RuntimeError, "zeros")):
        error, _ = _raises(function, good, (x(), number(value)), like=kind)
        assert text in str(error)


def test_a_failing_assert_after_a_write_names_the_users_expression_and_line():
    def function(a, t):
        n = t.item()
        a.add_(1)
        return a.narrow(0, 0, n)

    error, _ = _raises(function, (x(), number(3)), (x(), number(9)), like=RuntimeError)
    assert re.fullmatch(
        r"n <= 4 does not hold, needed at .*test_unbacked_numbers.py:\d+ in function: return a.narrow\(0, 0, n\)",
        str(error),
    )


def test_a_position_out_of_range_is_an_index_error_even_after_a_write():
    def function(a, t):
        a.add_(1)
        return a[t.item()]

    _raises(function, (x(), number(3)), (x(), number(9)), like=IndexError)


@pytest.mark.parametrize("counts", [[1, 2], [-1, 5]])
def test_lengths_that_do_not_fit(counts):
    def function(a, c):
        return torch.split(a, c.tolist())

    _raises(function, (x(), number([1, 3])), (x(), number(counts)), like=RuntimeError)


def test_division_by_zero_where_the_program_handles_it():
    def function(a, t):
        try:
            return a * (7 // t.item())
        except ZeroDivisionError:
            return a

    fast, recorder = compiled(function, capture_scalars=True)
    for value in (3, 0, 2):
        torch.testing.assert_close(fast(x()(), torch.tensor(value)), function(x()(), torch.tensor(value)))
    assert len(recorder.graphs) == 1


# ---- decisions


def if_positive(a, t):
    n = t.item()
    y = a * n
    if n > 2:
        return y + 1
    return y - 1


def count_up(a, t):
    for i in range(t.item()):
        a = a + i
    return a


def rows(a, t):
    picked = a[a[:, 0] > 0]
    return [row.sum() * t for row in picked]


def looked_up(a, t):
    return {1: a, 2: a + 1}[t.item()]


def text(a, t):
    return a + 1, len(f"{t.item()}")


@pytest.mark.parametrize("function", [if_positive, count_up, rows, looked_up, text])
def test_decisions_break_the_graph(function):
    for value in (1, 2):
        recorder = compare(function, x(), number(value), capture_scalars=True)
        assert ("format" if function is text else "unbacked-decision") in recorder.codes()


@pytest.mark.parametrize(
    ("function", "asked", "of", "instead"),
    [
        (if_positive, "`n >= 3`", "n, made at", "torch._check(n >= 3)"),
        (count_up, "`t.item()`", "t.item(), made at", "torch._check(t.item() == ...)"),
        (rows, "`picked.shape[0]", "picked.shape[0], made at", "torch._check(picked.shape[0]"),
        (looked_up, "`t.item()`", "t.item(), made at", "torch._check(t.item() == ...)"),
    ],
)
def test_fullgraph_says_what_is_asked_and_what_to_write_instead(function, asked, of, instead):
    fast, _ = compiled(function, fullgraph=True)
    with pytest.raises(Unsupported) as error:
        fast(x()(), torch.tensor(2))
    message = str(error.value)
    for part in (asked, of, instead, f"in {function.__name__}", "test_unbacked_numbers.py"):
        assert part in message
    assert re.search(r"\b[usf]\d+\b", message.replace(__file__, "")) is None  # the path may look like a symbol


def test_facts_answer_later_questions():
    def function(a, t):
        n = t.item()
        torch._check(n > 2)
        if n > 1:
            a = a + 1
        return a * n

    recorder = compare(function, x(), number(3), fullgraph=True)
    assert len(recorder.graphs) == 1


def test_guards_never_speak_of_run_time_numbers():
    def function(a, m):
        y = a[m]
        return y * y.shape[0] + a.sum()

    fast, recorder = compiled(function, capture_scalars=True, dynamic=True)
    for size in (4, 5, 9):
        a, m = torch.randn(size, 3), torch.arange(size) % 2 == 0
        torch.testing.assert_close(fast(a, m), function(a, m))
    assert len(recorder.graphs) == 1
    assert not any(re.search(r"\bu0\b", reason) for reason in recorder.entries[0].payload.guards)


def test_the_graph_reads_as_the_program():
    def function(a, t):
        n = t.item()
        return torch.zeros(n) + a.sum()

    fast, recorder = compiled(function, capture_scalars=True)
    fast(torch.ones(2), torch.tensor(3))
    code = recorder.graphs[0].code
    assert "item = t.item()" in code and "ge = item >= 0" in code and "'n >= 0 does not hold, needed at" in code
