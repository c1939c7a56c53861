"""Records of symbols."""

from __future__ import annotations

import pytest

from treadle_shapes import UsageError
from treadle_shapes.symbols import check_symbol


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((3, None, None), "source of a symbol"),
        (("x", 1.5, None), "ints or None"),
        (("x", 4, 3), r"\[4, 3\] of x is empty"),
    ],
)
def test_what_is_no_symbol(arguments, message):
    with pytest.raises(UsageError, match=message):
        check_symbol(*arguments)


def test_what_is_one():
    check_symbol("x", None, None)
    check_symbol("x", 3, 3)
