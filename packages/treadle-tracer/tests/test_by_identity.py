"""Containers by identity ask no object whether it equals another."""

from __future__ import annotations

import pytest

from treadle_tracer.by_identity import IdentityDict, IdentitySet, classes_after, identity_key, is_one_of, unique


class Hostile:
    def __eq__(self, other):
        raise AssertionError

    __hash__ = None


def test_objects_that_cannot_be_hashed_are_keys():
    a, b = Hostile(), Hostile()
    table = IdentityDict([(a, 1)])
    assert table[a] == 1 and a in table and b not in table and table.get(b, 5) == 5
    assert table.setdefault(b, 2) == 2 and table.setdefault(b, 3) == 2 and len(table) == 2
    assert [value for _, value in table.items()] == list(table.values()) == [1, 2]
    assert next(iter(table)) is a
    del table[a]
    assert a not in table
    with pytest.raises(KeyError):
        table[a]
    table.clear()
    assert len(table) == 0


def test_membership():
    a, b = Hostile(), Hostile()
    assert a in IdentitySet([a]) and b not in IdentitySet([a]) and list(IdentitySet([a])) == [a]
    assert is_one_of(a, (b, a)) and not is_one_of(a, (b,))
    assert list(map(id, unique([a, b, a]))) == [id(a), id(b)]
    assert 1.0 not in IdentitySet([True])


def test_methods_of_built_in_objects_count_by_object_and_method():
    a, b = [], []
    assert identity_key(a.append) == identity_key(a.append) != identity_key(b.append)
    assert identity_key(dict.fromkeys) == identity_key(dict.fromkeys)
    thing = Hostile()
    assert identity_key(thing.__eq__) == identity_key(thing.__eq__)


def test_classes_after():
    class A: ...

    class B(A): ...

    assert classes_after(B.__mro__, B) == (A, object) and classes_after(B.__mro__, None) == B.__mro__
    with pytest.raises(ValueError, match="not a base of .*B"):
        classes_after(B.__mro__, int)
