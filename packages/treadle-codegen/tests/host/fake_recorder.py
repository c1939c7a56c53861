"""A `Recorder` for the CPU: a replay does the recorded work again, and its results are where they were when it was recorded."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class FakeRecorder:
    """`events` remembers what was asked for. `protected` are tensors that work writes where they lie: as recording does no
    work, they are restored. `fails` is what the next recording raises."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.events: list[str] = []
        self.protected: Sequence[torch.Tensor] = ()
        self.fails: Exception | None = None
        self.recording = False
        self.released: list[torch.Tensor] = []

    def is_recording(self) -> bool:
        return self.recording

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        self.events.append("record")
        if self.fails is not None:
            error, self.fails = self.fails, None
            raise error
        before = [t.clone() for t in self.protected]
        random = torch.get_rng_state()
        fixed = _Fixed()
        self.recording = True
        try:
            with fixed:
                work()
        finally:
            self.recording = False
        torch.set_rng_state(random)
        for tensor, content in zip(self.protected, before, strict=True):
            tensor.copy_(content)

        def replay() -> None:
            assert self.events[-1] == "begin", "a replay outside of the recorder's order"
            self.events.append("replay")
            with fixed:
                work()

        return replay

    def release(self, tensors: Iterable[torch.Tensor]) -> None:
        self.released.extend(tensors)

    @contextlib.contextmanager
    def in_order(self) -> Iterator[None]:
        self.events.append("begin")
        yield
        self.events.append("end")


class _Fixed(TorchDispatchMode):
    """Gives the results of every operator the addresses that they had the first time; views follow, and arenas may change."""

    def __init__(self) -> None:
        super().__init__()
        self._results: dict[tuple[Any, int], Any] = {}
        self._calls: Counter[Any] = Counter()

    def __enter__(self) -> _Fixed:
        self._calls.clear()
        return super().__enter__()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.is_view or func is torch.ops.aten.empty.memory_format:
            return result
        self._calls[func] += 1
        first = self._results.setdefault((func, self._calls[func]), result)
        for there, here in zip(tree_leaves(first), tree_leaves(result), strict=True):
            if isinstance(there, torch.Tensor) and there.data_ptr() != here.data_ptr():
                there.copy_(here)
        return first
