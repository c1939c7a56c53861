"""The exceptions of treadle_autograd: graphs that it does not compile, calls that torch refuses, and its own bugs."""

from __future__ import annotations


class UnsupportedGraph(Exception):
    """The graph has no functional ATen form. `aot` runs such a graph eagerly.

    `reason` is one sentence for people. `user_line` is the innermost line of the user's program ("file:line"), or "".
    """

    def __init__(self, reason: str, user_line: str = "") -> None:
        super().__init__(f"{reason} (at {user_line})" if user_line else reason)
        self.reason = reason
        self.user_line = user_line


class Refusal(UnsupportedGraph):
    """Torch raised an exception, `__cause__`, for a call that has no functional or fake kernel, needs data, or always fails."""


class InternalError(Exception):
    """A bug of treadle_autograd.

    `pass_name` is the pass that failed, `user_line` the line of the user's program that it worked on ("file:line", or ""), `dump_path`
    a file that reproduces the failure, or "".
    """

    def __init__(self, pass_name: str, message: str, user_line: str = "", dump_path: str = "") -> None:
        where = f" (from {user_line})" if user_line else ""
        dump = f"; graph dumped to {dump_path}" if dump_path else ""
        super().__init__(f"internal error in pass {pass_name!r}{where}: {message}{dump}")
        self.pass_name = pass_name
        self.message = message
        self.user_line = user_line
        self.dump_path = dump_path


class WrongResult(TypeError):
    """What a compiler that was given to `aot` has compiled does not return what its graph says."""
