"""Values of FX graphs as tuples, for keys of what is kept for later processes. Needs torch.

described({"dim": -1, "of": node}, tensor)      # ("dict", ("dim", -1), ("of", ("node", "relu")))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx
from torch.fx.immutable_collections import immutable_dict, immutable_list

_PLAIN = (
    *(type(None), bool, int, float, complex, str, type(...)),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format),
)
_SEQUENCES: Mapping[type, str] = {tuple: "tuple", list: "list", immutable_list: "list", torch.Size: "tuple"}
_DICTS = (dict, immutable_dict)


class NotDescribed(Exception):
    """What has no complete description."""


def described(value: Any, tensor: Callable[[Any], Any]) -> Any:
    """A tuple that begins with the kind of the value, or the value itself where that is plain. tensor: describes tensors.

    Values that differ have representations that differ. Raises NotDescribed for values of other kinds: symbolic numbers, functions.
    """
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is fx.Node:
        return "node", value.name
    if kind in _SEQUENCES or kind.__module__ == "torch.return_types":
        return (_SEQUENCES.get(kind, kind.__name__), *[described(item, tensor) for item in value])
    if isinstance(value, torch.Tensor):
        return tensor(value)
    if kind is slice:
        return "slice", *[described(part, tensor) for part in (value.start, value.stop, value.step)]
    if kind in _DICTS:
        return "dict", *[(described(key, tensor), described(item, tensor)) for key, item in value.items()]
    raise NotDescribed(kind)


__all__ = ["NotDescribed", "described"]
