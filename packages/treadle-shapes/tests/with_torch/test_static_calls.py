"""What all fake modes share is what each of them would answer, in this process and in later ones; the rest is asked again."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from op_samples_shapes import op_db  # noqa: E402
from torch.utils import _pytree as pytree  # noqa: E402

from treadle_shapes import ShapeEnv  # noqa: E402
from treadle_shapes.torch import (  # noqa: E402  # noqa: E402
    fake_calls,
    fake_like,
    fake_mode,
    fake_shape_env,
    fake_tensor,
    kept_calls,
    static_calls,
    static_kernels,
)

aten = torch.ops.aten


def described(result, arguments):
    """All that a result's user can see: metadata, and which arguments and other results share its memory."""
    given = [t for t in pytree.tree_leaves(arguments) if isinstance(t, torch.Tensor)]
    leaves = pytree.tree_leaves(result)
    storages = [t.untyped_storage()._cdata for t in (*given, *leaves) if isinstance(t, torch.Tensor)]
    found = []
    for t in leaves:
        if not isinstance(t, torch.Tensor):
            found.append(t)
            continue
        numbers = tuple(t.shape), t.stride(), t.storage_offset(), t.untyped_storage().nbytes()
        kinds = type(t), t.dtype, t.device, t.layout, t.requires_grad, t.is_conj(), t.is_neg()
        shared = [t is other for other in given], storages.index(t.untyped_storage()._cdata)
        found.append((numbers, kinds, shared))
    return type(result), found


class Store:
    """A store in memory."""

    def __init__(self):
        self.content: dict[str, bytes] = {}
        self.reads = self.writes = 0

    def read(self, key):
        self.reads += 1
        return self.content.get(key)

    def write(self, key, content):
        self.writes += 1
        self.content[key] = content


@pytest.fixture(autouse=True)
def forgotten(monkeypatch):
    """No results of other tests, and no store."""
    for name, value in {"_store": None, "_kept": None}.items():
        monkeypatch.setattr(kept_calls, name, value)
    static_calls._entries.clear()
    yield
    static_calls._entries.clear()


@pytest.fixture
def store():
    found = Store()
    kept_calls.keep_fake_calls(found.read, found.write)
    return found


@pytest.fixture(autouse=True)
def _no_kernels_are_asked_first(monkeypatch):
    """Calls that `static_kernels` answers are not looked for in the store."""
    monkeypatch.setattr(static_kernels, "answer", lambda *_: None)


def begin_process(store):
    """Forget all but what the store holds."""
    static_calls._entries.clear()
    kept_calls._store = kept_calls._kept = None
    kept_calls.keep_fake_calls(store.read, store.write)


def counted(mode):
    """`mode`, with a list of the overloads whose kernels it runs."""
    ran, inner = [], mode._dispatch_impl

    def dispatch(func, types, args, kwargs):
        ran.append(func)
        return inner(func, types, args, kwargs)

    mode._dispatch_impl = dispatch
    mode.ran = ran
    return mode


def run(function, *reals, mode=None, **kwargs):
    """The result of `function` on fakes of `reals` in a new mode, and the kernels that have run."""
    mode = counted(mode or fake_mode())
    fakes = pytree.tree_map(lambda v: fake_like(mode, v) if isinstance(v, torch.Tensor) else v, reals)
    with mode:
        return function(*fakes, **kwargs), mode.ran


def recalls(function, *reals, **kwargs):
    """Whether another mode answers the same call without running a kernel."""
    run(function, *reals, **kwargs)
    return not run(function, *reals, **kwargs)[1]


# -- the same answers ---------------------------------------------------------------------------------------------------


_answer = static_kernels.answer


def samples(part, parts):
    for op in op_db()[part::parts]:
        for dtype in (torch.float32, torch.int64):
            if dtype not in op.supported_dtypes("cpu"):
                continue
            torch.manual_seed(0)
            found = op.sample_inputs("cpu", dtype, requires_grad=False)
            for _, sample in zip(range(3), found, strict=False):
                leaves = pytree.tree_leaves((sample.input, sample.args, sample.kwargs))
                tensors = [t for t in leaves if isinstance(t, torch.Tensor)]
                if tensors and all(t.layout is torch.strided and not t.is_conj() and not t.is_neg() for t in tensors):
                    yield op, (sample.input, *sample.args), sample.kwargs


def answer(function, args, kwargs, *, is_cached):
    """Description of the result in a new mode, or the type of its exception."""
    mode = fake_mode(allow_non_fake_inputs=True)
    if not is_cached:
        mode.cache_enabled = False
    fakes = pytree.tree_map(
        lambda v: mode.from_tensor(v.detach()) if isinstance(v, torch.Tensor) else v, (args, kwargs)
    )
    try:
        with mode, torch.no_grad():
            return described(function(*fakes[0], **fakes[1]), fakes)
    except Exception as error:
        return type(error)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("answers", [_answer, lambda *_: None], ids=["as it is", "without static kernels"])
def test_operator_samples(part, answers, store, monkeypatch):
    monkeypatch.setattr(static_kernels, "answer", answers)
    pytest.importorskip("expecttest")  # torch.testing._internal, where the samples are, imports it
    wrong, right = [], []
    for op, args, kwargs in samples(part, 8):
        want = answer(op.op, args, kwargs, is_cached=False)
        got = [answer(op.op, args, kwargs, is_cached=True) for _ in range(2)]
        right.append((op, args, kwargs, want))
        if got != [want, want]:
            wrong.append(f"{op.name}: {got} instead of {want}")
    kept_calls.save_fake_calls()
    begin_process(store)
    for op, args, kwargs, want in right:
        got = answer(op.op, args, kwargs, is_cached=True)
        if got != want:
            wrong.append(f"{op.name} in a later process: {got} instead of {want}")
    assert not wrong, "\n".join(wrong[:20])
    assert len(right) > 100 and len(kept_calls._kept.used) > 100


@pytest.mark.parametrize("is_kept", [False, True])
def test_results_of_every_kind(store, is_kept):
    x, y = torch.rand(4, 6), torch.rand(6, 3)
    calls = [
        (aten.mm.default, (x, y)),
        (aten.t.default, (x,)),
        (aten.slice.Tensor, (x, 0, 1, 3)),
        (aten.native_layer_norm.default, (x, [6], y[:, 0], None, 1e-5)),
        (aten.unbind.int, (x, 0)),
        (aten.add_.Tensor, (x, 1.0)),
        (aten.index.Tensor, (x, [torch.tensor([0, 1])])),
        (aten.arange.default, (5,)),
        (aten._assert_async.msg, (x[0, 0], "no")),
    ]
    wants = [run(f, *args, mode=_uncached())[0] for f, args in calls]
    for f, args in calls:
        run(f, *args)
    if is_kept:
        kept_calls.save_fake_calls()
        begin_process(store)
    for (f, args), want in zip(calls, wants, strict=True):
        mode = counted(fake_mode())
        fakes = pytree.tree_map(lambda v, mode=mode: fake_like(mode, v) if isinstance(v, torch.Tensor) else v, args)
        with mode:
            got = f(*fakes)
        assert not mode.ran, f
        described_want = [
            (t.shape, t.stride(), t.dtype, t.storage_offset()) for t in pytree.tree_leaves(want) if t is not None
        ]
        described_got = [
            (t.shape, t.stride(), t.dtype, t.storage_offset()) for t in pytree.tree_leaves(got) if t is not None
        ]
        assert described_got == described_want, f
        assert type(got) is type(want)
        if f in (aten.t.default, aten.slice.Tensor):
            assert got.untyped_storage()._cdata == fakes[0].untyped_storage()._cdata
        if f is aten.add_.Tensor:
            assert got is fakes[0]


def _uncached():
    mode = fake_mode()
    mode.cache_enabled = False
    return mode


def test_gradients_and_versions_are_autograds():
    def step(x, w):
        w = w.requires_grad_()
        y = (x @ w).mul_(2).add_(1)
        assert y._version == 2 and y.requires_grad and y.grad_fn is not None
        view = y.view(-1)
        assert view._base is y and view._version == 2
        (gradient,) = torch.autograd.grad(view.sum(), [w])
        return gradient

    reals = torch.rand(4, 6), torch.rand(6, 3)
    first, again = run(step, *reals)[0], run(step, *reals)
    assert not again[1]
    assert (first.shape, first.stride()) == (again[0].shape, again[0].stride()) == ((6, 3), (3, 1))


# -- what the answer depends on ------------------------------------------------------------------------------------------


def test_settings_that_choose_among_kernels():
    x = torch.rand(4, 6)
    run(aten.arange.start_step, 0.0, 5.0, 1.0)
    torch.set_default_dtype(torch.float64)
    try:
        assert run(aten.arange.start_step, 0.0, 5.0, 1.0)[0].dtype is torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert recalls(aten.relu.default, x)
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        assert run(aten.relu.default, x)[1]
    finally:
        torch.set_num_threads(threads)
    with torch.backends.mkldnn.flags(enabled=False):
        assert run(aten.relu.default, x)[1]
    torch.use_deterministic_algorithms(True)
    try:
        assert run(aten.relu.default, x)[1]
    finally:
        torch.use_deterministic_algorithms(False)
    assert not run(aten.relu.default, x)[1]


def test_the_memory_behind_an_argument():
    def beyond(x):
        return aten.as_strided.default(x[:2], [4], [1])

    run(beyond, torch.rand(4))
    assert aten.as_strided.default in run(lambda x: aten.as_strided.default(x, [4], [1]), torch.rand(2))[1]


def test_numbers_of_several_types():
    x = torch.arange(4)
    assert run(aten.add.Tensor, x, 1)[0].dtype is torch.int64
    assert run(aten.add.Tensor, x, 1.0)[0].dtype is torch.float32
    assert run(aten.add.Tensor, x, True)[0].dtype is torch.int64


# -- what is asked again -------------------------------------------------------------------------------------------------


def test_calls_that_do_something():
    x, y = torch.rand(4), torch.rand(4)
    for overload in (
        aten.set_.source_Tensor,
        aten.resize_.default,
        aten.t_.default,
        aten.unsqueeze_.default,
        aten.add.out,
    ):
        assert static_calls.why_not_static(overload) is not None, overload
    for _ in range(2):
        mode = fake_mode()
        with mode:
            a, b = fake_like(mode, x), fake_like(mode, y)
            a.set_(b)
            assert a.untyped_storage()._cdata == b.untyped_storage()._cdata
            a = fake_like(mode, x).resize_(8)
            assert a.shape == (8,)


def test_what_depends_on_elements():
    x, mask = torch.rand(4), torch.ones(4, dtype=torch.bool)
    for _ in range(2):
        env = ShapeEnv()
        mode = fake_mode(shape_env=fake_shape_env(env, allow_dynamic_output_shape_ops=True))
        with mode:
            counts = [fake_like(mode, x).nonzero().shape[0], fake_like(mode, x)[fake_like(mode, mask)].shape[0]]
        assert all(isinstance(n, torch.SymInt) for n in counts)
    assert not static_calls._entries or all(key[0] is not aten.nonzero.default for key in static_calls._entries)


def test_symbolic_sizes(store):
    env = ShapeEnv()
    mode = fake_mode(shape_env=fake_shape_env(env))
    x = fake_tensor(mode, torch.rand(4, 5), [env.create_symbol(4, "size"), None])
    with mode:
        torch.relu(x)
    assert not static_calls._entries


def test_constant_sizes_in_symbolic_memory():
    env = ShapeEnv()
    mode = fake_mode(shape_env=fake_shape_env(env))
    x = fake_tensor(mode, torch.rand(4, 5), [env.create_symbol(4, "size"), None])
    with mode:
        row = x[0]
        assert row.shape == (5,) and not isinstance(row.untyped_storage().nbytes(), int)
        assert torch.relu(row).shape == (5,)


def test_sparse_tensors():
    for _ in range(2):
        sparse, _ = run(lambda x: x.to_sparse(), torch.eye(3), mode=fake_mode(shape_env=_with_found_sizes()))
        assert sparse.layout is torch.sparse_coo and sparse.to_dense().shape == (3, 3)


def _with_found_sizes():
    return fake_shape_env(ShapeEnv(), allow_dynamic_output_shape_ops=True)


def test_operators_of_others(store):
    made = []
    with torch.library._scoped_library("treadle_test_static", "FRAGMENT") as library:
        library.define("twice(Tensor x) -> Tensor")

        @torch.library.register_fake("treadle_test_static::twice", lib=library)
        def _(x):
            made.append(1)
            return torch.empty_like(x)

        for _ in range(2):
            run(torch.ops.treadle_test_static.twice.default, torch.rand(3))
    assert len(made) == 2


def test_clearing_the_cache_of_the_mode():
    x = torch.rand(3)
    assert recalls(torch.relu, x)
    fake_mode().cache_clear()
    assert run(torch.relu, x)[1]


def test_inference_mode(store):
    with torch.inference_mode():
        run(torch.relu, torch.rand(3))
    assert not static_calls._entries


# -- keeping -------------------------------------------------------------------------------------------------------------


def test_the_store_is_read_when_asked_and_written_when_something_is_new(store):
    assert store.reads == 0
    x = torch.rand(3)
    run(aten.relu.default, x)
    kept_calls.save_fake_calls()
    assert store.writes == 1
    begin_process(store)
    assert not run(aten.relu.default, x)[1]
    kept_calls.save_fake_calls()
    assert store.writes == 1


@pytest.mark.parametrize("change", ["operators", "files"])
def test_another_environment_finds_nothing(store, monkeypatch, change):
    x = torch.rand(3)
    run(aten.relu.default, x)
    kept_calls.save_fake_calls()
    begin_process(store)
    if change == "operators":
        monkeypatch.setattr(torch.library, "_impls", {*torch.library._impls, "aten/relu/Meta of mine"})
    else:
        monkeypatch.setattr(kept_calls, "_unchanging", lambda: "another")
    assert run(aten.relu.default, x)[1]


def test_nothing_is_written_in_an_environment_that_has_changed(store, monkeypatch):
    run(aten.relu.default, torch.rand(3))
    monkeypatch.setattr(torch.library, "_impls", {*torch.library._impls, "aten/relu/Meta of mine"})
    kept_calls.save_fake_calls()
    assert not store.content


def test_other_devices_are_not_kept(store):
    run(lambda: aten.empty.memory_format([2], device="meta"), mode=fake_mode())
    mode = fake_mode(allow_non_fake_inputs=True)
    mode.allow_meta = True
    with mode:
        aten.relu.default(torch.empty(3, device="meta"))
    kept_calls.save_fake_calls()
    assert not any(b"new" in content for content in store.content.values())


def test_two_processes_write_what_both_have_found(store):
    run(aten.relu.default, torch.rand(3))
    other = kept_calls._kept
    begin_process(store)
    run(aten.exp.default, torch.rand(3))
    kept_calls.save_fake_calls()
    other.save()
    begin_process(store)
    assert not run(aten.relu.default, torch.rand(3))[1] and not run(aten.exp.default, torch.rand(3))[1]


def test_what_was_not_used_goes_first(store, monkeypatch):
    monkeypatch.setattr(kept_calls, "_MOST_KEPT", 2)
    for f in (aten.relu.default, aten.exp.default):
        run(f, torch.rand(3))
    kept_calls.save_fake_calls()
    begin_process(store)
    run(aten.relu.default, torch.rand(3))
    run(aten.sin.default, torch.rand(3))
    kept_calls.save_fake_calls()
    begin_process(store)
    assert not run(aten.relu.default, torch.rand(3))[1] and not run(aten.sin.default, torch.rand(3))[1]
    assert run(aten.exp.default, torch.rand(3))[1]


@pytest.mark.parametrize(
    "call",
    (
        lambda x: (aten.relu.default, [x]),
        lambda x: (aten.add.Tensor, [x, x]),
        lambda x: (aten.detach.default, [x]),
        lambda x: (aten.t.default, [x]),
        lambda x: (aten.view.default, [x, [12]]),
        lambda x: (aten.sum.default, [x]),
    ),
    ids=("relu", "add", "detach", "t", "view", "sum"),
)
def test_calls_that_autograd_sees_have_a_history(call, monkeypatch):
    monkeypatch.setattr(static_kernels, "answer", _answer)
    mode = fake_mode()
    calls = fake_calls(mode)
    with mode:
        x = torch.empty(3, 4, requires_grad=True)

    def run():
        with mode:
            return function(*args)

    function, args = call(x)
    expected = function is not aten.detach.default
    assert [calls.call(function, run, args, {}).requires_grad for _ in range(3)] == [expected] * 3


def test_slices_at_other_places_are_the_same_call_unless_the_result_is_a_view(monkeypatch):
    mode = fake_mode()
    x = mode.from_tensor(torch.randn(8, 16))
    calls = static_calls.static_calls(mode)
    made = []

    def call(target, *args):
        return calls.call(target, lambda _: made.append(target) or target(*args), args, {})

    with torch.no_grad(), mode:
        for target in (aten.cumsum.default, aten.sum.dim_IntList, aten.mm.default):
            made.clear()
            for n in range(1, 5):
                part = x[:, n : n + 4]
                arguments = (
                    (part, x[n : n + 4, :8])
                    if target is aten.mm.default
                    else (part, 1 if "cumsum" in str(target) else [1])
                )
                result = call(target, *arguments)
                assert described(result, arguments) == described(target(*arguments), arguments)
            assert len(made) <= 1
        for n in range(1, 5):
            part = x[:, n : n + 4]
            view = call(aten.select.int, part, 1, 2)
            assert view.storage_offset() == n + 2
            key, _ = static_calls.static_call_key(mode, aten.mul.Tensor, (part, part), {})
            other, _ = static_calls.static_call_key(mode, aten.mul.Tensor, (x[:, :4], x[:, :4]), {})
            assert key != other  # for others than this cache offsets count


@pytest.mark.parametrize("requires_grad", [False, True])
def test_views_in_no_grad_require_gradients_where_their_base_does(requires_grad):
    mode = fake_mode()
    calls = static_calls.static_calls(mode)
    for _ in range(2):
        base = fake_like(mode, torch.randn(3, 4)).requires_grad_(requires_grad)
        with torch.no_grad(), mode:
            given = aten.alias.default(base), calls.call(aten.alias.default, lambda _: None, (base,), {})
        assert [view.requires_grad for view in given] == [requires_grad] * 2
