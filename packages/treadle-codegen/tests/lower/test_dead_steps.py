"""Which steps nobody needs, and which stay although nobody reads their results."""

from __future__ import annotations

from treadle_codegen.ir.text import format_program, parse_program
from treadle_codegen.lower.dead_steps import has_effect, is_random, remove_dead_steps

TEXT = """\
program inputs x, i outputs view(out, [4], [1], 0)
runtime u0 0 None
input x : float32 [4] strides [1] offset 0
input i : int64 [4] strides [1] offset 0
temp unused : float32 [4] strides [1] offset 0
temp gathered : float32 [4] strides [1] offset 0
temp drawn : float32 [4] strides [1] offset 0
temp found : int64 [u0, 1] strides [1, 1] offset 0
temp first : float32 [4] strides [1] offset 0
temp second : int64 [4] strides [1] offset 0
output out : float32 [4] strides [1] offset 0
loop waste [i0:4] reduce [] origins a
  %0 = load x[i0] : float32
  %1 = store unused[i0] %0 : float32
loop checked [i0:4] reduce [] origins b
  %0 = load i[i0] : int64
  %1 = indirect_load x strides [1] sizes [4] %0 : float32
  %2 = store gathered[i0] %1 : float32
extern draw aten.rand_like.default (view(x, [4], [1], 0), ) {} -> drawn origins c
extern find aten.nonzero.default (view(x, [4], [1], 0), ) {} -> found origins d
  bind u0 0 0 1 'x'
check enough (u0 >= 1) RuntimeError 'none'
extern both aten.sort.default (view(x, [4], [1], 0), ) {} -> first, second origins e
loop last [i0:4] reduce [] origins f
  %0 = load first[i0] : float32
  %1 = store out[i0] %0 : float32
"""


def test_what_nobody_reads_goes_unless_it_matters() -> None:
    program = remove_dead_steps(parse_program(TEXT))
    assert [step.name for step in program.steps] == ["checked", "draw", "find", "enough", "both", "last"]
    assert program.steps[4].outputs == ("first", "")  # type: ignore[union-attr]
    assert "unused" not in program.buffers and "gathered" in program.buffers


WRITTEN_OVER = """\
program inputs x outputs view(out, [4, 4], [4, 1], 0)
input x : float32 [4, 4] strides [4, 1] offset 0
output out : float32 [4, 4] strides [4, 1] offset 0
loop copy [i0:16] reduce [] origins a
  %0 = load x[i0] : float32
  %1 = store out[i0] %0 : float32
loop same [i0:4] reduce [] origins b
  %0 = load out[4*i0 + 3] : float32
  %1 = store out[4*i0 + 3] overwrite %0 : float32
loop other [i0:4] reduce [] origins c
  %0 = load out[4*i0 + 2] : float32
  %1 = store out[4*i0 + 3] overwrite %0 : float32
"""


def test_a_loop_that_stores_what_is_there_goes() -> None:
    program = remove_dead_steps(parse_program(WRITTEN_OVER))
    assert [step.name for step in program.steps] == ["copy", "other"]


def test_named_steps_stay() -> None:
    program = remove_dead_steps(parse_program(TEXT), {"waste"})
    assert program.steps[0].name == "waste" and "unused" in program.buffers


def test_without_its_check_a_definition_goes() -> None:
    text = "\n".join(line for line in TEXT.splitlines() if not line.startswith("check"))
    assert "find" not in [step.name for step in remove_dead_steps(parse_program(text)).steps]


def test_effects_and_randomness() -> None:
    steps = {step.name: step for step in parse_program(TEXT).steps}
    assert [name for name, step in steps.items() if has_effect(step)] == ["checked", "enough"]
    assert [name for name, step in steps.items() if is_random(step)] == ["draw"]


def test_a_program_without_dead_steps_stays_as_it_is() -> None:
    program = remove_dead_steps(parse_program(TEXT))
    assert format_program(remove_dead_steps(program)) == format_program(program)


DECOMPOSED = """\
program inputs x outputs view(sums, [4], [1], 0)
input x : float32 [4, 4] strides [4, 1] offset 0
temp values : float32 [4] strides [1] offset 0
temp vectors : float32 [4, 4] strides [1, 4] offset 0
temp left : float32 [4, 4] strides [1, 4] offset 0
temp singular : float32 [4] strides [1] offset 0
temp right : float32 [4, 4] strides [1, 4] offset 0
output sums : float32 [4] strides [1] offset 0
extern eigen aten._linalg_eigh.default (view(x, [4, 4], [4, 1], 0), 'U') {} -> values, vectors origins a
extern svd aten._linalg_svd.default (view(x, [4, 4], [4, 1], 0), False, True) {} -> left, singular, right origins b
loop last [i0:4] reduce [] origins c
  %0 = load values[i0] : float32
  %1 = load singular[i0] : float32
  %2 = add %0 %1 : float32
  %3 = store sums[i0] %2 : float32
"""


def test_vectors_that_nobody_reads_are_not_asked_for() -> None:
    eigen, svd, _ = remove_dead_steps(parse_program(DECOMPOSED)).steps
    assert eigen.outputs == ("values", "") and eigen.kwargs == {"compute_v": False}  # type: ignore[union-attr]
    assert svd.outputs == ("", "singular", "") and svd.args[1:] == (False, False)  # type: ignore[union-attr]


def test_vectors_that_something_reads_stay() -> None:
    text = DECOMPOSED.replace("load values[i0]", "load vectors[i0]").replace("load singular[i0]", "load right[i0]")
    eigen, svd, _ = remove_dead_steps(parse_program(text)).steps
    assert eigen.kwargs == {} and svd.args[1:] == (False, True)  # type: ignore[union-attr]
