"""What PyTorch's classes had when the tracer was imported: the tracer's knowledge is about these methods and no others.

A method that somebody has replaced is traced as the Python function that it is. Other code of the tracer reads sizes and dtypes of
tensors through properties of Tensor, so nothing is traced where those are replaced.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from treadle_tracer.by_identity import IdentityDict
from treadle_tracer.errors import Unsupported
from treadle_tracer.values.class_lookup import MISSING, LooksUp, find_in_mro, lookup

_TENSOR_CLASSES = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
_ORIGINALS: IdentityDict[type, dict[str, Any]] = IdentityDict(
    (cls, {name: find_in_mro(cls.__mro__, name)[0] for name in dir(cls)}) for cls in _TENSOR_CLASSES
)
_READ_BY_THE_TRACER = (
    "shape size stride dim ndim dtype device layout requires_grad is_leaf storage_offset numel __torch_function__ __torch_dispatch__ "
    "__getattribute__ __getattr__ is_sparse is_conj is_neg is_inference detach"
).split()

MODULE_CALL_IMPL = torch.nn.Module._call_impl
MODULE_GETATTR = torch.nn.Module.__getattr__
MODULE_SETATTR = torch.nn.Module.__setattr__


def is_original(cls: type, name: str, raw: Any) -> bool:
    """Whether a class of tensors has under this name what it had, or what its base had."""
    return _is_in(_tables_of(cls), name, raw)


def _tables_of(cls: type) -> Iterable[dict[str, Any]]:
    table = _ORIGINALS.get(cls)
    return tuple(_ORIGINALS.values()) if table is None else (table,)


def _is_in(tables: Iterable[dict[str, Any]], name: str, raw: Any) -> bool:
    for table in tables:  # noqa: SIM110 (asked of every tensor; a generator takes four times as long)
        if raw is table.get(name, MISSING):
            return True
    return False


def original(name: str) -> Any:
    """PyTorch's own method of Tensor."""
    return _ORIGINALS[torch.Tensor][name]


def replaced_method(tx: LooksUp, cls: type, name: str) -> Any:
    """What the class of a tensor has under a name, if that is not PyTorch's own; else None. Registered."""
    raw = lookup(tx, cls, name)
    return None if raw is MISSING or is_original(cls, name, raw) else raw


def require_plain_tensors(tx: LooksUp, cls: type) -> None:
    """Raise Unsupported where somebody has replaced what the tracer itself reads of tensors."""
    tables = _tables_of(cls)
    for name in _READ_BY_THE_TRACER:
        if not _is_in(tables, name, lookup(tx, cls, name)):
            raise Unsupported("tensor-kind", f"{cls.__qualname__}.{name} has been replaced")
