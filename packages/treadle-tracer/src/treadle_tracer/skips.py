"""Which code objects the tracer leaves to Python as frames of their own, and why.

This is about frames that the hook offers, not about inlining: the tracer traces a call into `torch.nn.functional` like any other call.
The hook offers the functions that a skipped frame calls, too.
"""

from __future__ import annotations

import enum
import functools
import importlib.machinery
import inspect
import operator
import os
import sysconfig
from dataclasses import dataclass
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch

from .by_identity import is_one_of
from .class_facts import is_made_by_statement, is_subtype, mro_of, namespace_of
from .left_below import is_left_below
from .plain_reads import PlainReads
from .values.constants import is_numpy_scalar


class SkipKind(enum.Enum):
    """Why a code object is left to Python."""

    GENERATOR = enum.auto()  # a generator or coroutine
    BODY = enum.auto()  # the body of a module or class
    SPECIAL_METHOD = enum.auto()  # a method that the interpreter calls around objects
    GENERATED = enum.auto()  # code that no file holds
    LIBRARY = enum.auto()  # a file of the standard library, of torch or of a package that computes with no tensor
    TREADLE = enum.auto()  # a file of treadle itself
    RESULTS_CACHED = (
        enum.auto()
    )  # a function whose results are cached, with all that it calls: it runs once for each key
    NO_TENSOR = enum.auto()  # no tensor is computed
    ENTRY_LIMIT = enum.auto()  # the limit of recompiles or of entries is reached
    UNSUPPORTED = enum.auto()  # the tracer cannot trace or leave the frame
    UNPROFITABLE = enum.auto()  # its graphs cost more than they save
    INTERNAL_ERROR = enum.auto()  # a bug of treadle


# Kinds that say whose code it is, not what is wrong with it.
_OTHERS_CODE = frozenset(
    {SkipKind.BODY, SkipKind.SPECIAL_METHOD, SkipKind.GENERATED, SkipKind.LIBRARY, SkipKind.TREADLE}
)


@dataclass(frozen=True, slots=True)
class Skip:
    """Why a code object is left to Python: the kind decides, the text is for people."""

    kind: SkipKind
    text: str

    def __str__(self) -> str:
        return self.text

    @property
    def is_others_code(self) -> bool:
        """The code is a library's or the interpreter's, so its skip is of no interest to the user."""
        return self.kind in _OTHERS_CODE


_GENERATORS = {
    inspect.CO_GENERATOR: "a generator",
    inspect.CO_COROUTINE: "a coroutine",
    inspect.CO_ASYNC_GENERATOR: "an asynchronous generator",
    inspect.CO_ITERABLE_COROUTINE: "a coroutine",
}
_FUNCTION_FLAGS = inspect.CO_OPTIMIZED | inspect.CO_NEWLOCALS

# Methods that the interpreter calls around objects; a graph in one of them gains nothing.
_SKIPPED_NAMES = frozenset(
    "__init__ __new__ __init_subclass__ __set_name__ __class_getitem__ __del__ __repr__ __str__ __hash__ __eq__ __getstate__ "
    "__setstate__ __getattribute__ __getattr__ __setattr__ __delattr__ __reduce__ __reduce_ex__ "
    "__instancecheck__ __subclasscheck__ __prepare__ __torch_function__ __torch_dispatch__".split()
)

# Installed packages whose frames never compute with the program's tensors.
_OWN_PACKAGES = "treadle_frame treadle_shapes treadle_tracer treadle_autograd treadle_codegen treadle".split()
_SKIPPED_PACKAGES = (
    "numpy sympy mpmath _pytest pytest pluggy "
    "hypothesis triton networkx tqdm packaging filelock fsspec huggingface_hub tokenizers safetensors yaml requests urllib3 PIL "
    "setuptools pip IPython ipykernel traitlets coverage torchgen functorch"
).split()

# Below torch/, where frames are worth tracing: forward functions of modules, and what decides on data before it calls for most of a
# training step (`if not found_inf: optimizer.step()`). module.py is the calling machinery of modules.
_TRACED_IN_TORCH = (
    os.path.join("nn", "modules", ""),
    os.path.join("amp", "grad_scaler.py"),
    os.path.join("optim", "swa_utils.py"),
)
_SKIPPED_IN_TORCH = ("nn" + os.sep + "modules" + os.sep + "module.py",)

# File names of code that no file holds.
_SKIPPED_PSEUDO_FILES = ("<frozen", "<eval_with_key>", "<__array_function__", "<attrs generated", "<treadle")


_STANDARD_LIBRARY, _TORCH = "the standard library", "torch"


def _torch_directory() -> str:
    return os.path.dirname(torch._C.__file__) + os.sep


def _directories_of(package: str) -> list[str]:
    spec = importlib.machinery.PathFinder.find_spec(package)  # no other finder: some have effects of their own
    return list(spec.submodule_search_locations or ()) if spec is not None else []


@functools.cache
def _own_directories() -> frozenset[str]:
    return frozenset(d.rstrip(os.sep) + os.sep for name in _OWN_PACKAGES for d in _directories_of(name))


@functools.cache
def _skipped_directories() -> tuple[tuple[str, str], ...]:
    """(directory with separator at its end, what it is), longest first."""
    found = {
        sysconfig.get_paths()["stdlib"]: _STANDARD_LIBRARY,
        sysconfig.get_paths()["platstdlib"]: _STANDARD_LIBRARY,
    }
    for name in (*_OWN_PACKAGES, *_SKIPPED_PACKAGES):
        found.update(dict.fromkeys(_directories_of(name), f"the package {name}"))
    found[_torch_directory()] = _TORCH
    return tuple(sorted(((d.rstrip(os.sep) + os.sep, what) for d, what in found.items()), key=lambda p: -len(p[0])))


@functools.cache
def _site_directories() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    return tuple(paths[key].rstrip(os.sep) + os.sep for key in ("purelib", "platlib"))


@functools.cache
def why_not_trace_file(filename: str) -> Skip | None:
    """Why frames of code from this file are left alone; None when they may be traced."""
    for prefix in _SKIPPED_PSEUDO_FILES:
        if filename.startswith(prefix):
            return Skip(SkipKind.GENERATED, f"generated code ({filename})")
    for directory, what in _skipped_directories():
        if not filename.startswith(directory):
            continue
        rest = filename[len(directory) :]
        if what == _TORCH and rest.startswith(_TRACED_IN_TORCH) and not rest.startswith(_SKIPPED_IN_TORCH):
            return None
        if what == _STANDARD_LIBRARY and filename.startswith(_site_directories()):
            return None
        kind = SkipKind.TREADLE if directory in _own_directories() else SkipKind.LIBRARY
        return Skip(kind, f"code of {what}")
    return None


def why_not_trace(code: CodeType, is_root: bool = False) -> Skip | None:
    """Why a frame of `code` is not traced; None when it may be. A root, which the user asked to compile, may have any name and any file."""
    for flag, what in _GENERATORS.items():
        if code.co_flags & flag:
            return Skip(SkipKind.GENERATOR, what)
    if code.co_flags & _FUNCTION_FLAGS != _FUNCTION_FLAGS:
        return Skip(SkipKind.BODY, "the body of a module or class")
    if is_root:
        return None
    if is_left_below(code):
        return Skip(SkipKind.RESULTS_CACHED, "its results are cached, so that it runs once for each key")
    in_torch = code.co_filename.startswith(_torch_directory()) and code.co_name.startswith("__")
    if code.co_name in _SKIPPED_NAMES or in_torch:
        return Skip(SkipKind.SPECIAL_METHOD, f"a special method ({code.co_name})")
    return why_not_trace_file(code.co_filename)


def skips_callees(code: CodeType) -> bool:
    """Whether what a frame of `code` calls is to run as Python, too.

    Imports: finders, loaders and the bodies of modules run once, and compiling them is lost time. Checkpointing without re-entering
    autograd: it counts the tensors that its function saves, in forward and again in backward, where no compiled frame is active.
    Functions compiled by torch.compile: its own evaluator is at work below them. Functions whose results are cached run once, too.
    """
    if is_left_below(code):
        return True
    if code.co_filename.startswith("<frozen importlib"):
        return True
    if code.co_filename == _torch_directory() + os.path.join("_dynamo", "eval_frame.py"):
        return True
    return code.co_name == "checkpoint" and code.co_filename == _torch_directory() + os.path.join(
        "utils", "checkpoint.py"
    )


_PLAIN = (type(None), bool, int, float, complex, str, bytes, range, type, ModuleType)
_MAX_LOOKED_AT = 64


def why_no_tensors(
    code: CodeType, arguments: dict[str, Any], globals_: dict[str, Any], closure: tuple[Any, ...]
) -> Skip | None:
    """Why the frame surely computes with no tensor; None when it might. Looks only at arguments and names, never runs user code."""
    names = [globals_[name] for name in code.co_names if name in globals_]
    for obj in (*names, *map(_contents, closure)):
        if may_hold_tensors(obj):
            return None
    for name, obj in arguments.items():
        if may_hold_tensors(obj) and not (
            _has_plain_lookup(obj) and PlainReads(may_hold_tensors).are_all(code, name, obj)
        ):
            return None
    text = "no argument or name of the function refers to torch, a tensor or an object that could hold one"
    return Skip(SkipKind.NO_TENSOR, text)


def _has_plain_lookup(obj: Any) -> bool:
    """Whether an object is of a class of the program, whose attributes are found in the usual way."""
    cls = type(obj)
    if is_subtype(cls, torch.Tensor) or not is_made_by_statement(cls):
        return False
    return not any("__getattribute__" in namespace_of(base) for base in mro_of(cls) if base is not object)


def _contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None


def may_hold_tensors(obj: Any, depth: int = 3) -> bool:
    """Whether an object is a tensor, or something may be found through it that is one."""
    if is_subtype(type(obj), ModuleType):
        return obj.__name__.partition(".")[0] == "torch"
    if any(is_subtype(type(obj), kind) for kind in _PLAIN) or is_numpy_scalar(obj):
        return False
    if type(obj) is FunctionType:
        return why_not_trace_file(obj.__code__.co_filename) is None or str(obj.__module__).startswith("torch")
    if is_one_of(type(obj), _ITERATORS):
        return _may_give_tensors(obj, depth)
    if is_one_of(type(obj), (list, tuple, torch.Size, set, frozenset, dict)):
        if depth == 0 or len(obj) > _MAX_LOOKED_AT:
            return True
        members = [*obj, *obj.values()] if isinstance(obj, dict) else obj
        return any(may_hold_tensors(member, depth - 1) for member in members)
    return True


_ITERATORS = (
    *(type(iter(container)) for container in ([], (), set[Any](), {}, {}.values(), {}.items(), range(0), "", b"")),
    *(type(reversed(container)) for container in ([], {}, {}.values(), {}.items())),
    enumerate,
    zip,
)
"""Iterators that say what they iterate over. A comprehension, a function of its own before Python 3.12, has one as its argument."""


def _may_give_tensors(iterator: Any, depth: int) -> bool:
    if operator.length_hint(iterator) > _MAX_LOOKED_AT and type(iterator) is not type(iter(range(0))):
        return True  # that of a dict or a set copies the items
    try:
        parts = iterator.__reduce__()[1]
    except RuntimeError:  # its dict has changed
        return True
    return any(may_hold_tensors(part, depth) for part in parts)
