"""What treadle-codegen raises and warns with."""

from __future__ import annotations


class CodegenError(Exception):
    """Base of all exceptions of this package."""


class CodegenUnavailable(CodegenError):
    """No code can be generated on this machine (no C++ compiler); callers run the graph in eager instead."""


class InternalError(CodegenError):
    """A bug of ours: a pass broke on a valid graph.

    `pass_name` is the pass, `user_line` the innermost user line of the operation concerned (or ""), `dump_path` the
    file that reproduces it (or "").
    """

    def __init__(self, pass_name: str, message: str, user_line: str = "", dump_path: str = "") -> None:
        where = f" (from {user_line})" if user_line else ""
        dump = f"; graph dumped to {dump_path}" if dump_path else ""
        super().__init__(f"internal error in pass {pass_name!r}{where}: {message}{dump}")
        self.pass_name = pass_name
        self.message = message
        self.user_line = user_line
        self.dump_path = dump_path


class CompilerFailed(CodegenError):
    """The C++ compiler refused generated source, which is a bug of ours; the message holds its output."""


class OptionError(CodegenError, ValueError):
    """An option has a value that is not allowed; the message names option, value and what is allowed."""


class CacheWarning(UserWarning):
    """The kernel cache is damaged, foreign or unwritable; it was rebuilt or bypassed."""
