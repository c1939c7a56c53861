"""A unit of C++ to its entry points."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from treadle_codegen.options import CodegenOptions
from treadle_codegen.targets.cpp.build import build_library
from treadle_codegen.targets.cpp.entries import entry_point


def threads_of(options: CodegenOptions) -> int:
    """How many threads kernels use."""
    return options.threads or torch.get_num_threads()


def load_unit(
    options: CodegenOptions, source: str, names: Sequence[str], *, background: bool = False
) -> tuple[dict[str, Callable[..., Any]], bool]:
    """Build and load a unit: entry points by name, and whether the library came from the cache. Raises as `build_library`."""
    library, cached = build_library(source, options, threads_of(options), background=background)
    return {name: entry_point(library[name]) for name in names}, cached
