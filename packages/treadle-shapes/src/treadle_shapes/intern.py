"""Hash-consing: one live object per structure, so that structural equality is identity.

Tables hold their nodes weakly, so unused expressions are freed. `InternTable.get` is the fast path (one dict lookup, no
lock). Creation takes a lock, so two threads never make two nodes of one structure.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any, Generic, TypeVar

from treadle_shapes.fork import held_during_fork


class Node:
    """Base class of all interned nodes. Equality and hash are the identity of the object."""

    __slots__ = ("__weakref__", "_free", "_own", "order")

    order: tuple
    """Sort key that depends on the structure only, so that printed forms do not depend on creation order."""

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, _memo: dict) -> Any:
        return self


NodeT = TypeVar("NodeT", bound=Node)

# Re-entrant: releasing a node inside the locked region may run another node's removal callback.
_LOCK = held_during_fork(threading.RLock())


class _KeyedRef(weakref.ref):
    __slots__ = ("key",)
    key: tuple


class InternTable(Generic[NodeT]):
    """Weak map from a structure's key (children by identity) to its one node."""

    __slots__ = ("_forget", "refs")

    def __init__(self) -> None:
        self.refs: dict[tuple, _KeyedRef] = {}

        # Defaults keep these alive: at interpreter shutdown the module's globals are cleared before the last nodes are freed.
        def forget(ref: _KeyedRef, lock: Any = _LOCK, refs: dict[tuple, _KeyedRef] = self.refs) -> None:
            with lock:
                if refs.get(ref.key) is ref:
                    del refs[ref.key]

        self._forget = forget

    def get(self, key: tuple) -> NodeT | None:
        ref = self.refs.get(key)
        return None if ref is None else ref()

    def add(self, key: tuple, node: NodeT) -> NodeT:
        """Store `node` as the one node of `key`. Returns the node that another thread stored first, if any."""
        with _LOCK:
            ref = self.refs.get(key)
            if ref is not None and (other := ref()) is not None:
                return other
            ref = _KeyedRef(node, self._forget)
            ref.key = key
            self.refs[key] = ref
            return node

    def __len__(self) -> int:
        return len(self.refs)
