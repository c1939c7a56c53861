"""How often calls of a training program run a second time, and whether it is left to eager therefore.

What asks for more than the compiled backward graph gives (`rerun`) pays for the compiled call and for eager's. Where nearly every call is
followed by such a backward pass, as in the Hessian of `torch.autograd.grad(..., is_grads_batched=True)`, eager alone is faster.
"""

from __future__ import annotations

_FEWEST = 4  # second runs before the program is left
_REST = 256  # calls in eager before it is tried again; doubled each time


class SecondRuns:
    """Counts for one program and the programs of its gradients. A second run belongs to one of the calls before it."""

    def __init__(self) -> None:
        self._calls = self._second = 0
        self._left = 0  # calls that still run in eager
        self._rest = _REST

    def begins_in_eager(self) -> bool:
        """Whether the call that begins now runs in eager."""
        if self._left:
            self._left -= 1
            return True
        self._calls += 1
        return False

    def note(self) -> None:
        """Note a second run."""
        self._second += 1
        if self._second >= _FEWEST and 4 * self._second >= 3 * self._calls:
            self._left, self._rest = self._rest, 2 * self._rest
            self._calls = self._second = 0


__all__ = ["SecondRuns"]
