"""Tensors, modules, globals, graph breaks: traced and plain; one graph, no break, unless said otherwise."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

F, nn = torch.nn.functional, torch.nn

from trace_runs import check, collect, t  # noqa: E402
from trace_subjects import Derived  # noqa: E402

CASES, case = collect()


@case(t(4, 3))
def tensor_stuff(x):
    a = x[0]
    b = x[:, 1:]
    c = x[..., None]
    d = x[[0, 1]]
    e = x[x.shape[0] - 1]
    f = x.view(-1).chunk(3)
    g, h = x.max(dim=1)
    i = torch.stack([a, a])
    j = torch.cat((x, x), dim=-1)
    k = x.T
    l = x.new_zeros(2)
    m = torch.arange(5, dtype=x.dtype)
    o = x.split(2)
    p = -x
    q = abs(x)
    r = x**2
    s = 2 / x
    u = x // 1
    v = ~(x > 0)
    w = x.to(torch.float64)
    y = x.reshape(3, 4).transpose(0, 1).contiguous()
    z = x.max(1)
    return (
        a,
        b,
        c,
        d,
        e,
        f,
        g,
        h,
        i,
        j,
        k,
        l,
        m,
        o,
        p,
        q,
        r,
        s,
        u,
        v,
        w,
        y,
        z.values,
        z.indices,
        [q.sum() for q in x],
        len(x),
        x.size(0),
        x.numel(),
        x.stride(),
        x.is_contiguous(),
        x.device,
        x.dtype.is_floating_point,
        torch.finfo(x.dtype).min,
        x.ndim,
        x.shape[-1] * 2,
        x.shape == (4, 3),
        tuple(x.shape),
        x.size()[1:],
        x.type(),
        x.is_floating_point(),
    )


@case(t(4, 3))
def inplace(x):
    y = x
    y += 1
    x.mul_(2)
    x[0] = 5
    x[1:, 0] = x[0, 0]
    z = x.view(3, 4)
    z.zero_()
    y is x
    a = torch.zeros(3)
    a.copy_(torch.ones(3))
    F.relu(x, inplace=True)
    torch.add(x, 1, out=a.new_empty(4, 3))
    return y is x, x, z, a


@case(t(3))
def identity(x):
    y = x.contiguous()
    z = x.to(x.dtype)
    w = x.view(3)
    l = [x]
    m = l
    n = list(l)
    return (
        y is x,
        z is x,
        w is x,
        m is l,
        n is l,
        None is None,
        x in [x],
        l == m,
        type(x) is torch.Tensor,
        isinstance(x, torch.Tensor),
        isinstance(x, nn.Parameter),
    )


G = 5
GL = []


@case(t(3), recompiles=True, reset=lambda: (globals().__setitem__("G", 5), GL.clear()), look=lambda: (G, GL))
def globs(x):
    global G
    G += 1
    GL.append(G)
    return x + G


@case(t(3))
def chain_cmp(x):
    return (
        0 < x.shape[0] < 5,
        x.shape[0] if x.dim() == 1 else None,
        not x.dim(),
        1 if () else 2,
        (x if x is not None else 3),
    )


@case(t(3))
def imports(x):
    import math as m
    from collections import OrderedDict as O

    import torch.nn.functional as FF

    return FF.relu(x) * m.pi, O(a=1)


@case(t(3))
def torchutil(x):
    from torch.utils import _pytree as pt

    flat, spec = pt.tree_flatten({"a": [x, x + 1]})
    return pt.tree_unflatten([q * 2 for q in flat], spec)


@case(t(3))
def round_abs(x):
    return (
        round(2.567, 1),
        abs(-3),
        divmod(7, 2),
        pow(2, 3),
        min(3, 1, 2),
        max([1, 5]),
        sum([1, 2], 10),
        x,
        bin(5),
        hex(255),
        chr(97),
        hash("a") == hash("a"),
        id(x) == id(x) if False else 1,
        int(3.9),
        bool([]),
        complex(1, 2),
        float(2),
        slice(1, 2),
        range(3),
        list(range(0, 10, 3)),
        isinstance(True, int),
        issubclass(bool, int),
        repr([1, "a"]),
        str((1, 2)),
        type(3).__name__,
    )


@case(t(3))
def star_unpack(x):
    a, (b, *c), d = 1, [2, 3, 4], 5
    [e, f] = (x, x + 1)
    return a, b, c, d, e, f, [*range(2), *"ab"], {*[1]}, (*c,)


@case(t(3))
def while_else(x):
    i = 0
    while i < 3:
        x = x + i
        i += 1
    else:
        x = x * 10
    return x


@case(t(3))
def delstuff(x):
    y = x + 1
    del y
    try:
        y  # noqa: F821
    except UnboundLocalError:
        pass
    return x


@case(t(3))
def copies(x):
    a = [x, [1]]
    b = copy.copy(a)
    d = copy.copy(Derived(1, 2))
    return b[1] is a[1], b is a, d.w, copy.deepcopy([1, [2]])


@case(t(2, 3))
def complex_index(x):
    m = x > 0
    return (
        torch.where(m, x, 0.0),
        x.masked_fill(m, 1),
        x.gather(1, torch.zeros(2, 1, dtype=torch.long)),
        x[:, [0, 2]],
        x[torch.tensor([1, 0])],
        torch.einsum("ij,kj->ik", x, x),
    )


class Mod(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.ModuleList([nn.Linear(3, 3) for _ in range(3)])
        self.d = nn.ModuleDict({"a": nn.ReLU()})
        self.p = nn.Parameter(torch.ones(3))
        self.register_buffer("b", torch.zeros(3))
        self.n = 0
        self.ps = nn.ParameterList([nn.Parameter(torch.ones(3))])
        self.s = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
        self.drop = nn.Dropout(0.1)

    def forward(self, x, *, k=1):
        for i, l in enumerate(self.l):
            x = l(x) * k
        for l in self.l[1:]:
            x = x + l(x)
        for n, m in self.d.items():
            x = m(x)
        self.n += 1
        self.b.add_(1)
        self.cache = x
        x = x + self.p + self.ps[0] + self.s(x) + self.s[0](x) + sum(p.sum() for p in self.s.parameters())
        if self.training:
            x = x + 1
        return (
            self.drop(x),
            len(self.l),
            [n for n, _ in self.named_children()],
            next(self.parameters()).dtype,
            self.l[-1].weight.shape,
            "a" in self.d,
        )


MOD = Mod().eval()
SD = {k: v.clone() for k, v in MOD.state_dict().items()}


def rmod():
    MOD.load_state_dict(SD)
    MOD.n = 0
    MOD.__dict__.pop("cache", None)


@case(t(2, 3), recompiles=True, reset=rmod, look=lambda: (MOD.n, MOD.b.clone()))
def module(x):
    with torch.no_grad():
        return MOD(x, k=2)


BN = nn.BatchNorm1d(3)


@case(
    t(4, 3), reset=lambda: BN.reset_parameters(), look=lambda: (BN.running_mean.clone(), BN.num_batches_tracked.clone())
)
def bn_train(x):
    return BN(x)


HK = nn.Linear(3, 3)
HK.register_forward_hook(lambda m, i, o: o * 2)
HK.register_forward_pre_hook(lambda m, i: (i[0] + 1,))


@case(t(3))
def hooks(x):
    return HK(x)


MHA = nn.MultiheadAttention(8, 2, batch_first=True).eval()
LSTM = nn.LSTM(4, 5, batch_first=True)
TE = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
GRUC = nn.GRUCell(3, 4)
EMB = nn.Embedding(5, 4)
CONV = nn.Conv2d(3, 4, 3, padding="same")


@case(t(2, 3, 8))
def mha(x):
    return MHA(x, x, x)


@case(t(2, 3, 8))
def mha_without_grad(x):
    with torch.no_grad():  # takes the fast path, which asks for active dispatch modes
        return MHA(x, x, x)


@case(t(2, 3, 8))
def telayer(x):
    return TE(x)


@case(t(2, 3, 4))
def lstm(x):
    return LSTM(x)


@case(t(2, 3))
def grucell(x):
    return GRUC(x)


@case(t(1, 3, 5, 5))
def conv(x):
    return (
        CONV(x),
        F.interpolate(x, scale_factor=2.0, mode="nearest"),
        F.pad(x, (1, 1)),
        F.adaptive_avg_pool2d(x, 1),
        F.max_pool2d(x, 2),
        F.softmax(x, -1),
        F.layer_norm(x, (5,)),
        F.gelu(x),
        F.unfold(x, 2),
        F.dropout(x, 0.5, False),
    )


@case(t(3, 4), lambda: torch.tensor([0, 1, 2]))
def losses(x, y):
    return (
        F.cross_entropy(x, y),
        F.nll_loss(F.log_softmax(x, -1), y),
        F.mse_loss(x, x + 1),
        F.one_hot(y, 5),
        nn.CrossEntropyLoss()(x, y) if False else 0,
    )


@case(t(3))
def compile_flags(x):
    return (
        torch.compiler.is_compiling() and False,
        torch.jit.is_scripting(),
        torch.is_grad_enabled(),
        torch.get_default_dtype(),
        torch.is_tensor(x),
        torch.overrides.has_torch_function((x,)) if False else 0,
    )


@case(t(3))
def tensor_ctor(x):
    return (
        torch.tensor([1, 2, 3]),
        torch.tensor(3.5, dtype=torch.float64),
        torch.zeros_like(x),
        torch.full((2,), 7),
        torch.ones(2, 3, device=x.device),
        torch.as_tensor([1.0]),
        torch.linspace(0, 1, 3),
        torch.eye(2),
        x.new_tensor([1, 2]),
        torch.empty(0).shape,
        torch.Size([1, 2]) + torch.Size([3]),
        torch.Size((2, 3)).numel(),
        torch.device("cpu").type,
    )


@case(lambda: {"x": torch.ones(2), "l": [torch.ones(3), {"q": 2}]}, lambda: [1, 2, 3])
def nested_in(d, l):
    d["x"] = d["x"] + 1
    d["l"][1]["q"] += 1
    d["l"].append(4)
    l.sort(reverse=True)
    l.pop()
    l[0] = d["x"]
    return d["l"][0] * d["l"][1]["q"], l


@case(t(3))
def printed(x):
    y = x + 1
    print("hi")
    return y * 2


@case(t(3), breaks=("branch-on-tensor",))
def if_tensor(x):
    if x.sum() > 0:
        return x + 1
    return x - 1


@case(t(3))
def item_used(x):
    k = x.sum().item()
    return x * k


@case(t(3), breaks=("raises",))
def raise_user(x):
    y = x + 1
    raise ValueError(f"bad {y.shape}")


@case(t(3), breaks=("torch-call-raises",))
def shape_error(x):
    return x @ torch.ones(4, 4)


@case(t(3))
def rng(x):
    return F.dropout(x, 0.5), torch.rand(2), torch.randn_like(x)


@pytest.mark.parametrize("each", CASES, ids=lambda each: each.name)
def test_tensors(each):
    check(each)
