"""Calls that are recorded once and replayed from then on (`mode="reduce-overhead"`, CUDA graphs).

    first call at some sizes     runs as always
    second call                  runs as always; then the same work is recorded, at fixed addresses
    later calls                  inputs are copied to their fixed addresses, the recording is replayed

Parameters are not copied, nor are inputs that stay where they are: their addresses are compared, and the work is recorded
again when they change. What a caller gets is a copy of the recording's memory, so a later replay cannot change it. Results
that only the backward pass reads are lent: a recording is not replayed while one of them is alive, and another one is made
instead, up to a bound. A call for which no recording serves runs as always.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from treadle_codegen.host.host import Host
from treadle_codegen.host.recording import Observed, Recording, addresses_of, picker, record
from treadle_codegen.host.sizes import reading, sources_of
from treadle_codegen.ir.loops import BufferKind, Extern, Program
from treadle_codegen.targets.target import Recorder
from treadle_shapes.torch import Kind
from treadle_shapes.torch import operator as operator_record

_MOST_SHAPES = 16  # sets of sizes of one graph that are recorded
_MOST_ALIVE = 4  # recordings of one set of sizes at a time
_MOST_MADE = 12  # recordings of one set of sizes in all
_WATCHED = 6  # replays after which inputs that were copied and have not moved are no longer copied

# They look at results on the host, or make plans and memory of their own.
_KINDS_THAT_WAIT = frozenset((Kind.LINALG, Kind.SPARSE, Kind.QUERY, Kind.EFFECT))


def why_not_recorded(program: Program) -> str | None:
    """Why calls of this program cannot be recorded, or None."""
    if program.bound_symbols:
        return "it has sizes or numbers that are known only during a call"
    if not any(name in program.buffers for name in program.inputs):
        return "it has no tensor among its inputs"
    if program.foreign:
        return "some of its tensors are on another device"
    if any(program.buffers[name].opaque for name in program.inputs if name in program.buffers):
        return "an input has a layout that only some operators understand"
    for step in program.steps:
        if isinstance(step, Extern) and (reason := _why_not_operator(step)) is not None:
            return reason
    return None


def _why_not_operator(step: Extern) -> str | None:
    facts = operator_record(step.op)
    if facts is None or getattr(step.op, "namespace", "") != "aten":
        return f"{step.op} is not known to work without the host"
    if facts.kind in _KINDS_THAT_WAIT or facts.has_data_dependent_size or torch.Tag.cudagraph_unsafe in step.op.tags:
        return f"{step.op} may wait for the device"
    if any(isinstance(value, torch.Generator) for value in (*step.args, *step.kwargs.values())):
        return f"{step.op} draws from a generator of its own"
    return None


@dataclass(slots=True)
class _Shape:
    """What is known of calls at one set of sizes.

    addresses: of the last call's tensors; moving: positions of inputs that have moved, which are copied from then on.
    """

    addresses: tuple[int, ...]
    moving: set[int] = field(default_factory=set)
    recordings: list[Recording] = field(default_factory=list)
    made: int = 0


class ReplayedGraph:
    """The host function of a graph, recorded and replayed where that is possible; called like it.

    lent: positions of results that only the backward pass reads. `why_not` says why calls are not recorded (any more), or
    is None; `on_refusal` is told when a recording fails. `replays` counts replayed calls, `recorded` recordings.
    """

    def __init__(self, host: Host, program: Program, recorder: Recorder, lent: Sequence[int]) -> None:
        self.why_not = why_not_recorded(program)
        self.on_refusal: Callable[[str], None] = lambda reason: None
        self.replays = 0
        self.recorded = 0
        self._run = host.run
        self._recorder = recorder
        self._lent = frozenset(lent)
        self._tensors = tuple([k for k, name in enumerate(program.inputs) if name in program.buffers])
        self._pick_tensors = picker(self._tensors)
        kinds = {k: program.buffers[program.inputs[k]].kind for k in self._tensors}
        self._static = frozenset([k for k, kind in kinds.items() if kind is BufferKind.STATIC])
        self._empty_strided = host.allocation.empty_strided
        self._with_allocation = host.with_allocation
        self._key = _key_function(program)
        self._shapes: dict[tuple[Any, ...], _Shape] = {}

    def __call__(self, *args: Any) -> list[Any]:
        if self.why_not is not None or self._recorder.is_recording():
            return self._run(*args)
        key = self._key(*args)
        shape = self._shapes.get(key)
        addresses = addresses_of(self._pick_tensors(args))
        if shape is None:
            if len(self._shapes) < _MOST_SHAPES:
                self._shapes[key] = _Shape(addresses)
            return self._run(*args)
        with self._recorder.lock:
            recording = self._usable(shape, addresses)
            if recording is not None:
                self.replays += 1
                return recording.replay(args, addresses)
        if shape.made >= _MOST_MADE:
            return self._run(*args)
        return self._run_and_record(shape, args, addresses)

    def _usable(self, shape: _Shape, addresses: tuple[int, ...]) -> Recording | None:
        """A recording that this call can replay. One that copies what does not move is replaced."""
        for recording in shape.recordings:
            if not recording.fits(addresses) or not recording.is_free():
                continue
            if recording.replays == _WATCHED and recording.unmoved and shape.made < _MOST_MADE - 1:
                shape.moving.difference_update(recording.unmoved)
                shape.recordings.remove(recording)
                shape.addresses = addresses
                return None
            return recording
        return None

    def _run_and_record(self, shape: _Shape, args: tuple[Any, ...], addresses: tuple[int, ...]) -> list[Any]:
        """Run as always, and record the same work. What the operators set up at their first call in a thread is there by then."""
        shape.moving.update(self._moved(shape, addresses))
        shape.addresses = addresses
        observed = Observed(self._empty_strided)
        results = self._with_allocation(observed)(*args)
        is_last = shape.made == _MOST_MADE - 1  # it serves wherever the inputs lie
        direct = [k for k in self._tensors if k in self._static or not (is_last or k in shape.moving)]
        try:
            with self._recorder.lock:
                recording = record(
                    self._recorder,
                    self._with_allocation,
                    self._empty_strided,
                    observed,
                    args,
                    results,
                    direct,
                    self._lent,
                )
                shape.made += 1
                self.recorded += 1
                shape.recordings.append(recording)
                del shape.recordings[:-_MOST_ALIVE]
        except RuntimeError as error:  # the device's: this work cannot be recorded, or there is no memory for it
            self._refuse(f"recording failed: {type(error).__name__}: {error}")
        return results

    def _refuse(self, reason: str) -> None:
        self.why_not = reason
        self._shapes.clear()
        self.on_refusal(reason)

    def _moved(self, shape: _Shape, addresses: tuple[int, ...]) -> set[int]:
        """Positions of inputs that are elsewhere than in the last recording, or than in the last call if there is none."""
        before = shape.recordings[-1].direct if shape.recordings else zip(self._tensors, shape.addresses, strict=True)
        now = dict(zip(self._tensors, addresses, strict=True))
        return {k for k, address in before if now[k] != address} - self._static


def _key_function(program: Program) -> Callable[..., tuple[Any, ...]]:
    """A function of the inputs: the values of all sizes and numbers that the program's work depends on."""
    sources = sources_of(program, program.size_symbols)
    # Numbers among the inputs may be floats: 0.0 is not -0.0.
    texts = [
        f"repr({reading(source)})" if isinstance(source, tuple) and not source[1] else reading(source)
        for source in sources.values()
    ]
    inputs = ", ".join(f"a{k}" for k in range(len(program.inputs)))
    scope: dict[str, Any] = {}
    exec(f"def key({inputs}): return ({''.join(f'{text}, ' for text in texts)})", scope)  # our own text
    return scope["key"]
