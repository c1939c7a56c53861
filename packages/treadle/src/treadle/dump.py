"""Write a traced graph as a Python program that compiles it again and so reproduces an internal error."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from operator import attrgetter
from pathlib import Path
from types import MethodDescriptorType, ModuleType, WrapperDescriptorType
from typing import Any

import torch
from torch import fx

from treadle_shapes import UnbackedError

_PROGRAM = '''"""Reproduces an internal error of treadle in the pass {pass_name!r}:
{message}
"""
import types

import torch
{imports}
self = types.SimpleNamespace()
{attributes}

{code}

inputs = [
{inputs}
]

if __name__ == "__main__":
    import treadle

    treadle.config.raise_internal_errors = True
    with torch.set_grad_enabled({grad}):
        print(treadle.compile(lambda *args: forward(self, *args))(*inputs))
'''


def write_reproducer(
    gm: fx.GraphModule, example_inputs: Sequence[Any], pass_name: str, message: str, directory: Path | None = None
) -> str:
    """Write the program to a new file in `directory`, by default the system's directory for temporary files.

    Returns its path, or "" if the file cannot be written.
    """
    python = gm.graph.python_code("self")
    text = _PROGRAM.format(
        pass_name=pass_name,
        message=message.replace('"""', "'''"),
        imports="\n".join(_imports(python.globals, set(re.findall(r"\w+", python.src)))),
        attributes="\n".join(_attributes(gm)),
        code=python.src.strip(),
        inputs="\n".join(f"    {_literal(value)}," for value in example_inputs),
        grad=torch.is_grad_enabled(),
    )
    prefix = re.sub(r"\W+", "-", f"treadle-{pass_name}-")
    try:
        if directory is not None:
            directory.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", prefix=prefix, suffix=".py", dir=directory, delete=False
        ) as file:
            file.write(text)
    except OSError:
        return ""
    return file.name


def _imports(names: dict[str, Any], used: set[str]) -> list[str]:
    """Lines that define the global names that the program uses."""
    lines = []
    for name, value in names.items():
        if name not in used or name == "torch":
            continue
        if isinstance(value, float):
            lines.append(f"{name} = float({str(value)!r})")
        elif isinstance(value, ModuleType):
            lines.append(f"import {value.__name__} as {name}" if value.__name__ != name else f"import {name}")
        elif isinstance(value, (MethodDescriptorType, WrapperDescriptorType)):
            owner = value.__objclass__
            lines.append(f"from {owner.__module__} import {owner.__qualname__} as {name}")
            lines.append(f"{name} = {name}.{value.__name__}")
        elif hasattr(value, "__qualname__") and getattr(value, "__module__", None):
            qualified, _, attribute = value.__qualname__.partition(".")
            lines.append(f"from {value.__module__} import {qualified} as {name}")
            lines += [f"{name} = {name}.{attribute}"] if attribute else []
        else:
            lines.append(f"{name} = {value!r}")
    return lines


def _attributes(gm: fx.GraphModule) -> list[str]:
    """Lines that give `self` the attributes that the program reads."""
    lines, made = [], set()
    for node in gm.graph.nodes:
        if node.op != "get_attr":
            continue
        *parents, _ = target = str(node.target).split(".")
        for depth in range(1, len(parents) + 1):
            prefix = ".".join(target[:depth])
            if prefix not in made:
                made.add(prefix)
                lines.append(f"self.{prefix} = types.SimpleNamespace()")
        if str(node.target) not in made:
            made.add(str(node.target))
            lines.append(f"self.{node.target} = {_literal(attrgetter(str(node.target))(gm))}")
    return lines


def _number(value: Any) -> int:
    """A size; 1 for one that only the data can tell."""
    try:
        return int(value)
    except UnbackedError:
        return 1


def _literal(value: Any) -> str:
    """A Python expression for `value`. Tensors keep their metadata and get random data."""
    if not isinstance(value, torch.Tensor):
        return repr(_number(value)) if isinstance(value, torch.SymInt) else repr(value)
    sizes, strides = (tuple(map(_number, numbers)) for numbers in (value.size(), value.stride()))
    make = f"torch.empty_strided({sizes}, {strides}, dtype={value.dtype}, device={str(value.device)!r})"
    filled = f"{make}.normal_()" if value.dtype.is_floating_point else f"{make}.zero_()"
    return f"{filled}.requires_grad_()" if value.requires_grad else filled
