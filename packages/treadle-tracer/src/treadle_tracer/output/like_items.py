"""Items of lists that are like others whose sizes change.

    def f(targets):                                # a list of dicts, one for each image
        boxes = torch.cat([t["boxes"] for t in targets])

Two images have other numbers of boxes than in the call before, so the others will, too. Without this, each image at which the number has
not changed yet has a compile of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .call_changes import follow

if TYPE_CHECKING:
    from ..source import Path, Source
    from .entry import Payload

_ENOUGH = 2
"""So many items have to change alike."""


def with_like_items(
    changed: Mapping[Source, Mapping[int, int]], payload: Payload, frame: Any
) -> dict[Source, dict[int, int]]:
    """The dimensions that differ (`changed_dimensions`), and the same ones of the items beside those, with the larger of the two sizes."""
    found = {source: dict(dims) for source, dims in changed.items()}
    times = Counter((_alike(source.path), dim) for source, dims in changed.items() for dim in dims)
    wanted: dict[Any, list[int]] = {}
    for (alike, dim), count in times.items():
        if alike is not None and count >= _ENOUGH:
            wanted.setdefault(alike, []).append(dim)
    for guard in payload.tensors if wanted else ():
        dims = wanted.get(_alike(guard.source.path), ())
        if not dims or guard.identity is not None:
            continue
        sizes = getattr(follow(guard.source.path, frame), "shape", ())
        if len(sizes) == len(guard.sizes) > max(dims):
            new = found.setdefault(guard.source, {})
            new.update({dim: max(sizes[dim], guard.sizes[dim]) for dim in dims if dim not in new})
    return found


def _alike(path: Path) -> Any:
    """What the places of like items have in common: the path without positions in lists. None for a place in no list."""
    steps = tuple(step[:1] if step[0] == "list_item" else step for step in path)
    return None if steps == tuple(path) else steps


__all__ = ["with_like_items"]
