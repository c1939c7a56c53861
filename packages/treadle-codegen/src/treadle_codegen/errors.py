"""What treadle-codegen raises and warns with."""

from __future__ import annotations

from collections.abc import Sequence


class CodegenError(Exception):
    """Base of all exceptions of this package."""


class CodegenUnavailable(CodegenError):
    """No code can be generated for this graph on this machine; the message says why. Callers run the graph in eager instead."""


class UnsupportedDevice(CodegenUnavailable):
    """The graph has a tensor on a device that the target does not take; `device` is that device's type.

    The message is the same for every graph with this device, so that a caller can warn once.
    """

    def __init__(self, device: str, target: str, devices: Sequence[str]) -> None:
        takes = " and ".join(devices)
        super().__init__(
            f"a tensor is on device {device!r}, and target {target!r} compiles graphs for {takes} only. Move the model and "
            f'its inputs with .to({devices[0]!r}) to have them compiled, or choose backend="eager" to silence this warning.'
        )
        self.device = device


class UnsupportedTensor(CodegenUnavailable):
    """The graph has a tensor that is no strided memory of its own and that no operator could read for the kernels."""

    def __init__(self, reason: str, target: str) -> None:
        super().__init__(
            f"target {target!r} cannot address one of the graph's tensors: {reason}. "
            "Pass an ordinary tensor, for instance its clone, to have the graph compiled."
        )
        self.reason = reason


class KernelRefused(CodegenUnavailable):
    """Triton refuses a kernel, or its compiler dies of it; `kernel` is its name, `path` a file with its source, or "".

    The message names both, and has the end of what Triton said; the file has all of it.
    """

    def __init__(self, kernel: str, reason: str, path: str) -> None:
        kept = f" Its source is in {path}." if path else ""
        super().__init__(f"Triton does not compile kernel {kernel}.{kept} {reason[-1500:]}")
        self.kernel = kernel
        self.reason = reason
        self.path = path


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
