"""treadle-codegen: functional ATen graphs to fused C++ kernels.

>>> compiled = treadle_codegen.compile_graph(gm, example_inputs)  # doctest: +SKIP
>>> outputs = compiled(*inputs)  # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from treadle_codegen.__about__ import __version__

if TYPE_CHECKING:
    from treadle_codegen.cache import FileCache
    from treadle_codegen.compiled_graph import CompiledGraph
    from treadle_codegen.errors import (
        CodegenError,
        CodegenUnavailable,
        InternalError,
        OptionError,
        UnsupportedDevice,
        UnsupportedTensor,
    )
    from treadle_codegen.found import find_graph, identity_of_kept
    from treadle_codegen.host.shape_specialisation import specialise_now, wait_for_specialisation
    from treadle_codegen.lower.decompositions import decompositions
    from treadle_codegen.options import CodegenOptions
    from treadle_codegen.pipeline import compile_graph
    from treadle_codegen.recomputed import parts_to_compute_again
    from treadle_codegen.targets.cpp.build import kernel_cache

_HOMES = {
    "CodegenError": "errors",
    "CodegenUnavailable": "errors",
    "InternalError": "errors",
    "OptionError": "errors",
    "UnsupportedDevice": "errors",
    "UnsupportedTensor": "errors",
    "CodegenOptions": "options",
    "CompiledGraph": "compiled_graph",
    "compile_graph": "pipeline",
    "find_graph": "found",
    "identity_of_kept": "found",
    "FileCache": "cache",
    "decompositions": "lower.decompositions",
    "kernel_cache": "targets.cpp.build",
    "parts_to_compute_again": "recomputed",
    "specialise_now": "host.shape_specialisation",
    "wait_for_specialisation": "host.shape_specialisation",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    from treadle_shapes import paused

    with paused():
        return getattr(import_module(f"{__name__}.{home}"), name)


__all__ = [
    "CodegenError",
    "CodegenOptions",
    "CodegenUnavailable",
    "CompiledGraph",
    "FileCache",
    "InternalError",
    "OptionError",
    "UnsupportedDevice",
    "UnsupportedTensor",
    "__version__",
    "compile_graph",
    "decompositions",
    "find_graph",
    "identity_of_kept",
    "kernel_cache",
    "parts_to_compute_again",
    "specialise_now",
    "wait_for_specialisation",
]
