"""NumPy's arrays in compiled functions: results, dtypes, types, warnings and exceptions as in eager, in one graph where it matters."""

from __future__ import annotations

import copy
import gc
import warnings

import pytest
import torch
from array_programs import EXPRESSIONS, KINDS, arrays, look, outcome, program
from compile_runs import compiled, item

np = pytest.importorskip("numpy", "2.0")

DTYPES = "bool int8 int32 int64 uint8 float32 float64 complex64".split()


def _seen(function, given):
    found, messages = outcome(function, *given)
    return found, [message for message in messages if "treadle" not in message.lower()]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("group", EXPRESSIONS)
def test_expressions_are_eagers(group, kind):
    """Each expression with another dtype: expressions times kinds times dtypes would be twenty thousand compiles."""
    wrong = []
    number = KINDS.index(kind)
    for position, expression in enumerate(
        EXPRESSIONS[group] if kind == "plain" else EXPRESSIONS[group][number % 2 :: 2]
    ):
        dtype = DTYPES[(position + number) % len(DTYPES)]
        function = program(expression)
        expected = _seen(function, arrays(dtype, kind))
        found = _seen(compiled(function)[0], arrays(dtype, kind))
        if found != expected:
            wrong.append((expression, dtype, expected, found))
    assert not wrong
    gc.collect()


CAPTURED = """
a + b ; a - 2 ; 2.5 * a ; a / b ; a // b ; a % b ; a ** 2 ; a == b ; a < 2 ; -a ; abs(a) ; np.sqrt(a) ; np.exp(a)
np.sin(a) ; np.maximum(a, b) ; np.sum(a) ; a.sum(axis=0) ; np.mean(a, axis=-1, keepdims=True) ; a.max() ; a.std()
np.var(a, axis=0) ; a.argmax(axis=1) ; np.cumsum(a, axis=0) ; np.stack([a, b]) ; np.concatenate([a, b], axis=1) ; a.T
a.reshape(-1) ; np.transpose(a) ; np.expand_dims(a, 0) ; np.tile(a, 2) ; np.roll(a, 1) ; a[0, 1] ; a[:, ::2]
a[[0, 1], [1, 2]] ; a[None] ; np.where(a > 1, a, b) ; np.clip(a, 1, 2) ; a.astype(np.float64) ; a @ b.T ; np.dot(a, b.T)
np.einsum('ij,kj->ik', a, b) ; np.linalg.norm(a) ; np.meshgrid(a[0], b[1]) ; np.zeros_like(a) + 1
np.linspace(0, 1, 3) + a ; np.diff(a) ; np.split(a, 2) ; np.outer(a, b) ; np.round(a, 1)
(a - a.mean(0)) / (a.std(0) + 1) ; np.array(a) ; np.sort(a) ; np.argsort(a) ; np.argsort(a, axis=0, kind='stable')
np.unique(a) ; np.unique(a, return_counts=True) ; np.searchsorted(a[0], b) ; np.median(a) ; np.median(a, axis=1)
"""


@pytest.mark.parametrize("expression", CAPTURED.replace("\n", " ; ").strip(" ;").split(" ; "))
def test_common_expressions_are_one_graph(expression):
    function = program(expression)
    run, said = compiled(function, fullgraph=True)
    assert look(run(*arrays("float32"))) == look(function(*arrays("float32")))
    assert len(said.graphs) == 1 and not said.breaks


@pytest.mark.parametrize(
    "expression",
    "np.argsort(a); np.sort(a); np.unique(a, return_counts=True); np.searchsorted(a[0], b); np.median(a, axis=0)".split(
        "; "
    ),
)
def test_equal_elements_zeros_and_nans_are_ordered_as_numpy_does(expression):
    """Which of two equal elements comes first follows from NumPy's own algorithm."""
    function = program(expression)
    run = compiled(function)[0]
    for numbers in ([3.0, 1.0, 2.0], [1.0, 1.0, 0.0], [0.0, -0.0, 0.0], [np.nan, 2.0, np.nan], [-0.0, 0.0, 5.0] * 9):
        a = np.array([numbers, numbers[::-1]])
        for _ in range(2):
            assert _seen(run, (a.copy(), a[::-1].copy())) == _seen(function, (a.copy(), a[::-1].copy()))


def test_an_array_of_a_tensor_shares_its_memory():
    def run(x):
        a = x.numpy()
        a[0] = 7
        x.add_(1)
        return a, torch.from_numpy(a)

    x, y = (torch.arange(4) for _ in range(2))
    (a, t), (b, u) = compiled(run, fullgraph=True)[0](x), run(y)
    assert x.tolist() == y.tolist() and a.tolist() == b.tolist() and t.tolist() == u.tolist()
    a[1] = 50
    x[2] = 60
    assert a.tolist() == x.tolist() == t.tolist() == [8, 50, 60, 4]


def test_an_outside_array_is_written_in_place():
    def run(a):
        a[1:] = a[:-1]
        a += 1
        return a

    a, b = (np.arange(6) for _ in range(2))
    result = compiled(run, fullgraph=True)[0](a)
    assert result is a
    run(b)
    assert a.tolist() == b.tolist()


def test_arrays_of_overlapping_memory():
    def run(a, b):
        a[:] = 1
        return b + 0

    run_compiled = compiled(run, fullgraph=True)[0]
    for start in (0, 2):
        base, other = np.arange(6), np.arange(6)
        assert run_compiled(base[:4], base[start:]).tolist() == run(other[:4], other[start:]).tolist()


def test_a_function_of_arrays_alone_is_compiled():
    def run(a, b):
        return np.sin(a) + b

    run_compiled, said = compiled(run)
    a = np.ones((2, 3))
    assert np.allclose(run_compiled(a, a), run(a, a)) and len(said.graphs) == 1


def test_other_dtypes_shapes_and_kinds_of_arrays_are_other_entries():
    def run(a):
        return a * 2 + 1

    run_compiled = compiled(run)[0]
    read_only = np.arange(3.0)
    read_only.flags.writeable = False
    given = [
        np.arange(3),
        np.arange(3.0),
        np.arange(6.0).reshape(2, 3).T,
        np.arange(6.0)[::2],
        np.arange(6.0)[::-1],
        np.arange(3, dtype=">f4"),
        np.arange(3, dtype=np.uint16),
        read_only,
        np.float64(3),
        3,
        np.ma.masked_array([1.0, 2.0], [True, False]),
        np.array([1, 2], dtype=object),
    ]
    for array in given * 2:
        expected, found = run(array), run_compiled(array)
        assert type(found) is type(expected) and str(found) == str(expected)
        assert getattr(found, "dtype", None) == getattr(expected, "dtype", None)


def test_sizes_that_change_recompile_once():
    def run(a):
        return (a - a.mean(axis=0)) * np.sqrt(a.shape[0]) + np.arange(a.shape[1])

    run_compiled, said = compiled(run)
    for rows in (3, 4, 5, 6, 7):
        a = np.random.default_rng(0).random((rows, rows + 1))
        assert np.allclose(run_compiled(a), run(a))
    assert len(said.graphs) <= 3


def test_numpy_warns_as_in_eager():
    def run(a):
        return 1 / a, np.log(a)

    run_compiled = compiled(run)[0]
    for numbers in ([1.0, 2.0], [0.0, 1.0], [-1.0, 2.0], [0.0, 1.0], [0.0, 0.0], [3.0, 1.0]):
        with warnings.catch_warnings(record=True) as expected:
            warnings.simplefilter("always")
            run(np.array(numbers))
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            run_compiled(np.array(numbers))
        texts = [str(w.message) for w in found if "treadle" not in str(w.message).lower()]
        assert texts == [str(w.message) for w in expected]


def test_floating_point_errors_that_raise():
    def run(a):
        return a / 0.0

    run_compiled = compiled(run)[0]
    with np.errstate(all="raise"), pytest.raises(FloatingPointError, match="divide by zero"):
        run_compiled(np.ones(2))
    with np.errstate(all="ignore"):
        assert run_compiled(np.ones(2)).tolist() == [np.inf, np.inf]


def test_random_numbers_of_numpy_are_never_frozen():
    def run(x):
        return x * np.random.rand() + torch.from_numpy(np.random.standard_normal(2))

    run_compiled = compiled(run)[0]
    x = torch.ones(2, dtype=torch.float64)
    for seed in (0, 1):
        np.random.seed(seed)
        expected = run(x), run(x), np.random.get_state()[1].tolist()
        np.random.seed(seed)
        found = run_compiled(x), run_compiled(x), np.random.get_state()[1].tolist()
        assert [torch.equal(a, b) for a, b in zip(found[:2], expected[:2], strict=True)] == [True, True]
        assert found[2] == expected[2]


def test_a_tensor_with_a_gradient_raises_as_in_eager():
    def run(x):
        return (x + 1).numpy()

    with pytest.raises(RuntimeError, match="requires grad"):
        compiled(run)[0](torch.ones(2, requires_grad=True))


def test_arrays_that_the_program_makes_are_new_at_every_call():
    def run(x):
        table = np.array([1.0, 2.0])
        table += 1
        return table, x + 1

    run_compiled = compiled(run)[0]
    first, second = run_compiled(torch.ones(2))[0], run_compiled(torch.ones(2))[0]
    assert first is not second and first.tolist() == second.tolist() == [2.0, 3.0]


def test_tensors_of_arrays():
    def run(x):
        a = x.numpy() * 2
        return torch.tensor(a), torch.as_tensor(a), torch.from_numpy(a), torch.tensor(a, dtype=torch.float64)

    x = torch.arange(3)
    found, expected = compiled(run, fullgraph=True)[0](x), run(x)
    assert [(t.dtype, t.tolist()) for t in found] == [(t.dtype, t.tolist()) for t in expected]
    found[1][0] = 9
    assert found[2][0] == 9 and found[0][0] == 0


@pytest.mark.parametrize(
    "call", ["np.sin(x)", "x + x.numpy()", "x.numpy() + x", "np.add(x, 1)", "np.sum(x)", "np.stack([x, x])"]
)
def test_tensors_among_arrays(call):
    function = eval(f"lambda x: {call}", {"np": np})
    x = torch.arange(3.0)
    expected, found = outcome(function, x), outcome(compiled(function)[0], x)
    assert found == expected


def _same(function, *given):
    """The outcome of a function compiled and in eager, each with copies of these arrays, and what it leaves in them."""
    sides = []
    for run in (function, compiled(function)[0]):
        arrays = [copy.deepcopy(array) for array in given]
        sides.append((_seen(run, arrays), look(arrays)))
    assert sides[1] == sides[0]


KEYS = "0, :, [0, 1]; 0, ..., [0, 1]; [0, 1], :, 0; :, 0, [0, 1]; 0, None, [1, 2]; -1, :, [[0, 1], [2, 3]]; 0, [0, 1], None, 1"


@pytest.mark.parametrize("key", KEYS.split("; "))
def test_arrays_and_whole_numbers_in_a_key(key):
    """A whole number is one of the arrays of the key: what stands between them decides on the order of the dimensions."""
    array = np.arange(24).reshape(2, 3, 4)
    namespace: dict[str, object] = {}
    exec(f"def read(a):\n    return a[{key}]\ndef write(a):\n    a[{key}] += a[{key}]\n    return a", namespace)
    _same(namespace["read"], array)
    _same(namespace["write"], array)


def test_iteration_sees_what_the_loop_writes():
    def run(a):
        for i, v in enumerate(a[:-1]):
            a[i + 1] += v
        for i, v in enumerate(reversed(a)):
            a[0] += v * i
        return a, [x + y for x, y in zip(a, reversed(a), strict=True)]

    _same(run, np.arange(1, 6))


def test_an_iterator_goes_on_after_a_graph_break():
    def run(a):
        forward, backward = iter(a), reversed(a)
        seen = [next(forward), next(backward)]
        item(torch.ones(1))
        a += 10
        return seen, list(forward), list(backward), type(forward), type(backward)

    _same(run, np.arange(5))


@pytest.mark.parametrize("copy", ["True", "None", "1", "np._CopyMode.ALWAYS", "np._CopyMode.IF_NEEDED"])
def test_whether_an_array_of_an_array_is_a_copy(copy):
    """The truth of NumPy's own modes is an error for some of them."""
    namespace = {"np": np}
    exec(f"def f(a):\n    b = np.array(a, copy={copy})\n    b[0] = 7\n    return b, a + 1", namespace)
    function = namespace["f"]
    expected, found = (run(np.array([1.0, 2.0])) for run in (function, compiled(function)[0]))
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_option_copy_of_astype():
    def function(a):
        b = a.astype(a.dtype, copy=0)
        b[0] = 7
        return a + 1

    expected, found = (run(np.array([1.0, 2.0])) for run in (function, compiled(function)[0]))
    np.testing.assert_array_equal(found, expected)


def test_what_is_taken_is_a_copy():
    def run(a):
        b = a.take(0, axis=0)
        b += 1
        return a, b

    _same(run, np.arange(6).reshape(2, 3))


def test_zeros_of_both_signs_are_no_array_of_one_number():
    def run(a):
        return np.copysign(a, np.array([0.0, -0.0])), np.copysign(a, np.array([-0.0, -0.0]))

    _same(run, np.ones(2))


@pytest.mark.parametrize(
    "expression", ["a[0] + a[1]", "a[1] - a[0]", "a[0] * a[1]", "-a[0]", "np.square(a[0])", "a[1] - a[1]"]
)
def test_unsigned_scalars_warn_where_they_wrap_around(expression):
    _same(eval(f"lambda a: {expression}", {"np": np}), np.array([200, 100], np.uint8))


@pytest.mark.parametrize(
    "call",
    [
        "np.arange(0, len(a), 0.5)",
        "np.zeros((len(a), 1.5))",
        "a.astype('no dtype')",
        "a.transpose('x')",
        "a.sum(axis=0.5)",
        "a[::0.5]",
        "len(a[0])",
        "list(a[0])",
        "a.foo",
    ],
)
def test_options_that_numpy_refuses(call):
    function = eval(f"lambda a: {call}", {"np": np})
    run = compiled(function)[0]
    for size in (3, 4, 5):
        assert outcome(run, np.arange(size)) == outcome(function, np.arange(size))


def test_an_array_of_a_scalar_has_memory_of_its_own():
    def run(a):
        x = a[0]
        for copied in (np.asarray(x), np.atleast_1d(x), np.array(x), np.array(x, copy=None)):
            copied += 1
        return x, a

    _same(run, np.arange(3))


def test_arrays_that_leave_own_memory_or_are_views_of_arrays():
    """SciPy asks `array.base.size`, and `resize` needs memory of its own."""

    def look_at_memory(array):
        return array.flags.owndata, type(array.base), array.flags.c_contiguous

    def programs():
        yield lambda a: np.sin(a)
        yield lambda a: a.T + 1
        yield lambda a: np.sin(a)[1:]
        yield lambda a: np.cos(a).reshape(-1)
        yield lambda a: a[1:]
        yield lambda a: torch.from_numpy(a).add(1).numpy()
        yield lambda a: torch.from_numpy(a).add(1).numpy()[1:]

        def written(a):
            made = np.sin(a)
            made += 1
            made[0] = 2
            return made

        yield written

    array = np.arange(6.0).reshape(2, 3)
    for function in programs():
        expected, found = function(array.copy()), compiled(function)[0](array.copy())
        assert look_at_memory(found) == look_at_memory(expected)
        assert np.allclose(found, expected)
    compiled(lambda a: np.sin(a))[0](array).resize((7,))


def test_arrays_that_leave_beside_their_views_share_memory():
    def program(a):
        made = np.sin(a)
        return made, made[1:], torch.from_numpy(made)

    whole, view, tensor = compiled(program)[0](np.arange(3.0))
    view[0] = 7
    assert whole[1] == tensor[1] == 7
    assert type(whole.base) is np.ndarray


def _points(seed):
    random = np.random.default_rng(seed)
    xp = np.sort(random.normal(size=random.integers(2, 9)))
    xp, fp = np.sort(np.round(xp)) if seed % 3 == 0 else xp, random.normal(size=len(xp))
    fp[0] = np.inf if seed % 4 == 0 else fp[0]
    x = np.concatenate([random.normal(size=5) * 2, xp, [np.nan] * (seed % 2)])
    return x, xp, fp


@pytest.mark.parametrize("seed", range(12))
def test_interpolation(seed):
    def f(x, xp, fp):
        return (
            np.interp(x, xp, fp),
            np.interp(x.astype(np.float32), xp, fp, left=-1.0, right=7),
            np.interp([0, 1], xp, fp),
        )

    fast, said = compiled(f, fullgraph=True)
    found, expected = fast(*_points(seed)), f(*_points(seed))
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(one, other, equal_nan=True)
    assert len(said.graphs) == 1


def test_interpolations_that_numpy_makes_itself():
    def f(x, xp, fp):
        return (
            np.interp(0.5, xp, fp),
            np.interp(x, xp[:1], fp[:1]),
            np.interp(x, xp, fp, period=2.0),
            np.interp(x, xp, fp * 1j),
        )

    fast, _ = compiled(f)
    given = np.array([0.1, 0.7, 2.5]), np.array([0.0, 1.0]), np.array([3.0, 4.0])
    for one, other in zip(fast(*given), f(*given), strict=True):
        assert type(one) is type(other)
        np.testing.assert_allclose(one, other)


PARTS = ("[::-1][:-1]", "[::-1][1:4]", "[::-1][::-1]", "[::-2][:2]", "[4:0:-1][-3:]", "[::-1][::2]", "[::-1][-2:]")


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("made", ("np.arange(6)", "np.arange(12).reshape(6, 2)", "a.numpy()"))
def test_parts_of_what_runs_backwards(part, made):
    """They are views of the same array."""
    scope = {"np": np}
    exec(
        f"def f(x, a):\n    whole = {made}\n    part = whole{part}\n    before = part.copy()\n    whole += 1\n"
        "    return x + 1, before, part.copy(), part.shape",
        scope,
    )
    fast, said = compiled(scope["f"], fullgraph=True)
    found = fast(torch.ones(2), torch.arange(6))
    expected = scope["f"](torch.ones(2), torch.arange(6))
    for one, other in zip(found[1:], expected[1:], strict=True):
        np.testing.assert_array_equal(one, other)
    assert len(said.graphs) == 1


@pytest.mark.parametrize(
    "given", ("0, n, 5", "n, 7, 4", "n, m", "0, n, num=6, endpoint=False", "n, n, 3", "0, n, 4, dtype=int", "n, 2, 1")
)
def test_numbers_at_equal_distances(given):
    scope = {"np": np}
    exec(f"def f(x, n, m):\n    return x + 1, np.linspace({given})", scope)
    fast, said = compiled(scope["f"], dynamic=True)
    for n, m in ((3, 2.5), (7, -1.0), (-2, 5e-324), (9, 0.1)):
        found, expected = fast(torch.ones(2), n, m)[1], scope["f"](torch.ones(2), n, m)[1]
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(found, expected, rtol=1e-14)
    assert len(said.graphs) == 1 or "dtype" in given or given == "n, 2, 1"


@pytest.mark.parametrize(
    "items",
    (
        "[t[0]]",
        "[t[0], 2]",
        "[t, t * 2]",
        "[t[0], n[1]]",
        "[np.float64(1.0), n[0]]",
        "(n[0], n[1])",
        "[t[0], 2.5, a[1]]",
    ),
)
def test_arrays_of_tensors(items):
    scope = {"np": np}
    exec(f"def f(t, n, a):\n    return t + 1, np.array({items}), np.concatenate([a, np.ravel({items})])", scope)
    fast, said = compiled(scope["f"])
    given = torch.tensor([1.5, 2.5]), torch.tensor([3, 4]), np.array([0.5, 1.0])
    for one, other in zip(fast(*given)[1:], scope["f"](*given)[1:], strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)
    assert len(said.graphs) == 1


@pytest.mark.parametrize(
    "call",
    ("np.array(x)", "np.array(x, dtype=np.float64)", "np.array(x, copy=True, order='C')", "np.array(x, copy=None)"),
)
def test_copies_of_tensors_warn_as_in_eager(call):
    program = eval(f"lambda x: torch.from_numpy({call} * 2)", {"np": np, "torch": torch})
    run, said = compiled(program)
    x = torch.tensor([1.0, 2.0])

    def outcome(function, action):
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter(action)
            try:
                result = function(x).tolist()
            except DeprecationWarning as error:
                result = str(error)
        return result, [(str(one.message), one.category, one.filename, one.lineno) for one in found]

    for action in ("always", "ignore"):
        assert outcome(run, action) == outcome(program, action)
    assert not said.breaks
    for action in ("error", "always"):
        assert outcome(run, action) == outcome(program, action)
