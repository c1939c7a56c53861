"""The guard program of an entry with dynamic sizes.

Ranges of sizes are checked in C with the rest of a tensor's metadata. Python is called only for decisions that relate several numbers, and
where a size may be 1 only beside certain others.

`output.size_one` accepts more and more sizes of 1 during the life of an entry. A guard program does not change, so each time a new one is
made from the old one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch

import treadle_frame

from ..source import Source, path_key
from .guard_kinds import asked_after
from .tensor_check import Range, equal_sizes_check, with_ranges

if TYPE_CHECKING:
    from .guards import DynamicNumbers


def size_program(
    checks: Iterable[Any], dynamic: DynamicNumbers, any_size_one: bool = False
) -> treadle_frame.GuardProgram:
    """The program of these checks for the sizes of 1 that are accepted now; with `any_size_one` for all of them.

    checks: those of `GuardSet.program`, or of a program that this function has made.
    """
    ranges = {
        path_key(source.path): _range(dynamic, position, any_size_one)
        for position, source in enumerate(dynamic.sources)
    }
    # Making keys is the largest cost here, and most tensors have no dynamic number: compare the lengths of their paths first.
    tensors = {path_key(source.path[:-2]) for source in dynamic.sources}
    lengths = {len(source.path) - 2 for source in dynamic.sources}
    checked: set[Any] = set()
    owners: dict[Any, tuple[Any, int]] = {}
    kept = []
    for check in checks:
        if check.op == "native_tensor":
            kept.append(check)
            if len(check.path) not in lengths or path_key(check.path) not in tensors:
                continue
            dims = range(_rank(check.arg))
            sizes = [path_key((*check.path, ("attr", "shape"), ("tuple_item", dim))) for dim in dims]
            strides = [path_key((*check.path, ("apply", torch.Tensor.stride), ("tuple_item", dim))) for dim in dims]
            if any(path in ranges for path in (*sizes, *strides)):
                check = with_ranges(check, [ranges.get(path) for path in sizes], [ranges.get(path) for path in strides])
                kept[-1] = check
                checked.update(sizes, strides)
                owners.update((path, (check, dim)) for dim, path in enumerate(sizes))
        elif not dynamic.is_guarded_by(check):
            kept.append(check)
    is_checked = all(path in checked or ends == (None, None) for path, ends in ranges.items())
    if not is_checked or not (any_size_one or dynamic.guard.accepts_each_alone):
        kept.append(_check_of_everything(dynamic))
    else:
        kept += _checks_of_relations(dynamic, owners)
    return treadle_frame.GuardProgram(sorted(kept, key=asked_after))


def _check_of_everything(dynamic: DynamicNumbers) -> treadle_frame.Check:
    test = dynamic.guard if dynamic.guard.sizes else dynamic.guard.check  # without sizes there is no size of 1
    return _call(test, dynamic.sources, dynamic.text)


def _call(test: Any, sources: Sequence[Source], text: str) -> treadle_frame.Check:
    first, *others = (source.path for source in sources)
    return treadle_frame.Check(first, "call_many", (test, tuple(others)), text)


def _checks_of_relations(dynamic: DynamicNumbers, owners: dict[Any, tuple[Any, int]]) -> list[treadle_frame.Check]:
    """Checks of what is more than a range. owners: the check of the tensor that a size belongs to, and the dimension."""
    found = []
    if dynamic.equal:
        tensors: dict[int, tuple[int, Any]] = {}
        pairs = []
        for positions in dynamic.equal:
            pair: list[int] = []
            for check, dim in (owners[path_key(dynamic.sources[position].path)] for position in positions):
                pair += (tensors.setdefault(id(check), (len(tensors), check))[0], dim)
            pairs.append(tuple(pair))
        found.append(equal_sizes_check([check for _, check in tensors.values()], pairs, dynamic.text))
    if dynamic.relations is not None:
        places = dict(zip(dynamic.symbols, dynamic.sources, strict=True))
        found.append(_call(dynamic.relations.check, [places[s] for s in dynamic.relations.symbols], dynamic.text))
    return found


def _range(dynamic: DynamicNumbers, position: int, any_size_one: bool) -> Range:
    """The sizes that a dynamic dimension may have, whatever the others are."""
    lower, upper = dynamic.box[position]
    if position in dynamic.guard.sizes and not any_size_one and not dynamic.guard.may_be_one(position):
        lower = max(lower or 0, 2)
    return lower, upper


def _rank(check: Any) -> int:
    """The number of dimensions that a `native_tensor` check looks at."""
    sizes: Sequence[Any] = next((expected for _, kind, expected in check.queries if kind == "i64_array"), ())
    return len(sizes)
