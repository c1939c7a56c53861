"""The standard library: functools, inspect, weakref, contextvars, threading, os, sys, time, random, pickle."""

from __future__ import annotations

import _thread
import contextvars
import copyreg
import ctypes
import datetime
import decimal
import fractions
import functools
import gc
import importlib
import inspect
import io
import math
import os
import pathlib
import pickle
import platform
import queue
import random
import statistics
import sys
import tempfile
import threading
import time
import types
import weakref

import torch


def functools_partial(x):
    scale = functools.partial(torch.mul, other=3)
    return scale(x) + len(scale.keywords)


def functools_reduce(x):
    return x * functools.reduce(lambda a, b: a * b, [1, 2, 3])


@functools.singledispatch
def dispatched(value):
    return 1


@dispatched.register
def _(value: int):
    return value * 2


@dispatched.register(list)
def _of_list(value):
    return len(value)


def functools_singledispatch(x):
    return x * dispatched(4) + dispatched([1, 2]) + dispatched("s")


class Cell:
    def __init__(self):
        self.alive = False

    def set_state(self, state):
        self.alive = state

    set_alive = functools.partialmethod(set_state, True)

    @functools.cached_property
    def heavy(self):
        return 7

    @functools.singledispatchmethod
    def kind(self, value):
        return 0

    @kind.register
    def _(self, value: str):
        return len(value)


def functools_partialmethod(x):
    cell = Cell()
    cell.set_alive()
    return x * 2 if cell.alive else x


def functools_cached_property(x):
    cell = Cell()
    return x * cell.heavy + cell.heavy + len(vars(cell))


CELL = Cell()


def functools_cached_property_outside(x):
    return x * CELL.heavy


def functools_singledispatchmethod(x):
    return x * Cell().kind("abc") + Cell().kind(1)


def functools_wraps(x):
    def decorate(function):
        @functools.wraps(function)
        def wrapper(*args):
            return function(*args) * 2

        return wrapper

    @decorate
    def double(value):
        return value + 1

    return double(x) + len(double.__name__)


@functools.lru_cache(maxsize=4)
def cached_size(number):
    return number * 2


def functools_lru_cache(x):
    return x * cached_size(x.shape[0])


def functools_total_ordering(x):
    @functools.total_ordering
    class Ranked:
        def __init__(self, rank):
            self.rank = rank

        def __eq__(self, other):
            return self.rank == other.rank

        def __lt__(self, other):
            return self.rank < other.rank

    return x * 2 if Ranked(1) <= Ranked(2) else x


def functools_cmp_to_key(x):
    return x * sorted([3, 1, 2], key=functools.cmp_to_key(lambda a, b: b - a))[0]


def inspect_signature(x):
    def inner(first, second=2, *, key=3):
        return first

    parameters = inspect.signature(inner).parameters
    return x * len(parameters) + parameters["second"].default


def inspect_queries(x):
    return x * 2 if inspect.isfunction(functools_wraps) and not inspect.isclass(x) and inspect.ismodule(math) else x


def inspect_getfullargspec(x):
    return x * len(inspect.getfullargspec(functools_wraps).args)


class Target:
    value = 3


TARGET = Target()
REFERENCE = weakref.ref(TARGET)


def weakref_inside(x):
    target = Target()
    return x * weakref.ref(target)().value


def weakref_outside(x):
    return x * REFERENCE().value


def weak_key_dictionary(x):
    target = Target()
    known = weakref.WeakKeyDictionary()
    known[target] = 4
    return x * known[target] + len(known)


def weak_set(x):
    target = Target()
    known = weakref.WeakSet([target])
    return x * len(known) + (target in known)


def weak_proxy(x):
    return x * weakref.proxy(TARGET).value


VARIABLE: contextvars.ContextVar = contextvars.ContextVar("VARIABLE", default=2)


def contextvar_get(x):
    return x * VARIABLE.get()


def contextvar_set_and_reset(x):
    token = VARIABLE.set(5)
    result = x * VARIABLE.get()
    VARIABLE.reset(token)
    return result + VARIABLE.get()


def contextvar_run(x):
    context = contextvars.copy_context()
    return context.run(lambda: x * VARIABLE.get())


LOCK = threading.Lock()
LOCAL = threading.local()
LOCAL.scale = 3


def threading_lock(x):
    with LOCK:
        result = x + 1
    return result * (not LOCK.locked())


def threading_lock_inside(x):
    lock = threading.RLock()
    with lock:
        return x + 1


def thread_allocate_lock(x):
    lock = _thread.allocate_lock()
    lock.acquire()
    lock.release()
    return x + lock.locked()


def threading_local_read(x):
    return x * LOCAL.scale


def threading_local_write(x):
    LOCAL.count = getattr(LOCAL, "count", 0) + 1
    return x * LOCAL.count


def threading_queries(x):
    return x * len(threading.current_thread().name) + (threading.get_ident() == threading.main_thread().ident)


def threading_event_and_condition(x):
    event = threading.Event()
    event.set()
    return x * event.is_set()


def queue_put_get(x):
    waiting = queue.Queue()
    waiting.put(x + 1)
    return waiting.get() * 2


def sys_reads(x):
    return x * sys.version_info[0] + (sys.maxsize > 0) + len(sys.byteorder) + ("torch" in sys.modules)


def sys_getrecursionlimit(x):
    return x * (sys.getrecursionlimit() > 10)


def sys_exc_info(x):
    try:
        raise ValueError("a")
    except ValueError:
        return x * 2 if sys.exc_info()[0] is ValueError else x


def sys_getsizeof(x):
    return x * (sys.getsizeof([]) > 0)


def os_environment(x):
    return x * len(os.environ.get("TREADLE_CONSTRUCT", "none")) + ("PATH" in os.environ)


def os_environment_write(x):
    os.environ["TREADLE_CONSTRUCT_WRITE"] = "1"
    return x * len(os.environ["TREADLE_CONSTRUCT_WRITE"])


def os_path_functions(x):
    return x * len(os.path.join("a", "b.txt")) + len(os.path.splitext("a.txt")[1]) + os.path.exists("/nowhere")


def pathlib_pure(x):
    return x * len((pathlib.PurePosixPath("a") / "b.txt").suffix) + len(pathlib.Path("a/b").name)


def os_getpid(x):
    return x * (os.getpid() > 0) + len(os.sep)


def platform_queries(x):
    return x * len(platform.system())


def pickle_dumps(x):
    return x * (len(pickle.dumps({"a": 1})) > 0)


def pickle_round_trip(x):
    return x * pickle.loads(pickle.dumps([1, 2, 3]))[1]


def io_string(x):
    stream = io.StringIO()
    stream.write("abc")
    print("de", file=stream, end="")
    return x * len(stream.getvalue())


def io_bytes(x):
    return x * len(io.BytesIO(b"abc").read())


def temporary_file(x):
    with tempfile.TemporaryFile() as stream:
        stream.write(b"ab")
        return x * stream.tell()


def random_module(x):
    random.seed(3)
    return x * random.random() + random.randint(1, 4)


def random_instance(x):
    generator = random.Random(5)
    return x * generator.random() + generator.choice([1, 2, 3])


def random_state(x):
    state = random.getstate()
    first = random.random()
    random.setstate(state)
    return x * (first == random.random())


def random_shuffle(x):
    random.seed(1)
    values = [1, 2, 3, 4]
    random.shuffle(values)
    return x * values[0] + random.sample(values, 2)[0]


def time_functions(x):
    start = time.time()
    elapsed = time.perf_counter() - time.perf_counter()
    return x * 2 if start > 0 and elapsed <= 0 else x


def datetime_arithmetic(x):
    day = datetime.date(2024, 1, 31) + datetime.timedelta(days=1)
    return x * day.month


def decimal_and_fraction(x):
    return x * int(decimal.Decimal("1.5") * 2) + float(fractions.Fraction(1, 2))


def math_functions(x):
    total = math.sqrt(4) + math.gcd(12, 8) + math.prod([1, 2, 3]) + math.isclose(1, 1) + math.comb(4, 2)
    return x * total + math.log2(8) + math.inf * 0 if math.isfinite(total) is False else x * total


def math_on_sizes(x):
    return x / math.sqrt(x.shape[-1]) + math.ceil(x.shape[0] / 2)


def statistics_functions(x):
    return x * statistics.mean([1, 2, 3]) + statistics.median([3, 1, 2])


def importlib_inside(x):
    return x * importlib.import_module("math").floor(2.5)


def import_inside(x):
    import math as mathematics
    from operator import mul

    return mul(x, mathematics.ceil(1.5))


def gc_functions(x):
    gc.collect()
    return x * gc.isenabled()


def types_method_type(x):
    class Holder:
        factor = 3

    bound = types.MethodType(lambda self, value: value * self.factor, Holder())
    return bound(x)


def function_attributes(x):
    def inner(value, scale=2):
        return value * scale

    inner.tag = 3
    return inner(x) * inner.tag + len(inner.__code__.co_varnames) + inner.__defaults__[0]


def getattr_setattr_vars(x):
    target = Target()
    setattr(target, "other", 4)
    return x * getattr(target, "other") + len(vars(target)) + ("value" in dir(target)) + hasattr(target, "nope")


def copyreg_and_ctypes(x):
    return x * ctypes.sizeof(ctypes.c_int) + len(copyreg.__name__)


def callable_object_with_state(x):
    class Accumulate:
        def __init__(self):
            self.total = 0

        def __call__(self, value):
            self.total = self.total + value
            return self.total

    accumulate = Accumulate()
    accumulate(x)
    return accumulate(x)
