"""Which bytes of a tensor's C++ object decide its metadata, found out by experiment.

`treadle_frame.NativeImage` lets a guard compare a tensor with bytes seen before in place of asking libtorch question by question. The
bytes are in `c10::TensorImpl` (c10/core/TensorImpl.h), from the number of dimensions, which stands before the sizes, to the key set,
the last member: sizes and strides (inside the object up to five dimensions, and not initialised beyond the number of
dimensions), storage offset, number of elements, dtype, device and flags. Two fields are elsewhere: the address of the data, in the
storage, and what `requires_grad` says, in the autograd metadata.

No offset is written down here. Each is looked for in tensors of known metadata, and what is found must tell apart every pair of
tensors that differ in one property (`_tells_apart`). If any search fails there are no images, and guards ask libtorch.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from treadle_shapes.torch import outside_transforms

MAX_DIMS = 5  # beyond, sizes are not inside the object
_WORD = 8
_ATTEMPTS = 4  # what lies beside the objects can mislead a search
_HEADER = 16  # of a Python object: reference count and type
_OBJECT_BYTES = 256  # no TensorImpl of a plain tensor is larger
_FIELD_BYTES = 256  # nor are the parts of a storage or of autograd metadata that count

_Place = TypeVar("_Place", int, tuple[int, int])


@dataclass(frozen=True)
class _Layout:
    """Offsets in bytes: of the number of dimensions, which the sizes follow, of the strides, of what follows them, and of the end; and
    (pointer in the object, field behind it) of the fields elsewhere. `flags`: how many bytes there are from `requires_grad_` to `is_view_`.
    """

    start: int
    strides: int
    rest: int
    stop: int
    data: tuple[int, int]
    requires_grad: tuple[int, int]
    flags: int
    grad_fn: tuple[int, int]

    def ranges(self, dims: int) -> tuple[tuple[int, int], ...]:
        """Where the metadata of a tensor of so many dimensions is."""
        sizes, strides = self.start + _WORD * (1 + dims), self.strides + _WORD * dims
        return ((self.start, sizes), (self.strides, strides), (self.rest, self.stop))


def image_of(tensor: torch.Tensor, handle_offset: int, has_data: bool) -> Any:
    """The `treadle_frame.NativeImage` for a guard on this tensor, None if there is none.

    has_data: the guard asks whether the tensor has an address.
    """
    layout = _layout(handle_offset)
    if layout is None or tensor.dim() > MAX_DIMS or tensor.layout is not torch.strided:
        return None
    import treadle_frame

    fields = [(*layout.data, _WORD, True, None)] if has_data else []
    fields += _history(layout, tensor)
    implies = ("requires_grad", torch.Tensor.is_neg, torch.Tensor.is_conj, torch.Tensor.is_inference)
    return treadle_frame.NativeImage(layout.ranges(tensor.dim()), tuple(fields), implies)


def _history(layout: _Layout, tensor: torch.Tensor) -> list[tuple[int, int, int, bool, bool | None]]:
    """What decides `requires_grad` of tensors like this one (torch/csrc/autograd/variable.h): a grad_fn or the tensor's own flag, if one
    of them is set. If neither is, a view requires a gradient if its base does, which no bytes of the view tell."""
    if tensor.grad_fn is not None:
        return [(*layout.grad_fn, _WORD, True, True)]
    if tensor.requires_grad and not tensor._is_view():
        return [(*layout.requires_grad, 1, False, True)]
    return [(*layout.requires_grad, layout.flags, True, False), (*layout.grad_fn, _WORD, True, False)]


# ---- the search


class _Memory:
    """This process's memory, read so that an address that is none gives None and no fault."""

    def __init__(self) -> None:
        self.file = os.open("/proc/self/mem", os.O_RDONLY)

    def __enter__(self) -> _Memory:
        return self

    def __exit__(self, *exception: object) -> None:
        os.close(self.file)

    def read(self, address: int, size: int) -> bytes | None:
        """`size` bytes, or None."""
        try:
            found = os.pread(self.file, size, address) if 0 < address < 1 << 62 else b""
        except OSError:
            return None
        return found if len(found) == size else None

    def words(self, address: int, size: int) -> tuple[int, ...]:
        """As many whole words of these bytes as can be read."""
        found = self.read(address, size)
        if found is None:  # the memory may end before
            return ()
        return tuple(int.from_bytes(found[i : i + _WORD], "little") for i in range(0, size, _WORD))

    def word(self, address: int) -> int | None:
        """The 8 bytes at an address as a number, or None."""
        found = self.read(address, _WORD)
        return None if found is None else int.from_bytes(found, "little")


@functools.cache
def _layout(handle_offset: int) -> _Layout | None:
    """The layout for handles at this offset in Python tensors. It is found with real tensors that need gradients, whatever the caller's
    modes and transforms."""
    try:
        with (
            _Memory() as memory,
            outside_transforms(),
            torch._C._DisableTorchDispatch(),
            torch._C.DisableTorchFunction(),
            torch.inference_mode(False),
            torch.enable_grad(),
        ):
            for _ in range(_ATTEMPTS):
                found = _search(memory, handle_offset)
                if found is not None and _tells_apart(memory, handle_offset, found):
                    return found
            return None
    except (OSError, RuntimeError, AttributeError):  # no /proc, or a torch without one of the functions used
        return None


_SHAPES = (((2, 3, 5), (1, 10, 2)), ((7, 11, 6), (1, 7, 77)), ((4, 9, 13), (120, 13, 1)))


def _search(memory: _Memory, handle_offset: int) -> _Layout | None:
    """Each search is made in several tensors: by chance one may hold a word twice, or lie beside memory that holds it."""
    probes = [torch.empty_strided(sizes, strides, dtype=torch.int16) for sizes, strides in _SHAPES]
    leaves = [torch.zeros(2, dtype=torch.float32, requires_grad=True) for _ in probes]
    results = [leaf * 1 for leaf in leaves]
    nodes = [memory.word(id(result.grad_fn) + _HEADER) for result in results]
    objects = [_object(memory, tensor, handle_offset) for tensor in probes]
    start = _common(_places(memory, o, (3, *sizes)) for o, (sizes, _) in zip(objects, _SHAPES, strict=True))
    strides = _common(_places(memory, o, expected) for o, (_, expected) in zip(objects, _SHAPES, strict=True))
    keys = _common(
        _places(memory, o, (torch._C._dispatch_keys(t).raw_repr(),)) for o, t in zip(objects, probes, strict=True)
    )
    # The allocator's context is the address of the data too, and comes after it.
    data = _common(_places_behind(memory, o, t.data_ptr()) for o, t in zip(objects, probes, strict=True))
    with_history = [_object(memory, result, handle_offset) for result in results]
    grad_fn = _common(_places_behind(memory, o, node) for o, node in zip(with_history, nodes, strict=True))
    if start is None or strides is None or keys is None or data is None or grad_fn is None:
        return None
    if strides != start + _WORD * (1 + MAX_DIMS) or keys < strides + _WORD * MAX_DIMS:
        return None
    flag = _common(_flags(memory, leaf, _object(memory, leaf, handle_offset) + grad_fn[0]) for leaf in leaves)
    if flag is None:
        return None
    views = [probe[1:] for probe in probes]
    is_view = _common(_view_flags(memory, handle_offset, grad_fn[0], view, leaves) for view in views)
    if is_view is None or is_view // _WORD != flag // _WORD or is_view <= flag:
        return None
    flags = is_view - flag + 1
    return _Layout(start, strides, strides + _WORD * MAX_DIMS, keys + _WORD, data, (grad_fn[0], flag), flags, grad_fn)


def _object(memory: _Memory, tensor: torch.Tensor, handle_offset: int) -> int:
    """The address of the tensor's C++ object."""
    return memory.word(id(tensor) + handle_offset) or 0


def _common(found: Iterable[set[_Place]]) -> _Place | None:
    """The first place that is in every set."""
    return min(set.intersection(*found), default=None)


def _places(memory: _Memory, address: int, words: Sequence[int]) -> set[int]:
    """The offsets of these consecutive words in an object."""
    there = memory.words(address, _OBJECT_BYTES)
    return {i * _WORD for i in range(1, len(there)) if there[i : i + len(words)] == tuple(words)}


def _places_behind(memory: _Memory, address: int, word: int | None) -> set[tuple[int, int]]:
    """The (offset of a pointer in an object, offset behind it) of this word."""
    found = set()
    for offset in range(_WORD, _OBJECT_BYTES, _WORD):
        behind = memory.words(memory.word(address + offset) or 0, _FIELD_BYTES) if word else ()
        found |= {(offset, i * _WORD) for i, there in enumerate(behind) if i and there == word}
    return found


def _flags(memory: _Memory, leaf: torch.Tensor, pointer: int) -> set[int]:
    """The bytes of the autograd metadata that follow `requires_grad_`; `pointer` is the address of the pointer to the metadata."""
    states: list[bytes] = []
    for wanted in (True, False, True, False):
        leaf.requires_grad_(wanted)
        behind = memory.word(pointer)
        states.append((memory.read(behind, _FIELD_BYTES) if behind else None) or b"")
    if not all(states):
        return set()
    return {i for i, values in enumerate(zip(*states, strict=True)) if values == (1, 0, 1, 0)}


def _view_flags(
    memory: _Memory, handle_offset: int, pointer: int, view: torch.Tensor, others: Iterable[torch.Tensor]
) -> set[int]:
    """The bytes of the autograd metadata that are 1 in a view and 0 in tensors that are none, just behind `requires_grad_`."""
    metadata = [memory.word(_object(memory, tensor, handle_offset) + pointer) for tensor in (view, *others)]
    held = [(memory.read(address, _FIELD_BYTES) if address else None) or b"" for address in metadata]
    return {i for i, values in enumerate(zip(*held, strict=False)) if values[0] == 1 and not any(values[1:])}


# ---- the proof


def _different() -> Iterator[torch.Tensor]:
    """Tensors no two of which have the same metadata. Where they differ in one property only, the image must show it."""
    base = torch.arange(16)
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.bool, torch.uint8):
        yield base.to(dtype)
    yield base.to(torch.complex64)
    yield base.to(torch.complex64).conj()
    yield base.to(torch.complex64).conj().imag  # negative bit
    yield from (base.view(4, 4).float(), base.view(4, 4).float().t(), base.view(2, 8).float(), base.view(16, 1).float())
    yield from (base.float()[:8], base.float()[:8:2], base.float()[0], base.view(2, 2, 2, 2).float())
    yield torch.empty(16, dtype=torch.float32, device="meta")
    yield torch.zeros(16, dtype=torch.float32, requires_grad=True)
    yield torch.zeros(16, dtype=torch.float32, requires_grad=True) * 1
    with torch.inference_mode():
        inference = torch.zeros(16, dtype=torch.float32)
    yield inference
    freed = torch.zeros(16, dtype=torch.float32)
    freed.untyped_storage().resize_(0)
    yield freed


def _tells_apart(memory: _Memory, handle_offset: int, layout: _Layout) -> bool:
    """Whether different tensors have different images."""
    tensors = list(_different())
    images = [_bytes_of(memory, tensor, handle_offset, layout) for tensor in tensors]
    return None not in images and len(set(images)) == len(images)


def _bytes_of(memory: _Memory, tensor: torch.Tensor, handle_offset: int, layout: _Layout) -> Any:
    """What an image of the tensor holds."""
    address = _object(memory, tensor, handle_offset)
    found: list[Any] = [memory.read(address + start, stop - start) for start, stop in layout.ranges(tensor.dim())]
    for pointer, inner in (layout.data, layout.requires_grad, layout.grad_fn):
        behind = memory.word(address + pointer)
        if behind is None:
            return None
        is_flag = (pointer, inner) == layout.requires_grad
        field = (memory.read(behind + inner, 1 if is_flag else _WORD) if behind else b"\0") or b"?"
        found.append(field if is_flag else any(field))
    return None if None in found else tuple(found)
