"""Checks that a trace keeps what the user has declared about sizes (`marks`), and raises a ConstraintError where it does not.

The checks run after the trace, and again after the backend, which may make decisions, too. The user's declaration or program is wrong
then, so the error is never recovered.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from treadle_shapes import ConstraintError

from .marks import Mark, marks_of
from .source import Source

if TYPE_CHECKING:
    from treadle_shapes import ShapeEnv

    from .output.guards import TensorGuard

Declared = Mapping[Source, Mapping[int, Mark]]


def declared_in(tensors: Iterable[tuple[TensorGuard, Any]], before: Declared) -> dict[Source, dict[int, Mark]]:
    """The marks of these inputs, and the names that inputs at the same places had in earlier calls.

    tensors: the guard of each input, and the tensor itself. A name is a property of the function, so it outlives the tensor that it was
    set on; a policy and a range belong to the tensor.
    """
    found: dict[Source, dict[int, Mark]] = {}
    for guard, tensor in tensors:
        named = {dim: Mark("maybe", name=mark.name) for dim, mark in before.get(guard.source, {}).items() if mark.name}
        marks = {dim: mark for dim, mark in {**named, **marks_of(tensor)}.items() if dim < len(guard.sizes)}
        if marks:
            found[guard.source] = marks
    return found


def check_given(declared: Declared, sizes: Mapping[Source, tuple[int, ...]]) -> None:
    """Raise ConstraintError when a size of this call is outside its declared range, or differs from another one of the same name."""
    named: dict[str, tuple[str, int]] = {}
    for source, marks in declared.items():
        for dim, mark in marks.items():
            text, size = f"{source.text}.size()[{dim}]", sizes[source][dim]
            if not mark.holds(size):
                raise ConstraintError(
                    f"{text} is {size}, outside the range {mark.range} that it was marked dynamic with; "
                    f"pass a size in the range, or mark the tensor with a wider one"
                )
            if mark.name is None:
                continue
            first, expected = named.setdefault(mark.name, (text, size))
            if expected != size:
                raise ConstraintError(
                    f"the dimension named {mark.name!r} is {expected} at {first} but {size} at {text}; "
                    f"pass equal sizes, or mark the two with different names"
                )


def check_still_dynamic(declared: Declared, env: ShapeEnv | None, names: Mapping[Source, str]) -> None:
    """Raise ConstraintError when a dimension that must be dynamic has become a constant, with the line of the program that did it.

    names: what `env` calls the tensors.
    """
    if env is None:
        return
    must = {
        f"{names[source]}.size()[{dim}]": mark
        for source, marks in declared.items()
        for dim, mark in marks.items()
        if mark.policy == "dynamic"
    }
    places = [(symbol, info.source) for symbol, info in env.symbols.items()]
    for symbol, text in [*places, *env.shared]:
        mark = must.get(text)
        if mark is None or (mark.lower is not None and mark.lower == mark.upper):
            continue
        value = env.simplify(symbol)
        if isinstance(value, int):
            raise ConstraintError(_specialised(env, symbol, text, value))


def _specialised(env: Any, symbol: Any, text: str, value: int) -> str:
    """Why a symbol is a constant: the first decision after which it was."""
    from treadle_shapes import Facts

    facts = Facts()
    where = ""
    for guard in env.guards:
        facts.add(guard.expr)
        if isinstance(facts.simplify(symbol), int):
            where = f": {env.describe(guard.expr)} was decided at {guard.where}"
            break
    return (
        f"{text} is marked dynamic, but the program makes it the constant {value}{where}; "
        f"change that line to work for any size, or use maybe_mark_dynamic or mark_static"
    )
