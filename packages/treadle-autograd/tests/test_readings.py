"""How views read the memory of other tensors: rebuilt from a dense base, they are what PyTorch's own views are."""

from __future__ import annotations

import pytest
import torch

from treadle_autograd.readings import PLAIN, Elements, Reading, reading_of

NUMBERS = torch.view_as_complex(torch.arange(12.0, dtype=torch.float64).view(3, 2, 2))
PARTS = torch.arange(12.0)
VIEWS = {
    "itself": (NUMBERS, NUMBERS, PLAIN),
    "real": (NUMBERS.real, NUMBERS, Reading(Elements.PARTS)),
    "conjugate": (NUMBERS.conj(), NUMBERS, Reading(is_conj=True)),
    "imaginary part of the conjugate": (NUMBERS.conj().imag, NUMBERS, Reading(Elements.PARTS, is_neg=True)),
    "pairs": (torch.view_as_complex(PARTS.view(6, 2)), PARTS, Reading(Elements.PAIRS)),
    "conjugates of pairs": (
        torch.view_as_complex(PARTS.view(6, 2)).conj(),
        PARTS,
        Reading(Elements.PAIRS, is_conj=True),
    ),
}


@pytest.mark.parametrize("name", VIEWS)
def test_views_are_rebuilt(name: str) -> None:
    view, base, reading = VIEWS[name]
    assert reading_of(view, base) == reading
    offset = view.storage_offset() - reading.place(base.storage_offset())
    whole = reading.read(base)
    found = reading.finish(whole.as_strided(view.size(), view.stride(), whole.storage_offset() + offset))
    assert torch.equal(found, view) and found.data_ptr() == view.data_ptr()
    assert (found.dtype, found.is_conj(), found.is_neg()) == (view.dtype, view.is_conj(), view.is_neg())


@pytest.mark.parametrize(
    "view, base",
    [
        (PARTS.view(torch.int32), PARTS),
        (NUMBERS.real.to(torch.float32), NUMBERS),
        (NUMBERS, NUMBERS.conj()),
        (NUMBERS.real, NUMBERS.conj().imag),
    ],
    ids=["bits", "another precision", "of a conjugate", "of a negative"],
)
def test_other_readings_are_unknown(view: torch.Tensor, base: torch.Tensor) -> None:
    assert reading_of(view, base) is None


def test_pairs_begin_at_even_places() -> None:
    assert Reading(Elements.PAIRS).place(4) == 2
    assert Reading(Elements.PAIRS).place(3) is None
    assert Reading(Elements.PARTS).place(3) == 6
