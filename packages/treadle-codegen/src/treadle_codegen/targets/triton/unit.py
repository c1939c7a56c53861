"""A rendered unit read back: the text of a Python module with kernels, how each is compiled, and which segment launches what.

    @triton.jit
    def k_0123(b0, b1, n0, XBLOCK: tl.constexpr): ...

    KERNELS = {"k_0123": {"signature": ["*fp32", "*fp32", "i64"], "constants": {"XBLOCK": 1024}, "num_warps": 4,
                          "num_stages": 3, "checks_bounds": False}}
    SEGMENTS = {"segment_0": [{"kernel": "k_0123", "slots": [1, 2, 3], "grid": [[["slot", 3], 1024]]}]}

The module is parsed, never imported: `KERNELS` and `SEGMENTS` are literals. A kernel is compiled from its own function and
from the module's other statements (imports, helper functions), so that its text does not depend on the unit's other kernels.
Bodies of functions are indented throughout, and the line that ends a function's head ends in a colon; they are cut out before
the rest is parsed, because parsing them takes longer than anything else of a build whose kernels are in the cache.
"""

from __future__ import annotations

import ast
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# CPython 3.11 may raise SystemError where two threads make syntax trees (https://github.com/python/cpython/issues/106905).
ONE_PARSER = threading.Lock()
NUMBER_TYPES = frozenset(("i32", "i64", "fp64"))  # an i32 is the low half of its slot
_MOST_DIMENSIONS = 3
# A function: decorators, the head up to the line that ends in a colon (or a comment behind it), and all indented or empty lines.
_FUNCTION = re.compile(
    r"^(?P<head>(?:@[^\n]*\n)*def (?P<name>\w+)\((?:[^\n]*\n)*?[^\n]*:[ ]*(?:#[^\n]*)?)\n(?:[ \t][^\n]*\n|[ \t]*\n)*",
    re.MULTILINE,
)


class UnitError(ValueError):
    """The text of a unit breaks the contract of this module, which is a bug of ours; the message names kernel or segment."""


@dataclass(frozen=True, slots=True)
class UnitKernel:
    """One kernel of a unit.

    text: its function with decorators, behind what it needs of the unit; signature: (argument, Triton type) of each run-time
    argument, pointers before numbers; constants: value by name of its constexpr arguments; checks_bounds: it has device
    asserts, which only a kernel compiled with `debug` keeps; options: further options of Triton's compiler.
    """

    name: str
    text: str
    signature: tuple[tuple[str, str], ...]
    constants: Mapping[str, Any]
    num_warps: int
    num_stages: int
    checks_bounds: bool
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Dimension:
    """One dimension of a grid, `ceil(points / block)` programs; `slot` is where the table holds the points, or None."""

    points: int
    block: int
    slot: int | None = None


@dataclass(frozen=True, slots=True)
class Group:
    """A kernel made of several (`targets.triton.groups`), whose pointers come member by member.

    bytes: what each pointer's memory spans; written: whether it is written and may overlap other members' memory. The kernel's last
    argument, an i32, is the member that runs, or -1 for all of them beside each other.
    """

    members: int
    bytes: tuple[int, ...]
    written: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel launch: `slots` says where each run-time argument stands in the table."""

    kernel: str
    slots: tuple[int, ...]
    grid: tuple[Dimension, ...]
    group: Group | None = None


@dataclass(frozen=True, slots=True)
class Unit:
    """A parsed unit: kernels and segments by name."""

    kernels: Mapping[str, UnitKernel]
    segments: Mapping[str, tuple[Launch, ...]]


def _parse(source: str) -> ast.Module:
    with ONE_PARSER:
        return ast.parse(source)


def parse_unit(source: str) -> Unit:
    """Read a unit. Raises UnitError naming the kernel or segment that breaks the contract."""
    texts = {found["name"]: found[0] for found in _FUNCTION.finditer(source)}
    skeleton = _FUNCTION.sub(lambda found: f"{found['head']}\n    pass\n", source)
    try:
        module = _parse(skeleton)
    except SyntaxError as error:
        raise UnitError(f"the unit is no Python module: {error}") from error
    literals = {name: _literal(module, name) for name in ("KERNELS", "SEGMENTS")}
    records = literals["KERNELS"]
    lines = skeleton.splitlines(keepends=True)
    functions: dict[str, ast.FunctionDef] = {}
    shared: list[str] = []
    for statement in module.body:
        if isinstance(statement, ast.FunctionDef) and statement.name in records:
            functions[statement.name] = statement
        elif isinstance(statement, ast.FunctionDef) and statement.name in texts:
            shared.append(texts[statement.name])
        elif _assigned(statement) not in literals and not _is_docstring(statement):
            shared.append(_text(lines, statement))
    common = "".join(shared)
    kernels = {
        name: _kernel(name, record, functions.get(name), f"{common}\n{texts.get(name, '').rstrip()}\n")
        for name, record in records.items()
    }
    segments = {
        name: tuple([_launch(name, launch, kernels) for launch in launches])
        for name, launches in literals["SEGMENTS"].items()
    }
    return Unit(kernels, segments)


def _assigned(statement: ast.stmt) -> str | None:
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1 and isinstance(statement.targets[0], ast.Name):
        return statement.targets[0].id
    return None


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _literal(module: ast.Module, name: str) -> dict[str, Any]:
    found = [statement for statement in module.body if _assigned(statement) == name]
    if len(found) != 1:
        raise UnitError(f"the unit assigns {name} {len(found)} times, not once")
    try:
        value = ast.literal_eval(found[0].value)  # type: ignore[attr-defined]
    except (ValueError, SyntaxError) as error:
        raise UnitError(f"{name} is no literal: {error}") from error
    if not isinstance(value, dict):
        raise UnitError(f"{name} is a {type(value).__name__}, not a dictionary")
    return value


def _text(lines: list[str], statement: ast.stmt) -> str:
    decorators = getattr(statement, "decorator_list", [])
    first = min([statement.lineno, *[decorator.lineno for decorator in decorators]])
    text = "".join(lines[first - 1 : statement.end_lineno])
    return text if text.endswith("\n") else text + "\n"


def _kernel(name: str, record: Mapping[str, Any], function: ast.FunctionDef | None, text: str) -> UnitKernel:
    if function is None:
        raise UnitError(f"KERNELS names {name}, and the unit defines no function of that name")
    try:
        constants = dict(record["constants"])
        names = [argument.arg for argument in function.args.args]
        run_time = [argument for argument in names if argument not in constants]
        if missing := constants.keys() - set(names):
            raise UnitError(f"kernel {name} has no arguments {', '.join(sorted(missing))} for its constants")
        types = [str(type_) for type_ in record["signature"]]
        if len(types) != len(run_time):
            raise UnitError(f"kernel {name} takes {len(run_time)} run-time arguments, its signature has {len(types)}")
        _check_types(name, types)
        return UnitKernel(
            name,
            text,
            tuple(zip(run_time, types, strict=True)),
            constants,
            int(record["num_warps"]),
            int(record["num_stages"]),
            bool(record["checks_bounds"]),
            dict(record.get("options", {})),
        )
    except KeyError as error:
        raise UnitError(f"the record of kernel {name} has no {error}") from error


def _check_types(kernel: str, types: list[str]) -> None:
    pointers = [type_.startswith("*") for type_ in types]
    if sorted(pointers, reverse=True) != pointers:
        raise UnitError(f"kernel {kernel} takes a pointer after a number: {types}")
    for type_, is_pointer in zip(types, pointers, strict=True):
        if not is_pointer and type_ not in NUMBER_TYPES:
            raise UnitError(
                f"kernel {kernel} takes a number of type {type_!r}; known: {', '.join(sorted(NUMBER_TYPES))}"
            )


def _launch(segment: str, record: Mapping[str, Any], kernels: Mapping[str, UnitKernel]) -> Launch:
    try:
        kernel = kernels[record["kernel"]]
        slots = tuple([int(slot) for slot in record["slots"]])
        if len(slots) != len(kernel.signature):
            raise UnitError(
                f"{segment} passes {len(slots)} arguments to {kernel.name}, which takes {len(kernel.signature)}"
            )
        grid = tuple([_dimension(segment, kernel.name, points, block) for points, block in record["grid"]])
    except KeyError as error:
        raise UnitError(f"a launch of {segment} lacks {error}, or names no kernel of the unit") from error
    if not 1 <= len(grid) <= _MOST_DIMENSIONS:
        raise UnitError(
            f"the grid of {kernel.name} in {segment} has {len(grid)} dimensions, not 1 to {_MOST_DIMENSIONS}"
        )
    return Launch(kernel.name, slots, grid, _group(segment, kernel.name, record, len(slots)))


def _group(segment: str, kernel: str, record: Mapping[str, Any], arguments: int) -> Group | None:
    if "members" not in record:
        return None
    group = Group(int(record["members"]), tuple(map(int, record["bytes"])), tuple(map(bool, record["written"])))
    pointers = arguments - 1
    if group.members < 2 or pointers % group.members or {len(group.bytes), len(group.written)} != {pointers}:
        raise UnitError(f"the group of {kernel} in {segment} has {pointers} pointers for {group.members} members")
    return group


def _dimension(segment: str, kernel: str, points: Any, block: Any) -> Dimension:
    if not isinstance(block, int) or block < 1:
        raise UnitError(f"the grid of {kernel} in {segment} has blocks of {block!r} points")
    if isinstance(points, int):
        return Dimension(points, block)
    if isinstance(points, (list, tuple)) and len(points) == 2 and points[0] == "slot":
        return Dimension(0, block, int(points[1]))
    raise UnitError(f"the grid of {kernel} in {segment} has {points!r} points, neither a number nor a slot")
