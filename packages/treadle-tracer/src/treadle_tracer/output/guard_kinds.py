"""Every kind of guard, one record per op of `treadle_frame.guards.OPS`.

A record says how the guard reads, which other guards make it superfluous, what it becomes in a guard program, and what a recompile
reason says when it fails. Its place in C is the table of packages/treadle-frame/csrc/guard_checks.c; docs/contracts.md section 1 says
what each op means. Nothing else in the tracer knows the ops, apart from the code that adds a guard.
"""

from __future__ import annotations

import types
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ..by_identity import IdentitySet, classes_after, is_one_of
from ..class_facts import is_class, is_subtype, mro_of, namespace_of, qualname_of
from ..decided import Decided
from ..weakly import named_slot, parts_of, reference_to, referent

Compiled = tuple[str, Any]  # op and argument of a `treadle_frame.Check`


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardKind:
    """One kind of guard.

    op                the name in guard programs
    text              (text of the source, argument) -> the guard as Python that a user can read
    failure           (reason, argument in the guard program, value found) -> what a recompile reason says when the guard fails
    compiled          argument -> op and argument in the guard program; where the argument names sources, their paths
    implied_by        ops on the same source that make this guard superfluous, whatever their arguments: a trace sees consistent values
    true_of_constants the guard needs no check on an object that is a constant of the traced code
    is_identity       the value must be one certain object
    on_several_paths  the guard looks at several values
    on_numbers        the guard relates sizes and numbers; it says nothing about a single tensor
    is_recorded       `GuardSet.add` takes it; otherwise only the making of a guard program does
    """

    op: str
    text: Callable[[str, Any], str]
    failure: Callable[[str, Any, Any], str]
    compiled: Callable[[Any], Compiled]
    implied_by: frozenset[str] = frozenset()
    true_of_constants: bool = False
    is_identity: bool = False
    on_several_paths: bool = False
    on_numbers: bool = False
    is_recorded: bool = True


# ---- texts. They run no code of the program: no attribute, `__len__` or `__repr__` of an object whose type is not known.

_CONTAINERS: tuple[Any, ...] = (list, tuple, dict, set, frozenset, str, bytes, deque)
_PLAIN = (str, bytes, bool, int, float, complex, type(None), torch.dtype, torch.device)
_NAMED = IdentitySet(
    (types.FunctionType, types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)
)


def short(value: Any, limit: int = 80) -> str:
    """An argument of a guard in a few words."""
    if _is_plain(value):
        text = repr(value)
        return text if len(text) <= limit else text[: limit - 3] + "..."
    if is_class(value):
        return qualname_of(value)
    return value.__qualname__ if type(value) in _NAMED else f"<{qualname_of(type(value))} at {id(value):#x}>"


def _is_plain(value: Any) -> bool:
    """Whether `repr` of the value runs Python's own code only."""
    return is_one_of(type(value), _PLAIN) or (is_one_of(type(value), (tuple, list)) and all(map(_is_plain, value)))


def short_found(value: Any) -> str:
    """A value that a call gives, in a few words: tensors by dtype and sizes, other objects by type."""
    if issubclass(type(value), torch.Tensor):
        return f"a {qualname_of(type(value))} of {str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    text = repr(value) if is_one_of(type(value), _PLAIN) else f"a {qualname_of(type(value))}"
    return text if len(text) <= 80 else text[:77] + "..."


# ---- what a recompile reason says


def _expected(reason: str, argument: Any, found: Any) -> str:
    return f"expected {reason}"


def _expected_value(reason: str, argument: Any, found: Any) -> str:
    return f"expected {reason}, found {short_found(found)}"


def _expected_type(reason: str, argument: Any, found: Any) -> str:
    return f"expected {reason}, found {qualname_of(type(found))}"


def _expected_length(reason: str, argument: Any, found: Any) -> str:
    sized = next((t for t in _CONTAINERS if issubclass(type(found), t)), None)
    return f"expected {reason}, found {short_found(found) if sized is None else sized.__len__(found)}"


def _expected_object(reason: str, argument: Any, found: Any) -> str:
    if any(is_subtype(type(argument), kind) for kind in (int, str, type(None))):
        return _expected_value(reason, argument, found)
    what = reason.partition(" is ")[0]
    same_kind = "another one" if type(found) is type(argument) else short_found(found)
    return f"{what}: expected the same {qualname_of(type(argument))} as when it was compiled, found {same_kind}"


def _expected_referent(reason: str, argument: Any, found: Any) -> str:
    return _expected_object(reason, referent(argument), found)


def _expected_lookup(reason: str, argument: Any, found: Any) -> str:
    for name, kind, value, *after in argument if is_class(found) else ():
        base = referent(after[0]) if after else None
        if base is not None and not is_one_of(base, mro_of(found)):
            return f"expected {qualname_of(base)} to be a base of {qualname_of(found)}"
        mro = classes_after(mro_of(found), base)
        owner = next((cls for cls in mro if name in namespace_of(cls)), None)
        there = None if owner is None else namespace_of(owner)[name]
        holds = {
            "lacks": owner is None,
            "in": owner is referent(value),
            "is": owner is not None and there is value,
            "refers": owner is not None and there is referent(value),
            "made_of": owner is not None and parts_of(there) == value,
            "mro": kind == "mro" and list(map(id, mro)) == [id(referent(base)) for base in value],
        }
        if not holds[kind]:
            return f"{qualname_of(found)}.{name} is found elsewhere than when it was compiled"
    return f"expected {reason}"


# ---- the table

_ROWS: list[GuardKind] = []


def _kind(
    op: str,
    text: Callable[[str, Any], str] | None = None,
    failure: Callable[[str, Any, Any], str] = _expected,
    compiled: Callable[[Any], Compiled] | None = None,
    implied_by: str = "",
    **flags: bool,
) -> None:
    """Add a row. By default a guard reads `op of x`, its failure says the guard alone, and its argument is used as it is."""
    _ROWS.append(
        GuardKind(
            op=op,
            text=text or (lambda source, argument: f"{op} of {source}"),
            failure=failure,
            compiled=compiled or (lambda argument: (op, argument)),
            implied_by=frozenset(implied_by.split()),
            **flags,
        )
    )


def _compiled_is(argument: Any) -> Compiled:
    """The user's data is referred to weakly. A module, say, may hold the code whose entry holds this guard, and Python's collector sees
    no cycle through a code object."""
    held = reference_to(argument)
    return ("is", argument) if held is argument else ("refers", held)


def _parts_of(function: Any) -> Any:
    return (weakref.ref(function.__code__), len(function.__defaults__ or ()), tuple(function.__kwdefaults__ or ()))


_kind(
    "is",
    lambda s, a: f"{s} is {short(a)}",
    _expected_object,
    _compiled_is,
    true_of_constants=True,
    is_identity=True,
)
_kind("refers", failure=_expected_referent, is_identity=True, is_recorded=False)
_kind("is_not", lambda s, a: f"{s} is not {short(a)}", implied_by="is type_is equals native_tensor")
_kind(
    "type_is",
    lambda s, a: f"type({s}) is {qualname_of(a)}",
    _expected_type,
    lambda cls: ("type_is", reference_to(cls)),
    implied_by="is equals native_tensor",
    true_of_constants=True,
)
_kind("equals", lambda s, a: f"{s} == {short(a)}", _expected_value, implied_by="is", true_of_constants=True)
_kind("type_lookup", failure=_expected_lookup, is_recorded=False)
_kind(
    "function_code",
    lambda s, a: f"{s} has the code and the number of defaults of {a.__qualname__}",
    compiled=lambda function: ("function_code", _parts_of(function)),
)
_kind(
    "unset",
    lambda s, a: f"{s}.{a.__name__} is not set",
    compiled=lambda descriptor: ("unset", named_slot(descriptor) or descriptor),
)
_kind("len", lambda s, a: f"len({s}) == {a}", _expected_length, implied_by="dict_keys")
_kind("dict_keys", lambda s, a: f"list({s}) == {short(list(a))}")
_kind("has_attr", lambda s, a: f"hasattr({s}, {a!r})")
_kind("lacks_attr", lambda s, a: f"not hasattr({s}, {a!r})")
_kind("has_key", lambda s, a: f"{short(a)} in {s}", implied_by="dict_keys")
_kind("lacks_key", lambda s, a: f"{short(a)} not in {s}", implied_by="dict_keys")
_kind("call")
_kind("capsule")
_kind("native_tensor")
_kind(
    "same_object",
    lambda s, a: f"{s} is {a.text}",
    compiled=lambda source: ("same_object", source.path),
    on_several_paths=True,
)
_kind(
    "distinct_objects",
    lambda s, a: f"{s} is none of {', '.join(x.text for x in a)}",
    compiled=lambda sources: ("distinct_objects", tuple(s.path for s in sources)),
    on_several_paths=True,
)
_kind(
    "call_many",
    compiled=lambda pair: ("call_many", (pair[0], tuple(s.path for s in pair[1]))),
    on_several_paths=True,
    on_numbers=True,
)
_kind("equal_items", on_several_paths=True, on_numbers=True, is_recorded=False)

KINDS: dict[str, GuardKind] = {row.op: row for row in _ROWS}
# op -> the ops on the same source that are superfluous beside it
IMPLIES: dict[str, frozenset[str]] = {
    op: frozenset(weaker.op for weaker in _ROWS if op in weaker.implied_by) for op in KINDS
}
RECORDED = tuple(row.op for row in _ROWS if row.is_recorded)


def is_asked_last(guard: Any) -> bool:
    """Whether asking a guard or its compiled check can be noticed, so that it is asked only on calls that the entry takes if it holds."""
    return guard.op == "call_many" and getattr(guard.arg[0], "is_asked_last", False)


def asked_after(guard: Any) -> int:
    """The order of checks by what asking them costs: decisions on numbers of tensors may call operators. What can be noticed is last."""
    if is_asked_last(guard):
        return 2
    return 1 if guard.op == "call_many" and isinstance(guard.arg[0], Decided) else 0
