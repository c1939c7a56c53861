"""Whether every element of a value is certainly computed although the value is not stored: somebody reads it all.

y = x[i]; return y + 1          the sum is stored, so all of y is computed: an index out of range is noticed
y = x[i]; return y[0]           only one element of y would be computed
y = x[i]; return zeros_like(y)  none
"""

from __future__ import annotations

import torch

from treadle_codegen.lower.lowerings import LOWERINGS
from treadle_codegen.lower.registry import name_of
from treadle_shapes.torch import ElementUse
from treadle_shapes.torch import operator as operator_record


def is_read_in_full(node: torch.fx.Node) -> bool:
    """Whether some user of the node's result, however many pointwise operators and rearrangements away, reads and stores it all."""
    seen: dict[torch.fx.Node, None] = dict(node.users)
    waiting = list(seen)
    while waiting:  # each user once: in an unrolled loop the number of paths doubles with each turn
        user = waiting.pop()
        reads = _reads_all(user)
        if reads:
            return True
        if reads is None:
            new = [further for further in user.users if further not in seen]
            seen.update(dict.fromkeys(new))
            waiting += new
    return False


def _reads_all(user: torch.fx.Node) -> bool | None:
    """Whether a user reads and stores all elements of its argument. None: it reads those of which its own elements are read."""
    if user.op == "output":
        return True
    record = operator_record(user.target)
    if record is None or name_of(user.target) not in LOWERINGS or record.element_use is ElementUse.IGNORED:
        return False
    if record.element_use is ElementUse.READ:
        return True
    return None if record.is_pointwise or record.element_use is ElementUse.KEPT else False
