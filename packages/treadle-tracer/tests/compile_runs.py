"""Running a function with and without the tracer and comparing everything that can be seen from outside."""

from __future__ import annotations

import collections
import itertools
import linecache
import traceback
import types
import warnings
from collections.abc import Iterator
from typing import Any

import torch

import treadle_frame
from treadle_tracer import InternalError, SilentObserver, TracerOptions, compile_handler
from treadle_tracer.output.continuations import forget_continuations


def item(tensor):
    """`tensor.item()`, which breaks the graph."""
    return tensor.item()


def items(tensor):
    """`tensor.tolist()`, which breaks the graph."""
    return tensor.tolist()


item._treadle_disabled = items._treadle_disabled = True  # type: ignore[attr-defined]


class Recorder(SilentObserver):
    """Keeps what a compile says."""

    def __init__(self):
        self.graphs, self.breaks, self.recompiles, self.skips, self.entries, self.waits = [], [], [], [], [], []

    def on_graph(self, gm):
        self.graphs.append(gm)

    def on_break(self, reason):
        self.breaks.append(reason)

    def on_recompile(self, code, reason):
        self.recompiles.append((code.co_name, reason))

    def on_skip(self, code, reason):
        self.skips.append((code.co_name, reason))

    def on_wait(self, code, guard):
        self.waits.append(guard)

    def on_entry(self, entry):
        self.entries.append(entry)

    def codes(self):
        """Break codes, and for frames left alone the reason."""
        return [reason.code for reason in self.breaks]


def run_graph(gm, example_inputs):
    """The backend: the graph as it is."""
    assert all(isinstance(x, (torch.Tensor, int, float, torch.SymInt)) for x in example_inputs)
    gm.graph.lint()
    return gm.forward


def compiled(function, backend=run_graph, **options):
    """(the compiled function, what its compiles say)"""
    recorder = Recorder()
    options = {"raise_internal_errors": True, **options}
    handler = compile_handler(backend, TracerOptions(**options), recorder)
    handler.add_root(function.__code__)
    treadle_frame.reset()
    for breaking in (item, items):
        treadle_frame.skip(breaking.__code__)
    forget_continuations()
    return treadle_frame.dispatcher(function, handler), recorder


def portrait(*objects: Any) -> Any:
    """A value that is equal for equal object graphs: contents, types, and which places hold one and the same object."""
    return _Portrait().of(objects)


class _Portrait:
    def __init__(self):
        self.numbers: dict[int, int] = {}
        self.alive = []

    def of(self, obj):
        kind = type(obj)
        if isinstance(obj, type) and "<locals>" in obj.__qualname__:  # another one at every call
            if id(obj) in self.numbers:
                return ("seen", self.numbers[id(obj)])
            self.numbers[id(obj)] = len(self.numbers)
            self.alive.append(obj)
            own = [(name, self.of(value)) for name, value in vars(obj).items() if not name.startswith("__")]
            return (
                kind.__qualname__,
                obj.__qualname__,
                [base.__qualname__ for base in obj.__mro__],
                own,
                list(vars(obj)),
            )
        if obj is None or kind in (bool, int, str, bytes, type, torch.dtype, torch.device, torch.Size):
            return (kind.__name__, obj)
        if kind in (float, complex):
            return (kind.__name__, repr(obj))
        if isinstance(obj, (types.BuiltinFunctionType, types.ModuleType)):
            return obj
        if id(obj) in self.numbers:
            return ("seen", self.numbers[id(obj)])
        self.numbers[id(obj)] = len(self.numbers)
        self.alive.append(obj)
        return (kind.__qualname__, self.numbers[id(obj)], self.parts(obj))

    def parts(self, obj):
        if isinstance(obj, torch.Tensor):
            meta = (
                obj.dtype,
                tuple(obj.shape),
                obj.stride(),
                obj.requires_grad,
                obj.grad_fn is not None,
                str(obj.device),
            )
            return (*meta, repr(obj.detach().tolist()), self.of(vars(obj)) if vars(obj) else None)
        if isinstance(obj, torch.nn.Module):
            return [(k, self.of(v)) for k, v in vars(obj).items() if "hook" not in k]
        if isinstance(obj, dict):
            return [(self.of(k), self.of(v)) for k, v in obj.items()]
        if isinstance(obj, (list, tuple, collections.deque)):
            return [self.of(x) for x in obj]
        if isinstance(obj, (set, frozenset)):
            return sorted(repr(self.of(x)) for x in obj)
        if isinstance(obj, types.FunctionType):
            cells = [self.of(c.cell_contents) if c != types.CellType() else "empty" for c in obj.__closure__ or ()]
            return (obj.__qualname__, obj.__code__.co_code, self.of(obj.__defaults__), cells)
        if isinstance(obj, types.MethodType):
            return (self.of(obj.__func__), self.of(obj.__self__))
        if isinstance(obj, BaseException):
            return (type(obj).__name__, str(obj))
        return [(k, self.of(v)) for k, v in getattr(obj, "__dict__", {}).items()]


def outcome(function, args, kwargs):
    """(result or exception, state of everything reachable, torch's state, the printed lines of the function's own traceback)"""
    torch.manual_seed(0)
    lines = None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", treadle_frame.StaleGuardWarning)
            warnings.filterwarnings("ignore", message="treadle: .* runs uncompiled")
            warnings.filterwarnings("error", message="treadle: the compiled graph|treadle: .*a bug of")
            result = function(*args, **kwargs)
    except (InternalError, treadle_frame.StaleGuardWarning, RuntimeWarning):
        raise
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        lines = frames[-1].line if frames else None
        result = error
    state = (torch.is_grad_enabled(), torch.get_default_dtype(), torch.get_rng_state().sum().item())
    return portrait(result, args, kwargs), state, lines


def compare(function, *arguments, kwargs=None, calls=2, reset=None, look=None, **options):
    """Run `function` with the arguments each maker in `arguments` gives, `calls` times, eagerly and compiled; both must look the same.

    A maker is a callable without parameters, or a value that is used as it is. `look()` gives outside objects to compare after each
    call, `reset()` brings them back to their start before each of the two series of calls. Returns the Recorder of the compiled runs.
    """

    def fresh():
        return [a() if callable(a) and not isinstance(a, (type, torch.nn.Module)) else a for a in arguments]

    def seen(function):
        runs = []
        if reset is not None:
            reset()
        for _ in range(calls):
            runs.append(
                (outcome(function, fresh(), dict(kwargs or {})), portrait(look() if look is not None else None))
            )
        return runs

    expected = seen(function)
    fast, recorder = compiled(function, **options)
    got = seen(fast)
    for number, (want, have) in enumerate(zip(expected, got)):
        assert have == want, f"call {number}"
    return recorder


_programs = itertools.count()


def load(text):
    """The namespace of a program's text, whose lines tracebacks can show."""
    filename = f"<random program {next(_programs)}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(True), filename)
    namespace = {"__name__": "random_program"}
    exec(compile(text, filename, "exec"), namespace)
    return namespace


def listed(result):
    """`result` with iterators replaced by a list of their type's name and their next items, at most 8."""
    if isinstance(result, (list, tuple)):
        return [listed(item) for item in result]
    if isinstance(result, dict):
        return {key: listed(item) for key, item in result.items()}
    if isinstance(result, Iterator):
        return [type(result).__name__, *map(listed, itertools.islice(result, 8))]
    return result


def t(*shape, **options):
    """A maker of the same tensor every time."""
    return lambda: torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)), **options)


def whole(recorder):
    """One graph, no break, no recompile."""
    assert recorder.codes() == []
    assert recorder.skips == []
    assert recorder.recompiles == []
    assert len(recorder.graphs) == 1
    assert len(recorder.entries) == 1


class Target:
    """An object that programs write to."""

    def __init__(self):
        self.count = 0
        self.log = ["start"]
        self.table = {"a": 1}
        self.last = None


def check_program(program, shown, is_whole):
    """A program of a tensor gives what it gives in eager, `shown` as plain values, for two tensors; it breaks unless it `is_whole`."""
    run, said = compiled(program)
    for start in (1.0, 2.0):
        assert shown(run(torch.full((2,), start))) == shown(program(torch.full((2,), start)))
    assert bool(said.breaks or said.skips) != is_whole
