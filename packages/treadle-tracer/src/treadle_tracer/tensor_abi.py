"""The C ABI of libtorch_cpu on Python tensors.

Metadata is read by `aoti_torch_get_sizes` and similar functions (torch/csrc/inductor/aoti_torch/c/shim.h of torch 2.11 - 2.13):
`int32_t f(AtenTensorHandle, T *out)`, 0 on success. An AtenTensorHandle is an `at::Tensor *`. A Python tensor holds its `at::Tensor` inside
the object, so the handle is the object's address plus an offset. The offset is where the object stores the address that `Tensor._cdata`
reports; it counts only if it gives the right metadata for a known tensor.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import torch

# query -> (symbol, kind of the out parameter in treadle_frame.NativeTensorCheck)
QUERIES: dict[str, tuple[str, str]] = {
    "dtype": ("aoti_torch_get_dtype", "i32"),
    "dim": ("aoti_torch_get_dim", "i64"),
    "sizes": ("aoti_torch_get_sizes", "i64_array"),
    "strides": ("aoti_torch_get_strides", "i64_array"),
    "device_type": ("aoti_torch_get_device_type", "i32"),
    "device_index": ("aoti_torch_get_device_index", "i32"),
    "layout": ("aoti_torch_get_layout", "i32"),
    "data_ptr": ("aoti_torch_get_data_ptr", "i64"),
    "storage_offset": ("aoti_torch_get_storage_offset", "i64"),
    "storage_size": ("aoti_torch_get_storage_size", "i64"),
}
_OUT_TYPES: dict[str, Any] = {
    "i32": ctypes.c_int32,
    "i64": ctypes.c_int64,
    "i64_array": ctypes.POINTER(ctypes.c_int64),
}
_OBJECT_HEADER = 16  # ob_refcnt and ob_type
_OBJECT_END = 96  # far behind the tensor member in every known layout


@functools.cache
def functions_of_libtorch() -> dict[str, tuple[Any, int]] | None:
    """Name -> (ctypes function, address) for every query, None when one is missing."""
    try:
        # With the library loaded RTLD_GLOBAL or not, the process-wide handle of torch's extension finds the symbols it links against.
        library = ctypes.CDLL(torch._C.__file__)
        found = {}
        for name, (symbol, kind) in QUERIES.items():
            function = getattr(library, symbol)
            function.restype = ctypes.c_int32
            function.argtypes = [ctypes.c_void_p, ctypes.POINTER(_OUT_TYPES[kind])]
            found[name] = (function, ctypes.cast(function, ctypes.c_void_p).value)
        return found
    except (OSError, AttributeError):
        return None


def address_of(name: str) -> int:
    """The address of the function behind a query. The C ABI must be usable."""
    functions = functions_of_libtorch()
    assert functions is not None
    return functions[name][1]


def _ask(handle: int, name: str, length: int = 0) -> Any:
    functions = functions_of_libtorch()
    assert functions is not None
    kind = QUERIES[name][1]
    out = _OUT_TYPES[kind]()
    if functions[name][0](handle, ctypes.byref(out)) != 0:
        return None
    return tuple(out[i] for i in range(length)) if kind == "i64_array" else out.value


def ask_tensor(tensor: torch.Tensor, name: str) -> Any:
    """What libtorch answers to a query about a tensor; None if it does not."""
    offset = handle_offset()
    assert offset is not None
    return _ask(id(tensor) + offset, name, tensor.dim())


@functools.cache
def handle_offset() -> int | None:
    """Bytes from a Python tensor's address to its `at::Tensor`; None when the C ABI cannot be used."""
    if functions_of_libtorch() is None:
        return None
    probe = torch.empty_strided((2, 3, 5), (1, 10, 2), dtype=torch.int16)
    for offset in range(_OBJECT_HEADER, min(_OBJECT_END, type(probe).__basicsize__), ctypes.sizeof(ctypes.c_void_p)):
        if ctypes.c_size_t.from_address(id(probe) + offset).value != probe._cdata:
            continue
        handle = id(probe) + offset
        if (
            _ask(handle, "dim") == 3
            and _ask(handle, "sizes", 3) == (2, 3, 5)
            and _ask(handle, "strides", 3) == (1, 10, 2)
        ):
            return offset
    return None
