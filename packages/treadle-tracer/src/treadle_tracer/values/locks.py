"""Locks that the trace makes. No other thread has one, so that the trace knows at every step whether it is held.

    lock = threading.Lock()
    with lock:                 # nothing is left to do at run time
        y = x + 1

A lock that leaves the trace is made then, held as often as it was.
"""

from __future__ import annotations

import _thread
from typing import TYPE_CHECKING, Any

from treadle_tracer.by_identity import is_one_of
from treadle_tracer.bytecode.opcodes import MINOR
from treadle_tracer.errors import Unsupported
from treadle_tracer.values.base import FALSE, NONE, TRUE, Constant, boolean
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext

LOCK: Any = type(_thread.allocate_lock())
RLOCK: Any = _thread.RLock
_TIMES_HELD = "times held"  # the name under which the state is recorded, so that a path that was only tried leaves none
_LONGEST = _thread.TIMEOUT_MAX


def is_outside_lock(value: Value) -> bool:
    """Whether other threads may hold it: it is no lock that the trace has made."""
    return not isinstance(value, LockValue) and is_one_of(value.python_type(), (LOCK, RLOCK))


class LockValue(Value):
    """A `Lock` or an `RLock` that the trace has made."""

    __slots__ = ("cls",)

    def __init__(self, cls: type):
        self.source = None
        self.cls = cls

    def python_type(self) -> type:
        return self.cls

    def truth(self, tx: TraceContext) -> bool:
        return True

    def times_held(self, mutations: Any) -> int:
        """How often the lock has been acquired and not released: for a `Lock` at most once."""
        stored = mutations.load_attr(self, _TIMES_HELD)
        return 0 if stored is None else stored.obj

    def _hold(self, tx: TraceContext, times: int) -> None:
        tx.mutations.store_attr(self, _TIMES_HELD, Constant(times))

    def builtin_method(self, tx: TraceContext, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        handler = _METHODS.get(name)
        if handler is None:
            return super().builtin_method(tx, name, args, kwargs)
        return handler(self, tx, args, kwargs)

    def acquire(self, tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """`acquire(blocking=True, timeout=-1)`; raises Unsupported where it would wait."""
        given = dict(zip(("blocking", "timeout"), args, strict=False)) | kwargs
        blocking = given["blocking"].truth(tx) if "blocking" in given else True
        timeout = given["timeout"].constant() if "timeout" in given else -1
        _check_timeout(tx, blocking, timeout)
        held = self.times_held(tx.mutations)
        if held and self.cls is LOCK:
            if blocking and timeout != 0:
                raise Unsupported("builtin-method", "acquire of a lock that is held, which waits")
            return FALSE
        self._hold(tx, held + 1)
        return TRUE

    def release(self, tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """`release()`, `__exit__(...)`"""
        held = self.times_held(tx.mutations)
        if not held:
            said = "release unlocked lock" if self.cls is LOCK else "cannot release un-acquired lock"
            tx.raise_exception(RuntimeError, said)
        self._hold(tx, held - 1)
        return NONE

    def is_held(self, tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """`locked()`; of an `RLock` `_is_owned()`"""
        return boolean(self.times_held(tx.mutations) > 0)

    def release_all(self, tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """`_release_save()` of an `RLock`, by which conditions wait"""
        raise Unsupported("builtin-method", "a wait for a condition that nobody else can set")

    def reconstruct(self, cg: Any) -> None:
        held = self.times_held(cg.mutations)
        cg.call_const(_held_lock if self.cls is LOCK else _held_rlock, Constant(held))


def _held_lock(times: int) -> Any:
    lock = _thread.allocate_lock()
    if times:
        lock.acquire()
    return lock


def _held_rlock(times: int) -> Any:
    lock = _thread.RLock()
    for _ in range(times):
        lock.acquire()
    return lock


def _check_timeout(tx: TraceContext, blocking: bool, timeout: Any) -> None:
    """Raise what `acquire` raises for a wrong timeout (Modules/_threadmodule.c, lock_acquire_parse_args)."""
    if timeout == -1:
        return
    if type(timeout) not in (int, float) or timeout > _LONGEST:
        raise Unsupported("builtin-method", "acquire with this timeout")
    if not blocking:
        tx.raise_exception(ValueError, "can't specify a timeout for a non-blocking call")
    if timeout < 0:
        raise Unsupported("builtin-method", "acquire with a negative timeout")


def new_lock(tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`_thread.allocate_lock()`, which is `threading.Lock`"""
    if args or kwargs:
        raise Unsupported("builtin-call", "a lock with arguments")
    return LockValue(LOCK)


def new_rlock(tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`threading.RLock()`"""
    if args or kwargs:
        raise Unsupported("builtin-call", "a lock with arguments")
    return LockValue(RLOCK)


_METHODS: dict[str, Any] = {
    "acquire": LockValue.acquire,
    "acquire_lock": LockValue.acquire,
    "__enter__": LockValue.acquire,
    "release": LockValue.release,
    "release_lock": LockValue.release,
    "__exit__": LockValue.release,
    "locked": LockValue.is_held,
    "locked_lock": LockValue.is_held,
    "_is_owned": LockValue.is_held,
    "_release_save": LockValue.release_all,
}
LOCK_CLASSES = {RLOCK: new_rlock, **({LOCK: new_lock} if MINOR >= 13 else {})}
"""Classes of locks that may be called, by class. Before 3.13 `Lock` is a function."""
