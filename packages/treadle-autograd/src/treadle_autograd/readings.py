"""How a view reads the memory of another tensor: as it is, as the parts of complex numbers, or with a conjugation that is still to be done.

z = torch.fft.fft(x)
z.real                      every second float of z's memory                   Reading(PARTS)
z.conj()                    z, whose imaginary parts are read negated          Reading(is_conj=True)
z.conj().imag               every second float, read negated                   Reading(PARTS, is_neg=True)
torch.view_as_complex(y)    complex numbers that are pairs of y's floats       Reading(PAIRS)
"""

from __future__ import annotations

import enum
from typing import Any, NamedTuple

import torch


class Elements(enum.Enum):
    """What a view takes for an element."""

    SAME = enum.auto()  # what the other tensor does
    PARTS = enum.auto()  # a real or imaginary part of its complex numbers
    PAIRS = enum.auto()  # a complex number, of two of its floats


class Reading(NamedTuple):
    """is_conj, is_neg: the bits that PyTorch's views have (`Tensor.is_conj`, `Tensor.is_neg`)."""

    elements: Elements = Elements.SAME
    is_conj: bool = False
    is_neg: bool = False

    def read(self, tensor: torch.Tensor) -> torch.Tensor:
        """A dense tensor in the memory of `tensor` with these elements, before conjugation."""
        if self.elements is Elements.PARTS:
            return torch.view_as_real(tensor)
        if self.elements is Elements.PAIRS:
            return torch.view_as_complex(tensor.as_strided((tensor.numel() // 2, 2), (2, 1)))
        return tensor

    def finish(self, view: torch.Tensor) -> torch.Tensor:
        """The view with the bits set."""
        if self.is_conj:
            view = view.conj()
        return torch._neg_view(view) if self.is_neg else view

    def place(self, offset: Any) -> Any:
        """A distance in elements of the other tensor, in elements of the view; None where no element begins there."""
        if self.elements is Elements.PARTS:
            return offset * 2
        if self.elements is Elements.PAIRS:
            return offset // 2 if type(offset) is int and offset % 2 == 0 else None
        return offset


PLAIN = Reading()


def reading_of(view: torch.Tensor, base: torch.Tensor) -> Reading | None:
    """How `view` reads the memory of `base`; None where it reads other numbers from its bytes (`Tensor.view(dtype)`), or the other way."""
    if base.is_conj() or base.is_neg():
        return None
    if view.dtype == base.dtype:
        elements = Elements.SAME
    elif base.dtype.is_complex and view.dtype == base.dtype.to_real():
        elements = Elements.PARTS
    elif view.dtype.is_complex and base.dtype == view.dtype.to_real():
        elements = Elements.PAIRS
    else:
        return None
    return Reading(elements, view.is_conj(), view.is_neg())


__all__ = ["PLAIN", "Elements", "Reading", "reading_of"]
