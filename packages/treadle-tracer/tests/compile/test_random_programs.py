"""Random programs of tensors, Python control flow, mutations and graph breaks: compiled runs must look like Python's."""

from __future__ import annotations

import collections

import torch
from compile_runs import compiled, load, outcome, portrait
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

TENSORS = ("a", "b", "c")
NUMBERS = ("n", "m")

HEADER = """
import bisect, collections, contextlib, contextvars, copy, dataclasses, enum, functools, heapq, itertools, queue, sys, threading, weakref
import torch

VARIABLE = contextvars.ContextVar("VARIABLE", default=1)
LOCAL = threading.local()

class Registry:
    total = 0
    last = None
    notes = []
    @classmethod
    def note(cls, n):
        cls.total += n
        return cls.total

class SubRegistry(Registry):
    pass

@functools.lru_cache(None)
def cached(n, sizes=()):
    return n * 3 + len(sizes)

@functools.singledispatch
def kind(value):
    return 1

@kind.register
def _(value: int):
    return value + 2

@kind.register
def _(value: torch.Tensor):
    return value * 2

class Key:
    def __init__(self, n):
        self.n = n
    def __eq__(self, other):
        return isinstance(other, Key) and self.n == other.n
    def __hash__(self):
        return hash(self.n)

class Scaled(int):
    def times(self, x):
        return x * self

class Parent:
    seen = []
    def __init_subclass__(cls, **kw):
        super().__init_subclass__(**kw)
        cls.tag = len(cls.__name__)
    def apply(self, x):
        return x + self.tag

class Box:
    def __init__(self):
        self.t = torch.zeros(2)
        self.n = 0
    def bump(self, x):
        self.n += 1
        self.t = self.t + x
        return self.n

class Manager:
    def __init__(self, log):
        self.log = log
    def __enter__(self):
        self.log.append("in")
        return self
    def __exit__(self, kind, error, trace):
        self.log.append(kind.__name__ if kind else "out")
        self.log.append((trace is None, type(getattr(error, "__context__", None)).__name__))
        return kind is KeyError

class Tall(Box):
    def bump(self, x):
        k = super().bump(x * 2)
        self.t = self.t / 2
        return k + 1
    def slow(self, x):
        x = x + self.n
        x.sum().item()
        return super().bump(x)
    def __getattr__(self, name):
        if name == "missing":
            return 5
        raise AttributeError(name)

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(2, 2), torch.nn.Tanh()])
        self.register_buffer("seen", torch.zeros(2))
        self.calls = 0
        with torch.no_grad():
            self.layers[0].weight.copy_(torch.tensor([[1.0, 0.5], [0.25, -1.0]]))
            self.layers[0].bias.zero_()
    def forward(self, x, loud=False):
        self.calls = (self.calls + 1) % 2
        self.seen.add_(x.detach())
        for layer in self.layers:
            x = layer(x)
            if loud:
                x.sum().item()
        return x

count = 0
state = collections.OrderedDict(a=1)

def numbers(x, k):
    for i in range(k):
        got = yield x * i
        if got:
            x = x + got

def helper(x, k):
    if k > 2:
        return x - k
    for i in range(k):
        x = x * 2 + i
    return x

def breaking(x, k):
    x = x + k
    return x * (1 if x.sum().item() > 0 else 2)

def delegating(x, k, log):
    try:
        log.append((yield from numbers(x, k)))
    except KeyError as error:
        log.append(type(error.__context__).__name__)
        yield x - 1
    finally:
        log.append("end")
    return k

class Pause:
    def __init__(self, n):
        self.n = n
    def __await__(self):
        return (yield self.n)

async def awaiting(x, k, loud=False):
    for i in range(k):
        x = x + (await Pause(i) or 0)
        if loud:
            x.sum().item()
    return x

def drive(coroutine, *sent):
    seen = []
    try:
        seen.append(coroutine.send(None))
        for value in sent:
            seen.append(coroutine.send(value))
    except StopIteration as stop:
        return stop.value, seen
    coroutine.close()
    return None, seen

def group(n):
    return ExceptionGroup("g", [KeyError(n), ExceptionGroup("h", [ValueError(1), OSError(2, "m")]), ValueError(n)][: n % 3 + 1])
"""

SIMPLE = st.sampled_from(
    [
        "{t} = {u} + {v}",
        "{t} = {u} * {n} - 1",
        "{t} = torch.where({u} > 0, {u}, {v})",
        "{t} = torch.stack([{u}, {v}]).sum(0)",
        "{t} = helper({u}, {n} % 4)",
        "{t} = {u}.clone()",
        "{t} = {u}",
        "{t} += {u}",
        "{t}.add_(1)",
        "{t}[0] = {n}",
        "{t} = {u} / {v}.abs().max().clamp(min=1)",
        "{n} += 1",
        "{n} = ({m} * 3 + {n}) % 7",
        "{n}, {m} = {m}, {n} + 1",
        "xs.append({t})",
        "xs.append({n})",
        "xs.insert(0, ({t}, {n}))",
        "xs[-1:] = [{n}, {u}]",
        "xs = [y for y in xs if not isinstance(y, int)]",
        "d['k{n}'] = {t}",
        "d.setdefault({n}, []).append({m})",
        "d.pop({n}, None)",
        "box.t = {t}",
        "{n} = box.bump({t}) % 5",
        "{t} = box.t * 2",
        "box.n -= {n}",
        "box.more = [box, {t}]",
        "count += {n}",
        "{n} = count % 5",
        "{n} = len(xs) % 5",
        "{t} = sum((y for y in xs if isinstance(y, torch.Tensor)), {u})",
        "{n} = add_free({m})",
        "{t} = {u} + free",
        "{n} = box.bump(x={t}) % 3",
        "{n} = box.missing - {m}",
        "{t} = net({u})",
        "{t} = net.seen + {u}",
        "{t}, *rest = [{u}, {v}, {n}]; xs += rest",
        "xs[:] = sorted((y for y in xs if isinstance(y, int)), key=lambda y: -y)",
        "{n} = (last := {m}) + len(f'{n!r:>4}{m}') - last - 4",
        "{n} = {n} if {n} < {m} < 9 else {m} - 1",
        "{n} = abs({m} - 3) if {n} in (1, 2) else -{n} % 7",
        "{t} = max([{u}, {v}], key=lambda y: {n})",
        "{t} = {u}[None].expand(3, 2).mean(0)",
        "d = {{k: v for k, v in d.items() if k != {n}}}",
        "{t} = sum(numbers({u}, 3), {v})",
        "xs.append((lambda y, z={n}: y + z)({m}))",
        "xs.reverse()",
        "del xs[:{n}]",
        "{t} = torch.cat([{u}, {v}])[{n} % 3:][:2] if {n} % 3 < 3 else {u}",
        "assert {n} < 1000, 'too big'",
        "{t} = (lambda *args, **kw: args[0] + kw['y'])({u}, y={v})",
        "{t} = helper(*[{u}], **{{'k': {n} % 3}})",
        "{n} = {{Key(1): 3, Key({n}): 4}}.get(Key({m}), 0)",
        "{t} = Scaled({n} % 4 + 1).times({u})",
        "xs.append(Scaled({n} % 4))",
        "heap = [3, {n}, {m}]; heapq.heapify(heap); heapq.heappush(heap, 2); {n} = heapq.heappop(heap)",
        "xs += [(k, len(list(g))) for k, g in itertools.groupby([{n}, {n}, {m}])]",
        "{n} = bisect.bisect([1, 3, 5], {m})",
        "{t} = copy.deepcopy({u}.detach()) + 1",
        "{n} = eval('{m} * 2 + 1') % 5",
        "{t} = {u} * torch.nn.Parameter({v}.detach())",
        "{t} = type('Made', (), {{'k': {n}, 'f': lambda self, y: y + self.k}})().f({u})",
        "Registry.total += {n}",
        "{n} = Registry.note({m}) % 5",
        "{n} = SubRegistry.note(1) % 5",
        "SubRegistry.total = {n}",
        "Registry.last = {t}",
        "{t} = {u} if SubRegistry().last is None else SubRegistry.last + 1",
        "Registry.notes = [*Registry.notes, {n}]",
        "Registry.apply = lambda self, y: y + {n}; {t} = SubRegistry().apply({u})",
        "Registry.fresh = {n}; {m} = SubRegistry.fresh % 4; del Registry.fresh",
        "if 'total' in vars(SubRegistry): del SubRegistry.total",
        "VARIABLE.set(VARIABLE.get() % 5 + {n})",
        "token = VARIABLE.set({n}); {t} = {u} * VARIABLE.get(); VARIABLE.reset(token)",
        "{n} = VARIABLE.get() % 5",
        "LOCAL.n = getattr(LOCAL, 'n', 0) + {n}",
        "{n} = vars(LOCAL).get('n', 3) % 5",
        "{n} = weakref.ref(box)().n % 5",
        "held = Box(); link = weakref.ref(held); held.n += {n}; {t} = {u} + link().n",
        "{n} = cached({m} % 3, {t}.shape) % 5",
        "{n} = kind({m}) % 5",
        "{t} = kind({u}) + kind('text')",
        "left, right = itertools.tee([{n}, {m}, 3]); {m} = next(left) % 5; xs.append([*right, next(left)])",
        "left, right = itertools.tee((y for y in (1, {n})), 2); next(left); d['tee'] = right",
        "lock = threading.RLock(); lock.acquire(); {n} = lock.acquire(False) + {m} % 3; d['lock'] = lock.__class__.__name__",
        "line = queue.Queue(); line.put({t}); line.put({n}); {u} = line.get() + line.qsize()",
        "made = collections.OrderedDict(a={t}); made.n = {n}; {u} = made['a'] + made.n; xs.append(made)",
        "{n} = getattr(state, 'n', 2) + len(net.state_dict()) % 3",
        "box.error = sys.exc_info()[1].__class__.__name__",
        "torch.set_default_dtype(torch.float64); {t} = {u} + torch.ones(2).to({u}); torch.set_default_dtype(torch.float32)",
        "{n} = len('abc'.translate({{97: 'zz', 98: None}})) - {m}",
        "{n} = len(list(iter(iter([1, {n}, {m}, 2]).__next__, {m})))",
        "it = delegating({u}, {n} % 3, xs); {t} = next(it, {v}); xs.append([*it])",
        "it = delegating({u}, 2, xs); next(it); xs.append(it.throw(KeyError({n}))); it.close()",
        "it = delegating({u}, 2, xs); xs.append([next(it), it.send({v})]); d['it'] = it",
        "{t} = drive(awaiting({u}, {n} % 3), 1, {v}, 2)[0]",
        "xs.append(drive(awaiting({u}, {n} % 4), {m}))",
        "xs.append([str(part) for part in group({n}).split(ValueError)])",
        "xs.append([getattr(OSError(2, {n}), name) for name in ('errno', 'strerror', 'filename')])",
    ]
)

CLASSES = st.sampled_from(
    [
        """class Local:
    k = {n}
    held = {t}
    def f(self, y): return y * self.k + self.held
    @property
    def p(self): return self.k + 1
{u} = Local().f({v}); {m} = Local().p % 5""",
        """class Local(Parent):
    def apply(self, x): return super().apply(x) * 2
{u} = Local().apply({v}); xs.append(Local.tag)""",
        """class Local(Box):
    items = xs
    def bump(self, x):
        self.items.append({n})
        return super().bump(x + {v})
local = Local(); {m} = local.bump({t}) % 5; {u} = local.t; box.other = local""",
        """@dataclasses.dataclass
class Local:
    a: int
    b: object = None
    c: list = dataclasses.field(default_factory=list)
local = Local({n}, {t}); local.c.append({m}); {u} = local.b + local.a; xs.append(repr(Local(1))); {m} = (Local(1) == Local({n})) + 1""",
        """class Meta(type):
    def __new__(m, name, bases, ns): return super().__new__(m, name, bases, dict(ns, extra={n}))
class Local(metaclass=Meta):
    def __call__(self, y): return y - self.extra
{u} = Local()({v})""",
        """class Failed(ValueError):
    def __init__(self, n): super().__init__(n); self.n = n
try:
    if {n} % 2: raise Failed({m})
    {u} = {v} + 1
except Failed as failed:
    {m} = failed.n % 5""",
        """class Kind(enum.Enum):
    A = 1
    B = 2
{n} = Kind({m} % 2 + 1).value + len(Kind)""",
        """class Local:
    def __init__(self, y): self.y = y; Local.last = self
    def __add__(self, other): return Local(self.y + other.y)
{u} = (Local({t}) + Local({v})).y; box.cls = Local""",
    ]
)

BREAKING = st.sampled_from(
    [
        "{n} = int({t}.sum().item()) % 5",
        "xs.append({t}.tolist())",
        "print({n}, end='', file=sink)",
        "{t} = breaking({u}, {n})",
        "xs.append(float({t}.max()))",
        "sink.write(str({n}))",
        "{t} = {u} + torch.rand(2)",
        "d['s'] = [sink.write('x'), {t} * {n}]",
        "{t} = helper({u}, int({v}.abs().sum().item()) % 5)",
        "xs.append({t}.sum() > 0 or {n})",
        "{n} = box.slow({t}) % 3 if hasattr(box, 'slow') else 1",
        "{t} = net({u}, loud={n} % 2 == 0)",
        "xs.append(f'{{{t}.sum().item():.2f}}')",
        "{t} = torch.add({u}, breaking({v}, 1), alpha=int(breaking({u}, {n}).sum().item()) % 3)",
        "{t} = sum([breaking(y, 1) for y in ({u}, {v})])",
        "it = iter(numbers({u}, 3)); xs.append(next(it)); {t} = {t} + it.send({v} * 2)",
        "xs.append([float(y) for y in {t}])",
        "assert {t}.sum() > {n}, 'small'",
        "{t} = breaking(*[{u}], **{{'k': {n} % 3}})",
        "sink.append(type({t}).__name__); sink.sort()",
        "Registry.last = breaking({u}, Registry.total)",
        "token = VARIABLE.set({n}); {t} = breaking({u}, VARIABLE.get()); VARIABLE.reset(token)",
        "link = weakref.ref(Box()); xs.append(link() is None)",
        "state.n = {n}",
        "{t} = drive(awaiting(breaking({u}, 1), {n} % 3, loud=True), 1, 2, 3)[0]",
        "it = delegating(breaking({u}, 1), 3, xs); next(it); {t} = breaking(it.send({v}), 2); xs.append([*it])",
        "lock = threading.Lock(); lock.acquire(); {t} = breaking({u}, lock.locked()); lock.release()",
        "left, right = itertools.tee([{n}, 1, 2]); next(left); {t} = breaking({u}, next(right)) + sum(left); xs += right",
    ]
)

CONDITIONS = st.sampled_from(
    [
        "{n} % 2",
        "{n} > {m}",
        "{t}.sum() > 0",
        "len(xs) > 2",
        "{n} in d",
        "{t} is {u}",
        "not xs",
        "{t}.sum() > 0 and {n}",
    ]
)

MANAGERS = st.sampled_from(
    ["torch.no_grad()", "Manager(xs)", "Manager(xs) as item", "contextlib.suppress(KeyError), threading.Lock()"]
)

EXCEPTIONS = st.sampled_from(
    [
        "raise ValueError({n})",
        "xs[{n} + 100]",
        "d['no such key']",
        "{n} // ({m} % 2)",
        "{t} + torch.ones(5)",
        "{t}.reshape(7)",
    ]
)


@st.composite
def programs(draw):
    lines: list[str] = []

    def fill(text):
        names = {key: draw(st.sampled_from(TENSORS)) for key in "tuv"}
        return text.format(**names, n=draw(st.sampled_from(NUMBERS)), m=draw(st.sampled_from(NUMBERS)))

    def block(depth, indent, in_loop):
        for _ in range(draw(st.integers(1, 4 if depth else 6))):
            statement(depth, indent, in_loop)

    def emit(indent, text):
        lines.append("    " * indent + text)

    def statement(depth, indent, in_loop):
        kind = draw(st.sampled_from(["simple"] * 6 + ["break"] + (KINDS if depth < 2 else [])))
        if kind == "simple":
            emit(indent, fill(draw(SIMPLE)))
        elif kind == "class":
            for line in fill(draw(CLASSES)).splitlines():
                emit(indent, line)
        elif kind == "break":
            emit(indent, fill(draw(BREAKING)))
        elif kind == "if":
            emit(indent, f"if {fill(draw(CONDITIONS))}:")
            block(depth + 1, indent + 1, in_loop)
            if draw(st.booleans()):
                emit(indent + 1, draw(st.sampled_from(["return [a, xs]", *(["break", "continue"] if in_loop else [])])))
            if draw(st.booleans()):
                emit(indent, "else:")
                block(depth + 1, indent + 1, in_loop)
        elif kind == "for":
            over = draw(st.sampled_from(["range(3)", "enumerate([a, b])", "list(d)", "zip([1, 2], xs[:2])", "(n, m)"]))
            emit(indent, f"for item in {over}:")
            block(depth + 1, indent + 1, True)
        elif kind == "while":
            emit(indent, f"limit{indent} = 0")
            emit(indent, f"while limit{indent} < 3 and {fill(draw(CONDITIONS))}:")
            emit(indent + 1, f"limit{indent} += 1")
            block(depth + 1, indent + 1, True)
        elif kind == "try":
            emit(indent, "try:")
            block(depth + 1, indent + 1, in_loop)
            if draw(st.booleans()):
                emit(indent + 1, fill(draw(EXCEPTIONS)))
            emit(indent, "except Exception as error:")
            emit(indent + 1, "xs.append(type(error).__name__)")
            if draw(st.booleans()):
                emit(indent + 1, "xs.append((error.__traceback__ is None, type(error.__context__).__name__))")
            block(depth + 1, indent + 1, in_loop)
            if draw(st.booleans()):
                emit(indent, "finally:")
                emit(indent + 1, fill(draw(SIMPLE)))
        elif kind == "group":
            groups(depth, indent)
        elif kind == "with":
            emit(indent, f"with {draw(MANAGERS)}:")
            block(depth + 1, indent + 1, in_loop)
            if draw(st.integers(0, 3)) == 0:
                emit(indent + 1, fill(draw(EXCEPTIONS)))
        elif kind == "def":
            emit(indent, "def add_free(k, more=m):")
            emit(indent + 1, "nonlocal free")
            emit(indent + 1, fill("free = free + {t}.sum() * 0 + k"))
            emit(indent + 1, "return k + more")

    def groups(depth, indent):
        emit(indent, "try:")
        emit(indent + 1, "try:")
        block(depth + 1, indent + 2, False)
        emit(indent + 2, fill(draw(st.one_of(EXCEPTIONS, st.just("raise group({n})")))))
        for caught in draw(
            st.lists(st.sampled_from(["ValueError", "(KeyError, OSError)", "Exception"]), min_size=1, max_size=2)
        ):
            emit(indent + 1, f"except* {caught} as error:")
            emit(indent + 2, "xs.append((str(error), [type(part).__name__ for part in error.exceptions]))")
            emit(indent + 2, fill(draw(st.one_of(SIMPLE, SIMPLE, BREAKING))))
            if draw(st.integers(0, 2)) == 0:
                emit(indent + 2, draw(st.sampled_from(["raise", "raise error", "raise KeyError(3)", "[][3]"])))
        emit(indent, "except Exception as error:")
        emit(indent + 1, "xs.append((str(error), type(error.__context__).__name__))")

    KINDS = ["if", "if", "for", "while", "try", "with", "def", "class", "class", "group"]
    block(0, 1, False)
    body = "\n".join(lines)
    return f"""{HEADER}
def program(a, b, xs, d, box, net, sink, n, m):
    global count
    c = a + b
    free = 1
    def add_free(k):
        nonlocal free
        free += k
        return free
{body}
    return a, b, c, n, m, xs, d, box, add_free, free, count
"""


class Sink(list):
    def write(self, text):
        self.append(text)
        return len(self)


def runs(namespace, function, inputs):
    """What two calls look like, the second with other numbers."""
    seen = []
    namespace["count"] = 0
    namespace["state"] = collections.OrderedDict(a=1)
    for n, m, sign in inputs:
        a, b = torch.tensor([1.0, -2.0]) * sign, torch.tensor([0.5, 3.0])
        args = [
            a,
            b,
            [a, 3],
            {"k": b, 2: [1]},
            namespace["Box" if n == 4 else "Tall"](),
            namespace["Net"](),
            Sink(),
            n,
            m,
        ]
        result, state, _ = outcome(function, args, {})
        classes = [dict(vars(namespace[name])) for name in ("Registry", "SubRegistry")]
        held = [{k: v for k, v in fields.items() if k[0] != "_" and not callable(v)} for fields in classes]
        outside = portrait(namespace["count"], namespace["VARIABLE"].get(), dict(vars(namespace["LOCAL"])), held)
        seen.append((result, state, outside))
    return seen


INPUTS = [(1, 2, 1.0), (1, 2, -1.0), (4, 1, 1.0)]


def check(text):
    eager, traced = load(text), load(text)
    want = runs(eager, eager["program"], INPUTS)
    fast, recorder = compiled(traced["program"])
    have = runs(traced, fast, INPUTS)
    for number, (expected, got) in enumerate(zip(want, have)):
        assert got == expected, f"call {number} of{text.removeprefix(HEADER)}"
    return recorder


@settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
@given(programs())
def test_random_programs(text):
    try:
        compile(text, "x", "exec")
    except SyntaxError:
        assume(False)
    check(text)
