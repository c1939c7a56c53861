"""Which code objects the tracer leaves to Python as frames of their own, and why.

This is about frames that the hook offers, not about inlining: a call into `torch.nn.functional` from a traced frame is traced like
any other.
Functions that a skipped frame calls are offered in their turn.
"""

from __future__ import annotations

import functools
import importlib.machinery
import inspect
import os
import sysconfig
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch

_GENERATORS = {
    inspect.CO_GENERATOR: "a generator",
    inspect.CO_COROUTINE: "a coroutine",
    inspect.CO_ASYNC_GENERATOR: "an asynchronous generator",
    inspect.CO_ITERABLE_COROUTINE: "a coroutine",
}
_FUNCTION_FLAGS = inspect.CO_OPTIMIZED | inspect.CO_NEWLOCALS

# Called by the interpreter around objects rather than by the program for a result; a graph in one of them gains nothing.
_SKIPPED_NAMES = frozenset(
    "__init__ __new__ __init_subclass__ __set_name__ __class_getitem__ __del__ __repr__ __str__ __hash__ __eq__ __getstate__ "
    "__setstate__ __getattribute__ __getattr__ __setattr__ __delattr__ __reduce__ __reduce_ex__ "
    "__instancecheck__ __subclasscheck__ __prepare__ __torch_function__ __torch_dispatch__".split()
)

# Installed packages whose frames never compute with the program's tensors.
_SKIPPED_PACKAGES = (
    "treadle_frame treadle_shapes treadle_tracer treadle_autograd treadle_codegen treadle numpy sympy mpmath _pytest pytest pluggy "
    "hypothesis triton networkx tqdm packaging filelock fsspec huggingface_hub tokenizers safetensors yaml requests urllib3 PIL "
    "setuptools pip IPython ipykernel traitlets coverage torchgen functorch"
).split()

# Below torch/, where frames are worth tracing: forward functions of modules. module.py is their calling machinery.
_TRACED_IN_TORCH = ("nn" + os.sep + "modules" + os.sep,)
_SKIPPED_IN_TORCH = ("nn" + os.sep + "modules" + os.sep + "module.py",)

# File names of code that no file holds.
_SKIPPED_PSEUDO_FILES = ("<frozen", "<eval_with_key>", "<__array_function__", "<attrs generated", "<treadle")


def _torch_directory() -> str:
    return os.path.dirname(torch._C.__file__) + os.sep


@functools.cache
def _skipped_directories() -> tuple[tuple[str, str], ...]:
    """(directory with separator at its end, what it is), longest first."""
    found = {
        sysconfig.get_paths()["stdlib"]: "the standard library",
        sysconfig.get_paths()["platstdlib"]: "the standard library",
    }
    for name in _SKIPPED_PACKAGES:
        spec = importlib.machinery.PathFinder.find_spec(name)  # no other finder: some have effects of their own
        for place in (spec.submodule_search_locations or ()) if spec is not None else ():
            found[place] = f"the package {name}"
    found[_torch_directory()] = "torch"
    return tuple(sorted(((d.rstrip(os.sep) + os.sep, what) for d, what in found.items()), key=lambda p: -len(p[0])))


@functools.cache
def _site_directories() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    return tuple(paths[key].rstrip(os.sep) + os.sep for key in ("purelib", "platlib"))


@functools.cache
def why_not_trace_file(filename: str) -> str | None:
    """Why frames of code from this file are left alone, None when they may be traced."""
    for prefix in _SKIPPED_PSEUDO_FILES:
        if filename.startswith(prefix):
            return f"generated code ({filename})"
    for directory, what in _skipped_directories():
        if not filename.startswith(directory):
            continue
        rest = filename[len(directory) :]
        if what == "torch" and rest.startswith(_TRACED_IN_TORCH) and not rest.startswith(_SKIPPED_IN_TORCH):
            return None
        if what == "the standard library" and filename.startswith(_site_directories()):
            return None
        return f"code of {what}"
    return None


def why_not_trace(code: CodeType) -> str | None:
    """Why a frame of `code` is not traced, None when it may be."""
    for flag, what in _GENERATORS.items():
        if code.co_flags & flag:
            return what
    if code.co_flags & _FUNCTION_FLAGS != _FUNCTION_FLAGS:
        return "the body of a module or class"
    in_torch = code.co_filename.startswith(_torch_directory()) and code.co_name.startswith("__")
    if code.co_name in _SKIPPED_NAMES or in_torch:
        return f"a special method ({code.co_name})"
    return why_not_trace_file(code.co_filename)


_PLAIN = (type(None), bool, int, float, complex, str, bytes, type, ModuleType)
_MAX_LOOKED_AT = 64


def why_no_tensors(
    code: CodeType, arguments: dict[str, Any], globals_: dict[str, Any], closure: tuple[Any, ...]
) -> str | None:
    """Why the frame surely computes with no tensor, None when it might. Looks only at arguments and names, never runs user code."""
    names = [globals_[name] for name in code.co_names if name in globals_]
    for obj in (*arguments.values(), *names, *map(_contents, closure)):
        if _may_hold_tensors(obj, depth=3):
            return None
    return "no argument or name of the function refers to torch, a tensor or an object that could hold one"


def _contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _may_hold_tensors(obj: Any, depth: int) -> bool:
    if isinstance(obj, ModuleType):
        return obj.__name__.partition(".")[0] == "torch"
    if isinstance(obj, _PLAIN):
        return False
    if isinstance(obj, FunctionType):
        return why_not_trace_file(obj.__code__.co_filename) is None or str(obj.__module__).startswith("torch")
    if type(obj) in (list, tuple, set, frozenset, dict):
        if depth == 0 or len(obj) > _MAX_LOOKED_AT:
            return True
        members = [*obj, *obj.values()] if isinstance(obj, dict) else obj
        return any(_may_hold_tensors(member, depth - 1) for member in members)
    return True
