"""Running units on the CPU with Triton's interpreter: every kernel and all of the host code, without a GPU."""

from __future__ import annotations

import hashlib
import math
import sys
import tempfile
import threading
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from treadle_codegen.errors import InternalError
from treadle_codegen.options import CodegenOptions
from treadle_codegen.targets.triton.unit import ONE_PARSER

Entry = Callable[[list[Any]], None]

# While a kernel runs, the interpreter's functions stand in `triton.language`. Of two kernels at once, each takes the other's for Triton's
# own, and the last one leaves them there: nothing can be compiled any more in this process.
_ONE_KERNEL = threading.RLock()


def load_unit(
    source: str,
    names: Sequence[str],
    options: CodegenOptions,
    *,
    background: bool = False,
    device: torch.device | None = None,
) -> tuple[dict[str, Entry], bool]:
    """Entry points of a unit that was rendered for the interpreter; nothing is cached."""
    with ONE_PARSER:
        module = _import(source)
    return {name: _entry(module, module.SEGMENTS[name]) for name in names}, False


def _import(source: str) -> types.ModuleType:
    """The unit as a module. Triton reads the source of its functions, so it has to lie in a file."""
    name = f"treadle_interpreted_{hashlib.sha256(source.encode()).hexdigest()[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / f"{name}.py"
        path.write_text(source)
        module = types.ModuleType(name)
        module.__file__ = str(path)
        sys.modules[name] = module
        exec(compile(source, str(path), "exec"), module.__dict__)  # our own text, nothing of the user's
        for function in module.KERNELS:
            getattr(module, function).rewrite()
    return module


def _entry(module: types.ModuleType, calls: Sequence[dict[str, Any]]) -> Entry:
    from triton.runtime.interpreter import InterpreterError

    def entry(table: list[Any]) -> None:
        for call in calls:
            grid = tuple(
                math.ceil((total if isinstance(total, int) else table[total[1]]) / block)
                for total, block in call["grid"]
            )
            if 0 in grid:
                continue
            record = module.KERNELS[call["kernel"]]
            arguments = [_in_memory(table[slot]) for slot in call["slots"]]
            if "members" in call:
                arguments[-1] = -1  # all of them: programs run one after the other here
            try:
                with _ONE_KERNEL:
                    getattr(module, call["kernel"])[grid](*arguments, **record["constants"])
            except InterpreterError as error:
                if "index out of range" not in str(error):
                    raise InternalError("triton", f"{call['kernel']}: {error}") from error
                table[0].value = 1
                return

    return entry


def _in_memory(argument: Any) -> Any:
    """What kernels see of an argument: complex numbers are pairs."""
    is_complex = isinstance(argument, torch.Tensor) and argument.is_complex()
    return torch.view_as_real(argument) if is_complex else argument
