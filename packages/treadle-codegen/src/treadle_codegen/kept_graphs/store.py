"""Where records of host programs lie: in the cache of kernels, whose files nobody else can write."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from treadle_codegen.cache import FileCache
from treadle_codegen.kept_graphs.record import Built, from_bytes, to_bytes

_KIND = "graphs"


def find_built(cache: FileCache, key: str, replacements: Mapping[str, Callable[..., Any]]) -> Built | None:
    """The host program that was kept under the key, or None. replacements: callables of the target in the place of operators."""
    data = cache.read(_KIND, key)
    return None if data is None else from_bytes(data, replacements)


def keep_built(cache: FileCache, key: str, built: Built) -> bool:
    """Keep the host program under the key, if it has a record; whether it has one."""
    data = to_bytes(built)
    if data is not None:
        cache.store(_KIND, key, data)
    return data is not None
