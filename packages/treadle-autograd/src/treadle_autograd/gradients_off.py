"""A graph that begins with gradients off and turns them on for a part, as a graph that is called with gradients on.

    @torch.no_grad()                                ==>      _set_grad_enabled(False)
    def f(x):                                                t = teacher(x)
        t = teacher(x)                                       _set_grad_enabled(True)
        with torch.enable_grad(): s = student(x)             s = student(x)
        return s, t                                          _set_grad_enabled(False); _set_grad_enabled(True)

So whatever traces or runs the graph later meets the switches where the program has them.
"""

from __future__ import annotations

from torch import fx
from torch._C import _set_grad_enabled  # type: ignore[attr-defined]


def with_gradients_off(gm: fx.GraphModule) -> fx.GraphModule:
    """A copy of the graph for calls with gradients on, which turns them off at the start and on at the end."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    is_off = False
    for node in gm.graph.nodes:
        if not is_off and node.op not in ("placeholder", "get_attr"):
            graph.call_function(_set_grad_enabled, (False,))
            is_off = True
        if node.op == "output":
            graph.call_function(_set_grad_enabled, (True,))
        copies[node] = graph.node_copy(node, copies.__getitem__)
    copied = fx.GraphModule(gm, graph)
    copied.meta.update(gm.meta)
    return copied
