"""`cls.__subclasses__()`, which registries ask (the backends of einops)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from treadle_tracer.errors import Unsupported
from treadle_tracer.source import ConstSource
from treadle_tracer.values.sequences import ListValue
from treadle_tracer.values.value import Value
from treadle_tracer.weakly import reference_to, referent

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext


class SameSubclasses:
    """Guard callable: a class has the recorded direct subclasses, in the recorded order. It keeps none of them alive."""

    __slots__ = ("references",)

    def __init__(self, found: list[type]):
        self.references = [reference_to(cls) for cls in found]

    def __call__(self, cls: type) -> bool:
        found = type.__subclasses__(cls)
        return len(found) == len(self.references) and all(
            own is referent(reference) for own, reference in zip(found, self.references, strict=True)
        )


def subclasses_of(tx: TraceContext, owner: Value) -> Value:
    """The direct subclasses of a class. Raises Unsupported where the program has made classes, of which each run makes others."""
    cls = owner.constant()
    found = type.__subclasses__(cls)
    if any(id(each) in tx.mutations.made for each in (cls, *found)):
        raise Unsupported("call", f"{owner.describe()}.__subclasses__ after a class has been made")
    if len(found) > _MOST_SUBCLASSES:
        raise Unsupported("call", f"{owner.describe()}.__subclasses__, which are many")
    text = f"{owner.describe()} has the same {len(found)} subclasses"
    tx.guards.add(ConstSource(cls), "call", SameSubclasses(found), text)
    return ListValue([tx.wrap_known(each) for each in found])


_MOST_SUBCLASSES = 256
