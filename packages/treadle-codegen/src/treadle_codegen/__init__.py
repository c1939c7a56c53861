"""treadle-codegen: functional ATen graphs to fused C++ kernels.

>>> compiled = treadle_codegen.compile_graph(gm, example_inputs)  # doctest: +SKIP
>>> outputs = compiled(*inputs)  # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from treadle_codegen.__about__ import __version__

if TYPE_CHECKING:
    from treadle_codegen.errors import (
        CodegenError,
        CodegenUnavailable,
        InternalError,
        OptionError,
        UnsupportedDevice,
        UnsupportedTensor,
    )
    from treadle_codegen.host.shape_specialisation import specialise_now, wait_for_specialisation
    from treadle_codegen.lower.decompositions import decompositions
    from treadle_codegen.options import CodegenOptions
    from treadle_codegen.pipeline import CompiledGraph, compile_graph

_HOMES = {
    "CodegenError": "errors",
    "CodegenUnavailable": "errors",
    "InternalError": "errors",
    "OptionError": "errors",
    "UnsupportedDevice": "errors",
    "UnsupportedTensor": "errors",
    "CodegenOptions": "options",
    "CompiledGraph": "pipeline",
    "compile_graph": "pipeline",
    "decompositions": "lower.decompositions",
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
    "InternalError",
    "OptionError",
    "UnsupportedDevice",
    "UnsupportedTensor",
    "__version__",
    "compile_graph",
    "decompositions",
    "specialise_now",
    "wait_for_specialisation",
]
