"""Registers the fake kernel of an operator that Treadle defines. Needs torch.

library.define("f(Tensor x) -> Tensor")
register_fake("treadle::f", lambda x: torch.empty_like(x), library)
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

import torch


def register_fake(name: str, kernel: Callable[..., Any], library: torch.library.Library) -> None:
    """Let fake tensors be answered by `kernel` in calls of the operator `name`, which `library` has defined."""
    # PyTorch notes the line of the caller, here this one, and `inspect` looks for the caller's module by resolving the paths of all
    # modules, 20 ms with transformers loaded. It looks into this dictionary first, and writes the same into it.
    inspect.modulesbyfile.setdefault(inspect.getabsfile(sys.modules[__name__]), __name__)  # type: ignore[attr-defined]
    torch.library.register_fake(name, kernel, lib=library)


__all__ = ["register_fake"]
