"""What surrounds the two compiled halves of a training program, as JSON and back.

Tensors that the program holds stand in it by the names of the traced graph's attributes. A program has no record where something of it is
neither a number nor a name: symbolic sizes, calls of custom autograd functions, constants that were met while the program was traced.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from operator import attrgetter
from typing import Any

from torch import fx

from ..contract import (
    CallInput,
    Constant,
    Contract,
    Detached,
    FreshOutput,
    Geometry,
    InputItself,
    Mutation,
    OutputDescription,
    Relation,
    SameAsOutput,
    StaticInput,
    UnrecordedOutput,
    ViewOfFresh,
    ViewOfInput,
)
from ..joint import JointTrace
from ..partition import Halves
from ..readings import Elements, Reading
from ..returned_views import ReturnedView
from ..training import ProgramFacts

_LITERALS = (type(None), bool, int, str)


@dataclass(frozen=True)
class Program:
    """What a training program is told beside its graphs; the fields are those of `JointTrace`, `Halves` and `ProgramFacts`.

    forward: the name under which the compiler has kept the forward half.
    """

    forward: str
    contract: Contract
    n_outputs: int
    tangents: tuple[int, ...]
    gradients: tuple[int, ...]
    sources: Mapping[int, tuple[int, ...]]
    cuts: Mapping[int, str]
    views: tuple[ReturnedView, ...]
    primals: tuple[int | None, ...]
    reads: tuple[frozenset[int] | None, ...]
    freed_by: tuple[frozenset[int], ...]
    saved_for: tuple[frozenset[int], ...]
    facts: ProgramFacts

    @classmethod
    def of(cls, forward: str, joint: JointTrace, halves: Halves, facts: ProgramFacts) -> Program:
        told = joint.contract, joint.n_outputs, joint.tangents, joint.gradients, joint.sources, joint.cuts, joint.views
        return cls(forward, *told, halves.primals, halves.reads, joint.freed_by, halves.saved_for, facts)


class _NoRecord(Exception):
    """A part is neither a number nor a name."""


def to_bytes(program: Program, gm: fx.GraphModule) -> bytes | None:
    """The record of a program, or None if it has none. gm: the traced graph."""
    contract = program.contract
    if contract.numbers:
        return None
    try:
        surroundings = {
            "inputs": _inputs(contract, gm),
            "mutations": [astuple(mutation) for mutation in contract.mutations],
            "outputs": [_output(output) for output in contract.outputs],
            "views": [_view(view) for view in program.views],
            "requires_grad": contract.requires_grad,
            "versions": contract.versions,
        }
    except _NoRecord:
        return None
    parts = {
        **surroundings,
        "forward": program.forward,
        "n_outputs": program.n_outputs,
        "tangents": program.tangents,
        "gradients": program.gradients,
        "sources": list(program.sources.items()),
        "cuts": list(program.cuts.items()),
        "primals": program.primals,
        "reads": [None if reads is None else sorted(reads) for reads in program.reads],
        "freed_by": [sorted(numbers) for numbers in program.freed_by],
        "saved_for": [sorted(places) for places in program.saved_for],
        "not_differentiable": program.facts.not_differentiable,
        "read_and_written": sorted(program.facts.read_and_written),
        "draws_random": program.facts.draws_random,
    }
    return json.dumps(parts).encode()


def from_bytes(data: bytes, gm: fx.GraphModule) -> Program:
    """The program of a record."""
    found = json.loads(data)
    contract = Contract(
        tuple(_input_of(*entry, gm) for entry in found["inputs"]),
        tuple(Mutation(*entry) for entry in found["mutations"]),
        tuple(_output_of(*entry) for entry in found["outputs"]),
        (),
        _pairs(found["requires_grad"]),
        _pairs(found["versions"]),
    )
    return Program(
        found["forward"],
        contract,
        found["n_outputs"],
        tuple(found["tangents"]),
        tuple(found["gradients"]),
        {position: tuple(below) for position, below in found["sources"]},
        dict(found["cuts"]),
        tuple(_view_of(*entry) for entry in found["views"]),
        tuple(found["primals"]),
        tuple(None if reads is None else frozenset(reads) for reads in found["reads"]),
        tuple(map(frozenset, found["freed_by"])),
        tuple(map(frozenset, found["saved_for"])),
        ProgramFacts(tuple(found["not_differentiable"]), frozenset(found["read_and_written"]), found["draws_random"]),
    )


def _pairs(found: Sequence[Sequence[Any]]) -> tuple[tuple[Any, Any], ...]:
    return tuple((first, second) for first, second in found)


def _inputs(contract: Contract, gm: fx.GraphModule) -> list[Any]:
    names: dict[int, str] = {}
    for node in gm.graph.find_nodes(op="get_attr"):
        names.setdefault(id(attrgetter(str(node.target))(gm)), str(node.target))
    entries: list[Any] = []
    for given in contract.inputs:
        if isinstance(given, CallInput):
            entries.append(("call", given.index, ""))
        elif id(given.tensor) in names:
            entries.append(("static", names[id(given.tensor)], given.name))
        else:
            raise _NoRecord
    return entries


def _input_of(kind: str, place: Any, name: str, gm: fx.GraphModule) -> CallInput | StaticInput:
    return CallInput(place) if kind == "call" else StaticInput(name, attrgetter(place)(gm))


_BY_NUMBER = {
    "fresh": FreshOutput,
    "unrecorded": UnrecordedOutput,
    "input": InputItself,
    "same": SameAsOutput,
    "constant": Constant,
}
_VIEWS = {"view of input": ViewOfInput, "view of fresh": ViewOfFresh}


def _output(output: OutputDescription) -> tuple[str, Any]:
    for kind, cls in _BY_NUMBER.items():
        if isinstance(output, cls):
            (value,) = astuple(output)
            if type(value) not in _LITERALS:
                raise _NoRecord
            return kind, value
    for kind, cls in _VIEWS.items():
        if isinstance(output, cls):
            place, geometry, detached, relation = (getattr(output, name) for name in cls.__dataclass_fields__)
            return kind, (place, _geometry(geometry), None if detached is None else astuple(detached), relation.name)
    raise _NoRecord


def _geometry(geometry: Geometry) -> tuple[Any, ...]:
    if not geometry.static:
        raise _NoRecord
    reading = geometry.reading
    return geometry.size, geometry.stride, geometry.offset, (reading.elements.name, *reading[1:])


def _geometry_of(size: Any, stride: Any, offset: Any, reading: Any) -> Geometry:
    elements, *bits = reading
    return Geometry(tuple(size), tuple(stride), offset, Reading(Elements[elements], *bits))


def _view(view: ReturnedView) -> tuple[Any, ...]:
    return view.output, view.source, view.input, _geometry(view.geometry), view.relation.name


def _view_of(output: int, source: int | None, given: int | None, geometry: Any, relation: str) -> ReturnedView:
    return ReturnedView(output, source, given, _geometry_of(*geometry), Relation[relation])


def _output_of(kind: str, value: Any) -> OutputDescription:
    if kind in _BY_NUMBER:
        return _BY_NUMBER[kind](value)
    place, geometry, detached, relation = value
    made = None if detached is None else Detached(*detached)
    return _VIEWS[kind](place, _geometry_of(*geometry), made, Relation[relation])
