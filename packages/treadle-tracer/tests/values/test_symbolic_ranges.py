import pytest
import torch
from compile_runs import compiled


def in_chunks(x):
    total, starts = 0.0, []
    for start in range(0, x.shape[0], 8):
        total = total + x[start : start + 8].sum() * (start + 1)
        starts.append(start)
    return total, starts


def test_a_loop_over_chunks_is_compiled_for_their_number():
    run, recorder = compiled(in_chunks)
    for length in (20, 21, 17, 24, 30, 25, 32, 19):
        x = torch.randn(length)
        got, expected = run(x), in_chunks(x)
        torch.testing.assert_close(got[0], expected[0])
        assert got[1] == expected[1]
    assert len(recorder.graphs) == 5  # the first length; 3 chunks and 4, and those of which the last one is whole


def test_one_chunk_of_all():
    def whole(x):
        return [x[start : start + x.shape[0]] * 2 for start in range(0, x.shape[0], x.shape[0])]

    run, recorder = compiled(whole)
    for length in (20, 21, 9, 3):
        x = torch.randn(length)
        assert torch.equal(run(x)[0], whole(x)[0])
    assert len(recorder.graphs) == 2


READS = {
    "parts": lambda r: (r.start, r.stop, r.step),
    "items": lambda r: (list(r), tuple(r), r[0], r[-1], len(r), bool(r)),
    "membership": lambda r: (7 in r, r.index(7), r.count(3)),
    "equality": lambda r: (r == range(2, r.stop, 5), r != range(2, 9), r == [2, 7]),
    "slices": lambda r: (r[1:], r[::-1]),
    "text": repr,
    "hash": hash,
    "itself": lambda r: r,
    "builtins": lambda r: (
        sum(r),
        max(r),
        sorted(r),
        isinstance(r, range),
        [*zip(r, "ab", strict=False)],
        dict.fromkeys(r),
    ),
    "unpacked": lambda r: [*r, *reversed(list(r))],
}


@pytest.mark.parametrize("name", READS)
def test_what_is_read_from_a_range(name):
    def function(x):
        r = range(2, x.shape[0], 5)
        return x + 1, READS[name](r), x[r.stop - 1]

    run, recorder = compiled(function)
    for length in (12, 13, 14, 15, 20, 13):
        x = torch.randn(length)
        got, expected = run(x), function(x)
        assert torch.equal(got[0], expected[0]) and torch.equal(got[2], expected[2])
        assert repr(got[1]) == repr(expected[1])
    assert not recorder.breaks or name in ("text", "hash")


EMPTY_OR_BACKWARDS = {
    "backwards": lambda n: range(n, 0, -3),
    "empty": lambda n: range(n, 2),
    "negative start": lambda n: range(-n, n, n),
    "from a size": lambda n: range(n, n + 3),
    "zero step": lambda n: range(0, n, n - n),
}


@pytest.mark.parametrize("name", EMPTY_OR_BACKWARDS)
def test_other_ranges(name):
    def function(x):
        return x + 1, list(EMPTY_OR_BACKWARDS[name](x.shape[0]))

    run, _ = compiled(function)
    for length in (12, 13, 14):
        x = torch.randn(length)
        if name == "zero step":
            with pytest.raises(ValueError, match="must not be zero"):
                run(x)
        else:
            assert run(x)[1] == function(x)[1]


def test_equal_ranges_that_end_elsewhere_are_told_apart():
    def last(x, r):
        return x[r.stop - 1] + r.step

    run, _ = compiled(last)
    x = torch.randn(30)
    for r in (range(2, 13, 5), range(2, 14, 5), range(2, 13, 5), range(1), range(0, 1, 7)):
        assert run(x, r) == last(x, r)


def test_slices_of_dynamic_numbers_compare_as_tuples():
    def function(x):
        n = x.shape[0]
        s = slice(0, n)
        return x + 1, s == slice(0, n), s == slice(0, n - 1), s != slice(0, n), s == slice(0, 12), s == (0, n, None)

    run, _ = compiled(function)
    for length in (12, 13, 14):
        x = torch.randn(length)
        assert run(x)[1:] == function(x)[1:]
