"""Entry points: the calls of a segment's kernels, those of an unrolled loop's steps as a loop over a table.

    k_a((float*)p[1], (float*)p[2], 0.9f);      static const i64 t0[] = {1, 2, 1, 3, ...}; static const double d0[] = {0.9f, 0.8f, ...};
    k_b((float*)p[2], (float*)p[3]);            for (i64 n = 0; n < 500; ++n) {
    k_a((float*)p[1], (float*)p[3], 0.8f);        const i64* t = t0 + n * 4; const double* d = d0 + n;
    k_b((float*)p[3], (float*)p[4]);              k_a((float*)p[t[0]], (float*)p[t[1]], d[0]);
    ...                                           k_b((float*)p[t[2]], (float*)p[t[3]]); }

6,500 calls, 2,000 steps of a recurrent cell, take g++ 2.6 s one by one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from treadle_codegen.ir.loops import Buffer, FloatExpr
from treadle_codegen.targets.cpp.entries import ERROR_SLOT
from treadle_codegen.targets.cpp.ops import MEMORY_TYPES, constant
from treadle_codegen.targets.renderer import RenderedKernel, Segment
from treadle_codegen.targets.table_slots import slot_key

_MANY_CALLS = 500  # optimising so many, one by one, takes longer than compiling the kernels
_FEWEST_CALLS = 32  # fewer are not worth a loop
_FEWEST_STEPS = 4
_LONGEST_STEP = 128  # calls
_PERIODS = 6  # lengths of a step that are tried where one may begin


class _Call(NamedTuple):
    """The call of a kernel. `form`: its text with a place for each value; `values`: an integer, or the text of a constant."""

    form: str
    values: tuple[int | str, ...]
    is_double: tuple[bool, ...]
    label: str

    @property
    def text(self) -> str:
        return self.form.format(*self.values).replace(" + 0,", ",").replace(" + 0)", ")") + f"  // {self.label}"


def segment_text(segment: Segment, slots: Mapping[str, int], buffers: Mapping[str, Buffer]) -> str:
    """The exported function of a segment."""
    lines = _lines([_call(kernel, slots, buffers) for kernel in segment.kernels])
    attribute = "LONG_SEGMENT " if len(lines) > _MANY_CALLS else ""
    body = "".join(f"  {line}\n" for line in lines)
    return f'extern "C" {attribute}void {segment.name}(void** p) {{\n{body}}}\n'


def _call(kernel: RenderedKernel, slots: Mapping[str, int], buffers: Mapping[str, Buffer]) -> _Call:
    forms: list[str] = []
    values: list[int | str] = []
    for k, name in enumerate(kernel.buffers):
        forms.append(f"({MEMORY_TYPES[buffers[name].dtype]}*)p[{{}}]{' + {}' if kernel.bases else ''}")
        values += [slots[name], kernel.bases[k]] if kernel.bases else [slots[name]]
    for number in kernel.numbers:
        forms.append("*(const double*)(p + {})" if isinstance(number, FloatExpr) else "(i64)p[{}]")
        values.append(slots[slot_key(number)])
    is_double = [False] * len(values)
    for value, dtype in kernel.literals:
        forms.append("{}")
        values.append(constant(value, dtype))
        is_double.append(dtype.is_floating_point)
    for result in kernel.results:
        forms.append("(double*)(p + {})")
        values.append(slots[slot_key(result)])
        is_double.append(False)
    if kernel.checks_bounds or kernel.may_doubt:
        forms.append(f"(i64*)p[{ERROR_SLOT}]")
    return _Call(f"{kernel.function}({', '.join(forms)});", tuple(values), tuple(is_double), kernel.label)


def _lines(calls: Sequence[_Call]) -> list[str]:
    if len(calls) < _FEWEST_CALLS:
        return [call.text for call in calls]
    lines: list[str] = []
    at = 0
    numbers: dict[str, int] = {}
    forms = [numbers.setdefault(call.form, len(numbers)) for call in calls]
    following = _next_equal(forms)
    while at < len(calls):
        period, steps = _longest_run(forms, following, at)
        if steps:
            lines += _loop(calls[at : at + period * steps], period, at)
            at += period * steps
        else:
            lines.append(calls[at].text)
            at += 1
    return lines


def _next_equal(forms: Sequence[int]) -> list[int]:
    """For each position the next one with the same call, or the length."""
    following = [len(forms)] * len(forms)
    seen: dict[int, int] = {}
    for k in range(len(forms) - 1, -1, -1):
        following[k] = seen.get(forms[k], len(forms))
        seen[forms[k]] = k
    return following


def _longest_run(forms: Sequence[int], following: Sequence[int], at: int) -> tuple[int, int]:
    """(calls in a step, steps) of the run of equal steps from `at` on that covers most calls; no steps if there is none worth a loop."""
    best = (0, 0)
    again = at
    for _ in range(_PERIODS):
        again = following[again] if again < len(forms) else again
        period = again - at
        if period > _LONGEST_STEP or again == len(forms):
            break
        end = again
        while end < len(forms) and forms[end] == forms[end - period]:
            end += 1
        steps = (end - at) // period
        if steps >= _FEWEST_STEPS and period * steps >= _FEWEST_CALLS and period * steps > best[0] * best[1]:
            best = (period, steps)
    return best


def _loop(calls: Sequence[_Call], period: int, name: int) -> list[str]:
    """Tables of what the calls are given, and a loop over them."""
    integers, doubles = (
        [str(v) for call in calls for v, of in zip(call.values, call.is_double, strict=True) if of is is_double]
        for is_double in (False, True)
    )
    steps = len(calls) // period
    wide, long = len(doubles) // steps, len(integers) // steps
    lines = [f"static const i64 t{name}[] = {{{', '.join(integers)}}};"]
    head = f"const i64* t = t{name} + n * {long};"
    if doubles:
        lines.append(f"static const double d{name}[] = {{{', '.join(doubles)}}};")
        head += f" const double* d = d{name} + n * {wide};"
    lines += [f"for (i64 n = 0; n < {steps}; ++n) {{", f"  {head}"]
    places = {False: iter(range(long)), True: iter(range(wide))}
    for call in calls[:period]:
        given = [f"{'d' if of else 't'}[{next(places[of])}]" for of in call.is_double]
        lines.append(f"  {call.form.format(*given)}  // {call.label}")
    return [*lines, "}"]


__all__ = ["segment_text"]
