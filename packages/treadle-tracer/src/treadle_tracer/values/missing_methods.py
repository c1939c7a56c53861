"""What Python raises where a class lacks a special method that is asked for."""

from __future__ import annotations

from treadle_tracer.class_facts import name_in_messages
from treadle_tracer.errors import Unsupported
from treadle_tracer.values.class_lookup import MISSING, LooksUp, lookup


def error_of_missing_method(tx: LooksUp, cls: type, name: str) -> tuple[type[Exception], str]:
    """The exception and its text for an object of `cls`, which has no special method `name`, or has None in its place.

    Raises Unsupported where that does not follow from the class.
    """
    partner = _SLOT_PARTNERS.get(name)
    if partner is not None and lookup(tx, cls, name) is MISSING and lookup(tx, cls, partner) is not MISSING:
        return AttributeError, name  # typeobject.c: both are one slot, which looks its method up by name
    if name == "__delitem__":  # abstract.c, PyObject_DelItem: the text depends on the key, too
        raise Unsupported("raises", f"del of an item of a {cls.__name__}")
    return TypeError, _TEXTS.get(name, f"{{}} object does not support {name}").format(repr(name_in_messages(cls)))


_SLOT_PARTNERS = {"__setitem__": "__delitem__", "__delitem__": "__setitem__"}
_TEXTS = {
    "__iter__": "{} object is not iterable",
    "__index__": "{} object cannot be interpreted as an integer",
    "__next__": "{} object is not an iterator",
    "__getitem__": "{} object is not subscriptable",
    "__setitem__": "{} object does not support item assignment",
    "__len__": "object of type {} has no len()",
    "__neg__": "bad operand type for unary -: {}",
    "__pos__": "bad operand type for unary +: {}",
    "__invert__": "bad operand type for unary ~: {}",
    "__abs__": "bad operand type for abs(): {}",
    "__enter__": "{} object does not support the context manager protocol",
}
