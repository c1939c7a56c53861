"""One recording of a graph's work: how it is made, and how it is replayed for other inputs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import torch

from treadle_codegen.host.workspace import outside_inference_mode
from treadle_codegen.targets.target import Recorder

Run = Callable[..., list[Any]]


def picker(positions: Sequence[int]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """A function from a sequence to the tuple of its items at these positions; a graph may have hundreds."""
    if len(positions) > 1:
        return itemgetter(*positions)
    return lambda items: tuple([items[k] for k in positions])


def addresses_of(tensors: Sequence[torch.Tensor]) -> tuple[int, ...]:
    """Where the tensors lie."""
    return tuple(map(torch.Tensor.data_ptr, tensors))


class Observed:
    """An `empty_strided` that remembers what it has made."""

    def __init__(self, make: Callable[..., torch.Tensor]) -> None:
        self._make = make
        self.made: list[torch.Tensor] = []

    def __call__(self, shape: Any, strides: Any, dtype: torch.dtype) -> torch.Tensor:
        made = self._make(shape, strides, dtype=dtype)
        self.made.append(made)
        return made


class _Prepared:
    """An `empty_strided` that hands out tensors made beforehand, in order; None where it makes one."""

    def __init__(self, make: Callable[..., torch.Tensor], tensors: Sequence[torch.Tensor | None]) -> None:
        self._make, self._tensors, self._next = make, tensors, 0

    def restart(self) -> None:
        self._next = 0

    def __call__(self, shape: Any, strides: Any, dtype: torch.dtype) -> torch.Tensor:
        prepared = self._tensors[self._next]
        self._next += 1
        return self._make(shape, strides, dtype=dtype) if prepared is None else prepared


@dataclass(frozen=True, slots=True)
class _Input:
    """A tensor that is copied before a replay: the argument at `position` into `place`. `elements`: not None for an argument
    whose elements share memory; the memory is copied then, so many elements from its first."""

    position: int
    place: torch.Tensor
    elements: int | None

    def source(self, args: Sequence[Any]) -> torch.Tensor:
        given = args[self.position]
        return given if self.elements is None else given.as_strided((self.elements,), (1,))


# How a result of the graph is made from a recording's: the value itself, or the caller's own argument, or a copy, or the
# recording's memory, which is the caller's until he lets go of it.
_VALUE, _ARGUMENT, _COPY, _LENT = range(4)


class Recording:
    """Recorded work at fixed addresses. `direct`: (position, address) of tensors that it reads and writes where they lie;
    `unmoved`: positions of tensors that were copied in all replays so far from one place; `replays`: how many there were."""

    def __init__(
        self,
        recorder: Recorder,
        replay: Callable[[], None],
        direct: Sequence[tuple[int, int]],
        inputs: Sequence[_Input],
        results: Sequence[tuple[int, Any]],
        tensors: Sequence[int],
        empty_strided: Callable[..., torch.Tensor],
    ) -> None:
        self.direct = tuple(direct)
        self.replays = 0
        self._recorder, self._replay, self._inputs, self._results = recorder, replay, inputs, results
        self._empty_strided = empty_strided
        self._index = {position: k for k, position in enumerate(tensors)}
        self._pick_direct = picker([self._index[position] for position, _ in direct])
        self._expected = tuple([address for _, address in direct])
        self._places = [entry.place for entry in inputs]
        self._copied = [_memory(value) for how, value in results if how == _COPY]
        self.unmoved = {entry.position for entry in inputs}
        self._first: tuple[int, ...] | None = None
        # A storage is free when as many refer to it as do now.
        storages = [value.untyped_storage() for how, value in results if how == _LENT]
        self._lent = [(storage, _uses(storage)) for storage in storages]

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError, TypeError):  # not made in full, or the interpreter is ending
            self._recorder.release([*self._places, *[value for how, value in self._results if how == _LENT]])

    def fits(self, addresses: Sequence[int]) -> bool:
        """Whether the tensors that are not copied lie where they lay."""
        return self._pick_direct(addresses) == self._expected

    def is_free(self) -> bool:
        """Whether nobody holds memory that was lent."""
        return all(_uses(storage) == uses for storage, uses in self._lent)

    def replay(self, args: Sequence[Any], addresses: tuple[int, ...]) -> list[Any]:
        """The graph's results for these arguments, which `fits` and `is_free` have admitted."""
        self._watch(addresses)
        lend = not _saved_tensors_are_watched()
        with torch.no_grad(), self._recorder.in_order():
            if self._places:
                torch._foreach_copy_(self._places, [entry.source(args) for entry in self._inputs])
            self._replay()
            copied = self._copied if lend else [_memory(v) for how, v in self._results if how in (_COPY, _LENT)]
            copies = [self._empty_strided(t.shape, t.stride(), dtype=t.dtype) for t in copied]
            if copies:
                torch._foreach_copy_(copies, copied)
        fresh = iter(copies)
        made: list[Any] = []
        for how, value in self._results:
            if how == _COPY or (how == _LENT and not lend):
                copy = next(fresh)
                made.append(copy if copy.shape == value.shape else copy.as_strided(value.shape, value.stride()))
            elif how == _LENT:
                made.append(value.detach())
            else:
                made.append(args[value] if how == _ARGUMENT else value)
        return made

    def _watch(self, addresses: tuple[int, ...]) -> None:
        self.replays += 1
        if self._first is None:
            self._first = addresses
        elif self.unmoved:
            moved = [k for k in self.unmoved if addresses[self._index[k]] != self._first[self._index[k]]]
            self.unmoved.difference_update(moved)


def storage_elements(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Elements from the first to the last one of a strided tensor; 0 for an empty one."""
    if any(n == 0 for n in shape):
        return 0
    return 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))


def _shared_elements(tensor: torch.Tensor) -> int | None:
    """How many elements of memory a tensor has whose elements share some (an expanded one); None for any other."""
    elements = storage_elements(tensor.shape, tensor.stride())
    return elements if elements < tensor.numel() else None


def _memory(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or its memory as one dimension where elements share some: nothing can be copied to such a tensor."""
    elements = _shared_elements(tensor)
    return tensor if elements is None else tensor.as_strided((elements,), (1,))


def _uses(storage: torch.UntypedStorage) -> int:
    return torch._C._storage_Use_Count(storage._cdata)


def _saved_tensors_are_watched() -> bool:
    """Whether the program's own hooks see what is saved for backward. They may keep it in ways that are not counted."""
    return torch._C._autograd._top_saved_tensors_default_hooks(False) is not None


def record(
    recorder: Recorder,
    with_allocation: Callable[[Callable[..., torch.Tensor]], Run],
    empty_strided: Callable[..., torch.Tensor],
    observed: Observed,
    args: Sequence[Any],
    results: Sequence[Any],
    direct: Collection[int],
    lent: Collection[int],
) -> Recording:
    """Record the host function for arguments like `args`. `observed` and `results` are of a run with these very arguments.

    `direct`: positions of arguments that are read where they lie; `lent`: of results that may be lent. Raises RuntimeError
    if the work cannot be recorded.
    """
    tensors = [k for k, value in enumerate(args) if isinstance(value, torch.Tensor)]
    with outside_inference_mode(), torch.no_grad():
        inputs = [_fixed(k, args[k], empty_strided) for k in tensors if k not in direct]
        for entry in inputs:
            entry.place.copy_(entry.source(args))
        lasting = [k for k in lent if isinstance(results[k], torch.Tensor) and _shared_elements(results[k]) is None]
        kept = {k: _like(results[k], empty_strided) for k in lasting}
        prepared = _Prepared(empty_strided, _prepared_for(observed.made, results, kept))
        run = with_allocation(prepared)
        given = list(args)
        for entry in inputs:
            whole = args[entry.position]
            given[entry.position] = (
                entry.place if entry.elements is None else entry.place.as_strided(whole.shape, whole.stride())
            )
        made: list[Any] = []

    def work() -> None:
        prepared.restart()
        made[:] = run(*given)
        with torch.no_grad():
            for k, place in kept.items():
                if made[k].data_ptr() != place.data_ptr():
                    place.copy_(made[k])

    with outside_inference_mode():
        replay = recorder.record(work)
    return Recording(
        recorder,
        replay,
        [(k, args[k].data_ptr()) for k in tensors if k in direct],
        inputs,
        [_result(k, value, given, args, kept) for k, value in enumerate(made)],
        tensors,
        empty_strided,
    )


def _fixed(position: int, given: torch.Tensor, empty_strided: Callable[..., torch.Tensor]) -> _Input:
    """A fixed place for an argument."""
    elements = _shared_elements(given)
    if elements is not None:
        return _Input(position, empty_strided((elements,), (1,), dtype=given.dtype), elements)
    return _Input(position, _like(given, empty_strided), None)


def _like(tensor: torch.Tensor, empty_strided: Callable[..., torch.Tensor]) -> torch.Tensor:
    return empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)


def _prepared_for(
    made: Sequence[torch.Tensor], results: Sequence[Any], kept: Mapping[int, torch.Tensor]
) -> list[torch.Tensor | None]:
    """For every allocation of the run, the kept memory of the result that it became."""
    places = {_layout(results[k]): place for k, place in kept.items() if results[k].numel()}
    return [places.get(_layout(tensor)) for tensor in made]


def _layout(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype


def _result(
    position: int, value: Any, given: Sequence[Any], args: Sequence[Any], kept: Mapping[int, torch.Tensor]
) -> tuple[int, Any]:
    """How a caller gets this result: a constant, its kind and what it is made from."""
    if not isinstance(value, torch.Tensor):
        return _VALUE, value
    for k, argument in enumerate(given):
        if value is argument and argument is args[k]:
            return _ARGUMENT, k
    return (_LENT, kept[position]) if position in kept else (_COPY, value)
