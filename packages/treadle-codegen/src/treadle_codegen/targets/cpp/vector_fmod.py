"""Remainders of floats on whole vectors.

    v3 = f_fmod(v1, v2)        in a vector loop becomes        v3 = vector_fmod_f(v1, v2)

The second function is declared with g++'s attribute `simd`, as SLEEF's are (`vector_math.py`), and its vector forms stand in the unit.
Where quotients fit a mantissa, one division and one fused multiplication give exact remainders. Where some lane's does not, the C library
computes all of them, one after the other. Its function alone took 12 times as long as eager's kernel, which calls SLEEF's and is not exact.
"""

from __future__ import annotations

import re

import torch

from treadle_codegen.targets.cpp.vector_math import instruction_sets, vector_forms

_LETTERS = {torch.float64: "d", torch.float32: "f", torch.float16: "f", torch.bfloat16: "f"}
_USE = re.compile(r"vector_fmod_(?<!\wvector_fmod_)([df])\(")  # begins with letters, as in `vector_math`

_LANES = """
// x - trunc(x / y) * y. A quotient below 2^LIMIT is its rounded value or one less, and both remainders are exact.
template <int N, int LIMIT, class T> INLINE void fmod_lanes(const T* x, const T* y, T* r) {
  int hard = 0;
  #pragma omp simd reduction(|:hard)
  for (int l = 0; l < N; ++l) {
    T a = f_fabs(x[l]), b = f_fabs(y[l]);
    T q = f_trunc(a / b), m = f_fma(-q, b, a);
    hard |= !(q < (T)(1ll << LIMIT)) | (m != m);
    r[l] = f_copysign(m < 0 ? m + b : m, x[l]);
  }
  if (hard) for (int l = 0; l < N; ++l) r[l] = f_fmod(x[l], y[l]);
}
"""


def fmod_function(dtype: torch.dtype) -> str:
    """The name of the function that computes `fmod` of this dtype."""
    return f"vector_fmod_{_LETTERS[dtype]}" if instruction_sets() else "f_fmod"


def fmod_definitions(text: str) -> str:
    """What a unit needs for the calls in `text`."""
    used = sorted(set(_USE.findall(text)))
    if not used:
        return ""
    library = "".join(f"#define vector_fmod_{letter} f_fmod\n" for letter in used)
    return (
        f"\n#ifdef __clang__  // has no such attribute\n{library}#else\n{_LANES}{''.join(map(_function, used))}#endif\n"
    )


def _function(letter: str) -> str:
    scalar, size, limit = ("double", 8, 51) if letter == "d" else ("float", 4, 22)
    name, own = f"vector_fmod_{letter}", 'extern "C" __attribute__((visibility("hidden")))'
    lines = [f'{own} __attribute__((simd("notinbranch"), const, nothrow, leaf)) {scalar} {name}({scalar}, {scalar});\n']
    # Under another name: of a definition of this one g++ would make vector forms itself.
    lines.append(f'{own} {scalar} w_{name}({scalar}, {scalar}) asm("{name}");\n')
    lines.append(f"{scalar} w_{name}({scalar} x, {scalar} y) {{ return f_fmod(x, y); }}\n")
    for form, lanes in vector_forms(letter):
        asm = f"_ZGV{form}N{lanes}vv_{name}"
        lines += [
            f"typedef {scalar} t_{asm} __attribute__((vector_size({lanes * size})));\n",
            f'{own} t_{asm} w_{asm}(t_{asm} x, t_{asm} y) asm("{asm}");\n',
            f"t_{asm} w_{asm}(t_{asm} x, t_{asm} y) {{\n",
            f"  alignas(64) {scalar} a[{lanes}], b[{lanes}], r[{lanes}];\n",
            "  __builtin_memcpy(a, &x, sizeof a); __builtin_memcpy(b, &y, sizeof b);\n",
            f"  fmod_lanes<{lanes}, {limit}, {scalar}>(a, b, r);\n",
            "  __builtin_memcpy(&x, r, sizeof x); return x;\n}\n",
        ]
    return "".join(lines)
