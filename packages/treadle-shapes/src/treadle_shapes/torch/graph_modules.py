"""Graph modules whose `forward` is the graph alone.

PyTorch's lazy graph modules go through `Module.__call__` when they run for the first time, and so through hooks that the program has
registered for all modules (`register_module_forward_hook`), and through what somebody has put in place of `Module.__call__`. A graph of
ours is no module of the program.
"""

from __future__ import annotations

from typing import Any

from torch.fx._lazy_graph_module import _LazyGraphModule


class HooklessGraphModule(_LazyGraphModule):
    """A graph module whose code is made when `forward` is called, and whose `forward` runs no hooks."""

    def _lazy_forward(self, *args: Any, **kwargs: Any) -> Any:
        self.real_recompile()
        return type(self).forward(self, *args, **kwargs)

    forward = _lazy_forward


__all__ = ["HooklessGraphModule"]
