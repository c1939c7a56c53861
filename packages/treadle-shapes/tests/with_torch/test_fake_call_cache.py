"""What is recalled of a call is what the call would have given, for PyTorch's operator samples and for all that must not be recalled."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from op_samples_shapes import op_db  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.utils import _pytree as pytree  # noqa: E402

from treadle_shapes import Eq, ShapeEnv  # noqa: E402
from treadle_shapes.torch import (  # noqa: E402
    fake_mode,
    fake_shape_env,
    fake_tensor,
    raw_expr,
    shape_inference,
    symbolic_dispatch,
)
from treadle_shapes.torch.fake_call_cache import FakeCallCache  # noqa: E402
from treadle_shapes.torch.size_oblivious import run_for_metadata  # noqa: E402


class Setting:
    """Fake tensors with constant or dynamic sizes, calls on them, and the calls really made."""

    def __init__(self, env=None):
        self.env = env
        self.mode = fake_mode(shape_env=None if env is None else fake_shape_env(env), allow_non_fake_inputs=True)
        self.recall = FakeCallCache(self.mode)
        self.made = 0
        self._symbols = {}

    def fake(self, real):
        if self.env is None:
            return self.mode.from_tensor(real)
        return fake_tensor(self.mode, real, [self._size(n) for n in real.shape])

    def _size(self, n):
        if n < 2:
            return None
        if n not in self._symbols:
            self._symbols[n] = self.env.create_symbol(n, f"size {n}")
        return self._symbols[n]

    def fakes(self, tree):
        return pytree.tree_map(lambda v: self.fake(v.detach()) if isinstance(v, torch.Tensor) else v, tree)

    def run(self, function, args, kwargs):
        with self.mode, symbolic_dispatch():
            return run_for_metadata(self.env, function, args, kwargs)

    def call(self, function, *args, **kwargs):
        def run():
            self.made += 1
            return self.run(function, args, kwargs)

        return self.recall.call(function, run, args, kwargs)

    def seen(self, function, *args, **kwargs):
        """Whether a second call was answered without making it."""
        self.call(function, *args, **kwargs)
        before = self.made
        self.call(function, *args, **kwargs)
        return self.made == before


@pytest.fixture(params=["constant", "dynamic"])
def setting(request, monkeypatch):
    """Without formulas, which would answer before anything can be recalled."""
    monkeypatch.setattr(shape_inference, "infer", lambda *_: None)
    return Setting(None if request.param == "constant" else ShapeEnv())


def value(n):
    return raw_expr(n)


def described(result, args):
    """All that a result's user can see: metadata, and which arguments and other results share its memory."""
    given = [t for t in pytree.tree_leaves(args) if isinstance(t, torch.Tensor)]
    leaves = pytree.tree_leaves(result)
    tensors = [*given, *(t for t in leaves if isinstance(t, torch.Tensor))]
    storages = [t.untyped_storage()._cdata for t in tensors]
    found = []
    for t in leaves:
        if not isinstance(t, torch.Tensor):
            found.append(t)
            continue
        found.append((
            type(t), t.dtype, t.device, t.layout, t.requires_grad, t.is_conj(), t.is_neg(),
            [value(n) for n in (*t.shape, *t.stride(), t.storage_offset(), t.untyped_storage().nbytes())],
            [t is other for other in given], storages.index(t.untyped_storage()._cdata),
        ))  # fmt: skip
    return type(result), found


def _samples(part):
    for op in op_db()[part::6]:
        dtypes = op.supported_dtypes("cpu")
        torch.manual_seed(0)
        dtype = torch.float32 if torch.float32 in dtypes else next(iter(sorted(dtypes, key=str)), None)
        sample = next(iter(op.sample_inputs("cpu", dtype, requires_grad=False)), None) if dtype else None
        leaves = pytree.tree_leaves((sample.input, sample.args, sample.kwargs)) if sample else []
        tensors = [t for t in leaves if isinstance(t, torch.Tensor)]
        if tensors and all(t.layout is torch.strided for t in tensors):
            yield op, (sample.input, *sample.args), sample.kwargs


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dynamic", [False, True])
def test_operator_samples(dynamic):
    pytest.importorskip("expecttest")  # torch.testing._internal, where the samples are, imports it
    recalled, wrong = 0, []
    for op, args, kwargs in _samples(2):
        setting = Setting(ShapeEnv() if dynamic else None)
        first, again, direct = (setting.fakes((args, kwargs)) for _ in range(3))
        function = op.op
        try:
            with torch.no_grad():
                setting.call(function, *first[0], **first[1])
                before = setting.made
                got = described(setting.call(function, *again[0], **again[1]), again)
                want = described(setting.run(function, *direct), direct)
        except Exception:  # no fake kernel, or a sample that does not suit fake tensors
            continue
        recalled += setting.made == before
        if got != want:
            wrong.append(f"{op.name}: {got} instead of {want}")
    assert not wrong, "\n".join(wrong)
    assert recalled > 50


def test_views_new_tensors_and_arguments(setting):
    x, w = setting.fake(torch.rand(4, 6, 8)), setting.fake(torch.rand(8, 8))
    with torch.no_grad():
        assert setting.seen(torch.nn.functional.linear, x, w)
        assert setting.seen(torch.transpose, x, 0, 1)
        assert setting.seen(torch.Tensor.contiguous, x)
        assert setting.seen(torch.unbind, x[:, :, :2], -1) or setting.env  # the number of parts fixes a symbol
        view = setting.call(torch.transpose, x, 0, 1)
        assert view.untyped_storage()._cdata == x.untyped_storage()._cdata
        assert setting.call(torch.Tensor.contiguous, x) is x
        first, second = (setting.call(torch.nn.functional.linear, x, w) for _ in range(2))
        assert first.untyped_storage()._cdata != second.untyped_storage()._cdata


def test_other_metadata_settings_and_constants_are_other_calls(setting):
    x = setting.fake(torch.rand(4, 6))
    calls = [
        lambda: setting.call(torch.sum, x, 0),
        lambda: setting.call(torch.sum, x, 1),
        lambda: setting.call(torch.mul, x, 1),
        lambda: setting.call(torch.mul, x, True),
        lambda: setting.call(torch.mul, x, 1.0),
        lambda: setting.call(torch.mean, x, 0),
        lambda: setting.call(torch.sum, setting.run(torch.t, (x,), {}), 0),
        lambda: setting.call(torch.sum, setting.run(torch.Tensor.double, (x,), {}), 0),
        lambda: setting.call(torch.sum, setting.fake(torch.rand(4, 6)).requires_grad_(), 0),
        lambda: setting.call(torch.sum, x, 0, keepdim=True),
    ]  # fmt: skip
    with torch.no_grad():
        for position, call in enumerate(calls):
            call()
            assert setting.made == position + 1
    calls[0]()  # with gradients allowed
    assert setting.made == len(calls) + 1


def test_what_writes_is_never_recalled(setting):
    x, y = setting.fake(torch.rand(4, 6)), setting.fake(torch.rand(4, 6))
    with torch.no_grad():
        assert not setting.seen(torch.Tensor.add_, x, 1)
        assert not setting.seen(torch.Tensor.copy_, x, y)
        assert not setting.seen(torch.Tensor.t_, x) or x.shape == y.shape
        assert not setting.seen(torch.sub, y, 2, out=setting.fake(torch.rand(4, 6)))


def test_one_tensor_twice_is_another_call(setting):
    x, y = setting.fake(torch.rand(4, 6)), setting.fake(torch.rand(4, 6))
    with torch.no_grad():
        setting.call(torch.broadcast_tensors, x, x)
        before = setting.made
        setting.call(torch.broadcast_tensors, x, y)
        assert setting.made == before + 1


def test_gradients_autocast_and_inference_mode_are_left_alone(setting):
    x, w = setting.fake(torch.rand(4, 6)), setting.fake(torch.rand(6, 6)).requires_grad_()
    assert not setting.seen(torch.matmul, x, w)
    assert not setting.seen(torch.t, x)  # a view that autograd would know
    assert setting.seen(torch.matmul, x, w.detach())
    with torch.no_grad(), torch.autocast("cpu"):
        assert not setting.seen(torch.matmul, x, w)
    with torch.inference_mode():
        assert not setting.seen(torch.mul, x, 2)


def test_constants_and_foreign_tensors_are_left_alone(setting):
    with setting.mode:
        constant = torch.tensor(3)
    assert constant.constant is not None
    assert not setting.seen(torch.add, constant, 1)
    assert not setting.seen(torch.add, FakeTensorMode().from_tensor(torch.rand(3)), 1)


def test_new_symbols_are_never_recalled():
    env = ShapeEnv()
    setting = Setting(env)
    fake_shape_env(env, allow_scalar_outputs=True, allow_dynamic_output_shape_ops=True)
    x, y = setting.fake(torch.rand(4, 6)), setting.fake(torch.rand(4, 6))
    first = setting.call(torch.nonzero, x)
    assert value(setting.call(torch.nonzero, x).shape[0]) == value(first.shape[0])  # PyTorch knows the tensor
    assert value(setting.call(torch.nonzero, y).shape[0]) != value(first.shape[0])


def test_everything_is_forgotten_when_something_is_learnt():
    setting = Setting(ShapeEnv())
    x = setting.fake(torch.rand(4, 6))
    with torch.no_grad():
        assert setting.seen(torch.sum, x, 0)
        setting.env.decide(Eq(value(x.shape[0]), 4))
        before = setting.made
        setting.call(torch.sum, x, 0)
        assert setting.made == before + 1


def test_views_below_autograd():
    """In grad mode, views are recalled inside a dispatch mode only: above it, autograd relates them to what they view."""
    from torch.utils._python_dispatch import TorchDispatchMode

    setting = Setting()
    x, y = (setting.fake(torch.randn(3, 4)) for _ in range(2))
    view = torch.ops.aten.view.default

    class Below(TorchDispatchMode):
        @classmethod
        def _should_skip_dynamo(cls):
            return False

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return setting.call(func, *args) if func is view else func(*args, **(kwargs or {}))

    for tensor in (x, y):
        with Below():
            assert view(tensor, [12]).shape == (12,)
    assert setting.made <= 1
    before = setting.made
    above = [setting.call(view, tensor, [12]) for tensor in (x, y)]
    assert setting.made > before and all(result._is_view() for result in above)


def test_missing_results_and_calls_without_tensors():
    setting = Setting()
    aten = torch.ops.aten
    image, kernel = setting.fake(torch.randn(2, 3, 8, 8)), setting.fake(torch.randn(4, 3, 3, 3))
    gradient = setting.fake(torch.randn(2, 4, 6, 6))
    arguments = (None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True, True, False])
    for _ in range(2):
        results = setting.call(aten.convolution_backward.default, gradient, image, kernel, *arguments)
        assert results[2] is None and results[0].shape == image.shape
    assert setting.made == 1
    for _ in range(2):
        assert setting.call(aten.empty.memory_format, [3, 4]).dtype is torch.float32
    assert setting.made == 2
    torch.set_default_dtype(torch.float64)
    try:
        assert setting.call(aten.empty.memory_format, [3, 4]).dtype is torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    setting.call(torch.empty, [3, 4]), setting.call(torch.empty, [3, 4])
    assert setting.made == 5


def test_what_counts_its_own_writes_is_not_taken_for_a_view():
    setting = Setting()
    tensor = setting.fake(torch.ones(3))
    with torch.no_grad():
        for name in ("data", "detach"):
            for _ in range(2):
                alias = setting.call(getattr, tensor, name) if name == "data" else setting.call(torch.detach, tensor)
                before = tensor._version
                with setting.mode:
                    alias.add_(1)
                assert tensor._version - before == (name == "detach"), name
