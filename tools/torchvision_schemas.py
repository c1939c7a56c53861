"""Make `import torchvision` work beside a CPU-only torch.

torchvision's PyPI wheel is built for CUDA: beside a CPU torch its extension library does not load, so the operators
that its `_meta_registrations.py` registers fake kernels for do not exist and the import raises "operator
torchvision::nms does not exist". timm and transformers import torchvision for its image transforms only, so it is
enough that the operators' schemas exist. Where the extension loads, nothing is defined.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import torch

# The schemas of torchvision/csrc/ops/{nms,quantized}; the two for which torchvision registers a fake kernel by name.
SCHEMAS = {
    "nms": "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}

# A `torch.library.Library` takes its definitions back when it is collected, so it lives as long as the module.
_libraries: list[torch.library.Library] = []


def why_not_loadable() -> str | None:
    """Say why torchvision's own operators cannot be had here, or None when its extension library loads."""
    spec = importlib.util.find_spec("torchvision")
    if spec is None or not spec.submodule_search_locations:
        return "torchvision is not installed"
    binaries = [path for root in spec.submodule_search_locations for path in Path(root).glob("_C*.so")]
    if not binaries:
        return "torchvision holds no extension library"
    try:
        torch.ops.load_library(str(binaries[0]))
    except OSError as error:
        return f"{binaries[0].name}: {error}"
    return None


def define_missing_schemas() -> list[str]:
    """Define the operator schemas that torchvision's import needs and its extension cannot give; return their names."""
    if _libraries or hasattr(torch.ops.torchvision, "nms") or why_not_loadable() is None:
        return []
    library = torch.library.Library("torchvision", "DEF")
    for schema in SCHEMAS.values():
        library.define(schema)
    _libraries.append(library)
    return list(SCHEMAS)
