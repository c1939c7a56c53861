"""Make `import torchvision` work beside a CPU-only torch.

torchvision's PyPI wheel is built for CUDA. Its extension library does not load beside a CPU torch, so the operators for which
`_meta_registrations.py` registers fake kernels do not exist, and the import raises "operator torchvision::nms does not exist". timm
and transformers use image transforms only, for which the operators' schemas suffice. If the extension loads, this module defines
nothing.
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

# A `torch.library.Library` removes its definitions when it is collected, so it lives as long as the module.
_libraries: list[torch.library.Library] = []


def why_not_loadable() -> str | None:
    """Why torchvision's extension library does not load, or None if it does."""
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
    """Define the operator schemas that torchvision's import needs and its extension does not define. Returns their names."""
    if _libraries or hasattr(torch.ops.torchvision, "nms") or why_not_loadable() is None:
        return []
    library = torch.library.Library("torchvision", "DEF")
    for schema in SCHEMAS.values():
        library.define(schema)
    _libraries.append(library)
    return list(SCHEMAS)
