"""The errors of treadle_autograd: graphs it declines, wrong use, and its own bugs."""

from __future__ import annotations


class UnsupportedGraph(Exception):
    """The graph does something that has no functional ATen form; `aot` answers it by running the graph eagerly.

    `reason` is one sentence for people; `user_line` the innermost line of the user's program, or "".
    """

    def __init__(self, reason: str, user_line: str = "") -> None:
        super().__init__(f"{reason} (at {user_line})" if user_line else reason)
        self.reason = reason
        self.user_line = user_line


class InternalError(Exception):
    """A bug of treadle_autograd: the pass that failed, the user's line it was working on, and a dump of the graph, if any."""

    def __init__(self, pass_name: str, user_line: str = "", dump_path: str | None = None, detail: str = "") -> None:
        at = f" at {user_line}" if user_line else ""
        dump = f"; graph dumped to {dump_path}" if dump_path else ""
        super().__init__(f"treadle_autograd pass {pass_name!r} failed{at}: {detail}{dump}")
        self.pass_name = pass_name
        self.user_line = user_line
        self.dump_path = dump_path
