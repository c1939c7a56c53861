"""Divide a joint graph into a forward and a backward graph: which values are saved between them, and which are recomputed.

joint(primals, tangents) -> (outputs, gradients)
    ==>  forward(primals) -> (outputs, saved);  backward(saved, tangents) -> gradients
"""

from __future__ import annotations

from .budget import with_budget
from .classify import Classes, classify, is_view, viewed
from .mincut import Partition, min_cut, save_everything, saved_by_eager
from .network import keep_cuts
from .parts import FindParts
from .report import PartitionReport, report
from .split import Halves, divided, find_saved_for, split, tangents_of
from .stages import Stage, cut, group_gradients

__all__ = [
    "Classes",
    "FindParts",
    "Halves",
    "Partition",
    "PartitionReport",
    "Stage",
    "classify",
    "cut",
    "divided",
    "find_saved_for",
    "group_gradients",
    "is_view",
    "keep_cuts",
    "min_cut",
    "report",
    "save_everything",
    "saved_by_eager",
    "split",
    "tangents_of",
    "viewed",
    "with_budget",
]
