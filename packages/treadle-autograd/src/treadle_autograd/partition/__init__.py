"""Divide a joint graph into a forward and a backward graph: which values are saved between them, and which are recomputed.

joint(primals, tangents) -> (outputs, gradients)
    ==>  forward(primals) -> (outputs, saved);  backward(saved, tangents) -> gradients
"""

from __future__ import annotations

from .classify import Classes, classify
from .mincut import Partition, min_cut, save_everything
from .split import Halves, split

__all__ = ["Classes", "Halves", "Partition", "classify", "min_cut", "save_everything", "split"]
