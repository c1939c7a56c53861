"""Asks Linux which pages of this process have been written since it was last asked.

Reading 13 MB of weights to see that nobody wrote to them takes 1.2 ms; the page table knows it in 10 us. Since Linux 6.7 a
userfaultfd in asynchronous mode write-protects pages, and the first write to one, from user code or from inside a system call, takes the
protection away and stops nobody. One ioctl on /proc/self/pagemap finds the pages without protection and protects them again in
one step, so that no write falls between (Documentation/admin-guide/mm/pagemap.rst and userfaultfd.rst in the kernel's sources).

What the page table of this process does not know cannot be watched: other processes write to shared memory and to files, devices to
pinned memory. Watched is only memory that is private to the process and has no file (`_private_memory`); callers leave pinned memory out.

Protecting pages again hides their writes from everybody else who watches them. So all watches of a process share one `_Tracker`, and
whoever finds a written page tells all whose memory it is. A forked child has no protected pages, and its copies of the
descriptors are about its parent's memory: it begins anew.
"""

from __future__ import annotations

import ctypes
import errno
import itertools
import mmap
import os
import platform
import sys
import threading
import weakref
from array import array
from collections.abc import Iterable, Sequence

if sys.platform != "win32":
    import fcntl

PAGE = mmap.PAGESIZE
# Ranges so near to each other are scanned together: a system call takes about as long as the page faults of writes between them.
_GAP = 4 * PAGE
_SPANS_PER_SCAN = 32  # the kernel allocates them on every scan

Span = tuple[int, int]
"""First address and the address behind the last."""

_SYSCALL_NUMBERS = {"x86_64": 323, "aarch64": 282}  # userfaultfd: syscall_64.tbl and asm-generic/unistd.h
_USER_MODE_ONLY = 1  # include/uapi/linux/userfaultfd.h, as all of the following
_API_VERSION = 0xAA
_REPORT_WRITE_PROTECTION, _PROTECT_UNPOPULATED, _ASYNCHRONOUS = 1 << 0, 1 << 13, 1 << 15
_MODE_WRITE_PROTECT = 1 << 1
_PROTECT_MATCHING, _CHECK_ASYNCHRONOUS = 1 << 0, 1 << 1  # include/uapi/linux/fs.h, PM_SCAN_*
_WRITTEN, _PRESENT = 1 << 1, 1 << 3  # PAGE_IS_*
_FIRST, _END, _WALK_END = 2, 3, 4  # words of struct pm_scan_arg


def _request(direction: int, kind: int, number: int, size: int) -> int:
    """An ioctl request; direction: 1 writes, 2 reads (include/uapi/asm-generic/ioctl.h)."""
    return direction << 30 | size << 16 | kind << 8 | number


_API = _request(3, 0xAA, 0x3F, 24)
_REGISTER = _request(3, 0xAA, 0x00, 32)
_UNREGISTER = _request(2, 0xAA, 0x01, 16)
_SCAN = _request(3, ord("f"), 16, 96)


class _Range:
    """Whole pages that a watch is about. `written`: some of them may have been written since the watch was asked."""

    __slots__ = ("end", "first", "index", "written")

    def __init__(self, first: int, end: int, index: int) -> None:
        self.first, self.end, self.index, self.written = first, end, index, True


class _Ranges:
    """The ranges of one watch, and the arguments of the scans that cover them. `written`: that of any of them."""

    def __init__(self, ranges: list[_Range]) -> None:
        self.ranges = ranges
        self.scans: list[array[int]] = []
        self.written = True


class _Tracker:
    """The descriptors of this process, and everything that is watched with them. Hold `lock` around all of its methods."""

    def __init__(self) -> None:
        """Raises OSError with the reason where the kernel does not track writes."""
        # The thread that holds it may come again: a signal handler or a finalizer of the program's can call a compiled graph at any time.
        self.lock = threading.RLock()
        self.watched: dict[int, _Ranges] = {}
        self.dead: list[int] = []  # keys of `watched`; appended to by finalizers, which can run while the lock is held
        self.broken: str | None = None
        self._is_scanning = False
        self._found = array("Q", [0] * (3 * _SPANS_PER_SCAN))
        self._faults = _open_userfaultfd()
        try:
            self._pagemap = os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            os.close(self._faults)
            raise
        try:
            self._try_out()
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        os.close(self._faults)
        os.close(self._pagemap)

    def _try_out(self) -> None:
        """Four scans of four pages that are known to be written before the first and the third of them."""
        answers: list[Span | None] = []
        with mmap.mmap(-1, 4 * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
            memory[:] = bytes(len(memory))
            first = ctypes.addressof(ctypes.c_char.from_buffer(memory))
            self._register((first, first + len(memory)))
            scan = self._scan_argument((first, first + len(memory)))
            for k in range(4):
                if k == 2:
                    memory[2 * PAGE + 5] = 1
                found = fcntl.ioctl(self._pagemap, _SCAN, scan, True)
                answers.append((self._found[0] - first, self._found[1] - first) if found else None)
        if answers != [(0, 4 * PAGE), None, (2 * PAGE, 3 * PAGE), None]:
            raise OSError(errno.ENOTSUP, "the kernel's answers about written pages are wrong")

    def _register(self, span: Span) -> None:
        fcntl.ioctl(self._faults, _REGISTER, array("Q", [span[0], span[1] - span[0], _MODE_WRITE_PROTECT, 0]), True)

    def _unregister(self, span: Span) -> None:
        try:
            fcntl.ioctl(self._faults, _UNREGISTER, array("Q", [span[0], span[1] - span[0]]), True)
        except OSError:  # it is not there any more; if parts are, their next write costs a page fault
            pass

    def _scan_argument(self, span: Span) -> array[int]:
        """A struct pm_scan_arg for the pages that are written, or not there: what `madvise(MADV_DONTNEED)` took away reads as zeros then,
        and with its page table went the mark that it is written."""
        size, flags, vector = 96, _PROTECT_MATCHING | _CHECK_ASYNCHRONOUS, self._found.buffer_info()[0]
        limits = [span[0], span[1], 0, vector, _SPANS_PER_SCAN, 0]
        inverted, all_of, any_of, returned = _PRESENT, 0, _WRITTEN | _PRESENT, _WRITTEN
        return array("Q", [size, flags, *limits, inverted, all_of, any_of, returned])

    def watch(self, key: int, ranges: _Ranges) -> None:
        """Begin to watch. Ranges that cannot be watched are taken out of `ranges`."""
        self.forget_dead()
        self.watched[key] = ranges
        self._begin_scanning()
        self.register(ranges)
        self._is_scanning = False

    def register(self, ranges: _Ranges) -> None:
        """Protect the pages of all ranges, if it has to be again. Ranges that cannot be watched are taken out. For all who watch those
        pages they count as written: other memory may be there, which brought marks of its own from where it was (`mremap`)."""
        private = _private_memory()
        scans: list[array[int]] = []
        lost = [r for r in ranges.ranges if _around(private, r.first, r.end) is None]
        for span in _joined([(r.first, r.end) for r in ranges.ranges if r not in lost], private):
            scan = self._scan_argument(span)
            try:
                self._register(span)
                self._note(scan, fcntl.ioctl(self._pagemap, _SCAN, scan, True))
                scans.append(scan)
            except OSError:  # somebody else's userfaultfd, too many mappings, or memory that has just gone
                lost += [r for r in ranges.ranges if span[0] <= r.first < span[1]]
            self._mark(*span)
        ranges.scans = scans
        ranges.ranges = [r for r in ranges.ranges if r not in lost]
        ranges.written = True

    def _begin_scanning(self) -> None:
        if self._is_scanning:  # an exception, or a call by a signal handler, came between the last scan and its marks
            self._mark(0, sys.maxsize)
        self._is_scanning = True

    def find_written(self, ranges: _Ranges) -> None:
        """Set `written` of what has been written since the last time, in these ranges and in all others that share pages with them."""
        self._begin_scanning()
        lost = False
        for scan in ranges.scans:
            try:
                found = fcntl.ioctl(self._pagemap, _SCAN, scan, True)
                if found:
                    self._note(scan, found)
            except OSError as error:
                self._mark(scan[_FIRST], scan[_END])  # some pages may be protected again, and nobody was told
                lost = True
                if error.errno != errno.EPERM:  # EPERM: the memory was unmapped, and other memory is there
                    self.broken = f"PAGEMAP_SCAN: {error.strerror}"
        if lost:
            self.register(ranges)
        self._is_scanning = False

    def _note(self, scan: array[int], found: int) -> None:
        """Mark the `found` spans that a scan has told, and go on with it where the kernel stopped because it had no more place."""
        while True:
            for k in range(found):
                self._mark(self._found[3 * k], self._found[3 * k + 1])
            if scan[_WALK_END] >= scan[_END]:
                return
            scan = self._scan_argument((scan[_WALK_END], scan[_END]))
            found = fcntl.ioctl(self._pagemap, _SCAN, scan, True)

    def _mark(self, first: int, end: int) -> None:
        for ranges in list(self.watched.values()):
            for r in ranges.ranges:
                if r.first < end and first < r.end:
                    r.written = ranges.written = True

    def forget_dead(self) -> None:
        """Release the pages that only watches of the past were about."""
        gone: list[array[int]] = []
        while self.dead:
            gone += self.watched.pop(self.dead.pop()).scans
        kept = [(scan[_FIRST], scan[_END]) for ranges in list(self.watched.values()) for scan in ranges.scans]
        for scan in gone:
            for part in _without((scan[_FIRST], scan[_END]), kept):
                self._unregister(part)


def _open_userfaultfd() -> int:
    if sys.platform != "linux" or sys.maxsize < 2**32:
        raise OSError(errno.ENOSYS, "writes are tracked by 64-bit Linux only")
    number = _SYSCALL_NUMBERS.get(platform.machine())
    if number is None:
        raise OSError(errno.ENOSYS, f"userfaultfd's number on {platform.machine()} is unknown")
    syscall = ctypes.CDLL(None, use_errno=True).syscall
    syscall.restype = ctypes.c_long
    flags = os.O_CLOEXEC | os.O_NONBLOCK
    # Anybody may have the second kind. It is enough for writes inside system calls, too: they are noted, and wait for nobody.
    for chosen in (flags, flags | _USER_MODE_ONLY):
        descriptor = syscall(ctypes.c_long(number), ctypes.c_long(chosen))
        if descriptor >= 0:
            break
    else:
        reason = ctypes.get_errno()
        raise OSError(reason, f"userfaultfd: {os.strerror(reason)}")
    try:
        features = _REPORT_WRITE_PROTECTION | _PROTECT_UNPOPULATED | _ASYNCHRONOUS
        fcntl.ioctl(descriptor, _API, array("Q", [_API_VERSION, features, 0]), True)
    except OSError as error:
        os.close(descriptor)
        reason = "userfaultfd has no asynchronous write protection (it came with Linux 6.7)"
        raise OSError(error.errno, reason) from None
    return descriptor


def _private_memory() -> list[Span]:
    """The memory that nobody else can write to: private mappings without a file, joined where they touch, in ascending order.

    proc_pid_maps(5): a line is `first-end permissions offset device inode path`, p is private, and inode 0 means no file.
    """
    found: list[Span] = []
    with open("/proc/self/maps", "rb") as lines:
        for line in lines:
            fields = line.split(None, 5)
            if fields[1][3:4] != b"p" or fields[4] != b"0" or (len(fields) > 5 and fields[5].startswith(b"[v")):
                continue
            first, end = (int(text, 16) for text in fields[0].split(b"-"))
            if found and found[-1][1] == first:
                first = found.pop()[0]
            found.append((first, end))
    return found


def _around(spans: Iterable[Span], first: int, end: int) -> Span | None:
    """The span that the addresses lie in."""
    return next((s for s in spans if s[0] <= first and end <= s[1]), None)


def _joined(spans: Iterable[Span], inside: Sequence[Span]) -> list[Span]:
    """Spans in ascending order, those joined that overlap or are at most `_GAP` bytes apart with only memory of `inside` between."""
    joined: list[Span] = []
    for first, end in sorted(spans):
        if joined and first <= joined[-1][1] + _GAP and _around(inside, joined[-1][0], max(end, joined[-1][1])):
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((first, end))
    return joined


def _without(span: Span, taken: Iterable[Span]) -> list[Span]:
    """The parts of a span that none of the others covers."""
    parts = [span]
    for first, end in taken:
        parts = [p for a, b in parts for p in ((a, min(b, first)), (max(a, end), b)) if p[0] < p[1]]
    return parts


class Watch:
    """Tells which of some spans of whole pages may have been written. Made anew in a forked child (`process`)."""

    def __init__(self, spans: Sequence[Span]) -> None:
        self._ranges = _Ranges([_Range(first, end, k) for k, (first, end) in enumerate(spans)])
        self._tracker = _tracker() if spans else None
        if self._tracker is None:
            self._ranges.ranges = []
            return
        key = next(_keys)
        with self._tracker.lock:
            self._tracker.watch(key, self._ranges)
        self._die = weakref.finalize(self, self._tracker.dead.append, key)
        self._die.atexit = False

    def close(self) -> None:
        """Watch no more. Writes to pages that nobody else watches cost nothing from now on, instead of from when another watch begins."""
        if self._tracker is not None:
            with self._tracker.lock:
                self._die()
                self._tracker.forget_dead()

    @property
    def tracked(self) -> list[int]:
        """Which spans are watched still. Of the others nothing is known."""
        if self._tracker is None or self._tracker.broken is not None:
            return []
        return [r.index for r in self._ranges.ranges]

    def written(self) -> list[int] | None:
        """Which of the watched spans may have been written since the last time, all the first time; None: nothing was, and `tracked` is
        what it was. What is read after this call is read in time: the next call tells of writes from now on."""
        tracker, ranges = self._tracker, self._ranges
        if tracker is None:
            return None
        with tracker.lock:
            tracker.find_written(ranges)
            if not ranges.written:
                return None
            found = [r for r in ranges.ranges if r.written]
            for r in found:
                r.written = False
            ranges.written = False
        return [r.index for r in found]


class _Process:
    """What is this process's own, and not a forked child's."""

    def __init__(self) -> None:
        self.id = os.getpid()
        self.lock = threading.RLock()
        self.tracker: _Tracker | None = None
        self.why_not: str | None = None

    def open(self) -> None:
        with self.lock:
            if self.tracker is None and self.why_not is None:
                try:
                    self.tracker = _Tracker()
                except (OSError, AttributeError) as error:  # AttributeError: the C library has no syscall()
                    self.why_not = getattr(error, "strerror", None) or str(error)


_keys = itertools.count()
_process = _Process()
_processes = {_process.id: _process}


def process() -> object:
    """Another object in a forked child than in its parent, even if C code has forked."""
    global _process
    if _process.id != os.getpid():
        _process = _processes.setdefault(os.getpid(), _Process())  # in one step: a process has one tracker
    return _process


def _begin_in_child() -> None:
    global _process
    if _process.tracker is not None:
        _process.tracker.close()
    _processes.clear()
    _process = _processes.setdefault(os.getpid(), _Process())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_in_child)


def _tracker() -> _Tracker | None:
    if why_not_tracked() is not None:
        return None
    return _process.tracker


def why_not_tracked() -> str | None:
    """Why this process cannot ask for written pages; None if it can. The first call finds out."""
    process()
    if _process.tracker is None and _process.why_not is None:
        _process.open()
    return _process.why_not if _process.tracker is None else _process.tracker.broken


def is_available() -> bool:
    """Whether it costs little to know that memory was not written."""
    return why_not_tracked() is None
