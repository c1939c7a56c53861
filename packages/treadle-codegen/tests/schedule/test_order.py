"""What keeps steps behind the definitions of the numbers they use, and behind the checks on them."""

from __future__ import annotations

from treadle_codegen.ir.text import parse_program
from treadle_codegen.schedule.order import run_time_order

TEXT = """\
program inputs x outputs view(out, [u0], [1], 0)
symbol s0 1 None
runtime u0 0 None
runtime u1 0 None
input x : float32 [s0] strides [1] offset 0
temp t : int64 [u0, 1] strides [1, 1] offset 0
temp a : float32 [s0] strides [1] offset 0
output out : float32 [u0] strides [1] offset 0
extern find aten.nonzero.default (view(x, [s0], [1], 0), ) {} -> t origins a
  bind u0 0 0 1 'x'
define twice u1 = 2*u0
check enough (u1 >= 4) RuntimeError 'too few'
loop plain [i0:s0] reduce [] origins b
  %0 = load x[i0] : float32
  %1 = store a[i0] %0 : float32
loop fill [i0:u0] reduce [] origins c
  %0 = const 1.0 : float32
  %1 = store out[i0] %0 : float32
"""


def test_steps_read_and_settle_numbers() -> None:
    order = run_time_order(parse_program(TEXT))
    assert order["find"] == (frozenset(), {"$u0"})  # its own symbol is no dependency, though its result's shape has it
    assert order["twice"] == ({"$u0"}, {"$u1"})
    assert order["enough"] == ({"$u1"}, {"$u1"})
    assert order["fill"] == ({"$u0"}, frozenset())
    assert "plain" not in order


def test_a_program_without_such_numbers_has_no_order() -> None:
    lines = TEXT.splitlines()
    static = [line for line in lines if not line.startswith(("runtime", "extern", "  bind", "define", "check"))]
    text = "\n".join(static).replace("u0", "s0")
    assert run_time_order(parse_program(text)) == {}


def test_a_check_on_an_input_orders_what_mentions_it() -> None:
    lines = [line for line in TEXT.splitlines() if not line.startswith(("runtime", "extern", "  bind", "define"))]
    text = "\n".join(lines).replace("u0", "s0").replace("u1", "s0")
    order = run_time_order(parse_program(text))
    assert order["enough"] == ({"$s0"}, {"$s0"}) and order["plain"] == ({"$s0"}, frozenset())
